"""What operators change again and again leaves checkpoints, too: opening reads no past."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import append, begin_with, new_store
from txnlog import TopicPartition
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

AT = TopicPartition("t", 0)


def make_again(store: Store) -> None:
    """A topic that nobody writes to."""
    store.topics.create("temporary")
    store.topics.delete("temporary")


def delete_records(store: Store) -> None:
    append(store, b"v")
    store.topics.delete_records({AT: store.snapshot("t").end_offsets("t")[0]})


def purge(store: Store) -> None:
    with store.producer() as producer:
        producer.send("t", b"v", b"k")
    store.maintenance.purge("t", [{"key": b"k"}])


def purge_again(store: Store) -> None:
    """What is gone already, while the old files wait."""
    if not store.topics.segments("t"):
        append(store, b"stays")
        purge(store)
    store.maintenance.purge("t", [{"key": b"k"}])


def abort(store: Store) -> None:
    begin_with(store, "x", b"v")
    store.transactions.abort("x", reason="a test")


def die(store: Store) -> None:
    """The next producer of this id aborts what this one has placed."""
    begin_with(store, "x", b"v")


def reset(store: Store) -> None:
    store.groups.reset_offsets("g", to={AT: 0})


def delete_offsets(store: Store) -> None:
    reset(store)
    store.groups.delete_offsets("g", [AT])


def delete_group(store: Store) -> None:
    reset(store)
    store.groups.delete("g")


def alter(store: Store) -> None:
    store.topics.alter("t", config={"retention.ms": 1_000_000})


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "change",
    [
        alter,
        make_again,
        delete_records,
        purge,
        purge_again,
        abort,
        die,
        reset,
        delete_offsets,
        delete_group,
    ],
)
def test_opening_costs_the_same_after_many(
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Store], object],
) -> None:
    """By one process each, as commands are."""
    settle_early(monkeypatch)
    new_store(heap, clock)
    counts = []
    for turn in range(80):
        change(attach(heap, clock=clock))
        clock.time_ms += 60_000
        if turn % 40 == 39:
            counting = CountingStorage(heap)
            store = attach(counting, clock=clock)
            counting.take()
            store.topics.describe_all()
            store.scan("t").count()
            store.groups.describe_all()
            store.transactions.list()
            counts.append(sum(counting.take().values()))
    assert counts[1] <= counts[0] + 10
