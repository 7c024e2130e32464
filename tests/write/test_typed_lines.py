"""JSON lines for typed topics: what a wrong one is said to be."""

from __future__ import annotations

import json
from io import BufferedReader, BytesIO
from typing import Any, cast

import pyarrow as pa
import pytest

from txnlog.columns.checks import make_schema
from txnlog.columns.schema_words import parse_columns
from txnlog.errors import InvalidRecord
from txnlog.write.typed_lines import read_typed_lines, read_typed_row

SCHEMA = make_schema(
    parse_columns(
        "carrier string not null, flight int not null, at timestamptz, seat struct<row: int>, "
        "seen timestamp_ntz"
    ).columns,
    ["carrier", "flight"],
)


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


WRONG = {
    lines({"carrier": "AA", "flight": 1}) + '\n{"carrier": "AA", "flight": "x"}\n': "line 3",
    lines({"carrier": "AA", "flight": 1}, {"carrier": "AA"}): "line 2",
    lines({"carrier": "AA", "flight": 3_000_000_000}): "line 1",
    lines({"carrier": "AA", "flight": 1, "gat": "x"}): "`gat`; the columns are carrier, flight",
    lines({"carrier": "AA", "flight": 1, "at": "2024-01-01T10:00:00"}): "as 2024-05-01T12:00:00Z",
    lines({"carrier": "AA", "flight": 1, "at": "today"}): "as 2024-05-01T12:00:00Z",
    lines({"carrier": "AA", "flight": 1, "seen": "2024-01-01T10:00:00Z"}): "as 2024-05-01T12:00:00",
    lines({"carrier": "AA", "flight": 1, "seat": {"rows": 1}}): "`rows`",
    lines({"carrier": "AA", "flight": 1, "_partition": 4}): "chooses by key",
    lines({"value": None}): "there is no key",
    lines({"value": '{"carrier": 1}', "offset": 0}): "$.carrier",
    "text\n": "line 1",
    '{"carrier": "AA", "flight": 1, "flight": 2}\n': "'flight' is given twice",
    '{"carrier": "AA", "flight": 1, "\\u0066light": 2}\n': "'flight' is given twice",
    '{"carrier": "AA", "flight": 1, "seat": {"row": 1, "row": 2}}\n': "'row' is given twice",
    '{"value": {"carrier": "AA", "flight": 1}, "value": null, "key": "[1]"}\n': "'value' is given",
    lines({"value": '{"carrier": "AA", "flight": 1, "flight": 2}'}): "'flight' is given twice",
    '{"carrier":"AA","flight":1,"_headers":[{"key":"a","value":"","value":null}]}\n': "'value' is",
}


def test_names_that_occur_as_values_are_not_keys_given_twice() -> None:
    """Nor those of several headers, or of a nested object as outside of it."""
    row = {"carrier": "flight", "flight": 1, "_headers": [{"key": "key", "value": "carrier"}] * 2}
    stream = cast("BufferedReader", BufferedReader(BytesIO(lines(row, row).encode())))
    found = read_typed_lines(stream, "t", SCHEMA, max_line_bytes=10_000)
    assert [batch.column("carrier").to_pylist() for batch in found] == [["flight", "flight"]]


@pytest.mark.parametrize("name", ["id", 'a"b'], ids=["plain", "escaped"])
def test_headers_of_bytes(name: str) -> None:
    """As beside a value of any topic: in base64 and in hex, text, or null."""
    schema = make_schema(pa.schema([(name, pa.int64())]), [])
    given = ["text", {"base64": "/w=="}, {"hex": "ff00"}, None]
    headers = [{"key": f"k{number}", "value": value} for number, value in enumerate(given)]
    text = json.dumps({name: 1, "_headers": headers}).encode()
    sent = [("k0", b"text"), ("k1", b"\xff"), ("k2", b"\xff\0"), ("k3", None)]
    assert read_typed_row(text, "t", schema)["_headers"] == sent
    for value in ({"base64": "/w"}, {"hex": "ff", "base64": "/w=="}, {}):
        wrong = json.dumps({name: 1, "_headers": [{"key": "k", "value": value}]}).encode()
        with pytest.raises(InvalidRecord, match="bytes"):
            read_typed_row(wrong, "t", schema)


def test_keys_of_maps_are_given_once() -> None:
    """Whatever their names are."""
    schema = make_schema(parse_columns("m map<string, int>").columns, [])
    stream = cast("BufferedReader", BufferedReader(BytesIO(b'{"m": {"x": 1, "x": 2}}')))
    with pytest.raises(InvalidRecord, match="'x' is given twice"):
        [*read_typed_lines(stream, "t", schema, max_line_bytes=10_000)]


@pytest.mark.parametrize("data", WRONG, ids=[*map(str, range(len(WRONG)))])
def test_a_wrong_line_is_named(data: str) -> None:
    """With its number and the reason, after the records before it."""
    stream = cast("BufferedReader", BufferedReader(BytesIO(data.encode())))
    found = read_typed_lines(stream, "t", SCHEMA, max_line_bytes=10_000, partition_count=2)
    count = 0

    def read() -> None:
        nonlocal count
        for batch in found:
            count += batch.num_rows

    with pytest.raises(InvalidRecord) as refused:
        read()
    number = next(n for n in (1, 2, 3) if f"line {n}" in str(refused.value))
    assert (WRONG[data] in str(refused.value), count) == (True, min(number - 1, 1))


def within(name: str, place: str) -> tuple[pa.Field, Any, Any]:
    """A column that has a name somewhere, a value of it, and one with a member that is no field."""
    struct = pa.struct([pa.field(name, pa.int64()), pa.field("plain", pa.string())])
    value, wrong = {name: 1, "plain": "x"}, {name: 1, "other": "x"}
    kinds: dict[str, tuple[pa.DataType, Any, Any]] = {
        "column": (pa.int64(), 1, None),
        "struct": (struct, value, wrong),
        "list": (pa.list_(struct), [value, None, value], [value, wrong]),
        "map": (pa.map_(pa.string(), struct), {name: value}, {"k": wrong}),
        "pairs": (pa.map_(pa.string(), struct), [[name, value]], [["k", wrong]]),
        "deep": (pa.list_(pa.struct([("in", struct)])), [{"in": value}], [{"in": wrong}]),
    }
    kind, value, wrong = kinds[place]
    return pa.field(name if place == "column" else "c", kind), value, wrong


@pytest.mark.parametrize("place", ["column", "struct", "list", "map", "pairs", "deep"])
@pytest.mark.parametrize(
    "name",
    ["plain ", "ü", 'a"b', '"', "a\\b", "\\", "\\u0041", "a\nb", "\t", "\x01", "\x1f", "\x7f"],
    ids=ascii,
)
def test_columns_of_any_name(name: str, place: str) -> None:
    """Also those that JSON escapes: values are taken, and others refused as of any column."""
    column, value, wrong = within(name, place)
    schema = make_schema(pa.schema([pa.field("id", pa.int64()), column]), [])
    row = {"id": 1, column.name: value}

    def read(*rows: object) -> list[dict[str, Any]]:
        stream = cast("BufferedReader", BufferedReader(BytesIO(lines(*rows).encode())))
        found = read_typed_lines(stream, "t", schema, max_line_bytes=10_000)
        table = pa.Table.from_batches(found).select(["id", column.name])
        return cast("list[dict[str, Any]]", table.to_pylist())

    expected = {"id": 1, column.name: value}
    if place in ("map", "pairs"):
        expected[column.name] = [*value.items()] if place == "map" else [(*value[0],)]
    assert read(row, {"value": json.dumps(row)}, {"value": row}) == [expected] * 3
    assert read({"id": 1}, {"id": 2, column.name: None, "_partition": 0}) == [
        {"id": 1, column.name: None},
        {"id": 2, column.name: None},
    ]
    with pytest.raises(InvalidRecord, match="line 1 is no record of topic 't': Expected"):
        read({**row, column.name: "text"})
    with pytest.raises(InvalidRecord, match="unknown field `more`; the columns are id, "):
        read({**row, "more": 1})
    if wrong is not None:
        with pytest.raises(InvalidRecord, match=r"line 1 .* unknown field `other` - at `\$\.c"):
            read({**row, column.name: wrong})
