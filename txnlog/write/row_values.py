"""Records of a typed topic, sent as mappings or dataclasses, as the values of each column."""

from __future__ import annotations

import datetime as dt
import numbers
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from operator import contains, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.columns.python_values import Values, infer, kinds_of, make_array, values_by_name
from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, PARTITION, TIMESTAMP
from txnlog.segments.records import CONVERSION_ERRORS, HEADERS_TYPE, TIMESTAMP_TYPE
from txnlog.segments.schema_columns import default_of
from txnlog.write.typed_records import TypedRecords

_HEADERS = pa.map_(pa.string(), pa.binary())
_PLAIN = {
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": TIMESTAMP_TYPE,
    "headers": _HEADERS,
    "partition": pa.int64(),
}
_METADATA = {
    TIMESTAMP: TIMESTAMP_TYPE,
    HEADERS: _HEADERS,
    PARTITION: pa.int64(),
    DELETED: pa.bool_(),
}
"""Columns that are the same in all topics without, and in all topics with a schema."""


def plain_columns(topic: str, rows: Sequence[Any]) -> dict[str, pa.Array]:
    """The columns of records of keys and values. Raises InvalidRecord."""
    columns = values_by_name(rows)
    for name in columns:
        if name not in _PLAIN:
            raise InvalidRecord(
                f"{name!r:.60} is not part of a record, which has {', '.join(_PLAIN)}: topic "
                f"{topic!r} has no schema with columns of its own"
            )
    return {name: _make(name, values, _PLAIN[name]) for name, values in columns.items()}


def metadata_column(name: str, values: Sequence[Any]) -> pa.Array | None:
    """A column that every topic with a schema has; None for one of its own."""
    return _make(name, values, _METADATA[name]) if name in _METADATA else None


def make_rows(
    rows: Sequence[Any], make: Callable[[Sequence[Any]], dict[str, pa.Array]]
) -> pa.RecordBatch:
    """A batch of at least one row. Raises InvalidRecord, which names the first that is wrong."""
    try:
        return pa.RecordBatch.from_pydict(make(rows))
    except InvalidRecord as error:
        row, why = first_wrong(rows, make, error)
        raise InvalidRecord(f"record {row} of {len(rows)}: {why}") from error


def first_wrong(
    rows: Sequence[Any],
    make: Callable[[Sequence[Any]], dict[str, pa.Array]],
    error: InvalidRecord,
) -> tuple[int, InvalidRecord]:
    """The number of the first row that cannot be taken after those before it, and why."""
    low, high = 0, len(rows) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            make(rows[: middle + 1])
        except InvalidRecord as earlier:
            high, error = middle, earlier
        else:
            low = middle + 1
    try:
        make(rows[low : low + 1])
    except InvalidRecord as alone:
        error = alone
    return low, error


def check_pairs(values: Sequence[Any]) -> None:
    """Raise TypeError if a value is no mapping, and no list of pairs whose first has a value.

    Arrow ends the process where a pair is null.
    """
    if kinds_of(values) <= {list, tuple}:  # without a call for each
        pairs = [*chain.from_iterable(filter(None, values))]
        are_pairs = {*map(type, pairs)} <= {list, tuple} and {*map(len, pairs)} <= {2}
        if are_pairs and None not in map(itemgetter(0), pairs):
            return
    for value in values:
        found = () if value is None or isinstance(value, Mapping) else value
        for pair in found:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or pair[0] is None:
                raise TypeError(f"a pair of a name and a value is needed, not {pair!r:.60}")


def _make(name: str, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_timestamp(kind):  # Arrow would cut fractions off
            for found in kinds_of(values):
                if not issubclass(found, numbers.Integral | dt.datetime):
                    raise TypeError(f"milliseconds or a datetime are needed, not {found.__name__}")
        if kind is _HEADERS:
            check_pairs(values)
        array = pa.array(values, kind)
    except CONVERSION_ERRORS as error:
        raise InvalidRecord(f"{name!r} cannot be {values[-1]!r:.60}: {error}") from error
    if isinstance(array, pa.ChunkedArray):
        raise InvalidRecord(f"{name!r} is larger than 2 GiB: send fewer records at once")
    return array


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
        return make_array(values, columns.field(name), name, records.refusal)
    return infer(values, name, records.refusal)
