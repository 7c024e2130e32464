"""What the long random runs have found, each made as small as it goes."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from txnlog.errors import CommitStateUnknown, ProducerFenced, StorageError
from txnlog.names import TopicPartition
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

SOURCE = TopicPartition("in", 0)


def feed(store: Store, *values: bytes) -> None:
    with store.producer() as producer:
        for value in values:
            producer.send("in", value)


def test_an_offset_that_is_committed_during_a_poll_is_not_out_of_range() -> None:
    """An offset beyond the snapshot of the poll made it begin anew, and the copy came twice.

    Before each request of the poll in turn others write, copy what they wrote, and move the group.
    """
    for number in itertools.count():
        inner, clock = HeapStorage(), VirtualClock()
        store = attach(inner, create=True, clock=clock)
        store.create_topic("in")
        feed(store, b"0", b"1")
        slow = FaultyStorage(inner)
        consumer = attach(slow, clock=clock).consumer(
            "in", group_id="g", auto_offset_reset="earliest"
        )
        begun = len(slow.requests)

        def meanwhile(_: Fault, store: Store = store) -> None:
            feed(store, b"2", b"3")
            store.consumer("in", group_id="g").commit({SOURCE: 4})

        slow._on_wait = meanwhile
        slow.faults = {begun + number: Fault.PAUSE}
        records = consumer.poll(100)
        standing = consumer.group_metadata().start_of(SOURCE)
        start = standing.offset or 0
        context = f"request {number} of {slow.requests[begun:]}"
        assert start in (0, 4), context
        offsets = [record.offset for record in records]
        assert offsets in ([[]] if start == 4 else [[0, 1], [0, 1, 2, 3]]), context
        if len(slow.requests) <= begun + number:
            break
    assert number > 2


@pytest.mark.parametrize(
    ("fault", "raised", "seen"),
    [(Fault.DELAY, CommitStateUnknown, [b"x"]), (Fault.PAUSE, ProducerFenced, [])],
)
def test_a_commit_that_was_answered_after_cleaning_is_not_called_fenced(
    fault: Fault, raised: type[Exception], seen: list[bytes]
) -> None:
    """The commit counted; its answer came when its entry was cleaned up; it was called aborted.

    A commit that was sent only then has surely not happened, and is called so.
    """
    inner, clock = HeapStorage(), VirtualClock()
    config = {"log.cleanup.age.ms": 60_000, "transaction.max.timeout.ms": 60_000}
    store = attach(inner, create=True, clock=clock, config=config)
    store.create_topic("in")

    def meanwhile(_: Fault) -> None:
        for _ in range(100):
            clock.time_ms += 60_001
            store.producer(transactional_id="p").init_transactions()

    slow = FaultyStorage(inner, on_wait=meanwhile)
    producer = attach(slow, clock=clock).producer(transactional_id="p")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("in", b"x")
    producer.flush()
    slow.faults = {len(slow.requests): fault}
    with pytest.raises(raised):
        producer.commit_transaction()
    if raised is CommitStateUnknown:
        with pytest.raises(CommitStateUnknown):
            producer.abort_transaction()
    producer.close()
    found = attach(inner, clock=clock).scan("in").to_arrow()
    assert found.column("value").to_pylist() == seen


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_in_doubt_that_is_repeated_after_cleaning_stays_in_doubt(landed: bool) -> None:
    """Repeating it puts it into a name that was freed; that tells nothing of the first time."""
    inner, clock = HeapStorage(), VirtualClock()
    config = {"log.cleanup.age.ms": 60_000, "transaction.max.timeout.ms": 60_000}
    store = attach(inner, create=True, clock=clock, config=config)
    store.create_topic("in")
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
    for _ in range(100):
        clock.time_ms += 60_001
        store.producer(transactional_id="p").init_transactions()
    for _ in range(2):
        with pytest.raises(CommitStateUnknown, match="cleaned up"):
            producer.commit_transaction()
    found = attach(inner, clock=clock).scan("in").to_arrow()
    assert found.column("value").to_pylist() == ([b"x"] if landed else [])


def test_an_append_that_was_answered_after_cleaning_can_only_be_aborted() -> None:
    """It is found placed, but not as which entry: an error that says so, where an assert failed."""
    inner, clock = HeapStorage(), VirtualClock()
    config = {"log.cleanup.age.ms": 10_000, "transaction.max.timeout.ms": 10_000}
    store = attach(inner, create=True, clock=clock, config=config)
    store.create_topic("in")

    def meanwhile(_: Fault) -> None:
        for turn in range(6):
            clock.time_ms += 10_001
            feed(store, b"%d" % turn)
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
    with pytest.raises(StorageError, match="answered so late"):
        producer.commit_transaction()
    assert slow.faults, "the fault was planted"
    with suppress(ProducerFenced):
        producer.close()
    found = attach(inner, clock=clock).scan("in").to_arrow().column("value").to_pylist()
    assert found == [b"%d" % turn for turn in range(6)]
