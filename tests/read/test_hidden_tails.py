"""Positions pass what is decided and not shown, so a reader that waits for the end gets there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.admin.compacted_topics import compact
from tests.support.groups.alone import read_alone
from tests.support.steps import append, begin_with, new_store
from txnlog.consumer import Consumer
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import VirtualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BROKER = Path(__file__).parents[1] / "kafka" / "broker"


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    """One topic with two partitions, of which the second one has nothing to show."""
    store = new_store(memory_storage, clock, {"t": 2})
    append(store, b"0", b"1", b"2", partition=0)
    abort(store, 0)
    abort(store, 1)
    return store


def abort(store: Store, partition: int) -> None:
    begin_with(store, "aborted", *[b"no"] * 5, partition=partition).abort_transaction()


def poll(consumer: Consumer) -> int:
    return len(consumer.poll())


def poll_one(consumer: Consumer) -> int:
    return len(consumer.poll(max_records=1))


def poll_batches(consumer: Consumer) -> int:
    return sum(batch.num_rows for mine in consumer.poll_batches().values() for batch in mine)


def iterate(consumer: Consumer) -> int:
    return sum(1 for _ in consumer)


def iterate_one(consumer: Consumer) -> int:
    for _ in consumer:
        return 1
    return 0


WAYS = [poll, poll_one, poll_batches, iterate, iterate_one]
Way = Callable[[Consumer], int]


def nothing_more(_: Store) -> None:
    """The topic as it is made: aborted tails."""


def compacted(store: Store) -> None:
    """The newest record of each key is older than the end, in both partitions."""
    store.topics.alter("t", config={"cleanup.policy": "compact", "delete.retention.ms": 0})
    for partition in (0, 1):
        for value in (b"old", None):
            with store.producer() as producer:
                producer.send("t", value, key=b"k", partition=partition)
    for _ in range(2):
        store.logs.clock.time_ms += 1000  # type: ignore[attr-defined]
        compact(store)


def trimmed(store: Store) -> None:
    """The first partition is trimmed to its end, the second one into its hidden records."""
    store.topics.delete_records({T0: 8, T1: 2})


def imported(store: Store) -> None:
    """Transactions of Kafka's, with markers and aborted records last."""
    store.topics.delete("t")
    store.kafka.import_topic("orders", [str(BROKER)])


@pytest.mark.few(5)
@pytest.mark.condition(33)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tail", [nothing_more, compacted, trimmed, imported])
def test_every_way_of_reading_comes_to_the_end(
    store: Store, tail: Callable[[Store], None], way: Way
) -> None:
    """Kafka users' loop, "until each position is at its end", ends; and the lag is gone."""
    tail(store)
    (topic,) = store.topics.list()
    consumer = read_alone(
        store, topic, group_id="g", auto_offset_reset="earliest", stop_at_end=True
    )
    ends = consumer.end_offsets(consumer.assignment())
    seen = calls = 0
    while consumer.positions() != ends:
        found = way(consumer)
        seen, calls = seen + found, calls + 1
        assert found or consumer.positions() == ends, calls
    assert seen == sum(store.scan(topic).count().values())
    consumer.commit()
    assert store.groups.describe("g").lag == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_tail_that_comes_later_is_passed_too(store: Store, way: Way) -> None:
    """Also behind records that were returned before, and by a poll that returns nothing."""
    consumer = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    while way(consumer):
        pass
    abort(store, 0)
    assert way(consumer) == 0
    assert consumer.positions() == {T0: 13, T1: 5}


def test_what_is_undecided_or_paused_is_not_passed(store: Store) -> None:
    """The position stops before an open transaction, and where a pause has found it."""
    open_one = begin_with(store, "open", b"3", partition=0)
    abort(store, 0)
    consumer = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    consumer.assignment()
    consumer.pause(T1)
    assert len(consumer.poll()) == 3
    assert consumer.positions() == {T0: 8, T1: 0}
    open_one.commit_transaction()
    assert [record.offset for record in consumer.poll()] == [8]
    assert consumer.positions() == {T0: 14, T1: 0}


def test_the_last_record_of_a_poll_takes_its_tail_along(store: Store) -> None:
    """Positions that are sent with the records' transaction leave no lag: README's loop."""
    store.topics.create("out")
    consumer = store.consumer(
        "t", group_id="g", auto_offset_reset="earliest", max_poll_records=3, stop_at_end=True
    )
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    while records := consumer.poll():
        with producer.transaction():
            for record in records:
                producer.send("out", record.value)
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
    assert store.groups.describe("g").lag == 0
    consumer.close()
