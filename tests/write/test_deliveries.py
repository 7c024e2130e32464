"""Futures of records that were submitted: each has the place where its record really is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from disturbed_storages import LosingStorage

import txnlog
from txnlog import Store
from txnlog.errors import CommitStateUnknown, InvalidTxnState, TxnlogError, UnknownTopicOrPartition
from txnlog.results import Delivery
from txnlog.store import attach
from txnlog.testing import HeapStorage


@pytest.fixture
def store() -> Store:
    """A store with a topic of three partitions whose segments are small."""
    store = attach(HeapStorage(), create=True)
    store.create_topic("t", partitions=3, config={"segment.bytes": "2000"})
    return store


def values(store: Store) -> dict[tuple[int, int], bytes]:
    found = store.scan("t", columns=["partition", "offset", "value"]).to_arrow().to_pylist()
    return {(row["partition"], row["offset"]): row["value"] for row in found}


@pytest.mark.parametrize("transactional", [False, True])
def test_each_future_has_its_records_place(store: Store, transactional: bool) -> None:
    """Among others that were sent alone and in batches, over segments, flushes and partitions."""
    waiting: dict[bytes, Delivery] = {}
    called: list[Delivery] = []
    producer = store.producer(transactional_id="x" if transactional else None)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for number in range(400):
        value, key = b"%d" % number, b"k%d" % (number % 7)
        if number % 3:
            waiting[value] = producer.submit("t", value, key, on_delivery=called.append)
        elif number % 2:
            producer.send("t", value, key)
        else:
            producer.send_batch("t", pa.record_batch({"value": [value], "key": [key]}))
        if number % 150 == 149:
            producer.flush()
    assert not waiting[b"398"].done()
    last = waiting[b"398"].result()  # flushes
    assert all(delivery.done() for delivery in waiting.values())
    if transactional:
        producer.commit_transaction()
    producer.close()
    assert called == [*waiting.values()]
    found = values(store)
    assert len(found) == 400
    assert found[last.partition, last.offset] == b"398"
    for value, delivery in waiting.items():
        place = delivery.result()
        assert (place.topic, found[place.partition, place.offset]) == ("t", value)


def test_records_of_a_typed_topic_have_futures() -> None:
    """Those of rows that become columns together, too."""
    store = attach(HeapStorage(), create=True)
    store.create_topic("t", partitions=2, schema=pa.schema([("a", pa.int64())]))
    with store.producer() as producer:
        waiting = {number: producer.submit("t", {"a": number}) for number in range(50)}
    found = store.scan("t", columns=["_partition", "_offset", "a"]).to_arrow().to_pylist()
    places = {(row["_partition"], row["_offset"]): row["a"] for row in found}
    for number, delivery in waiting.items():
        place = delivery.result()
        assert places[place.partition, place.offset] == number


@pytest.mark.parametrize("how", ["abort", "close", "delete"])
def test_a_record_that_is_dropped_has_an_error(store: Store, how: str) -> None:
    """Whoever waits for it waits for nothing no longer; nor can it be cancelled."""
    transactional = how == "abort"
    producer = store.producer(transactional_id="x" if transactional else None)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    delivery = producer.submit("t", b"v")
    assert not delivery.cancel()
    if how == "abort":
        producer.abort_transaction()
    elif how == "close":
        producer.close(flush=False)
    else:
        store.delete_topic("t")
        with pytest.raises(TxnlogError):
            producer.flush()
    assert isinstance(delivery.exception(), TxnlogError)
    if how != "delete":
        assert isinstance(delivery.exception(), InvalidTxnState)


def test_a_record_in_doubt_is_told_by_the_flush_that_clears_it_up(store: Store) -> None:
    """Its future is neither done nor wrong before, and then has the record's place."""
    storage = LosingStorage(store.storage)
    producer = attach(storage).producer(delivery_timeout_ms=1)
    delivery = producer.submit("t", b"v", partition=1)
    storage.losing = "/log/"
    with pytest.raises(CommitStateUnknown):
        delivery.result()
    assert not delivery.done()
    storage.losing = ""
    assert delivery.result().partition == 1
    assert values(store) == {(1, delivery.result().offset): b"v"}


def test_without_waiting_for_records_their_futures_are_done(store: Store) -> None:
    """With acks=0, when they are written after all."""
    producer = store.producer(acks=0)
    delivery = producer.submit("t", b"v", partition=2)
    producer.close()
    assert txnlog.TopicPartition("t", delivery.result().partition) == ("t", 2)
    assert delivery.result().offset == 0


def test_partitions_of_a_topic_are_told(store: Store) -> None:
    """As they are now, also when there are more of them."""
    with store.producer() as producer:
        assert [*producer.partitions_for("t")] == [0, 1, 2]
        store.alter_topic("t", partitions=4)
        assert len(producer.partitions_for("t")) == 4
        with pytest.raises(UnknownTopicOrPartition):
            producer.partitions_for("nowhere")


def test_a_subscription_is_told(store: Store) -> None:
    """Topics by name or found by a pattern; partitions that were assigned are none."""
    with store.consumer("t") as consumer:
        assert consumer.subscription() == ["t"]
        consumer.unsubscribe()
        assert consumer.subscription() == []
        consumer.assign([txnlog.TopicPartition("t", 0)])
        assert consumer.subscription() == []
        consumer.subscribe(pattern="t.*")
        consumer.poll(timeout_ms=0)
        assert consumer.subscription() == ["t"]
