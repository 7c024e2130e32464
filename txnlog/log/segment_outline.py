"""The positions of a partition's segments, in arrays: for pictures of very many of them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from txnlog.log.manifest_table import ManifestTable
from txnlog.log.topic_log import TopicLog
from txnlog.state.segment import Segment


@dataclass(frozen=True, slots=True)
class SegmentOutline:
    """The segments that hold a partition's records, in the order of their offsets.

    ``aborted`` and ``undecided`` say of which transactions they are.
    """

    base_offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    end_offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    aborted: np.ndarray[tuple[int], np.dtype[np.bool_]]
    undecided: np.ndarray[tuple[int], np.dtype[np.bool_]]
    names: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.base_offsets)

    @classmethod
    def of_rows(cls, rows: ManifestTable) -> SegmentOutline:
        """The outline of the segments in a manifest."""
        return cls(
            rows.ints("base_offset"),
            rows.end_offsets(),
            rows.is_aborted(),
            np.zeros(len(rows), np.bool_),
            rows.table.column("name"),
        )

    @classmethod
    def of_segments(
        cls, segments: Sequence[Segment], aborted: Container[int], undecided: Container[int]
    ) -> SegmentOutline:
        """The outline of segments that a state itself holds."""
        return cls(
            np.array([segment.base_offset for segment in segments], np.int64),
            np.array([segment.end_offset for segment in segments], np.int64),
            np.array([segment.entry in aborted for segment in segments], np.bool_),
            np.array([segment.entry in undecided for segment in segments], np.bool_),
            pa.chunked_array([[segment.stored.name for segment in segments]], pa.string()),
        )

    @classmethod
    def concat(cls, parts: Sequence[SegmentOutline]) -> SegmentOutline:
        """Several as one, in the order of offsets."""
        bases = np.concatenate([part.base_offsets for part in parts])
        order = np.argsort(bases, kind="stable")
        chunks = [chunk for part in parts for chunk in part.names.chunks]
        names = pa.chunked_array(chunks, pa.string())
        in_order = bool((order[1:] > order[:-1]).all())
        return cls(
            bases[order],
            np.concatenate([part.end_offsets for part in parts])[order],
            np.concatenate([part.aborted for part in parts])[order],
            np.concatenate([part.undecided for part in parts])[order],
            names if in_order else names.take(pa.array(order)),
        )


def outline_partition(log: TopicLog, number: int) -> SegmentOutline:
    """The positions of the segments that hold a partition's records, as the log was last read.

    Raises OffsetOutOfRange, UnknownTopicOrPartition, CorruptEntry as ``find_records`` does.
    """
    with log.lock:
        state = log.state
        state.check_partitions(log.name, [number])
        partition = state.partitions[number]
        spans = {number: (partition.log_start_offset, partition.end_offset)}
        found = log.find_records(state, spans, as_rows=True)
        newest = SegmentOutline.of_segments(
            found.segments[number], frozenset(state.aborted), state.undecided
        )
        return SegmentOutline.concat([*map(SegmentOutline.of_rows, found.rows), newest])
