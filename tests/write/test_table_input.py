"""Records from CSV and Parquet, as batches for a producer."""

from __future__ import annotations

import random
from io import BufferedReader, BytesIO

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from txnlog.errors import InvalidRecord
from txnlog.write.table_input import read_csv, read_parquet


def rows_of(data: bytes, *, max_record_bytes: int = 0) -> list[dict[str, object]]:
    stream: BufferedReader = BufferedReader(BytesIO(data))
    batches = read_csv(stream, None, max_record_bytes=max_record_bytes)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"value", b"1", b"", b"3"], [b"1", None, b"3"]),
        ([b"value", b"1", b"", b""], [b"1", None, None]),
        ([b"value", b'""', b'"a,b"'], [b"", b"a,b"]),
        ([b"", b"", b'"value"', b"", b"1"], [None, b"1"]),
        ([b"value"], []),
        ([b""], []),
        ([], []),
        ([b"key,value", b"k,1", b"", b"k,3"], [b"1", b"3"]),
        ([b"key,value", b"k,", b",", b"", b""], [None, None]),
        ([b"", b"key,value", b"k,1"], [b"1"]),
    ],
    ids=[
        *("null", "nulls at the end", "texts", "before the names", "names alone", "empty line"),
        *("nothing", "several columns", "several at the end", "before several"),
    ],
)
@pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "not ended"])
def test_empty_lines(
    lines: list[bytes], expected: list[bytes | None], end: bytes, *, is_ended: bool
) -> None:
    """A null of the only column, as it is written; else nothing."""
    data = end.join(lines) + end * (is_ended or not lines or not lines[-1])
    assert [row["value"] for row in rows_of(data)] == expected


@pytest.mark.parametrize("columns", [["value"], ["key", "value"]], ids=",".join)
def test_any_texts_go_round(columns: list[str]) -> None:
    """As Arrow writes them, in one column and in two."""
    chosen = random.Random(len(columns))
    values = [None, b"", b"1", b"a,b", b'"', b'""', b"\n", b"a\n\nb", b" ", b"x" * 5000]
    for count in range(40):
        made = {name: chosen.choices(values, k=count) for name in columns}
        table = pa.table({name: pa.array(column, pa.string()) for name, column in made.items()})
        sink = BytesIO()
        csv.write_csv(table, sink)
        found = rows_of(sink.getvalue())
        assert {name: [row[name] for row in found] for name in columns} == made


@pytest.mark.parametrize("text", [b"x", b'""'], ids=["plain", "quotes"])
def test_a_record_is_as_large_as_the_topic_takes(text: bytes) -> None:
    """Larger than a block otherwise is, and at any place in it."""
    size = 9 << 20
    value = text * (size // len(text.replace(b'""', b'"')))
    data = b"".join([b"value\n", b"small\n" * 1000, b'"', value, b'"\n', b"last\n"])
    found = [row["value"] for row in rows_of(data, max_record_bytes=size)]
    assert found == [b"small"] * 1000 + [value.replace(b'""', b'"'), b"last"]


@pytest.mark.parametrize("kind", ["plain", "JSON"])
def test_a_first_line_that_names_nothing(kind: str) -> None:
    """As where the input is of another kind."""
    line = b"x" * 200_000 if kind == "plain" else b'{"a":"' + b"y" * 200_000 + b'"}'
    with pytest.raises(InvalidRecord, match="not CSV with columns of the topic: field larger"):
        rows_of(line + b"\n")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("row_bytes", "count", "group_rows"),
    [(100_000, 300, 16), (100_000, 300, 300), (10, 100_000, 1000), (5 << 20, 3, 1)],
    ids=["small groups", "one group", "small rows", "large rows"],
)
def test_batches_of_parquet_are_bounded_in_bytes(
    row_bytes: int, count: int, group_rows: int
) -> None:
    """However many rows, and groups of them, the file has."""
    values = [random.Random(number).randbytes(row_bytes) for number in range(count)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    sink = BytesIO()
    parquet.write_table(table, sink, row_group_size=group_rows)
    stream: BufferedReader = BufferedReader(BytesIO(sink.getvalue()))
    batches = list(read_parquet(stream, None))
    assert pa.Table.from_batches(batches).equals(table)
    assert max(batch.nbytes for batch in batches) <= max(5 << 20, 2 * row_bytes)
