"""Which segments a topic's log places: the one place where operators' tools ask for them.

Of a whole state (``TopicLog.whole_state``), of which nothing is left to manifests, unless it is
said.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence

from txnlog.log.topic_log import TopicLog
from txnlog.names import OWN_FILE, SHARED, FileKey, SegmentRef
from txnlog.state.placement import Segment
from txnlog.state.rewrites import resolve
from txnlog.state.topic import TopicState, last_appended


def segments_of(state: TopicState, partition: int) -> Sequence[Segment]:
    """The segments that hold the records of a partition, in order, from the log start on.

    Those of aborted and undecided transactions too.
    """
    assert state.settled is None, "a part of the segments is in manifests"
    return state.partitions[partition].record_segments()


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
    found: set[FileKey] = set()
    entries: set[int] = set()
    for partition, segment in segments:
        if segment.position != OWN_FILE:
            if segment.rewritten is not None:
                continue  # placed again, by another entry than the others: vacuum finds it by age
            entries.add(segment.entry)
        found.add(_file_key(partition, segment))
    return sorted(found - _shared_files_of(log, state, entries, starts) if entries else found)


def _shared_files_of(
    log: TopicLog, state: TopicState, entries: Collection[int], starts: Sequence[int]
) -> set[FileKey]:
    """The shared files of some entries in which a segment still holds records of the topic."""
    # All that shares a file was placed by one entry.
    places = log.manifests.in_shared_files(state.settled, state.topic_id, entries, starts)
    places += [
        (number, segment.base_offset, segment.end_offset)
        for number, partition in enumerate(state.partitions)
        for segment in partition.segments
        if segment.position != OWN_FILE and segment.entry in entries
    ]
    spans: dict[int, tuple[int, int]] = {}
    for number, start, end in places:
        if end > starts[number]:
            low, high = spans.get(number, (start, end))
            spans[number] = max(min(low, start), starts[number]), max(high, end)
    return {
        (SHARED, segment.name)
        for segments in log.placed(state, spans).values()
        for segment in segments
        if segment.position != OWN_FILE
    }


def _file_key(partition: int, segment: Segment) -> FileKey:
    return (partition if segment.position == OWN_FILE else SHARED), segment.name


def rewritten_files(topic: str, state: TopicState) -> set[FileKey]:
    """The files of segments that held records which others hold now."""
    held = {
        _file_key(partition, segment)
        for partition, part in enumerate(state.partitions)
        if part.rewrites
        for segment in (*part.segments, *(rewrite.segment for rewrite in part.rewrites))
    }
    return held - placed_files(topic, state) if held else held


def kept_for_lost(state: TopicState, there: Container[FileKey]) -> set[FileKey]:
    """The files of old segments whose new one is not there: they are all that is left of records.

    A segment that was just put is not in an older listing either; then nothing is lost by waiting.
    """
    kept: set[FileKey] = set()
    for partition, part in enumerate(state.partitions):
        # Of those that hold: where a later one stands for it, it may be gone by right.
        for rewrite in resolve(part.rewrites):
            if rewrite.segment.is_empty or _file_key(partition, rewrite.segment) in there:
                continue
            older = [r.segment for r in part.rewrites if r.entry < rewrite.entry]
            kept |= {
                _file_key(partition, old)
                for old in (*part.segments, *older)
                if old.base_offset < rewrite.end and old.end_offset > rewrite.start
            }
    return kept


def kept_for_import(state: TopicState) -> set[FileKey]:
    """The files at the ends of partitions that tell which transactions an import has cut off.

    The next import goes on there; whether the records were merged or compacted since says nothing.
    """
    found = ((n, last_appended(state, n)) for n in range(len(state.partitions)))
    return {_file_key(n, last) for n, last in found if last is not None and last.has_aborted}


def has_let_go(state: TopicState, partition: int) -> bool:
    """Whether segments that this topic had placed in a partition may be no part of it any more.

    They were trimmed, or rewritten. Else a file that nothing refers to was never placed by it.
    SHARED stands for all partitions.
    """
    known = state.partitions
    if partition != SHARED:
        known = known[partition : partition + 1]
    return any(part.log_start_offset > 0 or part.rewrites for part in known)
