"""A partition's segments as compaction sees them."""

from __future__ import annotations

from collections.abc import Container, Sequence

from txnlog.admin.compaction.cleanable import SegmentFacts
from txnlog.admin.compaction.cleaner import SourceSegment
from txnlog.admin.compaction.tombstones import NO_TOMBSTONES
from txnlog.read.segment_ranges import SegmentRange
from txnlog.read.topic_view import TopicView
from txnlog.state.segment import Segment


def sources_of(
    view: TopicView, partition: int, segments: Sequence[Segment], hidden_entries: Container[int]
) -> list[SourceSegment]:
    """The segments that hold a partition's records, from its log start on, with their facts.

    Segments placed by ``hidden_entries`` were aborted: they have no records to read.
    """
    log_start = view.partitions[partition].log_start_offset
    return [
        SourceSegment(
            _facts_of(segment),
            None
            if segment.entry in hidden_entries
            else SegmentRange(
                view.topic,
                partition,
                segment,
                max(segment.base_offset, log_start),
                segment.end_offset,
                topic_id=view.topic_id,
                hides_aborted=segment.stored.has_aborted,
            ),
        )
        for segment in segments
    ]


def _facts_of(segment: Segment) -> SegmentFacts:
    rewritten = segment.stored.rewritten
    return SegmentFacts(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.stored.size_bytes,
        min_timestamp_ms=segment.stored.min_timestamp_ms,
        max_timestamp_ms=segment.stored.max_timestamp_ms,
        is_clean=rewritten is not None and rewritten.is_compacted,
        delete_horizon_ms=NO_TOMBSTONES if rewritten is None else rewritten.delete_horizon_ms,
    )
