"""``key_deserializer`` and ``value_deserializer``, and the serializers on the other side."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from txnlog import Store, TopicPartition
from txnlog.errors import InvalidOption, RecordDeserializationFailed
from txnlog.store import attach
from txnlog.testing import HeapStorage

T0 = TopicPartition("t", 0)


@pytest.fixture
def store() -> Store:
    store = attach(HeapStorage(), create=True)
    store.topics.create("t")
    return store


def test_what_is_sent_comes_back(store: Store) -> None:
    """Keys and values of any kind; None is a missing key, or a tombstone, on both sides."""
    values = [{"n": 1}, [2, "two"], 3, None]
    with store.producer(key_serializer=str.encode, value_serializer=json.dumps) as producer:
        for number, value in enumerate(values):
            producer.send("t", value, "é" if number % 2 else None)
    settings: dict[str, Any] = {
        "key_deserializer": bytes.decode,
        "value_deserializer": json.loads,
    }
    with store.consumer("t", auto_offset_reset="earliest", stop_at_end=True, **settings) as reader:
        found = [*reader]
        reader.seek(T0, 0)
        assert reader.poll() == found
        reader.seek(T0, 0)
        (batches,) = reader.poll_batches().values()
    assert [record.value for record in found] == values
    assert [record.key for record in found] == [None, "é", None, "é"]
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert pa.Table.from_batches(batches)["value"].to_pylist()[0] == b'{"n": 1}'


def test_rows_of_a_typed_topic_are_made_and_read(store: Store) -> None:
    """A serializer makes the mapping of columns that ``send`` takes."""
    store.topics.create("rows", schema=pa.schema([("a", pa.int64())]))
    with store.producer(value_serializer=lambda a: {"a": a}) as producer:
        producer.send("rows", 5)
    with store.consumer(
        "rows", auto_offset_reset="earliest", value_deserializer=lambda row: row["a"]
    ) as consumer:
        assert [record.value for record in consumer.poll()] == [5]


@pytest.mark.parametrize("iterating", [False, True])
def test_a_record_that_cannot_be_read_stops_the_consumer_before_it(
    store: Store, iterating: bool
) -> None:
    """Those before it are handed out first; it comes again until the consumer seeks past it."""
    with store.producer() as producer:
        for value in (b"1", b"2", b"{", b"4", b"["):
            producer.send("t", value)
    with store.consumer(
        "t",
        group_id="g",
        auto_offset_reset="earliest",
        stop_at_end=True,
        value_deserializer=json.loads,
    ) as consumer:
        taken: list[int] = []
        stopped: list[tuple[RecordDeserializationFailed, int]] = []
        for _ in range(8):
            try:
                taken += (
                    (record.value for record in consumer)
                    if iterating
                    else [record.value for record in consumer.poll()]
                )
            except RecordDeserializationFailed as error:
                stopped.append((error, consumer.position(T0)))
                if [one.offset for one, _ in stopped[-2:]] == [error.offset] * 2:
                    consumer.seek(error.where, error.offset + 1)
        assert taken == [1, 2, 4]
        assert [at for _, at in stopped] == [2, 2, 4, 4]
        for failed, at in stopped:
            assert (failed.where, failed.offset) == (T0, at)
            assert isinstance(failed.__cause__, json.JSONDecodeError)
            assert pickle.loads(pickle.dumps(failed)).offset == at
        assert consumer.position(T0) == 5


def test_a_serializer_that_raises_takes_nothing(store: Store) -> None:
    """Its error is the caller's, and the transaction can go on without the record."""
    with store.producer(transactional_id="x", value_serializer=json.dumps) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", 1)
        with pytest.raises(TypeError, match="not JSON serializable"):
            producer.send("t", object())
        producer.send("t", 2)
        producer.commit_transaction()
    assert store.scan("t").to_arrow()["value"].to_pylist() == [b"1", b"2"]


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer"])
def test_what_is_no_function_is_refused(store: Store, name: str) -> None:
    """By its name, on both sides."""
    with pytest.raises(InvalidOption, match=f"{name} is 'json'; it is a function"):
        store.producer(**{name: "json"})  # type: ignore[arg-type]
    name = name.replace("serializer", "deserializer")
    with pytest.raises(InvalidOption, match=f"{name} is 'json'; it is a function"):
        store.consumer("t", **{name: "json"})  # type: ignore[arg-type]
