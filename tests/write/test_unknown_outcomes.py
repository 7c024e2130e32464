"""Requests whose outcome is not known: lost responses, commits and aborts in doubt."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest

from tests.support.log.settling import settling_early
from tests.support.steps import another, append, begin, begin_with, new_store, values
from tests.support.storage.disturbed_storages import HookedStorage, LosingStorage
from txnlog.errors import (
    CommitStateUnknown,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TxnlogError,
)
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

T0 = TopicPartition("t", 0)


pytestmark = [pytest.mark.usefixtures("short_chapters"), pytest.mark.rule("T4", "hazard 2")]


@pytest.mark.condition(23)
@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("then", ["commit", "abort", "init"])
def test_an_unknown_commit_deletes_nothing_and_is_settled_later(
    store: Store, effect: bool, then: str
) -> None:
    """The error says so (hazard 2); repeating or a new init tells the truth."""
    flaky = LosingStorage(store.storage)
    flaky.effect = effect
    producer = begin(another(store, flaky), "p")
    producer.send("t", b"x")
    producer.flush()
    flaky.losing = "transactions/p"
    with pytest.raises(CommitStateUnknown, match="commit_transaction"):
        producer.commit_transaction()
    flaky.losing = ""
    assert store.topics.segments("t")[0].record_count == 1
    if then == "commit":
        producer.commit_transaction()
        expected = [b"x"]
    elif then == "abort" and effect:
        with pytest.raises(InvalidTxnState, match="had succeeded"):
            producer.abort_transaction()
        expected = [b"x"]
    elif then == "abort":
        producer.abort_transaction()
        expected = []
    else:
        store.producer(transactional_id="p").init_transactions()
        expected = [b"x"] if effect else []
    assert values(another(store)) == expected
    assert not store.topics.describe("t").open_transactions


@pytest.mark.condition(49)
@pytest.mark.parametrize("effect", [True, False])
def test_an_unknown_flush_is_not_repeated(store: Store, effect: bool) -> None:
    """Flushing again writes what is missing, and nothing twice (hazard 2)."""
    flaky = LosingStorage(store.storage)
    flaky.effect = effect
    producer = another(store, flaky).producer()
    producer.send("t", b"one")
    flaky.losing = "topics/t/log"
    with pytest.raises(CommitStateUnknown, match="flush"):
        producer.flush()
    producer.send("t", b"two")
    flaky.losing = ""
    placed = producer.flush()
    assert placed == {T0: [range(1), range(1, 2)]}
    assert values(another(store)) == [b"one", b"two"]


class LosesOne(FaultyStorage):
    """Loses the response to the first create of a log entry of topic ``t``."""

    lost = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if name.startswith("topics/t/log/") and not self.lost:
            self.lost = True
            raise StorageError("the connection was reset")
        return done


@pytest.mark.rule("hazard 1")
def test_a_lost_response_is_no_conflict(store: Store) -> None:
    """Hazard 1: the entry is read back, its nonce is ours, and no second one is written."""
    losing = LosesOne(store.storage)
    producer = another(store, losing).producer()
    producer.send("t", b"x")
    assert producer.flush() == {T0: [range(1)]}
    assert losing.lost
    assert values(another(store)) == [b"x"]
    assert store.topics.describe("t").entries == 2


def test_the_end_of_somebody_elses_transaction_is_not_taken_over(
    store: Store, hooked: HookedStorage
) -> None:
    """A newer instance completes ours, then its own, which looks alike; we are fenced."""
    producer = begin_with(another(store, hooked), "p", b"1")
    puts: list[str] = []

    def overtaken(name: str) -> None:
        if name.startswith("transactions/"):
            puts.append(name)
            if len(puts) == 2:
                newer = begin(another(store))
                newer.send("t", b"2")
                newer.commit_transaction()

    hooked.rule = overtaken
    producer.commit_transaction()
    assert len(puts) == 2
    with pytest.raises(ProducerFenced), producer.transaction():
        producer.send("t", b"late")
    assert values(another(store)) == [b"1", b"2"]


def test_an_unknown_abort_is_no_commit(store: Store, hooked: HookedStorage) -> None:
    """Calling commit after an abort of unknown outcome is refused."""
    producer = begin_with(another(store, hooked), "p", b"1")

    hooked.fail_at("transactions/")
    with pytest.raises(CommitStateUnknown):
        producer.abort_transaction()
    hooked.rule = None
    with pytest.raises(TxnlogError, match="abort was begun"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(another(store)) == []


def test_a_late_commit_that_lands_against_an_abort_wins(
    store: Store, hooked: HookedStorage
) -> None:
    """A commit of unknown outcome lands just before its abort: abort says so, and no more."""
    producer = begin_with(another(store, hooked), "p", b"1")

    hooked.fail_at("transactions/")
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    name, commit = hooked.last

    def late(_: str) -> None:
        hooked.rule = None
        assert store.storage.put_if_absent(name, commit)

    hooked.rule = late
    with pytest.raises(InvalidTxnState, match="had succeeded"):
        producer.abort_transaction()
    assert values(another(store)) == [b"1"]
    with producer.transaction():
        producer.send("t", b"2")
    assert values(another(store)) == [b"1", b"2"]


def test_an_abort_that_found_a_commit_says_so_again_after_an_interrupt(
    store: Store, hooked: HookedStorage
) -> None:
    """Ctrl-C comes while the commit that has landed is finished: it stays committed."""
    producer = begin_with(another(store, hooked), "p", b"1")
    hooked.fail_at("transactions/")
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    name, commit = hooked.last

    def late(_: str) -> None:
        assert store.storage.put_if_absent(name, commit)
        hooked.interrupt_at(".commit")

    hooked.rule = late
    with pytest.raises(KeyboardInterrupt):
        producer.abort_transaction()
    with pytest.raises(InvalidTxnState, match="had succeeded"):
        producer.abort_transaction()
    assert store.transactions.describe("p").status == "CompleteCommit"
    assert values(another(store)) == [b"1"]


def abort_a_flush_in_doubt(store: Store, names: str) -> Producer:
    """A producer whose flush lost all responses about such names, and who then aborted."""
    losing = LosingStorage(store.storage)
    producer = begin(another(store, losing))
    producer.send("t", b"1")
    losing.losing = names
    with pytest.raises(StorageError, match="reset"):
        producer.flush()
    losing.losing = ""
    producer.abort_transaction()
    assert store.transactions.describe("p").status == "CompleteAbort"
    return producer


def test_an_abort_after_an_unknown_begin_ends_what_was_begun(store: Store) -> None:
    """The put of Ongoing has landed, though it failed: abort finds it, and the id goes on."""
    producer = abort_a_flush_in_doubt(store, "transactions/")
    with producer.transaction():
        producer.send("t", b"2")
    assert values(another(store)) == [b"2"]


def test_an_abort_is_complete_without_the_marker_of_an_entry_in_doubt(store: Store) -> None:
    """Invariant T4: an append landed, though it failed; unmarked it is aborted, now and later."""
    producer = abort_a_flush_in_doubt(store, "topics/t/log")
    names = store.storage.list_names("topics/t/log")
    assert names == ["00000000000000000000.json", "00000000000000000001.json"]
    assert values(another(store)) == []
    with producer.transaction():
        producer.send("t", b"2")
    assert values(another(store)) == [b"2"]


@pytest.mark.parametrize(
    ("fault", "states", "raised", "seen"),
    [
        (Fault.DELAY, 100, None, [b"x"]),
        (Fault.DELAY, 200, CommitStateUnknown, [b"x"]),
        (Fault.PAUSE, 100, ProducerFenced, []),
    ],
)
def test_a_commit_that_was_answered_after_cleaning_is_not_called_fenced(
    fault: Fault, states: int, raised: type[Exception] | None, seen: list[bytes]
) -> None:
    """The commit counted, though its answer came when its entry was closed, or cleaned up.

    A commit that was sent only then has surely not happened, and is called so.
    """
    inner, clock = HeapStorage(), VirtualClock()
    config = {"log.cleanup.age.ms": 60_000, "transaction.max.timeout.ms": 60_000}
    store = new_store(inner, clock, {"in": 1}, config)

    def meanwhile(_: Fault) -> None:
        for _turn in range(states):
            clock.time_ms += 60_001
            store.producer(transactional_id="p").init_transactions()

    slow = FaultyStorage(inner, on_wait=meanwhile)
    producer = begin(attach(slow, clock=clock), "p")
    producer.send("in", b"x")
    producer.flush()
    slow.faults = {len(slow.requests): fault}
    with pytest.raises(raised) if raised else nullcontext():
        producer.commit_transaction()
    if raised is CommitStateUnknown:
        for _ in range(2):
            with pytest.raises(CommitStateUnknown):
                producer.abort_transaction()
            # The second time nothing is left of its id, either.
            for _ in range(2):
                clock.time_ms += 60_001
                store.transactions.expire_ids(older_than_ms=1)
    producer.close()
    found = attach(inner, clock=clock).scan("in").to_arrow()
    assert found.column("value").to_pylist() == seen


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_in_doubt_that_is_repeated_after_cleaning_stays_in_doubt(landed: bool) -> None:
    """Repeating it puts it into a name that was freed; that tells nothing of the first time."""
    inner, clock = HeapStorage(), VirtualClock()
    config = {"log.cleanup.age.ms": 60_000, "transaction.max.timeout.ms": 60_000}
    store = new_store(inner, clock, {"in": 1}, config)
    away = FaultyStorage(inner)
    producer = attach(away, clock=clock).producer(transactional_id="p", delivery_timeout_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("in", b"x")
    producer.flush()
    start = len(away.requests)
    away.faults = dict.fromkeys(range(start, start + 10), Fault.FAIL)
    if landed:
        away.faults[start] = Fault.LOSE_RESPONSE
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    for _ in range(200):
        clock.time_ms += 60_001
        store.producer(transactional_id="p").init_transactions()
    for _ in range(2):
        with pytest.raises(CommitStateUnknown, match="cleaned up"):
            producer.commit_transaction()
    found = attach(inner, clock=clock).scan("in").to_arrow()
    assert found.column("value").to_pylist() == ([b"x"] if landed else [])


@pytest.mark.parametrize("settled", [True, False])
def test_an_append_that_was_answered_after_cleaning_can_only_be_aborted(settled: bool) -> None:
    """It is found placed; if it was left to a manifest since, not as which entry."""
    inner, clock = HeapStorage(), VirtualClock()
    config = {"log.cleanup.age.ms": 10_000, "transaction.max.timeout.ms": 10_000}
    store = new_store(inner, clock, {"in": 1}, config)

    def meanwhile(_: Fault) -> None:
        for turn in range(6):
            clock.time_ms += 10_001
            append(store, b"%d" % turn, topic="in")
            store.logs.fresh_topic("in").checkpoint()

    def before(text: str) -> None:
        if text.startswith("put_if_absent topics/in/log"):
            slow.faults.setdefault(len(slow.requests), Fault.DELAY)

    slow = FaultyStorage(inner, before_request=before, on_wait=meanwhile)
    producer = attach(slow, clock=clock).producer(
        transactional_id="p", transaction_timeout_ms=10_000
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("in", b"x")
    raised, said = (StorageError, "answered so late") if settled else (ProducerFenced, "fenced")
    with (
        settling_early() if settled else nullcontext(),
        pytest.raises(raised, match=said),
    ):
        producer.commit_transaction()
    assert slow.faults, "the fault was planted"
    with suppress(ProducerFenced):
        producer.close()
    found = attach(inner, clock=clock).scan("in").to_arrow().column("value").to_pylist()
    assert found == [b"%d" % turn for turn in range(6)]
