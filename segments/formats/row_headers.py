"""The headers of rows: keys and values at the end of each record, from and to Arrow's lists.

Headers of all records are found in lockstep: the first ones of all records, then the second ones.
The few records with many more headers than the rest are finished one by one, so that time is in
proportion to the headers whatever their distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from txnlog.segments.arrays import (
    NULL_LENGTH,
    all_bytes,
    cut,
    interleave,
    rows_of_bytes,
    value_lengths,
)
from txnlog.segments.errors import UnsupportedRecordFormat
from txnlog.segments.formats.varints import (
    UInt8Array,
    read_varint,
    read_varints,
    varint_sizes,
    write_varints,
)
from txnlog.segments.records import Int64Array, empty_headers

_LEAST_LOCKSTEP_ROWS: Final = 32  # below this a Python loop is as fast as a numpy step
_LEAST_HEADER_BYTES: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class HeaderPlaces:
    """Positions of headers: ``counts`` and ``ends`` for each record, the rest for each header."""

    counts: Int64Array
    ends: Int64Array
    key_starts: Int64Array
    key_lengths: Int64Array
    value_starts: Int64Array
    value_lengths: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class EncodedHeaders:
    """``block``: binary, count and headers of each record (or one for all); ``sizes`` in bytes."""

    block: pa.Array
    sizes: Int64Array


def locate_headers(
    data: UInt8Array, at: Int64Array, counts: Int64Array, limits: Int64Array
) -> HeaderPlaces:
    """Find the headers that start at ``at``, ``counts`` of them in each record.

    Raises ValueError if they cannot lie before ``limits``, the ends of the records.
    """
    if int(counts.min()) < 0:
        raise ValueError(f"a record has {int(counts.min())} headers")
    nothing = np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(counts)
    if len(rows) == 0:
        return HeaderPlaces(counts, at, nothing, nothing, nothing, nothing)
    if bool(np.any(counts * _LEAST_HEADER_BYTES > limits - at)):
        raise ValueError("a record has more headers than bytes")
    ends = at.copy()
    positions, left = at[rows], counts[rows]
    found: list[tuple[Int64Array, ...]] = []
    while len(rows) >= _LEAST_LOCKSTEP_ROWS:
        key_lengths, key_starts = read_varints(data, positions)
        value_lengths_, value_starts = read_varints(data, key_starts + key_lengths)
        positions = value_starts + np.maximum(value_lengths_, 0)
        _check_lengths(int(key_lengths.min()), int(value_lengths_.min()))
        found.append((rows, key_starts, key_lengths, value_starts, value_lengths_))
        left = left - 1
        ends[rows] = positions
        more = left > 0
        rows, positions, left = rows[more], positions[more], left[more]
    if len(rows):
        found.append(_one_by_one(data.data, rows, positions, left, ends))
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return HeaderPlaces(counts, ends, *(column[order] for column in columns[1:]))


def decode_headers(block: pa.Buffer, places: HeaderPlaces) -> pa.Array:
    """The headers as a column of HEADERS_TYPE. Raises ArrowInvalid for keys that are not UTF-8."""
    if len(places.key_starts) == 0:
        return empty_headers(len(places.counts))
    keys = cut(block, places.key_starts, places.key_lengths).cast(pa.string())
    values = cut(block, places.value_starts, places.value_lengths)
    offsets = np.zeros(len(places.counts) + 1, dtype=np.int32)
    np.cumsum(places.counts, out=offsets[1:])
    items = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), items)


def encode_headers(column: pa.Array) -> EncodedHeaders:
    """The end of each record: the count of headers and the headers.

    Raises UnsupportedRecordFormat for a header whose key is null.
    """
    offsets = column.offsets.to_numpy().astype(np.int64)
    counts = np.diff(offsets)
    if column.null_count:
        counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
    items = column.flatten()  # of exactly this slice, without elements hidden by null lists
    if len(items) == 0:
        return EncodedHeaders(pa.array([b"\0"], pa.binary()), np.ones(len(column), dtype=np.int64))
    keys, values = items.field("key"), items.field("value")
    if items.null_count or keys.null_count:
        raise UnsupportedRecordFormat("column 'headers' has a header whose key is null")
    key_sizes, value_sizes = value_lengths(keys), value_lengths(values)
    parts = [
        rows_of_bytes(*write_varints([key_sizes])),
        keys.view(pa.binary()),
        rows_of_bytes(*write_varints([value_sizes])),
        values,
    ]
    bodies = all_bytes(interleave(parts, len(items)))
    ends = np.zeros(len(items) + 1, dtype=np.int64)
    np.cumsum(
        varint_sizes(key_sizes)
        + key_sizes
        + varint_sizes(value_sizes)
        + np.maximum(value_sizes, 0),
        out=ends[1:],
    )
    stops = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=stops[1:])
    body_sizes = np.diff(ends[stops])
    rows = rows_of_bytes(np.frombuffer(bodies, dtype=np.uint8), body_sizes)
    block = interleave([rows_of_bytes(*write_varints([counts])), rows], len(counts))
    sizes = varint_sizes(counts) + body_sizes
    return EncodedHeaders(rows_of_bytes(np.frombuffer(all_bytes(block), np.uint8), sizes), sizes)


def _check_lengths(key_length: int, value_length: int) -> None:
    if key_length < 0 or value_length < NULL_LENGTH:
        raise ValueError(f"a header has lengths {key_length} and {value_length}")


def _one_by_one(
    data: memoryview, rows: Int64Array, positions: Int64Array, left: Int64Array, ends: Int64Array
) -> tuple[Int64Array, ...]:
    """The rest of the headers of these records, row by row; ``ends`` is filled in for them."""
    found: list[tuple[int, int, int, int, int]] = []
    for row, position, count in zip(rows.tolist(), positions.tolist(), left.tolist(), strict=True):
        for _ in range(count):
            key_length, key_start = read_varint(data, position)
            value_length, value_start = read_varint(data, key_start + max(key_length, 0))
            _check_lengths(key_length, value_length)
            found.append((row, key_start, key_length, value_start, value_length))
            position = value_start + max(value_length, 0)
        ends[row] = position
    return tuple(np.array(found, dtype=np.int64).T)
