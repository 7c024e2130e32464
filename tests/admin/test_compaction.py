"""Compaction of a topic in a store: what stays, what goes, and who may stop where."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.admin.compacted_topics import Record, compact, newest, read, standing
from tests.support.steps import another, append, begin
from txnlog.admin import joinable_segments
from txnlog.admin.compaction import compact as compact_module
from txnlog.admin.compaction.compact import Compaction, compact_topic
from txnlog.admin.times import Times
from txnlog.errors import CorruptRecord, InvalidOption, StorageError
from txnlog.log.uploads import UploadCheck
from txnlog.names import SegmentRef, TopicPartition
from txnlog.read.pin import ROUNDS
from txnlog.results import MaintenanceFailure, Merge
from txnlog.state.segment import (
    Rewrite,
    RewrittenFile,
    Segment,
    SegmentEntry,
    StoredSegment,
    resolve,
)
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

DAY_MS = 86_400_000
KEY_FORMATS = ["columns", "kafka", "parquet"]


def new_store(clock: VirtualClock, config: Mapping[str, object] | None = None) -> Store:
    """A store with the compacted topic ``t`` of one partition."""
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("t", config={"cleanup.policy": "compact", **(config or {})})
    return store


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_700_000_000_000)


@pytest.fixture
def store(clock: VirtualClock) -> Store:
    return new_store(clock)


def put(store: Store, *rows: tuple[str, str | None], headers: bool = False) -> None:
    """Append (key, value) records in one entry."""
    with store.producer() as producer:
        for key, value in rows:
            producer.send(
                "t", value, key, headers=[("of", key.encode()), ("n", None)] if headers else None
            )


def pairs(store: Store) -> list[tuple[int, str, str | None]]:
    return [
        (r.offset, (r.key or b"").decode(), None if r.value is None else r.value.decode())
        for r in read(store)
    ]


def segments(store: Store, partition: int = 0) -> list[Segment]:
    """The segments that hold the records of a partition."""
    log = another(store).logs.fresh_topic("t")
    with log.lock:
        state = log.state
        whole = log.manifests.unfold(state)
    return [*whole.partitions[partition].record_segments()]


# -- what stays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("record_format", KEY_FORMATS)
def test_of_each_key_the_newest_record_stays(clock: VirtualClock, record_format: str) -> None:
    """With its offset, time and headers; offsets have gaps then, and new records follow."""
    store = new_store(clock, {"record.format": record_format})
    put(store, ("a", "1"), ("b", "1"), ("a", "2"), headers=True)
    clock.time_ms += 5
    put(store, ("c", "1"), ("a", "3"), headers=True)
    before = read(store)
    (done,) = compact(store)
    assert (done.record_count, done.compacted_record_count) == (5, 3)
    assert pairs(store) == [(1, "b", "1"), (3, "c", "1"), (4, "a", "3")]
    assert read(store) == newest(before) == read(another(store))
    put(store, ("a", "4"))
    assert pairs(store)[-1] == (5, "a", "4")
    assert store.scan("t").count() == {0: 4}


def test_nothing_is_done_twice(store: Store) -> None:
    """A clean partition stays clean until new records arrive."""
    put(store, ("a", "1"), ("a", "2"))
    assert len(compact(store)) == 1
    assert compact(store) == []
    put(store, ("b", "1"))
    (done,) = compact(store)
    # The first segment holds nothing that is superseded: it is left as it is.
    assert (done.segment_count, done.record_count) == (1, 1)


def test_records_without_a_key_go_and_empty_keys_are_keys(clock: VirtualClock) -> None:
    """A topic that was never compacted: as in Kafka."""
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("t")
    with store.producer() as producer:
        for key in (None, b"", b"x", None, b"", b"x", None):
            producer.send("t", b"value", key)
    store.topics.alter("t", config={"cleanup.policy": "compact"})
    compact(store)
    assert [(r.offset, r.key) for r in read(store)] == [(4, b""), (5, b"x")]


def test_a_partition_of_which_nothing_stays(clock: VirtualClock) -> None:
    """Its offsets are gone without a segment, and the end stays where it is."""
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"value")
    store.topics.alter("t", config={"cleanup.policy": "compact"})
    compact(store)
    assert segments(store) == []
    assert read(store) == []
    put(store, ("a", "1"))
    assert pairs(store) == [(1, "a", "1")]
    assert compact(store) != []
    assert pairs(store) == [(1, "a", "1")]


def test_one_key_many_times(store: Store) -> None:
    """A key that all records have leaves the last one."""
    with store.producer() as producer:
        count = 300_000
        same = pa.array([b"key"] * count, pa.binary())
        values = pa.array(np.arange(count).astype("S8").tolist(), pa.binary())
        producer.send_batch("t", pa.record_batch([same, values], names=["key", "value"]))
    compact(store)
    assert [(r.offset, r.value) for r in read(store)] == [(count - 1, b"%d" % (count - 1))]


# -- tombstones ----------------------------------------------------------------------------------


def test_tombstones_stay_for_their_time(store: Store, clock: VirtualClock) -> None:
    """From when they were compacted first, not from when they were written."""
    put(store, ("a", "1"), ("b", "1"))
    put(store, ("a", None))
    clock.time_ms += 3 * DAY_MS
    compact(store)
    assert pairs(store) == [(1, "b", "1"), (2, "a", None)]
    clock.time_ms += DAY_MS - 1
    assert compact(store) == []
    clock.time_ms += 1
    (done,) = compact(store)
    assert (done.record_count, done.compacted_record_count) == (2, 1)
    assert pairs(store) == [(1, "b", "1")]
    assert compact(store) == []


def test_a_tombstone_that_is_superseded_goes_at_once(store: Store) -> None:
    """A key that comes back is not a tombstone's any more."""
    put(store, ("a", None))
    compact(store)
    put(store, ("a", "1"))
    compact(store)
    assert pairs(store) == [(1, "a", "1")]
    assert [r.delete_horizon_ms for s in segments(store) if (r := s.stored.rewritten)] == [-1]


def test_tombstones_go_though_a_topic_is_compacted_all_the_time(
    store: Store, clock: VirtualClock
) -> None:
    """However often their segments become new ones with others (KAFKA-8522)."""
    hour_ms = DAY_MS // 24
    born: dict[bytes, int] = {}
    for hour in range(60):
        stays = [(f"stays-{hour}-{turn}", "1") for turn in range(20)]
        put(store, (f"gone-{hour}", None), *stays)
        born[f"gone-{hour}".encode()] = clock.time_ms
        if hour % 3 == 0:  # touches all that came before: it is written again with its neighbours
            put(store, *((f"stays-{n}-{hour // 3}", "2") for n in range(hour)))
        compact(store)
        clock.time_ms += hour_ms
        left = {r.key for r in read(store) if r.value is None}
        for key, at_ms in born.items():
            age_ms = clock.time_ms - hour_ms - at_ms  # when compaction ran
            if age_ms < DAY_MS:
                assert key in left, (hour, key)
            elif age_ms > DAY_MS + DAY_MS // 8:
                assert key not in left, (hour, key)


def test_clocks_that_differ_only_keep_tombstones_longer(store: Store, clock: VirtualClock) -> None:
    """The horizon is by the latest clock; whether it has passed, by the earliest."""
    put(store, ("a", None))
    now = clock.time_ms

    def run(earliest_ms: int, latest_ms: int) -> list[Compaction]:
        times = Times(VirtualClock(earliest_ms), latest_ms)
        return [*compact_topic(store.logs, "t", times, even_clean=True)]

    assert run(now, now + 1000)
    assert run(now + DAY_MS, now + 10 * DAY_MS) == []
    assert run(now + DAY_MS + 999, now + 10 * DAY_MS) == []
    assert run(now + DAY_MS + 1000, now + 10 * DAY_MS)
    assert read(store) == []


@pytest.mark.parametrize("asleep_at", ["upload topics/t/data/0/", "put_if_absent topics/t/log/"])
def test_tombstones_stay_from_when_they_are_clean(
    store: Store, clock: VirtualClock, asleep_at: str
) -> None:
    """Not from when the compaction began: it may take, or sleep, for longer than they stay.

    A reader that has met the value a moment before it went can still meet its tombstone.
    """
    store.topics.alter("t", partitions=2)
    for partition in (0, 1):
        with store.producer() as producer:
            producer.send("t", b"1", b"a", partition=partition)
            producer.send("t", None, b"a", partition=partition)
    slept: list[str] = []

    def sleep(request: str) -> None:
        if request.startswith(asleep_at) and not slept:
            slept.append(request)
            clock.time_ms += 2 * DAY_MS

    faulty = FaultyStorage(store.storage, before_request=sleep)
    assert len(compact(attach(faulty, clock=clock))) == 2
    assert slept
    put_at = clock.time_ms
    for partition in (0, 1):
        (placed,) = segments(store, partition)
        assert placed.stored.rewritten is not None
        assert placed.stored.rewritten.delete_horizon_ms >= put_at + DAY_MS
        assert [(r.key, r.value) for r in read(store, partition=partition)] == [(b"a", None)]
    clock.time_ms += DAY_MS - 1
    assert compact(another(store)) == []
    clock.time_ms += DAY_MS // 8 + 1
    assert len(compact(another(store))) == 2
    assert read(store) == read(store, partition=1) == []


@pytest.mark.parametrize("stay_ms", [0, 1, 1000, 10_000])
def test_slow_puts_do_not_put_tombstones_off_for_ever(
    store: Store, clock: VirtualClock, stay_ms: int
) -> None:
    """Where a put takes longer than an eighth of their time: one more entry, with time for it."""
    store.topics.alter("t", config={"delete.retention.ms": stay_ms})
    put(store, ("a", "1"), ("a", None))
    puts: list[int] = []

    def take_long(request: str) -> None:
        if request.startswith("put_if_absent topics/t/log/"):
            clock.time_ms += 500 + 100 * len(puts)
            puts.append(clock.time_ms)
            assert len(puts) <= 2

    compact(attach(FaultyStorage(store.storage, before_request=take_long), clock=clock))
    (placed,) = segments(store)
    assert placed.stored.rewritten is not None
    stays_ms = placed.stored.rewritten.delete_horizon_ms - puts[-1]
    assert stays_ms >= stay_ms - stay_ms // 8 or not stay_ms
    assert len(puts) == (2 if stay_ms in (1, 1000) else 1)


def test_maintenance_takes_the_time_of_each_topic(store: Store, clock: VirtualClock) -> None:
    """A long run over other topics before it makes no tombstone older."""
    store.topics.create("before", config={"cleanup.policy": "compact"})
    for topic in ("before", "t"):
        with store.producer() as producer:
            producer.send(topic, b"1", b"a")
            producer.send(topic, None, b"a")

    def take_long(request: str) -> None:
        if request.startswith("upload topics/before/data/"):
            clock.time_ms += DAY_MS

    faulty = FaultyStorage(store.storage, before_request=take_long)
    steps = attach(faulty, clock=clock).maintain()
    assert len([step for step in steps if isinstance(step, Compaction)]) == 2
    (placed,) = segments(store)
    assert placed.stored.rewritten is not None
    assert placed.stored.rewritten.delete_horizon_ms >= clock.time_ms + DAY_MS


# -- what is not touched -------------------------------------------------------------------------


def test_nothing_beyond_the_last_stable_offset(store: Store) -> None:
    """An open transaction holds what follows it, too; aborted records never win."""
    put(store, ("a", "1"), ("a", "2"))
    producer = begin(store)
    producer.send("t", b"3", b"a")
    producer.flush()
    put(store, ("a", "4"))
    compact(store)
    assert pairs(store) == [(1, "a", "2")]
    producer.abort_transaction()
    assert pairs(store) == [(1, "a", "2"), (3, "a", "4")]
    compact(store)
    assert pairs(store) == [(3, "a", "4")]
    uncommitted = read(store, isolation_level="read_uncommitted")
    assert [r.offset for r in uncommitted] == [3]


def test_an_aborted_record_supersedes_nothing(store: Store) -> None:
    """Not even the last one of the partition."""
    put(store, ("a", "1"))
    producer = begin(store)
    producer.send("t", b"2", b"a")
    producer.flush()
    producer.abort_transaction()
    compact(store)
    assert pairs(store) == [(0, "a", "1")]


def test_records_that_were_deleted_stay_so(store: Store) -> None:
    """A log start in the midst of a segment: what lies below neither stays nor counts."""
    put(store, ("a", "1"), ("b", "1"), ("c", "1"))
    put(store, ("a", "2"))
    store.topics.delete_records({TopicPartition("t", 0): 1})
    (done,) = compact(store)
    assert (done.record_count, done.compacted_record_count) == (3, 3)
    assert pairs(store) == [(1, "b", "1"), (2, "c", "1"), (3, "a", "2")]


def test_min_compaction_lag_holds_young_records(clock: VirtualClock) -> None:
    """And all that follows, however old."""
    store = new_store(clock, {"min.compaction.lag.ms": 1000})
    put(store, ("a", "1"), ("a", "2"))
    clock.time_ms += 600
    put(store, ("a", "3"), ("a", "4"))
    clock.time_ms += 400
    compact(store)
    assert pairs(store) == [(1, "a", "2"), (2, "a", "3"), (3, "a", "4")]
    clock.time_ms += 600
    compact(store)
    assert pairs(store) == [(3, "a", "4")]


# -- when ----------------------------------------------------------------------------------------


def test_maintain_compacts_what_is_dirty_enough(store: Store, clock: VirtualClock) -> None:
    """More than half is new; or a record waits for too long; or tombstones are due."""
    from txnlog.results import Compaction

    def maintained(*, dry_run: bool = False) -> list[Compaction]:
        clock.time_ms += 1
        return [s for s in store.maintain("t", dry_run=dry_run) if isinstance(s, Compaction)]

    put(store, *((f"k{n}", "x" * 5) for n in range(1000)))
    (planned,) = maintained(dry_run=True)
    assert (planned.segment_count, planned.dirty_ratio, planned.record_count) == (1, 1.0, None)
    assert len(maintained()) == 1
    put(store, ("k1", None))
    assert maintained() == []
    store.topics.alter("t", config={"max.compaction.lag.ms": 5000})
    clock.time_ms += 4000
    assert maintained() == []
    clock.time_ms += 2000
    assert len(maintained()) == 2  # what it supersedes, and itself
    assert len(read(store)) == 1000
    store.topics.alter("t", config={"max.compaction.lag.ms": None})
    clock.time_ms += DAY_MS
    assert len(maintained()) == 1
    assert len(read(store)) == 999


def test_a_topic_that_is_not_to_be_compacted_is_not(clock: VirtualClock) -> None:
    """Asked for by name, it is an error that says what to do."""
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("t")
    put(store, ("a", "1"), ("a", "2"))
    assert not [s for s in store.maintain("t") if type(s).__name__ == "Compaction"]
    with pytest.raises(InvalidOption, match=r"alter its cleanup\.policy"):
        store.maintenance.compact("t")
    store.topics.alter("t", config={"cleanup.policy": "compact"})
    with pytest.raises(InvalidOption, match="max_memory_bytes must be a whole number of at least"):
        store.maintenance.compact("t", max_memory_bytes=1000)
    assert len(read(store)) == 2
    assert len(store.maintenance.compact("t", max_memory_bytes=1 << 20)) == 1
    assert len(read(store)) == 1


def test_retention_is_for_topics_that_delete(clock: VirtualClock) -> None:
    """A topic that is only compacted keeps old records; compact,delete does both."""
    store = new_store(clock, {"retention.ms": 1000})
    put(store, ("a", "1"))
    put(store, ("a", "2"))
    clock.time_ms += DAY_MS
    store.maintain("t")
    assert pairs(store) == [(1, "a", "2")]
    store.topics.alter("t", config={"cleanup.policy": "compact,delete"})
    store.maintain("t")
    assert pairs(store) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("record_format", ["auto", "kafka"])
@pytest.mark.parametrize("limit", ["retention.ms", "retention.bytes"])
def test_retention_goes_on_where_keys_are_updated_at_random(
    clock: VirtualClock, record_format: str, limit: str
) -> None:
    """Segments of old records are joined with no new ones, or none would ever be old."""
    hour_ms = 3_600_000
    kept = {"retention.ms": hour_ms, "retention.bytes": 6000}[limit]
    config = {
        "cleanup.policy": "compact,delete",
        "record.format": record_format,
        "file.delete.delay.ms": 0,
        "min.cleanable.dirty.ratio": 0,
        limit: kept,
    }
    store = new_store(clock, config)
    dice = random.Random(1)
    put(store, ("nobody updates it", "old"))
    for _ in range(18):
        for _ in range(5):
            clock.time_ms += hour_ms // 30
            put(store, *((f"k{dice.randrange(100)}", dice.randbytes(50).hex()) for _ in range(3)))
        steps = store.maintain()
        assert [step for step in steps if isinstance(step, MaintenanceFailure)] == []
    store.maintain()  # of what came since its retention
    left = read(store)
    assert b"nobody updates it" not in [record.key for record in left]
    if limit == "retention.ms":
        assert min(record.timestamp_ms for record in left) > clock.time_ms - 1.5 * hour_ms
    else:
        assert sum(segment.stored.size_bytes for segment in segments(store)) < 1.5 * kept


def test_segments_of_keys_that_nobody_updates_are_joined(clock: VirtualClock) -> None:
    """Else each compaction would leave one more, for ever; and no record is rewritten often."""
    store = new_store(clock, {"file.delete.delay.ms": 0})
    rounds, rewritten = 120, 0
    for number in range(rounds):
        put(store, *((f"{number}-{n}", "v") for n in range(3)))
        rewritten += sum(done.compacted_record_count or 0 for done in compact(store))
    assert len(segments(store)) < 10
    assert rewritten < 6 * 3 * rounds
    assert [record.offset for record in read(store)] == [*range(3 * rounds)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("least_ms", "most_ms"), [(3_600_000, 3_600_000), (3_600_000, 7_200_000), (3_600_000, None)]
)
def test_merging_puts_no_compaction_off(
    clock: VirtualClock, least_ms: int, most_ms: int | None
) -> None:
    """What becomes one waits for its newest record: by an eighth, and never beyond the maximum."""
    config = {
        "record.format": "kafka",
        "min.compaction.lag.ms": least_ms,
        "max.compaction.lag.ms": most_ms,
        "min.cleanable.dirty.ratio": 0,
        "file.delete.delay.ms": 0,
    }
    store = new_store(clock, {key: value for key, value in config.items() if value is not None})
    step_ms, every = 60_000, 5
    oldest_ms = merged = 0
    for step in range(1, 200):
        clock.time_ms += step_ms
        put(store, ("hot", str(step)))
        if step % every:
            continue
        merged += sum(isinstance(one, Merge) for one in store.maintain())
        first, *others = (record.timestamp_ms for record in read(another(store)))
        if others:
            oldest_ms = max(oldest_ms, clock.time_ms - first)
    may_wait_ms = 0 if most_ms == least_ms else least_ms // 8
    assert oldest_ms <= least_ms + may_wait_ms + every * step_ms
    assert bool(merged) == bool(may_wait_ms)


@pytest.mark.parametrize("record_format", KEY_FORMATS)
def test_what_is_compacted_no_more_is_merged(clock: VirtualClock, record_format: str) -> None:
    """With what compaction knows of it, so that the next one goes on; a token from before stays."""
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    config = {"file.delete.delay.ms": 0, "record.format": record_format}
    store.topics.create("t", config={**config, "cleanup.policy": "compact"})
    for number in range(3):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(joinable_segments, "LEAST_SEGMENTS", 100)
            put(store, *((f"{number}-{n}", "v") for n in range(3)), (f"dead {number}", None))
            put(store, ("same", str(number)))
            compact(store)
    put(store, ("same", "last"), ("dead 0", None))
    compact(store)
    before, facts = read(store), [one.stored.rewritten for one in segments(store)]
    store.topics.alter("t", config={"cleanup.policy": "delete"})
    token = store.snapshot("t").token()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(joinable_segments, "LEAST_SEGMENTS", 2)
        steps = store.maintain()
    assert [one for one in steps if isinstance(one, MaintenanceFailure)] == []
    (merged,) = segments(store)
    known = merged.stored.rewritten
    assert known is not None
    assert known.is_compacted
    assert known.judged_end == max(one.judged_end for one in facts if one)
    assert known.delete_horizon_ms == max(one.delete_horizon_ms for one in facts if one)
    store.maintain()
    for one in (store, another(store)):
        assert read(one) == before
        assert one.snapshot("t", at=token).scan("t").to_arrow().num_rows == len(before)
    put(store, ("same", "newest"))
    store.topics.alter("t", config={"cleanup.policy": "compact"})
    clock.time_ms += 2 * DAY_MS
    compact(store)
    compact(store)
    assert read(store) == [r for r in newest(read(store)) if r.value is not None]
    assert {r.key for r in read(store)} == {r.key for r in before if r.value is not None}


# -- bounds, and who stops where -----------------------------------------------------------------


def test_a_segment_ends_at_segment_bytes(clock: VirtualClock) -> None:
    """Survivors of large segments are split as usual; spans are adjacent."""
    store = new_store(clock, {"segment.bytes": 20_000, "compression.type": "none"})
    with store.producer() as producer:
        for n in range(3000):
            producer.send("t", b"v" * 100, b"%d" % (n % 1500))
    before = read(store)
    compact(store)
    assert read(store) == newest(before)
    placed = segments(store)
    assert len(placed) > 5
    assert max(s.stored.size_bytes for s in placed) <= 20_000
    spans = [(s.base_offset, s.end_offset) for s in placed]
    assert [spans[0][0], *(end for _, end in spans)] == [*(at for at, _ in spans), 3000]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow),
        Fault.STOP_AFTER,
        pytest.param(Fault.LOSE_RESPONSE, marks=pytest.mark.more),
    ],
)
def test_a_crash_at_any_request(
    clock: VirtualClock, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was put stays, nothing else does, and the next compaction does the rest."""
    monkeypatch.setattr(compact_module, "DEFAULT_GROUP_BYTES", 3000)
    store = new_store(clock)
    for n in range(8):
        put(store, *((f"k{k % 5}", f"{n}") for k in range(n, n + 3)))
    compact(store)
    for n in range(8):
        put(store, *((f"k{k % 5}", f"again {n}") for k in range(n, n + 3)))
    before = read(store)
    sizes: set[int] = set()
    for number in itertools.count():
        assert isinstance(store.storage, HeapStorage)
        copied = attach(store.storage.copy(), clock=VirtualClock(clock.time_ms, 1000 + number))
        faulty = FaultyStorage(copied.storage, {number: fault})
        with suppress(ProcessStopped, StorageError):
            compact(attach(faulty, clock=VirtualClock(clock.time_ms, 1 + number)))
        left = read(another(copied))
        sizes.add(len(left))
        assert newest(left) == newest(before)
        compact(another(copied))
        assert read(another(copied)) == newest(before)
        if len(faulty.requests) <= number:
            break
    assert number > 10
    assert len(sizes) > 2  # some of it was done, and not all


@pytest.mark.parametrize("turns", [2, 4])
@pytest.mark.parametrize("trims", [False, True])
def test_what_a_compaction_that_slept_has_replaced_is_there_again(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, turns: int, trims: bool
) -> None:
    """Vacuum took its segments for left behind. Where nothing was left before, nothing is."""
    store = new_store(clock)
    heap = store.storage
    assert isinstance(heap, HeapStorage)
    for turn in range(turns):
        monkeypatch.setattr(compact_module, "DEFAULT_GROUP_BYTES", 1)
        for n in range(6):
            more = [(f"{word} {turn} {n}", "v") for word in ("seen", "stays")] if n % 2 else []
            put(store, (f"k{n}", f"{turn}"), *more)
        compact(store)
        clock.time_ms += 8 * DAY_MS
        another(store).maintain()
    monkeypatch.setattr(compact_module, "DEFAULT_GROUP_BYTES", 1 << 30)
    put(store, *((f"seen {turn} {n}", "new") for turn in range(turns) for n in (1, 3, 5)))
    expected = read(store)
    before = standing(store)
    old = {path for path, _ in heap.list_all("topics/t/data")}
    check = UploadCheck.after

    def sleep(self: UploadCheck, entry: int | None) -> None:
        if late := {path for path, _ in heap.list_all("topics/t/data")} - old:
            monkeypatch.setattr(UploadCheck, "after", check)
            heap.delete(late)
            if trims:
                store.topics.delete_records({TopicPartition("t", 0): expected[2].offset})
            clock.time_ms += 14 * DAY_MS
        check(self, entry)

    monkeypatch.setattr(UploadCheck, "after", sleep)
    with pytest.raises(StorageError, match="vacuum took for left behind"):
        compact(another(store))
    expected = expected[2:] if trims else expected
    if not trims:
        assert standing(store) == before
    left = read(another(store))
    assert newest(left) == newest(expected)
    assert {*left} <= {*expected}
    assert [one for one in another(store).examine() if one.state == "damage"] == []
    compact(store)
    assert read(another(store)) == newest(expected)


def test_two_at_once(store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was overtaken leaves the partition to the next call."""
    for n in range(4):
        put(store, *((f"k{k}", str(n)) for k in range(3)))
    before = read(store)
    slow = another(store)
    steps = compact_topic(slow.logs, "t", Times(clock, None), even_clean=True)
    put_group = compact_module._put

    def overtaken(*arguments: Any) -> bool:
        monkeypatch.setattr(compact_module, "_put", put_group)
        compact(store)
        return put_group(*arguments)

    monkeypatch.setattr(compact_module, "_put", overtaken)
    assert [*steps] == []
    assert read(store) == newest(before)


def test_nothing_is_put_behind_what_others_have_rewritten(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows would be called clean, though what it supersedes may be there still."""
    monkeypatch.setattr(compact_module, "DEFAULT_GROUP_BYTES", 1)
    put(store, ("a", "old"), ("b", "stays"))
    put(store, ("a", "new"))
    others: list[Compaction] = []

    def meanwhile(text: str) -> None:
        if text.startswith("put_if_absent topics/t/log/") and not others:
            whole = compact_topic(another(store).logs, "t", Times(clock, None), even_clean=True)
            others.extend(itertools.islice(whole, 1))

    slow = another(store, FaultyStorage(store.storage, before_request=meanwhile))
    assert compact(slow) == []
    assert len(others) == 1
    first, second = segments(store)
    assert first.stored.rewritten is not None
    assert second.stored.rewritten is None
    assert len(compact(store)) == 1


def test_the_storages_time_goes_on_too(clock: VirtualClock) -> None:
    """It was asked once, and what comes long after is judged by the time that it is then."""
    times = Times(clock, clock.time_ms + DAY_MS)
    clock.time_ms += 5000
    assert (times.earliest_ms, times.latest_ms) == (clock.time_ms, clock.time_ms + DAY_MS)
    assert not times.was_put_before(5000, clock.time_ms + DAY_MS - 5000)
    assert times.was_put_before(4999, clock.time_ms + DAY_MS - 5000)


def test_a_damaged_segment_stops_it(store: Store) -> None:
    """Nothing is lost that could be mended."""
    put(store, ("a", "1"), ("a", "2"))
    put(store, ("a", "3"))
    name = segments(store)[0].stored.name
    path = SegmentRef("t", 0, name).paths.log
    data = bytearray(store.storage.get(path))
    data[-20] ^= 1
    store.storage.delete([path])
    store.storage.put(path, bytes(data))
    with pytest.raises(CorruptRecord):
        compact(store)
    assert [s.stored.rewritten for s in segments(store)] == [None, None]


@pytest.mark.parametrize("damaged", [0, 1, 2])
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_what_is_lost_of_one_partition_stops_no_other(
    clock: VirtualClock, policy: str, damaged: int
) -> None:
    """They are compacted, or merged, and nothing is uploaded in vain; the error comes last."""
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", partitions=3, config={"cleanup.policy": policy})
    for number in range(8):
        for partition in range(3):
            with store.producer() as producer:
                producer.send("t", b"%d" % number, key=b"k", partition=partition)
    heap.delete([next(path for path, _ in heap.list_all(f"topics/t/data/{damaged}"))])

    def left() -> list[int]:
        fresh = attach(heap, clock=clock)
        return [len(fresh.topics.segments("t", partition)) for partition in range(3)]

    before = {path for path, _ in heap.list_all("topics/t/data")}
    failed = [one for one in store.maintain() if isinstance(one, MaintenanceFailure)]
    assert {type(one.error) for one in failed} == {CorruptRecord}
    assert left() == [8 if partition == damaged else 1 for partition in range(3)]
    made = {path for path, _ in heap.list_all("topics/t/data")} - before
    assert len([path for path in made if path.endswith((".log", ".parquet"))]) == 2
    with pytest.raises(CorruptRecord, match="is gone"):
        getattr(store.maintenance, "compact" if policy == "compact" else "merge")("t")


# -- a model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("record_format", KEY_FORMATS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.more) for n in range(1, 6))]
)
def test_a_dict_is_the_model(
    clock: VirtualClock, seed: int, record_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written, deleted, aborted, compacted, in groups and parts of any size."""
    rng = random.Random(seed)
    store = new_store(
        clock,
        {
            "record.format": record_format,
            "segment.bytes": rng.choice([2000, 1 << 30]),
            "delete.retention.ms": rng.choice([0, 1000, 10_000]),
        },
    )
    retention_ms = int(store.logs.topic_spec("t").config["delete.retention.ms"])
    monkeypatch.setattr(compact_module, "DEFAULT_GROUP_BYTES", rng.choice([1, 3000, 1 << 30]))
    keys = [rng.randbytes(rng.choice([0, 1, 1, 3, 40])) for _ in range(12)]
    cleaned_ms: dict[int, int] = {}  # by its offset, when a tombstone was compacted first
    known: dict[int, Record] = {}
    log_start = 0
    for _ in range(40):
        clock.time_ms += rng.choice([1, 100, 2000])
        match rng.choices(["put", "abort", "compact", "trim"], [5, 1, 4, 1])[0]:
            case "put" | "abort" as kind:
                producer = begin(store, f"p{rng.random()}")
                for _ in range(rng.choice([1, 5, 60])):
                    value = None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 9, 90]))
                    headers = [("h", rng.randbytes(2))] if rng.random() < 0.3 else None
                    producer.send("t", value, rng.choice(keys), headers=headers)
                producer.flush()
                if kind == "put":
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
                known |= {r.offset: r for r in read(store) if r.offset not in known}
            case "trim":
                log_start = max(log_start, rng.randrange(max(known, default=0) + 1))
                store.topics.delete_records({TopicPartition("t", 0): log_start})
                known = {at: r for at, r in known.items() if at >= log_start}
            case "compact":
                memory = rng.choice([600, 2000, 1 << 27])
                compact(store, memory_bytes=memory)
                left = read(store)
                assert all(known[r.offset] == r for r in left)
                expected = newest([*known.values()])
                assert [r for r in left if r.value is not None] == [
                    r for r in expected if r.value is not None
                ]
                tombstones = {r.offset for r in left if r.value is None}
                now_ms = clock.time_ms
                for record in expected:
                    if record.value is None:
                        at_ms = cleaned_ms.setdefault(record.offset, now_ms)
                        if at_ms == now_ms or now_ms - at_ms < retention_ms:
                            assert record.offset in tombstones
                        elif now_ms - at_ms > retention_ms + retention_ms // 8 + 1:
                            assert record.offset not in tombstones
                assert tombstones <= {r.offset for r in expected}
                known = {r.offset: r for r in left}
    assert read(another(store)) == [known[at] for at in sorted(known)]


@pytest.mark.few(1)
@pytest.mark.parametrize("group_bytes", [1, 1 << 30])
@pytest.mark.parametrize("trims", [False, True])
def test_where_nothing_is_left_is_remembered_once(
    store: Store,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    group_bytes: int,
    trims: bool,
) -> None:
    """Few keys that are written again and again: no compaction adds to what must be known."""
    monkeypatch.setattr(compact_module, "DEFAULT_GROUP_BYTES", group_bytes)
    in_force = []
    for turn in range(30):
        put(store, *((f"k{key}", str(turn)) for key in range(5)))
        clock.time_ms += 86_400_000
        compact(store)
        if trims and turn % 7 == 3:
            first = min(record.offset for record in read(store))
            store.topics.delete_records({TopicPartition("t", 0): first - turn % 2})
        assert [record.value for record in read(another(store))] == [b"%d" % turn] * 5
        state = another(store).logs.fresh_topic("t").whole_segments()
        in_force.append(len(resolve(state.partitions[0].rewrites)))
    assert max(in_force) <= 4


# -- views that do not show all that compaction has seen -----------------------------------------


def test_a_cut_before_the_newer_record_shows_the_older_one(store: Store) -> None:
    """Else a key would be missing from a snapshot that is called atomic."""
    store.topics.create("u")
    put(store, ("a", "old"))
    blocking = begin(store, "blocks")
    blocking.send("u", b"open")
    blocking.flush()
    both = begin(store, "both")
    both.send("t", b"new", key=b"a")
    both.send("u", b"new")
    both.commit_transaction()
    (done,) = compact(store)
    assert (done.record_count, done.compacted_record_count) == (2, 1)
    for one in (store, another(store)):
        snapshot = one.snapshot(["t", "u"])
        assert snapshot.is_atomic
        assert snapshot.scan("u").to_arrow().num_rows == 0
        assert snapshot.scan("t").to_arrow()["value"].to_pylist() == [b"old"]
        assert pairs(one) == [(1, "a", "new")]
    blocking.abort_transaction()
    snapshot = store.snapshot(["t", "u"])
    assert snapshot.scan("t").to_arrow()["value"].to_pylist() == [b"new"]
    assert snapshot.scan("u").to_arrow()["value"].to_pylist() == [b"new"]


@pytest.mark.few(4)
@pytest.mark.parametrize("appends", [0, 200], ids=["newest", "settled"])
@pytest.mark.parametrize("way", ["purged", "vacuumed", "vacuumed before the delay", "neither"])
def test_a_cut_before_the_newer_record_needs_the_older_one(
    clock: VirtualClock, appends: int, way: str
) -> None:
    """Where it may be gone, or was purged, each topic shows as far as it shows alone."""
    store = new_store(clock, {"file.delete.delay.ms": 0} if way.startswith("vacuumed") else {})
    store.topics.create("u")
    put(store, ("a", "old"), ("person", "old"))
    blocking = begin(store, "blocks")
    blocking.send("u", b"open")
    blocking.flush()
    both = begin(store, "both")
    both.send("t", b"new", key=b"a")
    both.send("u", b"new")
    both.commit_transaction()
    compact(store)
    if way == "purged":
        store.maintenance.purge("t", [{"key": b"person"}])
    elif way != "neither":
        store.maintain("t")
    if way == "vacuumed before the delay":
        store.topics.alter("t", config={"file.delete.delay.ms": DAY_MS})
    for _ in range(appends):
        put(store, ("b", "later"))
    settled = another(store).logs.fresh_topic("t").state.settled
    assert (settled is not None) == bool(appends)
    for one in (store, another(store)):
        snapshot = one.snapshot(["t", "u"])
        assert snapshot.is_atomic == (way == "neither")
        assert snapshot.scan("u").to_arrow().num_rows == 0
        alone = [record.value for record in read(one)]
        found = snapshot.scan("t").to_arrow()["value"].to_pylist()
        assert found == ([b"old", b"old"] if way == "neither" else alone)
    blocking.abort_transaction()
    assert store.snapshot(["t", "u"]).is_atomic


def test_replaced_files_are_not_asked_for_by_each_snapshot(clock: VirtualClock) -> None:
    """As long as a transaction is open: a consumer takes one with each poll."""
    storage = CountingStorage(HeapStorage())
    store = attach(storage, create=True, clock=clock)
    for topic in ("t", "u"):
        store.topics.create(topic, config={"cleanup.policy": "compact"})
    for number in range(20):
        put(store, ("a", str(number)))
    blocking = begin(store, "blocks")
    blocking.send("u", b"open", key=b"a")
    blocking.flush()
    both = begin(store, "both")
    for topic in ("t", "u"):
        both.send(topic, b"new", key=b"a")
    both.commit_transaction()
    compact(store)
    storage.take()
    for _ in range(5):
        assert store.snapshot(["t", "u"]).is_atomic
    assert storage.take()["size"] == 20


def test_what_an_earlier_compaction_has_seen_is_remembered(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one rewrites only what is clean: what superseded its records lies behind that."""
    monkeypatch.setattr(compact_module, "DEFAULT_GROUP_BYTES", 1)
    store.topics.alter("t", config={"delete.retention.ms": 1000})
    put(store, ("a", "old"), ("gone", None), ("b", "stays"))
    put(store, ("a", "new"))
    whole = compact_topic(store.logs, "t", Times(clock, None), even_clean=True)
    assert len([*itertools.islice(whole, 1)]) == 1  # of two segments; then the process stops
    assert pairs(store) == [(1, "gone", None), (2, "b", "stays"), (3, "a", "new")]
    store.topics.alter("t", config={"min.compaction.lag.ms": DAY_MS})
    clock.time_ms += 2000
    compact(store)
    assert pairs(store) == [(2, "b", "stays"), (3, "a", "new")]
    clean, _ = segments(store)
    assert clean.stored.rewritten is not None
    assert (clean.end_offset, clean.stored.rewritten.judged_end) == (3, 4)


def test_a_rewrite_that_hides_or_shows_too_much_is_left_aside() -> None:
    """What is hidden may be the newer record of a key, or lie in the new segment."""

    def rewrite(judged_end: int) -> Rewrite:
        special = RewrittenFile(10, is_compacted=judged_end > 0, judged_end=judged_end)
        segment = Segment.of(
            7, SegmentEntry(0, 20, StoredSegment("s", 5, 100, 0, 0, rewritten=special))
        )
        return Rewrite(0, 0, segment)

    compacted, merged = rewrite(50), rewrite(0)
    assert compacted.holds_for(None, [])
    assert compacted.holds_for(50, [])
    assert not compacted.holds_for(49, [])
    assert compacted.holds_for(60, [19, 50])
    assert not compacted.holds_for(60, [49])
    assert merged.holds_for(25, [])
    assert merged.holds_for(60, [19, 30])
    assert not merged.holds_for(60, [29])


def test_a_view_takes_all_segments_of_a_compaction_or_none(clock: VirtualClock) -> None:
    """The new ones do not end where the old ones did: some of each would show records twice."""
    heap = HeapStorage()
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", config={"cleanup.policy": "compact"})
    store.topics.create("u")
    hidden = begin(store)
    hidden.send("t", b"hidden", key=b"hidden")
    hidden.flush()
    rng = random.Random(1)
    for first in range(0, 20, 5):
        with store.producer() as producer:
            for number in range(first, first + 5):
                producer.send("t", rng.randbytes(300), b"k%d" % number)
    store.topics.alter("t", config={"segment.bytes": 3000})
    listings = 0

    def meanwhile(text: str) -> None:
        nonlocal listings
        if not text.startswith("list") or "topics/t/log" not in text:
            return
        listings += 1
        if listings in range(2, ROUNDS + 1):  # so that it reads once more
            append(another(store), b"new", topic="u")
        elif listings == ROUNDS + 1:
            hidden.commit_transaction()
            (done,) = compact(another(store))
            assert (done.compacted_count or 0) > 3

    reader = attach(FaultyStorage(heap, before_request=meanwhile), clock=clock)
    snapshot = reader.snapshot(["t", "u"], isolation_level="snapshot")
    assert listings > ROUNDS
    assert snapshot.scan("t").to_arrow()["offset"].to_pylist() == [*range(1, 21)]
    assert [r.offset for r in read(store)] == [*range(21)]
