"""Transactional ids that are used no more: condition 19, and what comes after."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from tests.support.steps import another, begin_with, elsewhere, new_store, values
from txnlog.errors import (
    CommitStateUnknown,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TransactionalIdNotFound,
    TxnlogError,
)
from txnlog.producer import Producer
from txnlog.segments.records import normalize
from txnlog.state import transaction as transitions
from txnlog.state.transaction import Status
from txnlog.storage import envelope, open_storage
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock
from txnlog.write.segment_uploads import SegmentUploader

pytestmark = pytest.mark.rule("L17", "T7")

EXPIRATION_MS = 1_000_000
CLEANUP_AGE_MS = 60_000
_STORES = itertools.count()


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    return expiring_store(memory_storage, clock)


def expiring_store(storage: Storage, clock: VirtualClock) -> Store:
    config = {
        "transactional.id.expiration.ms": EXPIRATION_MS,
        "log.cleanup.age.ms": CLEANUP_AGE_MS,
        "transaction.max.timeout.ms": CLEANUP_AGE_MS,
    }
    return new_store(storage, clock, config=config)


def status_of(store: Store, name: str) -> str:
    return store.transactions.describe(name).status


def remove_all(store: Store, clock: VirtualClock) -> None:
    """Both halves of an expiry: the ids are dead, and then their logs are gone."""
    clock.time_ms += EXPIRATION_MS + 1
    store.transactions.expire_ids()
    clock.time_ms += CLEANUP_AGE_MS + 1
    store.transactions.expire_ids()


@pytest.mark.condition(19)
def test_only_idle_ids_expire(store: Store, clock: VirtualClock) -> None:
    """Empty and Complete* past the expiration, and never any other."""
    store.producer(transactional_id="empty").init_transactions()
    begin_with(store, "committed", b"x").commit_transaction()
    begin_with(store, "aborted", b"x").abort_transaction()
    begin_with(store, "ongoing", b"x")
    for name, end in (("prepared-c", "commit"), ("prepared-a", "abort")):
        producer = begin_with(store, name, b"x")
        assert producer._coordinator is not None
        producer._coordinator._finish_quietly = lambda: None  # type: ignore[method-assign]
        getattr(producer, f"{end}_transaction")()
    store.storage.put("transactions/bad/00000000000000000000.json", b"damaged")
    clock.time_ms += EXPIRATION_MS
    assert store.transactions.expire_ids() == []
    store.producer(transactional_id="fresh").init_transactions()
    clock.time_ms += 1
    assert another(store).transactions.expire_ids() == ["aborted", "committed", "empty"]
    for name in ("aborted", "committed", "empty"):
        assert status_of(store, name) == "Dead"
    clock.time_ms += CLEANUP_AGE_MS
    assert store.transactions.expire_ids() == []
    assert status_of(store, "empty") == "Dead"
    clock.time_ms += 1
    assert store.transactions.expire_ids() == []
    with pytest.raises(TransactionalIdNotFound):
        store.transactions.describe("empty")
    left = {
        found.transactional_id: found.status
        for found in another(store).transactions.list().with_errors()
        if not isinstance(found, TxnlogError)
    }
    assert left == {
        "fresh": "Empty",
        "ongoing": "Ongoing",
        "prepared-a": "PrepareAbort",
        "prepared-c": "PrepareCommit",
    }
    assert values(store) == [b"x", b"x"]


@pytest.mark.condition(19)
@pytest.mark.parametrize(
    "status", [s for s in Status if s not in transitions.IDLE], ids=lambda s: s.value
)
def test_what_is_under_way_does_not_expire(status: Status) -> None:
    """The same in the state machine itself."""
    state = transitions.TransactionState("p", status, 1, 0, 1, 1000, 5, "n")
    with pytest.raises(InvalidTxnState, match="does not expire"):
        transitions.expire(state, now_ms=9, nonce="m", reason="idle")


@pytest.mark.rule("hazard 10")
@pytest.mark.condition(19)
@pytest.mark.parametrize("wrong", ["maintenance", "producer", "storage"])
def test_one_wrong_clock_expires_no_id(clock: VirtualClock, wrong: str) -> None:
    """Whichever it is: ahead of time who maintains, or the storage; or behind, the producer."""
    storage = HeapStorage(like_disk=True)
    ahead_ms = {wrong: 10 * EXPIRATION_MS}
    stored_ms = 0
    storage.time_ms = lambda: clock.time_ms + stored_ms
    store = expiring_store(storage, clock)
    late = elsewhere(storage, clock, -ahead_ms.get("producer", 0))
    begin_with(late, "p", b"x").commit_transaction()
    stored_ms = ahead_ms.get("storage", 0)

    def expire() -> list[str]:
        return elsewhere(storage, clock, ahead_ms.get("maintenance", 0)).transactions.expire_ids()

    assert expire() == []
    clock.time_ms += EXPIRATION_MS
    assert expire() == []
    clock.time_ms += 1
    if wrong == "storage":
        stored_ms += 10 * EXPIRATION_MS
    assert expire() == ["p"]
    if wrong == "storage":
        stored_ms += 10 * EXPIRATION_MS
    assert expire() == []
    assert another(store).transactions.describe("p").status == "Dead"


def test_the_producer_of_an_expired_id_is_fenced(store: Store, clock: VirtualClock) -> None:
    """It may be idle and not dead: it is told why, before and after the log is removed."""
    idle = begin_with(store, "p", b"before")
    idle.commit_transaction()
    other = begin_with(store, "q", b"before too")
    other.commit_transaction()
    clock.time_ms += EXPIRATION_MS + 1
    another(store).transactions.expire_ids()
    idle.begin_transaction()
    idle.send("t", b"never")
    with pytest.raises(ProducerFenced, match=r"'p' has expired: it was idle for 1000001 ms"):
        idle.commit_transaction()
    clock.time_ms += CLEANUP_AGE_MS + 1
    another(store).transactions.expire_ids()
    other.begin_transaction()
    other.send("t", b"never")
    with pytest.raises(ProducerFenced):
        other.commit_transaction()
    assert values(another(store)) == [b"before", b"before too"]


@pytest.mark.parametrize("removed", [False, True])
def test_an_expired_id_begins_anew(store: Store, clock: VirtualClock, removed: bool) -> None:
    """A new producer id at epoch 0; numbers of states and transactions go on, versions stay."""
    first = begin_with(store, "p", b"one")
    first.commit_transaction()
    first.begin_transaction(application_id="a", version=7)
    first.commit_transaction()
    before = store.transactions.describe("p")
    clock.time_ms += EXPIRATION_MS + 1
    store.transactions.expire_ids()
    dead = store.transactions.describe("p")
    assert (dead.log_entry, dead.versions) == (before.log_entry + 1, {"a": 7})
    if removed:
        clock.time_ms += CLEANUP_AGE_MS + 1
        another(store).transactions.expire_ids()
        assert store.logs.transactions.ids() == []
    again = another(store)
    producer = begin_with(again, "p", b"two")
    assert producer.committed_version("a") == 7
    producer.commit_transaction()
    after = again.transactions.describe("p")
    assert after.producer_id != before.producer_id
    assert (after.producer_epoch, after.number) == (0, before.number + 1)
    assert after.log_entry > dead.log_entry
    assert values(store) == [b"one", b"two"]
    remove_all(again, clock)
    assert again.storage.list_names("expired/p") == [f"{after.log_entry + 1:020d}.json"]
    assert begin_with(again, "p", b"x").committed_version("a") == 7


def test_readers_of_a_removed_id(store: Store, clock: VirtualClock) -> None:
    """Rule c: what was committed has its marker; an entry without one is a zombie's."""
    producer = begin_with(store, "p", b"committed")
    producer.commit_transaction()
    assert producer._coordinator is not None
    ref = producer._coordinator.state.ref
    remove_all(store, clock)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), clock)
    batch = normalize(pa.record_batch({"value": [b"zombie"]}), now_ms=1)
    uploader.write(batch, np.zeros(1, dtype=np.int32))
    store.logs.topic("t").place(uploader.finish(), transaction=ref)
    for reader in (store, another(store)):
        assert values(reader) == [b"committed"]
        assert reader.transactions.stable_offsets("t")[0].holders == ()


@pytest.mark.rule("hazard 3")
def test_an_instance_that_sleeps_over_an_expiry_harms_nobody(
    store: Store, clock: VirtualClock
) -> None:
    """Hazard 3: it lists, sleeps until the log is removed, and puts into a name that was freed."""
    begin_with(store, "p", b"one").commit_transaction()
    successor: list[Producer] = []

    def sleep(request: str) -> None:
        if request.startswith("put_if_absent transactions/p") and not successor:
            remove_all(another(store), clock)
            successor.append(begin_with(another(store), "p", b"two"))

    sleeper = attach(FaultyStorage(store.storage, before_request=sleep), clock=clock)
    late = sleeper.producer(transactional_id="p")
    late.init_transactions()
    assert len(successor) == 1
    with pytest.raises(ProducerFenced):
        successor[0].commit_transaction()
    with late.transaction():
        late.send("t", b"three")
    assert values(another(store)) == [b"one", b"three"]


@pytest.mark.parametrize("asleep_at", [0, 1, 2])
def test_an_instance_that_sleeps_while_its_id_lives_and_dies(
    store: Store, clock: VirtualClock, asleep_at: int
) -> None:
    """Hazard 3: it wakes up at its init, begin or decision, when the whole log was used and freed.

    What it puts stands alone in the log, and must pass neither for its commit nor for the id's
    newest state: others have aborted its transaction and committed versions since.
    """
    slept: list[str] = []

    def sleep(request: str) -> None:
        if request == f"put_if_absent transactions/p/{asleep_at:020d}.json" and not slept:
            slept.append(request)
            successor = another(store).producer(transactional_id="p")
            successor.init_transactions()
            for version in range(3):
                successor.begin_transaction(application_id="a", version=version)
                successor.send("t", b"%d" % version)
                successor.commit_transaction()
            remove_all(another(store), clock)

    sleeper = attach(FaultyStorage(store.storage, before_request=sleep), clock=clock)
    late = sleeper.producer(transactional_id="p")
    late.init_transactions()
    if asleep_at == 0:
        assert late.begin_transaction(application_id="a", version=2).already_committed
    else:
        late.begin_transaction()
        late.send("t", b"late")
        with pytest.raises(ProducerFenced):
            late.commit_transaction()
        assert store.storage.list_names("transactions/p") == [f"{asleep_at:020d}.json"]
        for reader in (store, another(store)):
            assert [*reader.transactions.list()] == []
            assert [*reader.transactions.hanging()] == []
    assert len(slept) == 1
    again = another(store)
    assert values(again) == [b"0", b"1", b"2"]
    producer = begin_with(again, "p", b"next")
    assert producer.committed_version("a") == 2
    producer.commit_transaction()
    assert again.transactions.describe("p").number == 4 + (asleep_at == 2)
    assert values(another(store)) == [b"0", b"1", b"2", b"next"]


def removed_while_decided(store: Store, clock: VirtualClock, transactional_id: str) -> None:
    """A transaction that is decided is completed by others; then its id is removed."""
    logs = another(store).logs
    since = logs.transactions.now()
    logs.settlement.finish(logs.transactions.describe(transactional_id), since)
    remove_all(another(store), clock)
    assert store.storage.list_names(f"transactions/{transactional_id}") == []


def put_stray(store: Store, number: int, state: transitions.TransactionState) -> None:
    """What an instance puts that has slept: it stands alone, or beside the like."""
    path = f"transactions/{state.transactional_id}/{number:020d}.json"
    assert store.storage.put_if_absent(path, envelope.encode(state))


@pytest.mark.rule("hazard 3", "T6")
@pytest.mark.parametrize("strays", [[2], [1, 2]], ids=str)
def test_who_knew_an_id_does_not_take_a_stray_for_its_newest_state(
    store: Store, clock: VirtualClock, strays: list[int]
) -> None:
    """Its number may be that of the newest state that a process has seen, or the next one."""
    begin_with(store, "p", b"late")
    knew_it_open, knew_it_aborted = another(store), another(store)
    since = store.logs.transactions.now()
    head = knew_it_open.logs.transactions.describe("p")
    assert store.logs.settlement.abort_for_another(head, since) is not None
    assert knew_it_aborted.transactions.describe("p").log_entry == 2
    removed_while_decided(store, clock, "p")
    late = transitions.prepare_commit(head.state, [], now_ms=1, nonce="late")
    for number in strays:
        put_stray(store, number, late if number == 2 else head.state)
    for process in (knew_it_open, knew_it_aborted, another(store)):
        with pytest.raises(TransactionalIdNotFound):
            process.transactions.describe("p")


@pytest.mark.rule("hazard 3", "T6")
def test_a_reader_that_sleeps_while_an_id_is_removed(store: Store, clock: VirtualClock) -> None:
    """It has listed a state, and would read another one, which was put under its name since."""
    begin_with(store, "p", b"late")
    since = store.logs.transactions.now()
    head = store.logs.transactions.describe("p")
    assert store.logs.settlement.abort_for_another(head, since) is not None
    late = transitions.prepare_commit(head.state, [], now_ms=1, nonce="late")
    slept: list[str] = []

    def sleep(request: str) -> None:
        if request == f"get transactions/p/{head.number + 1:020d}.json" and not slept:
            slept.append(request)
            removed_while_decided(store, clock, "p")
            put_stray(store, head.number + 1, late)

    reader = attach(FaultyStorage(store.storage, before_request=sleep), clock=clock)
    with pytest.raises(TransactionalIdNotFound):
        reader.transactions.describe("p")
    assert len(slept) == 1


@pytest.mark.rule("hazard 2", "hazard 3")
@pytest.mark.condition(23)
def test_a_stray_in_the_place_of_a_commit_does_not_tell_that_it_was_none(
    store: Store, clock: VirtualClock
) -> None:
    """The commit counted, unanswered; who was to abort it slept, and does so when all is gone."""
    losing = FaultyStorage(store.storage)
    producer = begin_with(another(store, losing), "p", b"x")
    opened = store.logs.transactions.describe("p")
    losing.faults = dict.fromkeys(range(len(losing.requests), 10_000), Fault.LOSE_RESPONSE)
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    losing.faults = {}
    removed_while_decided(store, clock, "p")
    late = transitions.prepare_abort(opened.state, now_ms=1, nonce="late", fence=True)
    put_stray(store, opened.number + 1, late)
    with pytest.raises(CommitStateUnknown, match="cleaned up"):
        producer.commit_transaction()
    assert values(another(store)) == [b"x"]


def test_an_id_that_is_used_meanwhile_does_not_expire(store: Store, clock: VirtualClock) -> None:
    """The expiry's put loses against an init that comes between its look and its put."""
    begin_with(store, "p", b"x").commit_transaction()
    clock.time_ms += EXPIRATION_MS + 1
    used: list[Producer] = []

    def use(request: str) -> None:
        if request.startswith("put_if_absent transactions/p") and not used:
            used.append(begin_with(store, "p", b"y"))

    expiring = attach(FaultyStorage(store.storage, before_request=use), clock=clock)
    assert expiring.transactions.expire_ids() == []
    used[0].commit_transaction()
    assert values(store) == [b"x", b"y"]


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.LOSE_RESPONSE, Fault.FAIL])
def test_expiry_that_fails_at_each_request(fault: Fault) -> None:
    """Whatever is left half done is usable, and the next call goes on with it."""
    for number in range(200):
        clock = VirtualClock()
        storage = open_storage(f"memory://expiry-{next(_STORES)}")
        store = expiring_store(storage, clock)
        for name in ("p", "q"):
            producer = begin_with(store, name, name.encode())
            producer.commit_transaction()
            producer.begin_transaction(application_id="a", version=3)
            producer.commit_transaction()
        faulty = FaultyStorage(storage)
        expiring = attach(faulty, clock=clock)
        start = len(faulty.requests)
        faulty.faults = {start + number: fault}
        try:
            remove_all(expiring, clock)
        except (ProcessStopped, StorageError):
            pass
        else:
            assert storage.list_folders("transactions") == []
        context = f"{fault.value}: request {number}, {faulty.requests[-1]}"
        clock.time_ms += CLEANUP_AGE_MS + 1
        reopened = attach(storage, clock=clock)
        assert values(reopened) == [b"p", b"q"], context
        producer = begin_with(reopened, "p", b"next")
        assert producer.committed_version("a") == 3, context
        producer.commit_transaction()
        assert values(reopened) == [b"p", b"q", b"next"], context
        assert reopened.transactions.describe("p").number == 3, context
        remove_all(reopened, clock)
        clock.time_ms += CLEANUP_AGE_MS + 1
        reopened.transactions.expire_ids()
        assert storage.list_folders("transactions") == [], context
        if start + number >= len(faulty.requests):
            assert number > 15
            return
    raise AssertionError("an expiry has no end of requests")


def test_a_removal_meets_a_put_under_a_freed_name(clock: VirtualClock) -> None:
    """The marks go when the copy is there: so one of both is found, whenever they are looked for.

    A removal at each request of the put, which is believed in none of them.
    """
    heap = HeapStorage(like_disk=True)
    store = expiring_store(heap, clock)
    producer = begin_with(store, "p", b"x")
    producer.commit_transaction()
    since = store.logs.transactions.now()
    old = store.logs.transactions.describe("p")
    for version in range(100):
        producer.begin_transaction(application_id="a", version=version)
        producer.commit_transaction()
        clock.time_ms += CLEANUP_AGE_MS + 1
    names = heap.list_names("transactions/p")
    assert int(next(name for name in names if ".closed" not in name).partition(".")[0]) > 5
    clock.time_ms += EXPIRATION_MS + 1
    assert store.transactions.expire_ids() == ["p"]
    clock.time_ms += CLEANUP_AGE_MS + 1
    late = transitions.participate(old.state, topics=["t"], groups=[], now_ms=1, nonce="late")
    for number in itertools.count():
        storage = heap.copy()

        def remove(_: Fault, storage: HeapStorage = storage) -> None:
            attach(storage, clock=clock).transactions.expire_ids()

        faulty = FaultyStorage(storage, on_wait=remove)
        sleeper = attach(faulty, clock=clock).logs.transactions
        sleeper._known("p").durable = old.number  # it has put that itself
        begun = len(faulty.requests)
        faulty.faults = {begun + number: Fault.DELAY}
        assert not sleeper.put(old.number + 1, late, since), faulty.requests[begun:]
        if begun + number >= len(faulty.requests):
            assert number > 1
            return


def test_a_removal_deletes_nothing_of_an_id_that_lives_again(clock: VirtualClock) -> None:
    """It looks once more when the copy is there: Dead must still be the newest state."""
    heap = HeapStorage()
    store = expiring_store(heap, clock)
    begin_with(store, "p", b"x").commit_transaction()
    clock.time_ms += EXPIRATION_MS + 1
    store.transactions.expire_ids()
    clock.time_ms += CLEANUP_AGE_MS + 1
    before = heap.list_names("transactions/p")
    done: list[str] = []

    def live_again(text: str) -> None:
        if text.startswith("list transactions/p") and heap.list_names("expired/p") and not done:
            done.append(text)
            another(store).producer(transactional_id="p").init_transactions()

    remover = another(store, FaultyStorage(heap, before_request=live_again))
    remover.transactions.expire_ids()
    assert done
    assert {*before} < {*heap.list_names("transactions/p")}


def test_a_removed_id_leaves_its_copy_and_nothing_else(store: Store, clock: VirtualClock) -> None:
    """The marks of its chapters go too: the copy says what they said."""
    producer = begin_with(store, "p", b"x")
    producer.commit_transaction()
    for version in range(100):
        producer.begin_transaction(application_id="a", version=version)
        producer.commit_transaction()
    listed = store.storage.list_names("transactions/p")
    assert [name for name in listed if ".closed" in name]
    remove_all(store, clock)
    assert store.storage.list_names("transactions/p") == []
    assert len(store.storage.list_names("expired/p")) == 1


@pytest.mark.parametrize("lives", [1, pytest.param(2, marks=pytest.mark.more)])
def test_a_remover_that_stalls_deletes_nothing_of_the_ids_next_life(lives: int) -> None:
    """Hazard 3 twice: it wakes when the id lives again, has closed chapters and freed names.

    An instance of that life slept at its decision, was fenced, and puts it under a name that was
    freed. Nobody reads it there, so it must not believe that it has committed. At each request.
    """
    for number in itertools.count():
        clock = VirtualClock()
        store = expiring_store(HeapStorage(like_disk=True), clock)
        begin_with(store, "p", b"first").commit_transaction()
        clock.time_ms += EXPIRATION_MS + 1
        store.transactions.expire_ids()
        clock.time_ms += CLEANUP_AGE_MS + 1
        asleep: list[Producer] = []

        def live_again(
            _: Fault,
            store: Store = store,
            clock: VirtualClock = clock,
            asleep: list[Producer] = asleep,
        ) -> None:
            for life in range(lives):
                if life:
                    remove_all(another(store), clock)
                asleep.append(begin_with(another(store), "p", b"lost"))
                successor = another(store).producer(transactional_id="p")
                successor.init_transactions()
                for version in range(100):
                    successor.begin_transaction(application_id="a", version=version + life * 100)
                    successor.commit_transaction()
                    clock.time_ms += CLEANUP_AGE_MS + 1

        faulty = FaultyStorage(store.storage, on_wait=live_again)
        remover = attach(faulty, clock=clock)
        begun = len(faulty.requests)
        faulty.faults = {begun + number: Fault.DELAY}
        remover.transactions.expire_ids()
        if begun + number >= len(faulty.requests):
            assert number > 7
            return
        context = f"request {number}, {faulty.requests[begun + number]}"
        assert len(asleep) == lives, context
        for producer in asleep:
            with pytest.raises(ProducerFenced):
                producer.commit_transaction()
        newest = another(store).transactions.describe("p")
        assert newest.status == "CompleteCommit", context
        assert newest.versions == {"a": 100 * lives - 1}, context
        begin_with(another(store), "p", b"next").commit_transaction()
        assert another(store).transactions.describe("p").number > newest.number, context
        assert values(another(store)) == [b"first", b"next"], context
