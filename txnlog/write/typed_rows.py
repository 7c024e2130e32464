"""Records of a typed topic, sent as mappings of its columns to Python's values, or as dataclasses.

Values become columns by Arrow and by iterators in C: only maps, and values of several kinds in one
column, take a loop of Python's.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, contains, is_not
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, TIMESTAMP
from txnlog.segments.records import CONVERSION_ERRORS, HEADERS_TYPE
from txnlog.segments.schema_columns import default_of
from txnlog.write.row_values import kinds_of, metadata_column, values_by_name
from txnlog.write.typed_records import TypedRecords

Values: TypeAlias = Sequence[Any]
"""Whatever a user has put there."""

_ALIKE = {int, float}
"""Kinds of values that Arrow takes together as it takes each of them."""
_UNITS = ("s", "ms", "us", "ns")
_UNIT_NAMES = {"ms": "millisecond", "us": "microsecond"}
_TEXTS = (str, bytes)
"""Sequences that are no lists."""


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
    given: dict[str, pa.Array] = {
        TIMESTAMP: pa.array([timestamp_ms], pa.int64()),
        HEADERS: pa.array([[{"key": k, "value": v} for k, v in headers]], HEADERS_TYPE),
    }
    for name, value in row.items():
        if name in given or not isinstance(name, str):
            raise records.refusal(
                f"{name!r} is not a column; times and headers are arguments of send"
            )
        given[name] = make_column(records, [value], name)
    return records.normalize(pa.RecordBatch.from_pydict(given), now_ms)


def make_columns(records: TypedRecords, rows: Values) -> dict[str, pa.Array]:
    """The columns of some mappings, or of some dataclasses of one kind, to be normalised.

    Raises InvalidRecord; which record it is, the caller finds out.
    """
    columns = values_by_name(rows)
    records.check_names([*columns])
    made = {}
    for name, values in columns.items():
        array = metadata_column(name, values)
        if array is None:
            array = make_column(records, values, name)
            default = default_of(records.columns.field(name))
            if default is not None and isinstance(rows[0], Mapping):
                given = np.fromiter(map(contains, rows, repeat(name)), bool, len(rows))
                array = pc.if_else(pa.array(given), array, default)
        made[name] = array
    return made


def make_column(records: TypedRecords, values: Values, name: str) -> pa.Array:
    """At least one value as a column. Raises InvalidRecord."""
    columns = records.record_columns
    if name in columns.names and name != DELETED:
        return _make(records, values, columns.field(name), name)
    return _infer(records, values, name)


def _infer(records: TypedRecords, values: Values, path: str) -> pa.Array:
    try:
        array = pa.array(values)
    except CONVERSION_ERRORS as error:
        raise records.refusal(f"column {path!r} cannot be {values[0]!r:.60}: {error}") from error
    if isinstance(array, pa.ChunkedArray):
        raise records.refusal(f"column {path!r} is larger than 2 GiB: send fewer records at once")
    return array


def _make(records: TypedRecords, values: Values, field: pa.Field, path: str) -> pa.Array:
    """At least one value as an array of the field's type."""
    kind = field.type
    if not types.is_nested(kind):
        return _make_flat(records, values, field.with_name(path))
    valid = np.fromiter(map(is_not, values, repeat(None)), bool, len(values))
    if not valid.any():
        return pa.nulls(len(values), kind)
    if not valid.all():
        there = _make(records, [value for value in values if value is not None], field, path)
        return there.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    if types.is_struct(kind):
        return _make_struct(records, values, kind, path)
    if types.is_map(kind):
        return _make_map(records, values, kind, path)
    if not all(
        issubclass(kind, Sequence) and not issubclass(kind, _TEXTS) for kind in kinds_of(values)
    ):
        wrong = next(value for value in values if not _is_list(value))
        raise records.refusal(f"column {path!r} is not a list but {wrong!r:.60}")
    items = _make_items(records, values, kind.value_field, path)
    return pa.ListArray.from_arrays(_ends(values), items, type=kind)


def _make_flat(records: TypedRecords, values: Values, field: pa.Field) -> pa.Array:
    """Values that are of one kind at once; others, which Arrow would make alike, each for itself.

    A date beside a time, a time with a zone beside one without, bytes beside text: what is not
    valid alone is not taken in a batch either.
    """
    kinds = kinds_of(values)
    alike = len(kinds) < 2 or kinds == _ALIKE
    if alike and any(issubclass(kind, dt.datetime) for kind in kinds):
        zones = set(map(attrgetter("tzinfo"), filter(None, values)))
        alike = len(zones) == 1 or None not in zones
    if alike and not (kinds == _ALIKE and types.is_integer(field.type)):
        return records.cast(_infer_flat(records, values, field), field)
    each = [records.cast(_infer_flat(records, [value], field), field) for value in values]
    return pa.concat_arrays(each)


def _infer_flat(records: TypedRecords, values: Values, field: pa.Field) -> pa.Array:
    """Make an array as Arrow infers it, but of times in the column's unit.

    They are rounded down, to the earlier time, also before 1970.
    """
    array = _infer(records, values, field.name)
    if not (types.is_timestamp(array.type) and types.is_timestamp(field.type)):
        return array
    unit = array.type.unit
    if _UNITS.index(unit) <= _UNITS.index(field.type.unit):
        return array
    # Without its zone: Arrow would look for a database of them.
    whole = pc.floor_temporal(array.view(pa.timestamp(unit)), unit=_UNIT_NAMES[field.type.unit])
    return whole.view(array.type)


def _make_struct(records: TypedRecords, values: Values, kind: pa.DataType, path: str) -> pa.Array:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    try:
        given = values_by_name(values)
    except InvalidRecord:
        wrong = next((value for value in values if not isinstance(value, Mapping)), values[0])
        raise records.refusal(f"column {path!r} is not a mapping but {wrong!r:.60}") from None
    unknown = [name for name in given if name not in {field.name for field in fields}]
    if unknown:
        raise records.refusal(f"column {path!r} has no field {unknown[0]!r}")
    nothing = [None] * len(values)
    made = [_make(records, given.get(f.name, nothing), f, f"{path}.{f.name}") for f in fields]
    return pa.StructArray.from_arrays(made, fields=fields)


def _make_map(records: TypedRecords, values: Values, kind: pa.DataType, path: str) -> pa.Array:
    lists = [[*value.items()] if isinstance(value, Mapping) else value for value in values]
    for value, pairs in zip(values, lists, strict=True):
        if not _is_list(pairs) or not all(_is_list(pair) and len(pair) == 2 for pair in pairs):
            raise records.refusal(f"column {path!r} is not a mapping but {value!r:.60}")
        if any(pair[0] is None for pair in pairs):
            raise records.refusal(f"column {path!r} has a key that is null: {value!r:.60}")
    keys, items = ([[pair[side] for pair in pairs] for pairs in lists] for side in (0, 1))
    return pa.MapArray.from_arrays(
        _ends(lists),
        _make_items(records, keys, kind.key_field, path),
        _make_items(records, items, kind.item_field, path),
        type=kind,
    )


def _make_items(records: TypedRecords, lists: Values, field: pa.Field, path: str) -> pa.Array:
    items = [*chain.from_iterable(lists)]
    if not items:
        return pa.nulls(0, field.type)
    return _make(records, items, field, f"{path}.{field.name}")


def _ends(lists: Values) -> pa.Array:
    """Where each list begins and ends among the items of all."""
    ends = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=ends[1:])
    return pa.array(ends).cast(pa.int32())


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)
