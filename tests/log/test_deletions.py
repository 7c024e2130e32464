"""Deletions that stop anywhere: a storage deletes several objects in any order, or some of them.

Each deletion of several objects is made to delete only one of them, all but one, and each prefix of
some seeded orders. Then everybody who could be misled looks: a fresh reader, one that holds what is
deleted as undecided, and a writer that slept over the cleaning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import pytest

from tests.support.steps import (
    append,
    begin_with,
    begin_with_offsets,
    checkpoint,
    new_store,
    upload,
    values,
)
from txnlog.errors import ProducerFenced, StorageError
from txnlog.log.sequence_log import SequenceLog
from txnlog.names import LogFile, TopicPartition, parse_log_file
from txnlog.state.group import OffsetCommit
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

pytestmark = [
    pytest.mark.usefixtures("short_chapters"),
    pytest.mark.rule("L10", "L11", "hazard 3", "hazard 7"),
]
CLEANUP_AGE_MS = 60_000
EXPIRATION_MS = 10_000_000
Part = Callable[[Sequence[str]], Sequence[str]]


def only(indexes: Sequence[int], names: Sequence[str]) -> list[str]:
    return [names[index] for index in indexes]


def without(index: int, names: Sequence[str]) -> list[str]:
    return [*names[:index], *names[index + 1 :]]


def parts(count: int) -> Iterator[tuple[str, Part]]:
    """Ways in which a deletion of so many objects can stop: their names, and what is deleted."""
    for index in range(count):
        yield f"only {index}", partial(only, [index])
        yield f"all but {index}", partial(without, index)
    for seed in range(2):
        order = random.Random(seed).sample(range(count), count)
        for end in range(count + 1):
            yield f"{end} in order {order}", partial(only, order[:end])


class Cutting(FaultyStorage):
    """Of one deletion deletes a part and says that it failed, and so all that come after it.

    Args:
        inner: the real storage.
        at: the number of that deletion, from 0; None if all take place.
        part: what it deletes.
    """

    def __init__(self, inner: HeapStorage, at: int | None = None, part: Part | None = None) -> None:
        super().__init__(inner)
        self.doomed: list[list[str]] = []
        self._at = at
        self._part = part
        self.deletes = self._some_of

    def _some_of(self, names: Sequence[str]) -> Sequence[str]:
        number = len(self.doomed) - 1
        return self._part(names) if self._part is not None and number == self._at else []

    def delete(self, names: Iterable[str]) -> None:
        self.doomed.append(list(names))
        super().delete(self.doomed[-1])

    def _fault(self, text: str) -> Fault | None:
        over = self._at is not None and len(self.doomed) > self._at
        return Fault.PARTIAL if over and text.startswith("delete") else None


def cuts(doomed: Sequence[Sequence[str]]) -> Iterator[tuple[str, int, Part]]:
    """Every way in which one of these deletions can stop, and its name."""
    for at, names in enumerate(doomed):
        for name, part in parts(len(names)):
            yield f"deleted {name} of {names}", at, part


def expiring_store(clock: VirtualClock) -> tuple[HeapStorage, Store]:
    storage = HeapStorage()
    config = {
        "log.cleanup.age.ms": CLEANUP_AGE_MS,
        "transaction.max.timeout.ms": 60_000,
        "transactional.id.expiration.ms": EXPIRATION_MS,
    }
    return storage, new_store(storage, clock, config=config)


EXPECTED = [b"committed", b"1", b"2", b"3", b"4", b"5"]


class Scene:
    """A topic that is about to be cleaned behind two readers' and a writer's backs.

    ``holder`` holds entries as undecided that are decided by then; ``sleeper`` has listed the log
    when most of it was not there yet.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.storage, self.store = expiring_store(self.clock)
        self.slow = FaultyStorage(self.storage, amid=self._amid)
        self.amid: Callable[[str], None] | None = None
        self._first = begin_with(self.store, "w", b"committed")
        self._second = begin_with(self.store, "v", b"aborted")
        self.sleeper = self.newcomer()
        self.late = upload(self.sleeper, b"late")
        self.sleeper.logs.topic("t").refresh()
        for value in (b"1", b"2", b"3"):
            append(self.store, value)
        checkpoint(self.store)
        self.holder = attach(self.slow, clock=self.clock)
        assert values(self.holder) == []

    def _amid(self, text: str) -> None:
        if self.amid is not None:
            self.amid(text)

    def newcomer(self) -> Store:
        return attach(self.storage, clock=self.clock)

    def play(self) -> None:
        """Everything up to the cleaning."""
        self._first.commit_transaction()
        self._second.abort_transaction()
        for transactional_id in ("w", "v"):
            self.store.producer(transactional_id=transactional_id).init_transactions()
        append(self.store, b"4")
        checkpoint(self.store)
        self.clock.time_ms += CLEANUP_AGE_MS + 1
        append(self.store, b"5")


def test_a_topics_cleaning_that_stops_anywhere() -> None:
    """Whatever is left of old entries and markers misleads nobody, and loses nothing (hazard 3).

    Neither a fresh reader, nor one that holds as undecided what is decided by now, nor a writer.
    """

    def run(at: int | None = None, part: Part | None = None, context: str = "") -> list[list[str]]:
        scene = Scene()
        scene.play()
        cutting = Cutting(scene.storage, at, part)
        with suppress(StorageError):
            checkpoint(attach(cutting, clock=scene.clock))
        assert values(scene.newcomer()) == EXPECTED, context
        assert values(scene.holder) == EXPECTED, context
        scene.sleeper.logs.topic("t").place(scene.late, refreshed=True)
        assert values(scene.newcomer()) == [*EXPECTED, b"late"], context
        return cutting.doomed

    doomed = run()
    assert sum(map(len, doomed)) >= 5
    for context, at, part in cuts(doomed):
        run(at, part, context)


@pytest.mark.parametrize("shown", [".json", ".commit", "nothing", ""])
def test_cleaning_in_the_middle_of_a_listing(shown: str) -> None:
    """A listing may or may not show what is deleted meanwhile, name by name: nobody is misled.

    All that it holds as undecided is decided while a reader makes its first listing; the cleaning
    comes in the middle of each of its next ones in turn.
    """
    at = 1
    while True:
        scene = Scene()
        listings: list[str] = []

        def amid(
            text: str, at: int = at, scene: Scene = scene, listings: list[str] = listings
        ) -> None:
            if text.startswith("list "):
                listings.append(text)
                if len(listings) == 1:
                    scene.play()
                elif len(listings) == at + 1:
                    checkpoint(scene.newcomer())

        scene.amid = amid

        def shows(name: str, listings: list[str] = listings) -> bool:
            return len(listings) > 1 and name.endswith(shown)

        scene.slow.shows = shows
        found = values(scene.holder)
        context = f"in the middle of listing {at} of {listings}"
        assert found == EXPECTED[: len(found)], context
        assert values(scene.holder) == EXPECTED, context
        if len(listings) <= at:
            assert at > 2
            return
        at += 1


@pytest.mark.parametrize("shown", [".json", pytest.param("", marks=pytest.mark.slow)])
def test_cleaning_that_stops_anywhere_in_the_middle_of_a_listing(shown: str) -> None:
    """Invariant L11: what such a cleaning leaves is not taken for a zombie's.

    Neither an entry without its marker nor the only checkpoint that shows tells its outcome.
    """

    def run(at: int | None = None, part: Part | None = None, context: str = "") -> list[list[str]]:
        scene = Scene()
        cutting = Cutting(scene.storage, at, part)
        listings: list[str] = []

        def amid(text: str) -> None:
            if text.startswith("list "):
                listings.append(text)
                if len(listings) == 1:
                    scene.play()
                elif text.startswith("list topics/t/log") and not cutting.doomed:
                    with suppress(StorageError):
                        checkpoint(attach(cutting, clock=scene.clock))

        scene.amid = amid
        scene.slow.shows = lambda name: len(listings) > 1 and name.endswith(shown)
        found = values(scene.holder)
        assert found == EXPECTED[: len(found)], context
        assert values(scene.holder) == EXPECTED, context
        return cutting.doomed

    doomed = run()
    assert sum(map(len, doomed)) >= 5
    for context, at, part in cuts(doomed):
        run(at, part, context)


def clean_at_once(log: SequenceLog) -> None:
    """At once behind a checkpoint, and nothing is closed before."""
    log.delete_below(log.listing().checkpoints[0])


def decide_behind_a_back(clock: VirtualClock) -> tuple[HeapStorage, Store, Store]:
    """Two processes that have read as far, of which only the first knows of a commit.

    What was committed lies behind a checkpoint.
    """
    storage, store = expiring_store(clock)
    producer = begin_with(store, "w", b"committed")
    for value in (b"1", b"2"):
        append(store, value)
    checkpoint(store)
    append(store, b"3")
    other = attach(storage, clock=clock)
    other.logs.topic("t").refresh()
    producer.commit_transaction()
    store.producer(transactional_id="w").init_transactions()
    store.logs.topic("t").refresh()
    return storage, store, other


def test_whoever_loses_the_race_for_a_checkpoint_deletes_nothing() -> None:
    """Invariant L10: the one that won calls undecided what the loser would clean away."""
    clock = VirtualClock()
    storage, store, other = decide_behind_a_back(clock)
    other.logs.topic("t").checkpoint()
    before = storage.list_names("topics/t/log")
    store.logs.topic("t").checkpoint()
    assert storage.list_names("topics/t/log") == before
    expected = [b"committed", b"1", b"2", b"3"]
    assert values(attach(storage, clock=clock)) == values(store) == values(other) == expected


def test_the_newest_checkpoint_may_be_of_somebody_who_knew_less() -> None:
    """Invariant L10: what it calls undecided is gone; the one before it knows the outcome."""
    clock = VirtualClock()
    storage, store, other = decide_behind_a_back(clock)
    late = upload(attach(storage, clock=clock), b"late")
    store.logs.topic("t").checkpoint()
    clean_at_once(store.logs.topic("t").log)
    assert f"{1:020d}.json" not in storage.list_names("topics/t/log")
    other.logs.topic("t").place(late, refreshed=True)
    assert 1 in other.logs.topic("t").undecided()
    other.logs.topic("t").checkpoint()
    expected = [b"committed", b"1", b"2", b"3", b"late"]
    for reader in (attach(storage, clock=clock), store, other):
        assert values(reader) == expected


def test_a_checkpoint_goes_before_the_absence_of_a_marker() -> None:
    """Invariant L11: whatever has deleted a marker before its entry."""
    scene = Scene()
    scene.play()
    scene.storage.delete([f"topics/t/log/{1:020d}.commit"])
    assert values(scene.holder) == EXPECTED
    assert not any(name == f"{1:020d}.abort" for name in scene.storage.list_names("topics/t/log"))


class _Behind(ForwardingStorage):
    """Its listings of a log show no markers and no checkpoints; after the second one ``then``."""

    listings = 0

    def __init__(self, inner: HeapStorage, then: Callable[[], None]) -> None:
        super().__init__(inner)
        self._then = then

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        found = self.inner.list_names(folder, start_after)
        if folder != "topics/t/log" or not 0 < self.listings < 3:
            return found
        self.listings += 1
        if self.listings == 3:
            self._then()
        parsed = ((name, parse_log_file(name)) for name in found)
        return [name for name, told in parsed if told is None or told[1] is LogFile.ENTRY]


def test_an_entry_that_is_gone_after_the_listing_is_not_called_aborted(clock: VirtualClock) -> None:
    """Invariant L11: the listing has missed its marker, and then it was cleaned away with it."""
    heap = HeapStorage()
    store = new_store(heap, clock)

    def clean() -> None:
        cleaner = attach(heap, clock=clock)
        checkpoint(cleaner)
        files = [f"topics/t/log/{name}" for name in heap.list_names("topics/t/log")]
        heap.delete(path for path in files if path.rpartition("/")[2].startswith(f"{1:020}."))

    torn = _Behind(heap, clean)
    reader = attach(torn, clock=clock)
    producer = begin_with(store, "p", b"x")
    assert values(reader) == []
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send("t", b"open")
    producer.flush()
    torn.listings = 1
    values(reader)
    assert torn.listings == 3
    assert values(reader) == [b"x"]
    assert values(attach(heap, clock=clock)) == [b"x"]


def test_what_a_checkpoint_does_not_hold_any_more_is_not_called_aborted() -> None:
    """The same where the checkpoint only tells that nothing is left: no false marker is put."""
    clock = VirtualClock()
    storage, store = expiring_store(clock)
    producer = begin_with_offsets(store, "w", {TopicPartition("t", 0): 7})
    holder = attach(storage, clock=clock)
    assert holder.logs.fresh_group("g").undecided()
    producer.commit_transaction()
    store.producer(transactional_id="w").init_transactions()
    mine = store.logs.fresh_group("g")
    mine.commit([OffsetCommit("t", 0, 9)])
    mine.checkpoint()
    storage.delete([f"{mine.log.folder}/{0:020d}.commit"])
    log = holder.logs.fresh_group("g")
    with log.lock:
        found = log.state
        assert found.undecided_entries() == {}
        assert found.committed["t"][0].offset == 9
    assert mine.log.listing().outcomes == {}


def test_what_no_checkpoint_holds_any_more_is_no_longer_undecided() -> None:
    """Invariant L10: nothing is left of aborted offsets that the newest checkpoint waits for."""
    clock = VirtualClock()
    storage, store = expiring_store(clock)
    begin_with_offsets(store, "w", {TopicPartition("t", 0): 7})
    mine = store.logs.group("g")
    mine.commit([OffsetCommit("t", 1, 1)])
    mine.checkpoint()
    mine.commit([OffsetCommit("t", 1, 2)])
    late = attach(storage, clock=clock).logs.group("g")
    late.refresh()
    store.producer(transactional_id="w").init_transactions()
    mine.refresh()
    mine.checkpoint()
    clean_at_once(mine.log)
    assert mine.log.listing().entries[0] > min(late.undecided())
    late.commit([OffsetCommit("t", 1, 3)], refreshed=True)
    late.checkpoint()
    for name in ("fresh", "another"):
        state = attach(storage, clock=clock).logs.fresh_group("g")._state
        assert state.undecided_entries() == {}, name
        offsets = {number: at.offset for number, at in state.committed["t"].items()}
        assert offsets == {1: 3}, name


def test_an_ids_cleaning_that_stops_anywhere() -> None:
    """Hazard 3: a decision that is put into a name which was freed early commits nothing."""

    def run(at: int | None = None, part: Part | None = None, context: str = "") -> list[list[str]]:
        clock = VirtualClock()
        storage, store = expiring_store(clock)
        sleeper = begin_with(attach(storage, clock=clock), "p", b"late")
        for _ in range(100):
            store.producer(transactional_id="p").init_transactions()
        clock.time_ms += CLEANUP_AGE_MS + 1
        cutting = Cutting(storage, at, part)
        attach(cutting, clock=clock).producer(transactional_id="p").init_transactions()
        try:
            sleeper.commit_transaction()
        except ProducerFenced:
            pass
        else:
            raise AssertionError(f"what was aborted is called committed: {context}")
        assert values(attach(storage, clock=clock)) == [], context
        again = begin_with(attach(storage, clock=clock), "p", b"next")
        again.commit_transaction()
        assert values(attach(storage, clock=clock)) == [b"next"], context
        return cutting.doomed

    doomed = run()
    assert sum(map(len, doomed)) >= 3
    for context, at, part in cuts(doomed):
        run(at, part, context)


def test_a_removal_of_an_expired_id_that_stops_anywhere() -> None:
    """An instance that was only idle is fenced, whatever is left of its log; a new one goes on."""

    def run(at: int | None = None, part: Part | None = None, context: str = "") -> list[list[str]]:
        clock = VirtualClock()
        storage, store = expiring_store(clock)
        idle = begin_with(attach(storage, clock=clock), "p", b"1")
        idle.commit_transaction()
        clock.time_ms += EXPIRATION_MS + 1
        store.transactions.expire_ids()
        clock.time_ms += CLEANUP_AGE_MS + 1
        cutting = Cutting(storage, at, part)
        with suppress(StorageError):
            attach(cutting, clock=clock).transactions.expire_ids()
        idle.begin_transaction()
        idle.send("t", b"2")
        try:
            idle.commit_transaction()
        except ProducerFenced:
            pass
        else:
            raise AssertionError(f"an instance of a dead id has committed: {context}")
        again = begin_with(attach(storage, clock=clock), "p", b"3")
        again.commit_transaction()
        reopened = attach(storage, clock=clock)
        assert values(reopened) == [b"1", b"3"], context
        # One that is fenced by its stall alone leaves a transaction that the next init aborts.
        assert reopened.transactions.describe("p").number in (2, 3), context
        return cutting.doomed

    doomed = run()
    assert sum(map(len, doomed)) >= 3
    for context, at, part in cuts(doomed):
        run(at, part, context)
