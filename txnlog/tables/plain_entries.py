"""Entries of manifests for very many files at once: of whole segments, as the log describes them.

They are the bytes that ``iceberg_manifests`` makes of one file after the other, in a twentieth of
the time: each field is a column of bytes, and entries are the columns joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.names import topic_data_folder
from txnlog.read.range_table import Flags, Ints, RangeTable
from txnlog.segments.number_arrays import arrow_of
from txnlog.tables.avro import NULL, SOME, number, text
from txnlog.tables.iceberg_manifests import DATA, Format
from txnlog.tables.latest_view import ROWS_EACH

_ROWS: Final = 1 << 14
"""So many entries are made at a time."""
_SEQUENCE: Final = SOME + number(0)
_LAST_MS: Final = ((1 << 63) - 1) // 1000
_MOST_VARINT_BYTES: Final = 10


@dataclass(slots=True)
class PlainEntries:
    """The entries of files in the order of a table's rows, made when they are asked for."""

    table: RangeTable
    order: Ints
    root: str
    topic: str
    time_id: int | None
    """The number of the column of times; None: there is none."""
    version: Format
    _first: int = 0
    _made: pa.Array | None = None

    def known(self) -> Flags:
        """Which rows it can make: of a file each, with its times."""
        table = self.table
        flags = table.has_own_file & ~table.is_cut
        if self.time_id is not None:
            flags = flags & (table.least_times_ms >= 0) & (table.largest_times_ms <= _LAST_MS)
        found: Flags = flags[self.order]
        return found

    def of(self, first: int, stop: int) -> pa.Array:
        """The entries of some rows in a row."""
        parts = []
        while first < stop:
            window = first - first % _ROWS
            if self._made is None or self._first != window:
                self._first = window
                self._made = self._make(self.order[window : window + _ROWS])
            end = min(stop, window + _ROWS)
            parts.append(self._made.slice(first - window, end - first))
            first = end
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _make(self, rows: Ints) -> pa.Array:
        table, count = self.table, len(rows)
        records = _numbers(table.record_counts[rows])
        folders = _constant(f"{self.root}/{topic_data_folder(self.topic)}/".encode(), count)
        partitions = arrow_of(table.partitions[rows]).cast(pa.string()).cast(pa.binary())
        names = table.names.take(arrow_of(rows.copy())).cast(pa.binary())
        url = _joined(folders, partitions, _constant(b"/", count), names)
        parts = [
            _constant(number(0) + SOME, count),
            _numbers(table.entries[rows] + 1),
            _constant(2 * _SEQUENCE + number(DATA), count),
            _numbers(_lengths(url)),
            url,
            _constant(text("PARQUET"), count),
            records,
            _numbers(table.sizes_bytes[rows]),
            *self._bounds(rows, records),
            _constant(4 * NULL, count),
        ]
        if self.version == 3:
            firsts = table.partitions[rows] * ROWS_EACH + table.base_offsets[rows]
            parts += [_constant(SOME, count), _numbers(firsts), _constant(3 * NULL, count)]
        return _joined(*parts)

    def _bounds(self, rows: Ints, records: pa.Array) -> list[pa.Array]:
        """Sizes of columns, counts of values, nulls and NaN, least and largest values."""
        count = len(rows)
        if self.time_id is None:
            return [_constant(6 * NULL, count)]
        one = SOME + number(1) + number(self.time_id)
        bounds = [
            _fixed(one + number(8), 1000 * times[rows], b"\0")
            for times in (self.table.least_times_ms, self.table.largest_times_ms)
        ]
        return [
            _constant(NULL + one, count),
            records,
            _constant(b"\0" + one + number(0) + b"\0" + NULL, count),
            *bounds,
        ]


def _binary(data: npt.NDArray[np.uint8], ends: Ints) -> pa.Array:
    """Values that lie one after the other; ``ends`` begins with 0."""
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def _constant(value: bytes, count: int) -> pa.Array:
    ends = np.arange(count + 1, dtype=np.int64) * len(value)
    return _binary(np.frombuffer(value * count, np.uint8), ends)


def _fixed(before: bytes, values: Ints, behind: bytes) -> pa.Array:
    """Numbers as 8 bytes, the lowest first, each between the same bytes."""
    kind = [("before", f"S{len(before)}"), ("value", "<i8"), ("behind", f"V{len(behind)}")]
    rows = np.empty(len(values), dtype=kind)
    rows["before"], rows["value"], rows["behind"] = before, values, np.void(behind)
    ends = np.arange(len(values) + 1, dtype=np.int64) * rows.dtype.itemsize
    return _binary(rows.view(np.uint8), ends)


def _numbers(values: Ints) -> pa.Array:
    """Each as Avro's long: a zigzag varint."""
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    widths = np.ones(len(rest), np.int64)
    for step in range(1, _MOST_VARINT_BYTES):
        more = rest >= np.uint64(1 << (7 * step))
        if not more.any():
            break
        widths += more
    most = int(widths.max(initial=1))
    shifts = np.arange(most, dtype=np.uint64) * np.uint64(7)
    columns = np.arange(most)
    matrix = ((rest[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    matrix[columns < widths[:, None] - 1] |= 0x80
    data = matrix[columns < widths[:, None]]
    return _binary(data, np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)]))


def _lengths(values: pa.Array) -> Ints:
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    return np.diff(ends).astype(np.int64)


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _constant(b"", len(parts[0])))
