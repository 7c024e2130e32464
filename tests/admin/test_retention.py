"""Retention: which segments go, as in Kafka, and what holds them."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from steps import another, append, begin, new_store, send

from txnlog.admin.retention import RetentionDeletion, apply_retention
from txnlog.errors import InvalidTimestamp, StorageError
from txnlog.segments.records import normalize
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_700_000_000_000)


@pytest.fixture
def store(clock: VirtualClock) -> Store:
    return new_store(HeapStorage(), clock)


def write(store: Store, count: int = 5, *, age_ms: int = 0, topic: str = "t") -> None:
    """One segment in partition 0, of so many records, the newest of this age."""
    with store.producer() as producer:
        for number in range(count):
            at_ms = store.logs.clock.now_ms() - age_ms - (count - 1 - number)
            producer.send(topic, b"value", None, 0, at_ms)


def run(store: Store, topic: str = "t", **options: bool) -> list[RetentionDeletion]:
    return apply_retention(store.logs, topic, store.logs.clock.now_ms(), **options)


def segment_count(store: Store) -> int:
    return len(another(store).segments("t"))


def sizes(store: Store) -> list[int]:
    return [segment.size_bytes for segment in store.segments("t")]


def test_nothing_goes_by_default(store: Store, clock: VirtualClock) -> None:
    """Nobody loses data by upgrading."""
    write(store)
    clock.time_ms += 10**12
    assert run(store) == []
    assert segment_count(store) == 1


def test_whole_segments_go_by_their_newest_record(store: Store, clock: VirtualClock) -> None:
    """From the oldest on, and only what is older than retention.ms: not what is just as old."""
    for age_h in (4, 3, 1):
        write(store, age_ms=age_h * HOUR_MS)
    store.alter_topic("t", config={"retention.ms": 3 * HOUR_MS})
    (done,) = run(store)
    assert (done.log_start_offset, done.new_log_start_offset, done.segment_count) == (0, 5, 1)
    assert segment_count(store) == 2
    clock.time_ms += 1
    (done,) = run(store)
    assert (done.log_start_offset, done.new_log_start_offset) == (5, 10)
    assert run(store) == []
    assert store.describe_topic("t").partitions[0].log_start_offset == 10
    assert store.scan("t").to_arrow().num_rows == 5


def test_it_stops_at_the_first_segment_that_is_not_old_enough(store: Store) -> None:
    """What is old behind a newer one stays, as in Kafka."""
    for age_h in (4, 1, 4):
        write(store, age_ms=age_h * HOUR_MS)
    store.alter_topic("t", config={"retention.ms": 2 * HOUR_MS})
    assert [done.new_log_start_offset for done in run(store)] == [5]
    assert segment_count(store) == 2


def test_all_segments_may_go_by_time(store: Store, clock: VirtualClock) -> None:
    """The newest one too; what comes next goes on behind."""
    write(store)
    write(store)
    store.alter_topic("t", config={"retention.ms": 1})
    clock.time_ms += HOUR_MS
    (done,) = run(store)
    assert (done.new_log_start_offset, done.segment_count) == (10, 2)
    append(store, b"next")
    assert store.scan("t").to_arrow()["offset"].to_pylist() == [10]


@pytest.mark.parametrize(
    ("records", "kept", "left"), [(15, 10, 2), (15, 15, 3), (15, 14, 3), (15, 6, 2), (15, 0, 0)]
)
def test_as_many_bytes_as_retention_bytes_stay_at_least(
    store: Store, records: int, kept: int, left: int
) -> None:
    """Kafka's case: 15 records with 5 a segment, keeping 10, leaves 2 segments."""
    for _ in range(records // 5):
        write(store)
    (size,) = {*sizes(store)}
    store.alter_topic("t", config={"retention.bytes": size * kept // 5})
    run(store)
    assert segment_count(store) == left
    assert run(store) == []


def test_by_size_and_by_time_together(store: Store) -> None:
    """Whatever either of the two lets go."""
    for age_h in (4, 1, 1):
        write(store, age_ms=age_h * HOUR_MS)
    config = {"retention.ms": 2 * HOUR_MS, "retention.bytes": sizes(store)[2]}
    store.alter_topic("t", config=config)
    assert [done.new_log_start_offset for done in run(store)] == [10]


def test_nothing_goes_beyond_the_last_stable_offset(store: Store, clock: VirtualClock) -> None:
    """An open transaction keeps its records and what lies behind them; ended, they go."""
    config = {"retention.ms": 1, "retention.bytes": 0}
    store.alter_topic("t", config=config)
    write(store)
    producer = begin(store, timeout_ms=900_000)
    send(producer, b"undecided")
    write(store)
    clock.time_ms += 60_000
    assert [done.new_log_start_offset for done in run(store)] == [5]
    producer.abort_transaction()
    assert [done.new_log_start_offset for done in run(store)] == [11]


def test_all_partitions_of_a_topic_move_in_one_entry(clock: VirtualClock) -> None:
    """So a snapshot sees all of it or nothing; a topic without work gets no entry."""
    store = new_store(HeapStorage(), clock, {"t": 3, "quiet": 1}, None)
    for partition in (0, 1):
        append(store, b"x", partition=partition)
    for topic in ("t", "quiet"):
        store.alter_topic(topic, config={"retention.ms": 1})
    clock.time_ms += 1000
    before = {topic: [*store.dump_topic_log(topic)] for topic in ("t", "quiet")}
    assert {done.partition for done in run(store)} == {0, 1}
    assert run(store, "quiet") == []
    after = [*store.dump_topic_log("t")]
    assert len(after) == len(before["t"]) + 1
    assert after[-1].entry.log_start_offsets == {0: 1, 1: 1}  # type: ignore[union-attr]
    assert len([*store.dump_topic_log("quiet")]) == len(before["quiet"])


def test_a_dry_run_tells_the_same_and_changes_nothing(store: Store, clock: VirtualClock) -> None:
    write(store)
    store.alter_topic("t", config={"retention.ms": 1})
    clock.time_ms += 1000
    told = run(store, dry_run=True)
    assert segment_count(store) == 1
    assert run(store) == told
    assert segment_count(store) == 0


def test_log_append_time_counts_likewise(store: Store, clock: VirtualClock) -> None:
    """Whatever the producer has stamped the record with."""
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": HOUR_MS}
    store.alter_topic("t", config=config)
    write(store, age_ms=100 * HOUR_MS)
    assert run(store) == []
    clock.time_ms += HOUR_MS + 1
    assert [done.new_log_start_offset for done in run(store)] == [5]


def test_records_without_a_time_have_that_of_their_file(clock: VirtualClock) -> None:
    """As in Kafka; where the storage tells none they stay."""
    storage = HeapStorage()
    store = new_store(storage, clock)
    store.alter_topic("t", config={"retention.ms": HOUR_MS})
    storage.time_ms = lambda: clock.time_ms
    with store.producer() as producer:
        producer.send("t", b"v", timestamp_ms=-1)
    clock.time_ms += HOUR_MS
    assert run(store) == []
    clock.time_ms += 1
    storage.time_ms = None
    assert run(store) == []
    storage.time_ms = lambda: clock.time_ms
    assert len(run(store)) == 1


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.LOSE_RESPONSE, Fault.FAIL])
def test_a_put_that_fails_is_repeated(clock: VirtualClock, fault: Fault) -> None:
    """Wherever it failed, a later run leaves the same."""
    store = new_store(HeapStorage(), clock)
    write(store)
    store.alter_topic("t", config={"retention.ms": 1})
    clock.time_ms += 1000
    for number in range(8):
        storage = store.storage.copy()  # type: ignore[attr-defined]
        with suppress(StorageError, ProcessStopped):
            run(another(store, FaultyStorage(storage, {number: fault})))
        run(another(store, storage))
        assert another(store, storage).segments("t") == []


LIMITS = {"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 2000}


def test_timestamps_outside_of_the_limits_are_refused(memory_storage: Storage) -> None:
    """Sent one by one or in a batch; nothing of a batch is taken. -1, no time, is none."""
    clock = VirtualClock(1_700_000_000_000)
    store = new_store(memory_storage, clock)
    store.alter_topic("t", config=LIMITS)
    now_ms = clock.now_ms()
    producer = store.producer()
    for wrong_ms, key in ((now_ms - 1001, "before"), (now_ms + 2001, "after")):
        with pytest.raises(InvalidTimestamp, match=rf"message\.timestamp\.{key}\.max\.ms"):
            producer.send("t", b"v", timestamp_ms=wrong_ms)
        batch = records(now_ms, wrong_ms)
        with pytest.raises(InvalidTimestamp, match=str(wrong_ms)):
            producer.send_batch("t", batch)
    for right_ms in (now_ms - 1000, now_ms + 2000, -1, None):
        producer.send("t", b"v", timestamp_ms=right_ms)
    producer.send_batch("t", records(now_ms - 1000, -1))
    clock.time_ms += 10**6
    producer.flush()
    assert store.scan("t").to_arrow().num_rows == 6


def test_limits_are_not_for_log_append_time(store: Store, clock: VirtualClock) -> None:
    """There is no limit by default, either."""
    with store.producer() as producer:
        producer.send("t", b"v", timestamp_ms=clock.now_ms() + 10**9)
    store.alter_topic("t", config={**LIMITS, "message.timestamp.type": "LogAppendTime"})
    with another(store).producer() as producer:
        producer.send("t", b"v", timestamp_ms=1)
    assert store.scan("t").to_arrow().num_rows == 2


def records(*timestamps_ms: int) -> pa.RecordBatch:
    columns = {"value": [b"v"] * len(timestamps_ms), "timestamp": pa.array(timestamps_ms)}
    return normalize(pa.RecordBatch.from_pydict(columns), now_ms=0)
