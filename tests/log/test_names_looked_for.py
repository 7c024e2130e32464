"""Logs on local disks: what is new is asked for by names, and a listing where those do not tell."""

from __future__ import annotations

import pytest
from steps import another, append, begin, checkpoint, new_store, send, values

from txnlog.errors import CorruptEntry
from txnlog.names import LogFile
from txnlog.state.transaction import Outcome
from txnlog.store import Store
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock


@pytest.fixture
def heap() -> HeapStorage:
    return HeapStorage(like_disk=True)


@pytest.fixture
def store(heap: HeapStorage, clock: VirtualClock) -> Store:
    return new_store(heap, clock)


def append_each(store: Store, count: int) -> None:
    for turn in range(count):
        append(store, b"%d" % turn)


def test_what_is_new_is_found_without_a_listing(store: Store, heap: HeapStorage) -> None:
    """Entries and markers, also of an entry that was undecided; and no request grows."""
    storage = FaultyStorage(heap)
    reader = another(store, storage)
    log = reader.logs.topic("t")
    producer = begin(store)
    send(producer, b"a")
    log.refresh()
    assert [*log.undecided()] == [1]
    storage.requests.clear()
    producer.commit_transaction()
    append(store, b"b")
    log.refresh()
    assert not [text for text in storage.requests if text.startswith("list")]
    assert log.undecided() == {}
    assert log.next_entry == 3
    assert values(reader) == [b"a", b"b"]


@pytest.mark.parametrize("count", [40, 200])
def test_a_process_that_was_overtaken_by_cleaning_begins_anew(store: Store, count: int) -> None:
    """Its last entry is gone, so that the next one is not there says nothing."""
    append_each(store, 4)
    reader = another(store)
    log = reader.logs.topic("t")
    log.refresh()
    append_each(store, count)
    checkpoint(store)
    end = store.logs.topic("t").next_entry
    store.logs.topic("t").log.delete_below(end - 1)
    log.refresh()
    assert log.next_entry == end


def test_an_undecided_entry_that_was_cleaned_up_is_decided_by_a_checkpoint(store: Store) -> None:
    producer = begin(store)
    send(producer, b"a")
    reader = another(store)
    log = reader.logs.topic("t")
    log.refresh()
    producer.commit_transaction()
    append_each(store, 2)
    log.log.delete_entries(1, 2)
    checkpoint(store)
    log.refresh()
    assert log.undecided() == {}
    assert values(reader) == [b"a", b"0", b"1"]


def test_a_hole_is_told(store: Store, heap: HeapStorage) -> None:
    """A lost entry does not pass for the end of the log."""
    append_each(store, 2)
    log = another(store).logs.topic("t")
    log.refresh()
    append_each(store, 2)
    heap.delete([log.log.path(3)])
    with pytest.raises(CorruptEntry, match=r"3\.json is missing"):
        log.refresh()


def test_both_markers_are_told(store: Store) -> None:
    producer = begin(store)
    send(producer, b"a")
    log = another(store).logs.topic("t")
    log.refresh()
    transaction = log.undecided()[1]
    producer.commit_transaction()
    store.logs.topic("t").mark(1, Outcome.ABORT, transaction)
    with pytest.raises(CorruptEntry, match="both a commit and an abort marker"):
        log.refresh()


def test_who_slept_lists(store: Store, heap: HeapStorage, clock: VirtualClock) -> None:
    """So long that a name could have been freed: what is there behind it is looked at."""
    append_each(store, 2)
    storage = FaultyStorage(heap)
    log = another(store, storage).logs.topic("t")
    log.refresh()
    clock.sleep(store.logs.config.log_cleanup_age_ms / 1000)
    storage.requests.clear()
    log.refresh()
    assert [text for text in storage.requests if text.startswith("list")]


def test_a_checkpoint_of_another_is_found_before_one_is_put(store: Store) -> None:
    """Two who append in turn leave no more of them than one."""
    other = another(store)
    for _ in range(70):
        append(store, b"a")
        append(other, b"b")
    log = store.logs.topic("t").log
    put = [number for number in range(150) if _has_checkpoint(store, number)]
    assert log.listing().checkpoints == tuple(put)
    assert len(put) <= 2
    assert put[-1] == 127


def _has_checkpoint(store: Store, number: int) -> bool:
    path = store.logs.topic("t").log.path(number, LogFile.CHECKPOINT)
    return path.rpartition("/")[2] in store.storage.list_names("topics/t/log")
