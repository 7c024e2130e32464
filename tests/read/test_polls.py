"""Consumers that poll: in a loop, left early, failing midway, while others commit."""

from __future__ import annotations

import itertools

import pytest
from steps import another, append, new_store

from txnlog.errors import StorageError
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

T0 = TopicPartition("t", 0)


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    return new_store(memory_storage, clock)


def test_kafkas_loop_with_one_consumer(store: Store) -> None:
    """Consume, produce, send the offsets, commit, again: the consumer learns of its commits."""
    store.create_topic("out")
    for number in range(4):
        append(store, b"%d" % number)
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest", max_poll_records=2)
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    while records := consumer.poll():
        with producer.transaction():
            for record in records:
                producer.send("out", record.value)
            producer.send_offsets_to_transaction(
                {T0: consumer.position(T0)}, consumer.group_metadata()
            )
    assert store.scan("out").record_count == 4


def test_leaving_the_loop_loses_no_records(store: Store) -> None:
    """The position is behind the last record that the loop has seen."""
    for number in range(4):
        append(store, b"%d" % number)
    consumer = store.consumer("t", auto_offset_reset="earliest")
    for record in consumer:
        assert record.offset == 0
        break
    assert consumer.position(T0) == 1
    assert [record.offset for record in consumer] == [1, 2, 3]


def test_a_poll_that_fails_midway_loses_no_records(store: Store, clock: VirtualClock) -> None:
    """What it had read when it failed comes again with the next one."""
    for number in range(3):
        append(store, b"%d" % number)
    storage = FaultyStorage(store.storage)
    consumer = attach(storage, clock=clock).consumer("t", auto_offset_reset="earliest")
    get_range, reads = storage.get_range, 0

    def failing(name: str, start: int, stop: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 3:
            raise StorageError("503")
        return get_range(name, start, stop)

    storage.get_range = failing  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="503"):
        consumer.poll()
    assert reads == 3
    assert [record.value for record in consumer.poll()] == [b"0", b"1", b"2"]


def test_an_offset_that_is_committed_during_a_poll_is_not_out_of_range() -> None:
    """An offset beyond the poll's snapshot is no reason to begin anew: the copy would come twice.

    Before each request of the poll in turn others write, copy what they wrote, and move the group.
    """
    for number in itertools.count():
        inner, clock = HeapStorage(), VirtualClock()
        store = new_store(inner, clock)
        append(store, b"0", b"1")
        slow = FaultyStorage(inner)
        consumer = another(store, slow).consumer("t", group_id="g", auto_offset_reset="earliest")
        begun = len(slow.requests)

        def meanwhile(_: Fault, store: Store = store) -> None:
            append(store, b"2", b"3")
            store.consumer("t", group_id="g").commit({T0: 4})

        slow._on_wait = meanwhile
        slow.faults = {begun + number: Fault.PAUSE}
        records = consumer.poll(100)
        standing = consumer.group_metadata().start_of(T0)
        start = standing.offset or 0
        context = f"request {number} of {slow.requests[begun:]}"
        assert start in (0, 4), context
        offsets = [record.offset for record in records]
        assert offsets in ([[]] if start == 4 else [[0, 1], [0, 1, 2, 3]]), context
        if len(slow.requests) <= begun + number:
            break
    assert number > 2
