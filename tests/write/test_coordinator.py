"""Conditions 11 to 18 through the real code on a real storage, and the last epoch there is.

What the pure state machine refuses is in ``test_transaction_state``; here it is what reaches the
files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from tests.support.steps import another, begin, begin_with, new_store, stop_before_marking, values
from txnlog.errors import (
    InvalidTransactionalId,
    InvalidTransactionTimeout,
    ProducerFenced,
    StorageError,
    TxnlogError,
)
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.producer import Producer
from txnlog.state.transaction import MAX_PRODUCER_EPOCH
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("T1")

MAX_TIMEOUT_MS = 100_000
_STORES = itertools.count()


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    return limited_store(memory_storage, clock)


def limited_store(storage: Storage, clock: VirtualClock) -> Store:
    return new_store(storage, clock, config={"transaction.max.timeout.ms": MAX_TIMEOUT_MS})


def initialize(store: Store, timeout_ms: int = 60_000) -> Producer:
    producer = store.producer(transactional_id="p", transaction_timeout_ms=timeout_ms)
    producer.init_transactions()
    return producer


def begin_transaction(store: Store, value: bytes = b"x") -> Producer:
    return begin_with(store, "p", value)


def decide(store: Store, end: str) -> Producer:
    """A producer that has decided, and stopped before it marked anything."""
    producer = begin_transaction(store)
    stop_before_marking(producer)
    getattr(producer, f"{end}_transaction")()
    return producer


class FailsFromPut(FaultyStorage):
    """From its n-th put into the log of ``p`` on, requests there fail, with or without effect."""

    def __init__(self, inner: Storage, number: int, effect: bool) -> None:
        super().__init__(inner)
        self.left = number
        self.effect = effect
        self.failing = True
        self.broken = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if not (self.failing and name.startswith("transactions/p/")):
            return super().put_if_absent(name, data)
        if self.left > 0:
            self.left -= 1
            return super().put_if_absent(name, data)
        self.broken = True
        if self.effect:
            super().put_if_absent(name, data)
        raise StorageError("the connection was reset")

    def get(self, name: str) -> bytes:
        if self.failing and self.broken and name.startswith("transactions/p/"):
            raise StorageError("the connection was reset")
        return super().get(name)


def states(storage: Storage) -> list[str]:
    return storage.list_names("transactions/p")


def owner(store: Store) -> tuple[str, int, int]:
    found = store.transactions.describe("p")
    return found.status, found.producer_epoch, found.producer_id


@pytest.mark.condition(11)
def test_bad_ids_and_timeouts_are_refused(store: Store) -> None:
    """Refused before anything is written; the limits themselves are accepted."""
    with pytest.raises(InvalidTransactionalId):
        store.producer(transactional_id="")
    for timeout_ms in (-1, 0, MAX_TIMEOUT_MS + 1):
        with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
            store.producer(transactional_id="p", transaction_timeout_ms=timeout_ms)
    assert states(store.storage) == []
    for timeout_ms in (1, MAX_TIMEOUT_MS):
        initialize(store, timeout_ms)
        assert store.transactions.describe("p").timeout_ms == timeout_ms


@pytest.mark.condition(12)
def test_init_when_nothing_is_open(store: Store) -> None:
    """The first has epoch 0; each later one the next, and the same producer id."""
    initialize(store)
    status, epoch, producer_id = owner(store)
    assert (status, epoch) == ("Empty", 0)
    initialize(store)
    assert owner(store) == ("Empty", 1, producer_id)
    begin_transaction(store).commit_transaction()
    assert owner(store) == ("CompleteCommit", 2, producer_id)
    begin_transaction(store).abort_transaction()
    assert owner(store) == ("CompleteAbort", 3, producer_id)
    initialize(store)
    assert owner(store) == ("Empty", 4, producer_id)


@pytest.mark.condition(13)
def test_init_while_a_transaction_is_open(store: Store) -> None:
    """It is aborted under a bumped epoch, which the new instance has: one bump."""
    old = begin_transaction(store)
    new = initialize(another(store))
    assert owner(store)[:2] == ("Empty", 1)
    assert values(store) == []
    with pytest.raises(ProducerFenced):
        old.commit_transaction()
    with new.transaction():
        new.send("t", b"new")
    assert values(store) == [b"new"]


@pytest.mark.condition(14)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_init_while_a_decision_is_half_done(store: Store, end: str) -> None:
    """A decision is finished first, commit or abort."""
    decide(store, end)
    assert owner(store)[0] == {"commit": "PrepareCommit", "abort": "PrepareAbort"}[end]
    initialize(store)
    assert owner(store)[:2] == ("Empty", 1)
    kinds = {name.partition(".")[2] for name in store.storage.list_names("topics/t/log")}
    assert kinds == {"json", end}
    assert values(store) == ([b"x"] if end == "commit" else [])


@pytest.mark.condition(15)
@pytest.mark.parametrize("before", ["new", "empty", "ongoing", "commit", "abort"])
@pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.LOSE_RESPONSE])
def test_an_init_that_is_interrupted_anywhere(before: str, fault: Fault) -> None:
    """After each request of an init it can be repeated; the epoch is bumped once."""
    for number in range(100):
        clock = VirtualClock()
        storage = open_storage(f"memory://init-{next(_STORES)}")
        store = limited_store(storage, clock)
        if before in ("commit", "abort"):
            decide(store, before)
        elif before == "ongoing":
            begin_transaction(store)
        elif before == "empty":
            initialize(store)
        epoch = owner(store)[1] if before != "new" else -1
        faulty = FaultyStorage(storage)
        process = attach(faulty, clock=clock)
        start = len(faulty.requests)
        faulty.faults = {start + number: fault}
        completed = 0
        try:
            initialize(process)
            completed = 1
        except ProcessStopped:
            pass
        context = f"request {number}, {faulty.requests[-1]}"
        if completed:
            assert owner(store)[:2] == ("Empty", epoch + 1), context
        half = owner(store)[1] if states(storage) else epoch
        assert epoch <= half <= epoch + 1, context
        initialize(attach(storage, clock=clock))
        assert owner(store)[:2] == ("Empty", half + 1), context
        assert values(store) == ([b"x"] if before == "commit" else []), context
        if start + number >= len(faulty.requests):
            assert number >= 3
            return
    raise AssertionError("an init has no end of requests")


@pytest.mark.condition(15)
@pytest.mark.parametrize("effect", [True, False])
def test_an_init_whose_puts_are_in_doubt(store: Store, clock: VirtualClock, effect: bool) -> None:
    """Storage fails at each put of an init in turn; called again, one bump in all."""
    for doubtful in range(3):
        begin_transaction(store)
        epoch = owner(store)[1]
        storage = FailsFromPut(store.storage, doubtful, effect)
        producer = attach(storage, clock=clock).producer(transactional_id="p")
        coordinator = producer._coordinator
        assert coordinator is not None
        with pytest.raises(StorageError):
            coordinator.initialize()
        storage.failing = False
        producer.init_transactions()
        assert owner(store)[:2] == ("Empty", epoch + 1)
        with producer.transaction():
            producer.send("t", b"works")
    assert values(store) == [b"works"] * 3


@pytest.mark.condition(16)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_may_be_repeated(store: Store, end: str) -> None:
    """Success, and not one request that writes."""
    producer = begin_transaction(store)
    getattr(producer, f"{end}_transaction")()
    before = states(store.storage)
    for _ in range(2):
        getattr(producer, f"{end}_transaction")()
    assert states(store.storage) == before


@pytest.mark.condition(17)
@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("wrong", ["producer_id", "producer_epoch"])
def test_a_wrong_owner_changes_nothing(store: Store, end: str, wrong: str) -> None:
    """Commit and abort of another producer id or an older epoch are refused."""
    stale = begin_transaction(store)
    head = store.logs.transactions.describe("p")
    changed = {wrong: getattr(head.state, wrong) + 1, "nonce": "0" * 32}
    newer = msgspec.structs.replace(head.state, **changed)
    assert store.logs.transactions.put(head.number + 1, newer, store.logs.transactions.now())
    before = states(store.storage)
    with pytest.raises(ProducerFenced, match="was fenced"):
        getattr(stale, f"{end}_transaction")()
    assert states(store.storage) == before
    assert store.logs.transactions.describe("p").state == newer


@pytest.mark.condition(18)
def test_only_open_transactions_time_out(clock: VirtualClock) -> None:
    """Any other state is left or finished as it was decided, however late."""
    for before, expected in (
        ("empty", ("Empty", 0)),
        ("committed", ("CompleteCommit", 0)),
        ("aborted", ("CompleteAbort", 0)),
        ("commit", ("CompleteCommit", 0)),
        ("abort", ("CompleteAbort", 0)),
        ("ongoing", ("CompleteAbort", 1)),
    ):
        store = limited_store(open_storage(f"memory://init-{next(_STORES)}"), clock)
        steps: dict[str, Callable[[Store], Producer]] = {
            "empty": initialize,
            "ongoing": begin_transaction,
            "committed": begin_transaction,
            "aborted": begin_transaction,
            "commit": partial(decide, end="commit"),
            "abort": partial(decide, end="abort"),
        }
        producer = steps[before](store)
        if before == "committed":
            producer.commit_transaction()
        elif before == "aborted":
            producer.abort_transaction()
        clock.time_ms += 10**9
        values(another(store))
        assert owner(store)[:2] == expected, before
        if before == "ongoing":
            with pytest.raises(ProducerFenced, match="open for longer than 60000 ms"):
                producer.commit_transaction()


def test_a_commit_flushes_and_an_abort_drops(store: Store) -> None:
    """Buffered records belong to the transaction they were sent in, and to no later one."""
    producer = initialize(store)
    producer.begin_transaction()
    producer.send("t", b"dropped")
    producer.abort_transaction()
    assert store.storage.list_names("topics/t/data/0") == []
    with producer.transaction():
        producer.send("t", b"flushed")
    producer.begin_transaction()
    producer.send("t", b"dropped too")
    producer.close()
    assert values(store) == [b"flushed"]
    assert store.scan("t", isolation_level="read_uncommitted").record_count == 1


def test_the_last_epoch_is_followed_by_a_new_producer_id(store: Store, clock: VirtualClock) -> None:
    """At 32767 a time-out has no epoch to bump; it fences all the same, and init starts over."""
    initialize(store)
    head = store.logs.transactions.describe("p")
    late = msgspec.structs.replace(
        head.state, producer_epoch=MAX_PRODUCER_EPOCH - 1, nonce="0" * 32
    )
    assert store.logs.transactions.put(head.number + 1, late, store.logs.transactions.now())
    stuck = begin_transaction(store, b"stuck")
    assert owner(store) == ("Ongoing", MAX_PRODUCER_EPOCH, head.state.producer_id)
    clock.time_ms += 60_001 + CLOCK_MARGIN_MS
    assert values(another(store)) == []
    assert owner(store) == ("CompleteAbort", MAX_PRODUCER_EPOCH, head.state.producer_id)
    with pytest.raises(ProducerFenced):
        stuck.commit_transaction()
    last = begin_transaction(store, b"next")
    status, epoch, producer_id = owner(store)
    assert (status, epoch) == ("Ongoing", 0)
    assert producer_id != head.state.producer_id
    last.commit_transaction()
    assert values(store) == [b"next"]


def test_after_the_last_epoch_comes_a_new_producer_id(store: Store) -> None:
    """Also where init aborts an open transaction of that epoch, which leaves no epoch to bump."""
    transactions = store.logs.transactions
    store.producer(transactional_id="p").init_transactions()
    first = transactions.describe("p")
    worn = msgspec.structs.replace(first.state, producer_epoch=MAX_PRODUCER_EPOCH - 1, nonce="n")
    assert transactions.put(first.number + 1, worn, transactions.now())
    old = begin(store)
    old.send("t", b"old")
    old.flush()
    last = transactions.describe("p").state
    assert (last.producer_id, last.producer_epoch) == (worn.producer_id, MAX_PRODUCER_EPOCH)
    new = begin(store)
    state = transactions.describe("p").state
    assert state.producer_id != worn.producer_id
    assert state.producer_epoch == 0
    new.send("t", b"new")
    with pytest.raises(TxnlogError) as caught:
        old.commit_transaction()
    assert caught.value.fatal
    new.commit_transaction()
    assert values(another(store)) == [b"new"]
