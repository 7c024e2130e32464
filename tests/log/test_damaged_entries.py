"""Entries of a topic's log that are damaged, missing or contradict each other."""

from __future__ import annotations

import pytest

from tests.support.steps import another, append, values
from txnlog.errors import CorruptEntry
from txnlog.state.segment import SegmentEntry, StoredSegment
from txnlog.state.topic_entries import Append
from txnlog.storage import envelope
from txnlog.store import Store
from txnlog.testing import VirtualClock

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
