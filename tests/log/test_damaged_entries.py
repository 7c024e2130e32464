"""Entries of a topic's log that are damaged, missing or contradict each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.log.proposing import Losing, propose
from tests.support.steps import (
    another,
    append,
    begin,
    begin_with,
    begin_with_offsets,
    checkpoint,
    new_store,
    send,
    values,
)
from txnlog import TopicPartition
from txnlog.errors import CorruptEntry
from txnlog.log.state_log import StateLog
from txnlog.names import LogFile
from txnlog.state.segment import SegmentEntry, StoredSegment
from txnlog.state.topic_entries import Append
from txnlog.storage import envelope
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("L1", "L3")


@pytest.mark.parametrize("position", [0, 3, 12, 25, 40, 90, -2])
def test_a_damaged_entry_is_reported_with_its_path(store: Store, position: int) -> None:
    """One flipped bit anywhere in an entry: damage is reported, never wrong data."""
    append(store, b"x")
    path = "topics/t/log/00000000000000000001.json"
    damaged = bytearray(store.storage.get(path))
    damaged[position] ^= 1
    store.storage.delete([path])
    store.storage.put(path, bytes(damaged))
    with pytest.raises(CorruptEntry, match=path):
        values(another(store))


def test_a_missing_entry_is_reported(store: Store) -> None:
    """A hole in a log without a checkpoint behind it is damage, not the end."""
    for turn in range(3):
        append(store, b"%d" % turn)
    store.storage.delete(["topics/t/log/00000000000000000002.json"])
    with pytest.raises(CorruptEntry, match=r"0{19}2\.json is missing"):
        values(another(store))


def bundled(store: Store) -> None:
    """A transaction commits the second of two appends in a file."""
    propose(store, b"of another")
    producer = begin(another(store, Losing(store)), "b")
    send(producer, b"of the transaction")
    producer.commit_transaction()


def damaged_checkpoint(store: Store) -> None:
    """The newest entry has no marker, and the checkpoint beside it cannot be read."""
    append(store, b"plain")
    checkpoint(store)
    log = store.logs.topic("t").log
    store.storage.delete([log.path(store.logs.topic("t").state.newest_file, LogFile.CHECKPOINT)])
    store.storage.put(log.path(store.logs.topic("t").state.newest_file, LogFile.CHECKPOINT), b"{}")


MOVED = {TopicPartition("t", 0): 1}
LAST: dict[str, Callable[[Store], object]] = {
    "committed": lambda store: begin_with(store, "p", b"y").commit_transaction(),
    "aborted": lambda store: begin_with(store, "p", b"y").abort_transaction(),
    "bundled": bundled,
    "checkpoint": damaged_checkpoint,
    "offsets": lambda store: begin_with_offsets(store, "p", MOVED).commit_transaction(),
    "offsets aborted": lambda store: begin_with_offsets(store, "p", MOVED).abort_transaction(),
}
"""By what else tells of it, how a log's newest entry comes to be there."""


@pytest.mark.parametrize("like_disk", [False, True])
@pytest.mark.parametrize("last", LAST)
def test_a_newest_entry_is_missed_if_another_file_tells_of_it(
    clock: VirtualClock, last: str, like_disk: bool
) -> None:
    """Nobody reads on as if it had never been, nor takes its number; restored, it is as before."""
    heap = HeapStorage(like_disk=like_disk)
    store = new_store(heap, clock)
    append(store, b"x")
    begin_with_offsets(store, "p", {TopicPartition("t", 0): 0}).commit_transaction()
    LAST[last](store)

    def log_of(process: Store) -> StateLog:  # type: ignore[type-arg]
        return process.logs.log(*(("group", "g") if "offsets" in last else ("topic", "t")))

    log = log_of(another(store))
    log.refresh()
    lost = log.log.path(log.state.newest_file)
    data = heap.get(lost)
    heap.delete([lost])
    names = heap.list_names(log.log.folder)
    reader = another(store)
    for _ in range(2):
        with pytest.raises(CorruptEntry, match=f"{lost} is missing, though later files exist"):
            log_of(reader).refresh()
    other = another(store)
    with pytest.raises(CorruptEntry, match=lost):
        begin_with_offsets(other, "o", MOVED) if "offsets" in last else begin_with(other, "o", b"z")
    assert heap.list_names(log.log.folder) == names
    heap.put(lost, data)
    for process in (reader, another(store)):
        log_of(process).refresh()
        assert log_of(process).state == log.state


class _OneSlowListing(ForwardingStorage):
    """Its first listing of a log does not show an entry yet, but its marker, which came later."""

    late = ""

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        shown = super().list_names(folder, start_after)
        if self.late in shown:
            shown.remove(self.late)
            self.late = ""
        return shown


@pytest.mark.parametrize("like_disk", [False, True])
def test_a_slow_listing_is_no_damage(clock: VirtualClock, like_disk: bool) -> None:
    """It began before the entry was put: the next one shows it, and one is enough."""
    counting = CountingStorage(HeapStorage(like_disk=like_disk))
    store = new_store(counting, clock)
    begin_with(store, "p", b"1").commit_transaction()
    spent = []
    for late in ("", "00000000000000000001.json"):
        slow = _OneSlowListing(counting)
        process = another(store, slow)
        slow.late = late
        counting.take()
        process.logs.topic("t").refresh()
        spent.append(counting.take().get("list", 0))
        assert not slow.late
        assert values(process) == [b"1"]
    assert spent[1] == spent[0] + 1


def test_two_markers_of_one_entry_are_damage(store: Store) -> None:
    """Invariant L3: an entry that is both committed and aborted is reported, not chosen for."""
    append(store, b"x")
    for outcome in ("commit", "abort"):
        store.storage.put(f"topics/t/log/00000000000000000001.{outcome}", b"{}")
    with pytest.raises(CorruptEntry, match="both a commit and an abort marker"):
        values(another(store))


def test_half_an_entry_is_not_kept_in_memory(store: Store, clock: VirtualClock) -> None:
    """An entry turns out wrong in its second half: its first half leaves no trace in the state."""
    reader = another(store)
    append(store, b"1")
    assert values(reader) == [b"1"]
    places = tuple(
        SegmentEntry(partition, 1, StoredSegment("x-0", 7, 10, 1, 1)) for partition in (0, 7)
    )
    wrong = "topics/t/log/00000000000000000002.json"
    store.storage.put(wrong, envelope.encode(Append("n", clock.time_ms, places)))
    for _ in range(2):
        with pytest.raises(CorruptEntry, match="contradicts the entries before it"):
            values(reader)
    store.storage.delete([wrong])
    append(store, b"2")
    assert values(reader) == [b"1", b"2"]
