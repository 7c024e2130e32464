"""Condition 48: the process stops, or a response is lost, at each single storage request in turn.

The run is the main job in small: a transactional producer copies records from ``in`` to ``a`` and
``b``, moves the group's offsets, and aborts a transaction in between. After each fault a new
process opens the store, recovers, finishes the work, and a judge that knows only the input looks
at the output.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.simulation.copy_job import (
    INPUT,
    PREPARED,
    TOTAL,
    check_whole_transactions,
    copy_all,
    judge,
)
from tests.support.steps import begin, new_store, values
from tests.support.tiers import more
from txnlog.errors import ProducerFenced, TxnlogError
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.names import TopicPartition
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("T2", "T4", "hazard 6")

_STORES = itertools.count()
INSTANT = [fault for fault in Fault if fault not in {Fault.DELAY, Fault.PAUSE}]
"""What can go wrong at a request without anything else happening meanwhile."""


def test_the_run_has_enough_requests_to_matter() -> None:
    """The exhaustive tests below are over every one of these."""
    assert TOTAL > 60


def check_recovery(storage: Storage, context: str) -> None:
    """Whatever a fault has left, readers see nothing torn, and a new process finishes the job."""
    check_whole_transactions(storage, context)
    copy_all(attach(storage, clock=VirtualClock(seed=3)))
    judge(storage, context)


@pytest.mark.condition(14, 48)
@pytest.mark.parametrize(
    "fault", [pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow), Fault.STOP_AFTER]
)
def test_stop_at_each_request(fault: Fault) -> None:
    """A process that stops anywhere leaves what the next one finishes."""
    for number in range(TOTAL):
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, {number: fault})
        with pytest.raises(ProcessStopped):
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        context = f"{fault.value}: request {number}, {faulty.requests[-1]}"
        check_recovery(storage, context)


@pytest.mark.rule("hazard 1")
@pytest.mark.condition(49)
@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, *more([Fault.FAIL])])
def test_fail_at_each_request(fault: Fault) -> None:
    """An error, with or without effect, is survived or reported; a rerun finishes."""
    for number in range(TOTAL):
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, {number: fault})
        context = f"{fault.value}: request {number}"
        try:
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        except TxnlogError as error:
            context = f"{context}, {faulty.requests[number]}, reported as {error!r}"
        check_recovery(storage, context)


@pytest.mark.parametrize("fault", [pytest.param(Fault.PAUSE, marks=pytest.mark.more), Fault.DELAY])
def test_stand_still_past_the_timeout_at_each_request(fault: Fault) -> None:
    """Condition 49: meanwhile a reader ends what has timed out; the job goes on, or is fenced."""
    for number in range(TOTAL):
        storage, clock = PREPARED.copy(), VirtualClock(seed=2)
        context = f"{fault.value}: request {number}"

        def meanwhile(
            _: Fault,
            storage: Storage = storage,
            clock: VirtualClock = clock,
            context: str = context,
        ) -> None:
            clock.time_ms += 120_000
            store = attach(storage, clock=clock)
            check_whole_transactions(store.storage, context)
            assert not store.topics.describe("a").open_transactions, context

        faulty = FaultyStorage(storage, {number: fault}, on_wait=meanwhile)
        with suppress(ProducerFenced):
            copy_all(attach(faulty, clock=clock), abort_once=True)
        check_whole_transactions(storage, context)
        copy_all(attach(storage, clock=VirtualClock(clock.time_ms, seed=3)))
        judge(storage, context)


@pytest.mark.condition(49)
@pytest.mark.parametrize("when", ["before the next run", *more(["after it"])])
def test_a_put_lands_late_at_each_request(when: str) -> None:
    """What failed for its caller takes effect after all, when nobody waits for it."""
    for number in range(TOTAL):
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, {number: Fault.LAND_LATE})
        context = f"request {number} lands {when}"
        with suppress(TxnlogError):
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        if when == "before the next run":
            faulty.land()
        check_whole_transactions(storage, context)
        copy_all(attach(storage, clock=VirtualClock(seed=3)))
        faulty.land()
        judge(storage, context)


@pytest.mark.parametrize("fault", INSTANT)
def test_expiry_by_a_reader_that_fails_at_each_request(fault: Fault) -> None:
    """The next process ends a timed-out transaction, wherever the previous one stopped."""
    total = 0
    for number in itertools.count():
        storage, clock = PREPARED.copy(), VirtualClock(seed=2)
        hanging = begin(attach(storage, clock=clock), "hanging")
        hanging.send("a", b"never seen", partition=0)
        hanging.send("b", b"never seen")
        hanging.send_offsets_to_transaction({TopicPartition("in", 0): 3}, "g")
        hanging.flush()
        with attach(storage, clock=clock).producer() as producer:
            producer.send("b", b"behind it")
        clock.time_ms += 60_001 + CLOCK_MARGIN_MS
        faulty = FaultyStorage(storage, {number: fault})
        with suppress(ProcessStopped, TxnlogError):
            attach(faulty, clock=clock).snapshot(["a", "b"])
        store = attach(storage, clock=clock)
        context = f"{fault.value}: request {number}"
        assert sorted(values(store, "a")) == [], context
        assert sorted(values(store, "b")) == [b"behind it"], context
        faulty.land()
        assert sorted(values(attach(storage, clock=clock), "b")) == [b"behind it"], context
        with pytest.raises(ProducerFenced):
            hanging.commit_transaction()
        if len(faulty.requests) <= number:
            total = number
            break
    assert total > 8


@pytest.mark.condition(48)
@pytest.mark.parametrize(
    ("fault", "kind", "every"),
    [
        (Fault.STOP_AFTER, "local", 2),
        pytest.param(Fault.LOSE_RESPONSE, "local", 2, marks=pytest.mark.more),
        pytest.param(Fault.STOP_AFTER, "s3", 9, marks=[pytest.mark.s3, pytest.mark.slow]),
        pytest.param(Fault.LOSE_RESPONSE, "s3", 9, marks=[pytest.mark.s3, pytest.mark.slow]),
    ],
)
def test_stop_on_other_storages(
    kind: str, every: int, fault: Fault, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same on local disk and on S3, at every second and every ninth request."""
    options = request.getfixturevalue("s3_options") if kind == "s3" else None
    for number in range(0, TOTAL, every):
        root = f"crash-{next(_STORES)}"
        url = f"s3://test/{root}" if kind == "s3" else str(tmp_path / root)
        storage = open_storage(url, options)
        for name, _ in PREPARED.list_all(""):
            storage.put(name, PREPARED.get(name))
        faulty = FaultyStorage(storage, {number: fault})
        with suppress(ProcessStopped, TxnlogError):
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        context = f"{kind}, {fault.value}: request {number}"
        check_recovery(storage, context)


@pytest.mark.more
@pytest.mark.condition(15, 48)
def test_stop_twice() -> None:
    """The recovery itself is stopped at its requests, and recovered from again."""
    for first in range(0, TOTAL, 11):
        for second in range(first % 3, 40, 3):
            storage = PREPARED.copy()
            crashing = FaultyStorage(storage, {first: Fault.STOP_AFTER})
            with pytest.raises(ProcessStopped):
                copy_all(attach(crashing, clock=VirtualClock(seed=2)), abort_once=True)
            recovering = FaultyStorage(storage, {second: Fault.STOP_AFTER})
            try:
                copy_all(attach(recovering, clock=VirtualClock(seed=3)))
            except ProcessStopped:
                copy_all(attach(storage, clock=VirtualClock(seed=4)))
            judge(storage, f"stopped after requests {first} and {second}")


@pytest.mark.condition(48)
@pytest.mark.parametrize("fault", INSTANT)
def test_stop_at_each_request_of_a_plain_producer(fault: Fault) -> None:
    """Without a transaction a flush of one topic is one put: all of it or nothing."""
    total = 0
    for number in itertools.count():
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, {number: fault})
        told = True
        try:
            with attach(faulty, clock=VirtualClock(seed=2)).producer() as producer:
                for value in INPUT:
                    producer.send("a", value, key=value)
        except (ProcessStopped, TxnlogError):
            told = False
        context = f"{fault.value}: request {number}, {faulty.requests[-1]}"
        faulty.land()
        found = sorted(values(attach(storage, clock=VirtualClock(seed=3)), "a"))
        assert found == INPUT if told else found in ([], INPUT), context
        total = len(faulty.requests)
        if total <= number:
            break
    assert total > 3


@pytest.mark.condition(48)
@pytest.mark.parametrize("fault", INSTANT)
def test_stop_at_each_request_of_creating_and_deleting(fault: Fault) -> None:
    """A store or topic is there whole or not at all, and the call can be repeated."""
    for number in itertools.count():
        storage = HeapStorage()
        faulty = FaultyStorage(storage, {number: fault})
        try:
            store = attach(faulty, create=True, clock=VirtualClock(seed=2))
            store.topics.create("t", partitions=3)
            store.topics.delete("t")
            store.topics.create("t", partitions=2)
        except (ProcessStopped, TxnlogError):
            store = attach(storage, create=True, clock=VirtualClock(seed=3))
            if "t" not in store.topics.list():
                store.topics.create("t", partitions=2)
            faulty.land()
            assert len(store.topics.describe("t").partitions) in (2, 3)
            continue
        assert len(attach(storage).topics.describe("t").partitions) == 2
        if len(faulty.requests) <= number:
            assert number > 10
            break


@pytest.mark.condition(48)
@pytest.mark.parametrize("fault", INSTANT)
def test_stop_at_each_request_of_checkpoint_and_cleaning(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints and the deletion of old entries lose nothing, wherever they stop."""
    monkeypatch.setattr("txnlog.log.state_log.KEPT_CHECKPOINTS", 2)
    for number in itertools.count():
        storage = HeapStorage()
        clock = VirtualClock(seed=1)
        config = {"log.cleanup.age.ms": 1000, "transaction.max.timeout.ms": 1000}
        store = new_store(storage, clock, config=config)
        expected = []
        faulty = FaultyStorage(storage, {number: fault})
        try:
            log = attach(faulty, clock=clock).logs.topic("t")
            for turn in range(3):
                with store.producer() as producer:
                    producer.send("t", b"%d" % turn)
                    expected.append(b"%d" % turn)
                clock.time_ms += 5000
                log.refresh()
                log.checkpoint()
        except (ProcessStopped, TxnlogError):
            pass
        faulty.land()
        reopened = attach(storage, clock=clock)
        assert values(reopened, "t") == expected, f"{fault.value}: request {number}"
        with reopened.producer() as producer:
            producer.send("t", b"more")
        assert values(attach(storage, clock=clock), "t") == [*expected, b"more"]
        if len(faulty.requests) <= number:
            assert "delete" in " ".join(faulty.requests)
            break
