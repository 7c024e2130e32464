"""Readers whose requests take so long that dozens of entries come during each.

Chapters are closed and checkpoints superseded while they read. They go on from the newest
checkpoint, know all that there was when they began, and never take what moves for damage.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from tests.support.steps import values
from tests.support.storage.busy_storage import BusyStorage
from txnlog.errors import CorruptEntry, StorageError
from txnlog.log import state_log
from txnlog.state.group import OffsetCommit
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Altered
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

BEFORE = 200
"""Entries, some of them freed, before anybody follows."""
MOST_ROUNDS = 400
AnyPut = Callable[[], object]


def alters(store: Store) -> AnyPut:
    log, numbers = store.logs.topic("t"), count()

    def put() -> None:
        nonce = f"n{next(numbers)}"
        log.append(lambda _: Altered(nonce, 1, config={"retention.ms": "1"}), refreshed=True)
        log.checkpoint_if_due()

    return put


def commits(store: Store) -> AnyPut:
    log, offsets = store.logs.group("g"), count()

    def put() -> None:
        log.commit([OffsetCommit("t", 0, next(offsets))], refreshed=True)
        log.checkpoint_if_due()

    return put


def places(store: Store) -> AnyPut:
    producer = store.producer()

    def put() -> None:
        producer.send("t", b"x")
        producer.flush()

    return put


def arrivals(store: Store) -> Callable[[int], None]:
    """So many records, each in an entry of its own."""
    put = places(store)

    def arrive(entries: int) -> None:
        for _ in range(entries):
            put()

    return arrive


WRITERS = {"topic": alters, "group": commits, "records": places}


def log_of(store: Store, kind: str) -> state_log.StateLog:  # type: ignore[type-arg]
    return store.logs.group("g") if kind == "group" else store.logs.topic("t")


class World:
    """A busy log, and a process that follows it from far away."""

    def __init__(self, kind: str, *, like_disk: bool) -> None:
        clock = VirtualClock()
        heap = HeapStorage(like_disk=like_disk)
        self.store = attach(heap, create=True, clock=clock)
        self.store.topics.create("t")
        self.put = WRITERS[kind](self.store)
        self.arrive(BEFORE)
        self.busy = BusyStorage(heap, self.arrive, clock)
        self.far = attach(self.busy, clock=clock)
        self.log, self.far_log = log_of(self.store, kind), log_of(self.far, kind)

    def arrive(self, entries: int) -> None:
        for _ in range(entries):
            self.put()

    def follow(self, entries: int) -> None:
        """Refresh while so many entries come during each request."""
        before, self.busy.rounds = self.log.next_entry, 0
        self.busy.entries = entries
        self.far_log.refresh()
        self.busy.entries = 0
        assert self.far_log.next_entry >= before
        assert self.busy.rounds < MOST_ROUNDS


def knows_all(log: state_log.StateLog) -> object:  # type: ignore[type-arg]
    """What a log says; a topic's without what each process has left to manifests, or not yet."""
    with log.lock:
        state = log.state
        if not isinstance(state, TopicState):
            return state
        ends = [partition.end_offset for partition in state.partitions]
        return state.next_entry, state.config, ends


def check(kind: str, *, like_disk: bool, entries: int) -> None:
    """A process that is new to the log, then one that lags."""
    world = World(kind, like_disk=like_disk)
    world.follow(entries)
    world.arrive(100)
    world.follow(entries)
    world.far_log.refresh()
    assert knows_all(world.far_log) == knows_all(world.log)


@pytest.mark.parametrize("entries", [1, 32, 100])
@pytest.mark.parametrize("like_disk", [False, True])
def test_a_slow_reader_goes_on(like_disk: bool, entries: int) -> None:
    """One that is new to the log."""
    world = World("group", like_disk=like_disk)
    world.follow(entries)
    world.far_log.refresh()
    assert knows_all(world.far_log) == knows_all(world.log)


@pytest.mark.more
@pytest.mark.parametrize("like_disk", [False, True])
@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_slow_reader_that_lags_goes_on(kind: str, like_disk: bool) -> None:
    check(kind, like_disk=like_disk, entries=40)


@pytest.mark.slow
@pytest.mark.parametrize("like_disk", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_slow_reader_goes_on_however_many_come(kind: str, like_disk: bool) -> None:
    step = 8 if kind == "records" else 1  # each is an upload, too
    for entries in range(1, 101, step):
        check(kind, like_disk=like_disk, entries=entries)


@pytest.mark.parametrize("like_disk", [False, True])
def test_the_newest_state_of_a_busy_id_is_found(like_disk: bool) -> None:
    """Whoever looks finds a state that is no older than the look."""
    heap, clock = HeapStorage(like_disk=like_disk), VirtualClock()
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t")
    producer = store.producer(transactional_id="i")
    producer.init_transactions()

    def arrive(transactions: int) -> None:
        for _ in range(transactions):
            with producer.transaction():
                producer.send("t", b"x")

    busy = BusyStorage(heap, arrive)
    far = attach(busy, clock=clock).logs.transactions
    for transactions in (1, 33):
        before = store.logs.transactions.describe("i").number
        busy.entries = transactions
        assert far.describe("i").number >= before
        busy.entries = 0
    assert far.describe("i") == store.logs.transactions.describe("i")


def test_a_scan_beside_many_appends_has_what_was_there(clock: VirtualClock) -> None:
    heap = HeapStorage(like_disk=True)
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t")
    arrive = arrivals(store)
    arrive(70)
    busy = BusyStorage(heap, arrive)
    busy.entries = 33
    assert attach(busy, clock=clock).scan("t").record_count >= 70


def test_who_is_always_overtaken_is_not_told_of_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """More come during a request than checkpoints stay for: an error that passes."""
    monkeypatch.setattr(state_log, "_MOST_OVERTAKEN", 22)
    monkeypatch.setattr(state_log, "KEPT_CHECKPOINTS", 2)
    world = World("group", like_disk=False)
    world.busy.entries = 80
    with pytest.raises(StorageError, match="append faster than this process reads") as caught:
        world.far_log.refresh()
    assert caught.value.retriable
    world.busy.entries = 0
    world.far_log.refresh()
    assert knows_all(world.far_log) == knows_all(world.log)


def test_a_hole_in_a_busy_log_is_damage(clock: VirtualClock) -> None:
    """That others go on does not hide it."""
    heap = HeapStorage()
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t")
    arrive = arrivals(store)
    arrive(1)
    busy = BusyStorage(heap, arrive)
    far = attach(busy, clock=clock)
    assert values(far) == [b"x"]
    arrive(2)
    heap.delete([store.logs.topic("t").log.path(2)])
    busy.entries = 1
    with pytest.raises(CorruptEntry, match=r"0{19}2\.json is missing, though later files exist"):
        far.logs.topic("t").refresh()
