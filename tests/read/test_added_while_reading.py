"""Partitions that are added, and written to, while a snapshot is taken (condition 31, S1).

A reader that has listed one topic does not know a partition that was added to it since. What a
transaction put there lies beyond the snapshot, so the transaction is hidden in the other topics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support.steps import begin, elsewhere, new_store, send
from txnlog import Snapshot
from txnlog.producer import Producer
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("S1")

TOTAL = 100


@pytest.fixture
def heap(clock: VirtualClock) -> HeapStorage:
    """Two accounts, ``a`` and ``b``, of one partition each; ``a`` has everything."""
    heap = HeapStorage()
    store = new_store(heap, clock, {"a": 1, "b": 1})
    transfer(begin(store, "first"), (b"100", "a", 0))
    return heap


def transfer(producer: Producer, *legs: tuple[bytes, str, int]) -> None:
    for value, topic, partition in legs:
        send(producer, value, topic=topic, partition=partition)
    producer.commit_transaction()


def sums(snapshot: Snapshot, topics: Sequence[str] = ("a", "b")) -> int:
    assert snapshot.is_atomic
    return sum(
        int(value)
        for topic in topics
        for value in snapshot.scan(topic).to_arrow().column("value").to_pylist()
    )


class Meanwhile:
    """A reader before whose first request of this kind a partition is added, and used."""

    def __init__(self, heap: Storage, clock: VirtualClock, request: str) -> None:
        self._store = elsewhere(heap, clock)
        self._request, self.happened = request, False
        self.other: Callable[[Store], None] = add_to_a_and_move
        self.reader = attach(FaultyStorage(heap, before_request=self._look), clock=clock)

    def _look(self, request: str) -> None:
        if request == self._request and not self.happened:
            self.happened = True
            self.other(self._store)


def add_to_a_and_move(store: Store) -> None:
    """Takes 12 out of ``a``, in a partition that is new there, and puts them into ``b``."""
    store.topics.alter("a", partitions=2)
    transfer(begin(store, "mover"), (b"-12", "a", 1), (b"12", "b", 0))


def test_two_topics_one_of_which_grows(heap: HeapStorage, clock: VirtualClock) -> None:
    """Between the listings of ``a`` and ``b``: ``b`` shows its part, ``a`` has no such partition.

    What was torn would be torn in the token for ever, and in the changes until this snapshot.
    """
    store = elsewhere(heap, clock)
    before = store.snapshot(["a", "b"])
    meanwhile = Meanwhile(heap, clock, "list topics/b/log")
    snapshot = meanwhile.reader.snapshot(["a", "b"])
    assert meanwhile.happened
    assert sums(snapshot) == TOTAL
    again = store.snapshot(["a", "b"], at=snapshot.token())
    assert sums(again) == TOTAL
    added = [
        int(value)
        for topic in ("a", "b")
        for value in store.changes(topic, before, snapshot).to_arrow()["value"].to_pylist()
    ]
    assert sum(added) == 0
    assert sums(store.snapshot(["a", "b"])) == TOTAL


def test_a_snapshot_at_a_time(heap: HeapStorage, clock: VirtualClock) -> None:
    """The time is now, or later: the cut is made of the same ends."""
    meanwhile = Meanwhile(heap, clock, "list topics/b/log")
    snapshot = meanwhile.reader.snapshot(["a", "b"], at=clock.time_ms + 1_000_000)
    assert meanwhile.happened
    assert sums(snapshot) == TOTAL


def test_one_topic(heap: HeapStorage, clock: VirtualClock) -> None:
    """The first part was listed undecided; the second comes, and the commit, before the lookup."""
    mover = begin(elsewhere(heap, clock), "mover")
    send(mover, b"-100", topic="a")

    def other(store: Store) -> None:
        store.topics.alter("a", partitions=2)
        transfer(mover, (b"100", "a", 1))

    meanwhile = Meanwhile(heap, clock, "list transactions/mover")
    meanwhile.other = other
    snapshot = meanwhile.reader.snapshot(["a"])
    assert meanwhile.happened
    assert sums(snapshot, ["a"]) == TOTAL
