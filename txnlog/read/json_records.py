"""Records of typed topics as a key and a value, for who takes records one by one.

The value is a JSON object of the columns: times in RFC 3339, decimals and dates as strings, bytes
in base64, maps as lists of pairs.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from txnlog.schema import DELETED, HEADERS, RESERVED, TIMESTAMP, TopicSchema
from txnlog.segments.records import HEADERS_TYPE, RECORD_SCHEMA


def json_values(records: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """The columns of each record as bytes of JSON; null for a record that deletes."""
    rows = records.select(schema.columns.names).to_pylist()
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
    rows = zip(*(records.column(name).to_pylist() for name in schema.key), strict=True)
    return pa.array([_encode_key(values) for values in rows], pa.binary())


def without_schema(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records as a segment has them, whose key is not known; others stay as they are."""
    names = records.schema.names
    if TIMESTAMP not in names:
        return records
    columns = [name for name in names if name not in RESERVED]
    rows = records.select(columns).to_pylist()
    values = [msgspec.json.encode(row) for row in rows]
    arrays = [
        pa.nulls(len(rows), pa.binary()),
        pa.array(values, pa.binary()),
        records.column(TIMESTAMP),
        records.column(HEADERS).cast(HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _encode_key(values: tuple[object, ...]) -> bytes:
    match values:
        case (str(text),):
            return text.encode()
        case (bytes(data),):
            return data
    return msgspec.json.encode(values)
