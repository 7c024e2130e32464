"""Lists of mappings or dataclasses, as users send them, as the values of each column."""

from __future__ import annotations

import datetime as dt
import numbers
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import pyarrow as pa

from txnlog.columns.python_values import kinds_of, values_by_name
from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, PARTITION, TIMESTAMP
from txnlog.segments.records import CONVERSION_ERRORS, TIMESTAMP_TYPE

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
