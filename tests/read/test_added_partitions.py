"""Partitions that are added while producers and consumers are open."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.steps import begin
from txnlog.consumer import Consumer
from txnlog.errors import InvalidRecord, NoOffsetForPartition, UnknownTopicOrPartition
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, VirtualClock
from txnlog.write.topic_buffer import METADATA_MAX_AGE_S

MAX_AGE_MS = int(METADATA_MAX_AGE_S * 1000)


@pytest.fixture
def storage(memory_storage: Storage) -> FaultyStorage:
    return FaultyStorage(memory_storage)


@pytest.fixture
def store(storage: FaultyStorage, clock: VirtualClock) -> Store:
    store = attach(storage, create=True, clock=clock)
    store.topics.create("t")
    return store


def send(producer: Producer, numbers: range) -> None:
    for number in numbers:
        producer.send("t", b"%d" % number, key=b"%d" % number)


def batch(numbers: range) -> pa.RecordBatch:
    values = [b"%d" % number for number in numbers]
    return pa.record_batch({"key": values, "value": values})


def test_a_producer_that_does_not_flush_notices_added_partitions(
    store: Store, storage: FaultyStorage, clock: VirtualClock
) -> None:
    """Five minutes later, by one listing; until then sending costs no request."""
    producer = begin(store)
    producer.send_batch("t", batch(range(100)))
    attach(storage.inner, clock=clock).topics.alter("t", partitions=4)
    storage.requests.clear()
    send(producer, range(100, 200))
    assert storage.requests == []
    clock.time_ms += MAX_AGE_MS + 1
    send(producer, range(200, 400))
    assert [request for request in storage.requests if request.startswith("list")] == [
        "list topics/t/log"
    ]
    placed = producer.commit_transaction()
    assert {where.partition for where in placed} == {0, 1, 2, 3}
    table = store.scan("t").to_arrow()
    assert sorted(int(value) for value in table.column("value").to_pylist()) == [*range(400)]
    first = [int(row["value"]) for row in table.to_pylist() if row["partition"] == 0]
    assert first[:100] == [*range(100)]
    assert first == sorted(first)


def test_a_partition_that_is_named_is_known_at_once(store: Store) -> None:
    """A named new partition is found; one that does not exist is refused as before."""
    producer = store.producer()
    producer.send("t", b"0", partition=0)
    store.topics.alter("t", partitions=3)
    producer.send("t", b"2", partition=2)
    with pytest.raises(InvalidRecord, match="no partition 3; it has 3"):
        producer.send("t", b"3", partition=3)
    assert {where.partition for where in producer.flush()} == {0, 2}


def test_looking_again_may_fail(store: Store, storage: FaultyStorage, clock: VirtualClock) -> None:
    """It is not a reason to end a transaction: the topic is used as it was known."""
    producer = begin(store)
    send(producer, range(10))
    clock.time_ms += MAX_AGE_MS + 1
    storage.faults = {len(storage.requests): Fault.FAIL}
    send(producer, range(10, 20))
    producer.commit_transaction()
    assert store.scan("t").record_count == 20


def test_an_abort_leaves_no_orphans(store: Store, clock: VirtualClock) -> None:
    """What was uploaded when the producer noticed the partitions is deleted too."""
    producer = begin(store)
    producer.send_batch("t", batch(range(10)))
    store.topics.alter("t", partitions=2)
    clock.time_ms += MAX_AGE_MS + 1
    producer.send_batch("t", batch(range(10)))
    assert len(list(store.storage.list_all("topics/t/data"))) == 1
    producer.abort_transaction()
    assert list(store.storage.list_all("topics/t/data")) == []


def test_a_topic_that_is_gone_breaks_no_producer(store: Store, clock: VirtualClock) -> None:
    """Records sent to other topics are kept."""
    store.topics.create("u")
    producer = store.producer()
    producer.send("u", b"u")
    producer.send("t", b"t")
    store.topics.delete("t")
    clock.time_ms += MAX_AGE_MS + 1
    with pytest.raises(UnknownTopicOrPartition, match="'t' does not exist"):
        producer.send("t", b"t")
    with pytest.raises(UnknownTopicOrPartition, match="'t' does not exist"):
        producer.flush()
    producer.flush()
    assert store.scan("u").record_count == 1


def test_a_refused_assignment_leaves_the_old_one(store: Store) -> None:
    """Neither a partition nor a topic that is not there changes what is read."""
    store.topics.create("u", partitions=2)
    with store.producer() as producer:
        producer.send("t", b"1")
    consumer = store.consumer("t", auto_offset_reset="earliest")
    for bad in (TopicPartition("u", 2), TopicPartition("nope", 0)):
        with pytest.raises(UnknownTopicOrPartition):
            consumer.assign([TopicPartition("u", 0), bad])
    assert consumer.assignment() == [TopicPartition("t", 0)]
    assert [record.value for record in consumer.poll()] == [b"1"]
    store.topics.alter("t", partitions=2)
    with store.producer() as producer:
        producer.send("t", b"2", partition=1)
    assert [record.value for record in consumer.poll()] == [b"2"]


def write(store: Store, partition: int, *values: bytes) -> None:
    with store.producer() as producer:
        for value in values:
            producer.send("t", value, partition=partition)


def polled(consumer: Consumer) -> list[bytes | None]:
    return [record.value for record in consumer.poll()]


@pytest.mark.condition(36)
@pytest.mark.parametrize("group_id", [None, "g"])
@pytest.mark.parametrize("by_pattern", [False, True])
def test_the_latest_reads_added_partitions_from_their_start(
    store: Store, group_id: str | None, by_pattern: bool
) -> None:
    """What went in before the partition was seen was not passed on purpose (KIP-1327)."""
    write(store, 0, b"old")
    consumer = store.consumer(group_id=group_id, auto_offset_reset="latest")
    if by_pattern:
        consumer.subscribe(pattern="t")
    else:
        consumer.subscribe(["t"])
    assert polled(consumer) == []
    store.topics.alter("t", partitions=2)
    write(store, 1, b"new")
    write(store, 0, b"newer")
    assert {*polled(consumer), *polled(consumer)} == {b"new", b"newer"}


def test_a_latest_group_that_slept_reads_added_partitions_from_their_start(
    store: Store, clock: VirtualClock
) -> None:
    """Its log says how many partitions there were when it began; checkpoints keep that."""
    write(store, 0, b"old")
    with store.consumer("t", group_id="g", auto_offset_reset="latest") as consumer:
        assert polled(consumer) == []
        consumer.commit()
    store.topics.alter("t", partitions=2)
    write(store, 1, b"slept")
    log = store.logs.group("g")
    log.refresh()
    log.checkpoint()
    later = attach(store.storage, clock=clock)
    with later.consumer("t", group_id="g", auto_offset_reset="latest") as consumer:
        assert polled(consumer) == [b"slept"]
        consumer.commit()
    with later.consumer("t", group_id="g", auto_offset_reset="latest") as consumer:
        assert polled(consumer) == []


def test_a_latest_group_that_begins_anew_reads_nothing_old(
    store: Store, clock: VirtualClock
) -> None:
    """Without offsets, or when they were deleted, it begins at the end of all partitions."""
    for _ in range(2):
        with attach(store.storage, clock=clock).consumer(
            "t", group_id="g", auto_offset_reset="latest"
        ) as consumer:
            assert polled(consumer) == []
    store.topics.alter("t", partitions=2)
    write(store, 1, b"before")
    with attach(store.storage, clock=clock).consumer(
        "t", group_id="g", auto_offset_reset="latest"
    ) as consumer:
        assert polled(consumer) == []
        consumer.commit()
    store.groups.delete("g")
    store.topics.alter("t", partitions=3)
    write(store, 2, b"before")
    with attach(store.storage, clock=clock).consumer(
        "t", group_id="g", auto_offset_reset="latest"
    ) as consumer:
        assert polled(consumer) == []
        consumer.commit({TopicPartition("t", 0): 0})
    with attach(store.storage, clock=clock).consumer(
        "t", group_id="g", auto_offset_reset="latest"
    ) as consumer:
        assert polled(consumer) == []


def test_none_refuses_an_added_partition(store: Store) -> None:
    """As it refuses each partition without an offset."""
    consumer = store.consumer("t", group_id="g", auto_offset_reset="none")
    consumer.assignment()
    consumer.seek(TopicPartition("t", 0), 0)
    assert polled(consumer) == []
    store.topics.alter("t", partitions=2)
    with pytest.raises(NoOffsetForPartition, match="t:1"):
        consumer.poll()
