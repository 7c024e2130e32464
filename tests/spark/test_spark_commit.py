"""What the driver of a Spark job does with uploaded segments, when it is interrupted; no Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from txnlog.errors import InvalidTimestamp, UnknownTopicOrPartition, UploadExpired
from txnlog.log.uploads import UploadedSegment
from txnlog.segments.records import normalize
from txnlog.spark.batch import commit
from txnlog.spark.batch.rows_to_records import TopicRecords
from txnlog.state.transaction import ConsumedOffset
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write.coordinator import Coordinator
from txnlog.write.segment_uploads import SegmentUploader


class Interrupted(CountingStorage):
    """The first create of a name that contains ``part`` is interrupted, as by Ctrl-C."""

    part = "-"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.part in name:
            self.part = "-"
            raise KeyboardInterrupt
        return super().put_if_absent(name, data)


def uploaded(store: Store, topic: str) -> list[UploadedSegment]:
    uploader = SegmentUploader(store.storage, store.logs.topic_spec(topic), store.logs.clock)
    records = normalize(pa.record_batch({"value": [b"x"]}), now_ms=1)
    uploader.write(records, np.zeros(1, dtype=np.int32))
    return uploader.finish()


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_staged_write_is_read_again(partitions: int) -> None:
    """Also where segments share a file, as those of two partitions do here."""
    store = attach(HeapStorage(), create=True, clock=VirtualClock())
    store.topics.create("t", partitions=2)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), store.logs.clock)
    records = normalize(pa.record_batch({"value": [b"x", b"y"]}), now_ms=1)
    uploader.write(records, np.arange(2, dtype=np.int32) % partitions)
    segments = {"t": uploader.finish()}
    commit.put_staged(store.storage, "staging/t-000000.json", segments)
    assert (len({segment.stored.position for segment in segments["t"]}) > 1) == (partitions == 2)
    assert commit.read_staged(store.storage, "staging/t-000000.json").segments == segments
    commit.append(store, segments)
    assert store.scan("t").to_arrow().num_rows == 2


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("transactions/p/00000000000000000001", []),
        ("topics/t/log/00000000000000000001.json", []),
        ("transactions/p/00000000000000000002", []),
        (".commit", [b"x"]),
        ("transactions/p/00000000000000000003", [b"x"]),
    ],
)
def test_an_interrupt_deletes_nothing_that_is_committed(
    memory_storage: Storage, part: str, expected: list[bytes]
) -> None:
    """Before the decision it is aborted; after it the data stays, and others finish."""
    attach(memory_storage, create=True).topics.create("t")
    storage = Interrupted(memory_storage)
    store = attach(storage)
    segments = {"t": uploaded(store, "t")}
    storage.part = part
    with pytest.raises(KeyboardInterrupt):
        commit.commit_transaction(store, "p", 60_000, segments)
    fresh = attach(memory_storage)
    assert fresh.scan("t").to_arrow().column("value").to_pylist() == expected
    commit.commit_transaction(fresh, "p", 60_000, {"t": uploaded(fresh, "t")})
    assert fresh.scan("t").to_arrow().column("value").to_pylist() == [*expected, b"x"]


def test_what_one_topic_refuses_is_aborted_in_the_other_and_no_file_is_deleted(
    memory_storage: Storage,
) -> None:
    """The append to ``a`` has landed, so an entry names its file: read_uncommitted reads it."""
    store = attach(memory_storage, create=True)
    for topic in ("a", "b"):
        store.topics.create(topic)
    segments = {topic: uploaded(store, topic) for topic in ("a", "b")}
    attach(memory_storage).topics.delete("b")
    attach(memory_storage).topics.create("b")
    with pytest.raises(UnknownTopicOrPartition):
        commit.commit_transaction(store, "p", 60_000, segments)
    fresh = attach(memory_storage)
    assert fresh.transactions.describe("p").status == "CompleteAbort"
    assert fresh.scan("a").record_count == 0
    placed = fresh.scan("a", isolation_level="read_uncommitted").to_arrow()
    assert placed.column("value").to_pylist() == [b"x"]


def test_a_job_that_took_too_long_is_refused() -> None:
    """Vacuum has taken its uploads for left behind: nothing of it shows, and the id goes on."""
    clock = VirtualClock()
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    store = attach(storage, create=True, clock=clock)
    store.topics.create("t")
    late, plain = uploaded(store, "t"), uploaded(store, "t")
    clock.time_ms += 7 * 86_400_000
    assert len(attach(storage, clock=clock).maintain()) == 1
    with pytest.raises(UploadExpired):
        commit.commit_transaction(store, "p", 60_000, {"t": late})
    with pytest.raises(UploadExpired):
        commit.append(store, {"t": plain})
    commit.commit_transaction(store, "p", 60_000, {"t": uploaded(store, "t")})
    assert store.scan("t").to_arrow().num_rows == 1


@pytest.mark.parametrize("reads", [True, False], ids=["read", "only-write"])
@pytest.mark.parametrize("places", [True, False], ids=["placed", "begun"])
@pytest.mark.parametrize("consumes", [True, False], ids=["rows", "nothing"])
def test_only_what_a_read_has_begun_is_gone_on_with(
    reads: bool, places: bool, consumes: bool
) -> None:
    """A write that died has left its own open: the next one has its own, and its own time."""
    clock = VirtualClock()
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("t")
    dead = Coordinator(store.logs, "p", 60_000)
    dead.initialize()
    if reads:
        dead.begin([ConsumedOffset("g", "t", 0, None, 1)] if consumes else ())
    if places:
        dead.place({"t": uploaded(store, "t")})
    fresh = attach(store.storage, clock=clock)
    found = commit.find_open_transaction(fresh, "p")
    assert (found is not None) == (reads and (consumes or not places))
    if found is None:
        segments = {"t": uploaded(fresh, "t")}
        clock.sleep(130)
        assert attach(store.storage, clock=clock).scan("t").record_count == 0
        commit.commit_transaction(fresh, "p", 60_000, segments, found)
        assert attach(store.storage, clock=clock).scan("t").record_count == 1


def test_timestamps_outside_of_the_limits_are_refused(memory_storage: Storage) -> None:
    """In the task that writes them."""
    clock = VirtualClock()
    store = attach(memory_storage, create=True, clock=clock)
    store.topics.create("t", config={"message.timestamp.after.max.ms": 1000})
    records = TopicRecords(store.logs.topic_spec("t"), clock, "murmur2")

    def rows(timestamp_ms: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [b"x"], "timestamp": pa.array([timestamp_ms])})

    assert records(rows(clock.now_ms() + 1000))[0].num_rows == 1
    with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.after\.max\.ms"):
        records(rows(clock.now_ms() + 1001))
