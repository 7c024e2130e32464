"""A producer outlives its topic: what it sends once nothing waits goes to the one made anew."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.steps import another
from txnlog import Producer, Store
from txnlog.config import AcksValue
from txnlog.errors import UnknownTopicOrPartition
from txnlog.testing import VirtualClock
from txnlog.write.topic_buffer import METADATA_MAX_AGE_S

pytestmark = pytest.mark.store(topics={}, on="heap")

OLD, NEW = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string())])


def make(store: Store, *, typed: bool, partitions: int, schema: pa.Schema) -> None:
    store.topics.create("t", partitions=partitions, schema=schema if typed else None)


def write(producer: Producer, value: object, partition: int | None, *, transactional: bool) -> None:
    if transactional:
        producer.begin_transaction()
    producer.send("t", value, partition=partition)
    producer.commit_transaction() if transactional else producer.flush()


def wait_for_background(producer: Producer) -> None:
    if (background := producer._background) is not None:
        for future in background._waiting:
            future.result()


@pytest.mark.parametrize("partition", [None, 4])
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(("transactional", "acks"), [(False, "all"), (True, "all"), (False, 0)])
def test_an_idle_producer_takes_the_topic_as_it_is(
    store: Store,
    clock: VirtualClock,
    partition: int | None,
    typed: bool,
    transactional: bool,
    acks: AcksValue,
) -> None:
    """Nothing is lost, nor refused for ever: by its first look at the topic's metadata."""
    make(store, typed=typed, partitions=2, schema=OLD)
    producer = store.producer(transactional_id="x" if transactional else None, acks=acks)
    if transactional:
        producer.init_transactions()
    write(producer, {"a": 1} if typed else b"old", None, transactional=transactional)
    wait_for_background(producer)
    store.topics.delete("t")
    make(store, typed=typed, partitions=5, schema=NEW)
    clock.time_ms += int(METADATA_MAX_AGE_S * 1000) + 1
    for _ in range(2):
        write(producer, {"b": "new"} if typed else b"new", partition, transactional=transactional)
    producer.close()
    column = "b" if typed else "value"
    found = another(store).scan("t", columns=[column]).to_arrow().column(0).to_pylist()
    assert found == ["new" if typed else b"new"] * 2


def test_what_waits_for_the_old_topic_is_refused(store: Store, clock: VirtualClock) -> None:
    """It is no record of the new one; the next is."""
    store.topics.create("t", partitions=2)
    producer = store.producer()
    old = producer.send("t", b"old")
    store.topics.delete("t")
    store.topics.create("t", partitions=5)
    clock.time_ms += int(METADATA_MAX_AGE_S * 1000) + 1
    producer.send("t", b"old too")
    with pytest.raises(UnknownTopicOrPartition):
        producer.flush()
    assert isinstance(old.exception(timeout=0), UnknownTopicOrPartition)
    write(producer, b"new", 4, transactional=False)
    assert another(store).scan("t").to_arrow().column("value").to_pylist() == [b"new"]


def test_without_acks_what_follows_refused_records_is_written(store: Store) -> None:
    """The next ones look at the topic again, however new its metadata is."""
    store.topics.create("t", partitions=2)
    producer = store.producer(acks=0)
    write(producer, b"old", None, transactional=False)
    wait_for_background(producer)
    store.topics.delete("t")
    store.topics.create("t", partitions=5)
    for turn in range(4):
        write(producer, b"%d" % turn, None, transactional=False)
        wait_for_background(producer)
    producer.close()
    found = another(store).scan("t").to_arrow().column("value").to_pylist()
    assert found == [b"2", b"3"]
