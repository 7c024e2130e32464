"""All ranges of a pinned topic as columns: for very many of them, of which few are looked at.

As objects a hundred thousand ranges take 150 MB and 300 ms, as columns a tenth of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.config import TopicConfig
from txnlog.log.manifest_table import ManifestTable
from txnlog.names import OWN_FILE, PARQUET_ENDING
from txnlog.read.plan import SegmentRange
from txnlog.read.topic_view import TopicView
from txnlog.segments.number_arrays import arrow_of, numbers_of, text_array
from txnlog.state.segment import Segment

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
        """Some of them as they can be read, by their numbers here."""
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
