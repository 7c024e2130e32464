"""Records of typed topics as a key and a value, for readers without columns.

The value is a JSON object of the columns. The key is the text or the bytes of its single column, or
a JSON list. No loop over values runs in Python: texts of the parts of a value are joined column by
column. Times are in RFC 3339; decimals, dates and times of a day strings, bytes base64, maps lists
of pairs; NaN and infinities are null. Times that RFC 3339 cannot express, before the year 1 or
after 9999, are as Arrow writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.schema import DELETED, HEADERS, RESERVED, TIMESTAMP, TopicSchema
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.records import HEADERS_TYPE, RECORD_SCHEMA

_ESCAPED: Final = (*range(0x20), ord('"'), ord("\\"))
"""Bytes that a JSON string must escape; in UTF-8 each is a whole character."""
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
_COMMA, _BRACKET = ord(","), ord("]")
_WIDTHS: Final = (
    (types.is_boolean, 5),
    (types.is_integer, 20),
    (types.is_floating, 24),
    (types.is_date, 14),
    (types.is_timestamp, 40),
)
"""How long a text can be; 50 of other types."""


def json_texts(column: pa.Array) -> pa.StringArray:
    """The text of each value; ``null`` for a null."""
    texts = _texts(column)
    return pc.fill_null(texts, "null") if texts.null_count else texts


def json_objects(names: list[str], columns: list[pa.Array], length: int) -> pa.StringArray:
    """An object for each row of columns: its members in this order."""
    pieces: list[Any] = []
    for at, (name, column) in enumerate(zip(names, columns, strict=True)):
        pieces += [f"{',' if at else '{'}{_quoted(name)}:", json_texts(column)]
    return _joined(pieces or ["{"], "}", length)


def json_lists(columns: list[pa.Array], length: int) -> pa.StringArray:
    """A list for each row of columns."""
    pieces: list[Any] = []
    for at, column in enumerate(columns):
        pieces += ["," if at else "[", json_texts(column)]
    return _joined(pieces or ["["], "]", length)


def most_json_bytes(column: pa.Array) -> int:
    """The largest total size in bytes of the texts of a column."""
    kind, count = column.type, len(column)
    if types.is_string(kind):
        return 4 * count + 6 * _bytes_in(column)
    if types.is_binary(kind):
        return 6 * count + 2 * _bytes_in(column)
    if types.is_list(kind) or types.is_map(kind):
        _, values = _elements(column)
        return 4 * count + 4 * len(values) + most_json_bytes(values)
    if types.is_struct(kind):
        names = sum(4 + 6 * len(kind.field(n).name.encode()) for n in range(kind.num_fields))
        return count * (4 + names) + sum(most_json_bytes(child) for child in _fields(column))
    return count * next((width for is_one, width in _WIDTHS if is_one(kind)), 50)


def _texts(column: pa.Array) -> pa.StringArray:
    """The text of each value; null or ``null`` for a null."""
    kind: Any = column.type
    if types.is_string(kind):
        return _strings(column)
    if types.is_floating(kind) or types.is_binary(kind):
        return _by_msgspec(column)
    if types.is_timestamp(kind):
        return _between('"', _times(column), '"')
    if types.is_date(kind) or types.is_decimal(kind) or types.is_time(kind):
        return _between('"', column.cast(pa.string()), '"')
    if types.is_list(kind) or types.is_map(kind):
        return _lists(column)
    if types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        return _where(column, json_objects(names, _fields(column), len(column)))
    return column.cast(pa.string())


def _quoted(name: str) -> str:
    return msgspec.json.encode(name).decode()


def _joined(pieces: list[Any], end: str, length: int) -> pa.StringArray:
    """Pieces to be joined: an array, or one text for all rows."""
    if all(isinstance(piece, str) for piece in pieces):
        return pa.repeat(pa.scalar("".join([*pieces, end])), length)
    return pc.binary_join_element_wise(*pieces, end, "")


def _between(before: str, texts: pa.StringArray, after: str) -> pa.StringArray:
    return pc.binary_join_element_wise(before, texts, after, "")


def _where(column: pa.Array, texts: pa.StringArray) -> pa.StringArray:
    """The texts where the column has values, else null."""
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _strings(column: pa.Array) -> pa.StringArray:
    held = _held(column)
    if (held < 0x20).any() or (held == ord('"')).any() or (held == ord("\\")).any():
        # The backslash first, since the others' texts have one.
        for byte in reversed(_ESCAPED):
            if (held == byte).any():
                text = chr(byte)
                column = pc.replace_substring(column, text, _quoted(text)[1:-1])
    return _between('"', column, '"')


def _by_msgspec(column: pa.Array) -> pa.StringArray:
    """Each number, or base64 of bytes: neither has a comma, so a list of all is cut at these."""
    if not len(column):
        return pa.array([], pa.string())
    if types.is_floating(column.type):
        # A null becomes NaN, which JSON does not have: ``null`` too.
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False).tolist()
    else:
        values = column.to_pylist()
    data = np.frombuffer(msgspec.json.encode(values), dtype=np.uint8)
    bounds = np.flatnonzero(data == _COMMA)
    # Values and the comma or the bracket after each, without the first bracket.
    ends = np.empty(len(column) + 1, dtype=np.int32)
    ends[0], ends[1:-1], ends[-1] = 0, bounds, len(data) - 1
    texts = pa.StringArray.from_buffers(len(column), pa.py_buffer(ends), pa.py_buffer(data[1:]))
    return pc.utf8_slice_codeunits(texts, 0, -1)


def _times(column: pa.Array) -> pa.StringArray:
    """Times in RFC 3339, with microseconds if there are any."""
    kind: Any = column.type
    unit = {"ms": 1000, "us": 1}[kind.unit]
    numbers = column.view(pa.int64())
    is_told = pc.and_(
        pc.greater_equal(numbers, -(-_FIRST_US // unit)),
        pc.less_equal(numbers, _LAST_US // unit),
    )
    every = pc.all(is_told).as_py() in (True, None)
    told = column if every else pc.if_else(is_told, column, None)
    texts = told.cast(pa.timestamp("us", kind.tz)).cast(pa.string())
    texts = pc.replace_substring(texts, " ", "T")
    texts = pc.replace_substring(texts, ".000000", "")
    return texts if every else pc.coalesce(texts, column.cast(pa.string()))


def _lists(column: pa.Array) -> pa.StringArray:
    """Lists, and maps as lists of pairs."""
    bounds, values = _elements(column)
    if types.is_map(column.type):
        texts = json_lists(_fields(values), len(values))
    else:
        texts = json_texts(values)
    offsets = pa.array((bounds - bounds[0]).astype(np.int32), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return _where(column, _between("[", joined, "]"))


def _elements(column: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """The offsets of the lists, and the elements from the first one on."""
    bounds = column.offsets.to_numpy()
    first, last = (int(bounds[0]), int(bounds[-1])) if len(bounds) else (0, 0)
    if not types.is_map(column.type):
        return bounds, column.values.slice(first, last - first)
    pairs = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    return bounds, pairs.slice(first, last - first)


def _fields(column: pa.Array) -> list[pa.Array]:
    return [column.field(number) for number in range(column.type.num_fields)]


def _held(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all strings of a column."""
    _, ends, data = column.buffers()
    if data is None or not len(column):
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(ends, dtype=np.int32)[column.offset :][: len(column) + 1]
    return np.frombuffer(data, dtype=np.uint8)[int(bounds[0]) : int(bounds[-1])]


def _bytes_in(column: pa.Array) -> int:
    return len(_held(column))


_MOST_BYTES: Final = 64 << 20
"""The largest JSON made at a time, unless a single record has more."""


def json_values(records: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """The columns of each record as JSON bytes; null for a record that deletes."""
    names = schema.columns.names
    texts = json_objects(names, [records.column(name) for name in names], records.num_rows)
    if schema.key:
        texts = pc.if_else(records.column(DELETED), None, texts)
    return texts.cast(pa.binary())


def json_keys(records: pa.RecordBatch, schema: TopicSchema, count: int) -> pa.Array:
    """The key of each of ``count`` records: the text or the bytes of one column, or a JSON list.

    Null where there is no key; then the records may have no columns.
    """
    if not schema.key:
        return pa.nulls(count, pa.binary())
    columns = [records.column(name) for name in schema.key]
    if len(columns) == 1 and (types.is_string(columns[0].type) or types.is_binary(columns[0].type)):
        return columns[0].cast(pa.binary())
    return json_lists(columns, count).cast(pa.binary())


def json_pieces(batches: Iterable[SegmentBatch]) -> Iterator[SegmentBatch]:
    """Cut batches into slices, each small enough for its JSON to fit in little memory."""
    for batch in batches:
        count = batch.record_count
        if count <= 1 or _most_bytes(batch.records) <= _MOST_BYTES:
            yield batch
        else:
            half = count // 2
            yield from json_pieces((batch.slice(0, half), batch.slice(half, count - half)))


def _most_bytes(records: pa.RecordBatch) -> int:
    """The largest possible size of the JSON, in bytes."""
    count: int = records.num_rows
    named = sum(6 + 6 * len(name.encode()) for name in records.schema.names)
    return count * named + sum(map(most_json_bytes, records.columns))


def as_keys_and_values(records: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
    """Records with all stored columns, like those of a topic without a schema."""
    arrays = [
        json_keys(records, schema, records.num_rows),
        json_values(records, schema),
        records.column(TIMESTAMP),
        records.column(HEADERS).cast(HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def without_schema(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records as in a segment, without their key; others stay as they are."""
    names = records.schema.names
    if TIMESTAMP not in names:
        return records
    columns = [name for name in names if name not in RESERVED]
    texts = json_objects(columns, [records.column(name) for name in columns], records.num_rows)
    arrays = [
        pa.nulls(records.num_rows, pa.binary()),
        texts.cast(pa.binary()),
        records.column(TIMESTAMP),
        records.column(HEADERS).cast(HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
