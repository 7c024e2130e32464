"""Planning: shares of a limit, and tasks out of segment ranges. No JVM."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.support.read.overlapping_transactions import overlap
from txnlog import Store, TopicPartition
from txnlog.clock import SystemClock
from txnlog.errors import InvalidOption, OffsetOutOfRange, UnknownTopicOrPartition
from txnlog.names import OWN_FILE
from txnlog.read.plan import SegmentRange
from txnlog.spark.batch.pinned_read import clip, fair_shares, pin_read, spans_of
from txnlog.spark.batch.tasks import group_ranges
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.task_sizes import MAX_TASK_BYTES, TaskSizes
from txnlog.state.segment import Segment, SegmentEntry, StoredSegment
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock


def _range(partition: int, base: int, records: int, size_bytes: int) -> SegmentRange:
    segment = Segment.of(
        0, SegmentEntry(0, base, StoredSegment(f"s{base}", records, size_bytes, 0, 0))
    )
    return SegmentRange("t", partition, segment, base, base + records)


def _records(task: tuple[SegmentRange, ...]) -> list[tuple[int, int, int]]:
    return [(part.partition, part.start_offset, part.stop_offset) for part in task]


def test_shares_use_the_limit_and_are_fair() -> None:
    """No partition gets more than it has, small ones get all, the whole limit is used."""
    where = [TopicPartition("t", number) for number in range(4)]
    counts = dict(zip(where, [100, 5, 100, 0], strict=True))
    shares = fair_shares(counts, 65, 0)
    assert [shares[w] for w in where] == [30, 5, 30, 0]
    assert sum(fair_shares(counts, 2, 0).values()) == 2
    assert fair_shares(counts, 1_000, 0) == counts


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_limit_below_the_number_of_partitions_starves_none(width: int) -> None:
    """While more comes into others in each run, and records stand ``width`` offsets apart."""
    where = [TopicPartition("t", number) for number in range(4)]
    counts = {where[0]: 5, where[1]: 5, where[2]: 1, where[3]: 100}
    turn = 0
    waited = dict.fromkeys(where, 0)
    for _ in range(300):
        shares = fair_shares(counts, 2, turn)
        assert sorted(shares.values()) == [0, 0, 1, 1]
        turn += 2 * width
        counts = {at: count - shares[at] + 1 for at, count in counts.items()}
        waited = {at: 0 if shares[at] else runs + 1 for at, runs in waited.items()}
        assert max(waited.values()) < 20
    assert fair_shares(counts, 2, turn) == fair_shares(counts, 2, turn)


def test_one_large_segment_is_read_by_many_tasks() -> None:
    """A segment is cut by offsets, without gap or overlap, into tasks of bounded size."""
    whole = _range(0, 50, 1_000_003, 10 * MAX_TASK_BYTES)
    tasks = group_ranges([whole])
    assert len(tasks) >= 10
    pieces = [piece for task in tasks for piece in task]
    assert (pieces[0].start_offset, pieces[-1].stop_offset) == (50, whole.stop_offset)
    assert all(a.stop_offset == b.start_offset for a, b in itertools.pairwise(pieces))
    assert max(sum(p.size_bytes for p in task) for task in tasks) <= 1.2 * MAX_TASK_BYTES


def test_to_open_a_segment_counts() -> None:
    """Thousands of tiny segments are the work of many tasks, a few of them that of one."""
    tiny = [_range(p, base * 10, 10, 1_000) for p in range(5) for base in range(1000)]
    tasks = group_ranges(tiny)
    assert [part for task in tasks for part in task] == tiny
    assert {len(task) for task in tasks[:-1]} == {32}
    assert len(group_ranges(tiny[:8])) == 1
    assert [len(task) for task in group_ranges(tiny[:18])] == [8, 8, 2]
    halved = group_ranges(tiny, TaskSizes(open_cost_bytes=2 << 20))
    assert len(halved) == 79
    for max_bytes in (1, 100, 20_000):  # what is asked for in small tasks is not torn to pieces
        tasks = group_ranges(tiny, TaskSizes(max_bytes=max_bytes))
        assert sum(len(task) for task in tasks) >= 5000
    # One large segment is cut as if there were no such cost.
    pieces = group_ranges([_range(0, 0, 1 << 20, 1 << 30)])
    assert [task[0].size_bytes for task in pieces] == [64 << 20] * 16


def test_small_segments_share_a_task() -> None:
    """Thousands of tiny segments do not become thousands of tasks; their order is kept."""
    ranges = [_range(p, base * 10, 10, 1_000) for p in range(4) for base in range(500)]
    tasks = group_ranges(ranges, TaskSizes(open_cost_bytes=0))
    assert len(tasks) == 1
    assert list(tasks[0]) == ranges


def _shared(partition: int, file: int, base: int, size_bytes: int = 100) -> SegmentRange:
    """A segment of 10 records in a file that others share."""
    at = partition * size_bytes
    segment = Segment.of(
        0, SegmentEntry(0, base, StoredSegment(f"f{file}", 10, size_bytes, 0, 0, position=at))
    )
    return SegmentRange("t", partition, segment, base, base + 10)


def test_a_file_that_segments_share_is_opened_once() -> None:
    """By one task, or two where it is cut; over the tasks each partition is in order."""
    partitions, files = 40, 100
    ranges = []
    for partition in range(partitions):
        base = 0
        for file in range(files):
            ranges.append(_shared(partition, file, base))
            base += 10
            if (partition + file) % 20 == 0:  # a large commit to it
                ranges.append(_range(partition, base, 10, 50_000))
                base += 10
    own = [part for part in ranges if part.segment.stored.position == OWN_FILE]
    tasks = group_ranges(ranges)
    assert sorted(itertools.chain(*map(_records, tasks))) == sorted(_records(tuple(ranges)))
    assert len(tasks) == len(
        group_ranges([*ranges[:2], *own, *(_shared(0, f, 0) for f in range(98))])
    )
    opened = Counter(file for task in tasks for file in {part.segment.stored.name for part in task})
    assert sum(opened[f"f{file}"] for file in range(files)) <= files + len(tasks)
    for task in tasks:
        assert _records(task) == sorted(_records(task))
    for partition in range(partitions):
        read = [part for task in tasks for part in task if part.partition == partition]
        assert all(a.stop_offset == b.start_offset for a, b in itertools.pairwise(read))


def test_an_order_that_files_do_not_have_is_kept() -> None:
    """Nothing is lost where two partitions have two files in different orders."""
    crossed = [_shared(0, 1, 0), _shared(0, 2, 10), _shared(1, 2, 0), _shared(1, 1, 10)]
    assert group_ranges(crossed) == [tuple(crossed)]
    each = group_ranges(crossed, TaskSizes(max_records=10))
    assert [part for task in each for part in task] == crossed


def test_little_is_read_by_fewer_tasks() -> None:
    """16 tasks of less than 128 MiB, or fewer of 32: a task has a price of its own."""
    found = [
        len(group_ranges([_range(0, 0, 1_000_000, mebibytes << 20)]))
        for mebibytes in (10, 32, 64, 320, 512, 1024, 2048, 4096)
    ]
    assert found == [1, 1, 2, 10, 16, 16, 16, 32]


def test_min_partitions_splits_further() -> None:
    """Option minPartitions gives at least so many tasks while there are so many records."""
    rng = random.Random(1)
    ranges = [_range(p, 0, rng.randrange(10, 1000), 100_000) for p in range(3)]
    for wanted in (2, 5, 20):
        tasks = group_ranges(ranges, TaskSizes(wanted))
        assert len(tasks) >= wanted
        assert sum(p.record_count for t in tasks for p in t) == sum(p.record_count for p in ranges)
    assert len(group_ranges([_range(0, 0, 1, 10)], TaskSizes(5))) == 1
    a_tenth_more_than_a_task = [_range(p, 0, 100, 110_000) for p in range(10)]
    assert len(group_ranges(a_tenth_more_than_a_task, TaskSizes(11))) >= 11


class _Counted(list[tuple[int, int]]):
    """A list that counts how often one of its items is asked for."""

    asked = 0

    def __getitem__(self, place: Any) -> Any:
        self.asked += 1
        return super().__getitem__(place)


def test_spans_are_few_and_each_range_finds_its_own() -> None:
    """Ranges without a gap are one span; of many spans a range looks at a few only."""
    dense = [_range(p, base, 1, 10) for p in (0, 1) for base in range(1000)]
    assert spans_of(dense) == {"t": {0: [(0, 1000)], 1: [(0, 1000)]}}
    assert spans_of(dense[::2])["t"][0] == [(base, base + 1) for base in range(0, 1000, 2)]
    spans = _Counted(spans_of(dense[::2])["t"][0])
    assert clip(dense[:1000], spans) == dense[:1000:2]
    assert spans.asked < 20_000


def test_ranges_are_clipped_to_their_offsets() -> None:
    """Of any spans, against each offset by itself."""
    rng = random.Random(5)
    for _ in range(300):
        cuts = sorted(rng.sample(range(60), 2 * rng.randrange(1, 9)))
        spans = [*zip(cuts[::2], cuts[1::2], strict=True)]
        bases = sorted(rng.sample(range(60), 8))
        ranges = [_range(0, a, rng.randint(1, b - a), 10) for a, b in itertools.pairwise(bases)]
        wanted = {at for start, stop in spans for at in range(start, stop)}
        there = {at for part in ranges for at in range(part.start_offset, part.stop_offset)}
        clipped = clip(ranges, spans)
        found = [at for part in clipped for at in range(part.start_offset, part.stop_offset)]
        assert found == sorted(wanted & there)


def _pinned(store: Store, **options: str) -> list[tuple[int, int, int]]:
    given = {"path": "unused", **options}
    return _records(pin_read(store, parse_read(given)).ranges)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """Topic ``t``: two partitions with offsets 0 to 9 each, in two appends."""
    storage = CountingStorage(open_storage(f"memory://planning-{request.node.name}"))
    made = attach(storage, create=True, clock=SystemClock())
    made.topics.create("t", partitions=2)
    for _ in range(2):
        with made.producer() as producer:
            for number in range(10):
                producer.send("t", value=b"v", partition=number % 2)
    return made


def test_offsets_bound_the_range(store: Store) -> None:
    """JSON offsets with edges; the start is included, the end is not."""
    given = {"startingOffsets": '{"t":{"0":3,"1":-1}}', "endingOffsets": '{"t":{"0":7,"1":-1}}'}
    assert _pinned(store, subscribe="t", **given) == [(0, 3, 5), (0, 5, 7)]
    assert _pinned(store, assign='{"t":[1]}') == [(1, 0, 5), (1, 5, 10)]


def test_max_records_is_shared_by_partitions(store: Store) -> None:
    """A limit takes the same from the front of each partition."""
    assert _pinned(store, subscribe="t", maxRecords="6") == [(0, 0, 3), (1, 0, 3)]


def test_a_group_starts_where_it_has_committed(store: Store) -> None:
    """Committed offsets are the default start, earliest where there are none; not moved."""
    consumer = store.consumer("t", group_id="g")
    consumer.commit({TopicPartition("t", 1): 8})
    assert _pinned(store, subscribe="t", **{"group.id": "g"}) == [(0, 0, 5), (0, 5, 10), (1, 8, 10)]
    explicit = {"group.id": "g", "startingOffsets": "latest"}
    assert _pinned(store, subscribe="t", **explicit) == []
    assert consumer.committed(TopicPartition("t", 0)) is None


LATE = {"startingTimestamp": "9" * 13, "startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize(
    ("recreated", "options", "moved"),
    [
        pytest.param(False, {"startingOffsets": "latest"}, [10, 10], id="latest"),
        pytest.param(False, {"startingOffsets": '{"t":{"0":10,"1":10}}'}, [10, 10], id="offsets"),
        pytest.param(False, LATE, [10, 10], id="time"),
        pytest.param(True, {"failOnDataLoss": "false"}, [0, 0], id="recreated"),
        pytest.param(True, {"startingOffsets": "earliest"}, [0, 0], id="recreated-earliest"),
    ],
)
def test_a_group_goes_on_where_its_first_read_has_begun(
    store: Store, recreated: bool, options: dict[str, str], moved: list[int]
) -> None:
    """Also where nothing was there yet: otherwise the next one would begin somewhere else."""
    consumer = store.consumer("t", group_id="g")
    if recreated:
        consumer.commit({TopicPartition("t", 0): 3, TopicPartition("t", 1): 3})
        store.topics.delete("t")
        store.topics.create("t", partitions=2)
        consumer = store.consumer("t", group_id="g")
    given = {"path": "unused", "subscribe": "t", "group.id": "g"}
    first = pin_read(store, parse_read({**given, **options}))
    assert [move.end for move in first.consumed("g")] == moved
    consumer.commit({TopicPartition("t", move.partition): move.end for move in first.consumed("g")})
    assert pin_read(store, parse_read({**given, **options})).consumed("g") == []
    _stamped(store, "t", {0: [1], 1: [1, 2]})
    found = [(0, moved[0], moved[0] + 1), (1, moved[1], moved[1] + 2)]
    assert _pinned(store, subscribe="t", **{"group.id": "g"}) == found


def test_a_group_does_not_move_to_where_it_would_begin(store: Store) -> None:
    """An empty topic, and one of which nothing is left, give a job nothing to commit."""
    store.topics.create("empty")
    store.topics.delete_records({TopicPartition("t", 0): 10, TopicPartition("t", 1): 10})
    given = {"path": "unused", "subscribe": "t,empty", "group.id": "g"}
    assert pin_read(store, parse_read(given)).consumed("g") == []


@pytest.mark.few(12)
@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("seed", range(12))
def test_a_group_reads_all_once_whatever_it_reads_together(seed: int, loss: str) -> None:
    """Ends go back when more topics are read, since more is cut off; the group never does."""
    store = attach(HeapStorage(), create=True, clock=VirtualClock(seed=seed))
    topics = ["a", "b", "c"]
    for topic in topics:
        store.topics.create(topic)
    rng = random.Random(seed)
    consumer = store.consumer(group_id="g")
    seen: Counter[tuple[str, int]] = Counter()
    done: Counter[tuple[str, int]] = Counter()

    def read(*names: str) -> None:
        given = {"subscribe": ",".join(names), "group.id": "g", "failOnDataLoss": loss}
        pinned = pin_read(store, parse_read({"path": "unused", **given}))
        seen.update(
            (part.topic, at)
            for part in pinned.ranges
            for at in range(part.start_offset, part.stop_offset)
        )
        for move in pinned.consumed("g"):
            assert move.end > done[move.topic, move.partition]
            done[move.topic, move.partition] = move.end
            consumer.commit({TopicPartition(move.topic, move.partition): move.end})

    committed = 0
    for committed in overlap(store, topics, seed):
        read(*rng.sample(topics, rng.randint(1, 3)))
        assert len(seen) <= committed
    read(*topics)
    assert set(seen.values()) == {1}
    assert len(seen) == committed


def test_a_start_that_is_not_cut_off_from_the_log_is_valid(store: Store) -> None:
    """What the snapshot ends before is read later; an end that it does not have is refused."""
    store.topics.create("b")
    blocker, pair = (store.producer(transactional_id=name) for name in ("blocker", "pair"))
    for producer in (blocker, pair):
        producer.init_transactions()
        producer.begin_transaction()
    blocker.send("b", b"open")
    blocker.flush()
    pair.send("t", b"1", partition=0)
    pair.send("b", b"1")
    pair.commit_transaction()
    where = TopicPartition("t", 0)
    store.consumer(group_id="g").commit({where: 11})

    def span(**options: str) -> tuple[range, list[int]]:
        given = {"path": "unused", "subscribe": "t,b", "group.id": "g", **options}
        pinned = pin_read(store, parse_read(given))
        moved = [move.end for move in pinned.consumed("g") if (move.topic, move.partition) == where]
        return pinned.offsets[where], moved

    for loss in ("true", "false"):
        assert span(failOnDataLoss=loss) == (range(11, 11), [])
        assert span(failOnDataLoss=loss, startingOffsets="latest") == (range(11, 11), [])
        assert span(failOnDataLoss=loss, startingOffsets="earliest") == (range(10), [10])
        start = '{"t":{"0":11,"1":-2},"b":{"0":-2}}'
        assert span(failOnDataLoss=loss, startingOffsets=start) == (range(11, 11), [])
    ends = {"startingOffsets": "earliest", "endingOffsets": '{"t":{"0":11,"1":-1},"b":{"0":-1}}'}
    with pytest.raises(OffsetOutOfRange, match="the ending offset 11 of t:0 is beyond the end 10"):
        span(**ends)


def test_lost_offsets_fail_unless_told_otherwise(store: Store) -> None:
    """Trimmed and too high offsets are told apart; failOnDataLoss=false goes on."""
    store.topics.delete_records({TopicPartition("t", 0): 4})
    start = {"startingOffsets": '{"t":{"0":1,"1":-2}}'}
    with pytest.raises(OffsetOutOfRange, match="below the log start offset 4"):
        _pinned(store, subscribe="t", **start)
    with pytest.raises(OffsetOutOfRange, match="beyond the end 10"):
        _pinned(store, subscribe="t", startingOffsets='{"t":{"0":99,"1":0}}')
    relaxed = _pinned(store, subscribe="t", failOnDataLoss="false", **start)
    assert relaxed[0] == (0, 4, 5)


def test_offsets_for_the_wrong_partitions_are_named(store: Store) -> None:
    """Partitions that are missing or too many are said, and unknown topics."""
    with pytest.raises(InvalidOption, match="has none for t:1"):
        _pinned(store, subscribe="t", startingOffsets='{"t":{"0":1}}')
    with pytest.raises(InvalidOption, match="'u' is not subscribed"):
        _pinned(store, subscribe="t", startingOffsets='{"u":{"0":1}}')
    with pytest.raises(UnknownTopicOrPartition, match="no partition 7"):
        _pinned(store, assign='{"t":[7]}')
    with pytest.raises(UnknownTopicOrPartition, match="'nowhere' does not exist"):
        _pinned(store, subscribe="nowhere")


def test_planning_asks_for_nothing_per_segment(store: Store) -> None:
    """A plan costs one listing per topic and reads no segment, however many there are."""
    storage = store.storage
    assert isinstance(storage, CountingStorage)
    storage.take()
    pinned = pin_read(store, parse_read({"path": "unused", "subscribe": "t"}))
    group_ranges(pinned.ranges, TaskSizes(4))
    assert storage.take() == {"list": 1}


def _stamped(store: Store, topic: str, times: dict[int, list[int]]) -> None:
    """One record for each time (ms), in the partitions given, all in one append."""
    with store.producer() as producer:
        for partition, stamps in times.items():
            for stamp in stamps:
                producer.send(topic, value=b"v", partition=partition, timestamp_ms=stamp)


@pytest.fixture
def timed(store: Store) -> Store:
    """Topic ``timed``: partition 0 has times 100 to 190, partition 1 only 100 and 110."""
    store.topics.create("timed", partitions=2)
    _stamped(store, "timed", {0: list(range(100, 200, 10)), 1: [100, 110]})
    return store


def test_times_bound_the_range(timed: Store) -> None:
    """The first record at or after a time starts; the end is exclusive, latest if none."""
    both = {"startingTimestamp": "105", "endingTimestamp": "150"}
    assert _pinned(timed, subscribe="timed", **both) == [(0, 1, 5), (1, 1, 2)]
    each = {
        "startingOffsetsByTimestamp": '{"timed":{"0":180,"1":0}}',
        "endingOffsetsByTimestamp": '{"timed":{"0":999,"1":110}}',
    }
    assert _pinned(timed, subscribe="timed", **each) == [(0, 8, 10), (1, 0, 1)]
    first = {"startingOffsets": "latest", "startingTimestamp": "180"}  # the time is followed
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert _pinned(timed, subscribe="timed", **first, **strategy) == [(0, 8, 10)]


def test_a_time_that_no_record_has_is_an_error_unless_told_otherwise(timed: Store) -> None:
    """As in Spark's Kafka source, a start later than all records fails by default."""
    with pytest.raises(OffsetOutOfRange, match="timed:1 has no record at or after 150 ms"):
        _pinned(timed, subscribe="timed", startingTimestamp="150")
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestamp must have a number"):
        _pinned(timed, subscribe="timed", startingOffsetsByTimestamp='{"timed":{"0":1}}')


def test_a_pattern_subscribes_to_all_topics_that_it_matches(timed: Store) -> None:
    """Whole names are matched; a pattern that matches nothing is an error, not empty."""
    timed.topics.create("time")
    options = parse_read({"path": "unused", "subscribePattern": "time.*"})
    assert {where.topic for where in pin_read(timed, options).offsets} == {"time", "timed"}
    with pytest.raises(UnknownTopicOrPartition, match="'tim' matches none of the 3 topics"):
        _pinned(timed, subscribePattern="tim")


def test_a_group_of_a_recreated_topic_is_told_apart(store: Store) -> None:
    """Offsets that a group committed for an earlier topic of the name are not used."""
    store.consumer("t", group_id="g").commit({TopicPartition("t", 1): 3})
    store.topics.delete("t")
    store.topics.create("t", partitions=2)
    _stamped(store, "t", {1: [1, 2, 3, 4]})
    with pytest.raises(OffsetOutOfRange, match="was deleted and recreated since group 'g'"):
        _pinned(store, subscribe="t", **{"group.id": "g"})
    relaxed = {"group.id": "g", "failOnDataLoss": "false"}
    assert _pinned(store, subscribe="t", **relaxed) == [(1, 0, 4)]
    chosen = {"group.id": "g", "startingOffsets": '{"t":{"0":0,"1":2}}'}
    assert _pinned(store, subscribe="t", **chosen) == [(1, 2, 4)]


def test_who_reads_topics_together_learns_what_differs(store: Store) -> None:
    """Also where both have the same columns by now, which the files of one have otherwise."""
    columns = pa.schema([("id", pa.int64()), ("v", pa.string())])
    store.topics.create("made", schema=columns)
    store.topics.create("altered", schema=pa.schema([("id", pa.int64())]))
    store.topics.alter("altered", schema=columns)
    with pytest.raises(InvalidOption, match=r"in other ways, since one was altered.*unionByName"):
        _pinned(store, subscribe="made,altered")


def test_tasks_are_bounded_by_records_and_by_bytes() -> None:
    """Option maxRecordsPerPartition is exact, maxBytesPerPartition about so; nothing is lost."""
    rng = random.Random(2)
    ranges = [_range(p, 0, rng.randrange(10, 1000), 100_000) for p in range(5)]
    total = sum(part.record_count for part in ranges)
    for limit in (1, 7, 100, 1_000_000):
        tasks = group_ranges(ranges, TaskSizes(max_records=limit))
        counts = [sum(part.record_count for part in task) for task in tasks]
        assert sum(counts) == total
        assert all(count == limit for count in counts[:-1])
        assert counts[-1] <= limit
    by_bytes = group_ranges(ranges, TaskSizes(max_bytes=30_000))
    assert max(sum(part.size_bytes for part in task) for task in by_bytes) <= 30_000 * 9 // 8 + 1
    assert sum(part.record_count for task in by_bytes for part in task) == total
    options = parse_read({"path": "p", "subscribe": "t", "maxBytesPerPartition": "64m"})
    assert options.task_sizes.max_bytes == 64 << 20
