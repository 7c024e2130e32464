"""The newest row of each key among rows that come in order: what it holds grows with the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from txnlog.segments.number_arrays import arrow_of, numbers_of_column

_LEAST_ROWS: Final = 1 << 21
_LEAST_BYTES: Final = 128 << 20
"""Fewer rows, and keys of fewer bytes, are not worth grouping."""
_MOST_BYTES: Final = 1 << 30
"""With more, Arrow's columns of keys have long positions: the others end at 2 GiB."""
_AS_NUMBERS: Final = frozenset({0, 1, 2, 4, 8})
"""Values of these sizes Arrow hashes as numbers: of 8 digits so badly that they take 16 times as
long.
"""


class NewestFold:
    """The newest of the added rows of each key: the last one, or the one with the greatest time.

    Rows are grouped when there are many, which gives up the batches that they are slices of, and
    the groups again when there are as many as keys: so memory is about the keys, and each row is
    grouped once or twice.
    """

    def __init__(self, key_count: int, *, by_time: bool = False) -> None:
        self._keys = key_names(key_count)
        self._by_time = by_time
        self._added: list[pa.Table] = []
        self._groups: list[pa.Table] = []
        self._added_rows = self._added_bytes = self._group_rows = 0

    def add(self, rows: pa.Table | None) -> None:
        """Add rows with keys, which are newer than those before unless ``by_time``."""
        if rows is None:
            return
        self._added.append(rows)
        self._added_rows += rows.num_rows
        self._added_bytes += rows.nbytes
        if self._added_rows >= _LEAST_ROWS or self._added_bytes >= _LEAST_BYTES:
            self._group_added()

    def finish(self) -> pa.Table | None:
        """One row for each key, in no particular order; None if there is none."""
        self._group_added()
        self._merge_groups()
        return self._groups[0] if self._groups else None

    def _group_added(self) -> None:
        if self._added:
            self._groups.append(self._newest_of(self._added))
            self._group_rows += self._groups[-1].num_rows
            self._added, self._added_rows, self._added_bytes = [], 0, 0
        if self._groups and self._group_rows > 2 * self._groups[0].num_rows:
            self._merge_groups()

    def _merge_groups(self) -> None:
        if len(self._groups) > 1:
            self._groups = [self._newest_of(self._groups)]
            self._group_rows = self._groups[0].num_rows

    def _newest_of(self, tables: Sequence[pa.Table]) -> pa.Table:
        size = sum(table.select(self._keys).nbytes for table in tables)
        if size > _MOST_BYTES or any(table.schema != tables[0].schema for table in tables):
            tables = [table.cast(_with_long_positions(table.schema)) for table in tables]
        rows = pa.concat_tables(tables)
        ranks = np.arange(rows.num_rows)
        order = None
        if self._by_time:
            order = np.lexsort(
                (numbers_of_column(rows["partition"]), numbers_of_column(rows["timestamp"]))
            )
            ranks[order] = np.arange(rows.num_rows)
        grouping = pa.table({"rank": arrow_of(ranks)})
        fixed = {name: _as_fixed(rows[name]) for name in self._keys}
        for name, column in fixed.items():
            grouping = grouping.append_column(name, rows[name] if column is None else column)
        found = grouping.group_by(self._keys, use_threads=False).aggregate([("rank", "max")])
        chosen = numbers_of_column(found["rank_max"])
        if order is not None:
            chosen = order[chosen]
        columns = {
            name: found[name] if column is None else _as_it_was(found[name], rows[name].type)
            for name, column in fixed.items()
        }
        for name in rows.schema.names[len(self._keys) :]:
            columns[name] = arrow_of(numbers_of_column(rows[name])[chosen])
        return pa.table(columns)


def key_names(count: int) -> list[str]:
    return [f"key{number}" for number in range(count)]


def _with_long_positions(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(wide(field.type)) for field in schema])


def wide(kind: pa.DataType) -> pa.DataType:
    """Texts and bytes as Arrow's large types."""
    if types.is_binary(kind):
        return pa.large_binary()
    return pa.large_string() if types.is_string(kind) else kind


# -- keys of one length --------------------------------------------------------------------------


def _as_fixed(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Texts or bytes that are all of one length, as values of that size; None: they are not.

    The memory is the same, and Arrow groups them in half the time.
    """
    kind = column.type
    is_long = types.is_large_binary(kind) or types.is_large_string(kind)
    if column.null_count or not (is_long or types.is_binary(kind) or types.is_string(kind)):
        return None
    dtype = np.dtype(np.int64 if is_long else np.int32)
    chunks: list[pa.Array] = []
    for chunk in column.chunks:
        count = len(chunk)
        if not count:
            continue
        _, positions, data = chunk.buffers()
        ends = np.frombuffer(positions, dtype, count + 1, chunk.offset * dtype.itemsize)
        size = int(ends[1] - ends[0])
        if size in _AS_NUMBERS or (np.diff(ends) != size).any():
            return None
        fixed = pa.binary(size)
        if chunks and chunks[0].type != fixed:
            return None
        values = data.slice(int(ends[0]), count * size)
        chunks.append(pa.Array.from_buffers(fixed, count, [None, values]))
    return pa.chunked_array(chunks) if chunks else None


def _as_it_was(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The opposite of :func:`_as_fixed`."""
    is_long = types.is_large_binary(kind) or types.is_large_string(kind)
    dtype, size = np.int64 if is_long else np.int32, column.type.byte_width
    chunks = []
    for chunk in column.chunks:
        count = len(chunk)
        positions = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=dtype))
        values = chunk.buffers()[1].slice(chunk.offset * size, count * size)
        chunks.append(pa.Array.from_buffers(kind, count, [None, positions, values]))
    return pa.chunked_array(chunks, kind)
