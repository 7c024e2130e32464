"""Which segments hold the records at some offsets, after appends, merges and compaction.

Records are in the segments that were appended, or in others once they were merged or compacted;
settled ones are in manifests, which are read only if the offsets reach back that far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txnlog.errors import OffsetOutOfRange, SnapshotExpired
from txnlog.log.manifests import Manifests
from txnlog.state.manifest import ManifestList, ManifestRef, Settled
from txnlog.state.segment import (
    Rewrite,
    Segment,
    emptied_segments,
    first_ignored,
    held_segments,
    not_rewritten,
    overlapping,
    resolve,
)
from txnlog.state.topic import TopicState

if TYPE_CHECKING:
    from txnlog.log.manifest_table import ManifestTable

Spans = Mapping[int, tuple[int, int]]
"""Offsets [start, end) by partition."""


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """A partition as the state itself holds it, from ``first_offset`` on; the rest is settled.

    The segments that were appended, in order, and the rewrites, in the order of entries, of all
    entries before ``next_entry``.
    """

    first_offset: int
    segments: Sequence[Segment]
    rewrites: Sequence[Rewrite]
    next_entry: int

    @classmethod
    def of(cls, state: TopicState, number: int) -> PartitionHead:
        """A copy of a state's partition."""
        part = state.partitions[number]
        return cls(part.head_offset, tuple(part.segments), tuple(part.rewrites), state.next_entry)


@dataclass(slots=True)
class PlacedRecords:
    """Segments by partition, in order, and which of the settled entries among them were aborted.

    ``rows`` are segments that were asked for as rows of manifests, instead. ``emptied`` are, in
    order, those without records, which say that nothing is left of their offsets.
    """

    segments: dict[int, list[Segment]] = field(default_factory=dict)
    aborted: frozenset[int] = frozenset()
    rows: list[ManifestTable] = field(default_factory=list)
    emptied: dict[int, list[Segment]] = field(default_factory=dict)


def find_records(
    manifests: Manifests,
    settled: Settled | None,
    topic_id: str | None,
    heads: Mapping[int, PartitionHead],
    spans: Spans,
    view_ends: Mapping[int, int] | None = None,
    unfinished: Mapping[int, Sequence[int]] | None = None,
    rewrites_end: int | None = None,
    compactions_end: int | None = None,
    purge_end: int = 0,
    *,
    as_rows: bool = False,
) -> PlacedRecords:
    """The segments that hold the records at some offsets.

    ``topic_id``: of the topic that was read. ``heads``: the parts of these partitions that the
    state itself holds. ``view_ends``: by partition, where the view ends that they are looked up
    for, if it is one. ``unfinished``: by partition, where appends begin that must not show though
    they are committed. Rewrites that would hide or show the wrong record for it are ignored: the
    segments they replaced still exist. Rewrites from entry ``rewrites_end`` on are ignored, too:
    they may lack columns; and by partition those from the first one on that leaves out records
    since ``compactions_end``. ``purge_end``: the entry after the topic's last purge. ``as_rows``:
    settled segments that were not rewritten are only in ``rows`` of the result, the aborted ones
    among them: as objects a hundred thousand take 100 MB.

    Raises OffsetOutOfRange: records were deleted since the offsets were chosen.
    UnknownTopicOrPartition: the topic was deleted since. SnapshotExpired: records were purged after
    a rewrite of these offsets that is ignored; or what it has replaced is not known any more.
    CorruptEntry: a manifest is damaged.
    """
    back = {
        number: (start, min(end, heads[number].first_offset))
        for number, (start, end) in spans.items()
        if start < min(end, heads[number].first_offset)
    }
    rewrites: dict[int, list[Rewrite]] = {number: [] for number in spans}
    for number in spans:
        rewrites[number] += heads[number].rewrites

    ends, hidden = view_ends or {}, unfinished or {}

    def hold(
        known: Mapping[int, Sequence[Rewrite]], left_out: Mapping[int, int]
    ) -> dict[int, list[Rewrite]]:
        held = {}
        for number, of_number in known.items():
            # A newer list may have some that came later.
            last = heads[number].next_entry
            first = first_ignored(
                of_number,
                ends.get(number),
                hidden.get(number, ()),
                last if rewrites_end is None else min(last, rewrites_end),
                compactions_end,
            )
            if first is not None:
                ignored = [r for r in of_number if r.entry >= first and r.overlaps(*spans[number])]
                _check_not_purged(manifests.topic, number, ignored, purge_end)
                _check_known(manifests.topic, number, ignored, left_out.get(number, -1))
                of_number = [rewrite for rewrite in of_number if rewrite.entry < first]
            held[number] = resolve(of_number)
        return held

    def look_back(listing: ManifestList) -> tuple[dict[int, list[Rewrite]], PlacedRecords]:
        assert settled is not None
        _check_log_starts(manifests.topic, listing, back)
        known = {number: [*of_partition] for number, of_partition in rewrites.items()}
        for rewrite in manifests.rewrites(listing, Settled(0, listing.end), back):
            if rewrite.partition in back:
                known[rewrite.partition].append(rewrite)
        held = hold(known, listing.rewrites.left_out if listing.rewrites else {})
        wanted = {number: not_rewritten(held[number], *span) for number, span in back.items()}
        return held, _find_appended(manifests, listing, settled, wanted, as_rows=as_rows)

    found = None
    if back:
        found = manifests.read(settled, topic_id, look_back)
    if found is None:
        found = hold(rewrites, {}), PlacedRecords()
    held, older = found
    placed = PlacedRecords({}, older.aborted, older.rows)
    for number, (start, end) in spans.items():
        head = heads[number]
        segments = placed.segments[number] = older.segments.get(number, [])
        for low, high in not_rewritten(held[number], max(start, head.first_offset), end):
            segments += overlapping(head.segments, low, high)
        rewritten = held_segments(held[number], start, end)
        if rewritten:
            segments += rewritten
            segments.sort(key=lambda segment: segment.base_offset)
        if emptied := emptied_segments(held[number], start, end):
            placed.emptied[number] = emptied
    return placed


def _check_not_purged(
    topic: str, partition: int, ignored: Iterable[Rewrite], purge_end: int
) -> None:
    """Raise SnapshotExpired if a purge came after a rewrite that a view ignores.

    The view would read the old segments, which may still have records of the purged keys.
    """
    if any(rewrite.entry < purge_end for rewrite in ignored):
        raise SnapshotExpired(
            f"{topic}:{partition} was compacted since the moment that is read, or rewritten after "
            "its columns were changed, and then keys were purged: what else was there at that "
            "moment is not known any more. Take a new snapshot"
        )


def _check_known(topic: str, partition: int, ignored: Iterable[Rewrite], left_out: int) -> None:
    """Raises SnapshotExpired if what a view ignores has replaced rewrites that were left out.

    Without those the segments before them would be taken, beside others that were made with them.
    ``left_out``: see :class:`RewriteRef`.
    """
    if any(rewrite.entry <= left_out for rewrite in ignored):
        raise SnapshotExpired(
            f"{topic}:{partition} was compacted since the moment that is read, so long ago that "
            "where its records were then is not known any more. Take a new snapshot"
        )


def ignored_rewrites(
    manifests: Manifests,
    settled: Settled | None,
    topic_id: str | None,
    heads: Mapping[int, PartitionHead],
    view_ends: Mapping[int, int],
) -> dict[int, list[Rewrite]]:
    """By partition, the rewrites that a view ignores: it ends before what they have seen.

    ``heads`` and ``view_ends``: see :func:`find_records`. Raises UnknownTopicOrPartition: the topic
    was deleted since. CorruptEntry: a manifest list, or the file of rewrites, is damaged.
    """
    known = {number: [*heads[number].rewrites] for number in view_ends}
    back = {
        number: (0, heads[number].first_offset)
        for number, end in view_ends.items()
        if end < heads[number].first_offset  # settled rewrites have seen nothing beyond
    }

    def look_back(listing: ManifestList) -> Sequence[Rewrite]:
        assert settled is not None
        return manifests.rewrites(listing, settled, back)

    older = manifests.read(settled, topic_id, look_back) if back else None
    for rewrite in older or ():
        if rewrite.partition in back:
            known[rewrite.partition].append(rewrite)
    ignored = {}
    for number, end in view_ends.items():
        first = first_ignored(known[number], end, ())
        if first is not None:
            ignored[number] = [rewrite for rewrite in known[number] if rewrite.entry >= first]
    return ignored


def count_bytes(
    manifests: Manifests,
    settled: Settled | None,
    topic_id: str | None,
    heads: Mapping[int, PartitionHead],
    spans: Spans,
) -> dict[int, int]:
    """The total size, by partition, of the segments that :func:`find_records` finds.

    For most manifests the list has it, so they are not read. Arguments and errors are the same.
    """
    back = {
        number: (start, min(end, heads[number].first_offset))
        for number, (start, end) in spans.items()
    }

    def look_back(listing: ManifestList) -> tuple[dict[int, list[Rewrite]], dict[int, int]]:
        assert settled is not None
        _check_log_starts(manifests.topic, listing, back)
        known = {number: [*heads[number].rewrites] for number in spans}
        for rewrite in manifests.rewrites(listing, settled, back):
            if rewrite.partition in known:
                known[rewrite.partition].append(rewrite)
        held = {number: resolve(of_partition) for number, of_partition in known.items()}
        wanted = {number: not_rewritten(held[number], *span) for number, span in back.items()}
        return held, _count_appended(manifests, listing, settled, wanted)

    found = manifests.read(settled, topic_id, look_back)
    if found is None:
        found = {n: resolve(heads[n].rewrites) for n in spans}, dict.fromkeys(spans, 0)
    held, sums = found
    for number, (start, end) in spans.items():
        head = heads[number]
        segments = held_segments(held[number], start, end)
        for low, high in not_rewritten(held[number], max(start, head.first_offset), end):
            segments += overlapping(head.segments, low, high)
        sums[number] += sum(segment.stored.size_bytes for segment in segments)
    return sums


def _count_appended(
    manifests: Manifests,
    listing: ManifestList,
    settled: Settled,
    spans: Mapping[int, Sequence[tuple[int, int]]],
) -> dict[int, int]:
    """How large the settled segments at these offsets are. Raises ObjectNotFound."""
    sums = dict.fromkeys(spans, 0)
    unclear: list[ManifestRef] = []
    for ref in listing.manifests:
        if not ref.touches(spans):
            continue
        if ref.end_entry > settled.end or not ref.lies_within(spans):
            unclear.append(ref)
            continue
        for of_partition in ref.spans or ():
            if of_partition.partition in sums:
                sums[of_partition.partition] += of_partition.size_bytes
    for table in manifests.tables(unclear, settled):
        for partition, rows in table.by_partition():
            for start, end in spans.get(partition, ()):
                sums[partition] += int(rows.overlapping(partition, start, end).size_bytes())
    return sums


def _check_log_starts(topic: str, listing: ManifestList, spans: Spans) -> None:
    """Raises OffsetOutOfRange if records of these offsets were deleted."""
    for partition, (start, _) in spans.items():
        log_start = listing.log_start_offsets.get(partition, 0)
        if start < log_start:  # even if the state had not folded that in yet
            raise OffsetOutOfRange(
                f"{topic}:{partition} is read from offset {start}, but the records "
                f"below {log_start} were deleted meanwhile: read again"
            )


def _find_appended(
    manifests: Manifests,
    listing: ManifestList,
    settled: Settled,
    spans: Mapping[int, Sequence[tuple[int, int]]],
    *,
    as_rows: bool,
) -> PlacedRecords:
    """The settled segments that were appended at these offsets. Raises ObjectNotFound."""
    found: dict[int, list[Segment]] = {partition: [] for partition in spans}
    chosen_rows: list[ManifestTable] = []
    aborted: set[int] = set()
    touched = [ref for ref in listing.manifests if ref.touches(spans)]
    for table in manifests.tables(touched, settled):
        chosen = (
            table.by_partition() if len(spans) > 1 else ((partition, table) for partition in spans)
        )
        for partition, rows in chosen:
            for start, end in spans.get(partition, ()):
                wanted = rows.overlapping(partition, start, end)
                if as_rows:
                    chosen_rows.append(wanted)
                    continue
                found[partition] += wanted.segments()
                aborted |= wanted.aborted_entries()
    return PlacedRecords(found, frozenset(aborted), chosen_rows)
