"""A newest state that cannot be read blocks nobody for ever, and loses no marked commit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.steps import (
    append,
    begin,
    begin_with,
    elsewhere,
    new_store,
    stop_before_marking,
    values,
)
from tests.support.storage.timed_storage import TimedStorage
from txnlog.errors import CorruptTransactionState, ProducerFenced, StorageError
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.results import TransactionEnd
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store
from txnlog.testing import FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("hazard 6")

TIMEOUT_MS = 60_000


@pytest.fixture
def heap(clock: VirtualClock) -> HeapStorage:
    heap = HeapStorage()
    new_store(heap, clock, {"t": 1, "u": 1}, {"transaction.max.timeout.ms": TIMEOUT_MS})
    return heap


def begin_everywhere(store: Store) -> Producer:
    producer = begin(store)
    for topic in ("t", "u"):
        producer.send(topic, b"p")
    producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
    producer.flush()
    return producer


def states(heap: HeapStorage) -> list[str]:
    names = heap.list_names("transactions/p")
    return [f"transactions/p/{name}" for name in names if name.endswith(".json")]


def damage(heap: HeapStorage, *names: str) -> None:
    """Flip a bit in these files."""
    for name in names:
        data = bytearray(heap.get(name))
        data[len(data) // 2] ^= 1
        heap.delete([name])
        heap.put(name, bytes(data))


def append_behind(store: Store) -> None:
    for topic in ("t", "u"):
        append(store, b"behind it", topic=topic)


def values_of_both(store: Store) -> list[list[bytes]]:
    snapshot = store.snapshot(["t", "u"])
    return [snapshot.scan(t).to_arrow().column("value").to_pylist() for t in ("t", "u")]


BEHIND = [[b"behind it"], [b"behind it"]]
BOTH = [[b"p", b"behind it"], [b"p", b"behind it"]]


class _Refusing(ForwardingStorage):
    """Some objects are listed, and cannot be read."""

    def __init__(self, inner: Storage, refused: Sequence[str], *, retriable: bool = False) -> None:
        super().__init__(inner)
        self.refused, self.retriable = refused, retriable

    def get(self, name: str) -> bytes:
        if name in self.refused:
            error = StorageError(f"reading {name} failed: it is archived")
            error.retriable = self.retriable
            raise error
        return self.inner.get(name)

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        return [self.get(name) for name in names]


class _Ended(_Refusing):
    """Its credentials end with the first object that is refused: nothing is listed then."""

    ended = False

    def get(self, name: str) -> bytes:
        self.ended = self.ended or name in self.refused
        return super().get(name)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        if self.ended:
            error = StorageError(f"listing {folder} failed: the credentials have expired")
            error.retriable = False
            raise error
        return self.inner.list_names(folder, start_after)


def test_a_state_that_the_storage_does_not_give_decides_nothing(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Readers stop before it, and nobody presumes an outcome, until an operator does."""
    begin_everywhere(elsewhere(heap, clock))
    storage = _Refusing(heap, states(heap)[-1:])
    append_behind(elsewhere(storage, clock))
    for _ in range(3):
        clock.time_ms += 10 * TIMEOUT_MS
        assert values_of_both(elsewhere(storage, clock)) == [[], []]
    with pytest.raises(StorageError, match="archived"):
        elsewhere(storage, clock).transactions.abort("p", reason="test")
    ended = elsewhere(storage, clock).transactions.abort("p", reason="test", force=True)
    assert ended.status == "CompleteAbort"
    assert values_of_both(elsewhere(storage, clock)) == BEHIND


def test_a_moments_failure_hides_nothing(heap: HeapStorage, clock: VirtualClock) -> None:
    """What is committed shows, or the read fails; then it can be made again."""
    producer = begin_everywhere(elsewhere(heap, clock))
    stop_before_marking(producer)
    producer.commit_transaction()
    storage = _Refusing(heap, states(heap)[-1:], retriable=True)
    with pytest.raises(StorageError, match="archived"):
        values(elsewhere(storage, clock))
    storage.refused = ()
    assert values(elsewhere(storage, clock)) == [b"p"]


@pytest.mark.parametrize("newest", ["refused", "damaged"])
def test_force_presumes_nothing_from_a_moments_failure(
    heap: HeapStorage, clock: VirtualClock, newest: str
) -> None:
    """Neither that of the newest state nor that of the decision before a damaged one."""
    producer = begin_everywhere(elsewhere(heap, clock))
    if newest == "refused":
        stop_before_marking(producer)
    producer.commit_transaction()
    storage = _Refusing(heap, states(heap)[-1:], retriable=True)
    if newest == "damaged":
        storage.refused = states(heap)[-2:-1]
        damage(heap, states(heap)[-1])
    there = states(heap)
    with pytest.raises(StorageError, match="archived") as told:
        elsewhere(storage, clock).transactions.abort("p", reason="test", force=True)
    assert told.value.retriable
    assert states(heap) == there
    storage.refused = ()
    ended = elsewhere(storage, clock).transactions.abort("p", reason="test", force=True)
    assert ended.status == "CompleteCommit"
    assert values(elsewhere(heap, clock)) == [b"p"]


def test_credentials_that_end_cut_no_read_short(heap: HeapStorage, clock: VirtualClock) -> None:
    producer = begin_everywhere(elsewhere(heap, clock))
    stop_before_marking(producer)
    producer.commit_transaction()
    with pytest.raises(StorageError, match="expired"):
        values(elsewhere(_Ended(heap, states(heap)[-1:]), clock))


@pytest.mark.parametrize("retriable", [False, True])
def test_one_id_that_cannot_be_read_keeps_no_other_from_being_ended(
    heap: HeapStorage, clock: VirtualClock, retriable: bool
) -> None:
    """It is told. If nothing can be read, that is told of a few, and the others are left."""
    names = [f"p{number:02}" for number in range(12)]
    for name in names:
        begin_with(elsewhere(heap, clock), name, b"x")
    clock.time_ms += 2 * TIMEOUT_MS
    every = [path for path, _ in heap.list_all("transactions") if path.endswith(".json")]
    one = [path for path in every if "/p00/" in path]
    storage = _Refusing(heap, one, retriable=retriable)
    steps = elsewhere(storage, clock).maintain()
    ended = [step.transactional_id for step in steps if isinstance(step, TransactionEnd)]
    assert ended == names[1:]
    storage.refused = [path for path, _ in heap.list_all("transactions") if path.endswith(".json")]
    steps = elsewhere(storage, clock).maintain()
    assert len([s for s in steps if getattr(s, "part", None) == "transactional ids"]) == 10
    with pytest.raises(StorageError, match="archived"):
        elsewhere(storage, clock).transactions.expire_ids()


@pytest.mark.condition(20)
@pytest.mark.parametrize("timed", [False, True])
def test_readers_go_on_past_it_by_the_timeout(
    heap: HeapStorage, clock: VirtualClock, timed: bool
) -> None:
    """Its open transaction is then aborted, for all readers, and its producer is fenced."""
    storage = TimedStorage(heap, clock) if timed else heap
    producer = begin_everywhere(elsewhere(storage, clock))
    damage(heap, states(heap)[-1])
    append_behind(elsewhere(storage, clock))
    for _ in range(3):
        assert values_of_both(elsewhere(storage, clock)) == [[], []]
        clock.time_ms += TIMEOUT_MS // 3
    clock.time_ms += CLOCK_MARGIN_MS + 1
    assert values_of_both(elsewhere(storage, clock)) == BEHIND
    ended = elsewhere(storage, clock).transactions.describe("p")
    assert ended.status == "CompleteAbort"
    assert "damaged" in ended.reason
    with pytest.raises(ProducerFenced, match="'p'"):
        producer.commit_transaction()
    again = begin_everywhere(elsewhere(storage, clock))
    again.commit_transaction()
    assert values_of_both(elsewhere(storage, clock)) == [[b"behind it", b"p"]] * 2


@pytest.mark.parametrize(("timed", "margin_ms"), [(False, CLOCK_MARGIN_MS), (True, 1_000)])
def test_readers_wait_for_the_timeout_and_the_margin(
    heap: HeapStorage, clock: VirtualClock, timed: bool, margin_ms: int
) -> None:
    """Not a millisecond less, as measured by a witness or by the storage's own clock."""
    storage = TimedStorage(heap, clock) if timed else heap
    begin_everywhere(elsewhere(storage, clock))
    damage(heap, states(heap)[-1])
    append_behind(elsewhere(storage, clock))
    assert values_of_both(elsewhere(storage, clock)) == [[], []]
    clock.time_ms += TIMEOUT_MS + margin_ms
    assert values_of_both(elsewhere(storage, clock)) == [[], []]
    clock.time_ms += 1
    assert values_of_both(elsewhere(storage, clock)) == BEHIND


def test_a_new_producer_waits_for_as_long(heap: HeapStorage, clock: VirtualClock) -> None:
    """Before, init says what is wrong and what can be done; after, it goes on."""
    begin_everywhere(elsewhere(heap, clock))
    damage(heap, states(heap)[-1])
    with pytest.raises(CorruptTransactionState, match=r"--force p"):
        elsewhere(heap, clock).producer(transactional_id="p").init_transactions()
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    begin_everywhere(elsewhere(heap, clock)).commit_transaction()
    assert values_of_both(elsewhere(heap, clock)) == [[b"p"], [b"p"]]


def test_an_operator_need_not_wait(heap: HeapStorage, clock: VirtualClock) -> None:
    """A forced abort ends it at once; without force nothing happens, nor with a dry run."""
    begin_everywhere(elsewhere(heap, clock))
    damage(heap, states(heap)[-1])
    append_behind(elsewhere(heap, clock))
    before = states(heap)
    with pytest.raises(CorruptTransactionState):
        elsewhere(heap, clock).transactions.abort("p", reason="stuck")
    told = elsewhere(heap, clock).transactions.abort("p", reason="stuck", force=True, dry_run=True)
    assert (told.status, states(heap)) == ("PrepareAbort", before)
    ended = elsewhere(heap, clock).transactions.abort("p", reason="stuck", force=True)
    assert (ended.status, ended.number) == ("CompleteAbort", 1)
    assert values_of_both(elsewhere(heap, clock)) == BEHIND
    group = elsewhere(heap, clock).consumer("t", group_id="g")
    assert group.committed(TopicPartition("t", 0)) is None


def test_the_end_of_it_has_an_epoch_that_nobody_has(heap: HeapStorage, clock: VirtualClock) -> None:
    """Invariant T1: not that of the instance which has put the damaged state and may live still."""
    elsewhere(heap, clock).producer(transactional_id="p").init_transactions()
    living = elsewhere(heap, clock).producer(transactional_id="p")
    living.init_transactions()
    owned = elsewhere(heap, clock).transactions.describe("p").producer_epoch
    damage(heap, states(heap)[-1])
    ended = elsewhere(heap, clock).transactions.abort("p", reason="stuck", force=True)
    assert ended.producer_epoch > owned
    with pytest.raises(ProducerFenced, match="damaged"), living.transaction():
        living.send("t", b"late")
    assert values_of_both(elsewhere(heap, clock)) == [[], []]


@pytest.mark.parametrize("marked", [1, 2, 3])
def test_a_commit_that_a_marker_shows_is_finished(
    heap: HeapStorage, clock: VirtualClock, marked: int
) -> None:
    """The decision to commit is damaged, and its writer died among the markers."""

    class Stopping(FaultyStorage):
        markers = 0

        def put_if_absent(self, name: str, data: bytes) -> bool:
            created = super().put_if_absent(name, data)
            self.markers += name.endswith(".commit")
            self.stopped = self.markers == marked
            return created

    producer = begin_everywhere(elsewhere(Stopping(heap), clock))
    with pytest.raises(ProcessStopped):
        producer.commit_transaction()
    damage(heap, states(heap)[-1])
    assert sum(name.endswith(".commit") for name, _ in heap.list_all("")) == marked
    append_behind(elsewhere(heap, clock))
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    values_of_both(elsewhere(heap, clock))
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    assert values_of_both(elsewhere(heap, clock)) == BOTH
    group = elsewhere(heap, clock).consumer("t", group_id="g")
    assert group.committed(TopicPartition("t", 0)) is not None


def test_what_follows_a_decision_needs_no_wait(heap: HeapStorage, clock: VirtualClock) -> None:
    """The end of a transaction is damaged: the decision before it says what it was."""
    begin_everywhere(elsewhere(heap, clock)).commit_transaction()
    damage(heap, states(heap)[-1])
    begin_everywhere(elsewhere(heap, clock)).commit_transaction()
    assert values_of_both(elsewhere(heap, clock)) == [[b"p", b"p"], [b"p", b"p"]]


def test_two_damaged_states(heap: HeapStorage, clock: VirtualClock) -> None:
    """The entries themselves suffice to end it."""
    begin_everywhere(elsewhere(heap, clock))
    damage(heap, *states(heap))
    append_behind(elsewhere(heap, clock))
    values_of_both(elsewhere(heap, clock))
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    assert values_of_both(elsewhere(heap, clock)) == BEHIND


def test_a_log_that_is_gone_is_no_proof(heap: HeapStorage, clock: VirtualClock) -> None:
    """An open transaction whose log does not show is not aborted for that before its timeout."""
    begin_everywhere(elsewhere(heap, clock))
    append_behind(elsewhere(heap, clock))
    kept = {name: heap.get(name) for name in states(heap)}
    heap.delete(kept)
    assert values_of_both(elsewhere(heap, clock)) == [[], []]
    for name, data in kept.items():
        heap.put(name, data)
    assert values_of_both(elsewhere(heap, clock)) == [[], []]
    heap.delete(kept)
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    assert values_of_both(elsewhere(heap, clock)) == BEHIND


@pytest.mark.parametrize("who", ["reader", "producer", "operator"])
def test_a_damaged_topic_keeps_no_transaction_from_being_aborted(
    heap: HeapStorage, clock: VirtualClock, who: str
) -> None:
    """Its entries get no marker, which only saves readers a search."""
    begin_everywhere(elsewhere(heap, clock))
    append_behind(elsewhere(heap, clock))
    damaged = max(name for name, _ in heap.list_all("topics/t/log") if name.endswith(".json"))
    kept = heap.get(damaged)
    damage(heap, damaged)
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    store = elsewhere(heap, clock)
    match who:
        case "reader":
            assert values(store, "u") == BEHIND[1]
        case "producer":
            store.producer(transactional_id="p").init_transactions()
        case "operator":
            assert store.transactions.abort("p", reason="stuck").status == "CompleteAbort"
    heap.replace(damaged, kept)
    assert values_of_both(elsewhere(heap, clock)) == BEHIND
