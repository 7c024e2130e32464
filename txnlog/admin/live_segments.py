"""Which segments a topic's log places: the one place where operators' tools ask for them.

Of a whole state (``TopicLog.whole_state``), of which nothing is left to manifests, unless it is
said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from txnlog.log.topic_log import TopicLog
from txnlog.names import OWN_FILE, SHARED, FileKey, SegmentRef
from txnlog.state.placement import Segment
from txnlog.state.topic import TopicState


def segments_of(state: TopicState, partition: int) -> Sequence[Segment]:
    """The segments of a partition in the order of their offsets, from the log start on."""
    assert state.settled is None, "a part of the segments is in manifests"
    return state.partitions[partition].segments


def placed_refs(topic: str, state: TopicState) -> Iterator[tuple[SegmentRef, Segment]]:
    """All segments that the log refers to, aborted and undecided ones too, and where they lie."""
    for partition in range(len(state.partitions)):
        for segment in segments_of(state, partition):
            yield SegmentRef(topic, partition, segment.name, segment.position), segment


def placed_files(topic: str, state: TopicState) -> set[FileKey]:
    """The files of these segments. One that several share is placed as long as one of them is."""
    return {ref.file_key for ref, _ in placed_refs(topic, state)}


def files_let_go(
    log: TopicLog, state: TopicState, segments: Iterable[tuple[int, Segment]], starts: Sequence[int]
) -> list[FileKey]:
    """The files that nothing refers to any more when segments are let go.

    Of a file that several share, only if none of the others is a part of the topic either.

    Args:
        log: the topic's.
        state: the log's, as it is before; a part of it may be in manifests.
        segments: what is let go, by partition.
        starts: by partition, where it begins then.

    Raises CorruptEntry, StorageError.
    """
    shared: dict[FileKey, int] = {}
    found: set[FileKey] = set()
    for partition, segment in segments:
        ref = SegmentRef(log.name, partition, segment.name, segment.position)
        found.add(ref.file_key)
        if ref.position != OWN_FILE:
            shared[ref.file_key] = segment.entry
    if shared:
        kept = {
            (SHARED, segment.name)
            for start, partition in zip(starts, state.partitions, strict=True)
            for segment in partition.segments
            if segment.position != OWN_FILE and segment.end_offset > start
        }
        # What shares a file was placed by one entry.
        entries = {*shared.values()}
        settled = log.manifests.shared_files(state.settled, state.topic_id, entries, starts)
        found -= kept | {(SHARED, name) for name in settled}
    return sorted(found)


def has_let_go(state: TopicState, partition: int) -> bool:
    """Whether segments that this topic had placed in a partition may be no part of it any more.

    Else a file that nothing refers to was never placed by it. SHARED stands for all partitions.
    """
    known = state.partitions
    if partition != SHARED:
        known = known[partition : partition + 1]
    return any(part.log_start_offset > 0 for part in known)
