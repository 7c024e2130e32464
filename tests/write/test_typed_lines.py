"""JSON lines for typed topics: what a wrong one is said to be."""

from __future__ import annotations

import json
from io import BufferedReader, BytesIO
from typing import cast

import pytest

from txnlog.columns.checks import make_schema
from txnlog.columns.schema_words import parse_columns
from txnlog.errors import InvalidRecord
from txnlog.write.typed_lines import read_typed_lines

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
