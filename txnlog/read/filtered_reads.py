"""Applies a scan's filter: in Parquet files before the other columns are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from txnlog.read.json_records import json_pieces
from txnlog.read.schema import ScanColumns
from txnlog.segments.parquet.footer import RowGroup
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.parquet.reader import RowGroupRecords
from txnlog.segments.parquet.statistics import ValueRange, value_ranges
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.schema_columns import Columns


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
