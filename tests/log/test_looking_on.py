"""On disks a refresh asks for the few names that may be new: as right as a listing, and flat."""

from __future__ import annotations

import pytest

from tests.support.steps import append, begin, checkpoint, send, values
from txnlog.errors import CorruptEntry
from txnlog.log.chapters import LEVELS
from txnlog.log.sequence_log import SequenceLog
from txnlog.names import LogFile
from txnlog.state.transaction import Outcome
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

AGE_MS = 3_600_000
pytestmark = [
    pytest.mark.usefixtures("short_chapters"),
    pytest.mark.store(on="heap", config={"log.cleanup.age.ms": AGE_MS}),
]


@pytest.fixture
def heap() -> HeapStorage:
    return HeapStorage(like_disk=True)


def watching(store: Store) -> tuple[Store, CountingStorage]:
    """Another process that has read the topic, and its requests from now on."""
    counting = CountingStorage(store.storage)
    found = attach(counting, clock=store.logs.clock)
    found.logs.topic("t").refresh()
    counting.take()
    return found, counting


def test_a_refresh_lists_nothing_and_does_not_grow(store: Store) -> None:
    """The requests depend on what is new, not on the size of the folder."""
    spent = []
    for _ in range(3):
        reader, counting = watching(store)
        reader.logs.topic("t").refresh()
        idle = counting.take()
        append(store, b"x")
        reader.logs.topic("t").refresh()
        spent.append((idle, counting.take()))
        for _ in range(70):
            append(store, b"y")
    assert spent[0] == spent[1] == spent[2]
    idle, busy = spent[0]
    assert set(idle) == {"size"}
    assert set(busy) == {"size", "get"}
    assert idle["size"] <= 3 + LEVELS
    assert busy["size"] <= 6 + LEVELS


def test_outcomes_are_found_by_their_names(store: Store) -> None:
    """An entry that was undecided, and one whose marker comes with it."""
    producer = begin(store)
    send(producer, b"1")
    reader, counting = watching(store)
    assert values(reader) == []
    producer.commit_transaction()
    counting.take()
    reader.logs.topic("t").refresh()
    assert "list" not in counting.take()
    assert reader.logs.topic("t").undecided() == {}
    assert values(reader) == [b"1"]
    aborted = begin(store, "q")
    send(aborted, b"2")
    aborted.abort_transaction()
    reader.logs.topic("t").refresh()
    assert reader.logs.topic("t").undecided() == {}
    assert values(reader) == [b"1"]


def test_a_reader_that_slept_over_a_cleaning_lists_again(store: Store, clock: VirtualClock) -> None:
    """It knows that its end is old by both clocks, and finds the checkpoint behind what is gone."""
    append(store, b"0")
    reader, counting = watching(store)
    for turn in range(1, 5):
        append(store, b"%d" % turn)
        clock.time_ms += AGE_MS + 1
        checkpoint(store)
    log = store.logs.topic("t").log
    assert min(log.listing().entries) > 2
    assert values(reader) == [b"%d" % turn for turn in range(5)]
    assert counting.take()["list"] >= 1


def test_an_end_that_was_cleaned_away_is_no_end(store: Store, clock: VirtualClock) -> None:
    """Even if no clock of the reader's says that time has passed: its own last entry is gone."""
    append(store, b"0")
    asleep = VirtualClock(clock.time_ms)
    reader = attach(store.storage, clock=asleep)
    assert values(reader) == [b"0"]
    for turn in range(1, 5):
        append(store, b"%d" % turn)
        clock.time_ms += AGE_MS + 1
        checkpoint(store)
    assert values(reader) == [b"%d" % turn for turn in range(5)]


def test_what_is_known_must_be_there(heap: HeapStorage, clock: VirtualClock) -> None:
    """Else names may have been freed: that the next one is missing says nothing."""
    log = SequenceLog(heap, "groups/g", clock)
    for number in range(4):
        assert log.create(number, b"%d" % number)
    found = log.look_on(3, 2, {})
    assert found is not None
    assert (found.entries, found.end) == ((3,), 4)
    heap.delete([log.path(2), log.path(3)])
    assert log.look_on(3, 2, {}) is None


def test_a_hole_is_not_taken_for_the_end(heap: HeapStorage, store: Store) -> None:
    """An entry was deleted by hand, and later ones exist: that is damage, nothing is put."""
    append(store, b"0")
    reader, _ = watching(store)
    append(store, b"1")
    append(store, b"2")
    heap.delete([store.logs.topic("t").log.path(2)])
    with pytest.raises(CorruptEntry, match=r"0{19}2\.json is missing, though later files exist"):
        append(reader, b"lost")


def test_much_that_is_new_is_listed(store: Store) -> None:
    """Behind a checkpoint, as by a process that has just begun."""
    append(store, b"0")
    reader, counting = watching(store)
    for turn in range(1, 200):
        append(store, b"%d" % turn)
    assert values(reader) == [b"%d" % turn for turn in range(200)]
    spent = counting.take()
    assert spent["list"] >= 1
    assert spent["get"] < 120


def test_both_markers_are_damage(heap: HeapStorage, store: Store) -> None:
    """Invariant L3, seen by names too."""
    producer = begin(store)
    send(producer, b"1")
    reader, _ = watching(store)
    log = store.logs.topic("t").log
    for outcome in Outcome:
        heap.put(log.path(1, LogFile(outcome.value)), b"{}")
    with pytest.raises(CorruptEntry, match="both a commit and an abort marker"):
        reader.logs.topic("t").refresh()


def test_writers_share_the_work_of_checkpoints(heap: HeapStorage, store: Store) -> None:
    """Each looks for those of others before it puts one: so there is one in 32 entries or so."""
    others = [attach(heap, clock=store.logs.clock) for _ in range(5)]
    put = set()
    for turn in range(320):
        append(others[turn % 5], b"%d" % turn)
        found = heap.list_names("topics/t/log")
        put |= {name for name in found if name.endswith(".checkpoint")}
    assert 9 <= len(put) <= 11
    assert sum(name.endswith(".checkpoint") for name in heap.list_names("topics/t/log")) == 2


def test_an_undecided_entry_that_was_cleaned_up_is_decided_by_a_checkpoint(store: Store) -> None:
    """It is looked for by its name: that it shows no marker says nothing once it is gone."""
    producer = begin(store)
    send(producer, b"a")
    append(store, b"more")
    reader = attach(store.storage, clock=store.logs.clock)
    log = reader.logs.topic("t")
    log.refresh()
    (number,) = log.undecided()
    producer.commit_transaction()
    append(store, b"b")
    checkpoint(store)
    log.log.delete_entries(number, number + 1)
    store.storage.delete([log.log.path(number, LogFile.COMMIT)])
    log.refresh()
    assert log.undecided() == {}
    assert sorted(values(reader))[-3:] == [b"a", b"b", b"more"]


def test_a_deletion_that_stopped_half_way_is_no_end(store: Store, clock: VirtualClock) -> None:
    """Its last entry is there, the next ones are gone: who slept so long does not ask by names."""
    append(store, b"0")
    reader, _ = watching(store)
    for turn in range(1, 5):
        append(store, b"%d" % turn)
    checkpoint(store)
    store.logs.topic("t").log.delete_entries(2, 5)
    clock.time_ms += AGE_MS
    assert values(reader) == [b"%d" % turn for turn in range(5)]
