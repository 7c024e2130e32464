"""Futures of records that were submitted: each has the place where its record really is."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from tests.support.storage.disturbed_storages import LosingStorage
from txnlog import ConsumerConfig, Store
from txnlog.config import AcksValue
from txnlog.errors import (
    CommitStateUnknown,
    IllegalState,
    InvalidTxnState,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.results import FutureRecordMetadata
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write.deliveries import SentBatch


@pytest.fixture
def store() -> Store:
    """A store with a topic of three partitions whose segments are small."""
    store = attach(HeapStorage(), create=True)
    store.topics.create("t", partitions=3, config={"segment.bytes": "2000"})
    return store


def values(store: Store) -> dict[tuple[int, int], bytes]:
    found = store.scan("t", columns=["partition", "offset", "value"]).to_arrow().to_pylist()
    return {(row["partition"], row["offset"]): row["value"] for row in found}


@pytest.mark.parametrize("transactional", [False, True])
def test_each_future_has_its_records_place(store: Store, transactional: bool) -> None:
    """Among others that were sent alone and in batches, over segments, flushes and partitions."""
    waiting: dict[bytes, FutureRecordMetadata] = {}
    called: list[FutureRecordMetadata] = []
    producer = store.producer(transactional_id="x" if transactional else None)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for number in range(400):
        value, key = b"%d" % number, b"k%d" % (number % 7)
        if number % 3:
            waiting[value] = producer.send("t", value, key, on_delivery=called.append)
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
    store.topics.create("t", partitions=2, schema=pa.schema([("a", pa.int64())]))
    with store.producer() as producer:
        waiting = {number: producer.send("t", {"a": number}) for number in range(50)}
    found = store.scan("t", columns=["_partition", "_offset", "a"]).to_arrow().to_pylist()
    places = {(row["_partition"], row["_offset"]): row["a"] for row in found}
    for number, delivery in waiting.items():
        place = delivery.result()
        assert places[place.partition, place.offset] == number


@pytest.mark.parametrize("how", ["abort", "close", "delete"])
def test_a_record_that_is_dropped_has_an_error(store: Store, how: str) -> None:
    """Whoever waits for it waits for nothing no longer."""
    transactional = how == "abort"
    producer = store.producer(transactional_id="x" if transactional else None)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    delivery = producer.send("t", b"v")
    if how == "abort":
        producer.abort_transaction()
    elif how == "close":
        producer.close(flush=False)
    else:
        store.topics.delete("t")
        with pytest.raises(TxnlogError):
            producer.flush()
    assert isinstance(delivery.exception(), TxnlogError)
    if how != "delete":
        assert isinstance(delivery.exception(), InvalidTxnState)


def test_a_record_in_doubt_is_told_by_the_flush_that_clears_it_up(store: Store) -> None:
    """Its future is neither done nor wrong before, and then has the record's place."""
    storage = LosingStorage(store.storage)
    producer = attach(storage, clock=VirtualClock()).producer(delivery_timeout_ms=1)
    delivery = producer.send("t", b"v", partition=1)
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
    delivery = producer.send("t", b"v", partition=2)
    producer.close()
    assert txnlog.TopicPartition("t", delivery.result().partition) == ("t", 2)
    assert delivery.result().offset == 0


def test_partitions_of_a_topic_are_told(store: Store) -> None:
    """As they are now, also when there are more of them."""
    with store.producer() as producer:
        assert [*producer.partitions_for("t")] == [0, 1, 2]
        store.topics.alter("t", partitions=4)
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


def test_a_dropped_producer_is_collected_and_its_futures_have_errors(store: Store) -> None:
    """A future does not keep it alive, nor waits for it: lost records and those in doubt."""
    producer = store.producer()
    lost = producer.send("t", b"v")
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None
    assert isinstance(lost.exception(timeout=0), InvalidTxnState)
    storage, clock = LosingStorage(store.storage), VirtualClock()
    for how in ("drop", "close"):
        storage.losing = ""
        producer = attach(storage, clock=clock).producer(delivery_timeout_ms=1)
        doubtful = producer.send("t", b"v")
        storage.losing = "/log/"
        with pytest.raises(CommitStateUnknown):
            producer.flush()
        if how == "close":
            producer.close(flush=False)
        del producer
        gc.collect()
        assert isinstance(doubtful.exception(timeout=0), CommitStateUnknown)


@pytest.mark.parametrize("acks", ["all", 0])
def test_a_record_that_a_partitioner_fails_on_has_its_error(store: Store, acks: AcksValue) -> None:
    """It has left the buffer already, and is in no segment yet; so have those beside it."""

    def fail(*_: object) -> object:
        raise ValueError("no partition")

    producer = store.producer(acks=acks, partitioner=fail)
    waiting = [producer.send("t", b"v", partition=1) for _ in range(2)]
    waiting.append(producer.send("t", b"v", b"k"))
    with pytest.raises(ValueError, match="no partition"):
        producer.flush()
    assert all(delivery.done() for delivery in waiting)
    assert isinstance(waiting[-1].exception(), ValueError)
    producer.close()


def test_a_refused_topic_is_told_beside_a_good_one(store: Store) -> None:
    """Each future has what became of its own record, and is told once."""
    store.topics.create("good")
    producer = store.producer()
    called: list[FutureRecordMetadata] = []
    waiting = [
        producer.send(topic, b"v", on_delivery=called.append) for topic in ("t", "good", "t")
    ]
    store.topics.delete("t")
    with pytest.raises(UnknownTopicOrPartition):
        producer.flush()
    assert [type(delivery.exception(timeout=0)) for delivery in waiting] == [
        *(UnknownTopicOrPartition, type(None), UnknownTopicOrPartition),
    ]
    assert waiting[1].result().offset == 0
    assert sorted(map(id, called)) == sorted(map(id, waiting))
    producer.close()


@pytest.mark.parametrize("what", ["flush", "close", "result"])
def test_who_is_told_may_flush(store: Store, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """What waits is placed once, be it by that flush or the one that tells, which succeeds."""
    store.topics.create("u")
    producer = store.producer()
    told: list[FutureRecordMetadata] = []

    def call(delivery: FutureRecordMetadata) -> None:
        told.append(delivery)
        if what != "result":
            getattr(producer, what)()
        elif len(told) == 1:
            assert producer.send("u", b"more").result().offset == 3

    sent = [producer.send(topic, b"v", on_delivery=call) for topic in ("t", "u") * 3]
    placed = producer.flush()
    assert not caplog.records
    assert sorted(map(id, told)) == sorted(map(id, sent))
    assert all(delivery.exception(timeout=0) is None for delivery in sent)
    assert sum(len(offsets) for ranges in placed.values() for offsets in ranges) == 3
    assert (len(values(store)), store.scan("u").to_arrow().num_rows) == (3, 3 + (what == "result"))
    producer.close()


@pytest.mark.parametrize("end", ["abort_transaction", "close"])
def test_who_is_told_may_end_the_transaction(store: Store, end: str) -> None:
    """It is over then, and the producer knows."""
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"v", on_delivery=lambda _: getattr(producer, end)())
    producer.flush()
    with pytest.raises(IllegalState if end == "close" else InvalidTxnState, match=r"send\(\)"):
        producer.send("t", b"w")
    assert values(store) == {}


def test_a_lingering_producer_does_not_wait_to_be_asked(tmp_path: Path) -> None:
    """The thread of linger_ms makes futures done."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("t")
    with store.producer(linger_ms=1) as producer:
        delivery = producer.send("t", b"v")
        told = threading.Event()
        delivery.add_done_callback(lambda _: told.set())
        assert told.wait(60)
        assert delivery.result().offset == 0


def test_futures_that_nobody_keeps_are_forgotten(store: Store) -> None:
    """Also before a flush: what is sent in a long transaction takes no memory for them."""

    def living() -> int:
        gc.collect()
        return sum(isinstance(one, SentBatch) for one in gc.get_objects())

    before = living()
    with store.producer() as producer:
        kept = producer.send("t", b"v", b"k")
        for _ in range(30_000):  # three batches
            producer.send("t", b"v", b"k")
        assert living() - before == 2, "that of the future, and the one that grows"
        assert kept.result().offset == 0


def test_callbacks_need_nobody_to_keep_the_future(store: Store) -> None:
    """They are called in the order of the records, each once; one that fails stops none."""
    called: list[int] = []

    def call(future: FutureRecordMetadata) -> None:
        called.append(future.result().offset)
        raise ValueError("a fault of the user's")

    with store.producer() as producer:
        producer.send("t", b"v", partition=0, on_delivery=call)
        producer.send("t", b"v", partition=0).add_done_callback(call)
        for _ in range(10_000):  # their batch is full
            producer.send("t", b"v", partition=0)
        gc.collect()
        late = producer.send("t", b"v", partition=0)
        producer.flush()
        late.add_done_callback(call)
    assert called == [0, 1, 10_002]


def test_what_a_producer_has_done_is_told(store: Store) -> None:
    """Flushes, records, transactions by their outcome, and what waits."""
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        producer.send_batch("t", [{"value": b"v"}] * 3)
        if outcome == "abort":
            producer.flush()
        getattr(producer, f"{outcome}_transaction")()
    producer.begin_transaction()
    producer.send("t", b"v")
    numbers = {metric.name: metric.value for metric in producer.metrics()}
    producer.close()
    assert numbers.pop("txnlog_producer_flush_seconds_total") >= 0
    assert numbers == {
        "txnlog_producer_flush_total": 3,
        "txnlog_producer_records_total": 9,
        "txnlog_producer_committed_transactions_total": 2,
        "txnlog_producer_aborted_transactions_total": 1,
        "txnlog_producer_buffered_records": 1,
    }
    storage = LosingStorage(store.storage)
    failing = attach(storage, clock=VirtualClock()).producer(delivery_timeout_ms=1)
    failing.send("t", b"v")
    storage.losing = "/log/"
    with pytest.raises(CommitStateUnknown):
        failing.flush()
    numbers = {metric.name: metric.value for metric in failing.metrics()}
    assert numbers["txnlog_producer_flush_error_total"] == 1


def test_what_a_consumer_has_done_is_told(store: Store) -> None:
    """Records, commits, and how far it lies behind what it has seen; without a request."""
    where = txnlog.TopicPartition("t", 0)
    with store.producer() as producer:
        producer.send_batch("t", [{"value": b"v"}] * 10, partition=0)
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign([where])
    assert consumer.highwater(where) is None
    consumer.poll(max_records=4)
    consumer.commit()
    with store.producer() as producer:
        producer.send_batch("t", [{"value": b"v"}] * 10, partition=0)
    found = {metric.name: metric for metric in consumer.metrics()}
    assert found["txnlog_consumer_records_total"].value == 10, "in batches that it has begun"
    assert found["txnlog_consumer_commit_total"].value == 1
    lag = found["txnlog_consumer_records_lag"]
    assert ({**lag.labels}, lag.value) == ({"topic": "t", "partition": "0"}, 6)
    ends = [(consumer.highwater(where), len(consumer.poll())) for _ in range(2)]
    assert ends == [(10, 6), (10, 10)], "as it was seen last"
    assert consumer.highwater(where) == 20
    with pytest.raises(IllegalState):
        consumer.highwater(txnlog.TopicPartition("t", 1))
    consumer.close()


def test_an_interrupted_producer_is_collected_at_once(store: Store) -> None:
    """An error that no future asks for holds nothing: no cycle waits for the garbage collector."""

    def interrupt(*_: object) -> object:
        raise KeyboardInterrupt

    producer = store.producer(partitioner=interrupt)
    producer.send("t", b"v")
    gone = weakref.ref(producer)
    gc.disable()
    try:
        with suppress(KeyboardInterrupt):
            producer.flush()
        del producer
        assert gone() is None
    finally:
        gc.enable()


def test_a_partition_that_was_added_has_no_end_yet(store: Store) -> None:
    """It is assigned by a look that holds back what it has found, and has not been read."""
    consumer = store.consumer(
        auto_offset_reset="earliest", config=ConsumerConfig(fetch_min_bytes=1000)
    )
    consumer.subscribe(["t"])
    with store.producer() as producer:
        producer.send_batch("t", [{"value": os.urandom(2000)}], partition=0)
    assert len(consumer.poll()) == 1
    store.topics.alter("t", partitions=4)
    with store.producer() as producer:
        producer.send("t", b"v", partition=3)
    assert consumer.poll() == []
    where = txnlog.TopicPartition("t", 3)
    assert where in consumer.assignment()
    assert consumer.highwater(where) is None
    assert {metric.name for metric in consumer.metrics()} >= {"txnlog_consumer_records_lag"}
    consumer.close()
