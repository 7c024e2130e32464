"""What a writer takes as a value of its schema, and what it refuses, by call and of columns."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tests.values.avro_worlds import LOGICAL, PRIMITIVES, record
from txnlog.errors import InvalidRecord, InvalidSchema
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


@pytest.mark.few(24)
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
    "the second of two": (["null", "string"], "x", "x"),
    "null, the second of two": (["string", "null"], None, None),
    "bytes, the second of two": (["null", "bytes"], "\u00ff", b"\xff"),
    "the second of three": (
        ["string", "long", "null"],
        1 << 40,
        {"member0": None, "member1": 1 << 40},
    ),
    "the only long": (["int", "long"], 1 << 40, {"member0": None, "member1": 1 << 40}),
    "list of unions": ({"type": "array", "items": ["int", "null"]}, [None, 1], [None, 1]),
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


@pytest.mark.few(18)
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
    if way == "by call":
        assert writer(frozen(given)) == value


def frozen(value: Any) -> Any:
    """A value whose dicts are mappings of another kind."""
    match value:
        case dict():
            return MappingProxyType({name: frozen(item) for name, item in value.items()})
        case list():
            return [frozen(item) for item in value]
    return value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "logical_type", "default"),
    [
        ("long", "timestamp-micros", (1 << 63) - 1),
        ("long", "timestamp-micros", -(1 << 63)),
        ("long", "timestamp-millis", (1 << 63) - 1),
        ("int", "date", (1 << 31) - 1),
        ("int", "time-millis", 86_400_000),
    ],
)
def test_a_default_that_python_has_no_time_for_is_written(
    kind: str, logical_type: str, default: int, way: str
) -> None:
    schema = record(id="int", d=({"type": kind, "logicalType": logical_type}, default))
    writer, _ = both(schema)
    _, reader = both(record(id="int", d=kind))
    assert reader(WAYS[way](writer, {"id": 1})) == {"id": 1, "d": default}


NO_DEFAULTS: dict[str, tuple[Any, Any]] = {
    "enum": ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
    "bytes": ("bytes", "\u0101"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, "a"),
    "booleans": ({"type": "array", "items": "boolean"}, [None]),
    "ints": ({"type": "array", "items": "int"}, [1 << 40]),
    "record": ({**record(y="int"), "name": "I"}, {}),
    "union": (["int", {"type": "array", "items": "string"}], "a"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["the top", "a record"])
@pytest.mark.parametrize("name", NO_DEFAULTS)
def test_what_is_no_default_is_never_written(name: str, place: str, way: str) -> None:
    schema = {**record(id="int", d=NO_DEFAULTS[name]), "name": "Whole"}
    given: dict[str, Any] = {"id": 1}
    if place == "a record":
        schema, given = record(o=schema), {"o": given}
    try:
        writer, _ = both(schema)
    except InvalidSchema:
        return
    with pytest.raises(InvalidRecord, match="field 'd': the default"):
        writer(given) if way == "by call" else writer.encode(pa.RecordBatch.from_pylist([given]))


def avro_of(kind: Any, *, listed: bool) -> str:
    return json.dumps(record(x={"type": "array", "items": kind} if listed else kind))


def protobuf_of(kind: Any, *, listed: bool) -> str:
    return (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; enum E { A = 0; } '
        f"message M {{ {'repeated ' * listed}{kind} x = 1; }}"
    )


def json_of(kind: Any, *, listed: bool) -> str:
    one = {"type": kind}
    properties = {"x": {"type": "array", "items": one} if listed else one}
    return json.dumps({"type": "object", "properties": properties})


def logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "logicalType": name}


FORMATS: dict[SchemaType, tuple[Callable[..., str], tuple[Any, ...]]] = {
    "AVRO": (
        avro_of,
        (
            *("boolean", "int", "long", "float", "double", "bytes", "string"),
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            logical("int", "date"),
            logical("int", "time-millis"),
            logical("long", "time-micros"),
            *(logical("long", f"{local}timestamp-millis") for local in ("", "local-")),
            *(logical("long", f"{local}timestamp-micros") for local in ("", "local-")),
            {**logical("bytes", "decimal"), "precision": 4, "scale": 1},
            ["null", "int"],
        ),
    ),
    "PROTOBUF": (
        protobuf_of,
        (
            *("bool", "int32", "sint64", "uint32", "uint64", "float", "double", "bytes", "string"),
            *("E", "google.protobuf.Timestamp"),
        ),
    ),
    "JSON": (json_of, ("boolean", "integer", "number", "string")),
}
NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 123456)  # noqa: DTZ001 - without a zone
GIVEN = [
    pa.array([1, 0]),
    pa.array([0, 1 << 31]),
    pa.array([(1 << 53) + 1, 0]),
    pa.array([0, -1], pa.int8()),
    pa.array([1 << 63, 0], pa.uint64()),
    pa.array([1.0, 0.0]),
    pa.array([1.5, 0.0]),
    pa.array([0.0, 1e300]),
    pa.array([0.1, 2.0], pa.float32()),
    pa.array([Decimal("1.5"), Decimal("1.0")]),
    pa.array([Decimal(2), Decimal(12345)]),
    pa.array([True, False]),
    pa.array(["A", "A"]),
    pa.array(["A", "A"]).dictionary_encode(),
    pa.array(["false", "é"]),
    pa.array([b"ab", b"ab"]),
    pa.array([b"\xff", b""], pa.large_binary()),
    pa.array([NOON.date(), NOON.date()]),
    pa.array([NOON.time(), NOON.time()]),
    pa.array([5, 6], pa.time32("ms")),
    *(
        pa.array([NOON.replace(microsecond=micros)] * 2, pa.timestamp(unit, zone))
        for unit, micros in (("s", 0), ("ms", 123000), ("us", 123456))
        for zone in (None, "UTC", "America/New_York")
    ),
]


@pytest.mark.parametrize("size", [63, 64, 100])
def test_whole_numbers_of_python_are_taken_as_far_as_they_fit(size: int) -> None:
    """Of 64 bits and more, which Arrow makes no column of unless it is told of which type."""
    decimal = {**logical("bytes", "decimal"), "precision": 32, "scale": 1}
    for number in ((1 << size) - 1, 1 << size, -(1 << size)):
        writer, reader = both(record(x=decimal, y={"type": "array", "items": decimal}))
        given = {"x": number, "y": [1, number]}
        assert reader(writer(given)) == given
        fields = "uint64 x = 1; repeated uint64 y = 2; map<uint64, uint64> z = 3;"
        writer, reader = both(f'syntax = "proto3"; message M {{ {fields} }}', "PROTOBUF")
        given = {"x": number, "y": [1, number], "z": {1: number, number: 1}}
        if 0 <= number < 1 << 64:
            found = reader(writer(given))
            assert found | {"z": dict(found["z"])} == given
        else:
            with pytest.raises(InvalidRecord):
                writer(given)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int8(), pa.decimal128(20, 0)])
def test_keys_of_a_map_of_protobuf_come_of_columns_of_any_whole_numbers(kind: pa.DataType) -> None:
    fields = "map<uint64, string> u = 1; map<fixed64, string> f = 2; map<int32, string> i = 3;"
    writer, reader = both(f'syntax = "proto3"; message M {{ {fields} }}', "PROTOBUF")
    columns = pa.array([[(1, "a"), (2, "b")]], pa.map_(kind, pa.string()))
    names = ["u", "f"] if pa.types.is_decimal(kind) else ["u", "f", "i"]
    value = writer.encode(pa.RecordBatch.from_arrays([columns] * len(names), names))[0].as_py()
    found = reader(value)
    assert all(sorted(found[name]) == [(1, "a"), (2, "b")] for name in names)


@pytest.mark.parametrize("code", ["?", *"bhilBHILefd"])
def test_an_array_of_numpy_is_a_list_of_its_items(code: str) -> None:
    for kind in ("boolean", "long", "double"):
        writer, reader = both(record(x={"type": "array", "items": kind}))
        given = np.array([1, 0], code)
        try:
            value = writer({"x": [*given]})
        except InvalidRecord:
            with pytest.raises(InvalidRecord):
                writer({"x": given})
        else:
            assert writer({"x": given}) == value
            assert reader(value)["x"] == given.tolist()
        for wrong in (given[0], np.array(1, code), given.reshape(1, 2)):
            with pytest.raises(InvalidRecord, match="column 'x"):
                writer({"x": wrong})


def test_records_and_pairs_in_an_array_of_numpy_get_their_defaults() -> None:
    one = {**record(a="int", b=("int", 7)), "name": "I"}
    types = {"x": {"type": "array", "items": one}, "y": {"type": "map", "values": "I"}}
    writer, reader = both(record(**types))
    pairs = np.empty(1, object)
    pairs[0] = ("k", {"a": 2})
    found = reader(writer({"x": np.array([{"a": 1}]), "y": pairs}))
    assert found == {"x": [{"a": 1, "b": 7}], "y": [("k", {"a": 2, "b": 7})]}


UUIDS = [UUID(int=1), UUID(int=1 << 127)]
UUID_COLUMN = pa.array([one.bytes for one in UUIDS], pa.uuid())
STORED: dict[str, tuple[Any, pa.Array, list[Any]]] = {
    "uuid for uuid": (logical("string", "uuid"), UUID_COLUMN, [*map(str, UUIDS)]),
    "uuid for bytes": ("bytes", UUID_COLUMN, [one.bytes for one in UUIDS]),
    "json": ("string", pa.array(["{}", "1"], pa.json_()), ["{}", "1"]),
    "runs": (
        "int",
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array([7, 8])),
        [7, 8],
    ),
}
"""Types of Avro, columns that Arrow stores as others, and what is read of them."""


@pytest.mark.parametrize("place", ["the top", "a list", "a record", "a map"])
@pytest.mark.parametrize("name", STORED)
def test_columns_that_arrow_stores_as_others_are_taken(name: str, place: str) -> None:
    kind, column, read = STORED[name]
    starts = pa.array([0, 1, 2], pa.int32())
    match place:
        case "a list":
            column = pa.ListArray.from_arrays(starts, column)
            kind, read = {"type": "array", "items": kind}, [[one] for one in read]
        case "a record":
            column = pa.StructArray.from_arrays([column], ["y"])
            kind, read = {**record(y=kind), "name": "I"}, [{"y": one} for one in read]
        case "a map":
            column = pa.MapArray.from_arrays(starts, pa.array(["k", "k"]), column)
            kind, read = {"type": "map", "values": kind}, [[("k", one)] for one in read]
    writer, reader = both(record(x=kind))
    for given, expected in ((column, read), (column.slice(1), read[1:])):
        values = writer.encode(pa.RecordBatch.from_arrays([given], ["x"])).to_pylist()
        assert [reader(value)["x"] for value in values] == expected


def test_a_null_uuid_is_null() -> None:
    writer, reader = both(record(x=["null", "string"]))
    columns = pa.RecordBatch.from_arrays([pa.array([None], pa.uuid())], ["x"])
    assert reader(writer.encode(columns)[0].as_py()) == {"x": None}


@pytest.mark.parametrize("kind", ["boolean", "string", "long", {"type": "array", "items": "int"}])
def test_a_struct_without_fields_is_no_single_value(kind: Any) -> None:
    writer, _ = both(record(x=kind))
    columns = pa.RecordBatch.from_arrays([pa.array([{}], pa.struct([]))], ["x"])
    with pytest.raises(InvalidRecord, match="column 'x' is struct<>"):
        writer.encode(columns)


def is_same(found: Any, given: Any, *, narrow: bool, floored: bool) -> bool:
    """Whether a value is the one that was given: of a narrow float rounded, of a time floored."""
    if narrow and isinstance(given, float):
        given = float(np.float32(given))
    if floored and isinstance(given, dt.time | dt.datetime):
        return found in (given, given.replace(microsecond=given.microsecond // 1000 * 1000))
    return isinstance(found, bool) == isinstance(given, bool) and bool(found == given)


@pytest.mark.few(3)
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_value_of_another_type_is_itself_or_refused(
    kind: SchemaType, way: str, *, listed: bool
) -> None:
    """Each of many types given for each of many: what is written is read as the same value."""
    schema_of, types = FORMATS[kind]
    for named in types:
        writer, reader = both(schema_of(named, listed=listed), kind)
        wanted = writer.schema.field("x").type
        wanted = wanted.value_type if listed else wanted
        taken = 0
        for column in GIVEN:
            values = column.to_pylist()
            rows = [values] if listed else values
            given_type = pa.list_(column.type) if listed else column.type
            if listed and pa.types.is_dictionary(column.type):
                continue
            try:
                if way == "by call":
                    written = [writer({"x": row}) for row in rows]
                else:
                    batch = pa.record_batch({"x": pa.array(rows, given_type)})
                    written = writer.encode(batch).to_pylist()
            except InvalidRecord:
                continue
            found = [reader(value)["x"] for value in written]
            read = found[0] if listed else found
            narrow, floored = wanted == pa.float32(), way == "by call"
            for one, given in zip(read, values, strict=True):
                assert is_same(one, given, narrow=narrow, floored=floored), (named, column, one)
            taken += 1
        assert taken > 0, named


NOTHING: dict[str, tuple[SchemaType, Any, Any]] = {
    "record": ("AVRO", record(), record(x={**record(), "name": "I"})),
    "record with a default": (
        "AVRO",
        record(a=("int", 7)),
        record(x={**record(a=("int", 7)), "name": "I"}),
    ),
    "message": (
        "PROTOBUF",
        'syntax = "proto3"; message M { int32 a = 1; }',
        'syntax = "proto3"; message O { E x = 1; } message E {}',
    ),
    "object": (
        "JSON",
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"type": "object", "properties": {"x": {"type": "object", "properties": {"a": {}}}}},
    ),
}
"""Schemas of which all may be left out, and those with such a thing in them."""


@pytest.mark.parametrize("way", ["by call", "of columns"])
@pytest.mark.parametrize("name", NOTHING)
def test_a_value_in_which_nothing_is_given(name: str, way: str) -> None:
    """It is one all the same, at the top and within another."""
    kind, schema, around = NOTHING[name]
    cases: list[tuple[Any, dict[str, Any]]] = [(schema, {}), (around, {"x": {}})]
    for one, row in cases:
        writer, reader = both(one, kind)
        columns = pa.RecordBatch.from_struct_array(pa.array([row]))
        value = writer(row) if way == "by call" else writer.encode(columns)[0].as_py()
        found = reader(value)
        assert found.keys() == {*reader.schema.names}
        assert row == {} or found["x"] in ({}, {"a": 7}, {"a": None})


INNER = {**record(x="int", y=("int", 5)), "name": "I"}
SHAPES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "struct": (INNER, lambda one: one, lambda kind: kind),
    "list": ({"type": "array", "items": INNER}, lambda one: [one], pa.list_),
    "large list": ({"type": "array", "items": INNER}, lambda one: [one], pa.large_list),
    "list view": ({"type": "array", "items": INNER}, lambda one: [one], pa.list_view),
    "map": (
        {"type": "map", "values": INNER},
        lambda one: [("k", one)],
        lambda kind: pa.map_(pa.string(), kind),
    ),
    "struct as a map": (
        {"type": "map", "values": INNER},
        lambda one: {"k": one},
        lambda kind: pa.struct({"k": kind}),
    ),
}
"""Types with records in them; of a record the value, and of its type the type, that is given."""


@pytest.mark.parametrize("name", SHAPES)
def test_columns_with_other_types_and_fewer_fields_in_them(name: str) -> None:
    """Nulls between them, in slices and tables; the error has the path of the field."""
    schema, around, type_around = SHAPES[name]
    writer, reader = both(record(o=["null", schema]))
    for count in (0, 1, 5):
        column = pa.array(
            [None, *(around({"x": n}) for n in range(count)), None],
            type_around(pa.struct({"x": pa.int64()})),
        ).slice(1)
        chunks = pa.chunked_array([column, column])
        for given in (pa.record_batch({"o": column}), pa.table({"o": chunks})):
            found = [reader(value)["o"] for value in writer.encode(given).to_pylist()]
            full: list[Any] = [{"x": n, "y": 5} for n in range(count)]
            if name != "struct":
                full = [[("k", one)] if "map" in name else [one] for one in full]
            expected = [*full, None]
            assert found == expected * (len(found) // len(expected))
            assert len(found) == given.num_rows
    wrong = pa.array([around({"x": 1 << 40})], type_around(pa.struct({"x": pa.int64()})))
    with pytest.raises(InvalidRecord, match=r"column 'o\..*x'.*1099511627776"):
        writer.encode(pa.record_batch({"o": wrong}))
