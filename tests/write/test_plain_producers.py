"""Producers without a transaction: idle for long, forgotten, with an append in doubt."""

from __future__ import annotations

import pytest

from tests.support.steps import another, append, new_store, values
from tests.support.storage.disturbed_storages import LosingStorage
from txnlog.errors import (
    CommitStateUnknown,
    CorruptEntry,
    InvalidTxnState,
    StorageError,
    UnknownTopicOrPartition,
)
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

EXPIRATION_MS = 1_000_000


pytestmark = [
    pytest.mark.store(topics={"t": 2}, config={"producer.id.expiration.ms": EXPIRATION_MS}),
    pytest.mark.rule("L8"),
]


def let_all_expire(store: Store, clock: VirtualClock) -> None:
    """Time passes, and somebody's append makes the topic forget who was idle meanwhile."""
    clock.time_ms += EXPIRATION_MS + 1
    append(store, b"other", partition=1)


@pytest.mark.condition(7)
def test_an_idle_producer_goes_on(store: Store, clock: VirtualClock) -> None:
    """A forgotten producer starts over under a new id, at sequence 0."""
    producer = store.producer()
    for turn in range(3):
        producer.send("t", b"%d" % turn, partition=0)
        producer.send("t", b"%d" % turn, partition=1)
        producer.flush()
        let_all_expire(store, clock)
    assert sorted(values(another(store))) == [b"0", b"0", b"1", b"1", b"2", b"2", *[b"other"] * 3]
    written = store.topics.segments("t", partition=0)
    assert [segment.base_sequence for segment in written] == [0, 0, 0]
    assert len({segment.producer_id for segment in written}) == 3


@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("read_meanwhile", [True, False])
def test_an_append_in_doubt_is_not_doubled_when_its_producer_is_forgotten(
    store: Store, clock: VirtualClock, earlier: int, effect: bool, read_meanwhile: bool
) -> None:
    """Flushing again after the topic forgot the producer: once, whatever became of the first."""
    storage = LosingStorage(store.storage)
    storage.effect = effect
    process = attach(storage, clock=clock)
    producer = process.producer()
    for turn in range(earlier):
        producer.send("t", b"earlier %d" % turn, partition=0)
        producer.flush()
    producer.send("t", b"in doubt", partition=0)
    producer.send("t", b"in doubt too", partition=1)
    storage.losing = "topics/t/log"
    with pytest.raises(CommitStateUnknown):
        producer.flush()
    storage.losing = ""
    let_all_expire(store, clock)
    if read_meanwhile:
        # Then its log, which the producer shares, is past the entry before it looks.
        process.scan("t")
    placed = producer.flush()
    assert {where.partition: len(ranges[0]) for where, ranges in placed.items()} == {0: 1, 1: 1}
    producer.send("t", b"later", partition=0)
    producer.flush()
    expected = [b"earlier %d" % turn for turn in range(earlier)]
    expected += [b"in doubt", b"in doubt too", b"later", b"other"]
    assert sorted(values(another(store))) == expected


def test_an_append_after_a_refused_one_is_no_repeat(store: Store) -> None:
    """Records sent after an error do not pass for the producer's first append, and get lost."""
    producer = store.producer()
    producer.send("t", b"first", partition=0)
    producer.flush()
    damaged = "topics/t/log/00000000000000000002.json"
    store.storage.put(damaged, b"{}")
    producer.send("t", b"refused", partition=0)
    with pytest.raises(CorruptEntry):
        producer.flush()
    store.storage.delete([damaged])
    producer.send("t", b"second", partition=0)
    producer.flush()
    assert sorted(values(another(store))) == [b"first", b"second"]


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_topic_that_is_refused_keeps_no_other_from_being_written(store: Store, end: str) -> None:
    """The error is raised all the same."""
    store.topics.create("u")
    producer = store.producer()
    for topic in ("t", "u"):
        producer.send(topic, b"1")
    another(store).topics.delete("t")
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        getattr(producer, end)()
    assert another(store).scan("u").record_count == 1


def test_a_failed_upload_is_not_forgotten(store: Store, clock: VirtualClock) -> None:
    """A plain producer that lost buffered records does not pretend to flush them later."""
    storage = FaultyStorage(store.storage)
    producer = attach(storage, clock=clock).producer()
    producer.send("t", b"x")
    storage.faults = {len(storage.requests): Fault.FAIL}
    with pytest.raises(StorageError, match="injected"):
        producer.flush()
    for call in (producer.flush, lambda: producer.send("t", b"y")):
        with pytest.raises(InvalidTxnState, match="send again what was not flushed"):
            call()
    producer.close()
    assert values(store) == []


@pytest.mark.parametrize("wait_ms", [2 * 3_600_000, 15 * 86_400_000])
def test_an_append_in_doubt_that_was_merged_is_recognised(
    clock: VirtualClock, wait_ms: int
) -> None:
    """Its segments are noted, then gone, and its records are in another one: not written again."""
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = new_store(heap, clock)
    for number in range(3):
        append(store, b"%d" % number)
    losing = LosingStorage(heap)
    producer = another(store, losing).producer(delivery_timeout_ms=1000)
    producer.send("t", b"x")
    losing.losing = "/log/"
    with pytest.raises(CommitStateUnknown):
        producer.flush()
    losing.losing = ""
    another(store).maintain()
    clock.time_ms += wait_ms
    another(store).maintain()
    assert len([*heap.list_all("topics/t/data")]) == (5 if wait_ms < 86_400_000 else 1)
    producer.flush()
    producer.send("t", b"y")
    producer.flush()
    assert values(another(store)) == [b"0", b"1", b"2", b"x", b"y"]
