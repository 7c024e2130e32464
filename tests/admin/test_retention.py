"""Retention: which segments go, as in Kafka, and what holds them."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest

from tests.support.steps import another, append, begin, new_store, send, values
from txnlog.admin.retention import RetentionDeletion, apply_retention
from txnlog.errors import InvalidTimestamp, StorageError
from txnlog.results import FutureRecords, Metric
from txnlog.segments.records import normalize
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_700_000_000_000)


pytestmark = pytest.mark.store(on="heap")


def write(store: Store, count: int = 5, *, age_ms: int = 0, topic: str = "t") -> None:
    """One segment in partition 0, of so many records, the newest of this age."""
    with store.producer() as producer:
        for number in range(count):
            at_ms = store.logs.clock.now_ms() - age_ms - (count - 1 - number)
            producer.send(topic, b"value", None, 0, at_ms)


def run(store: Store, topic: str = "t", **options: bool) -> list[RetentionDeletion]:
    steps = apply_retention(store.logs, topic, store.logs.clock.now_ms(), **options)
    return [step for step in steps if isinstance(step, RetentionDeletion)]


def segment_count(store: Store) -> int:
    return len(another(store).topics.segments("t"))


def sizes(store: Store) -> list[int]:
    return [segment.size_bytes for segment in store.topics.segments("t")]


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
    store.topics.alter("t", config={"retention.ms": 3 * HOUR_MS})
    (done,) = run(store)
    assert (done.log_start_offset, done.new_log_start_offset, done.segment_count) == (0, 5, 1)
    assert segment_count(store) == 2
    clock.time_ms += 1
    (done,) = run(store)
    assert (done.log_start_offset, done.new_log_start_offset) == (5, 10)
    assert run(store) == []
    assert store.topics.describe("t").partitions[0].log_start_offset == 10
    assert store.scan("t").to_arrow().num_rows == 5


def test_it_stops_at_the_first_segment_that_is_not_old_enough(store: Store) -> None:
    """What is old behind a newer one stays, as in Kafka."""
    for age_h in (4, 1, 4):
        write(store, age_ms=age_h * HOUR_MS)
    store.topics.alter("t", config={"retention.ms": 2 * HOUR_MS})
    assert [done.new_log_start_offset for done in run(store)] == [5]
    assert segment_count(store) == 2


def test_all_segments_may_go_by_time(store: Store, clock: VirtualClock) -> None:
    """The newest one too; what comes next goes on behind."""
    write(store)
    write(store)
    store.topics.alter("t", config={"retention.ms": 1})
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
    store.topics.alter("t", config={"retention.bytes": size * kept // 5})
    run(store)
    assert segment_count(store) == left
    assert run(store) == []


def test_by_size_and_by_time_together(store: Store) -> None:
    """Whatever either of the two lets go."""
    for age_h in (4, 1, 1):
        write(store, age_ms=age_h * HOUR_MS)
    config = {"retention.ms": 2 * HOUR_MS, "retention.bytes": sizes(store)[2]}
    store.topics.alter("t", config=config)
    assert [done.new_log_start_offset for done in run(store)] == [10]


def test_nothing_goes_beyond_the_last_stable_offset(store: Store, clock: VirtualClock) -> None:
    """An open transaction keeps its records and what lies behind them; ended, they go."""
    config = {"retention.ms": 1, "retention.bytes": 0}
    store.topics.alter("t", config=config)
    write(store)
    producer = begin(store, timeout_ms=900_000)
    send(producer, b"undecided")
    write(store)
    clock.time_ms += 60_000
    assert [done.new_log_start_offset for done in run(store)] == [5]
    producer.abort_transaction()
    assert [done.new_log_start_offset for done in run(store)] == [11]


def test_an_old_record_that_is_undecided_stays_before_a_young_one(
    store: Store, clock: VirtualClock
) -> None:
    """By time alone it would go, and the log would start behind the last stable offset."""
    store.topics.alter("t", config={"retention.ms": 1000})
    write(store)
    producer = begin(store, timeout_ms=900_000)
    send(producer, b"undecided")
    clock.time_ms += 60_000
    append(store, b"young")
    assert [done.new_log_start_offset for done in run(store)] == [5]
    producer.abort_transaction()
    assert [done.new_log_start_offset for done in run(store)] == [6]


def test_all_partitions_of_a_topic_move_in_one_entry(clock: VirtualClock) -> None:
    """So a snapshot sees all of it or nothing; a topic without work gets no entry."""
    store = new_store(HeapStorage(), clock, {"t": 3, "quiet": 1}, None)
    for partition in (0, 1):
        append(store, b"x", partition=partition)
    for topic in ("t", "quiet"):
        store.topics.alter(topic, config={"retention.ms": 1})
    clock.time_ms += 1000
    before = {topic: [*store.topics.log(topic)] for topic in ("t", "quiet")}
    assert {done.partition for done in run(store)} == {0, 1}
    assert run(store, "quiet") == []
    after = [*store.topics.log("t")]
    assert len(after) == len(before["t"]) + 1
    assert after[-1].entry.log_start_offsets == {0: 1, 1: 1}  # type: ignore[union-attr]
    assert len([*store.topics.log("quiet")]) == len(before["quiet"])


def test_a_dry_run_tells_the_same_and_changes_nothing(store: Store, clock: VirtualClock) -> None:
    write(store)
    store.topics.alter("t", config={"retention.ms": 1})
    clock.time_ms += 1000
    told = run(store, dry_run=True)
    assert segment_count(store) == 1
    assert run(store) == told
    assert segment_count(store) == 0


def test_log_append_time_counts_likewise(store: Store, clock: VirtualClock) -> None:
    """Whatever the producer has stamped the record with."""
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": HOUR_MS}
    store.topics.alter("t", config=config)
    write(store, age_ms=100 * HOUR_MS)
    assert run(store) == []
    clock.time_ms += HOUR_MS + 1
    assert [done.new_log_start_offset for done in run(store)] == [5]


def test_records_without_a_time_have_that_of_their_file(clock: VirtualClock) -> None:
    """As in Kafka; where the storage tells none they stay."""
    storage = HeapStorage()
    store = new_store(storage, clock)
    store.topics.alter("t", config={"retention.ms": HOUR_MS})
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
    store.topics.alter("t", config={"retention.ms": 1})
    clock.time_ms += 1000
    for number in range(8):
        storage = store.storage.copy()  # type: ignore[attr-defined]
        with suppress(StorageError, ProcessStopped):
            run(another(store, FaultyStorage(storage, {number: fault})))
        run(another(store, storage))
        assert another(store, storage).topics.segments("t") == []


LIMITS = {"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 2000}


def test_timestamps_outside_of_the_limits_are_refused(memory_storage: Storage) -> None:
    """Sent one by one or in a batch; nothing of a batch is taken. -1, no time, is none."""
    clock = VirtualClock(1_700_000_000_000)
    store = new_store(memory_storage, clock)
    store.topics.alter("t", config=LIMITS)
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


def test_limits_are_not_for_log_append_time(store: Store) -> None:
    """The time that a record was sent with is not used."""
    store.topics.alter("t", config={**LIMITS, "message.timestamp.type": "LogAppendTime"})
    with another(store).producer() as producer:
        producer.send("t", b"v", timestamp_ms=1)
        producer.send("t", b"v", timestamp_ms=10**15)
    assert store.scan("t").to_arrow().num_rows == 2


# -- records from the future ---------------------------------------------------------------------


def test_records_from_the_future_are_refused(store: Store, clock: VirtualClock) -> None:
    """As in Kafka by more than an hour; the record is named, and a wrong unit is guessed."""
    now_ms = clock.now_ms()
    with store.producer() as producer:
        producer.send("t", b"v", timestamp_ms=now_ms + HOUR_MS)
        producer.send("t", b"old", timestamp_ms=0)
        with pytest.raises(InvalidTimestamp, match=r"after\.max\.ms of topic 't' .* 3600000"):
            producer.send("t", b"v", timestamp_ms=now_ms + HOUR_MS + 1)
        with pytest.raises(InvalidTimestamp, match=r"record 2 of 4 .* looks like microseconds"):
            producer.send_batch("t", records(now_ms, -1, now_ms * 1000, now_ms))
    assert store.scan("t").to_arrow().num_rows == 2
    store.topics.alter("t", config={"message.timestamp.after.max.ms": 10**18})
    with another(store).producer() as producer:
        producer.send("t", b"v", timestamp_ms=now_ms * 1000)
    assert store.scan("t").to_arrow().num_rows == 3


@pytest.fixture
def future(clock: VirtualClock) -> Store:
    """A storage with a clock; the second of four segments was stamped in microseconds."""
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    limit = {"message.timestamp.after.max.ms": 10**18, "retention.ms": HOUR_MS}
    store = new_store(storage, clock)
    store.topics.alter("t", config=limit)
    for number in range(4):
        with store.producer() as producer:
            at_ms = clock.time_ms * 1000 if number == 1 else clock.time_ms
            producer.send("t", b"%d" % number, timestamp_ms=at_ms)
        clock.time_ms += 1000
    return store


def test_retention_passes_by_what_lies_in_the_future(
    future: Store, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """By the time of its upload, and it says so; where the storage tells none, it stays."""
    clock.time_ms += HOUR_MS - 3000
    (deleted,) = run(future)
    assert (deleted.new_log_start_offset, deleted.segment_count) == (1, 1)
    clock.time_ms += 1000
    caplog.clear()
    named, again = apply_retention(future.logs, "t", clock.time_ms, dry_run=True)
    assert isinstance(named, FutureRecords)
    assert (named.partition, named.base_offset, named.end_offset) == (0, 1, 2)
    assert isinstance(again, RetentionDeletion)
    assert again.new_log_start_offset == 2
    assert "the time 1700000001000000, which lies in the future" in caplog.text
    assert isinstance(future.storage, HeapStorage)
    told = future.storage.time_ms
    future.storage.time_ms = None
    assert [type(step) for step in apply_retention(future.logs, "t", clock.time_ms)] == [
        FutureRecords
    ]
    future.storage.time_ms = told
    steps = another(future).maintain("t")
    assert [type(step) for step in steps] == [FutureRecords, RetentionDeletion]
    clock.time_ms += HOUR_MS
    with another(future).producer() as producer:
        for _ in range(40):  # with a checkpoint, which makes a writer look, too
            producer.send("t", b"new")
            producer.flush()
    assert b"2" not in values(another(future))
    assert b"new" in values(another(future))


@pytest.mark.parametrize("is_ahead", [True, False])
def test_compaction_goes_by_the_files_time(
    future: Store, clock: VirtualClock, *, is_ahead: bool
) -> None:
    """Where a record's is in the future: everything after it would wait for ever. Or is none."""
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": HOUR_MS, "retention.ms": -1}
    future.topics.create("c", config={**config, "message.timestamp.after.max.ms": 10**18})
    for at_ms in (clock.time_ms * 1000 if is_ahead else -1, clock.time_ms if is_ahead else -1):
        with future.producer() as producer:
            producer.send("c", b"v", b"key", timestamp_ms=at_ms)
    assert another(future).maintenance.compact("c") == []
    clock.time_ms += HOUR_MS + 1
    (done,) = another(future).maintenance.compact("c")
    assert (done.record_count, done.compacted_record_count) == (2, 1)


def test_what_lies_in_the_future_is_named(future: Store, clock: VirtualClock) -> None:
    """By the doctor, as no damage; by metrics and descriptions."""
    (found,) = [f for f in future.examine(["t"], with_probe=False) if f.state == "note"]
    assert found.check == "data"
    assert "the offsets [1, 2) of partition 0 has the time 1700000001000000" in found.detail
    (part,) = future.topics.describe("t").partitions
    assert part.newest_timestamp_ms == 1_700_000_001_000_000
    ahead = {
        metric.name: metric.value
        for metric in future.metrics()
        if isinstance(metric, Metric) and metric.name == "txnlog_partition_future_seconds"
    }
    assert ahead == {
        "txnlog_partition_future_seconds": (1_700_000_001_000_000 - clock.time_ms) / 1000
    }


def records(*timestamps_ms: int) -> pa.RecordBatch:
    columns = {"value": [b"v"] * len(timestamps_ms), "timestamp": pa.array(timestamps_ms)}
    return normalize(pa.RecordBatch.from_pydict(columns), now_ms=0)
