"""Names in a footer are exchanged, and nothing else is."""

from __future__ import annotations

from io import BytesIO

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.support.examples import some
from txnlog.segments.parquet.footer_edits import rename_columns


def column(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": b"%d" % number})


INNER = pa.struct([column("x", pa.int8(), 3), column("y", pa.timestamp("us", "UTC"), 4)])
SCHEMA = pa.schema(
    [
        column("a", pa.decimal128(9, 2), 1),
        column("in", INNER, 2),
        column("list", pa.list_(column("element", INNER, 6)), 5),
        column("gone", pa.string(), 7),
        *(column(f"c{n}", pa.bool_(), n) for n in range(100, 120)),  # a list's long head
        pa.field("_timestamp", pa.int64()),
    ]
)


def written() -> bytes:
    sink = BytesIO()
    rows = [{"in": {"x": n}, "gone": str(n), "_timestamp": n} for n in range(10)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    with parquet.ParquetWriter(sink, SCHEMA, store_schema=False) as writer:
        for _ in range(3):
            writer.write_table(table)
        writer.add_key_value_metadata({"key": "value"})
    return sink.getvalue()


FILE = written()
LENGTH = int.from_bytes(FILE[-8:-4], "little") + 8
BODY, TAIL = FILE[:-LENGTH], FILE[-LENGTH:]


@pytest.mark.parametrize("name", ["b", "", "längerer Name " * 20], ids=len)
def test_columns_have_other_names_and_the_same_values(name: str) -> None:
    """Nested ones too; those that the schema has not, none that a column can have."""
    names = {1: name, 2: "in", 3: "z", 4: "y", 5: "list", 6: "element"}
    names |= {n: f"d{n}" for n in range(100, 120)}
    changed = BODY + rename_columns(TAIL, names)
    before, after = parquet.read_table(BytesIO(FILE)), parquet.read_table(BytesIO(changed))
    kept = [f"d{n}" for n in range(100, 120)]
    assert after.column_names == [name, "in", "list", "\x007", *kept, "_timestamp"]
    assert after.column("in").type.field(0).name == "z"
    for one, other in zip(before.columns, after.columns, strict=True):
        assert str(one.to_pylist()).replace("'x'", "'z'") == str(other.to_pylist())
    found = parquet.read_metadata(BytesIO(changed))
    assert found.metadata[b"key"] == b"value"
    for number in range(3):
        group = found.row_group(number)
        assert group.num_rows == 10
        assert group.column(group.num_columns - 1).statistics.max == 9
    assert rename_columns(TAIL, dict.fromkeys(names, "n")) != TAIL


def test_a_footer_that_is_none_is_an_error() -> None:
    """Wherever it ends, however deep it goes, whatever its numbers are."""
    for stop in range(0, len(TAIL) - 9, 61):
        with pytest.raises(ValueError, match="footer"):
            rename_columns(TAIL[:stop] + TAIL[-8:], {})
    for data in (b"\x1c" * 5000, b"\x15" + b"\xff" * 5000, b"\x1b", b"\x19\xfc" + b"\xff" * 20):
        with pytest.raises(ValueError, match="footer"):
            rename_columns(data + TAIL[-8:], {})


@some(200)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_footer_or_an_error(data: bytes) -> None:
    try:
        renamed = rename_columns(data + TAIL[-8:], {})
    except ValueError:
        return
    assert renamed.endswith(b"PAR1")
