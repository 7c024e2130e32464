"""Schemas as they are typed, and as files describe them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.wrong_values import wrong_json
from txnlog.columns.checks import make_schema
from txnlog.columns.schema_files import read_columns
from txnlog.columns.schema_words import parse_columns
from txnlog.errors import InvalidSchema

MOMENT = pa.timestamp("us", "UTC")
TYPES = {
    "Boolean": pa.bool_(),
    "TINYINT": pa.int8(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "decimal(10, 2)": pa.decimal128(10, 2),
    "numeric(5)": pa.decimal128(5, 0),
    "varchar(20)": pa.string(),
    "timestamptz": MOMENT,
    "timestamp with time zone": MOMENT,
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp[ms, tz=UTC]": pa.timestamp("ms", "UTC"),
    "int[][]": pa.list_(pa.list_(pa.int32())),
    "array<string not null>": pa.list_(pa.field("element", pa.string(), nullable=False)),
    "struct<a: int, b: map<string, double>>": pa.struct(
        [("a", pa.int32()), ("b", pa.map_(pa.string(), pa.float64()))]
    ),
}


@pytest.mark.parametrize("words", TYPES, ids=str)
def test_types_have_the_names_of_sql_and_arrow(words: str) -> None:
    """What Arrow prints of a type is understood too."""
    found = parse_columns(f"x {words}").columns.field("x").type
    assert found == TYPES[words]
    assert parse_columns(f"x {found}").columns.field("x").type == found


def test_columns_have_names_nulls_and_defaults() -> None:
    """Quoted names with anything in them; defaults become values of their columns."""
    found = parse_columns(
        """ "a ""b" int not null default -3, `null` string default 'it''s', c date default
        '2024-02-29', d boolean default TRUE, e string default "?" """
    )
    assert found.columns.names == ['a "b', "null", "c", "d", "e"]
    assert [field.nullable for field in found.columns] == [False, True, True, True, True]
    shown = {name: str(value) for name, value in found.defaults.items()}
    assert parse_columns("a int default null, b int").defaults == {}
    assert shown == {'a "b': "-3", "null": "it's", "c": "2024-02-29", "d": "True", "e": "?"}


WRONG = {
    "": "a name is needed",
    "a": "a type is needed",
    "a int,": "a name is needed",
    "a int b int": "a comma",
    "a timestamp": "timestamptz",
    "a money": "'money' is not a type; there are boolean",
    "a int not": "`null` after",
    "a decimal": "decimal(10, 2)",
    "a decimal(99)": "1 to 38 digits",
    "a decimal(" + "9" * 5000 + ")": "a whole number",
    "a int default 'x'": "cannot have the default",
    "a int default b": "a default is",
    "a int not null default null": "a default is",
    "a int default null not null": "a comma",
    "a int; drop": "a comma",
    "a $": "neither a name nor a type",
    "a " + "array<" * 40: "16 levels",
    "a int" + "[]" * 16: "16 levels",
    "a array<int" + "[]" * 15 + ">": "16 levels",
    "a timestamp[h]": "not a unit",
}


@pytest.mark.parametrize("words", WRONG, ids=[*map(str, range(len(WRONG)))])
def test_what_is_wrong_is_said_with_its_place(words: str) -> None:
    """In a line of bounded length."""
    with pytest.raises(InvalidSchema) as refused:
        parse_columns(words)
    assert WRONG[words] in str(refused.value)
    assert len(str(refused.value)) < 500


AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "gate", "type": "string", "default": "?"},
        {"name": "n", "type": ["null", "int"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {
            "name": "seat",
            "type": {"type": "record", "name": "Seat", "fields": [{"name": "row", "type": "int"}]},
        },
        {"name": "seats", "type": {"type": "array", "items": ["null", "Seat"]}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
    ],
}
SEAT = pa.struct([pa.field("row", pa.int32(), nullable=False)])
OF_AVRO = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("gate", pa.string(), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("at", MOMENT, nullable=False),
        pa.field("price", pa.decimal128(9, 2), nullable=False),
        pa.field("seat", SEAT, nullable=False),
        pa.field("seats", pa.list_(pa.field("element", SEAT)), nullable=False),
        pa.field(
            "m",
            pa.map_(pa.string(), pa.field("value", pa.float64(), nullable=False)),
            nullable=False,
        ),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
SPARK = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long", "nullable": False, "metadata": {}},
        {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
        {
            "name": "l",
            "type": {"type": "array", "elementType": "decimal(10,2)", "containsNull": False},
            "nullable": True,
        },
        {
            "name": "m",
            "type": {"type": "map", "keyType": "string", "valueType": "integer"},
            "nullable": True,
        },
    ],
}
OF_SPARK = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("at", MOMENT),
        pa.field("l", pa.list_(pa.field("element", pa.decimal128(10, 2), nullable=False))),
        pa.field("m", pa.map_(pa.string(), pa.int32())),
    ]
)
ARROW = {
    "schema": {
        "fields": [
            {
                "name": "a",
                "type": {"name": "int", "bitWidth": 16, "isSigned": True},
                "nullable": False,
                "children": [],
            },
            {
                "name": "at",
                "type": {"name": "timestamp", "unit": "MICROSECOND", "timezone": "UTC"},
                "children": [],
            },
            {
                "name": "l",
                "type": {"name": "list"},
                "children": [{"name": "item", "type": {"name": "utf8"}, "children": []}],
            },
        ]
    }
}
OF_ARROW = pa.schema(
    [
        pa.field("a", pa.int16(), nullable=False),
        pa.field("at", MOMENT),
        pa.field("l", pa.list_(pa.string())),
    ]
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [(AVRO, OF_AVRO), (SPARK, OF_SPARK), (ARROW, OF_ARROW)],
    ids=["avro", "spark", "arrow"],
)
def test_json_of_three_kinds(tmp_path: Path, written: Any, expected: pa.Schema) -> None:
    """Told apart by what is in it."""
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(written))
    found = read_columns(path)
    assert found.columns == expected
    assert {name: value.as_py() for name, value in found.defaults.items()} == (
        {"gate": "?"} if written is AVRO else {}
    )


@pytest.mark.parametrize("written", [AVRO, SPARK, ARROW], ids=["avro", "spark", "arrow"])
def test_json_with_anything_in_it(tmp_path: Path, written: Any) -> None:
    """It describes columns, or is refused."""
    path = tmp_path / "schema.json"
    for text in wrong_json(written):
        path.write_text(text)
        with suppress(InvalidSchema):
            assert read_columns(path).columns.names, text


def test_a_file_may_have_words(tmp_path: Path) -> None:
    """On several lines."""
    path = tmp_path / "flights.sql"
    path.write_text("a int,\n  b string\n;\n")
    assert read_columns(path).columns == pa.schema([("a", pa.int32()), ("b", pa.string())])


LOOP = {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.parquet", b"nonsense", "is not a file that it is called"),
        ("x.arrow", b"nonsense", "is not a file that it is called"),
        ("x.json", b"{", "x.json"),
        ("x.json", b"{}", '"fields"'),
        ("x.json", b'{"fields": [{"name": "a"}]}', "lacks something"),
        ("x.avsc", json.dumps(LOOP).encode(), "contains itself"),
        ("x.sql", b"\xff", "neither text"),
        ("x.sql", b"a money", "x.sql: columns"),
    ],
)
def test_a_file_that_says_no_schema(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    """Is named, with the reason."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidSchema) as refused:
        read_columns(tmp_path / name)
    assert said in str(refused.value)


def test_advice_for_nanoseconds_keeps_the_zone() -> None:
    """A moment does not become a time of day without a zone."""
    for kind, advice in (
        (pa.timestamp("ns", "Europe/Paris"), "timestamp('us', tz='UTC')"),
        (pa.timestamp("ns"), "timestamp('us')"),
    ):
        with pytest.raises(InvalidSchema) as refused:
            make_schema(pa.schema([("at", kind)]))
        assert str(refused.value).endswith(f"use {advice}")
