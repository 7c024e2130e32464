"""The state machine of a transactional id, without any storage: conditions 11 to 18."""

from __future__ import annotations

import msgspec
import pytest

from txnlog.errors import InvalidTransactionTimeout, InvalidTxnState, ProducerFenced
from txnlog.log.settlement import CLOCK_MARGIN_MS, Deadlines
from txnlog.log.transaction_log import Head, TransactionLog
from txnlog.names import check_transactional_id
from txnlog.state import transaction as transitions
from txnlog.state.transaction import (
    DECODER,
    MAX_PRODUCER_EPOCH,
    EntryRef,
    Outcome,
    Status,
    TransactionState,
    Version,
)
from txnlog.storage import envelope
from txnlog.testing import HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("T1", "T3", "T5", "T10", "hazard 4")

ENTRY = EntryRef("topic", "orders", 7)


def initialize(state: TransactionState | None = None, **changes: object) -> TransactionState:
    arguments: dict[str, object] = {
        "transactional_id": "etl",
        "timeout_ms": 1000,
        "fresh_producer_id": 42,
        "owned_epoch": None,
        "now_ms": 10,
        "nonce": "n0",
    }
    return transitions.initialize(state, **(arguments | changes))  # type: ignore[arg-type]


def ongoing_state() -> TransactionState:
    return transitions.participate(
        initialize(), topics=["orders"], groups=["g"], now_ms=20, nonce="n1"
    )


def committed_state() -> TransactionState:
    return transitions.prepare_commit(ongoing_state(), [ENTRY], now_ms=30, nonce="n2")


def aborted_state() -> TransactionState:
    return transitions.prepare_abort(ongoing_state(), now_ms=30, nonce="n2")


def complete(state: TransactionState) -> TransactionState:
    return transitions.complete(state)


@pytest.mark.condition(11)
def test_an_empty_transactional_id_is_refused() -> None:
    """An id must have at least one character."""
    from txnlog.errors import InvalidTransactionalId

    with pytest.raises(InvalidTransactionalId):
        check_transactional_id("")


def change(state: TransactionState, **changes: object) -> TransactionState:
    return msgspec.structs.replace(state, **changes)


DEAD = transitions.expire(initialize(), now_ms=50, nonce="n5", reason="idle")


@pytest.mark.parametrize(
    ("state", "later"),
    [
        (initialize(), ongoing_state()),
        (initialize(), initialize(initialize())),
        (initialize(), DEAD),
        (complete(committed_state()), change(ongoing_state(), number=2)),
        (ongoing_state(), committed_state()),
        (ongoing_state(), change(aborted_state(), producer_epoch=1)),
        (committed_state(), complete(committed_state())),
    ],
)
def test_what_may_follow_a_state(state: TransactionState, later: TransactionState) -> None:
    """Hazard 3: by this a stalled instance knows that the next entry was built on its own."""
    assert transitions.may_follow(later, state)


@pytest.mark.parametrize(
    ("state", "later"),
    [
        (initialize(), change(ongoing_state(), producer_epoch=1)),
        (initialize(), change(ongoing_state(), producer_id=43)),
        (initialize(), change(ongoing_state(), number=2)),
        (initialize(), initialize()),
        (initialize(), change(initialize(initialize()), number=1)),
        (initialize(), change(DEAD, producer_epoch=1)),
        (initialize(), committed_state()),
        (ongoing_state(), change(committed_state(), producer_epoch=1)),
        (ongoing_state(), change(aborted_state(), producer_epoch=2)),
        (ongoing_state(), change(ongoing_state(), number=2)),
        (ongoing_state(), complete(committed_state())),
        (committed_state(), committed_state()),
        (committed_state(), complete(aborted_state())),
        (committed_state(), change(complete(committed_state()), entries=())),
        (committed_state(), change(complete(committed_state()), number=2)),
    ],
)
def test_what_cannot_follow_a_state(state: TransactionState, later: TransactionState) -> None:
    """Hazard 3: what was built on another state, which took a name that cleaning had freed."""
    assert not transitions.may_follow(later, state)


@pytest.mark.condition(11)
@pytest.mark.parametrize("timeout_ms", [-1, 0, 1001, True, 1.5])
def test_bad_timeouts_are_refused(timeout_ms: int) -> None:
    """-1, 0 and max + 1 are no timeouts."""
    with pytest.raises(InvalidTransactionTimeout, match="1 to 1000"):
        transitions.check_timeout(timeout_ms, 1000)


@pytest.mark.condition(11)
@pytest.mark.parametrize("timeout_ms", [1, 1000])
def test_the_limits_of_timeouts_are_accepted(timeout_ms: int) -> None:
    """1 and max are."""
    assert transitions.check_timeout(timeout_ms, 1000) == timeout_ms


@pytest.mark.condition(12)
def test_the_first_init_has_epoch_0() -> None:
    """A new id gets the fresh producer id and epoch 0."""
    state = initialize()
    assert (state.status, state.producer_id, state.producer_epoch) == (Status.EMPTY, 42, 0)


@pytest.mark.condition(12)
@pytest.mark.parametrize(
    "before", [initialize(), complete(committed_state()), complete(aborted_state())]
)
def test_init_again_bumps_the_epoch_once_and_keeps_the_producer_id(
    before: TransactionState,
) -> None:
    """From Empty and Complete*, epoch + 1 and the same producer id and number."""
    state = initialize(before, fresh_producer_id=99)
    assert (state.producer_id, state.producer_epoch) == (42, before.producer_epoch + 1)
    assert state.number == before.number


@pytest.mark.condition(13, 14)
@pytest.mark.parametrize("before", [ongoing_state(), committed_state(), aborted_state()])
def test_init_does_not_pass_over_an_unfinished_transaction(before: TransactionState) -> None:
    """What is open or prepared must be ended first."""
    with pytest.raises(InvalidTxnState):
        initialize(before)


@pytest.mark.condition(15)
def test_an_init_that_has_fenced_does_not_bump_the_epoch_twice() -> None:
    """At most one bump per completed init."""
    fenced = transitions.prepare_abort(ongoing_state(), now_ms=30, nonce="n2", fence=True)
    state = initialize(complete(fenced), owned_epoch=fenced.producer_epoch)
    assert state.producer_epoch == ongoing_state().producer_epoch + 1


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    """The epoch is an int16: when it is used up, a fresh producer id starts at epoch 0."""
    last = msgspec.structs.replace(initialize(), producer_epoch=MAX_PRODUCER_EPOCH)
    state = initialize(last, fresh_producer_id=99)
    assert (state.producer_id, state.producer_epoch) == (99, 0)


@pytest.mark.condition(16)
def test_only_an_open_transaction_can_be_decided() -> None:
    """Commit and abort need Ongoing."""
    for state in (
        initialize(),
        committed_state(),
        aborted_state(),
        complete(committed_state()),
        complete(aborted_state()),
    ):
        with pytest.raises(InvalidTxnState):
            transitions.prepare_commit(state, [], now_ms=1, nonce="x")
        with pytest.raises(InvalidTxnState):
            transitions.prepare_abort(state, now_ms=1, nonce="x")


def test_only_a_prepared_transaction_can_be_completed() -> None:
    """Completion follows a decision, and keeps it."""
    for state in (initialize(), ongoing_state(), complete(committed_state())):
        with pytest.raises(InvalidTxnState):
            transitions.complete(state)
    assert complete(committed_state()).outcome is Outcome.COMMIT
    assert complete(committed_state()).entries == (ENTRY,)
    assert complete(aborted_state()).outcome is Outcome.ABORT


def test_whoever_completes_puts_the_same_bytes() -> None:
    """Who has decided, and who has read the decision, at any time, in whatever order (T10)."""
    open_ = transitions.participate(
        initialize(), topics=["b", "a"], groups=["g"], now_ms=20, nonce="n1"
    )
    entries = [ENTRY, EntryRef("group", "g", 3), EntryRef("topic", "a", 1)]
    for number, application in enumerate(("z", "a")):
        version = Version(application, number)
        decided = transitions.prepare_commit(
            open_, reversed(entries), now_ms=30, nonce="n2", version=version
        )
        open_ = transitions.participate(
            complete(decided), topics=["b"], groups=[], now_ms=40, nonce="n3"
        )
    aborted = transitions.prepare_abort(open_, now_ms=50, nonce="n4", fence=True, reason="late")
    for state in (decided, aborted):
        read = envelope.decode(envelope.encode(state), DECODER, "state")
        assert envelope.encode(complete(read)) == envelope.encode(complete(state))
        assert (complete(state).updated_at_ms, complete(state).nonce) == (
            state.updated_at_ms,
            state.nonce,
        )


@pytest.mark.condition(17)
@pytest.mark.parametrize(("producer_id", "epoch"), [(42, 1), (41, 0)])
def test_a_wrong_producer_id_or_epoch_is_fenced(producer_id: int, epoch: int) -> None:
    """A process that is not the owner is refused."""
    transitions.check_owner(ongoing_state(), 42, 0)
    with pytest.raises(ProducerFenced, match="fenced"):
        transitions.check_owner(ongoing_state(), producer_id, epoch)


@pytest.mark.parametrize("epoch", [0, 7, *range(MAX_PRODUCER_EPOCH - 3, MAX_PRODUCER_EPOCH)])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "idle"])
@pytest.mark.parametrize("newer", [0, 1, 2])
def test_who_was_fenced_alone(epoch: int, newer: int, *, is_open: bool) -> None:
    """By its own transaction's timeout; not if that of a newer producer was ended by one."""

    def begin(state: TransactionState) -> TransactionState:
        return transitions.participate(state, topics=["t"], groups=[], now_ms=20, nonce="n")

    def abort(state: TransactionState, reason: str) -> TransactionState:
        done = transitions.prepare_abort(state, now_ms=30, nonce="n", fence=True, reason=reason)
        return complete(done)

    state = change(initialize(), producer_epoch=epoch)
    if is_open or not newer:
        state = begin(state)
    for number in range(newer):
        owned = None
        if state.open:
            before, state = state, abort(state, transitions.NEWER_PRODUCER)
            bumped = state.producer_epoch > before.producer_epoch
            owned = state.producer_epoch if bumped else None
        state = begin(initialize(state, owned_epoch=owned, fresh_producer_id=100 + number))
    with pytest.raises(ProducerFenced) as caught:
        transitions.check_owner(abort(state, "late"), 42, epoch)
    # Which of both it was cannot be told at the last epoch, at which an abort leaves it.
    assert caught.value.ended_alone == (newer == 0 and epoch + 1 < MAX_PRODUCER_EPOCH)


@pytest.mark.condition(18)
def test_only_ongoing_times_out() -> None:
    """Past the timeout and the margin, Ongoing is overdue; nothing else ever is."""
    clock = VirtualClock(20 + 1000 + CLOCK_MARGIN_MS)
    deadlines = Deadlines(TransactionLog(HeapStorage(), clock), clock)
    assert not deadlines.overdue(Head(1, ongoing_state()))
    clock.time_ms += 1
    assert deadlines.overdue(Head(1, ongoing_state()))
    clock.time_ms = 10**15
    for state in (initialize(), committed_state(), aborted_state(), complete(committed_state())):
        assert not deadlines.overdue(Head(1, state))
    fenced = transitions.prepare_abort(ongoing_state(), now_ms=30, nonce="n2", fence=True)
    assert fenced.status is Status.PREPARE_ABORT
    assert fenced.producer_epoch == ongoing_state().producer_epoch + 1


def test_each_transaction_has_its_own_number() -> None:
    """Zombies are told apart by number: it rises with each begin, not with each addition."""
    first = ongoing_state()
    more = transitions.participate(first, topics=["b"], groups=[], now_ms=25, nonce="n9")
    second = transitions.participate(
        complete(committed_state()), topics=["c"], groups=[], now_ms=50, nonce="n9"
    )
    assert (more.number, more.topics, more.started_at_ms) == (1, ("b", "orders"), 20)
    assert (second.number, second.topics, second.groups, second.entries) == (2, ("c",), (), ())


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ongoing_state(), None),
        (committed_state(), Outcome.COMMIT),
        (complete(committed_state()), Outcome.COMMIT),
        (aborted_state(), Outcome.ABORT),
        (complete(aborted_state()), Outcome.ABORT),
        (None, "past"),
        (initialize(complete(committed_state())), Outcome.ABORT),
    ],
)
def test_how_a_reader_decides_an_entry(state: TransactionState | None, expected: object) -> None:
    """Rule b, for every state that an id can be in."""
    if state is not None and state.status is Status.EMPTY:
        expected = "past"
    assert transitions.decide_entry(ENTRY, ongoing_state().ref, state) == expected


def test_a_commit_covers_its_list_and_nothing_else() -> None:
    """Hazard 4: an entry of the transaction that is not on the decision's list is a zombie's."""
    stray = EntryRef("topic", "orders", 8)
    assert transitions.decide_entry(stray, ongoing_state().ref, committed_state()) is Outcome.ABORT


def test_a_later_transaction_of_the_id_decides_nothing_about_an_earlier_one() -> None:
    """Hazard 4: a commit must never hit entries of the id's other transactions."""
    second = transitions.participate(
        complete(committed_state()), topics=["orders"], groups=[], now_ms=50, nonce="n9"
    )
    decided = transitions.prepare_commit(second, [ENTRY], now_ms=60, nonce="n10")
    assert transitions.decide_entry(ENTRY, ongoing_state().ref, decided) == "past"


@pytest.mark.parametrize(
    "state",
    [
        initialize(),
        ongoing_state(),
        committed_state(),
        complete(committed_state()),
        complete(aborted_state()),
    ],
)
def test_states_survive_their_file(state: TransactionState) -> None:
    """Encoding and decoding a state gives the same state."""
    assert envelope.decode(envelope.encode(state), DECODER, "x") == state
