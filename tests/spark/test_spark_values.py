"""``values="avro"``: the columns of a schema, and dead letters, in Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from txnlog import Store
from txnlog.errors import InvalidOption, InvalidTxnState, UnknownSchema
from txnlog.spark import read, transaction
from txnlog.values import ValueReader, ValueWriter, subject_columns

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "sizes", "type": {"type": "map", "values": "int"}, "default": {}},
        {"name": "which", "type": ["null", "string", "long"], "default": None},
    ],
}
ROW: dict[str, Any] = {
    "day": date(2024, 5, 1),
    "at": datetime(2024, 5, 1, 12, tzinfo=UTC),
    "price": Decimal("9.50"),
    "note": None,
    "tags": ["a", "b"],
    "sizes": {"s": 1},
    "which": {"member0": None, "member1": 7},
}


def fill(store: Store, count: int) -> None:
    """Orders of subject ``orders-value``, a tombstone, and two that are none."""
    store.topics.create("orders", partitions=2)
    store.schemas.add("orders-value", json.dumps(ORDER))
    writer = ValueWriter(store.schemas, "avro", subject="orders-value")
    with store.producer(value_serializer=writer) as producer:
        for number in range(count):
            producer.send("orders", {**ROW, "id": number}, key=b"k%d" % number)
    with store.producer() as producer:
        producer.send("orders", None, key=b"gone")
        producer.send("orders", b"\0\0\0\0\x09x", key=b"unknown")
        producer.send("orders", b"plain", key=b"plain")


def test_a_transaction_with_typed_rows_and_dead_letters(spark: SparkSession, store: Store) -> None:
    """What is good goes to a typed topic of the subject's columns, what is not beside it."""
    fill(store, 20)
    store.topics.create("dead")
    columns = subject_columns(store.schemas, "orders-value").columns
    store.topics.create("rows", schema=columns.remove(columns.get_field_index("which")), key=["id"])
    with transaction(spark, store, transactional_id="t", group_id="g") as txn:
        orders = txn.read("orders", values="avro")
        names = [name for name in columns.names if name != "which"]
        txn.write(orders.where("_error is null and id is not null").select(*names), topic="rows")
        dead = orders.where("_error is not null")
        txn.write(dead.selectExpr("_key as key", "_value as value"), topic="dead")
    found = sorted(store.scan("rows").to_arrow().to_pylist(), key=lambda row: int(row["id"]))
    assert [row["id"] for row in found] == [*range(20)]
    assert found[7] | ROW | {"id": 7, "sizes": [("s", 1)]} == found[7] | {"which": ROW["which"]}
    dead_values = store.scan("dead", columns=["key", "value"]).to_arrow().to_pylist()
    assert sorted(row["key"] for row in dead_values) == [b"plain", b"unknown"]
    assert {row["value"] for row in dead_values} == {b"plain", b"\0\0\0\0\x09x"}


def test_a_read_by_itself(spark: SparkSession, store: Store) -> None:
    """Chosen columns, real unions, reasons; nothing else is read of the records."""
    fill(store, 3)
    frame = read(spark, store, "orders", values="avro", columns="id,which,_key,_error")
    assert frame.columns == ["id", "which", "_key", "_error"]
    rows = {bytes(row["_key"]): row for row in frame.collect()}
    assert rows[b"k2"]["id"] == 2
    assert rows[b"k2"]["which"].asDict() == {"member0": None, "member1": 7}
    assert rows[b"gone"].asDict() == {"id": None, "which": None, "_key": b"gone", "_error": None}
    assert rows[b"unknown"]["_error"].startswith("schema 9 is unknown")
    assert rows[b"plain"]["_error"].startswith("it begins with the byte 112")
    whole = read(spark, store, "orders", values="avro", include_headers=True)
    assert whole.columns[-3:] == ["_headers", "_value", "_error"]
    assert whole.where("id >= 0").agg(sf.sum("id")).first()[0] == 3  # type: ignore[index]
    assert read(spark, store, "orders", values="avro", latest=True).where("id = 1").count() == 1
    assert read(spark, store, "orders", values="avro", columns=["id"]).count() == 6


def test_other_subjects_and_wrong_ones(spark: SparkSession, store: Store) -> None:
    """A reader says which; what is not there is told before anything runs."""
    fill(store, 2)
    store.schemas.add("ids", json.dumps({**ORDER, "fields": ORDER["fields"][:1]}))
    reader = ValueReader(store.schemas, "avro", subject="ids")
    frame = read(spark, store, "orders", values=reader)
    assert sorted(row["id"] for row in frame.where("id is not null").collect()) == [0, 1]
    store.topics.create("typed", schema=reader.schema)
    for topics, values, error, reason in (
        (["orders", "typed"], reader, InvalidOption, "typed have columns"),
        (["orders", "other"], "avro", InvalidOption, "for one topic"),
        (["other"], "avro", UnknownSchema, "no subject 'other-value'"),
    ):
        if "other" in topics and "other" not in store.topics.list():
            store.topics.create("other")
        with pytest.raises(error, match=reason):
            read(spark, store, *topics, values=values)
    with pytest.raises(InvalidOption, match="no 'nothing'"):
        read(spark, store, "orders", values="avro", columns="nothing")
    with (
        pytest.raises(InvalidTxnState, match="failed"),
        transaction(spark, store, transactional_id="t") as txn,
        pytest.raises(UnknownSchema),
    ):
        txn.read("other", values="avro")
