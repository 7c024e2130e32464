"""``commit_async``: the consumer goes on meanwhile, and what became of each commit is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping

import pytest

from tests.support.runtime.forked_child import in_child
from tests.support.storage.disturbed_storages import HookedStorage
from txnlog import Consumer, Store, TopicPartition
from txnlog.errors import (
    CommitFailed,
    InvalidOption,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Told = list[tuple[Mapping[TopicPartition, int], TxnlogError | None]]


class Gated(HookedStorage):
    """Creates in a group's log wait for the gate, and say that they do."""

    def __init__(self, base: HeapStorage) -> None:
        super().__init__(base)
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()
        self.rule = self.wait

    def wait(self, name: str) -> None:
        if name.startswith("groups/"):
            self.waits.set()
            assert self.gate.wait(60)

    def open_soon(self) -> None:
        """Open the gate from another thread, perhaps after this one has begun to wait."""
        threading.Thread(target=self.gate.set).start()


@pytest.fixture
def storage() -> Gated:
    storage = Gated(HeapStorage())
    store = attach(storage, create=True)
    store.topics.create("t", partitions=2)
    with store.producer() as producer:
        for number in range(10):
            producer.send("t", b"%d" % number, partition=number % 2)
    return storage


@pytest.fixture
def store(storage: Gated) -> Store:
    return attach(storage, clock=VirtualClock())


@pytest.fixture
def consumer(store: Store, storage: Gated) -> Iterator[Consumer]:
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign([T0, T1])
    yield consumer
    storage.gate.set()
    consumer.close()


def test_polls_go_on_while_offsets_are_committed(
    store: Store, storage: Gated, consumer: Consumer
) -> None:
    """Its callback comes with a later poll, in this thread, and tells what was committed."""
    told: Told = []
    threads: list[threading.Thread] = []

    def note(offsets: Mapping[TopicPartition, int], error: TxnlogError | None) -> None:
        told.append((offsets, error))
        threads.append(threading.current_thread())

    first = consumer.poll(max_records=3)
    positions = consumer.positions()
    storage.gate.clear()
    storage.waits.clear()
    consumer.commit_async(callback=note)
    assert storage.waits.wait(60)
    assert len(first) == 3
    assert len(consumer.poll(max_records=3)) == 3
    assert told == []
    storage.gate.set()
    assert consumer.committed(T0) is not None  # waits for it
    assert told == []
    consumer.poll(max_records=1)
    assert told == [(positions, None)]
    assert threads == [threading.current_thread()]
    assert {w: found.offset for w in (T0, T1) if (found := consumer.committed(w))} == positions
    numbers = [metric.value for metric in consumer.metrics() if "async_commit" in metric.name]
    assert numbers == [1]


def test_a_later_commit_is_not_overtaken(storage: Gated, consumer: Consumer) -> None:
    """Of any kind: the newest offsets hold, and callbacks come in the order of the calls."""
    told: Told = []
    storage.gate.clear()
    consumer.commit_async({T0: 1}, callback=lambda *what: told.append(what))
    storage.open_soon()
    consumer.commit_async({T0: 2}, callback=lambda *what: told.append(what))
    consumer.commit({T0: 3})
    assert [offsets for offsets, _ in told] == [{T0: 1}, {T0: 2}]
    found = consumer.committed(T0)
    assert found is not None
    assert found.offset == 3


def test_a_commit_that_fails_is_told(
    storage: Gated, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    """To its callback, or without one in the log; by ``close`` at the latest. Others go on."""
    told: Told = []
    storage.fail_at("groups/")
    consumer.commit_async({T0: 1}, callback=lambda *what: told.append(what))
    consumer.commit_async({T0: 2})
    with caplog.at_level(logging.WARNING, "txnlog.groups.group_positions"):
        consumer.close()
    assert [offsets for offsets, _ in told] == [{T0: 1}]
    assert isinstance(told[0][1], StorageError)
    assert "offsets were not committed" in caplog.text


def test_wrong_offsets_are_refused_at_once(consumer: Consumer) -> None:
    """By the call itself, as ``commit`` does; a topic that does not exist, too."""
    with pytest.raises(InvalidOption):
        consumer.commit_async({T0: -1})
    with pytest.raises(UnknownTopicOrPartition):
        consumer.commit_async({TopicPartition("nowhere", 0): 1})


def test_a_transaction_begins_where_it_has_committed(store: Store, consumer: Consumer) -> None:
    """The start of the offsets in a transaction is what the thread has committed."""
    consumer.poll(max_records=3)
    consumer.commit_async()
    consumer.poll(max_records=3)
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
        producer.commit_transaction()
    committed = {where: consumer.committed(where) for where in (T0, T1)}
    assert {w: at.offset for w, at in committed.items() if at} == consumer.positions()


def test_offsets_are_committed_before_the_member_leaves(store: Store, storage: Gated) -> None:
    """Closing, unsubscribing and giving partitions away wait for the commit that is under way."""
    for leave in (Consumer.close, Consumer.unsubscribe):
        told: Told = []
        member = store.consumer("t", group_id=leave.__name__, auto_offset_reset="earliest")
        assert member.poll(max_records=2)
        positions = member.positions()
        storage.gate.clear()
        storage.waits.clear()
        member.commit_async(callback=lambda *what, told=told: told.append(what))
        assert storage.waits.wait(60)
        storage.open_soon()
        leave(member)
        member.close()
        assert told == [(positions, None)]
        offsets = store.groups.describe(leave.__name__).offsets
        assert {TopicPartition(o.topic, o.partition): o.offset for o in offsets} == positions


def test_a_member_that_was_removed_is_told_so(store: Store) -> None:
    """As by ``commit``: the error is the callback's."""
    told: Told = []
    with store.consumer("t", group_id="m", auto_offset_reset="earliest") as member:
        member.poll(max_records=2)
        store.groups.remove_members("m")
        member.commit_async({T0: 1}, callback=lambda *what: told.append(what))
    ((_, error),) = told
    assert isinstance(error, CommitFailed)


def test_a_forked_child_does_not_wait_for_the_parents_thread(
    store: Store, storage: Gated, consumer: Consumer
) -> None:
    """The thread is the parent's alone: the child goes on without it."""
    storage.gate.clear()
    storage.waits.clear()
    consumer.commit_async({T0: 1})
    assert storage.waits.wait(60)

    def child() -> str:
        storage.gate.set()
        found = consumer.committed(T0)
        return "none" if found is None else str(found.offset)

    assert in_child(child) == "'none'"


def test_who_is_told_may_seek_before_the_next_commit(consumer: Consumer) -> None:
    """Positions are committed as they are when all callbacks were called."""
    for commit in (consumer.commit, consumer.commit_async):
        consumer.poll(max_records=3)
        consumer.commit_async(callback=lambda *_: consumer.seek(T0, 1))
        commit()
        found = consumer.committed(T0)
        assert found is not None
        assert found.offset == 1
