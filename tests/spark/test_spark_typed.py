"""Typed topics in Spark: their columns in and out, in every way that there is."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from spark_helpers import load, save

from txnlog import Store
from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.spark import shuffle_by_partition, transaction

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("Full Name", pa.string()),
        pa.field("a.b", pa.int32()),
        pa.field("tick`ed", pa.float64()),
        pa.field("SHOUT, loud", pa.bool_()),
        pa.field("tiny", pa.int8()),
        pa.field("short", pa.int16()),
        pa.field("single", pa.float32()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("at_ms", pa.timestamp("ms", "UTC")),
        pa.field("wall", pa.timestamp("ms")),
        pa.field("price", pa.decimal128(12, 3)),
        pa.field("large", pa.decimal128(38, 0)),
        pa.field("list", pa.list_(pa.timestamp("ms", "UTC"))),
        pa.field("map", pa.map_(pa.string(), pa.struct([("x", pa.int32()), ("Y.z", pa.string())]))),
        pa.field("nest", pa.struct([("in side", pa.list_(pa.decimal128(9, 2))), ("n", pa.int64())])),
    ]
)
"""One column of each kind, and names of each."""


def example(number: int) -> dict[str, Any]:
    """A row; each third has nulls."""
    if number % 3 == 0:
        return {"id": number, **dict.fromkeys(SCHEMA.names[1:])}
    moment = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC) + dt.timedelta(hours=number)
    return {
        "id": number,
        "Full Name": f"name {number}",
        "a.b": -number,
        "tick`ed": number / 7,
        "SHOUT, loud": number % 2 == 0,
        "tiny": number % 100,
        "short": -(number % 1000),
        "single": number / 4,
        "raw": b"\x00\xff" * (number % 3),
        "day": dt.date(1500 + number % 600, 2, 28),
        "at": moment.replace(microsecond=number % 1000),
        "at_ms": moment.replace(year=1066),
        "wall": dt.datetime(2026, 3, 29, 2, 30),
        "price": Decimal(number) / 8,
        "large": Decimal(10) ** 37 + number,
        "list": [moment, None],
        "map": {"k": {"x": number, "Y.z": None}, "": None},
        "nest": {"in side": [Decimal("1.25"), None], "n": number},
    }


def fill_typed(store: Store, topic: str, count: int, start: int = 0) -> None:
    """Append examples without Spark."""
    rows = [example(number) for number in range(start, start + count)]
    with store.producer() as producer:
        producer.send_batch(topic, pa.Table.from_pylist(rows, SCHEMA))


def utc(spark: SparkSession, frame: DataFrame) -> list[dict[str, Any]]:
    """The rows by id, as Arrow has them: no zone of the session shifts them."""
    del spark
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [_plain(row) for row in sorted(rows, key=lambda row: int(row["id"]))]


def _plain(value: Any) -> Any:
    """The same without what differs in form alone: maps are lists of pairs in Arrow."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, tuple) for item in value):
            return {name: _plain(item) for name, item in value}
        return [_plain(item) for item in value]
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


def expected(count: int) -> list[dict[str, Any]]:
    """What is to be found of examples."""
    table = pa.Table.from_pylist([example(number) for number in range(count)], SCHEMA)
    return [_plain(row) for row in table.to_pylist()]


def test_every_type_goes_out_and_in(spark: SparkSession, store: Store) -> None:
    """Values of each type, nested ones and nulls, read by Spark, written by it, and read again.

    The session's zone is Berlin's, on a night without a half past two.
    """
    for topic in ("in", "out"):
        store.create_topic(topic, partitions=2, schema=SCHEMA)
    fill_typed(store, "in", 40)
    frame = load(spark, store, "in")
    assert frame.columns == SCHEMA.names
    assert frame.schema["at_ms"].dataType.simpleString() == "timestamp"
    assert frame.schema["wall"].dataType.simpleString() == "timestamp_ntz"
    assert utc(spark, frame) == expected(40)
    save(frame, store, "out")
    written = store.scan("out").to_arrow().sort_by("id")
    assert [_plain(row) for row in written.to_pylist()] == expected(40)
