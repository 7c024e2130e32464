"""Transactions end at their timeout, whoever comes by, also where clocks are wrong.

Hazards 6 and 10; what is concluded from which clock.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support.steps import append, begin_with, elsewhere, new_store, values
from tests.support.storage.timed_storage import TimedStorage
from txnlog.errors import InvalidTxnState, ProducerFenced, StorageError
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.state.transaction import HELP_AFTER_MS
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("T9", "hazard 6", "hazard 10")

TIMEOUT_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def heap(clock: VirtualClock) -> HeapStorage:
    heap = HeapStorage()
    new_store(heap, clock, config={"transaction.max.timeout.ms": TIMEOUT_MS})
    return heap


_SEEDS = itertools.count(1)


class ReadOnly(FaultyStorage):
    """Permission to write is denied."""

    def put_if_absent(self, name: str, data: bytes) -> bool:  # noqa: ARG002 - nobody gets so far
        raise StorageError(f"creating {name}: permission denied")


@pytest.mark.condition(29)
def test_writers_end_what_hangs_for_readers_that_may_not(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """A dead transaction, a job that writes every hour, readers without permission."""
    begin_with(elsewhere(heap, clock), "dead", b"dead")
    for _ in range(30):
        clock.time_ms += HOUR_MS
        append(elsewhere(heap, clock), b"x")
    assert len(values(elsewhere(ReadOnly(heap), clock))) == 30
    assert elsewhere(heap, clock).transactions.describe("dead").status == "CompleteAbort"


def test_writers_of_transactions_end_what_hangs(heap: HeapStorage, clock: VirtualClock) -> None:
    """The same by transactions, and a group's offsets are not held either."""
    begin_with(elsewhere(heap, clock), "dead", b"dead")
    clock.time_ms += HOUR_MS
    begin_with(elsewhere(heap, clock), "next", b"next").commit_transaction()
    assert values(elsewhere(ReadOnly(heap), clock)) == [b"next"]


def test_a_long_transaction_costs_other_writers_next_to_nothing(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """It is looked up when it has been open for long, and not again for a while."""
    begin_with(elsewhere(heap, clock), "long", b"long")
    counting = FaultyStorage(heap)
    store = attach(counting, clock=clock)
    for _ in range(20):
        append(store, b"x")
    assert not any("transactions/" in request for request in counting.requests)
    clock.time_ms += 11_000
    for _ in range(5):
        append(store, b"x")
    looked_up = [request for request in counting.requests if request == "list transactions/long"]
    assert len(looked_up) == 1


def test_whoever_reads_finishes_what_was_decided_long_ago(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Its producer died after the decision; at first it may only be slow."""
    storage = FaultyStorage(heap)
    producer = begin_with(elsewhere(storage, clock), "dead", b"dead")
    storage.faults = {len(storage.requests): Fault.STOP_AFTER}
    with pytest.raises(ProcessStopped):
        producer.commit_transaction()
    for waited_ms, status in ((0, "PrepareCommit"), (HELP_AFTER_MS, "CompleteCommit")):
        clock.time_ms += waited_ms
        assert values(elsewhere(heap, clock)) == [b"dead"]
        assert elsewhere(heap, clock).transactions.describe("dead").status == status


def test_a_dead_transaction_does_not_stop_cleaning(heap: HeapStorage, clock: VirtualClock) -> None:
    """Behind it the log would grow for ever: a hundred commits a day for a week leave few files."""
    begin_with(elsewhere(heap, clock), "dead", b"dead")
    for _ in range(7):
        for _ in range(100):
            clock.time_ms += DAY_MS // 100
            append(elsewhere(heap, clock), b"x")
    assert len(heap.list_names("topics/t/log")) < 350


@pytest.mark.condition(29)
@pytest.mark.parametrize("ahead_ms", [30 * DAY_MS, 30 * DAY_MS + HOUR_MS])
def test_what_one_short_job_saw_reaches_the_next(
    heap: HeapStorage, clock: VirtualClock, ahead_ms: int
) -> None:
    """A producer dies whose clock ran a month ahead; no job stays for a timeout."""
    begin_with(elsewhere(heap, clock, ahead_ms), "dead", b"dead")
    append(elsewhere(heap, clock), b"behind it")
    for _ in range(4):
        assert values(elsewhere(heap, clock)) == []
        clock.time_ms += (TIMEOUT_MS + CLOCK_MARGIN_MS) // 4
    assert values(elsewhere(heap, clock)) == []
    clock.time_ms += 1
    assert values(elsewhere(heap, clock)) == [b"behind it"]
    witnesses = [name for name in heap.list_names("transactions/dead") if ".seen-" in name]
    assert len(witnesses) == 1


def test_a_witness_whose_clock_is_ahead_holds_nobody(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """A reader that is two months ahead saw it first: the others go by what they see themselves."""
    begin_with(elsewhere(heap, clock, 90 * DAY_MS), "dead", b"dead")
    assert values(elsewhere(heap, clock, 60 * DAY_MS)) == []
    append(elsewhere(heap, clock), b"behind it")
    assert values(elsewhere(heap, clock)) == []
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    assert values(elsewhere(heap, clock)) == [b"behind it"]


def test_one_witness_is_enough_for_clocks_that_differ_a_little(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """A process a moment later, or behind by no more than the margin, puts no other."""
    begin_with(elsewhere(heap, clock, 30 * DAY_MS), "dead", b"dead")
    for ahead_ms in (0, -CLOCK_MARGIN_MS, 1, CLOCK_MARGIN_MS):
        assert values(elsewhere(heap, clock, ahead_ms)) == []
    assert sum(".seen-" in name for name in heap.list_names("transactions/dead")) == 1


@pytest.mark.usefixtures("short_chapters")
def test_witnesses_go_with_the_states_they_are_of(heap: HeapStorage, clock: VirtualClock) -> None:
    """Cleaning an id's log takes them along."""
    begin_with(elsewhere(heap, clock, 30 * DAY_MS), "dead", b"dead")
    values(elsewhere(heap, clock))
    for _ in range(70):
        clock.time_ms += DAY_MS
        elsewhere(heap, clock).producer(transactional_id="dead").init_transactions()
    assert not any(".seen-" in name for name in heap.list_names("transactions/dead"))


@pytest.mark.usefixtures("short_chapters")
def test_witnesses_do_not_pile_up_while_a_producer_lives(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its transactions is seen by somebody whose clock is behind."""
    monkeypatch.setattr("txnlog.write.coordinator._CLEAN_INTERVAL", 8)
    monkeypatch.setattr("txnlog.log.transaction_log._KEPT_ENTRIES", 8)
    process = VirtualClock(clock.time_ms, next(_SEEDS))
    producer = begin_with(attach(heap, clock=process), "p", b"p")
    for _ in range(30):
        values(elsewhere(heap, process, -HOUR_MS))
        producer.commit_transaction()
        process.time_ms += HOUR_MS
        producer.begin_transaction()
        producer.send("t", b"next")
        producer.flush()
    assert any(".seen-" in name for name in heap.list_names("transactions/p"))
    assert len(heap.list_names("transactions/p")) < 60


def test_the_storages_clock_goes_before_those_of_processes(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Where it tells its time, a dead producer's clock does not matter at all."""
    storage = TimedStorage(heap, clock)
    begin_with(elsewhere(storage, clock, 30 * DAY_MS), "dead", b"dead")
    append(elsewhere(storage, clock), b"behind it")
    clock.time_ms += TIMEOUT_MS
    assert values(elsewhere(storage, clock)) == []
    clock.time_ms += 1_001
    assert values(elsewhere(storage, clock)) == [b"behind it"]


@pytest.mark.parametrize("ahead_ms", [TIMEOUT_MS + 1_000, DAY_MS, -DAY_MS])
def test_a_reader_with_a_wrong_clock_aborts_nobody(
    heap: HeapStorage, clock: VirtualClock, ahead_ms: int
) -> None:
    """By the storage's own time their transactions are young."""
    storage = TimedStorage(heap, clock)
    reader = elsewhere(storage, clock, ahead_ms)
    producer = begin_with(elsewhere(storage, clock), "p", b"p")
    for turn in range(1, 20):
        values(reader)
        producer.commit_transaction()
        assert len(values(reader)) == turn
        producer.begin_transaction()
        producer.send("t", b"next")
        producer.flush()
        clock.time_ms += 1_000


def test_a_margin_covers_clocks_where_the_storage_has_none(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """A reader may be ahead by the timeout and the margin, and not by a millisecond more."""
    producer = begin_with(elsewhere(heap, clock), "p", b"p")
    values(elsewhere(heap, clock, TIMEOUT_MS + CLOCK_MARGIN_MS))
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send("t", b"next")
    producer.flush()
    values(elsewhere(heap, clock, TIMEOUT_MS + CLOCK_MARGIN_MS + 1))
    with pytest.raises(ProducerFenced, match="'p'"):
        producer.commit_transaction()


def test_a_storage_whose_clock_was_set_back_is_no_evidence(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Then the times that the transaction carries count, and a margin."""
    storage_clock = VirtualClock(clock.time_ms + DAY_MS)
    storage = TimedStorage(heap, storage_clock)
    begin_with(elsewhere(storage, clock), "dead", b"dead")
    append(elsewhere(storage, clock), b"behind it")
    storage_clock.time_ms -= DAY_MS
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS
    assert values(elsewhere(storage, clock)) == []
    clock.time_ms += 1
    assert values(elsewhere(storage, clock)) == [b"behind it"]


def test_a_storage_whose_clock_was_set_back_is_asked_in_vain(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Also by a process whose own clock goes on, so that it can put a second witness."""

    class Ticking(VirtualClock):
        def now_ms(self) -> int:
            self.time_ms += 1
            return super().now_ms()

    storage_clock = VirtualClock(clock.time_ms + DAY_MS)
    storage = TimedStorage(heap, storage_clock)
    begin_with(elsewhere(storage, clock), "dead", b"dead")
    append(elsewhere(storage, clock), b"behind it")
    storage_clock.time_ms -= DAY_MS
    late_ms = clock.time_ms + TIMEOUT_MS + CLOCK_MARGIN_MS + 1
    assert values(attach(storage, clock=Ticking(late_ms, next(_SEEDS)))) == [b"behind it"]


def test_a_transaction_that_joins_topics_late_is_not_younger(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Its state is put again with each topic; its time goes on from its beginning."""
    storage = TimedStorage(heap, clock)
    process = VirtualClock(clock.time_ms)
    store = attach(storage, clock=process)
    store.topics.create("u")
    producer = begin_with(store, "dead", b"dead")
    clock.time_ms += TIMEOUT_MS // 2
    process.time_ms = clock.time_ms
    producer.send("u", b"late")
    producer.flush()
    clock.time_ms += TIMEOUT_MS // 2 + 1_001
    values(elsewhere(storage, clock))
    assert elsewhere(storage, clock).transactions.describe("dead").status == "CompleteAbort"


@pytest.mark.parametrize("behind_ms", [80_000, HOUR_MS])
def test_a_producer_whose_clock_is_put_right_is_not_older(
    heap: HeapStorage, clock: VirtualClock, behind_ms: int
) -> None:
    """It begins in the past and joins a topic now: by the storage's clock it is young.

    Its appends must not be further apart than any transaction's, by its own clock.
    """
    storage = TimedStorage(heap, clock)
    process = VirtualClock(clock.time_ms - behind_ms, next(_SEEDS))
    store = attach(storage, clock=process)
    store.topics.create("u")
    producer = begin_with(store, "p", b"p")
    process.time_ms = clock.time_ms
    producer.send("u", b"late")
    if behind_ms == HOUR_MS:
        with pytest.raises(InvalidTxnState, match="nothing can be added to it any more"):
            producer.flush()
        producer.abort_transaction()
        assert values(elsewhere(storage, clock)) == []
        return
    producer.flush()
    values(elsewhere(storage, clock))
    producer.commit_transaction()
    assert values(elsewhere(storage, clock)) == [b"p"]


def test_an_interrupt_after_the_beginning_was_put(heap: HeapStorage, clock: VirtualClock) -> None:
    """Ctrl-C when Ongoing is there already: abort ends it, and the producer goes on."""

    class Interrupted(FaultyStorage):
        armed = False

        def put_if_absent(self, name: str, data: bytes) -> bool:
            created = super().put_if_absent(name, data)
            if self.armed and name.startswith("transactions/"):
                self.armed = False
                raise KeyboardInterrupt
            return created

    storage = Interrupted(heap)
    producer = attach(storage, clock=clock).producer(transactional_id="p")
    producer.init_transactions()
    for interrupted in ("beginning", "decision"):
        producer.begin_transaction()
        producer.send("t", interrupted)
        if interrupted == "decision":
            producer.flush()
        storage.armed = True
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
        if interrupted == "beginning":
            producer.abort_transaction()
        else:
            with pytest.raises(Exception, match="had succeeded"):
                producer.abort_transaction()
        assert elsewhere(heap, clock).transactions.describe("p").status in (
            "CompleteAbort",
            "CompleteCommit",
        )
    producer.begin_transaction()
    producer.send("t", b"next")
    producer.commit_transaction()
    assert values(elsewhere(heap, clock)) == [b"decision", b"next"]


def test_who_may_not_write_loses_no_time(heap: HeapStorage, clock: VirtualClock) -> None:
    """Permission is denied: that is not tried again and again, nor at each look."""

    class Denied(FaultyStorage):
        denied = 0

        def put_if_absent(self, name: str, data: bytes) -> bool:  # noqa: ARG002 - refused anyway
            self.denied += 1
            error = StorageError(f"creating {name} failed: permission is denied")
            error.retriable = False
            raise error

    for number in range(5):
        begin_with(elsewhere(heap, clock), f"dead-{number}", b"dead")
    clock.time_ms += HOUR_MS
    storage = Denied(heap)
    reader = VirtualClock(clock.time_ms, next(_SEEDS))
    store = attach(storage, clock=reader)
    for _ in range(3):
        assert values(store) == []
        assert store.snapshot("t", isolation_level="snapshot").is_atomic
    assert storage.denied == 5
    assert reader.time_ms == clock.time_ms


def test_a_slow_look_at_the_storages_clock_makes_nobody_older(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Half a minute passes before the witness is there, whose time is that of the storage."""
    reader = VirtualClock(clock.time_ms + DAY_MS, next(_SEEDS))

    def wait(for_ms: int) -> None:
        clock.time_ms += for_ms
        reader.time_ms += for_ms

    class Slow(TimedStorage):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            if ".seen-" in name:
                wait(30_000)
            return super().put_if_absent(name, data)

    storage = Slow(heap, clock)
    store = attach(storage, clock=reader)
    begin_with(elsewhere(storage, clock), "first", b"first")
    values(store)
    producer = begin_with(elsewhere(storage, clock), "second", b"second")
    wait(31_500)
    values(store)
    producer.commit_transaction()
    assert elsewhere(storage, clock).transactions.describe("second").status == "CompleteCommit"
