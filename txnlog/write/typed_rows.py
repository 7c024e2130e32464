"""One record of a typed topic, sent as a mapping of its columns to Python's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, TIMESTAMP
from txnlog.segments.records import CONVERSION_ERRORS, HEADERS_TYPE
from txnlog.write.typed_records import TypedRecords


def make_record(
    records: TypedRecords,
    row: object,
    timestamp_ms: int | None,
    headers: Sequence[tuple[str, bytes | None]],
    now_ms: int,
) -> pa.RecordBatch:
    """A batch of one record, checked like any batch. Raises InvalidRecord.

    In the row structs are mappings too, and maps are mappings or lists of pairs. A true
    ``_deleted`` makes it a deletion.
    """
    if not isinstance(row, Mapping):
        raise InvalidRecord(
            f"topic {records.topic!r} has a schema, so a record is a mapping of its columns to "
            f"values, not {type(row).__name__}; for many records use send_batch"
        )
    columns = {field.name: field for field in records.schema.record_columns}
    given: dict[str, pa.Array] = {
        TIMESTAMP: pa.array([timestamp_ms], pa.int64()),
        HEADERS: pa.array([[{"key": k, "value": v} for k, v in headers]], HEADERS_TYPE),
    }
    for name, value in row.items():
        if name in given or not isinstance(name, str):
            raise records.refusal(
                f"{name!r} is not a column; times and headers are arguments of send"
            )
        known = name in columns and name != DELETED
        field = columns[name] if known else None
        given[name] = (
            _infer(records, [value], name) if field is None else _make(records, value, field, name)
        )
    return records.normalize(pa.RecordBatch.from_pydict(given), now_ms)


def _infer(records: TypedRecords, values: Sequence[object], path: str) -> pa.Array:
    try:
        return pa.array(values)
    except CONVERSION_ERRORS as error:
        raise records.refusal(f"column {path!r} cannot be {values[0]!r:.60}: {error}") from error


def _make(
    records: TypedRecords,
    value: Any,  # noqa: ANN401 - whatever the user has put there
    field: pa.Field,
    path: str,
) -> pa.Array:
    """A value as an array of the field's type."""
    kind = field.type
    if value is None:
        return pa.nulls(1, kind)
    if not types.is_nested(kind):
        return records.cast(_infer(records, [value], path), field.with_name(path))
    if types.is_struct(kind):
        return _make_struct(records, value, kind, path)
    if types.is_map(kind):
        pairs = [*value.items()] if isinstance(value, Mapping) else value
        if not _is_list(pairs) or not all(_is_list(pair) and len(pair) == 2 for pair in pairs):
            raise records.refusal(f"column {path!r} is not a mapping but {value!r:.60}")
        keys = _make_items(records, [key for key, _ in pairs], kind.key_field, path)
        items = _make_items(records, [item for _, item in pairs], kind.item_field, path)
        return pa.MapArray.from_arrays([0, len(pairs)], keys, items, type=kind)
    if not _is_list(value):
        raise records.refusal(f"column {path!r} is not a list but {value!r:.60}")
    items = _make_items(records, value, kind.value_field, path)
    return pa.ListArray.from_arrays([0, len(value)], items, type=kind)


def _make_struct(records: TypedRecords, value: object, kind: pa.DataType, path: str) -> pa.Array:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    if not isinstance(value, Mapping):
        raise records.refusal(f"column {path!r} is not a mapping but {value!r:.60}")
    unknown = [name for name in value if name not in {field.name for field in fields}]
    if unknown:
        raise records.refusal(f"column {path!r} has no field {unknown[0]!r}")
    made = [_make(records, value.get(f.name), f, f"{path}.{f.name}") for f in fields]
    return pa.StructArray.from_arrays(made, fields=fields)


def _make_items(
    records: TypedRecords, values: Sequence[Any], field: pa.Field, path: str
) -> pa.Array:
    path = f"{path}.{field.name}"
    if not values:
        return pa.nulls(0, field.type)
    if not types.is_nested(field.type):
        return records.cast(_infer(records, values, path), field.with_name(path))
    return pa.concat_arrays([_make(records, value, field, path) for value in values])


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
