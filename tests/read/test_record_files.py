"""Records as files: what a format cannot hold is an error of ours, and no record is lost."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from txnlog.errors import InvalidOption
from txnlog.read.rows import write_stream

BYTES = (pa.binary(), pa.large_binary(), pa.binary(2))
EMPTY = pa.struct([])


def written(file_format: str, encoding: str, kind: Any, *cells: Any) -> bytes:
    """A file with one column."""
    schema = pa.schema([pa.field("c", kind)])
    batch = pa.record_batch([pa.array(cells, kind)], schema=schema)
    file = io.BytesIO()
    write_stream([batch], schema, file, file_format, encoding=encoding, escape_formulas=False)
    return file.getvalue()


@pytest.mark.parametrize("kind", BYTES, ids=str)
def test_bytes_of_any_column_in_csv(kind: Any) -> None:
    """As text, if they are UTF-8, or as the encoding says: not only keys and values."""
    raw = b"\xff\xfe"
    assert written("csv", "text", kind, b"ab", None) == b'"c"\n"ab"\n\n'
    assert written("csv", "hex", kind, raw, None) == b'"c"\n"fffe"\n\n'
    assert written("csv", "base64", kind, raw) == b'"c"\n"//4="\n'
    with pytest.raises(InvalidOption, match="column 'c' is not UTF-8 text"):
        written("csv", "text", kind, raw)


@pytest.mark.parametrize(
    "kind",
    [EMPTY, pa.struct([("a", EMPTY)]), pa.list_(EMPTY), pa.map_(pa.string(), EMPTY)],
    ids=str,
)
@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_structs_without_fields(kind: Any, file_format: str) -> None:
    """Records of Avro may be such: Arrow's own files have them, others cannot."""
    assert pa.ipc.open_file(written("arrow", "text", kind, None)).read_all().schema.types == [kind]
    with pytest.raises(InvalidOption, match="arrow, or other columns"):
        written(file_format, "text", kind, None)
