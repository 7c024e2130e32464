"""``latest=True``: one row for each key, which is its newest record."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.tiers import more
from txnlog import Store
from txnlog.errors import InvalidOption
from txnlog.spark import read, transaction


def newest_of(store: Store, topic: str) -> dict[bytes, bytes]:
    """By key, from all records: per partition the last one, of these the one with most time."""
    columns = ["key", "value", "partition", "offset", "timestamp"]
    last: dict[tuple[bytes, int], dict[str, Any]] = {}
    for row in store.scan(topic, columns=columns).to_arrow().to_pylist():
        if row["key"] is not None:
            last[row["key"], row["partition"]] = row
    found: dict[bytes, dict[str, Any]] = {}
    for row in sorted(last.values(), key=lambda row: (row["timestamp"], row["partition"])):
        found[row["key"]] = row
    return {key: row["value"] for key, row in found.items() if row["value"] is not None}


def by_key(frame: DataFrame) -> dict[bytes, bytes]:
    rows = frame.collect()
    found = {bytes(row["key"]): bytes(row["value"]) for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


@pytest.mark.parametrize("record_format", ["parquet", *more(["columns"])])
def test_newest_records_of_plain_topics(
    spark: SparkSession, store: Store, record_format: str
) -> None:
    """Against plain Python: times out of order, keys in several partitions, tombstones, no keys."""
    store.topics.create("t", partitions=2, config={"record.format": record_format})
    random.seed(7)
    times = random.sample(range(1_700_000_000_000, 1_700_000_100_000), 400)
    with store.producer() as producer:
        for number, timestamp_ms in enumerate(times):
            if number == 200:
                producer.flush()
                store.topics.alter("t", partitions=4)
            key = random.choice([None, *(b"k%d" % n for n in range(30))])
            value = None if random.random() < 0.3 else b"%d" % number
            partition = random.choice([None, 0])
            producer.send("t", value, key, partition=partition, timestamp_ms=timestamp_ms)
    expected = newest_of(store, "t")
    assert 5 < len(expected) < 30
    for columns in (None, "key,value", ["value", "key"]):
        frame = read(spark, store, "t", columns=columns, latest=True)
        assert by_key(frame) == expected
        plain = read(spark, store, "t", columns=columns)
        assert [(f.name, f.dataType) for f in frame.schema] == [
            (f.name, f.dataType) for f in plain.schema
        ]


def test_newest_records_of_typed_topics(spark: SparkSession, store: Store) -> None:
    """A key of two columns, names that must be quoted, maps, and rows that delete."""
    schema = pa.schema(
        [("a.b", pa.string()), ("`n", pa.int64()), ("m", pa.map_(pa.string(), pa.int32()))]
    )
    store.topics.create("t", partitions=3, schema=schema, key=["a.b", "`n"])

    def send(number: int, *, deleted: bool = False) -> None:
        row = {"a.b": ["x", "y"], "`n": [1, 2], "m": [[("v", number)]] * 2}
        with store.producer() as producer:
            producer.send_batch("t", pa.table(row, schema=schema))
            if deleted:
                gone = pa.table({"a.b": ["y"], "`n": [2], "_deleted": [True]})
                producer.send_batch("t", gone)

    send(1)
    token = store.snapshot(["t"]).token()
    send(2, deleted=True)
    for native in (True, False):
        found = read(spark, store, "t", latest=True, native=native).collect()
        assert [row.asDict() for row in found] == [{"a.b": "x", "`n": 1, "m": {"v": 2}}]
        then = read(spark, store, "t", columns=["m"], at=token, latest=True, native=native)
        assert [row["m"] for row in then.collect()] == [{"v": 1}] * 2


def test_a_join_with_newest_records_has_one_row_for_each_order(
    spark: SparkSession, store: Store
) -> None:
    """As docs/SPARK.md looks things up: each run finds the newest customer, and consumes none."""
    for topic in ("orders", "customers", "paid"):
        store.topics.create(topic, partitions=2)

    def run() -> list[bytes]:
        with transaction(spark, store, transactional_id="etl", group_id="etl") as txn:
            orders = txn.read("orders")
            customers = txn.read_whole("customers", latest=True)
            named = orders.join(customers.selectExpr("key", "value AS customer"), "key")
            txn.write(named.selectExpr("key", "concat(value, customer) AS value"), topic="paid")
        return sorted(store.scan("paid").to_arrow()["value"].to_pylist())

    with store.producer() as producer:
        for value in (b"old", b"new"):
            producer.send("customers", value, b"c")
        producer.send("orders", b"1 of ", b"c")
    assert run() == [b"1 of new"]
    with store.producer() as producer:
        producer.send("customers", b"newest", b"c")
        producer.send("orders", b"2 of ", b"c")
    assert run() == [b"1 of new", b"2 of newest"]


def test_a_topic_without_a_key_has_no_newest_records(spark: SparkSession, store: Store) -> None:
    """Every row would be left out."""
    store.topics.create("t", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidOption, match="has no key"):
        read(spark, store, "t", latest=True)
