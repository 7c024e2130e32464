"""``values="avro"``: the columns of a schema, and dead letters, in Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.stream_helpers import folder, reads_streams, run, sink, stream
from txnlog import Store
from txnlog.errors import InvalidOption, InvalidTxnState, UnknownSchema
from txnlog.spark import SparkTransaction, decode_values, foreach_batch, read, transaction
from txnlog.values import (
    RegisteredSchema,
    SchemaFolder,
    SchemaReference,
    Schemas,
    ValueReader,
    ValueWriter,
    subject_columns,
)

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


MORE: dict[str, Any] = {
    **ORDER,
    "fields": [*ORDER["fields"], {"name": "more", "type": "int", "default": 0}],
}


@dataclass
class Unpinned:
    """Schemas with the two methods that they must have, as a user's own."""

    schemas: Schemas

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return self.schemas.by_id(schema_id)

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        return self.schemas.version(subject, version)


def send_early(store: Store, files: Path) -> bytes:
    """Send a value of schema 2, which is not registered yet; leaves it, and the first, in files."""
    for number, schema in (1, ORDER), (2, MORE):
        (files / f"orders-value-{number}.avsc").write_text(json.dumps(schema))
    value = ValueWriter(SchemaFolder(files), "avro", subject="orders-value")({**ROW, "id": 99})
    with store.producer() as producer:
        producer.send("orders", value, key=b"early")
    return value


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


@pytest.mark.parametrize("how", ["pinned", "anything"])
def test_a_schema_that_comes_between_two_writes(
    spark: SparkSession, store: Store, tmp_path: Path, how: str
) -> None:
    """A record is in one of them, whatever is registered in between; or the second is refused."""
    fill(store, 1)
    for topic in ("rows", "dead"):
        store.topics.create(topic)
    send_early(store, tmp_path)
    unpinned = ValueReader(Unpinned(store.schemas), "avro", subject="orders-value")

    def job() -> None:
        with transaction(spark, store, transactional_id="t", group_id="g") as txn:
            orders = txn.read("orders", values="avro" if how == "pinned" else unpinned)
            orders = orders.selectExpr("_key as key", "_error", "_value as value")
            txn.write(orders.where("_error is null").drop("_error"), topic="rows")
            store.schemas.add("orders-value", json.dumps(MORE))
            txn.write(orders.where("_error is not null").drop("_error"), topic="dead")

    if how == "anything":
        with pytest.raises(InvalidOption, match=r"decode_values\(\) with Unpinned need not give"):
            job()
        return
    job()
    keys = [[r["key"] for r in store.scan(t).to_arrow().to_pylist()] for t in ("rows", "dead")]
    assert [sorted(found) for found in keys] == [[b"gone", b"k0"], [b"early", b"plain", b"unknown"]]


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
    wrong: dict[str, Sequence[str]] = {"no 'nothing'": "nothing", "twice": "id,id"}
    for reason, columns in {**wrong, "there is no ''": "", "list of names": []}.items():
        with pytest.raises(InvalidOption, match=reason):
            read(spark, store, "orders", values="avro", columns=columns)
    with (
        pytest.raises(InvalidTxnState, match="failed"),
        transaction(spark, store, transactional_id="t") as txn,
        pytest.raises(UnknownSchema),
    ):
        txn.read("other", values="avro")


@reads_streams
def test_a_stream_has_typed_rows_and_dead_letters(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """Also of a schema that is registered while the query stands; each micro-batch goes on."""
    fill(store, 5)
    early = send_early(store, tmp_path)
    reader = ValueReader(store.schemas, "avro", subject="orders-value")
    columns = pa.schema([reader.schema.field("id"), reader.schema.field("note")])
    store.topics.create("rows", schema=columns)
    store.topics.create("dead", partitions=1)

    def split(txn: SparkTransaction, batch: DataFrame) -> None:
        decoded = decode_values(batch, reader, columns=wanted) if in_batch else batch
        txn.write(decoded.where("id is not null").select("id", "note"), topic="rows")
        if in_batch:
            store.schemas.add("orders-value", json.dumps(MORE))
        dead = decoded.where("_error is not null")
        txn.write(dead.selectExpr("_key as key", "_value as value"), topic="dead")

    def go_on() -> None:
        rows = stream(spark, store, "orders")
        if not in_batch:
            rows = decode_values(rows, reader, columns=wanted)
            assert rows.columns == wanted
        writer = rows.writeStream.foreachBatch(foreach_batch(store.url, split))
        run(writer.option("checkpointLocation", str(folder(store))))

    wanted = ["id", "note", "_key", "_value", "_error"]
    in_batch = False
    with pytest.raises(PySparkException, match=r"decode_values\(\) of a stream need not give the"):
        go_on()
    in_batch = True
    go_on()
    writer = ValueWriter(store.schemas, "avro", subject="orders-value")
    with store.producer(value_serializer=writer) as producer:
        producer.send("orders", {**ROW, "id": 5, "note": "new"})
    go_on()
    rows = store.scan("rows", columns=["id", "note"]).to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [*range(6)]
    assert {row["note"] for row in rows} == {None, "new"}
    dead = store.scan("dead", columns=["key", "value"]).to_arrow().to_pylist()
    assert {row["key"]: row["value"] for row in dead} == {
        b"plain": b"plain",
        b"early": early,
        b"unknown": b"\0\0\0\0\x09x",
    }


@reads_streams
def test_a_sink_takes_decoded_rows_of_a_stream(spark: SparkSession, store: Store) -> None:
    """Without a function: from the query into a typed topic, tombstones and dead letters aside."""
    fill(store, 4)
    reader = ValueReader(store.schemas, "avro", subject="orders-value")
    store.topics.create("rows", schema=pa.schema([reader.schema.field("id")]))
    decoded = decode_values(stream(spark, store, "orders"), reader, columns="id,_error")
    run(sink(decoded.where("_error is null and id >= 0").select("id"), store, "rows"))
    assert sorted(store.scan("rows", columns=["id"]).to_arrow()["id"].to_pylist()) == [*range(4)]


def test_rows_from_anywhere_are_decoded(spark: SparkSession, store: Store) -> None:
    """What is there of a record is kept; rows without values of bytes are refused."""
    fill(store, 1)
    reader = ValueReader(store.schemas, "avro", subject="orders-value")
    frame = spark.createDataFrame([(b"\0\0\0\0\x07", b"k", 3)], "value binary, key binary, n int")
    decoded = decode_values(frame, reader)
    assert decoded.columns == [*reader.schema.names, "_key", "_value", "_error"]
    (row,) = decoded.collect()
    assert (bytes(row["_key"]), bytes(row["_value"])) == (b"k", b"\0\0\0\0\x07")
    with pytest.raises(InvalidOption, match="column `value` of bytes; there is key, n"):
        decode_values(frame.select("key", "n"), reader)
    with pytest.raises(InvalidOption, match="column `value` of bytes"):
        decode_values(frame.selectExpr("string(value) as value"), reader)
    with pytest.raises(InvalidOption, match="no '_offset'"):
        decode_values(frame, reader, columns="id,_offset")


def test_the_text_of_a_proto_is_read_in_tasks(spark: SparkSession, store: Store) -> None:
    """Each process of Spark's compiles it once, and has the same columns and dead letters."""
    item = 'syntax = "proto3"; message Item { string name = 1; }'
    order = """syntax = "proto3"; import "item.proto";
        message Order { int64 id = 1; Item item = 2; map<string, int32> sizes = 3; }
        message Gone { int64 id = 1; message Why { string text = 1; } }"""
    store.schemas.add("item", item, "PROTOBUF")
    store.schemas.add("orders-value", order, "PROTOBUF", [SchemaReference("item.proto", "item", 1)])
    store.topics.create("orders", partitions=2)
    writer = ValueWriter(store.schemas, "protobuf", subject="orders-value")
    with store.producer() as producer:
        for number in range(4):
            row = {"id": number, "item": {"name": "é"}, "sizes": {"s": number}}
            producer.send("orders", writer(row), partition=number % 2)
        producer.send("orders", b"\0\0\0\0\x09\0")
    rows = read(spark, store, "orders", values="protobuf").collect()
    found = sorted((r["id"], r["item"]["name"], r["sizes"]["s"]) for r in rows if not r["_error"])
    assert found == [(number, "é", number) for number in range(4)]
    assert next(r["_error"] for r in rows if r["_error"]).startswith("schema 9 is unknown")
    chosen: dict[str, Any] = {"subject": "orders-value", "message": "Gone.Why"}
    why = ValueWriter(store.schemas, "protobuf", **chosen)
    with store.producer() as producer:
        producer.send("orders", why({"text": "torn"}))
    rows = read(
        spark, store, "orders", values=ValueReader(store.schemas, "protobuf", **chosen)
    ).collect()
    assert [r["text"] for r in rows if not r["_error"]] == ["torn"]
    assert sum("it is a Order, not a Gone.Why" in (r["_error"] or "") for r in rows) == 4
