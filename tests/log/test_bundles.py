"""Bundles: files that hold appends of several transactions, each an entry with its own outcome."""

from __future__ import annotations

import json

import pytest

from tests.support.log.proposing import LOG, Losing, propose
from tests.support.steps import another, append, begin, checkpoint, new_store, send, upload, values
from tests.support.tiers import more
from txnlog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    StorageError,
    TxnlogError,
)
from txnlog.producer import Producer
from txnlog.state.transaction import TransactionRef
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = [pytest.mark.usefixtures("short_chapters"), pytest.mark.rule("L15")]
AGE_MS = 60_000


@pytest.fixture(params=[False, True], ids=["listings", "looks"])
def store(clock: VirtualClock, request: pytest.FixtureRequest) -> Store:
    """A topic with one append, on a storage that is listed, or one where names are looked for."""
    heap = HeapStorage(like_disk=request.param)
    heap.time_ms = lambda: clock.time_ms
    config = {"log.cleanup.age.ms": AGE_MS, "transaction.max.timeout.ms": AGE_MS}
    found = new_store(heap, clock, {"t": 2}, config)
    append(found, b"first", partition=0)
    return found


def ongoing(store: Store, transactional_id: str) -> TransactionRef:
    """A transaction that has named the topic, and whose writer is not there any more."""
    producer = begin(another(store), transactional_id, AGE_MS)
    assert producer._coordinator is not None
    producer._coordinator._participate(["t"], (), ())
    return producer._coordinator.state.ref


def bundling(store: Store, transactional_id: str = "p") -> Producer:
    """A producer in a transaction whose first append meets others."""
    return begin(another(store, Losing(store)), transactional_id, AGE_MS)


def files(store: Store) -> dict[int, str]:
    """The files of the topic's log, by number, and their kinds."""
    names = [name for name in store.storage.list_names(LOG) if name.endswith(".json")]
    return {int(n[:20]): json.loads(store.storage.get(f"{LOG}/{n}"))["kind"] for n in names}


def test_each_has_its_own_outcome(store: Store) -> None:
    """One commits while the other is open, which aborts then; a third had no transaction."""
    reader = another(store)
    assert values(reader) == [b"first"]
    dead = ongoing(store, "dead")
    propose(store, b"dead's", transaction=dead, partition=0)
    propose(store, b"plain", partition=1)
    producer = bundling(store)
    send(producer, b"mine", partition=1)
    assert files(store)[5] == "bundle"
    send(producer, b"mine too", partition=1)
    assert list(files(store)) == [0, 1, 2, 3, 4, 5, 8]
    producer.commit_transaction()
    seen = [b"first", *[b"faster"] * 3, b"mine", b"plain", b"mine too"]
    for process in (reader, another(store)):
        assert sorted(values(process)) == sorted(seen)
        assert sorted(values(process, isolation_level="snapshot")) == sorted(seen)
    append(store, b"behind", partition=0)
    assert b"behind" not in values(reader)
    store.transactions.abort("dead", reason="a test")
    for process in (reader, another(store)):
        assert sorted(values(process)) == sorted([*seen, b"behind"])
    assert not [found for found in store.examine() if found.state == "damage"]


def test_what_is_placed_after_its_transaction_was_aborted_never_shows(store: Store) -> None:
    """As a put that lands late: it is on no list, whatever becomes of the id afterwards."""
    propose(store, b"late", transaction=ongoing(store, "dead"))
    store.transactions.abort("dead", reason="a test")
    producer = bundling(store)
    send(producer, b"mine")
    producer.commit_transaction()
    assert "bundle" in files(store).values()
    seen = [b"first", b"faster", b"faster", b"mine"]
    assert values(another(store)) == seen
    with begin(another(store), "dead") as again:
        send(again, b"next")
        again.commit_transaction()
    assert values(another(store)) == [*seen, b"next"]
    assert not [found for found in store.examine() if found.state == "damage"]


def test_an_append_that_may_be_placed_yet_lets_its_transaction_only_abort(store: Store) -> None:
    """Its writer could not look again; then somebody places it, while the transaction is open."""
    storage = Losing(store)
    producer = begin(another(store, storage), "p")
    assert producer._coordinator is not None
    log = producer._coordinator._logs.topic("t")
    real = log.refresh_beside

    def failing(*calls: object) -> None:
        real(*calls)  # type: ignore[arg-type]
        raise StorageError("the connection was reset")

    log.refresh_beside = failing  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        send(producer, b"in doubt")
    with pytest.raises(InvalidTxnState):
        producer.commit_transaction()
    other = bundling(store, "other")
    send(other, b"other's")
    assert files(store)[max(files(store))] == "bundle"
    other.commit_transaction()
    producer.abort_transaction()
    assert values(another(store)) == [b"first", b"faster", b"faster", b"other's"]


def test_who_was_placed_by_others_commits_the_right_entry(store: Store) -> None:
    """Its decision names the entry in the bundle; a fenced one commits nothing."""
    # What it has proposed is placed with a third one's append before it looks again.
    storage = Losing(store)
    producer = begin(another(store, storage), "p")
    assert producer._coordinator is not None
    log = producer._coordinator._logs.topic("t")
    real = log.refresh_beside

    def meanwhile(*calls: object) -> None:
        log.refresh_beside = real  # type: ignore[method-assign]
        real(*calls)  # type: ignore[arg-type]
        other = bundling(store, "other")
        send(other, b"other's")
        other.commit_transaction()
        real(*calls)  # type: ignore[arg-type]

    log.refresh_beside = meanwhile  # type: ignore[method-assign]
    send(producer, b"mine")
    (entry,) = producer._coordinator._entries
    assert entry.number not in files(store)
    producer.commit_transaction()
    assert values(another(store)) == [b"first", b"faster", b"faster", b"other's", b"mine"]
    assert not [found for found in store.examine() if found.state == "damage"]


def test_cleaning_keeps_a_bundle_in_which_something_is_undecided(
    store: Store, clock: VirtualClock
) -> None:
    """Though its first entry is decided, and old; so whoever comes can decide the other."""
    propose(store, b"open", transaction=ongoing(store, "open"), partition=1)
    producer = bundling(store)
    send(producer, b"mine")
    producer.commit_transaction()
    (bundle,) = (number for number, kind in files(store).items() if kind == "bundle")
    holder = another(store)
    checkpoint(holder)
    for _ in range(3):
        clock.time_ms += 2 * AGE_MS
        # Nobody who would end it comes by.
        store.logs.topic("t").place(upload(store, b"later"))
        checkpoint(another(store))
    assert bundle in files(store)
    for process in (holder, another(store)):
        assert b"mine" in values(process)
        assert b"open" not in values(process)
    for turn in range(3):
        clock.time_ms += 2 * AGE_MS
        append(store, b"later", partition=0)
        checkpoint(another(store))
        # Its first entry was closed before, so it begins what is kept when that is freed.
        assert turn > 0 or min(files(store)) == bundle
    assert min(files(store)) > bundle
    assert not [found for found in store.examine() if found.state == "damage"]


def test_cleaning_deletes_up_to_a_bundle_that_a_checkpoint_ends_with(
    store: Store, clock: VirtualClock
) -> None:
    """The file before the next entry stays, since that could pass for a stray without it."""
    propose(store, b"one", transaction=ongoing(store, "one"), partition=1)
    producer = bundling(store)
    send(producer, b"mine")
    producer.commit_transaction()
    store.transactions.abort("one", reason="a test")
    (bundle,) = (number for number, kind in files(store).items() if kind == "bundle")
    checkpoint(another(store))
    clock.time_ms += 2 * AGE_MS
    append(store, b"later")
    checkpoint(another(store))
    assert min(files(store)) == bundle
    assert values(another(store))[-1] == b"later"


def test_a_process_that_looks_finds_what_is_behind_a_bundle(store: Store) -> None:
    """How many entries a file holds shows only when it is read."""
    reader = another(store)
    assert values(reader) == [b"first"]
    propose(store, b"open", transaction=ongoing(store, "open"), partition=1)
    producer = bundling(store)
    send(producer, b"mine")
    producer.commit_transaction()
    for value in (b"one", b"two"):
        append(store, value, partition=0)
    assert values(reader)[-2:] == [b"one", b"two"]


def test_a_process_that_looks_needs_no_listing_behind_a_bundle_of_two(clock: VirtualClock) -> None:
    """The file behind it has the next number but one: that is not a sign of a lost entry."""
    store = new_store(HeapStorage(like_disk=True), clock, {"t": 2})
    append(store, b"first", partition=0)
    counting = CountingStorage(store.storage)
    reader = another(store, counting)
    reader.logs.topic("t").refresh()
    propose(store, b"open", transaction=ongoing(store, "open"), partition=1)
    send(bundling(store), b"mine")
    append(store, b"behind", partition=0)
    assert list(files(store))[-3:] == [3, 4, 6]
    counting.take()
    reader.logs.topic("t").refresh()
    assert "list" not in counting.take()
    log = reader.logs.topic("t")
    with log.lock:
        state = log.state
        assert state.next_entry == 7
        assert [*state.undecided] == [4, 5]


def test_what_a_bundle_holds_is_not_missing_because_it_was_not_read(store: Store) -> None:
    """Its entries have no files of their own; one has a marker, which is looked at before."""
    propose(store, b"plain", partition=1)
    producer = bundling(store)
    send(producer, b"mine", partition=1)
    producer.commit_transaction()
    append(store, b"behind", partition=0)
    [bundle] = [number for number, kind in files(store).items() if kind == "bundle"]
    assert bundle + 1 not in files(store)

    class Refusing(ForwardingStorage):
        def get(self, name: str) -> bytes:
            if name == f"{LOG}/{bundle:020}.json":
                raise StorageError("injected failure")
            return super().get(name)

    found = [*another(store, Refusing(store.storage)).examine(with_probe=False)]
    assert [f.path for f in found if f.state == "unreadable"] == [f"{LOG}/{bundle:020}.json"]
    assert not [f for f in found if f.state == "damage"]


def test_a_dump_shows_each_entry_by_itself(store: Store) -> None:
    """With its own marker; also from the middle of a bundle on."""
    propose(store, b"open", transaction=ongoing(store, "open"), partition=1)
    producer = bundling(store)
    send(producer, b"mine")
    producer.commit_transaction()
    append(store, b"later")
    shown = [*store.topics.log("t")]
    assert [found.number for found in shown] == [*range(7)]
    assert not [found.damage for found in shown if found.damage]
    owners = [found.transaction and found.transaction.transactional_id for found in shown]
    assert owners == [None, None, None, None, "p", "open", None]
    assert [len(found.outcomes) for found in shown] == [0, 0, 0, 0, 1, 0, 0]
    assert shown[5].path == shown[4].path
    for first in range(7):
        assert [*store.topics.log("t", first=first)] == shown[first:]


def test_the_doctor_names_the_file_of_an_entry_that_is_gone(store: Store) -> None:
    """Undecided entries of a bundle that was deleted by hand: one file must be restored."""
    for name in ("one", "two"):
        propose(store, name.encode(), transaction=ongoing(store, name), partition=1)
    send(bundling(store), b"mine")
    (bundle,) = (number for number, kind in files(store).items() if kind == "bundle")
    checkpoint(another(store))
    store.storage.delete([f"{LOG}/{bundle:020}.json"])
    found = [one.detail for one in store.examine() if one.rule == "L10"]
    assert len(found) == 3
    assert all(f"/{bundle:020}.json is gone" in detail for detail in found)


def test_a_fenced_producers_proposal_is_an_epoch_too_late(store: Store) -> None:
    """Its successor has appended meanwhile, so nobody places it; its writer is told."""
    producer = bundling(store, "p")
    assert producer._coordinator is not None
    log = producer._coordinator._logs.topic("t")
    real = log.refresh_beside

    def meanwhile(*calls: object) -> None:
        log.refresh_beside = real  # type: ignore[method-assign]
        with begin(another(store), "p") as successor:
            send(successor, b"successor's")
            successor.commit_transaction()
        real(*calls)  # type: ignore[arg-type]

    log.refresh_beside = meanwhile  # type: ignore[method-assign]
    with pytest.raises(InvalidProducerEpoch):
        send(producer, b"late")
    send(bundling(store, "other"), b"undecided")
    assert values(another(store)) == [b"first", b"faster", b"successor's", b"faster"]


def placed_with_others(fault: Fault | None, at: int) -> tuple[bool, int]:
    """A producer's transaction goes into a bundle; request ``at`` after its begin goes wrong.

    Returns:
        Whether its commit was told to have happened, and how many requests it has made.
    """
    clock = VirtualClock()
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = new_store(heap, clock, {"t": 2})
    append(store, b"first", partition=0)
    propose(store, b"dead's", transaction=ongoing(store, "dead"), partition=0)
    losing = Losing(store)
    faulty = FaultyStorage(losing)
    producer = begin(another(store, faulty), "p", AGE_MS)
    begun = len(faulty.requests)
    if fault is not None:
        faulty.faults = {begun + at: fault}
    is_told = False
    try:
        for partition in (0, 1):
            send(producer, b"mine", partition=partition)
        producer.commit_transaction()
        is_told = True
    except (TxnlogError, ProcessStopped):
        pass
    count = len(faulty.requests) - begun
    clock.time_ms += 20 * AGE_MS
    for process in (another(store), another(store)):
        mine = values(process).count(b"mine")
        assert mine in ((2,) if is_told else (0, 2)), (fault, at)
        assert values(process, isolation_level="snapshot").count(b"mine") == mine
        assert b"dead's" not in values(process)
    with begin(another(store), "p", AGE_MS) as successor:
        send(successor, b"next")
        successor.commit_transaction()
    assert values(another(store)).count(b"next") == 1
    assert not [found for found in store.examine() if found.state == "damage"], (fault, at)
    if fault is None:
        assert "bundle" in files(store).values()
    return is_told, count


@pytest.mark.parametrize(
    "fault",
    [
        *more([Fault.FAIL, Fault.STOP_AFTER]),
        Fault.LOSE_RESPONSE,
        pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow),
    ],
)
def test_a_fault_at_each_request(fault: Fault) -> None:
    """All of the transaction shows or nothing of it, as its producer was told; the id goes on."""
    is_told, count = placed_with_others(None, 0)
    assert is_told
    told = [placed_with_others(fault, at)[0] for at in range(count)]
    assert len(told) > 20
    assert not all(told)
