"""Which segments tell the changes between two moments: those of the range, and of what was before.

Compaction leaves out rows that a newer record replaces: of the range, and of what was there at its
start. So segments are taken as they were before any compaction that may have left out something
that counts. Where these are gone, reading says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from txnlog.errors import SnapshotExpired
from txnlog.read.plan import SegmentRange
from txnlog.read.snapshot_token import SnapshotToken
from txnlog.read.time_travel import added_since, pinned_offsets
from txnlog.read.topic_view import PartitionView, PlacedSegments, TopicView
from txnlog.state.segment import Segment


@dataclass(frozen=True, slots=True)
class ChangedRanges:
    """``added`` are the records of a range, ``before`` all of those before it.

    The range is from ``starts`` to ``ends``, by partition; both lists are in the order of
    partitions and offsets.
    """

    before: tuple[SegmentRange, ...]
    added: tuple[SegmentRange, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]


def ranges_since(view: TopicView, token: SnapshotToken) -> ChangedRanges:
    """The ranges of what a view has and a token's snapshot lacks.

    Raises what :func:`added_since` does. OffsetOutOfRange: also if records were deleted that the
    token's snapshot had. SnapshotExpired: keys were purged since, and the snapshot had records.
    """
    pinned = pinned_offsets(token, view.topic, view.topic_id)
    starts = added_since(view, token)
    if view.purge_end > pinned.next_entry and pinned.starts != pinned.ends:
        raise SnapshotExpired(
            f"keys were purged from topic {view.topic!r} since the moment at which the changes "
            "begin: what was done to their rows is not known any more. Take a snapshot with "
            "latest=True, and go on from its token"
        )
    return changed_ranges(
        view, starts, view.end_offsets, first=pinned.starts, entry=pinned.next_entry
    )


def changed_ranges(
    view: TopicView,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    first: Sequence[int] | None = None,
    entry: int | None = None,
) -> ChangedRanges:
    """The ranges between two offsets of each partition, and of what was before.

    ``view`` has both. ``first``: where the log started at the moment of ``starts``; None: where it
    starts now. ``entry``: the first entry of the log after that moment, if it is known: compactions
    since then do not count for what was before.

    Raises OffsetOutOfRange: records from ``first`` on were deleted.
    """
    added = _as_written(view.truncate({**view.end_offsets, **ends}), starts, ends, entry)
    past = []
    for number, now in enumerate(view.partitions):
        end = starts.get(number, 0)
        begin = now.log_start_offset
        if first is not None:
            begin = first[number] if number < len(first) else end
        begin = min(max(begin, now.first_offset), end)
        past.append(PartitionView(begin, end, now.head, now.left_from))
    older = replace(
        view, partitions=tuple(past), compactions_end=_least(view.compactions_end, entry)
    )
    spans = {n: part for n, part in enumerate(past) if part.log_start_offset < part.end_offset}
    before = older.visible_ranges(
        {n: part.log_start_offset for n, part in spans.items()},
        {n: part.end_offset for n, part in spans.items()},
    )
    return ChangedRanges(tuple(before), tuple(added), dict(starts), dict(ends))


def _as_written(
    view: TopicView, starts: Mapping[int, int], ends: Mapping[int, int], entry: int | None
) -> Iterable[SegmentRange]:
    """The ranges from which no compaction has taken a record.

    The newest segments if they are whole; else those before the compactions since an entry, or
    before any, which are there until they are vacuumed.
    """
    spans = {n: (start, ends[n]) for n, start in starts.items() if start < ends[n]}
    for end in dict.fromkeys((view.compactions_end, _least(view.compactions_end, entry), 0)):
        view = replace(view, compactions_end=end)
        placed = view.placed(spans)
        if end == 0 or all(_is_whole(_covering(placed, n), *of) for n, of in spans.items()):
            break
    return view.visible_ranges(
        {n: s for n, (s, _) in spans.items()}, {n: e for n, (_, e) in spans.items()}
    )


def _covering(placed: PlacedSegments, partition: int) -> Sequence[Segment]:
    """A partition's segments, with those of which a purge has left no record.

    No reader is shown the offsets of these.
    """
    purged = [one for one in placed.emptied.get(partition, ()) if one.is_purge]
    segments = placed.segments[partition]
    return sorted((*segments, *purged), key=attrgetter("base_offset")) if purged else segments


def _is_whole(segments: Sequence[Segment], start: int, end: int) -> bool:
    """Whether nothing of these offsets was compacted away."""
    for segment in segments:
        rewritten = segment.stored.rewritten
        if segment.base_offset > start:
            return False  # nothing is left of the records in between
        if rewritten is not None and rewritten.is_compacted and not segment.stored.is_dense:
            return False
        start = segment.end_offset
    return start >= end


def _least(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
