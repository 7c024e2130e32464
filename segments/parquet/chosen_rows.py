"""Reads the rows of a Parquet segment that a choice selects: its own columns first.

Row groups without such rows are not read further, and those that cannot have any not at all.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from txnlog.segments.parquet.footer import RowGroup
from txnlog.segments.parquet.open_segment import Found, ParquetSegment
from txnlog.segments.parquet.reader import RowGroupReading, RowGroupRecords, keep_rows, made_rows
from txnlog.segments.records import RECORD_SCHEMA, Int32Array
from txnlog.segments.schema_columns import Columns, SchemaColumns
from txnlog.segments.segment_file import SizedCall, work_on

_LOOKED_AT_BYTES: Final = 32 << 20
"""How many bytes of these columns, or one row group, are examined at once; then the other columns
of the selected rows are read: the requests of both are in flight together.
"""
_AT_ONCE_BYTES: Final = 512 << 10
"""Other columns of at most this size in a row group are fetched with the examined ones."""


class RowChoice(Protocol):
    """Selects rows of a segment by some of its columns."""

    @property
    def columns(self) -> Columns:
        """The columns that it examines; they need not be among those that are read."""

    def groups(self, segment: ParquetSegment, groups: Sequence[RowGroup]) -> Sequence[RowGroup]:
        """The row groups that may have such rows."""

    def rows(self, found: RowGroupRecords) -> pa.BooleanArray:
        """Whether each row of a piece is selected, by its ``columns``; never null."""


def chosen_calls(
    segment: ParquetSegment,
    groups: Sequence[RowGroup],
    columns: Columns,
    max_uncompressed_bytes: int,
    choice: RowChoice,
) -> Generator[SizedCall[Iterable[RowGroupRecords]]]:
    """Calls that read the selected rows of row groups, in order; nothing for one without any.

    Each call comes with its approximate size in bytes, and may run in any thread.
    """
    for some in _together(segment, choice.groups(segment, groups), choice.columns):
        choosing = _Choosing(segment, some, columns, max_uncompressed_bytes, choice)
        if choosing.is_at_once:
            yield from choosing.whole_calls()
            continue
        looked_at = [found for found in work_on(segment.file, choosing.looking_calls()) if found]
        yield from choosing.other_calls(looked_at)


_Looked: TypeAlias = tuple[RowGroupRecords, pa.BooleanArray]
"""The examined columns of the selected rows, and the rows' numbers in the row group."""


class _Choosing:
    """Reads the examined columns of row groups, and the other columns of selected rows."""

    def __init__(
        self,
        segment: ParquetSegment,
        groups: Sequence[RowGroup],
        columns: Columns,
        max_uncompressed_bytes: int,
        choice: RowChoice,
    ) -> None:
        self._segment = segment
        self._groups = groups
        self._choice = choice
        self._made = None
        stored: Sequence[str] = _names(columns)
        if isinstance(columns, pa.Schema):
            self._made = SchemaColumns(segment.schema, columns)
            stored = self._made.stored
        self._stored = stored
        """The columns of the file of which those that are read are made."""
        self._looking = RowGroupReading(segment, groups, choice.columns, max_uncompressed_bytes)
        looked_at = frozenset(_names(choice.columns))
        rest = _without(columns, looked_at)
        self._others: RowGroupReading | None = None
        if rest:
            self._others = RowGroupReading(segment, groups, rest, max_uncompressed_bytes, few=True)

    @property
    def is_at_once(self) -> bool:
        """Whether all columns are fetched together: all are in memory, or the others are small."""
        if self._segment.data is not None or self._others is None:
            return True
        stored = self._others.stored
        return all(self._segment.stored_bytes(g, stored) <= _AT_ONCE_BYTES for g in self._groups)

    def whole_calls(self) -> Generator[SizedCall[Iterable[RowGroupRecords]]]:
        """The calls that read all columns of each row group."""
        readings = [self._looking, self._others] if self._others else [self._looking]
        for group, found in self._fetch(readings, self._groups):
            size_bytes = sum(reading.size_bytes(group) for reading in readings)
            yield size_bytes, partial(self._choose, group, found)

    def looking_calls(self) -> Generator[SizedCall[_Looked | None]]:
        """The calls that examine the columns of each row group; None: no row is selected."""
        for group, found in self._fetch([self._looking], self._groups):
            yield self._looking.size_bytes(group), partial(self._look, group, found)

    def other_calls(
        self, looked_at: Sequence[_Looked]
    ) -> Generator[SizedCall[Iterable[RowGroupRecords]]]:
        """The calls that read the other columns of row groups with selected rows."""
        assert self._others is not None
        groups = [kept.group for kept, _ in looked_at]
        fetches = self._fetch([self._others], groups)
        for (group, found), looked in zip(fetches, looked_at, strict=True):
            yield self._others.size_bytes(group), partial(self._complete, looked, found)

    def _fetch(
        self, readings: Sequence[RowGroupReading], groups: Sequence[RowGroup]
    ) -> Generator[tuple[RowGroup, Found]]:
        pieces = [
            [piece for reading in readings for piece in self._segment.pieces(group, reading.stored)]
            for group in groups
        ]
        with closing(self._segment.fetch(pieces)) as fetched:
            yield from zip(groups, fetched, strict=True)

    def _choose(self, group: RowGroup, found: Found) -> Iterable[RowGroupRecords]:
        looked = self._look(group, found)
        return [] if looked is None else self._complete(looked, found)

    def _look(self, group: RowGroup, found: Found) -> _Looked | None:
        read = self._looking.decode(group, found)
        rows = pa.concat_arrays([self._choice.rows(piece) for piece in self._looking.made(read)])
        if not rows.true_count:
            return None
        there = read.records.schema.names
        returned = read.records.select([name for name in self._stored if name in there])
        records = keep_rows(returned, rows)
        return RowGroupRecords(group, records, _offset_deltas(read, rows)), rows

    def _complete(self, looked: _Looked, found: Found) -> Iterable[RowGroupRecords]:
        kept, rows = looked
        others = kept.records
        if self._others is not None:
            others = self._others.decode(kept.group, found, rows).records
        kept = _in_order(kept, others, self._stored)
        if self._made is None:
            return [kept]
        pieces = made_rows(self._segment, self._made, kept, rows.true_count)
        first = next(pieces)
        # Several are large: each is made when it is asked for.
        return [first] if first.rows is None else chain([first], pieces)


def _together(
    segment: ParquetSegment, groups: Sequence[RowGroup], columns: Columns
) -> Iterator[Sequence[RowGroup]]:
    """Row groups in order, as many at once as are not too large."""
    some: list[RowGroup] = []
    size_bytes = 0
    for group in groups:
        more = segment.column_bytes(group, columns)
        if some and size_bytes + more > _LOOKED_AT_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append(group)
        size_bytes += more
    if some:
        yield some


def _without(columns: Columns, taken: Container[str]) -> Columns:
    """The columns without some."""
    if isinstance(columns, pa.Schema):
        return pa.schema([field for field in columns if field.name not in taken])
    return [name for name in _names(columns) if name not in taken]


def _names(columns: Columns) -> Sequence[str]:
    if isinstance(columns, pa.Schema):
        names: list[str] = columns.names
        return names
    return RECORD_SCHEMA.names if columns is None else columns


def _offset_deltas(found: RowGroupRecords, rows: pa.BooleanArray) -> Int32Array | None:
    """The offsets of the selected rows; None: all rows, with dense offsets."""
    deltas = found.offset_deltas
    if rows.true_count == len(rows):
        return deltas
    # By numpy this takes a third of the time that Arrow's kernel takes.
    bits = np.unpackbits(np.frombuffer(rows.buffers()[1], np.uint8), bitorder="little")
    kept = bits[rows.offset : rows.offset + len(rows)].view(bool)
    return np.flatnonzero(kept).astype(np.int32) if deltas is None else deltas[kept]


def _in_order(
    kept: RowGroupRecords, others: pa.RecordBatch, names: Sequence[str]
) -> RowGroupRecords:
    """Columns of the selected rows: the examined ones, and the others."""
    if not names:
        return kept
    looked_at = frozenset(kept.records.schema.names)
    sources = [kept.records if name in looked_at else others for name in names]
    pairs = [*zip(sources, names, strict=True)]
    schema = pa.schema([source.schema.field(name) for source, name in pairs])
    arrays = [source.column(name) for source, name in pairs]
    return replace(kept, records=pa.RecordBatch.from_arrays(arrays, schema=schema))
