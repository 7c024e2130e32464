"""Files that segments of several partitions share: they go when no partition needs them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.support.steps import another, append, begin, maintain, new_store, values
from txnlog import TopicPartition
from txnlog.admin import joinable_segments, merge_topic
from txnlog.admin.maintenance import MaintenanceStep
from txnlog.errors import OffsetOutOfRange, StorageError, TxnlogError, UploadExpired
from txnlog.log import manifests, topic_log
from txnlog.log.uploads import UploadCheck
from txnlog.results import FileDeletion, FileRetirement
from txnlog.state.segment import Segment
from txnlog.store import Store
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

PARTITIONS = 3
WEEK_MS = 7 * 24 * 3_600_000


pytestmark = [pytest.mark.store(topics={"t": PARTITIONS}, on="heap"), pytest.mark.rule("V1", "V2")]


def append_to_each(store: Store, value: bytes) -> None:
    """A record to each partition, all in one file."""
    with store.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send("t", value, partition=partition)


def trim(store: Store, partition: int, offset: int) -> None:
    store.topics.delete_records({TopicPartition("t", partition): offset})


def shared(heap: HeapStorage) -> list[str]:
    return [path for path, _ in heap.list_all("topics/t/data")]


def notes(heap: HeapStorage) -> list[str]:
    return [path for path, _ in heap.list_all("topics/t/retired")]


def deleted(steps: Sequence[MaintenanceStep]) -> list[tuple[str, str]]:
    return [
        (step.reason, path)
        for step in steps
        if isinstance(step, FileDeletion)
        for path in step.paths
    ]


def settle(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all that was appended to manifests."""
    for module in (manifests, topic_log):
        monkeypatch.setattr(module, "KEPT_ENTRIES", 0)
        monkeypatch.setattr(module, "SETTLED_AT_ONCE", 1)
    log = store.logs.topic("t")
    log.refresh()
    log.checkpoint()
    assert log._state.settled is not None
    assert not any(partition.segments for partition in log._state.partitions)


@pytest.mark.parametrize("settled", [False, True])
def test_a_file_stays_until_its_last_partition_lets_it_go(
    store: Store,
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    settled: bool,
) -> None:
    """Weeks apart; then readers that are pinned have the delay, from the last deletion on."""
    append_to_each(store, b"a")
    append_to_each(store, b"b")
    first, second = shared(heap)
    if settled:
        settle(store, monkeypatch)
    for partition in (2, 0):
        trim(another(store), partition, 1)
        clock.time_ms += 2 * WEEK_MS
        assert maintain(store) == []
    pinned = another(store).scan("t")
    assert notes(heap) == []
    trim(another(store), 1, 1)
    assert len(notes(heap)) == 1
    clock.time_ms += WEEK_MS - 1
    assert maintain(store) == []
    assert values(another(store)) == [b"b"] * 3
    assert pinned.to_arrow()["value"].to_pylist() == [b"b", b"a", b"b", b"b"]
    clock.time_ms += 1
    assert {path for _, path in deleted(maintain(store))} <= {first, second}
    assert len(shared(heap)) == 1
    assert notes(heap) == []
    assert values(another(store)) == [b"b"] * 3
    with pytest.raises(OffsetOutOfRange):
        pinned.to_arrow()


@pytest.mark.parametrize("settled", [False, True])
def test_partitions_that_let_go_together(
    store: Store, heap: HeapStorage, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    """One entry lets go of all: the file is noted once."""
    append_to_each(store, b"a")
    (path,) = shared(heap)
    if settled:
        settle(store, monkeypatch)
    store.topics.alter("t", config={"file.delete.delay.ms": 0})
    store.topics.delete_records(
        {TopicPartition("t", partition): 1 for partition in range(PARTITIONS)}
    )
    (note,) = notes(heap)
    assert heap.get(note).count(b'[-1,"') == 1
    assert deleted(maintain(store)) == [("deleted records", path)]
    assert shared(heap) == notes(heap) == []


def test_a_last_deletion_that_nobody_noted_is_found_by_age(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """The earlier ones have left no note that could be mistaken for it."""
    append_to_each(store, b"a")
    (path,) = shared(heap)
    trim(store, 0, 1)
    trim(store, 1, 1)
    clock.time_ms += 10 * WEEK_MS
    trim(store, 2, 1)
    heap.delete(notes(heap))
    (found,) = maintain(store)
    assert isinstance(found, FileRetirement)
    assert found.paths == (path,)
    clock.time_ms += WEEK_MS - 1
    assert maintain(store) == []
    clock.time_ms += 1
    assert deleted(maintain(store)) == [("never placed", path)]


def test_retention_lets_go_partition_by_partition(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Where one partition's records are younger, the file stays."""
    now_ms = clock.time_ms
    store.topics.alter("t", config={"message.timestamp.after.max.ms": WEEK_MS})
    with store.producer() as producer:
        for partition in range(PARTITIONS):
            young = now_ms + (WEEK_MS if partition == 1 else 0)
            producer.send("t", b"%d" % partition, partition=partition, timestamp_ms=young)
    store.topics.alter("t", config={"retention.ms": 1000, "file.delete.delay.ms": 0})
    clock.time_ms += WEEK_MS
    maintain(store)
    assert len(shared(heap)) == 1
    assert values(another(store)) == [b"1"]
    clock.time_ms += 2000
    maintain(store)
    assert shared(heap) == []


def test_aborted_and_undecided_records_keep_their_file(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """As those of a file of their own do."""
    for how in ("aborted", "open"):
        producer = begin(store, how, timeout_ms=900_000)
        for partition in range(PARTITIONS):
            producer.send("t", how.encode(), partition=partition)
        producer.flush()
        if how == "aborted":
            producer.abort_transaction()
    before = shared(heap)
    assert len(before) == 2
    clock.time_ms += 10 * WEEK_MS
    for _ in range(3):
        assert deleted(maintain(store)) == []
        clock.time_ms += WEEK_MS
    assert shared(heap) == before


def test_what_was_never_placed_goes_by_its_age(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """And a writer that has slept over it is told."""
    producer = store.producer()
    for partition in range(PARTITIONS):
        producer.send("t", b"late", partition=partition)
    late = producer._records.finish()["t"]
    assert len({segment.stored.name for segment in late}) == 1
    clock.time_ms += WEEK_MS
    heap.delete(notes(heap))
    assert [reason for reason, _ in deleted(maintain(store))] == ["never placed"]
    with pytest.raises(UploadExpired, match="/shared/"):
        store.logs.topic("t").place(late)


def test_a_note_of_the_file_is_enough_to_refuse_it(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """The file is there still: whoever has noted it is about to delete it."""
    append_to_each(store, b"a")
    trim(store, 1, 1)
    producer = store.producer()
    for partition in range(PARTITIONS):
        producer.send("t", b"late", partition=partition)
    late = producer._records.finish()["t"]
    clock.time_ms += WEEK_MS
    (found,) = maintain(store)
    assert isinstance(found, FileRetirement)
    assert len(shared(heap)) == 2
    with pytest.raises(UploadExpired, match="/shared/"):
        store.logs.topic("t").place(late)


def test_a_deleted_topic_takes_shared_files_along(store: Store, heap: HeapStorage) -> None:
    """Each once, also where a partition had let go of its part."""
    append_to_each(store, b"a")
    append_to_each(store, b"b")
    append(store, b"own", partition=1)
    trim(store, 0, 2)
    faulty = FaultyStorage(heap)
    another(store, faulty).topics.delete("t")
    assert "delete 3 objects" in faulty.requests
    assert shared(heap) == []


def merge(store: Store, monkeypatch: pytest.MonkeyPatch, only: int) -> None:
    """Merge the segments of one partition, as a process that starts now."""
    real = merge_topic.choose_runs
    partitions = itertools.count()

    def choose(*arguments: Any, **options: Any) -> list[list[Segment]]:
        return real(*arguments, **options) if next(partitions) == only else []

    with monkeypatch.context() as patched:
        patched.setattr(joinable_segments, "LEAST_SEGMENTS", 2)
        patched.setattr(merge_topic, "choose_runs", choose)
        (done,) = merge_topic.merge_topic(another(store).logs, "t")
    assert (done.partition, done.merged_count) == (only, 1)


@pytest.mark.parametrize("settled", [False, True])
def test_merging_lets_go_of_a_file_when_its_last_segment_is_merged(
    store: Store,
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    settled: bool,
) -> None:
    """Weeks apart, one by one; a partition trims instead. The delay counts from the last."""
    append_to_each(store, b"a")
    append_to_each(store, b"b")
    before = shared(heap)
    assert len(before) == 2
    if settled:
        settle(store, monkeypatch)
    merge(store, monkeypatch, 2)
    trim(another(store), 1, 2)
    if settled:
        log = another(store).logs.fresh_topic("t")
        append(store, b"more", partition=0)
        log.refresh()
        log.checkpoint()
    clock.time_ms += 2 * WEEK_MS
    assert maintain(store) == []
    assert notes(heap) == []
    pinned = another(store).scan("t")
    expected = pinned.to_arrow()
    merge(store, monkeypatch, 0)
    (note,) = notes(heap)
    assert heap.get(note).count(b'[-1,"') == 2
    clock.time_ms += WEEK_MS - 1
    assert maintain(store) == []
    assert pinned.to_arrow() == expected
    clock.time_ms += 1
    gone = deleted(maintain(store))
    assert {("rewritten", path) for path in before} <= {*gone}
    assert not {*before} & {*shared(heap)}
    assert another(store).scan("t").to_arrow() == expected
    assert not [f for f in another(store).examine(with_contents=True) if f.state == "damage"]


def test_old_segments_in_shared_files_stay_while_the_new_one_is_lost(
    store: Store, heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are all that is left of its records (V3)."""
    append_to_each(store, b"a")
    append_to_each(store, b"b")
    before = shared(heap)
    for partition in range(PARTITIONS):
        merge(store, monkeypatch, partition)
    new = [path for path in shared(heap) if path not in before]
    (lost,) = (path for path in new if path.startswith("topics/t/data/1/"))
    data = heap.get(lost)
    heap.delete([lost])
    clock.time_ms += 3 * WEEK_MS
    maintain(store)
    assert {*before} <= {*shared(heap)}
    heap.put(lost, data)
    clock.time_ms += 3 * WEEK_MS
    assert {path for _, path in deleted(maintain(store))} == {*before}
    assert values(another(store)) == [b"a", b"b"] * PARTITIONS


@pytest.mark.parametrize("order", [*itertools.permutations(range(PARTITIONS))])
def test_segments_that_are_placed_again_are_found_in_shared_files(
    store: Store,
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[int, ...],
) -> None:
    """Where a rewriter slept, the old ones hold the records again, until others do.

    Of which partition first, and of which last: a reader that is pinned has the delay.
    """
    append_to_each(store, b"a")
    append_to_each(store, b"b")
    before = shared(heap)
    with monkeypatch.context() as patched:
        # Behind the entry: what was uploaded is gone.
        error = StorageError("gone")
        error.retriable = False

        def after(check: UploadCheck, number: int | None) -> None:
            raise error

        patched.setattr(UploadCheck, "after", after)
        with pytest.raises(StorageError, match="gone"):
            merge(store, patched, 1)
    segments = another(store).topics.segments("t", 1)
    assert sorted(segment.paths.log for segment in segments) == before
    assert {segment.position > 0 for segment in segments} == {True}
    assert values(another(store)) == [b"a", b"b"] * PARTITIONS
    for partition in order[:-1]:
        merge(store, monkeypatch, partition)
    assert notes(heap) == []
    clock.time_ms += 3 * WEEK_MS
    assert not {*before} & {path for _, path in deleted(maintain(store))}
    assert values(another(store)) == [b"a", b"b"] * PARTITIONS
    pinned = another(store).scan("t")
    trim(another(store), order[-1], 2)
    clock.time_ms += WEEK_MS - 1
    maintain(store)
    assert pinned.to_arrow().num_rows == 2 * PARTITIONS
    for _ in range(3):
        clock.time_ms += 3 * WEEK_MS
        maintain(store)
    assert not {*before} & {*shared(heap)}
    assert values(another(store)) == [b"a", b"b"] * (PARTITIONS - 1)


@pytest.mark.parametrize(
    "fault", [pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow), Fault.STOP_AFTER, Fault.FAIL]
)
def test_a_fault_at_each_request_of_a_trim(fault: Fault) -> None:
    """Whatever is left undone, nothing that is needed goes, and in the end nothing is left."""
    number = 0
    while True:
        clock = VirtualClock()
        storage = HeapStorage()
        storage.time_ms = lambda clock=clock: clock.time_ms
        store = new_store(storage, clock, {"t": PARTITIONS})
        append_to_each(store, b"a")
        trim(store, 0, 1)
        trim(store, 1, 1)
        faulty = FaultyStorage(storage, {number: fault})
        with suppress(ProcessStopped, TxnlogError):
            trim(another(store, faulty), 2, 1)
        if len(faulty.requests) <= number:
            return
        left = values(another(store))
        assert left in ([], [b"a"])
        for _ in range(4):
            clock.time_ms += WEEK_MS
            maintain(store)
        assert values(another(store)) == left
        assert len(shared(storage)) == len(left)
        number += 1
