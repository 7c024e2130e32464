"""Streams without a JVM: what offsets say, what a trigger costs, how losses are told."""

from __future__ import annotations

import json
import logging
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from tests.spark.stream_helpers import reads_streams
from tests.support.read.overlapping_transactions import overlap
from txnlog import Store, TopicPartition
from txnlog.errors import (
    ConcurrentTransactions,
    CorruptEntry,
    InvalidOption,
    OffsetOutOfRange,
    SnapshotExpired,
    TxnlogError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from txnlog.read.plan import SegmentRange
from txnlog.spark.options.stream_options import MicroBatchLimits, parse_stream
from txnlog.spark.stream.offsets import StreamOffset, proportional_shares
from txnlog.spark.stream.planner import StreamPlanner
from txnlog.state.group import OffsetCommit
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock
from txnlog.write.coordinator import Coordinator

READ = {"path": "unused", "subscribe": "in"}
ALL = MicroBatchLimits()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """A store with counted requests, and topic ``in`` of two partitions, 5 numbers in each."""
    storage = CountingStorage(open_storage(f"memory://stream-{request.node.name}"))
    opened = attach(storage, create=True, clock=VirtualClock(seed=1))
    opened.topics.create("in", partitions=2)
    fill(opened, "in", 5)
    return opened


def fill(store: Store, topic: str, count: int, partitions: int = 2) -> None:
    """Append so many numbers to each partition, in one append."""
    with store.producer() as producer:
        for number in range(count):
            for partition in range(partitions):
                producer.send(topic, b"%d" % number, partition=partition)


def planner(store: Store, **options: str) -> StreamPlanner:
    """A stream's planner, as a new driver has it: nothing of the store is known to it."""
    given = {"path": "unused", **({"subscribe": "in"} if not _named(options) else {}), **options}
    fresh = attach(store.storage, clock=store.logs.clock)
    return StreamPlanner(fresh, parse_stream(given))


def _named(options: Mapping[str, str]) -> bool:
    return bool({"subscribe", "subscribePattern", "assign"} & options.keys())


def offsets(offset: StreamOffset) -> dict[str, list[int]]:
    return {topic: [*parts.values()] for topic, parts in offset.offsets.items()}


def spans(ranges: tuple[SegmentRange, ...]) -> dict[str, list[tuple[int, int]]]:
    """The offsets of a batch by partition; segments must follow each other."""
    found: dict[str, list[tuple[int, int]]] = {}
    for part in ranges:
        where = found.setdefault(f"{part.topic}:{part.partition}", [])
        where.append((part.start_offset, part.stop_offset))
    return found


def again(offset: StreamOffset) -> StreamOffset:
    """As Spark gives it back: through JSON."""
    return StreamOffset.parse(json.loads(json.dumps(offset.to_json())))


# -- options -------------------------------------------------------------------------------------


def test_a_partition_is_added_and_used_while_a_batch_is_planned() -> None:
    """A transaction that wrote to it, and to another topic, is in one batch (invariant S1)."""
    heap, clock = HeapStorage(), VirtualClock(seed=1)
    store = attach(heap, create=True, clock=clock)
    for topic in ("a", "b"):
        store.topics.create(topic)
        fill(store, topic, 1, partitions=1)
    listings = 0

    def meanwhile(request: str) -> None:
        nonlocal listings
        listings += request == "list topics/b/log"
        if request == "list topics/b/log" and listings == 3:
            store.topics.alter("a", partitions=2)
            with store.producer(transactional_id="p") as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send("a", b"-", partition=1)
                    producer.send("b", b"+")

    reader = attach(FaultyStorage(heap, before_request=meanwhile), clock=clock)
    stream = StreamPlanner(reader, parse_stream({"path": "unused", "subscribe": "a,b"}))
    at = stream.initial()
    assert listings == 2
    for _ in range(3):
        end = stream.latest(at, ALL)
        counts = {"a:0": 0, "a:1": 0, "b:0": 0}
        for part in stream.ranges(at, end):
            counts[f"{part.topic}:{part.partition}"] += part.record_count
        assert counts["a:1"] == counts["b:0"], "a batch has one part of the transaction"
        at = end
    assert listings > 3
    assert offsets(at) == {"a": [1, 1], "b": [2]}


def test_defaults_are_those_of_the_kafka_source_in_streams() -> None:
    """A stream starts at the latest, takes all there is, and fails on data loss."""
    options = parse_stream(READ)
    assert (options.starting, options.rates) == ("latest", MicroBatchLimits(None, None, 900_000))
    assert options.read.isolation_level == "read_committed"
    assert options.read.fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**READ, "endingoffsets": "latest"}, "endingOffsets is for a batch read, this is a str"),
        ({**READ, "transactional.id": "x"}, "transactional.id is for a batch read"),
        ({**READ, "maxrecords": "1"}, "maxRecords is for a batch read"),
        ({**READ, "maxoffsetspertrigger": "0"}, "maxOffsetsPerTrigger must be a whole number"),
        ({**READ, "maxtriggerdelay": "1m"}, "maxTriggerDelay has no effect without"),
        (
            {**READ, "minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"},
            "minOffsetsPerTrigger is 9, more than maxOffsetsPerTrigger",
        ),
        (
            {**READ, "minoffsetspertrigger": "9", "maxtriggerdelay": "soon"},
            "maxTriggerDelay must be a time such as 90s, 15m or 1h",
        ),
        ({**READ, "maxoffsetpertrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    """What means nothing to a stream, or makes no sense, is an error that says so."""
    with pytest.raises(InvalidOption, match=message):
        parse_stream(options)


def test_delays_are_written_as_spark_writes_them() -> None:
    """A plain number is milliseconds; units in any case."""
    for text, milliseconds in {"90": 90, "2s": 2_000, "15m": 900_000, "1 H": 3_600_000}.items():
        options = {**READ, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
        assert parse_stream(options).rates.max_delay_ms == milliseconds


# -- offsets -------------------------------------------------------------------------------------


def test_offsets_can_be_read_by_people_and_given_as_starting_offsets(store: Store) -> None:
    """The JSON in a checkpoint is offsets by topic and partition, and the topics' ids."""
    stream = planner(store, startingOffsets="earliest")
    end = again(stream.latest(again(stream.initial()), ALL))
    found = end.to_json()
    topic_id = store.snapshot(["in"]).view("in").topic_id
    assert found == {
        "format": 1,
        "offsets": {"in": {"0": 5, "1": 5}},
        "topic_ids": {"in": topic_id},
        "since": {"in": {"0": 0, "1": 0}},
    }
    later = planner(store, startingOffsets=json.dumps(found["offsets"]))
    assert offsets(later.initial()) == {"in": [5, 5]}


def test_the_text_of_an_offset_depends_on_nothing_else() -> None:
    """Spark compares texts, so partitions and topics stand in their order."""
    where = [TopicPartition(t, p) for t in ("b", "a") for p in (10, 2, 0)]
    texts = set()
    for seed in range(5):
        random.Random(seed).shuffle(where)
        made = StreamOffset.of(dict.fromkeys(where, 7), {"b": "y", "a": "x"})
        texts.add(json.dumps(made.to_json()))
    parts = '{"0": 7, "2": 7, "10": 7}'
    ids = '{"a": "x", "b": "y"}'
    assert texts == {
        f'{{"format": 1, "offsets": {{"a": {parts}, "b": {parts}}}, "topic_ids": {ids}}}'
    }


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"format": 2, "offsets": {}}, UnsupportedVersion),
        ({"in": {"0": 5}}, CorruptEntry),
        ({"format": 1, "offsets": {"in": {"0": 5}}, "topic_ids": {}}, CorruptEntry),
        ({"format": 1, "offsets": {"in": {"x": 5}}, "topic_ids": {"in": "a"}}, CorruptEntry),
        ({"format": 1, "offsets": {"in": {"0": "5"}}, "topic_ids": {"in": "a"}}, CorruptEntry),
        ({"format": 1, "offsets": {}, "topic_ids": {}, "since": {"in": {"0": 1}}}, CorruptEntry),
        ({"format": 1, "offsets": {}, "topic_ids": {}, "purge_end": "0"}, CorruptEntry),
    ],
)
def test_other_offsets_are_refused(found: dict[str, object], error: type[TxnlogError]) -> None:
    """The checkpoint of another source, or of a newer txnlog, is not taken for ours."""
    with pytest.raises(error, match="checkpoint"):
        StreamOffset.parse(found)


# -- triggers ------------------------------------------------------------------------------------


def test_an_idle_trigger_is_one_listing_per_topic(store: Store) -> None:
    """What finds nothing reads nothing, whatever the history; a batch opens no segment."""
    store.topics.create("other", partitions=2)
    for _ in range(40):
        fill(store, "in", 1)
    stream = planner(store, subscribe="in,other", startingOffsets="earliest")
    end = stream.latest(stream.initial(), ALL)
    assert isinstance(store.storage, CountingStorage)
    store.storage.take()
    for _ in range(3):
        assert stream.latest(end, ALL) is end
        assert store.storage.take() == {"list": 2}
    ranges = stream.ranges(stream.initial(), end)
    assert len(ranges) == 82
    assert store.storage.take() == {}
    fill(store, "in", 1)
    store.storage.take()
    moved = stream.latest(end, ALL)
    assert offsets(moved)["in"] == [46, 46]
    assert spans(stream.ranges(end, moved)) == {"in:0": [(45, 46)], "in:1": [(45, 46)]}
    # Both are read, the new entry is fetched, and both are listed again for the cut.
    assert store.storage.take() == {"get": 1, "list": 4}


def test_one_topic_costs_one_listing_also_when_there_is_something(store: Store) -> None:
    """A single topic cannot disagree with itself: it is not listed twice."""
    stream = planner(store)
    end = stream.latest(stream.initial(), ALL)
    fill(store, "in", 1)
    assert isinstance(store.storage, CountingStorage)
    store.storage.take()
    assert offsets(stream.latest(end, ALL)) == {"in": [6, 6]}
    assert store.storage.take() == {"get": 1, "list": 1}


def test_a_pattern_adds_one_listing(store: Store) -> None:
    """Topics that the pattern does not match are not read."""
    for number in range(5):
        store.topics.create(f"other-{number}")
    stream = planner(store, subscribePattern="in|out")
    end = stream.latest(stream.initial(), ALL)
    assert isinstance(store.storage, CountingStorage)
    store.storage.take()
    assert stream.latest(end, ALL) is end
    assert store.storage.take() == {"list": 1, "list_folders": 1}


def test_the_first_batch_is_the_same_after_a_kill(store: Store) -> None:
    """'latest' moves, and Spark does not keep where a query began: the batch's end does."""
    stream = planner(store)
    begin = stream.initial()
    fill(store, "in", 3)
    assert stream.initial() == begin
    end = again(stream.latest(again(begin), ALL))
    assert spans(stream.ranges(begin, end)) == {"in:0": [(5, 8)], "in:1": [(5, 8)]}
    fill(store, "in", 4)
    restarted = planner(store)
    wrong = restarted.initial()
    assert offsets(wrong) == {"in": [12, 12]}
    assert spans(restarted.ranges(wrong, end)) == {"in:0": [(5, 8)], "in:1": [(5, 8)]}
    following = again(restarted.latest(end, ALL))
    assert "since" not in following.to_json()
    assert spans(restarted.ranges(end, following)) == {"in:0": [(8, 12)], "in:1": [(8, 12)]}


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@reads_streams
def test_a_query_that_began_without_topics_reads_later_ones_from_their_start(
    store: Store, starting: str
) -> None:
    """Also after a restart: the checkpoint holds offsets of none, as beside another source."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from txnlog.spark.source import TxnlogDataSource

    def query() -> Any:
        source = TxnlogDataSource(
            {"path": store.url, "subscribePattern": "x-.*|__.*", "startingOffsets": starting}
        )
        return source.streamReader(source.schema())

    store.topics.create("__consumer_offsets")  # which no pattern matches
    first = query()
    done = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    store.topics.create("x-1")
    fill(store, "x-1", 2, partitions=1)
    for reader in (first, query()):
        end = reader.latestOffset(json.loads(json.dumps(done)), ReadAllAvailable())
        (task,) = reader.partitions(done, end)
        assert spans(task.ranges) == {"x-1:0": [(0, 2)]}


NUMBERS = pa.schema([pa.field("id", pa.int32(), nullable=False), ("n", pa.int32())])


@pytest.mark.parametrize("feed", [False, True], ids=["records", "feed"])
@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        pytest.param({}, True, id="none"),
        pytest.param({"schema": NUMBERS.append(pa.field("more", pa.string()))}, True, id="added"),
        pytest.param({"schema": NUMBERS.remove(1)}, True, id="dropped"),
        pytest.param({"rename": {"n": "number"}}, True, id="renamed"),
        pytest.param({"schema": NUMBERS.set(1, pa.field("n", pa.int64()))}, False, id="widened"),
    ],
)
@reads_streams
def test_a_stream_is_started_with_the_columns_that_it_was_loaded_with(
    store: Store, change: dict[str, Any], goes_on: bool, feed: bool
) -> None:
    """However often, and whatever has become of the topic's; else it says to load it again."""
    from txnlog.spark.source import TxnlogDataSource

    store.topics.create("typed", schema=NUMBERS, key=["id"])
    given = {"path": store.url, "subscribe": "typed", **({"preImages": "true"} if feed else {})}
    loaded = TxnlogDataSource(given)
    schema = loaded.schema()
    if change:
        store.topics.alter("typed", **change)
    again: Any = pickle.loads(pickle.dumps(loaded))
    if goes_on:
        assert again.streamReader(schema)._columns.names[-2:] == ("id", "n")
        return
    with pytest.raises(InvalidOption, match=r"int,n:bigint> ?.*load (it|the frame) again"):
        again.streamReader(schema)


@pytest.mark.parametrize(
    ("options", "is_deleted"),
    [
        pytest.param({"startingOffsets": '{"in":{"0":2,"1":0},"b":{"0":-2}}'}, False, id="offsets"),
        pytest.param({"startingTimestamp": "1"}, False, id="time"),
        pytest.param({"startingOffsets": "earliest", "failOnDataLoss": "false"}, True, id="gone"),
    ],
)
@reads_streams
def test_a_first_batch_does_not_need_the_offsets_of_a_new_query(
    store: Store, options: dict[str, str], is_deleted: bool
) -> None:
    """Which partitions that are added, and a topic that is deleted, make impossible."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from txnlog.spark.source import TxnlogDataSource

    store.topics.create("b")
    fill(store, "b", 1, partitions=1)
    given = {"path": store.url, "subscribe": "in,b", **options}

    def query() -> Any:
        source = TxnlogDataSource(given)
        return source.streamReader(source.schema())

    def ranges(reader: Any, begin: object, end: object) -> dict[str, list[tuple[int, int]]]:
        return spans(tuple(part for task in reader.partitions(begin, end) for part in task.ranges))

    first = query()
    begin = first.initialOffset()
    end = first.latestOffset(begin, ReadAllAvailable())
    planned = ranges(first, begin, end)
    assert sum(stop - start for parts in planned.values() for start, stop in parts) in (9, 11)
    if is_deleted:
        store.topics.delete("b")
        del planned["b:0"]
    store.topics.alter("in", partitions=3)
    new, restarted = query(), query()
    with pytest.raises((InvalidOption, OffsetOutOfRange, UnknownTopicOrPartition)):
        new.latestOffset(new.initialOffset(), ReadAllAvailable())
    assert ranges(restarted, restarted.initialOffset(), end) == planned
    fill(store, "in", 1, partitions=3)
    following = restarted.latestOffset(end, ReadAllAvailable())
    assert {**ranges(restarted, end, following)} == {
        "in:0": [(5, 6)],
        "in:1": [(5, 6)],
        "in:2": [(0, 1)],
    }


def test_an_empty_first_batch_too(store: Store) -> None:
    """Spark runs a first batch also where there is nothing; repeated later it stays empty."""
    stream = planner(store)
    end = again(stream.latest(stream.initial(), ALL))
    assert stream.ranges(stream.initial(), end) == ()
    fill(store, "in", 1)
    restarted = planner(store)
    assert restarted.ranges(restarted.initial(), end) == ()
    assert offsets(restarted.latest(end, ALL)) == {"in": [6, 6]}


def test_shares_are_in_proportion_and_nobody_waits() -> None:
    """Partitions of one age keep together; the smallest gets on too."""
    where = [TopicPartition("t", number) for number in range(4)]
    counts = dict(zip(where, [9_000, 900, 90, 0], strict=True))
    assert [*proportional_shares(counts, 100).values()] == [90, 9, 1, 0]
    assert [*proportional_shares(counts, 1).values()] == [1, 1, 1, 0]
    assert proportional_shares(counts, 10_000) == counts


def test_a_limit_is_kept_and_the_whole_is_read(store: Store) -> None:
    """Batches of at most the limit follow each other without gap or overlap."""
    with store.producer() as producer:
        for number in range(90):
            producer.send("in", b"%d" % number, partition=0)
    stream = planner(store, startingOffsets="earliest")
    at = stream.initial()
    read: dict[str, list[tuple[int, int]]] = {}
    batches = 0
    while (end := again(stream.latest(at, MicroBatchLimits(most=20)))) != at:
        found = spans(stream.ranges(at, end))
        assert sum(b - a for parts in found.values() for a, b in parts) <= 20
        for name, parts in found.items():
            read.setdefault(name, []).extend(parts)
        at = end
        batches += 1
    assert batches == 5
    for name, stop in (("in:0", 95), ("in:1", 5)):
        edges = [edge for part in read[name] for edge in part]
        assert (edges[0], edges[-1]) == (0, stop)
        assert edges[1:-1:2] == edges[2:-1:2]


def test_a_minimum_waits_but_not_for_ever(store: Store) -> None:
    """Too little waits for more, or for the delay; with AvailableNow nothing waits."""
    clock = store.logs.clock
    rates = MicroBatchLimits(least=10, max_delay_ms=60_000)
    stream = planner(store, startingOffsets="earliest")
    first = stream.latest(stream.initial(), rates)
    assert offsets(first) == {"in": [5, 5]}
    fill(store, "in", 4)
    assert stream.latest(first, rates) is first
    clock.sleep(59.0)
    assert stream.latest(first, rates) is first
    clock.sleep(1.0)
    second = stream.latest(first, rates)
    assert offsets(second) == {"in": [9, 9]}
    fill(store, "in", 1)
    assert stream.latest(second, rates) is second
    fill(store, "in", 4)
    third = stream.latest(second, rates)
    assert offsets(third) == {"in": [14, 14]}
    fill(store, "in", 1)
    now = planner(store)
    now.pin_end()
    assert offsets(now.latest(third, rates)) == {"in": [15, 15]}


def test_available_now_ends_where_it_began(store: Store) -> None:
    """Later records are not included, nor are new partitions and topics."""
    stream = planner(store, subscribePattern="in.*", startingOffsets="earliest")
    stream.pin_end()
    fill(store, "in", 5)
    store.topics.alter("in", partitions=3)
    store.topics.create("in-2")
    end = stream.latest(stream.initial(), ALL)
    assert offsets(end) == {"in": [5, 5]}
    assert stream.latest(end, ALL) is end
    assert spans(stream.ranges(stream.initial(), end)) == {"in:0": [(0, 5)], "in:1": [(0, 5)]}


def test_new_partitions_and_topics_start_at_their_start(store: Store) -> None:
    """'latest' is for what there was; nothing of what comes later is left out."""
    stream = planner(store, subscribePattern="in.*")
    at = stream.initial()
    assert offsets(at) == {"in": [5, 5]}
    store.topics.alter("in", partitions=3)
    store.topics.create("in-2")
    fill(store, "in-2", 2, partitions=1)
    with store.producer() as producer:
        producer.send("in", b"x", partition=2)
    end = again(stream.latest(at, ALL))
    assert offsets(end) == {"in": [5, 5, 1], "in-2": [2]}
    assert spans(stream.ranges(at, end)) == {"in:2": [(0, 1)], "in-2:0": [(0, 2)]}


def test_a_stream_tells_how_far_it_is_behind(store: Store) -> None:
    """What the last batch has left, by topic: before one nothing is known; at the end it is 0."""
    store.topics.create("in-2")
    fill(store, "in-2", 4, partitions=1)
    stream = planner(store, subscribe="in,in-2", startingOffsets="earliest", failOnDataLoss="false")
    at = again(stream.initial())
    assert stream.behind() is None
    at = again(stream.latest(at, MicroBatchLimits(most=7)))
    assert offsets(at) == {"in": [2, 2], "in-2": [2]}
    assert stream.behind() == {"in": 6, "in-2": 2}
    store.topics.delete_records({TopicPartition("in", 0): 4})
    fill(store, "in-2", 1, partitions=1)
    stream.latest(again(at), MicroBatchLimits(least=99, most=99))
    assert stream.behind() == {"in": 4, "in-2": 3}
    stream.latest(at, ALL)
    assert stream.behind() == {"in": 0, "in-2": 0}


def test_a_pattern_may_match_nothing_yet(store: Store) -> None:
    """Such a stream waits, and reads the topic from its start when it comes."""
    stream = planner(store, subscribePattern="out")
    at = again(stream.latest(again(stream.initial()), ALL))
    assert offsets(at) == {}
    assert stream.newest() is None
    store.topics.create("out")
    fill(store, "out", 2, partitions=1)
    end = again(stream.latest(at, ALL))
    assert spans(stream.ranges(at, end)) == {"out:0": [(0, 2)]}


def test_assigned_partitions_are_the_only_ones(store: Store) -> None:
    """Assign reads what it names; a partition that is not there is an error."""
    stream = planner(store, assign='{"in":[1]}', startingOffsets="earliest")
    end = stream.latest(stream.initial(), ALL)
    assert end.offsets == {"in": {1: 5}}
    assert spans(stream.ranges(stream.initial(), end)) == {"in:1": [(0, 5)]}
    with pytest.raises(UnknownTopicOrPartition, match="no partition 7"):
        planner(store, assign='{"in":[7]}').initial()
    with pytest.raises(UnknownTopicOrPartition, match="topic 'nope' does not exist"):
        planner(store, subscribe="in,nope").initial()


@pytest.mark.condition(31)
def test_several_topics_end_at_one_cut(store: Store) -> None:
    """A transaction that is held back in one topic is in no batch of the other."""
    store.topics.create("b", partitions=1)
    blocker = store.producer(transactional_id="blocker")
    blocker.init_transactions()
    blocker.begin_transaction()
    blocker.send("b", b"0")
    blocker.flush()
    pair = store.producer(transactional_id="pair")
    pair.init_transactions()
    with pair.transaction():
        pair.send("in", b"1", partition=0)
        pair.send("b", b"1")
    stream = planner(store, subscribe="in,b")
    at = stream.latest(stream.initial(), ALL)
    assert offsets(at) == {"b": [0], "in": [5, 5]}
    blocker.abort_transaction()
    end = stream.latest(at, ALL)
    assert offsets(end) == {"b": [2], "in": [6, 5]}
    # The aborted record lies within the offsets and is not read.
    assert spans(stream.ranges(at, end)) == {"b:0": [(1, 2)], "in:0": [(5, 6)]}


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(12))
def test_a_planned_batch_stays_though_the_newest_cut_is_before_its_end(seed: int) -> None:
    """Ends go back when more topics are read, since more is cut off; a batch is the same."""
    store = attach(HeapStorage(), create=True, clock=VirtualClock(seed=seed))
    topics = ["a", "b", "c"]
    for topic in topics:
        store.topics.create(topic)
    rng = random.Random(seed)
    restarted = planner(store, subscribe="a,b,c")
    for _ in overlap(store, topics, seed):
        mine = rng.sample(topics, rng.randint(1, 2))
        stream = planner(store, subscribe=",".join(mine), startingOffsets="earliest")
        at = stream.initial()
        end = stream.latest(at, MicroBatchLimits(most=rng.choice([None, 5])))
        for other in (restarted, planner(store, subscribe="a,b,c")):
            begin, stop = again(at), again(end)
            assert other.ranges(begin, stop) == stream.ranges(at, end)
            if len(mine) == 1:
                assert other.changes(begin, stop) == stream.changes(at, end)
        following = restarted.latest(again(end), ALL)
        for where, offset in end.partitions():
            assert (following.at(where, end.topic_ids[where.topic]) or 0) >= offset


def test_a_trigger_without_a_cut_waits_for_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where open transactions leave no consistent cut the query goes on a trigger later."""
    stream = planner(store)
    at = stream.latest(stream.initial(), ALL)
    fill(store, "in", 1)

    def no_cut(*_: object, **__: object) -> NoReturn:
        raise ConcurrentTransactions("no consistent cut")

    with monkeypatch.context() as patched:
        patched.setattr("txnlog.spark.stream.planner.take_snapshot", no_cut)
        assert stream.latest(at, ALL) is at
        with pytest.raises(ConcurrentTransactions):
            planner(store).initial()
    assert offsets(stream.latest(at, ALL)) == {"in": [6, 6]}


# -- what is lost --------------------------------------------------------------------------------


def _trim(store: Store) -> None:
    fill(store, "in", 5)
    store.topics.delete_records({TopicPartition("in", 1): 8})


def _recreate(store: Store) -> None:
    store.topics.delete("in")
    store.topics.create("in", partitions=2)
    fill(store, "in", 2)


LOSSES = {
    "trimmed": (
        _trim,
        "records of in:1 from offset 5 to 7 were deleted before",
        [(5, 10), (8, 10)],
    ),
    "recreated": (_recreate, "'in' was deleted and recreated", [(0, 2), (0, 2)]),
    "deleted": (lambda store: store.topics.delete("in"), "topic 'in' was deleted", None),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_are_told_apart(store: Store, loss: str, caplog: pytest.LogCaptureFixture) -> None:
    """Trimmed, deleted, recreated: an error each, or what is left and one warning."""
    cause, message, left = LOSSES[loss]
    before = planner(store)
    at = again(before.latest(before.initial(), ALL))
    cause(store)
    for stream in (before, planner(store)):
        with pytest.raises(OffsetOutOfRange, match=f"{message}.*failOnDataLoss=false"):
            stream.latest(at, ALL)
    caplog.set_level(logging.WARNING)
    goes_on = planner(store, failOnDataLoss="false")
    end = again(goes_on.latest(at, ALL))
    if left is None:
        assert end == at
        assert goes_on.ranges(at, end) == ()
    else:
        assert spans(goes_on.ranges(at, end)) == {"in:0": [left[0]], "in:1": [left[1]]}
    goes_on.latest(at, ALL)
    assert sum(message.split(" from ")[0] in entry for entry in caplog.messages) == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_that_was_planned_notices_too(store: Store, loss: str) -> None:
    """A restart repeats a batch from its offsets alone; it does not read another topic."""
    cause, message, _ = LOSSES[loss]
    stream = planner(store)
    at = again(stream.latest(stream.initial(), ALL))
    fill(store, "in", 1)
    end = again(stream.latest(at, ALL))
    cause(store)
    expected = message.replace("topic 'in'", "in:0")
    with pytest.raises(OffsetOutOfRange, match=expected):
        planner(store).ranges(at, end)
    assert spans(planner(store, failOnDataLoss="false").ranges(at, end)) == (
        {"in:0": [(5, 6)]} if loss == "trimmed" else {}
    )


def fill_keys(store: Store, topic: str = "in") -> None:
    """Append a record of each key, ann and bob, one in each partition."""
    with store.producer() as producer:
        for partition, key in enumerate(("ann", "bob")):
            producer.send(topic, b"-", key, partition=partition)


FEED = {"preImages": "true"}


def test_a_feed_of_changes_notices_a_purge(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """At the next trigger, new records or not; each purge is an error, or one warning."""
    stream = planner(store, **FEED)
    at = again(stream.latest(stream.initial(), ALL))
    goes_on = planner(store, **FEED, failOnDataLoss="false")
    for warnings, key in enumerate(("ann", "bob"), 1):
        fill_keys(store)
        at = again(goes_on.latest(at, ALL))
        assert again(stream.latest(at, ALL)) == at
        store.maintenance.purge("in", [{"key": key}])
        assert planner(store).latest(at, ALL) == at  # a stream of records has nothing new
        for other in (stream, planner(store, **FEED)):
            with pytest.raises(SnapshotExpired, match=r"'in' since the last.*failOnDataLoss=false"):
                other.latest(at, ALL)
        end = again(goes_on.latest(at, ALL))
        assert (end == at, offsets(end)) == (False, offsets(at))
        assert goes_on.changes(at, end) is None
        at = end
        assert goes_on.latest(at, ALL) is at
        assert sum("were purged" in message for message in caplog.messages) == warnings
    fill_keys(store)
    end = again(planner(store, **FEED).latest(at, ALL))
    assert planner(store, **FEED).changes(at, end)
    store.topics.delete("in")
    store.topics.create("in", partitions=2)
    fill_keys(store)
    store.maintenance.purge("in", [{"key": "ann"}])
    caplog.clear()
    planner(store, **FEED, failOnDataLoss="false").latest(at, ALL)
    assert not any("were purged" in message for message in caplog.messages)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_of_a_feed_is_not_repeated_after_a_purge(store: Store, is_first: bool) -> None:
    stream = planner(store, **FEED, startingOffsets="earliest")
    start = again(stream.initial())
    fill_keys(store)
    end = again(stream.latest(start, ALL))
    if not is_first:
        fill_keys(store)
        start, end = end, again(stream.latest(end, ALL))
    planned = planner(store, **FEED).changes(start, end)
    assert planned == stream.changes(start, end)
    store.maintenance.purge("in", [{"key": "ann"}])
    with pytest.raises(SnapshotExpired, match="were purged from topic 'in'"):
        planner(store, **FEED).changes(start, end)
    assert stream.changes(start, end) == planned  # has not looked since
    assert planner(store, **FEED, failOnDataLoss="false").changes(start, end)


@pytest.mark.parametrize(("starts", "misses"), [("earliest", False), ("latest", True)])
def test_a_feed_that_begins_with_the_first_records_misses_no_purge(
    store: Store, starts: str, misses: bool
) -> None:
    fill_keys(store)
    begun = planner(store, **FEED, startingOffsets=starts).initial()
    store.maintenance.purge("in", [{"key": "ann"}])
    stream = planner(store, **FEED, startingOffsets=starts)
    stream.latest(stream.initial(), ALL)
    if misses:
        with pytest.raises(SnapshotExpired, match="were purged"):
            stream.latest(again(begun), ALL)
        return
    end = again(stream.latest(again(begun), ALL))
    assert offsets(end) == {"in": [6, 6]}
    assert planner(store, **FEED).changes(begun, end)


@pytest.mark.parametrize("added", ["in:2", "in-2:0"])
def test_an_added_partition_that_does_not_start_at_0_has_lost_records(
    store: Store, added: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether they went before its first batch was planned, or before that is run again."""
    stream = planner(store, subscribePattern="in.*")
    at = again(stream.latest(stream.initial(), ALL))
    store.topics.alter("in", partitions=3)
    store.topics.create("in-2")
    topic, number = added.split(":")
    where = TopicPartition(topic, int(number))
    with store.producer() as producer:
        for value in range(10):
            producer.send(topic, b"%d" % value, partition=where.partition)
    end = again(stream.latest(at, ALL))
    store.topics.delete_records({where: 8})
    message = f"{added} was added while the query ran, and starts at offset 8, not 0"
    with pytest.raises(OffsetOutOfRange, match=f"{message}.*failOnDataLoss=false"):
        planner(store, subscribePattern="in.*").latest(at, ALL)
    with pytest.raises(OffsetOutOfRange, match=message):
        planner(store, subscribePattern="in.*").ranges(at, end)
    goes_on = planner(store, subscribePattern="in.*", failOnDataLoss="false")
    assert spans(goes_on.ranges(at, goes_on.latest(at, ALL))) == {added: [(8, 10)]}
    assert sum(message in entry for entry in caplog.messages) == 1


def test_an_old_topic_that_is_read_from_its_start_has_lost_nothing(store: Store) -> None:
    """A new query's first batch, also if it is run again; a topic that is named from then on."""
    store.topics.delete_records({TopicPartition("in", 0): 2})
    new = planner(store, startingOffsets="earliest")
    at = new.initial()
    end = again(new.latest(at, ALL))
    assert spans(planner(store).ranges(planner(store).initial(), end)) == {
        "in:0": [(2, 5)],
        "in:1": [(0, 5)],
    }
    store.topics.create("old")
    fill(store, "old", 4, partitions=1)
    store.topics.delete_records({TopicPartition("old", 0): 3})
    both = planner(store, subscribe="in,old")
    later = again(both.latest(end, ALL))
    assert spans(planner(store, subscribe="in,old").ranges(end, later)) == {"old:0": [(3, 4)]}


def test_an_old_partition_that_is_assigned_from_then_on_has_lost_nothing(store: Store) -> None:
    store.topics.delete_records({TopicPartition("in", 1): 3})
    one = planner(store, assign='{"in":[0]}', startingOffsets="earliest")
    end = again(one.latest(one.initial(), ALL))
    later = again(planner(store, assign='{"in":[0,1]}').latest(end, ALL))
    both = planner(store, assign='{"in":[0,1]}')
    assert spans(both.ranges(end, later)) == {"in:1": [(3, 5)]}


def test_a_topic_whose_import_begins_at_6_has_lost_what_was_deleted_since(
    store: Store, tmp_path: Path
) -> None:
    store.topics.create("old")
    fill(store, "old", 9, partitions=1)
    store.topics.delete_records({TopicPartition("old", 0): 6})
    store.kafka.export_topic("old", str(tmp_path), keep_offsets=True)
    stream = planner(store, subscribePattern="in.*")
    at = again(stream.latest(stream.initial(), ALL))
    store.kafka.import_topic("in-2", str(tmp_path / "old-0"))
    end = again(planner(store, subscribePattern="in.*").latest(at, ALL))
    assert spans(planner(store, subscribePattern="in.*").ranges(at, end)) == {"in-2:0": [(6, 9)]}
    store.topics.delete_records({TopicPartition("in-2", 0): 7})
    for again_planned in (True, False):
        late = planner(store, subscribePattern="in.*")
        with pytest.raises(OffsetOutOfRange, match=r"in-2:0 was added.*at offset 7, not 6"):
            late.ranges(at, end) if again_planned else late.latest(at, ALL)


def test_a_topic_that_is_shorter_than_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """A store that was restored from an older copy is noticed, and can be gone on with."""
    storage, clock = HeapStorage(), VirtualClock(seed=2)
    store = attach(storage, create=True, clock=clock)
    store.topics.create("in", partitions=2)
    fill(store, "in", 5)
    older = storage.copy()
    fill(store, "in", 5)
    stream = planner(store)
    at = again(stream.latest(stream.initial(), ALL))
    restored = attach(older, clock=clock)
    with pytest.raises(OffsetOutOfRange, match="in:0 ends at offset 5, but the query has read up"):
        planner(restored).latest(at, ALL)
    goes_on = planner(restored, failOnDataLoss="false")
    end = again(goes_on.latest(at, ALL))
    assert offsets(end) == {"in": [5, 5]}
    assert goes_on.ranges(at, end) == ()
    fill(restored, "in", 1)
    later = goes_on.latest(end, ALL)
    assert spans(goes_on.ranges(end, later)) == {"in:0": [(5, 6)], "in:1": [(5, 6)]}


def test_a_topic_that_is_not_named_any_more(store: Store) -> None:
    """Changing the subscription under a checkpoint is told; the place is kept."""
    store.topics.create("b", partitions=1)
    fill(store, "b", 3, partitions=1)
    stream = planner(store, subscribe="b,in")
    at = again(stream.latest(stream.initial(), ALL))
    with pytest.raises(OffsetOutOfRange, match="has read topic 'b', which its options do not nam"):
        planner(store).latest(at, ALL)
    fill(store, "b", 1, partitions=1)
    fill(store, "in", 1)
    without = planner(store, failOnDataLoss="false")
    end = again(without.latest(at, ALL))
    assert offsets(end) == {"b": [3], "in": [6, 6]}
    assert spans(without.ranges(at, end)) == {"in:0": [(5, 6)], "in:1": [(5, 6)]}
    assert offsets(stream.latest(end, ALL)) == {"b": [4], "in": [6, 6]}


def test_what_is_not_committed_is_not_read_after_the_isolation_was_changed(store: Store) -> None:
    """A batch planned with read_uncommitted is refused by read_committed, not cut short."""
    producer = store.producer(transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("in", b"x", partition=0)
    producer.flush()
    dirty = planner(store, startingOffsets="earliest", **{"isolation.level": "read_uncommitted"})
    at = dirty.initial()
    end = again(dirty.latest(at, ALL))
    assert offsets(end) == {"in": [6, 5]}
    with pytest.raises(OffsetOutOfRange, match=r"give the isolation\.level that the query was"):
        planner(store).ranges(at, end)


# -- the group -----------------------------------------------------------------------------------


def test_the_group_follows_what_is_done(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Lag tools see the query; nothing before its first batch; a failure is only logged."""
    stream = planner(store, startingOffsets="earliest", **{"group.id": "g"})
    stream.commit_group(stream.initial())
    assert store.groups.list() == []
    end = stream.latest(stream.initial(), MicroBatchLimits(most=4))
    stream.commit_group(end)
    assert store.groups.describe("g").lag == 6
    assert isinstance(store.storage, CountingStorage)
    store.storage.take()
    stream.commit_group(end)
    assert store.storage.take() == {}
    holder = Coordinator(store.logs, "t", 60_000)
    holder.initialize()
    holder.place({}, {"g": [OffsetCommit("in", 0, 0)]})
    rest = stream.latest(end, ALL)
    for _ in range(3):
        stream.commit_group(rest)
        asked = store.storage.take()
        for _ in range(100):
            stream.commit_group(rest)
        assert asked
        assert store.storage.take() == {}
        store.logs.clock.sleep(11)
    (said,) = [m for m in caplog.messages if "were not moved" in m]
    assert "group 'g'" in said
    holder.abort()
    stream.commit_group(rest)
    assert store.groups.describe("g").lag == 0
    again_started = planner(store, **{"group.id": "g"})
    again_started.commit_group(again(rest))
    assert store.groups.describe("g").lag == 0
