"""Single records, as consumers return them: built from Arrow columns when asked for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import islice, repeat
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from txnlog.display import shorten
from txnlog.names import TopicPartition
from txnlog.schema import DELETED
from txnlog.segments.number_arrays import numbers_of

Pairs: TypeAlias = tuple[tuple[str, bytes | None], ...]
_ROWS_AT_ONCE: Final = 256


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """One record. ``timestamp`` is in milliseconds; ``timestamp_type``: 0 create, 1 append.

    ``value`` is bytes, or None; of a typed topic, a dict of its columns, as ``send`` takes it, in
    which a record that deletes has ``_deleted``. ``key`` is bytes in both; see docs/TYPED.md. With
    deserializers both are what these make of it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: Pairs

    def __repr__(self) -> str:
        shown = (f"{name}={shorten(getattr(self, name))}" for name in self.__struct_fields__)
        return f"ConsumerRecord({', '.join(shown)})"


RECORD_COLUMNS: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of records, besides their topic and partition."""


def each_record(where: TopicPartition, batch: pa.RecordBatch) -> Iterator[ConsumerRecord]:
    """The records of a non-empty batch, each built when asked for.

    No Python code runs per record: the iterators below are the interpreter's own, and shared values
    are built once. ``batch``: with RECORD_COLUMNS as a scan has them, and any others.
    """
    offset, stamp, kind, key, value, headers = (batch.column(name) for name in RECORD_COLUMNS)
    return map(
        ConsumerRecord,
        repeat(where.topic),
        repeat(where.partition),
        _integers(numbers_of(offset)),
        _integers(numbers_of(stamp.view(pa.int64())) // 1000),
        _integers(numbers_of(kind)),
        _byte_strings(key),
        _rows(value) if types.is_struct(value.type) else _byte_strings(value),
        _headers_of(headers, batch.num_rows),
    )


def _integers(values: npt.NDArray[np.int64]) -> Iterable[int]:
    """At least one whole number, as Python's."""
    first, last, count = int(values[0]), int(values[-1]), len(values)
    if last - first == count - 1 and (np.diff(values) == 1).all():
        return range(first, last + 1)
    if first == last and (values == first).all():
        return repeat(first)
    listed: list[int] = values.tolist()
    return listed


def _byte_strings(column: pa.Array) -> Iterable[bytes | None]:
    """Each value of an array of bytes or text as bytes; None for a null."""
    if column.null_count == len(column):
        return repeat(None)
    _, ends, data = column.buffers()
    bounds = np.frombuffer(ends, dtype=np.int32)[column.offset :][: len(column) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    held = b"" if data is None else data.slice(first, last - first).to_pybytes()
    # Read one after another: slices of it would take three times as long.
    found = map(BytesIO(held).read, np.diff(bounds).tolist())
    if not column.null_count:
        return found
    values: list[bytes | None] = [*found]
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[row] = None
    return values


def _rows(column: pa.Array) -> Iterator[dict[str, Any]]:
    """Each struct as a mapping that ``send`` takes; a few are converted at a time."""
    names = [field.name for field in column.type]
    for start in range(0, len(column), _ROWS_AT_ONCE):
        piece = column.slice(start, _ROWS_AT_ONCE)
        for values in zip(*map(_python_values, piece.flatten()), strict=True):
            row = dict(zip(names, values, strict=True))
            if row.get(DELETED) is False:
                del row[DELETED]
            yield row


def _python_values(column: pa.Array) -> list[Any]:
    """Values of Python's types; what these cannot hold, a time after 9999 say, as Arrow has it."""
    kind = column.type
    if not column.null_count and (types.is_integer(kind) or types.is_floating(kind)):
        numbers: list[Any] = numbers_of(column).tolist()  # several times as fast
        return numbers
    try:
        return _times(column) if types.is_timestamp(kind) else [*column.to_pylist()]
    except (AttributeError, OverflowError, ValueError):
        return [*map(_python_value, column)]


def _times(column: pa.Array) -> list[Any]:
    """Timestamps, by way of numpy. Raises AttributeError for one that Python cannot hold."""
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()).fill_null(0)
    zone = None if column.type.tz is None else dt.UTC
    naive = numbers_of(microseconds).view("M8[us]").tolist()
    listed = [time.replace(tzinfo=zone) for time in naive]
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
        listed[row] = None
    return listed


def _python_value(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value


def _headers_of(column: pa.Array, count: int) -> Iterable[Pairs]:
    """The pairs of each of ``count`` records."""
    bounds = numbers_of(column.offsets)
    first, last = int(bounds[0]), int(bounds[-1])
    if first == last:  # as with most topics
        return repeat((), count)
    if column.null_count:
        listed = (row or () for row in column.to_pylist())
        return [tuple((pair["key"], pair["value"]) for pair in row) for row in listed]
    names, contents = column.values.slice(first, last - first).flatten()
    texts = map(bytes.decode, _byte_strings(names))  # type: ignore[arg-type]  # a name is not null
    pairs = zip(texts, _byte_strings(contents), strict=False)
    return map(tuple, map(islice, repeat(pairs), np.diff(bounds).tolist()))
