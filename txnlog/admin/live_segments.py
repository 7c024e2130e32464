"""Which segments a topic's log places: the one place where operators' tools ask for them.

Of a whole state (``TopicLog.whole_state``), of which nothing is left to manifests.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from txnlog.state.placement import Segment
from txnlog.state.topic import TopicState

SegmentKey = tuple[int, str]
"""A partition and the name of a segment in it."""


def segments_of(state: TopicState, partition: int) -> Sequence[Segment]:
    """The segments that hold the records of a partition, in order, from the log start on.

    Those of aborted and undecided transactions too.
    """
    assert state.settled is None, "a part of the segments is in manifests"
    return state.partitions[partition].record_segments()


def placed_segments(state: TopicState) -> set[SegmentKey]:
    """All segments that the log refers to, aborted and undecided ones too."""
    return {
        (partition, segment.name)
        for partition in range(len(state.partitions))
        for segment in segments_of(state, partition)
    }


def rewritten_segments(state: TopicState) -> set[SegmentKey]:
    """The segments that held records which others hold now."""
    return {
        (partition, segment.name)
        for partition, part in enumerate(state.partitions)
        if part.rewrites
        for segment in (*part.segments, *(rewrite.segment for rewrite in part.rewrites))
    } - placed_segments(state)


def kept_for_lost(state: TopicState, there: Container[SegmentKey]) -> set[SegmentKey]:
    """The old segments of records whose new one is not there: these are all that is left of them.

    A segment that was just put is not in an older listing either; then nothing is lost by waiting.
    """
    kept: set[SegmentKey] = set()
    for partition, part in enumerate(state.partitions):
        for rewrite in part.rewrites:
            if rewrite.segment.is_empty or (partition, rewrite.segment.name) in there:
                continue
            older = [r.segment for r in part.rewrites if r.entry < rewrite.entry]
            kept |= {
                (partition, old.name)
                for old in (*part.segments, *older)
                if old.base_offset < rewrite.end and old.end_offset > rewrite.start
            }
    return kept


def has_let_go(state: TopicState, partition: int) -> bool:
    """Whether segments that this topic had placed in a partition may be no part of it any more.

    They were trimmed, or rewritten. Else a file that nothing refers to was never placed by it.
    """
    known = state.partitions[partition : partition + 1]
    return any(part.log_start_offset > 0 or part.rewrites for part in known)
