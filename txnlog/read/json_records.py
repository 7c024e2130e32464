"""Records of typed topics as a key and a value, for who takes records one by one.

The value is a JSON object of the columns: times in RFC 3339, decimals and dates as strings, bytes
in base64, maps as lists of pairs. Times that no calendar of Python has are as Arrow writes them.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
from pyarrow import types

from txnlog.schema import DELETED, HEADERS, RESERVED, TIMESTAMP, TopicSchema
from txnlog.segments.records import HEADERS_TYPE, RECORD_SCHEMA


def json_values(records: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """The columns of each record as bytes of JSON; null for a record that deletes."""
    rows = _rows(records.select(schema.columns.names))
    gone = records.column(DELETED).to_pylist() if schema.key else [False] * len(rows)
    return pa.array(
        [
            None if deleted else msgspec.json.encode(row)
            for row, deleted in zip(rows, gone, strict=True)
        ],
        pa.binary(),
    )


def json_keys(records: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """The key of each record: the text or the bytes of one column, or a JSON list of several."""
    if not schema.key:
        return pa.nulls(records.num_rows, pa.binary())
    columns = [records.column(name) for name in schema.key]
    if len(columns) == 1 and (types.is_string(columns[0].type) or types.is_binary(columns[0].type)):
        return columns[0].cast(pa.binary())
    rows = zip(*map(_values, columns), strict=True)
    return pa.array([msgspec.json.encode(values) for values in rows], pa.binary())


def without_schema(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records as a segment has them, whose key is not known; others stay as they are."""
    names = records.schema.names
    if TIMESTAMP not in names:
        return records
    columns = [name for name in names if name not in RESERVED]
    rows = _rows(records.select(columns))
    values = [msgspec.json.encode(row) for row in rows]
    arrays = [
        pa.nulls(len(rows), pa.binary()),
        pa.array(values, pa.binary()),
        records.column(TIMESTAMP),
        records.column(HEADERS).cast(HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _rows(records: pa.RecordBatch) -> list[dict[str, object]]:
    names = records.schema.names
    columns = [_values(column) for column in records.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[object]:
    """The values as Python has them; times that it does not know as Arrow writes them."""
    try:
        values: list[object] = column.to_pylist()
    except OverflowError:
        if len(column) == 1:
            return column.cast(_times_as_text(column.type)).to_pylist()  # type: ignore[no-any-return]
        return [value for row in range(len(column)) for value in _values(column.slice(row, 1))]
    return values


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    if types.is_temporal(kind):
        return pa.string()
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(_times_as_text(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_times_as_text(kind.key_type), _times_as_text(kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_text(kind.value_type)))
    return kind
