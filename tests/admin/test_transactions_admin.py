"""Looking at transactions and ending them, as an operator does: listing, hanging ones, why, abort.

Clocks are virtual, so ages and timeouts are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from tests.support.steps import begin_with, elsewhere, new_store, stop_before_marking, values
from txnlog.clock import Moment
from txnlog.errors import (
    CommitStateUnknown,
    CorruptEntry,
    CorruptTransactionState,
    IncompleteResult,
    InvalidOption,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from txnlog.inspect.describe import describe_producers
from txnlog.inspect.descriptions import HangingTransaction, TransactionDescription
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.producer import Producer
from txnlog.state.transaction import TransactionState
from txnlog.store import Store
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

TIMEOUT_MS = 60_000


pytestmark = pytest.mark.store(topics={"t": 2})


def decide(store: Store, name: str) -> Producer:
    """A producer that has decided to commit, and stopped before it marked anything."""
    producer = begin_with(store, name, b"decided")
    stop_before_marking(producer)
    producer.commit_transaction()
    return producer


def ids(found: Iterable[Any]) -> list[str]:
    return [item.transactional_id for item in found]


# -- listing -------------------------------------------------------------------------------------


def test_transactions_are_listed_by_state_and_age(store: Store, clock: VirtualClock) -> None:
    """The age of an open transaction counts from its beginning, of others from the last change."""
    begin_with(store, "early", b"x")
    store.producer(transactional_id="idle").init_transactions()
    clock.time_ms += 1000
    late = begin_with(store, "late", b"x")
    clock.time_ms += 10
    late.send("t", b"more", partition=0)
    late.flush()
    begin_with(store, "done", b"x").commit_transaction()
    assert ids(store.transactions.list()) == ["done", "early", "idle", "late"]
    assert ids(store.transactions.list(states="Ongoing")) == ["early", "late"]
    assert ids(store.transactions.list(states=["Empty", "CompleteCommit"])) == ["done", "idle"]
    assert ids(store.transactions.list(older_than_ms=9)) == ["early", "idle", "late"]
    assert ids(store.transactions.list(older_than_ms=10)) == ["early", "idle"]
    assert ids(store.transactions.list(states=["Ongoing"], older_than_ms=1000)) == ["early"]
    assert ids(store.transactions.list(older_than_ms=1010)) == []
    with pytest.raises(InvalidOption, match="'open' is not one of Empty, Ongoing"):
        store.transactions.list(states=["open"])


def test_a_damaged_id_is_in_every_list(store: Store) -> None:
    """Condition 20: its error stands in its place, and hides no other."""
    store.storage.put("transactions/bad/00000000000000000000.json", b"damaged")
    begin_with(store, "good", b"x")
    for found in (
        store.transactions.list(),
        store.transactions.list(states="Empty", older_than_ms=1),
    ):
        assert isinstance(next(found.with_errors()), CorruptEntry)
    assert ids([*store.transactions.list(states="Ongoing").with_errors()][1:]) == ["good"]
    with pytest.raises(IncompleteResult, match="transactional id 'bad' may hang") as failed:
        list(store.transactions.hanging())
    assert [type(error) for error in failed.value.errors] == [CorruptTransactionState]


def test_producers_of_a_partition(store: Store, clock: VirtualClock) -> None:
    """Id, epoch, last sequence and time of each, and the transaction it has open there."""
    started_ms = clock.time_ms
    with store.producer() as plain:
        for number in range(4):
            plain.send("t", b"x", partition=number % 2)
    clock.time_ms += 5
    producer = begin_with(store, "p", b"first")
    producer.commit_transaction()
    with producer.transaction():
        pass
    producer.begin_transaction()
    producer.send("t", b"second", partition=0)
    producer.send("t", b"third", partition=0)
    producer.flush()
    found = {(p.partition, p.transaction is None): p for p in store.transactions.producers("t")}
    assert len(found) == 3
    for number in range(2):
        mine = found[number, True]
        assert (mine.last_sequence, mine.last_at_ms, mine.producer_epoch) == (1, started_ms, 0)
    theirs = found[0, False]
    state = store.transactions.describe("p")
    assert (theirs.producer_id, theirs.producer_epoch) == (state.producer_id, 0)
    assert (theirs.last_sequence, theirs.last_at_ms) == (2, started_ms + 5)
    assert theirs.transaction is not None
    assert (theirs.transaction.number, theirs.transaction_start_offset) == (2, 3)
    assert [
        p.partition for p in elsewhere(store.storage, clock).transactions.producers("t", 1)
    ] == [1]
    producer.commit_transaction()
    assert [p.transaction for p in store.transactions.producers("t", 0)] == [None, None]
    with pytest.raises(UnknownTopicOrPartition):
        store.transactions.producers("t", 2)


def test_an_open_transaction_of_an_older_epoch_is_still_shown(store: Store) -> None:
    """A new instance has appended, and the old one's entry is not decided for want of its state."""
    begin_with(store, "p", b"old", partition=1).commit_transaction()
    log = store.logs.topic("t")
    ref = store.transactions.describe("p")
    log._state.undecided[log._state.recent[-1].number] = log._state.recent[-1].transaction  # type: ignore[assignment]
    log._state.producers[ref.producer_id].partitions.clear()
    (found,) = describe_producers(log)
    assert (found.last_sequence, found.transaction_start_offset) == (None, 0)


# -- hanging -------------------------------------------------------------------------------------


def hanging(store: Store) -> list[HangingTransaction]:
    """The transactions that hang, none of which is damaged."""
    return [*store.transactions.hanging()]


def test_hanging_transactions_are_found_and_left_alone(store: Store, clock: VirtualClock) -> None:
    """Past their timeout by how much, and what ends them; finding them ends nothing."""
    begin_with(store, "stuck", b"x")
    clock.time_ms += 1000
    begin_with(store, "fine", b"x")
    decide(store, "half")
    clock.time_ms += TIMEOUT_MS - 1000
    found = hanging(store)
    assert [(h.transaction.transactional_id, h.overdue_ms) for h in found] == [("half", 49_000)]
    assert found[0].ended_by.startswith("it is decided; finished by the next process")
    clock.time_ms += CLOCK_MARGIN_MS
    assert len(hanging(elsewhere(store.storage, clock))) == 1
    clock.time_ms += 7
    found = hanging(elsewhere(store.storage, clock))
    assert [(h.transaction.transactional_id, h.overdue_ms) for h in found] == [
        ("half", 49_007 + CLOCK_MARGIN_MS),
        ("stuck", 7 + CLOCK_MARGIN_MS),
    ]
    assert "aborted by the next process that reads" in found[1].ended_by
    assert "'stuck'" in found[1].ended_by
    assert store.transactions.describe("stuck").status == "Ongoing"
    values(store)
    found = hanging(store)
    assert "stuck" not in {h.transaction.transactional_id for h in found}
    ended = store.transactions.describe("stuck")
    assert (ended.status, ended.reason) == ("CompleteAbort", "it was open for longer than 60000 ms")


# -- why -----------------------------------------------------------------------------------------


def test_who_holds_the_last_stable_offset(store: Store, clock: VirtualClock) -> None:
    """Each holder with its entry, since when, and what ends it and when; the first one holds it."""
    started_ms = clock.time_ms
    with store.producer() as plain:
        plain.send("t", b"x", partition=0)
    first = begin_with(store, "first", b"a", b"b")
    clock.time_ms += 50
    begin_with(store, "second", b"c")
    for reader in (store, elsewhere(store.storage, clock)):
        zero, one = reader.transactions.stable_offsets("t")
        assert (zero.last_stable_offset, zero.end_offset, one.holders) == (1, 4, ())
        assert [h.transaction.transactional_id for h in zero.holders] == ["first", "second"]
        assert [(h.offset, h.entry, h.status) for h in zero.holders] == [
            (1, 2, "Ongoing"),
            (3, 4, "Ongoing"),
        ]
        assert [(h.placed_at_ms, h.started_at_ms, h.ends_by_ms) for h in zero.holders] == [
            (started_ms, started_ms, started_ms + TIMEOUT_MS),
            (started_ms + 50, started_ms + 50, started_ms + 50 + TIMEOUT_MS),
        ]
        assert "its producer's commit or abort" in zero.holders[0].ended_by
    first.commit_transaction()
    (zero,) = store.transactions.stable_offsets("t", 0)
    assert (zero.last_stable_offset, len(zero.holders)) == (3, 1)
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    (zero,) = elsewhere(store.storage, clock).transactions.stable_offsets("t", 0)
    assert (zero.last_stable_offset, zero.holders) == (4, ())
    with pytest.raises(UnknownTopicOrPartition):
        store.transactions.stable_offsets("none")


def test_a_damaged_state_holds_the_last_stable_offset(store: Store, clock: VirtualClock) -> None:
    """It says which file to repair, because nothing else would end it."""
    begin_with(store, "p", b"x")
    name = f"transactions/p/{store.transactions.describe('p').log_entry:020d}.json"
    store.storage.delete([name])
    store.storage.put(name, b"damaged")
    (zero,) = elsewhere(store.storage, clock).transactions.stable_offsets("t", 0)
    (holder,) = zero.holders
    assert (zero.last_stable_offset, holder.status, holder.ends_by_ms) == (0, None, None)
    assert name in holder.ended_by


# -- abort with a reason -------------------------------------------------------------------------


def test_a_transaction_is_aborted_with_a_reason(store: Store, clock: VirtualClock) -> None:
    """The reason is kept and shown, the producer is fenced and told, and readers go on."""
    producer = begin_with(store, "p", b"gone")
    begin_with(store, "q", b"kept").commit_transaction()
    assert values(store) == []
    aborted = elsewhere(store.storage, clock).transactions.abort(
        "p", reason="the host is gone", number=1
    )
    assert (aborted.status, aborted.reason) == ("CompleteAbort", "the host is gone")
    assert elsewhere(store.storage, clock).transactions.describe("p") == aborted
    assert values(store) == [b"kept"]
    with pytest.raises(ProducerFenced, match="aborted: the host is gone"):
        producer.commit_transaction()
    again = store.transactions.abort("p", reason="once more", number=1)
    assert again == aborted
    successor = begin_with(store, "p", b"next")
    assert store.transactions.describe("p").reason == ""
    with pytest.raises(InvalidTxnState, match="is at transaction 2, not 1; nothing was aborted"):
        store.transactions.abort("p", reason="too late", number=1)
    successor.commit_transaction()
    assert values(store) == [b"kept", b"next"]


def test_what_cannot_be_aborted(store: Store) -> None:
    """Not what has committed, nor what never began, nor without a reason."""
    store.producer(transactional_id="idle").init_transactions()
    begin_with(store, "done", b"x").commit_transaction()
    for name in ("idle", "done"):
        before = store.transactions.describe(name)
        with pytest.raises(InvalidTxnState, match="no open transaction to abort"):
            store.transactions.abort(name, reason="why not")
        assert store.transactions.describe(name) == before
    with pytest.raises(TransactionalIdNotFound):
        store.transactions.abort("never", reason="why not")
    with pytest.raises(InvalidOption, match="a reason is needed"):
        store.transactions.abort("done", reason=" ")
    assert values(store) == [b"x"]


def test_a_commit_that_was_decided_is_completed(store: Store) -> None:
    """It cannot be aborted any more: the result says what became of it."""
    for name, options in (("half", {}), ("other half", {"force": True})):
        decide(store, name)
        planned = store.transactions.abort(name, reason="its host is gone", dry_run=True)
        assert planned == store.transactions.describe(name)
        assert planned.status == "PrepareCommit"
        found = store.transactions.abort(name, reason="its host is gone", **options)
        assert (found.status, found.reason) == ("CompleteCommit", "")
    assert hanging(store) == []
    assert values(store) == [b"decided", b"decided"]


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL, Fault.STOP_AFTER])
def test_an_abort_that_fails_can_be_repeated(clock: VirtualClock, fault: Fault) -> None:
    """At each of its requests: it is aborted once, with the reason, and nothing shows."""
    for number in range(100):
        storage = HeapStorage()
        store = new_store(storage, clock)
        begin_with(store, "p", b"x")
        faulty = FaultyStorage(storage)
        operator = elsewhere(faulty, clock)
        faulty_at = len(faulty.requests) + number
        faulty.faults = {faulty_at: fault}
        with suppress(ProcessStopped, StorageError, CommitStateUnknown):
            operator.transactions.abort("p", reason="stuck", number=1)
        reached = len(faulty.requests) > faulty_at
        found = elsewhere(store.storage, clock).transactions.abort("p", reason="stuck", number=1)
        assert isinstance(found, TransactionDescription)
        assert (found.status, found.reason, found.producer_epoch) == ("CompleteAbort", "stuck", 1)
        assert values(elsewhere(store.storage, clock)) == []
        assert not store.topics.describe("t").open_transactions
        if not reached:
            assert number > 4
            return
    raise AssertionError("an abort has no end of requests")


def test_an_abort_that_loses_a_race_looks_again(store: Store, clock: VirtualClock) -> None:
    """The producer commits between the operator's look and its put: nothing is aborted."""
    producer = begin_with(store, "p", b"x")
    raced: list[str] = []

    def meanwhile(request: str) -> None:
        if request.startswith("put_if_absent transactions/p") and not raced:
            raced.append(request)
            producer.commit_transaction()

    operator = elsewhere(FaultyStorage(store.storage, before_request=meanwhile), clock)
    with pytest.raises(InvalidTxnState, match="CompleteCommit"):
        operator.transactions.abort("p", reason="stuck")
    assert raced
    assert values(store) == [b"x"]


def test_a_newer_instance_gives_its_reason(store: Store, clock: VirtualClock) -> None:
    """The reason why a transaction was ended is kept with it."""
    first = begin_with(store, "p", b"x")
    second = elsewhere(store.storage, clock)
    log = []
    put = second.logs.transactions.put

    def recording(
        number: int, state: TransactionState, since: Moment, *, decided: bool = False
    ) -> bool:
        log.append((state.status.value, state.reason))
        return put(number, state, since, decided=decided)

    second.logs.transactions.put = recording  # type: ignore[method-assign]
    second.producer(transactional_id="p").init_transactions()
    why = "a newer producer was initialised with its transactional id"
    assert log == [("PrepareAbort", why), ("CompleteAbort", why), ("Empty", "")]
    with pytest.raises(ProducerFenced):
        first.commit_transaction()
