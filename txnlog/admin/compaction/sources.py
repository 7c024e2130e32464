"""A partition's segments as compaction sees them."""

from __future__ import annotations

from txnlog.admin.compaction.cleanable import SegmentFacts
from txnlog.admin.compaction.cleaner import Source
from txnlog.admin.compaction.tombstones import NO_TOMBSTONES
from txnlog.admin.live_segments import segments_of
from txnlog.config import TopicConfig
from txnlog.read.segment_ranges import SegmentRange
from txnlog.state.placement import Segment
from txnlog.state.topic import TopicState


def sources_of(topic: str, state: TopicState, partition: int) -> list[Source]:
    """The segments of a partition from its log start on, in the order of offsets.

    ``state`` is whole: nothing of it is left to manifests. What was aborted has no records to read.
    """
    assert state.topic_id is not None
    log_start = state.partitions[partition].log_start_offset
    log_append_time = TopicConfig.of(state.config).log_append_time
    aborted = set(state.aborted)
    return [
        Source(
            _facts_of(segment),
            None
            if segment.entry in aborted
            else SegmentRange(
                topic,
                partition,
                segment,
                max(segment.base_offset, log_start),
                segment.end_offset,
                log_append_time,
                state.topic_id,
                segment.has_aborted,
            ),
        )
        for segment in segments_of(state, partition)
    ]


def _facts_of(segment: Segment) -> SegmentFacts:
    rewritten = segment.rewritten
    return SegmentFacts(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        min_timestamp_ms=segment.min_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
        is_clean=rewritten is not None and rewritten.is_compacted,
        delete_horizon_ms=NO_TOMBSTONES if rewritten is None else rewritten.delete_horizon_ms,
    )
