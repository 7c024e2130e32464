"""What a writer takes as a value of its schema, and what it refuses, by call and of columns."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.values.avro_worlds import LOGICAL, PRIMITIVES, record
from txnlog.errors import InvalidRecord
from txnlog.values import RegisteredSchema, ValueReader, ValueWriter
from txnlog.values.schemas import SchemaType


@dataclass
class One:
    """A single schema."""

    schema: RegisteredSchema

    def by_id(self, schema_id: int) -> RegisteredSchema:  # noqa: ARG002
        return self.schema

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:  # noqa: ARG002
        return self.schema


def both(schema: Any, kind: SchemaType = "AVRO") -> tuple[ValueWriter, ValueReader]:
    """A writer and a reader of a schema."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    one = One(RegisteredSchema(1, kind, text))
    return ValueWriter(one, kind, subject="s"), ValueReader(one, kind, subject="s")


def by_call(writer: ValueWriter, row: dict[str, Any]) -> bytes:
    return writer(row)


def of_columns(writer: ValueWriter, row: dict[str, Any]) -> bytes:
    columns = pa.schema([writer.schema.field(name).with_nullable(True) for name in row])
    value: bytes = writer.encode(pa.RecordBatch.from_pylist([row], columns))[0].as_py()
    return value


WAYS: dict[str, Callable[[ValueWriter, dict[str, Any]], bytes]] = {
    "by call": by_call,
    "of columns": of_columns,
}
TYPES: dict[str, Any] = {
    **{json.dumps(kind.schema): kind.schema for kind in (*PRIMITIVES, *LOGICAL)},
    "fixed": {"type": "fixed", "name": "F", "size": 1},
    "enum": {"type": "enum", "name": "E", "symbols": ["A"]},
    "record": record(y="boolean"),
    "array": {"type": "array", "items": "boolean"},
    "map": {"type": "map", "values": "boolean"},
    "union": ["int", "string"],
    "null or": ["null", "boolean"],
}
PLACES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "the top": (lambda kind: kind, None),
    "an array": (lambda kind: {"type": "array", "items": kind}, [None]),
    "a map": (lambda kind: {"type": "map", "values": kind}, [("k", None)]),
    "a record": (lambda kind: {**record(y=kind), "name": "I"}, {"y": None}),
    "an array or null": (lambda kind: ["null", {"type": "array", "items": kind}], [None]),
    "a union": (
        lambda kind: ["int", {"type": "array", "items": kind}],
        {"member0": None, "member1": [None]},
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", TYPES)
def test_a_null_is_written_where_it_may_be_and_nowhere_else(
    name: str, place: str, way: str
) -> None:
    """It is never another value, as false."""
    (around, given), kind = PLACES[place], TYPES[name]
    if kind == "null" and "array" in json.dumps(around("int")):
        return  # no array has these
    writer, reader = both({**record(x=around(kind)), "name": "Whole"})
    takes_null = kind == "null" or (isinstance(kind, list) and "null" in kind)
    if takes_null:
        assert reader(WAYS[way](writer, {"x": given})) == {"x": given}
    else:
        with pytest.raises(InvalidRecord, match=r"field 'x': .*a null is no "):
            WAYS[way](writer, {"x": given})


DEFAULTS: dict[str, tuple[Any, Any, Any]] = {
    "bytes": ("bytes", "\u00ff", b"\xff"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, "a\u00e9", b"a\xe9"),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        "\u0001",
        Decimal("0.01"),
    ),
    "bytes or null": (["bytes", "null"], "x", b"x"),
    "null or bytes": (["null", "bytes"], None, None),
    "one of two": (["bytes", "string"], "x", {"member0": b"x", "member1": None}),
    "list": ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    "map": ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, [("k", b"\xff")]),
    "record": ({**record(y="bytes"), "name": "I"}, {"y": "\u00ff"}, {"y": b"\xff"}),
    "record with a default": ({**record(y=("bytes", "\u00ff")), "name": "I"}, {}, {"y": b"\xff"}),
    "text": ("string", "\u00ff", "\u00ff"),
    "time": (
        {"type": "long", "logicalType": "timestamp-micros"},
        5,
        dt.datetime(1970, 1, 1, microsecond=5, tzinfo=dt.UTC),
    ),
}
"""Types, defaults in JSON, and what is read of them."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["the top", "a record", "a list"])
@pytest.mark.parametrize("name", DEFAULTS)
def test_what_has_a_default_may_be_left_out(name: str, place: str, way: str) -> None:
    """At the top as within records; the characters of a default of bytes are these."""
    kind, default, expected = DEFAULTS[name]
    schema = {**record(id="int", d=(kind, default)), "name": "Whole"}
    given: dict[str, Any] = {"id": 1}
    full: dict[str, Any] = {"id": 1, "d": expected}
    if place != "the top":
        schema = record(o={"type": "array", "items": schema} if place == "a list" else schema)
        given, full = ({"o": [one] if place == "a list" else one} for one in (given, full))
    writer, reader = both(schema)
    columns = pa.RecordBatch.from_pylist([given])
    value = writer(given) if way == "by call" else writer.encode(columns)[0].as_py()
    assert reader(value) == full
