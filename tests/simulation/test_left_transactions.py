"""A producer dies at each single request of a transaction, and nobody uses its id again.

Readers end what they meet. Where nothing was placed yet, or all markers are there, no entry leads
to the transaction: then maintenance ends it, or an operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.steps import (
    another,
    begin,
    new_store,
    sound_transactions,
    stop_before_marking,
    values,
)
from txnlog.errors import InvalidTxnState, StorageError, TxnlogError
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.names import TopicPartition
from txnlog.results import Expiry, MaintenanceFailure, TransactionEnd
from txnlog.state.transaction import HELP_AFTER_MS
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("hazard 6")

TIMEOUT_MS = 60_000
EXPIRATION_MS = 10_000_000
TOPICS = {"a": 2, "b": 1, "in": 1}
WHOLE = {"a": [b"1", b"2"], "b": [b"3"]}


def made_store(storage: HeapStorage, clock: VirtualClock) -> Store:
    config = {"transactional.id.expiration.ms": EXPIRATION_MS}
    return new_store(storage, clock, TOPICS, config)


def run(store: Store, end: str) -> None:
    """One transaction over two topics and a group; it is new to the store, as a Spark job's is."""
    producer = begin(store, "once", TIMEOUT_MS)
    producer.send("a", b"1", partition=0)
    producer.send("a", b"2", partition=1)
    producer.flush()
    producer.send("b", b"3")
    producer.send_offsets_to_transaction({TopicPartition("in", 0): 3}, "g")
    getattr(producer, f"{end}_transaction")()


def died_at_each_request(end: str, *, like_disk: bool) -> Iterator[tuple[str, Store, VirtualClock]]:
    """The store as each death leaves it, just after a request."""
    for number in itertools.count():
        clock = VirtualClock()
        store = made_store(HeapStorage(like_disk=like_disk), clock)
        faulty = FaultyStorage(store.storage)
        dying = attach(faulty, clock=clock)
        first = len(faulty.requests)
        faulty.faults = {first + number: Fault.STOP_AFTER}
        with suppress(ProcessStopped):
            run(dying, end)
        if first + number >= len(faulty.requests):
            assert number > 15
            return
        yield f"{end}, after {number}: {faulty.requests[-1]}", another(store), clock


def check_nothing_is_left(store: Store, clock: VirtualClock, context: str) -> None:
    """No id has a transaction, nothing hangs, all or nothing is shown; the id expires later."""
    for found in sound_transactions(store):
        assert found.status in {"Empty", "CompleteCommit", "CompleteAbort"}, context
    assert [*store.transactions.hanging()] == [], context
    findings = [*store.examine(with_probe=False)]
    assert {finding.state for finding in findings} <= {"ok", "note"}, (context, findings)
    shown = {topic: values(another(store), topic) for topic in WHOLE}
    log = store.logs.fresh_group("g")
    with log.lock:
        group = log.state
        at = group.offset_of("in", 0)
    committed = None if at is None else at.offset
    assert (shown, committed) in [(WHOLE, 3), ({"a": [], "b": []}, None)], context
    known = [found.transactional_id for found in sound_transactions(store)]
    clock.time_ms += EXPIRATION_MS + 1
    expired = [step.name for step in another(store).maintain() if isinstance(step, Expiry)]
    assert expired == known, context


@pytest.mark.few(1)
@pytest.mark.condition(48)
@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("like_disk", [True, pytest.param(False, marks=pytest.mark.more)])
def test_maintenance_ends_what_nobody_ends(end: str, like_disk: bool) -> None:
    """Open past its timeout, or decided and not completed, wherever its producer died."""
    left = set()
    for context, store, clock in died_at_each_request(end, like_disk=like_disk):
        early = store.maintain()
        assert not [s for s in early if isinstance(s, TransactionEnd)], context
        clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + HELP_AFTER_MS + 1
        hanging = [*another(store).transactions.hanging()]
        planned = [*another(store).transactions.end_hanging(dry_run=True)]
        steps = another(store).maintain()
        assert not [s for s in steps if isinstance(s, MaintenanceFailure)], context
        ended = [s for s in steps if isinstance(s, TransactionEnd)]
        assert ended == planned, context
        assert len(ended) == len(hanging) <= 1, context
        left |= {(one.outcome, one.reason) for one in ended}
        check_nothing_is_left(another(store), clock, context)
    assert ("abort", "open past its timeout") in left  # begun, and nothing placed
    assert (end, "decided, not completed") in left  # all markers are there


@pytest.mark.more
@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("since", ["at once", "past the timeout"])
def test_readers_that_have_read_before_leave_the_rest_to_maintenance(end: str, since: str) -> None:
    """A reader that has settled what it found, maybe before it may complete it, never looks again.

    So an id that it has met is not completed by reading: maintenance does it.
    """
    for context, store, clock in died_at_each_request(end, like_disk=True):
        if since == "past the timeout":
            clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
        reader = another(store)
        reader.snapshot(["a", "b"])
        clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + HELP_AFTER_MS + 1
        reader.snapshot(["a", "b"])
        another(store).maintain()
        check_nothing_is_left(another(store), clock, context)


@pytest.mark.more
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_operator_ends_it_at_once(end: str) -> None:
    """A commit that was decided is completed, and the result says so; the rest is aborted."""
    outcomes = set()
    for context, store, clock in died_at_each_request(end, like_disk=True):
        before = sound_transactions(store)
        status = before[0].status if before else "none"
        if status in {"none", "Empty", "CompleteCommit"}:
            with pytest.raises(TxnlogError):
                store.transactions.abort("once", reason="its host is gone")
        else:
            found = store.transactions.abort("once", reason="its host is gone")
            assert found.status.startswith("Complete"), context
            committed = found.status == "CompleteCommit"
            assert committed == (status == "PrepareCommit"), context
            outcomes.add((status, found.status))
        check_nothing_is_left(another(store), clock, context)
    assert ("Ongoing", "CompleteAbort") in outcomes
    assert (f"Prepare{end.title()}", f"Complete{end.title()}") in outcomes


def test_one_that_cannot_be_ended_hinders_no_other() -> None:
    """Its error is among the results; another process, or the next run, ends it."""
    clock = VirtualClock()
    store = made_store(HeapStorage(), clock)
    for name in ("p", "q"):
        begin(store, name).send("a", b"x")
    for name in ("p", "q"):
        producer = begin(store, name)
        producer.send("a", b"x")
        producer.flush()
        stop_before_marking(producer)
        producer.commit_transaction()
    clock.time_ms += HELP_AFTER_MS + 1

    def refuse(request: str) -> None:
        if request.startswith("put_if_absent transactions/p/"):
            raise StorageError("denied")

    failing = attach(FaultyStorage(store.storage, before_request=refuse), clock=clock)
    ended = failing.transactions.end_hanging()
    assert [type(one).__name__ for one in ended.with_errors()] == ["StorageError", "TransactionEnd"]
    assert [found.status for found in sound_transactions(store)] == [
        "PrepareCommit",
        "CompleteCommit",
    ]
    (failure,) = [s for s in failing.maintain() if isinstance(s, MaintenanceFailure)]
    assert failure.part == "transactional ids"
    assert [one.transactional_id for one in store.transactions.end_hanging()] == ["p"]
    assert [*store.transactions.end_hanging()] == []
    with pytest.raises(InvalidTxnState, match="CompleteCommit: there is no open transaction"):
        store.transactions.abort("p", reason="late")


def test_a_clock_that_was_ahead_at_the_decision_keeps_nobody_from_completing_it() -> None:
    """It says nothing about how long ago that was; completing early is as right."""
    clock = VirtualClock()
    store = made_store(HeapStorage(), clock)
    producer = begin(attach(store.storage, clock=VirtualClock(clock.time_ms + 10**10, 5)), "p")
    producer.send("a", b"x")
    producer.flush()
    stop_before_marking(producer)
    producer.commit_transaction()
    assert [type(one).__name__ for one in store.transactions.end_hanging()] == ["TransactionEnd"]
    assert [*store.transactions.hanging()] == []


def test_one_that_its_id_has_ended_meanwhile_is_not_told() -> None:
    """A new instance of the id is faster, just before the abort is put."""
    clock = VirtualClock()
    store = made_store(HeapStorage(), clock)
    producer = begin(store, "p", TIMEOUT_MS)
    producer.send("a", b"x")
    producer.flush()
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    began: list[str] = []

    def begin_anew(request: str) -> None:
        if request.startswith("put_if_absent transactions/p/") and not began:
            began.append(request)
            begin(another(store), "p", TIMEOUT_MS)

    slow = attach(FaultyStorage(store.storage, before_request=begin_anew), clock=clock)
    assert [*slow.transactions.end_hanging()] == []
    assert began
    assert [found.status for found in sound_transactions(store)] == ["Empty"]
