"""Entries of manifests for very many files at once: of whole segments, as the log describes them.

The ranges of a pinned topic are taken as columns: as objects a hundred thousand take 150 MB and 300
ms, as columns a tenth of both. Their entries are the bytes that ``iceberg_manifests`` makes of one
file after the other, in a twentieth of the time: each field is a column of bytes, and entries are
the columns joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.config import TopicConfig
from txnlog.log.manifest_table import ManifestTable
from txnlog.names import OWN_FILE, PARQUET_ENDING, topic_data_folder
from txnlog.read.plan import SegmentRange
from txnlog.read.topic_view import TopicView
from txnlog.segments.arrays import arrow_of, numbers_of, text_array
from txnlog.state.segment import Segment
from txnlog.tables.avro import NULL, SOME, number, text
from txnlog.tables.iceberg_manifests import DATA, Format
from txnlog.tables.latest_view import ROWS_EACH

Ints: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class RangeTable:
    """The visible ranges of a view: the settled ones first, then the others.

    Every column has one value for each.
    """

    entries: Ints
    partitions: Ints
    start_offsets: Ints
    stop_offsets: Ints
    is_cut: Flags
    """Whether some of the segment's offsets are not visible."""
    record_counts: Ints
    """Of the whole segment."""
    sizes_bytes: Ints
    names: pa.Array
    base_offsets: Ints
    """Of the whole segment."""
    least_times_ms: Ints
    largest_times_ms: Ints
    has_own_file: Flags
    """Whether the segment is a Parquet file of its own."""
    _view: TopicView
    _settled: ManifestTable | None
    _newest: Sequence[tuple[int, Segment]]

    @classmethod
    def of(cls, view: TopicView) -> RangeTable:
        """All ranges that a view shows; no segment is touched.

        Raises OffsetOutOfRange, UnknownTopicOrPartition, CorruptEntry.
        """
        found = view.placed_rows()
        settled = _visible(found.rows, view)
        starts = np.array([*view.beginning_offsets.values()], np.int64)
        ends = np.array([*view.end_offsets.values()], np.int64)
        newest = [
            (number, segment)
            for number, segments in found.segments.items()
            for segment in segments
            if segment.entry not in view.hidden_entries
        ]
        columns = _Columns.of_segments(newest)
        if settled is not None:
            columns = _Columns.of_rows(settled).followed_by(columns)
        first = np.maximum(columns.bases, starts[columns.partitions])
        stop = np.minimum(columns.ends, ends[columns.partitions])
        return cls(
            entries=columns.entries,
            partitions=columns.partitions,
            start_offsets=first,
            stop_offsets=stop,
            is_cut=(first > columns.bases) | (stop < columns.ends),
            record_counts=columns.record_counts,
            sizes_bytes=columns.sizes_bytes,
            names=columns.names,
            base_offsets=columns.bases,
            least_times_ms=columns.least_times_ms,
            largest_times_ms=columns.largest_times_ms,
            has_own_file=columns.is_alone & _end_with(columns.names, PARQUET_ENDING),
            _view=view,
            _settled=settled,
            _newest=newest,
        )

    def ranges(self, rows: Sequence[int]) -> list[SegmentRange]:
        """The ranges in some rows of the table, as plans have them."""
        first_new = 0 if self._settled is None else len(self._settled)
        segments: dict[int, Segment] = {}
        old = [row for row in rows if row < first_new]
        if old and self._settled is not None:
            chosen = ManifestTable(self._settled.table.take(arrow_of(np.array(old, np.int64))))
            segments = dict(zip(old, chosen.segments(), strict=True))
        view = self._view
        log_append_time = TopicConfig.of(view.config).log_append_time
        found = []
        for row in rows:
            segment = segments[row] if row < first_new else self._newest[row - first_new][1]
            found.append(
                SegmentRange(
                    view.topic,
                    int(self.partitions[row]),
                    segment,
                    int(self.start_offsets[row]),
                    int(self.stop_offsets[row]),
                    log_append_time,
                    view.topic_id,
                    view.hides_aborted and segment.stored.has_aborted,
                )
            )
        return found


_UNNEEDED = ["at_ms", "time_before_ms", "topic_time_ms", "transactional_id"]
"""What manifests have beside their segments."""


def _visible(rows: Sequence[ManifestTable], view: TopicView) -> ManifestTable | None:
    if not rows:
        return None
    pieces = [part.table.drop_columns(_UNNEEDED) for part in rows]
    table = ManifestTable(pa.concat_tables(pieces).combine_chunks())
    shown = np.ones(len(table), np.bool_)
    if view.hides_aborted:
        shown &= ~table.is_aborted()
    if view.hidden_entries:
        shown &= ~np.isin(table.ints("entry"), np.fromiter(view.hidden_entries, np.int64))
    return table.where(shown)


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    entries: Ints
    partitions: Ints
    bases: Ints
    ends: Ints
    record_counts: Ints
    sizes_bytes: Ints
    least_times_ms: Ints
    largest_times_ms: Ints
    is_alone: Flags
    """Whether it has a file of its own that is none of Kafka's."""
    names: pa.Array

    @classmethod
    def of_rows(cls, rows: ManifestTable) -> _Columns:
        return cls(
            rows.ints("entry"),
            rows.ints("partition"),
            rows.ints("base_offset"),
            rows.end_offsets(),
            rows.ints("record_count"),
            rows.ints("size_bytes"),
            rows.ints("min_timestamp_ms"),
            rows.ints("max_timestamp_ms"),
            (rows.ints("position") == OWN_FILE) & ~rows.is_of_kafka(),
            _one_chunk(rows.table.column("name")),
        )

    @classmethod
    def of_segments(cls, placed: Sequence[tuple[int, Segment]]) -> _Columns:
        segments = [segment for _, segment in placed]

        def ints(values: Iterable[int]) -> Ints:
            return np.fromiter(values, np.int64, len(segments))

        return cls(
            ints(segment.entry for segment in segments),
            ints(number for number, _ in placed),
            ints(segment.base_offset for segment in segments),
            ints(segment.end_offset for segment in segments),
            ints(segment.stored.record_count for segment in segments),
            ints(segment.stored.size_bytes for segment in segments),
            ints(segment.stored.min_timestamp_ms for segment in segments),
            ints(segment.stored.max_timestamp_ms for segment in segments),
            np.fromiter(map(_is_alone, segments), np.bool_, len(segments)),
            text_array([segment.stored.name for segment in segments]),
        )

    def followed_by(self, other: _Columns) -> _Columns:
        joined = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])
            for name in self.__slots__
            if name != "names"
        }
        return _Columns(**joined, names=pa.concat_arrays([self.names, other.names]))


def _is_alone(segment: Segment) -> bool:
    return segment.stored.position == OWN_FILE and segment.stored.kafka is None


def _end_with(texts: pa.Array, ending: str) -> Flags:
    return numbers_of(pc.ends_with(texts, pattern=ending).cast(pa.uint8())).astype(np.bool_)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


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
        """Which rows have a plain entry: whole segments in their own files, with usable times."""
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
