"""Reads of many segments: their requests overlap, and are no more than one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from txnlog.clock import SystemClock
from txnlog.errors import CorruptRecord
from txnlog.names import TopicPartition
from txnlog.segments.reader import read_segment
from txnlog.storage import threads
from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage

SEGMENTS = 60


class MeetingStorage(ForwardingStorage):
    """The first requests of a kind wait for each other, so that they must overlap."""

    def __init__(self, inner: Storage, together: int) -> None:
        super().__init__(inner)
        self.running = self.most = self.begun = 0
        self.lock = threading.Lock()
        self.together = together
        self.barrier = threading.Barrier(together, timeout=60)

    def _meet(self) -> None:
        with self.lock:
            self.begun += 1
            self.running += 1
            self.most = max(self.most, self.running)
            meets = self.begun <= self.together
        if meets:
            self.barrier.wait()
        with self.lock:
            self.running -= 1

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        self._meet()
        return super().get_range(name, start, stop)


class MeetingListings(MeetingStorage):
    """The same of listings of logs, once it is told to."""

    meeting = False

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self.inner.get_range(name, start, stop)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        if self.meeting and folder.startswith("groups/"):
            self._meet()
        return super().list_names(folder, start_after)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All requests are taken for long ones. Afterwards all threads end."""
    monkeypatch.setattr(threads, "_WORTH_A_THREAD_S", -1.0)
    yield
    left = [t for t in threading.enumerate() if t.name.startswith("txnlog-ahead")]
    for thread in left:
        thread.join(60)
    assert not [thread for thread in left if thread.is_alive()]


def _fill(storage: Storage, segments: int = SEGMENTS, *, record_format: str = "columns") -> Store:
    """A topic of two partitions with small segments, each of a commit of its own."""
    store = attach(storage, create=True, clock=SystemClock())
    store.topics.create("t", partitions=2, config={"record.format": record_format})
    for number in range(segments):
        with store.producer() as producer:
            producer.send("t", b"%d" % number, partition=number % 2)
            producer.send("t", b"and more", partition=number % 2)
    return store


def _values(store: Store) -> list[bytes]:
    found: list[bytes] = store.scan("t", columns=["value"]).to_arrow()["value"].to_pylist()
    return found


def test_requests_overlap_and_are_no_more(memory_storage: Storage, waiting: None) -> None:
    """One for each small segment, up to 16 at a time, and the records in their order."""
    _fill(memory_storage)
    expected = [
        value
        for turn in (0, 1)
        for n in range(turn, SEGMENTS, 2)
        for value in (b"%d" % n, b"and more")
    ]
    meeting = MeetingStorage(memory_storage, 4)
    assert _values(attach(meeting, clock=SystemClock())) == expected
    assert meeting.begun == SEGMENTS
    assert 4 <= meeting.most <= PARALLEL_REQUESTS


class TogetherStorage(ForwardingStorage):
    """Small reads are best asked for together, eight at a time; remembers how many there were."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.asked: list[int] = []

    def small_reads_at_once(self) -> int:
        return 8

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        self.asked.append(1)
        return super().get_range(name, start, stop)

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        self.asked.append(len(ranges))
        return super().get_ranges(ranges)


@pytest.mark.parametrize("record_format", ["columns", "parquet"])
def test_small_segments_are_asked_for_together(heap: HeapStorage, record_format: str) -> None:
    """No request more; the first calls ask for few, since a reader may look at no others."""
    _fill(heap, record_format=record_format)
    together = TogetherStorage(heap)
    store = attach(together, clock=SystemClock())
    assert _values(store) == _values(attach(heap, clock=SystemClock()))
    assert together.asked == [1, 2, 4, 8, 8, 8, 8, 8, 8, 5]
    together.asked.clear()
    next(store.scan("t").to_batches())
    assert together.asked == [1]


def test_what_is_not_small_is_asked_for_alone(heap: HeapStorage) -> None:
    """It is on its way beside others as before."""
    store = attach(heap, create=True, clock=SystemClock())
    store.topics.create("t")
    sizes = [1, 1, 100_000, 1, 1, 1]
    noise = np.random.default_rng(1)
    with store.producer() as producer:
        for size in sizes:
            producer.send("t", noise.bytes(size))
            producer.flush()
    together = TogetherStorage(heap)
    found = _values(attach(together, clock=SystemClock()))
    assert [len(value) for value in found] == sizes
    assert together.asked == [1, 1, 1, 3]


def test_a_segment_that_is_gone_is_told_by_its_own_name(heap: HeapStorage) -> None:
    """Among others that are read with it; what comes before it is read."""
    _fill(heap, 20)
    scan = attach(TogetherStorage(heap), clock=SystemClock()).scan("t")
    gone = scan.ranges[5].paths.log
    heap.delete([gone])
    batches = scan.to_batches()
    assert [next(batches).num_rows for _ in range(5)] == [2] * 5
    with pytest.raises(CorruptRecord, match=f"segment {gone} is gone"):
        next(batches)


def test_a_reader_that_leaves_early_stops_asking(memory_storage: Storage, waiting: None) -> None:
    """An iterator that is closed or forgotten leaves no thread, and few requests too many."""
    _fill(memory_storage)
    counting = CountingStorage(memory_storage)
    scan = attach(counting, clock=SystemClock()).scan("t")
    counting.take()
    batches = scan.to_batches()
    next(batches)
    next(batches)
    del batches
    assert 2 <= counting.take()["get_range"] <= 8
    assert scan.head(3).num_rows == 3
    assert counting.take() == {"get_range": 4}  # two segments of each partition, not one more
    assert scan.tail(3).num_rows == 3
    assert counting.take() == {"get_range": 4}


def test_consumers_read_ahead_and_end_cleanly(memory_storage: Storage, waiting: None) -> None:
    """A poll overlaps the requests of the segments it reads; to seek or close ends what runs."""
    _fill(memory_storage)
    meeting = MeetingStorage(memory_storage, 4)
    store = attach(meeting, clock=SystemClock())
    consumer = store.consumer("t", auto_offset_reset="earliest")
    assert len(consumer.poll(max_records=2 * SEGMENTS)) == 2 * SEGMENTS
    assert meeting.begun == SEGMENTS
    consumer.seek(TopicPartition("t", 0), 0)
    assert len(consumer.poll(max_records=3)) == 3
    consumer.seek(TopicPartition("t", 0), 1)
    assert [record.offset for record in consumer.poll(max_records=3)] == [1, 2, 3]
    consumer.close()


@pytest.mark.parametrize("record_format", ["columns", "kafka"])
def test_large_segments_are_read_in_chunks_that_overlap(
    memory_storage: Storage, waiting: None, record_format: str
) -> None:
    """The chunks of a whole segment are known before: no more than a reader by itself asks for."""
    store = attach(memory_storage, create=True, clock=SystemClock())
    config = {"compression.type": "none", "record.format": record_format}
    store.topics.create("t", config=config)
    rng = np.random.default_rng(3)
    values = [rng.bytes(100_000) for _ in range(300)]
    with store.producer() as producer:
        producer.send_batch("t", pa.record_batch({"value": values}), partition=0)
    (part,) = store.scan("t").ranges
    reads: list[tuple[int, int]] = []
    file = part.open(memory_storage)

    def read(start: int, stop: int) -> bytes:
        reads.append((start, stop))
        return memory_storage.get_range(part.paths.log, start, stop)

    object.__setattr__(file, "read", read)
    alone = sum(batch.record_count for batch in read_segment(file, columns=[]))
    meeting = MeetingStorage(memory_storage, 4)
    assert _values(attach(meeting, clock=SystemClock())) == values
    assert alone == 300
    assert 7 <= meeting.begun <= len(reads)
    # Parts of it are read as they were: from an index, chunk by chunk.
    for start, stop in ((0, 200), (150, 300), (17, 18), (120, 250), (299, 300)):
        scan = store.scan("t", {0: start}, {0: stop}, columns=["value"])
        assert scan.to_arrow()["value"].to_pylist() == values[start:stop]


@pytest.mark.parametrize("sizes", [[9_000_000] * 3, [10] * 9 + [9_000_000] + [100_000] * 90])
def test_batches_larger_than_a_chunk(
    memory_storage: Storage, waiting: None, sizes: list[int]
) -> None:
    """They are put together from chunks, or asked for whole where most are that large."""
    store = attach(memory_storage, create=True, clock=SystemClock())
    config = {"compression.type": "none", "max.message.bytes": str(20_000_000)}
    store.topics.create("t", config=config)
    rng = np.random.default_rng(3)
    values = [rng.bytes(size) for size in sizes]
    with store.producer() as producer:
        producer.send_batch("t", pa.record_batch({"value": values}), partition=0)
    counting = CountingStorage(memory_storage)
    reader = attach(counting, clock=SystemClock())
    scan = reader.scan("t", columns=["value"])
    counting.take()
    assert scan.to_arrow()["value"].to_pylist() == values
    assert counting.take()["get_range"] <= sum(sizes) / (4 << 20) + 2


def test_damage_shows_after_what_comes_before_it(memory_storage: Storage, waiting: None) -> None:
    """A segment that is gone is an error in its turn, though it was asked for long before."""
    store = _fill(memory_storage)
    doomed = store.scan("t").ranges[9]
    memory_storage.delete([doomed.paths.log])
    batches = store.scan("t").to_batches()
    assert sum(next(batches).num_rows for _ in range(9)) == 18
    with pytest.raises(CorruptRecord, match=r"is gone, with offsets 18 to 19 of t:0"):
        next(batches)


def test_verbs_over_many_groups_open_several_at_once(
    memory_storage: Storage, waiting: None
) -> None:
    """The logs of groups are listed together, and each of their topics once for all of them."""
    store = _fill(memory_storage, 2)
    consumers = [store.consumer("t", group_id=f"g{n:02}") for n in range(30)]
    for consumer in consumers:
        consumer.commit({TopicPartition("t", 0): 1})
    found: list[Any] = []
    for verb in ("list", "describe_all"):
        meeting = MeetingListings(memory_storage, 4)
        fresh = attach(meeting, clock=SystemClock())
        meeting.meeting = True
        found = [*getattr(fresh.groups, verb)()]
        assert len(found) == 30
        assert 4 <= meeting.most <= PARALLEL_REQUESTS
    assert [group.group_id for group in found] == [f"g{n:02}" for n in range(30)]
    assert {group.lag for group in found} == {1}
    counting = CountingStorage(memory_storage)
    fresh = attach(counting, clock=SystemClock())
    counting.take()
    assert len([*fresh.groups.describe_all()]) == 30
    # A listing of each group; of the topic one of its manifests, and one of its log.
    assert counting.take()["list"] == 30 + 2
