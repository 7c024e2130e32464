"""Syncs that fail, and power cuts: what shows may not be durable, and what is acknowledged must be.

The job is that of ``test_crash_points``. A put shows though its sync has failed; a power cut then
takes everything that nobody has confirmed, and that no later put into its folder has synced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.simulation.copy_job import (
    PREPARED,
    TOTAL,
    check_whole_transactions,
    copy_all,
    judge,
)
from tests.support.steps import begin, values
from txnlog import TopicPartition
from txnlog.errors import ProducerFenced, StorageError, TopicAlreadyExists, TxnlogError
from txnlog.producer import Producer
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("T6", "hazard 1")


def puts_of_one_run() -> list[int]:
    """The numbers of the requests that put something into an id's log."""
    faulty = FaultyStorage(PREPARED.copy())
    copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
    return [
        number
        for number, text in enumerate(faulty.requests)
        if text.startswith("put_if_absent transactions/")
    ]


def test_what_was_acknowledged_survives_a_power_cut() -> None:
    """A sync fails at each request in turn; the job ends well, or says that it did not."""
    unsynced = 0
    for number in range(TOTAL):
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, {number: Fault.SYNC_FAILS})
        context = f"request {number}"
        told = True
        try:
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        except TxnlogError as error:
            context, told = f"{context}, reported as {error!r}", False
        unsynced += bool(storage.unsynced)
        context = f"{context}, lost {storage.power_cut()}"
        if not told:
            check_whole_transactions(storage, context)
            copy_all(attach(storage, clock=VirtualClock(seed=3)))
        judge(storage, context)
        copy_all(attach(storage, clock=VirtualClock(seed=4)))
        judge(storage, context)


@pytest.mark.parametrize("survives", [False, True])
def test_a_sync_that_never_succeeds_is_reported(survives: bool) -> None:
    """From some request on no put of the job is durable: what it is told, it can rely on."""
    for number in range(0, TOTAL, 3):
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, dict.fromkeys(range(number, 999), Fault.SYNC_FAILS))
        with pytest.raises(TxnlogError):
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        storage.power_cut(lambda _: survives)
        check_whole_transactions(storage, f"request {number}")
        copy_all(attach(storage, clock=VirtualClock(seed=3)))
        judge(storage, f"request {number}")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[pytest.mark.more] * (turn % 3 > 0))
        for turn, number in enumerate(puts_of_one_run())
    ],
)
def test_a_decision_that_is_acted_upon_and_then_lost(number: int) -> None:
    """One job dies before its put is durable, the next one acts on it, and the power is cut."""
    before_the_cut = PREPARED.copy()
    faults = {number: Fault.SYNC_FAILS, number + 1: Fault.STOP_BEFORE}
    with pytest.raises(ProcessStopped):
        copy_all(
            attach(FaultyStorage(before_the_cut, faults), clock=VirtualClock(seed=2)),
            abort_once=True,
        )
    for then in range(24):
        storage = before_the_cut.copy()
        with suppress(ProcessStopped):
            copy_all(
                attach(FaultyStorage(storage, {then: Fault.STOP_AFTER}), clock=VirtualClock(seed=3))
            )
        context = f"request {number}, then {then}, lost {storage.power_cut()}"
        check_whole_transactions(storage, context)
        copy_all(attach(storage, clock=VirtualClock(seed=4)))
        judge(storage, context)


def with_open_transaction(heap: HeapStorage, faulty: FaultyStorage) -> Producer:
    """One record of an open transaction ``p``, by a process that uses ``faulty``."""
    attach(heap, create=True, clock=VirtualClock()).topics.create("t")
    producer = begin(attach(faulty, clock=VirtualClock(seed=2)), "p")
    producer.send("t", b"x")
    producer.flush()
    return producer


def dies_unsynced(faulty: FaultyStorage, log: str = "transactions/") -> None:
    """The next put into an id's log shows, is not durable, and is the last thing that is done."""

    def before(text: str) -> None:
        if text.startswith(f"put_if_absent {log}"):
            number = len(faulty.requests)
            faulty.faults = {number: Fault.SYNC_FAILS, number + 1: Fault.STOP_BEFORE}

    faulty._before_request = before


@pytest.mark.parametrize("age_ms", [0, 11_000])
def test_a_reader_confirms_the_decision_that_it_believes(age_ms: int) -> None:
    """What follows from it may be put into a checkpoint; who cannot confirm it, waits."""
    heap = HeapStorage()
    faulty = FaultyStorage(heap)
    producer = with_open_transaction(heap, faulty)
    dies_unsynced(faulty)
    with pytest.raises(ProcessStopped):
        producer.commit_transaction()
    assert len(heap.unsynced) == 1

    def failing(text: str) -> None:
        if text.startswith("confirm"):
            raise StorageError("the device is gone")

    failed, clock = FaultyStorage(heap, before_request=failing), VirtualClock(seed=3)
    clock.time_ms += age_ms
    assert values(attach(failed, clock=clock)) == []
    assert values(attach(heap, clock=VirtualClock(seed=4))) == [b"x"]
    assert heap.unsynced == []


@pytest.mark.parametrize("transactional", [False, True])
def test_a_group_passes_no_record_that_a_power_cut_may_take(transactional: bool) -> None:
    """Else it would pass the one that is written in its place."""
    heap = HeapStorage()
    store = attach(heap, create=True, clock=VirtualClock())
    for topic in ("t", "out"):
        store.topics.create(topic)
    faulty = FaultyStorage(heap)
    dies_unsynced(faulty, "topics/t/log/")
    with pytest.raises(ProcessStopped), _producer(faulty, 2) as writer:
        writer.send("t", b"first")
    (entry,) = heap.unsynced
    failing = FaultyStorage(heap)
    reader = attach(failing, clock=VirtualClock(seed=3))
    consumer = reader.consumer("t", group_id="g", auto_offset_reset="earliest")
    assert [record.value for record in consumer.poll()] == [b"first"]

    def commit() -> None:
        if not transactional:
            consumer.commit()
            return
        with reader.producer(transactional_id="p") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("out", b"first")
                offsets = {TopicPartition("t", 0): 1}
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

    def fail(text: str) -> None:
        if text.startswith("confirm topics/t/log/"):
            raise StorageError("the device is gone")

    failing._before_request = fail
    with pytest.raises(StorageError, match="the device is gone"):
        commit()
    assert entry in heap.unsynced
    failing._before_request = None
    commit()
    heap.power_cut()
    assert values(attach(heap, clock=VirtualClock(seed=4))) == [b"first"]


def test_a_producer_confirms_that_somebody_else_ended_its_transaction() -> None:
    """Else it tells its caller of an abort that a power cut takes back."""
    heap = HeapStorage()
    producer = with_open_transaction(heap, FaultyStorage(heap))
    other = FaultyStorage(heap)
    ending = attach(other, clock=VirtualClock(seed=3))
    dies_unsynced(other)
    with pytest.raises(ProcessStopped):
        ending.transactions.abort("p", reason="a test")
    assert len(heap.unsynced) == 1
    with pytest.raises(ProducerFenced, match="a test"):
        producer.commit_transaction()
    assert heap.unsynced == []


def _producer(storage: FaultyStorage, seed: int) -> Producer:
    return attach(storage, clock=VirtualClock(seed=seed)).producer()


def test_an_entry_that_was_found_to_be_ours_makes_the_one_before_it_durable() -> None:
    """Else a power cut takes that one alone, and leaves a hole in the log."""
    heap = HeapStorage()
    store = attach(heap, create=True, clock=VirtualClock())
    store.topics.create("t")
    for seed, fault in enumerate((Fault.STOP_BEFORE, Fault.LOSE_RESPONSE), start=2):
        faulty = FaultyStorage(heap)

        def before(text: str, faulty: FaultyStorage = faulty, then: Fault = fault) -> None:
            if text.startswith("put_if_absent topics/t/log/") and not faulty.faults:
                number = len(faulty.requests)
                faulty.faults = {number: Fault.SYNC_FAILS}
                if then is Fault.STOP_BEFORE:
                    faulty.faults[number + 1] = then

        faulty._before_request = before
        with suppress(ProcessStopped), _producer(faulty, seed) as one:
            one.send("t", fault.name)
    assert heap.unsynced == []
    assert heap.power_cut() == []
    assert values(attach(heap, clock=VirtualClock(seed=9))) == [b"STOP_BEFORE", b"LOSE_RESPONSE"]


def _writes(store: Store) -> None:
    with store.producer() as producer:
        producer.send("t", b"mine")


def _commits(store: Store) -> None:
    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"mine")


@pytest.mark.parametrize("write", [_writes, _commits])
@pytest.mark.parametrize(
    ("lost", "dies"),
    [("topics/t/log/", _writes), ("topics/t/log/", _commits), ("transactions/", _commits)],
)
def test_a_process_that_outlives_its_server_leaves_no_hole(
    lost: str, dies: Callable[[Store], None], write: Callable[[Store], None]
) -> None:
    """The server loses the end of a log that the process has read; the process goes on."""
    heap = HeapStorage()
    first = attach(heap, create=True, clock=VirtualClock())
    first.topics.create("t")
    _commits(first)
    living = attach(heap, clock=VirtualClock(seed=3))
    write(living)
    faulty = FaultyStorage(heap)
    dies_unsynced(faulty, lost)
    with suppress(ProcessStopped):
        dies(attach(faulty, clock=VirtualClock(seed=2)))
    assert len(heap.unsynced) == 1
    assert living.topics.describe("t").partitions[0].end_offset >= 2
    heap.power_cut()
    write(living)
    write(living)
    found = values(attach(heap, clock=VirtualClock(seed=4)))
    assert found == values(living) == [b"mine"] * 4


def test_what_is_refused_behind_a_lost_entry_was_not_put() -> None:
    """The error is that of the log as it is now, not one of an unknown outcome."""
    heap = HeapStorage()
    attach(heap, create=True, clock=VirtualClock()).topics.create("t")
    faulty = FaultyStorage(heap)
    deleting = attach(faulty, clock=VirtualClock(seed=2))
    deleting.topics.describe("t")
    dies_unsynced(faulty, "topics/t/log/")
    with pytest.raises(ProcessStopped):
        deleting.topics.delete("t")
    living = attach(heap, clock=VirtualClock(seed=3))
    living.logs.topic("t").refresh()  # has read that it is deleted
    heap.power_cut()
    with pytest.raises(TopicAlreadyExists):
        living.topics.create("t", partitions=3)


def test_an_init_that_finds_its_own_state_confirms_it() -> None:
    """The put of an earlier call shows, though it failed and could not be read back."""
    heap = HeapStorage()
    attach(heap, create=True, clock=VirtualClock())
    faulty = FaultyStorage(heap)

    def before(text: str) -> None:
        if text.startswith("put_if_absent transactions/") and not faulty.faults:
            number = len(faulty.requests)
            faulty.faults = dict.fromkeys(range(number + 1, number + 10), Fault.FAIL)
            faulty.faults[number] = Fault.SYNC_FAILS

    faulty._before_request = before
    store = attach(faulty, clock=VirtualClock(seed=2))
    producer = store.producer(transactional_id="p", delivery_timeout_ms=0)
    with pytest.raises(StorageError):
        producer.init_transactions()
    assert len(heap.unsynced) == 1
    producer.init_transactions()
    assert heap.unsynced == []


def test_what_a_power_cut_takes() -> None:
    """Only what nobody has confirmed, and no later put into the same folder."""
    storage = HeapStorage()
    faulty = FaultyStorage(storage, dict.fromkeys((0, 1, 2), Fault.SYNC_FAILS))
    for name in ("a/1", "a/2", "b/1"):
        with pytest.raises(StorageError, match=f"the sync of put_if_absent {name}"):
            faulty.put_if_absent(name, b"x")
        assert storage.get(name) == b"x"
    assert faulty.put_if_absent("a/1", b"y") is False
    assert storage.unsynced == ["a/1", "a/2", "b/1"]
    faulty.confirm("a/1")
    assert storage.unsynced == ["a/2", "b/1"], "what was put before it, nothing else"
    other = storage.copy()
    assert other.power_cut() == ["a/2", "b/1"]
    assert [name for name, _ in other.list_all("")] == ["a/1"]
    faulty.put("a/3", b"z")
    assert storage.unsynced == ["b/1"]
    faulty.faults = {len(faulty.requests): Fault.SYNC_FAILS}
    with pytest.raises(StorageError, match="confirm b/1"):
        faulty.confirm("b/1")
    assert storage.power_cut(lambda _: True) == []
    assert storage.unsynced == []
