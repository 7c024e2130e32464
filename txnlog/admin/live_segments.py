"""Which segments a topic's log places: the one place where operators' tools ask for them.

Of a whole state (``TopicLog.whole_state``), of which nothing is left to manifests.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnlog.state.placement import Segment
from txnlog.state.topic import TopicState

SegmentKey = tuple[int, str]
"""A partition and the name of a segment in it."""


def segments_of(state: TopicState, partition: int) -> Sequence[Segment]:
    """The segments of a partition in the order of their offsets, from the log start on."""
    assert state.settled is None, "a part of the segments is in manifests"
    return state.partitions[partition].segments


def placed_segments(state: TopicState) -> set[SegmentKey]:
    """All segments that the log refers to, aborted and undecided ones too."""
    return {
        (partition, segment.name)
        for partition in range(len(state.partitions))
        for segment in segments_of(state, partition)
    }


def has_let_go(state: TopicState, partition: int) -> bool:
    """Whether segments that this topic had placed in a partition may be no part of it any more.

    Else a file that nothing refers to was never placed by it.
    """
    known = state.partitions[partition : partition + 1]
    return any(part.log_start_offset > 0 for part in known)
