"""The segments that a topic's log places, for operators' tools.

From a whole state (``TopicLog.whole_state``), with nothing in manifests, unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from txnlog.log.topic_log import TopicLog
from txnlog.names import OWN_FILE, SHARED, FileKey, SegmentRef
from txnlog.state.segment import Segment, resolve
from txnlog.state.topic import TopicState, last_appended


def segments_of(state: TopicState, partition: int) -> Sequence[Segment]:
    """The segments that hold the records of a partition, in order, from the log start on.

    Those of aborted and undecided transactions too.
    """
    assert state.settled is None, "a part of the segments is in manifests"
    return state.partitions[partition].record_segments()


def placed_refs(topic: str, state: TopicState) -> Iterator[tuple[SegmentRef, Segment]]:
    """All segments that the log refers to, aborted and undecided ones too, with their files."""
    for partition in range(len(state.partitions)):
        for segment in segments_of(state, partition):
            yield (
                SegmentRef(topic, partition, segment.stored.name, segment.stored.position),
                segment,
            )


def placed_since(topic: str, state: TopicState, entry: int) -> Iterator[tuple[SegmentRef, Segment]]:
    """The segments that entries from this one on have placed, as far as they are not settled."""
    for number, part in enumerate(state.partitions):
        rewritten = [rewrite.segment for rewrite in part.rewrites if rewrite.entry >= entry]
        for segment in (*(one for one in part.segments if one.entry >= entry), *rewritten):
            if not segment.stored.is_empty:
                stored = segment.stored
                yield SegmentRef(topic, number, stored.name, stored.position), segment


def placed_files(topic: str, state: TopicState) -> set[FileKey]:
    """The files of these segments. A shared file is placed as long as one of its segments is."""
    return {ref.file_key for ref, _ in placed_refs(topic, state)}


def files_let_go(
    log: TopicLog, state: TopicState, segments: Iterable[tuple[int, Segment]], starts: Sequence[int]
) -> list[FileKey]:
    """The files to which nothing refers any more once segments (by partition) are released.

    A shared file only if none of its other segments belongs to the topic either. ``state`` is the
    one before, of which a part may be in manifests; ``starts`` are the log start offsets after it.
    Raises CorruptEntry, StorageError.
    """
    found: set[FileKey] = set()
    entries: set[int] = set()
    for partition, segment in segments:
        if segment.stored.position != OWN_FILE:
            if segment.stored.rewritten is not None:
                continue  # placed again, by another entry than the others: vacuum finds it by age
            entries.add(segment.entry)
        found.add(file_key(partition, segment))
    return sorted(found - _shared_files_of(log, state, entries, starts) if entries else found)


def _shared_files_of(
    log: TopicLog, state: TopicState, entries: Collection[int], starts: Sequence[int]
) -> set[FileKey]:
    """The shared files of some entries in which a segment still holds records of the topic."""
    # All segments of a file were placed by one entry.
    places = log.manifests.in_shared_files(state.settled, state.topic_id, entries, starts)
    places += [
        (number, segment.base_offset, segment.end_offset)
        for number, partition in enumerate(state.partitions)
        for segment in partition.segments
        if segment.stored.position != OWN_FILE and segment.entry in entries
    ]
    spans: dict[int, tuple[int, int]] = {}
    for number, start, end in places:
        if end > starts[number]:
            low, high = spans.get(number, (start, end))
            spans[number] = max(min(low, start), starts[number]), max(high, end)
    return {
        (SHARED, segment.stored.name)
        for segments in log.placed(state, spans).values()
        for segment in segments
        if segment.stored.position != OWN_FILE
    }


def file_key(partition: int, segment: Segment) -> FileKey:
    """The identity of a segment's files within its topic."""
    return (partition if segment.stored.position == OWN_FILE else SHARED), segment.stored.name


def rewritten_files(topic: str, state: TopicState) -> set[FileKey]:
    """The files of segments that were replaced by others."""
    held = {
        file_key(partition, segment)
        for partition, part in enumerate(state.partitions)
        if part.rewrites
        for segment in (*part.segments, *(rewrite.segment for rewrite in part.rewrites))
    }
    return held - placed_files(topic, state) if held else held


def kept_for_lost(
    state: TopicState, there: Collection[FileKey], left_out: Mapping[int, int]
) -> set[FileKey]:
    """The files of old segments whose replacement is missing: the only copies of the records.

    A segment that was just put is not in an older listing (``there``) either; then waiting loses
    nothing. ``left_out`` is by partition an entry that may have replaced rewrites which the state
    lacks by now: then nothing tells which of the files was theirs.
    """
    kept: set[FileKey] = set()
    for partition, part in enumerate(state.partitions):
        # Only those in force: a rewrite that was replaced itself may rightly be gone.
        for rewrite in resolve(part.rewrites):
            if rewrite.segment.stored.is_empty or file_key(partition, rewrite.segment) in there:
                continue
            if rewrite.entry <= left_out.get(partition, -1):
                kept |= {key for key in there if key[0] in (partition, SHARED)}
            older = [r.segment for r in part.rewrites if r.entry < rewrite.entry]
            kept |= {
                file_key(partition, old)
                for old in (*part.segments, *older)
                if old.base_offset < rewrite.end and old.end_offset > rewrite.start
            }
    return kept


def kept_for_import(state: TopicState) -> set[FileKey]:
    """The files at the ends of partitions that record which transactions an import has truncated.

    The next import continues there, whether the records were merged or compacted since or not.
    """
    found = ((n, last_appended(state, n)) for n in range(len(state.partitions)))
    return {file_key(n, last) for n, last in found if last is not None and last.stored.has_aborted}


def has_let_go(state: TopicState, partition: int) -> bool:
    """Whether this topic may have released segments of a partition: by a trim or a rewrite.

    Otherwise a file to which nothing refers was never placed by it. SHARED means all partitions.
    """
    known = state.partitions
    if partition != SHARED:
        known = known[partition : partition + 1]
    return any(part.log_start_offset > 0 or part.rewrites for part in known)
