"""Applies a scan's filter: to segments by their facts, in Parquet files before all is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from txnlog.read.json_records import json_pieces
from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import SegmentRange
from txnlog.segments.parquet.footer import RowGroup
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.parquet.reader import RowGroupRecords
from txnlog.segments.parquet.statistics import ValueRange, value_ranges
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.schema_columns import Columns

if TYPE_CHECKING:
    from txnlog.read.row_filter import Known


class FileChoice:
    """The rows of a Parquet file that a filter keeps, for ``read_chosen``.

    ``assemble`` builds the columns that the filter needs from a batch of stored ones. ``offsets``
    are those that are read, and ``offset_shift`` is what is added to the file's to get them.
    """

    def __init__(
        self,
        columns: ScanColumns,
        partition: int,
        offsets: range,
        offset_shift: int,
        assemble: Callable[[SegmentBatch], pa.RecordBatch],
    ) -> None:
        assert columns.row_filter is not None
        self._columns = columns.looked_at
        self._filter = columns.row_filter
        self._partition = partition
        self._offsets = offsets
        self._offset_shift = offset_shift
        self._assemble = assemble
        self._stored = self._columns.stored

    @property
    def columns(self) -> Columns:
        """The stored ones of the columns that the filter needs."""
        return self._stored

    def groups(self, segment: ParquetSegment, groups: Sequence[RowGroup]) -> list[RowGroup]:
        """The row groups that the footer does not rule out."""
        known = [self._known(segment, group) for group in groups]
        matching = self._filter.can_match(known)
        return [group for group, matches in zip(groups, matching, strict=True) if matches]

    def rows(self, found: RowGroupRecords) -> pa.BooleanArray:
        """Which of the rows the filter keeps, of those that are read.

        Raises InvalidOption if it fails.
        """
        header, deltas = found.group.header, found.offset_deltas
        rows = range(header.record_count) if found.rows is None else found.rows
        batch = SegmentBatch(
            header=header,
            position=found.group.position,
            records=found.records,
            record_count=len(rows),
            first_offset=header.base_offset + (rows.start if deltas is None else int(deltas[0])),
            offset_deltas=deltas,
        )
        ends = self._offsets.start - self._offset_shift, self._offsets.stop - self._offset_shift
        start, stop = (int(row) for row in np.searchsorted(batch.offsets(), ends))
        if start == stop:
            return pa.repeat(False, len(rows))
        inside = iter([batch.slice(start, stop - start)])
        pieces = json_pieces(inside) if self._columns.as_json else inside
        kept = [self._filter.rows(self._assemble(piece)) for piece in pieces]
        outside = pa.repeat(False, start), pa.repeat(False, len(rows) - stop)
        return pa.concat_arrays([outside[0], *kept, outside[1]])

    def _known(self, segment: ParquetSegment, group: RowGroup) -> dict[str, ValueRange]:
        header = group.header
        offsets = (n + self._offset_shift for n in (header.base_offset, header.last_offset))
        least_ms, most_ms = header.base_timestamp_ms, header.max_timestamp_ms
        known = known_of(self._columns, self._partition, tuple(offsets), (least_ms, most_ms))
        stored = self._stored
        if self._columns.as_json or not isinstance(stored, pa.Schema):
            return known
        own = {
            at: self._columns.field(field.name)
            for at, field in zip(segment.names_of(stored), stored, strict=True)
            if at is not None and field.name not in known
        }
        return {**known, **value_ranges(segment, group.number, own)}


def known_of(
    columns: ScanColumns,
    partition: int,
    offsets: tuple[int, ...],
    timestamps_ms: tuple[int, int],
) -> dict[str, ValueRange]:
    """The facts about the columns with positions and times, by the least and the largest.

    If the largest time is -1 they may be unknown.
    """
    microseconds = tuple(time * 1000 for time in timestamps_ms) if timestamps_ms[1] >= 0 else ()
    told = {"partition": (partition, partition), "offset": offsets, "timestamp": microseconds}
    known = {}
    for name in columns.names:
        ends = told.get(columns.meaning(name), ())
        if ends and all(-(1 << 63) <= end < 1 << 63 for end in ends):
            kind = columns.field(name).type
            least, most = (pa.scalar(end, kind) for end in ends)
            known[name] = ValueRange(least, most, 0, 1)
    return known


def keep_rows(batches: Iterator[pa.RecordBatch], columns: ScanColumns) -> Iterator[pa.RecordBatch]:
    """The rows that the filter keeps, with only the requested columns."""
    assert columns.row_filter is not None
    names = [*columns.names]
    for batch in batches:
        kept = batch.filter(columns.row_filter.rows(batch))
        if kept.num_rows:
            yield kept.select(names)


_TOGETHER = 32
"""How many adjacent ranges are judged as one before each is judged by itself."""


def matching_ranges(parts: Sequence[SegmentRange], columns: ScanColumns) -> Sequence[SegmentRange]:
    """The ranges in which a scan's filter may keep rows, by offsets, times, partitions.

    No segment is read.
    """
    row_filter = columns.row_filter
    if row_filter is None:
        return parts
    looked_at = columns.looked_at
    if not known_of(looked_at, 0, (0, 0), (0, 0)):
        return parts if row_filter.can_match([{}]) == [True] else []
    groups = [parts[at : at + _TOGETHER] for at in range(0, len(parts), _TOGETHER)]
    # A group may span several partitions: then these facts are unknown.
    matching = row_filter.can_match([_known(group, looked_at) for group in groups])
    left = [part for group in compress(groups, matching) for part in group]
    return [*compress(left, row_filter.can_match([_known([part], looked_at) for part in left]))]


def _known(parts: Sequence[SegmentRange], columns: ScanColumns) -> Known:
    """The facts known about the records of several ranges together."""
    offsets = min(p.start_offset for p in parts), max(p.stop_offset for p in parts) - 1
    least_ms = min(part.segment.stored.min_timestamp_ms for part in parts)
    most_ms = max(part.segment.stored.max_timestamp_ms for part in parts)
    partitions = {part.partition for part in parts}
    known = known_of(columns, min(partitions), offsets, (least_ms, most_ms))
    if len(partitions) > 1:
        known = {n: b for n, b in known.items() if columns.meaning(n) != "partition"}
    return known
