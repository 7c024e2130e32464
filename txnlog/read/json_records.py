"""Records of typed topics as a key and a value, for readers without columns.

The value is a JSON object of the columns: see ``json_columns``. The key is the text or the bytes of
its single column, or a JSON list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.read.json_columns import json_lists, json_objects, most_json_bytes
from txnlog.schema import DELETED, HEADERS, RESERVED, TIMESTAMP, TopicSchema
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.records import HEADERS_TYPE, RECORD_SCHEMA

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
