"""What the long random runs have found, each made as small as it goes."""

from __future__ import annotations

import itertools

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
        start = consumer.group_metadata().start_of(SOURCE) or 0
        context = f"request {number} of {slow.requests[begun:]}"
        assert start in (0, 4), context
        offsets = [record.offset for record in records]
        assert offsets in ([[]] if start == 4 else [[0, 1], [0, 1, 2, 3]]), context
        if len(slow.requests) <= begun + number:
            break
    assert number > 2
