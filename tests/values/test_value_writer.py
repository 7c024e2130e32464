"""What a writer takes as a value of its schema, and what it refuses, by call and of columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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
