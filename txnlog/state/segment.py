"""Segments of a topic: what each is, its place in entries and in the state, and rewrites. Pure.

Rewrites are other segments in place of those that were appended, for the same offsets. Merging and
compaction put one entry that says, for offsets of partitions, which segments hold their records
from then on. Appends stay facts of the log: who wrote them, under which sequence, in which
transaction. So only readers of records look at rewrites.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import msgspec

from txnlog.errors import CorruptEntry
from txnlog.limits import (
    MOST_STATE_BYTES,
    AnyNumber,
    BaseOffset,
    Checksum,
    Counter,
    CounterOrNone,
    FileBytes,
    FilePosition,
    HorizonMs,
    Name,
    Offset,
    OffsetCount,
    PartitionCountOrNone,
    PartitionNumber,
    PerPartition,
    ProducerEpoch,
    ProducerId,
    RecordCount,
    SegmentName,
    SequenceNumber,
    TimeMs,
)
from txnlog.names import OWN_FILE
from txnlog.segments.batch_header import NO_CRC, NO_TAG, SegmentIdentity


class KafkaFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The additional facts of a segment from Kafka.

    The offsets in the file are the topic's own and may have gaps: it stands for ``offset_count``
    of them. ``aborted_count`` transactions in its transaction index hide records of it;
    ``aborted_crc`` is the CRC-32C of that index, whose format has none. ``first_crc`` is the
    checksum in the header of its first batch.
    """

    offset_count: OffsetCount
    aborted_count: RecordCount = 0
    aborted_crc: Checksum = 0
    first_crc: Checksum = NO_CRC


class RewrittenFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The additional facts of a segment written by merging, compaction or a purge.

    They also belong to a segment in a shared file that a rewriter which slept has placed again.

    It stands for ``offset_count`` offsets, and may have gaps; without records there is no file.
    ``is_compacted``: of each key it holds at most the newest record before its end.
    ``delete_horizon_ms`` is the time from which its tombstones may go; -1: it holds none.
    ``judged_end``: each record that was left out has a newer one before this offset.
    ``home_partitions``: each of its keys is in the partition that murmur2 gives it among this many;
    0: not known. ``purged_from``: a purge has written it, or a merge of compacted ones, of segments
    of which this entry has placed the newest; or one that slept has placed it again, as what this
    entry has placed; -1: none of these.
    """

    offset_count: OffsetCount
    is_compacted: bool = False
    delete_horizon_ms: HorizonMs = -1
    judged_end: Offset = 0
    home_partitions: PartitionCountOrNone = 0
    purged_from: CounterOrNone = -1


class StoredSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment, wherever it is placed. Times in ms, sizes in bytes.

    ``tag`` is a number in each of its batches; -1 for none. ``position`` is where it begins in a
    file that it shares with others; OWN_FILE if it has a file of its own.
    """

    name: SegmentName
    record_count: RecordCount
    size_bytes: FileBytes
    min_timestamp_ms: TimeMs
    max_timestamp_ms: TimeMs
    batch_count: RecordCount = 1
    tag: Checksum = NO_TAG
    position: FilePosition = OWN_FILE
    kafka: KafkaFile | None = None
    rewritten: RewrittenFile | None = None

    @classmethod
    def emptied(cls, rewritten: RewrittenFile) -> StoredSegment:
        """A segment without a file, for offsets of which a rewrite has left no record."""
        return cls("", 0, 0, -1, -1, 0, rewritten=rewritten)

    @property
    def offset_count(self) -> int:
        """How many offsets it stands for."""
        special = self.kafka or self.rewritten
        return special.offset_count if special else self.record_count

    @property
    def is_empty(self) -> bool:
        """Whether no record is left in its place, so that there is no file."""
        return self.rewritten is not None and self.record_count == 0

    @property
    def is_dense(self) -> bool:
        """Whether it certainly holds a record for each of its offsets."""
        return self.kafka is None and self.offset_count == self.record_count

    @property
    def has_aborted(self) -> bool:
        """Whether it holds records that were aborted in Kafka."""
        return self.kafka is not None and self.kafka.aborted_count > 0


class SegmentEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place that an entry of a topic's log gives to one segment."""

    partition: PartitionNumber
    base_offset: BaseOffset
    stored: StoredSegment
    base_sequence: SequenceNumber = -1

    @property
    def end_offset(self) -> int:
        """The offset after the segment's last one."""
        return self.base_offset + self.stored.offset_count


class Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A placed segment as the state keeps it: its place, and the entry that gave it.

    ``transaction`` is the number of its transaction among those of the producer; -1 for none.
    """

    entry: Counter
    base_offset: BaseOffset
    stored: StoredSegment
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: SequenceNumber
    transaction: CounterOrNone = -1

    @classmethod
    def of(
        cls,
        entry: int,
        place: SegmentEntry,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transaction: int = -1,
    ) -> Segment:
        """The segment that entry ``entry`` has placed."""
        return cls(
            entry,
            place.base_offset,
            place.stored,
            producer_id,
            producer_epoch,
            place.base_sequence,
            transaction,
        )

    @property
    def end_offset(self) -> int:
        """The offset after the segment's last one."""
        return self.base_offset + self.stored.offset_count

    @property
    def is_purge(self) -> bool:
        """Whether a purge has written it, say, or it was placed again: as it stands it counts."""
        return self.stored.rewritten is not None and self.stored.rewritten.purged_from >= 0

    @property
    def source_entry(self) -> int:
        """The entry that placed it; after a purge, the newest entry that placed a source of it.

        A purge leaves a segment as compacted as it was; so does a merge of compacted ones. If it
        was placed again, the first entry counts.
        """
        special = self.stored.rewritten
        return special.purged_from if special is not None and self.is_purge else self.entry

    @property
    def offset_shift(self) -> int:
        """The number added to an offset in the file to get the topic's."""
        return 0 if self.stored.kafka else self.base_offset

    @property
    def identity(self) -> SegmentIdentity:
        """The identity of its file."""
        if (kafka := self.stored.kafka) is not None:
            return SegmentIdentity(self.base_offset, self.end_offset, first_crc=kafka.first_crc)
        return SegmentIdentity(0, self.stored.offset_count, self.stored.tag)


def overlapping(segments: Sequence[Segment], start: int, end: int) -> Sequence[Segment]:
    """The segments of a partition that hold any offset of [start, end), in order."""
    if start >= end:
        return ()  # also inside of one
    first = bisect_right(segments, start, key=lambda segment: segment.base_offset) - 1
    found = []
    for segment in segments[max(first, 0) :]:
        if segment.base_offset >= end:
            break
        if segment.end_offset > start:
            found.append(segment)
    return found


class Rewritten(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="rewritten"):
    """From now on these segments hold records: they were merged, or compacted.

    Each covers the offsets from its base to its end; one without records covers offsets of which
    none is left. Its writer has seen that all of the old segments are decided, and still hold these
    records. ``purges``: of what readers were shown some keys are gone. An entry of its own would
    say so before the last moment at which they are there, or might never come.
    """

    nonce: Name
    at_ms: TimeMs
    segments: Annotated[tuple[SegmentEntry, ...], AnyNumber]
    purges: bool = False


class Rewrite(msgspec.Struct, frozen=True, array_like=True):
    """A segment that holds records of a partition since its entry, put at ``at_ms``."""

    at_ms: TimeMs
    partition: PartitionNumber
    segment: Segment

    @property
    def entry(self) -> int:
        return self.segment.entry

    @property
    def start(self) -> int:
        return self.segment.base_offset

    @property
    def end(self) -> int:
        return self.segment.end_offset

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and self.end > start

    def is_compaction_since(self, entry: int) -> bool:
        """Whether it may have left out records that existed before an entry."""
        special = self.segment.stored.rewritten
        return self.segment.source_entry >= entry and special is not None and special.is_compacted

    def holds_for(self, view_end: int | None, unfinished: Iterable[int]) -> bool:
        """Whether it applies to a view of the partition up to an offset (None: the log's end).

        ``unfinished``: where appends begin that the view hides, though they are committed. Not if a
        newer record of a key, for which an older one was left out, is not in the view; nor if it
        holds records that must not show: then the replaced segments apply.
        """
        special = self.segment.stored.rewritten
        judged_end = special.judged_end if special else 0
        seen = max(self.end, judged_end)
        shows_all = view_end is None or judged_end <= view_end
        return shows_all and not any(self.start <= at < seen for at in unfinished)


class RewriteFile(msgspec.Struct, frozen=True, tag_field="kind", tag="rewrites"):
    """A topic's settled rewrites, in the order of entries."""

    most_bytes: ClassVar[int] = MOST_STATE_BYTES

    topic_id: Name
    rewrites: Annotated[tuple[Rewrite, ...], AnyNumber]


class RewriteRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A manifest list's description of its file of rewrites.

    ``spans`` are, by partition, the offsets [start, end) within which all its rewrites lie.
    ``left_out`` is for partitions whose replaced rewrites were left out: the newest entry that may
    have replaced one of them. A reader that ignores that entry cannot tell which segments it
    replaced.
    """

    name: Name
    size_bytes: FileBytes
    spans: Annotated[dict[PartitionNumber, tuple[Offset, Offset]], PerPartition]
    left_out: Annotated[dict[PartitionNumber, Counter], PerPartition] = {}

    def touches(self, offsets: Iterable[tuple[int, tuple[int, int]]]) -> bool:
        """Whether the file may have rewrites of any of these (partition, [start, end))."""
        return any(
            partition in self.spans
            and start < self.spans[partition][1]
            and end > self.spans[partition][0]
            for partition, (start, end) in offsets
        )


REWRITE_FILE_DECODER: msgspec.json.Decoder[RewriteFile] = msgspec.json.Decoder(RewriteFile)


def first_ignored(
    rewrites: Sequence[Rewrite],
    view_end: int | None,
    unfinished: Sequence[int],
    rewrites_end: int | None = None,
    compactions_end: int | None = None,
) -> int | None:
    """The entry from which on no rewrite of a partition applies to a view; None: all apply.

    It is the first with one that does not apply: see :meth:`Rewrite.holds_for`. Nor do those in
    entry ``rewrites_end`` or later, and compactions in entry ``compactions_end`` or later, if these
    are given. Then the others of its entry and later ones do not either. Only together do the
    segments of an entry cover those they were made of, so a part of them would show records twice;
    and the remaining ones are those in force at some moment.
    """
    return min(
        (
            rewrite.entry
            for rewrite in rewrites
            if not rewrite.holds_for(view_end, unfinished)
            or (rewrites_end is not None and rewrite.entry >= rewrites_end)
            or (compactions_end is not None and rewrite.is_compaction_since(compactions_end))
        ),
        default=None,
    )


def resolve(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """The rewrites of one partition that are in force, in the order of offsets.

    A later one replaces those that it overlaps. Together those of an entry cover another wholly or
    not at all, as they are made of whole segments; the first of them may have been trimmed.
    """
    held: list[Rewrite] = []
    for rewrite in sorted(rewrites, key=lambda rewrite: rewrite.entry):
        first = bisect_right(held, rewrite.start, key=lambda known: known.end)
        last = bisect_left(held, rewrite.end, key=lambda known: known.start)
        held[first:last] = [rewrite]
    return held


def within(held: Sequence[Rewrite], start: int, end: int) -> Sequence[Rewrite]:
    """The results of :func:`resolve` that hold any offset of [start, end)."""
    if start >= end:
        return ()  # also inside of one
    first = bisect_left(held, start, key=lambda known: known.end)
    while first < len(held) and held[first].end <= start:
        first += 1
    last = bisect_left(held, end, key=lambda known: known.start)
    return held[first:last]


def not_rewritten(held: Sequence[Rewrite], start: int, end: int) -> list[tuple[int, int]]:
    """The offsets of [start, end) that no rewrite covers, as spans in order."""
    spans = []
    for rewrite in within(held, start, end):
        if start < rewrite.start:
            spans.append((start, rewrite.start))
        start = rewrite.end
    if start < end:
        spans.append((start, end))
    return spans


def records_in(
    segments: Sequence[Segment], rewrites: Iterable[Rewrite], start: int, end: int
) -> list[Segment]:
    """The segments of a partition that hold the records of [start, end), in order.

    ``segments``: all that were appended there, in order. ``rewrites``: all of the partition.
    """
    held = resolve(rewrites)
    if not held:
        return [*overlapping(segments, start, end)]
    found: list[Segment] = []
    for low, high in not_rewritten(held, start, end):
        found += overlapping(segments, low, high)
    found += held_segments(held, start, end)
    return sorted(found, key=lambda segment: segment.base_offset)


def held_segments(held: Sequence[Rewrite], start: int, end: int) -> list[Segment]:
    """The segments of :func:`resolve` that hold records of [start, end)."""
    found = (rewrite.segment for rewrite in within(held, start, end))
    return [segment for segment in found if not segment.stored.is_empty]


def emptied_segments(held: Sequence[Rewrite], start: int, end: int) -> list[Segment]:
    """Those of :func:`resolve` that say that no record of their offsets is left."""
    found = (rewrite.segment for rewrite in within(held, start, end))
    return [one for one in found if one.stored.is_empty and one.base_offset < one.end_offset]


def untrimmed(rewrites: Iterable[Rewrite], starts: Sequence[int]) -> list[Rewrite]:
    """The rewrites that do not lie below the log start offsets, in their order.

    Raises CorruptEntry: the topic has no such partition.
    """
    found = []
    for rewrite in rewrites:
        if rewrite.partition >= len(starts):
            raise CorruptEntry(
                f"the topic's rewrites are damaged: one is of partition {rewrite.partition}, and "
                f"there are {len(starts)}; restore its folder manifests/ from a backup"
            )
        if rewrite.end > starts[rewrite.partition]:
            found.append(rewrite)
    return found


def still_of_use(
    rewrites: Iterable[Rewrite], starts: Sequence[int], since_ms: int
) -> tuple[list[Rewrite], dict[int, int]]:
    """A topic's rewrites that are in force, and those that were replaced not long ago.

    Readers that are pinned to an earlier moment read the segments of that time. A purge stays until
    another one replaces it: its records must show to nobody, whatever else a reader ignores.

    ``rewrites``: in the order of entries; those below ``starts`` are dropped, and those that were
    replaced before ``since_ms``. Returns the others; and by partition of which some were replaced
    and dropped, the newest entry that may have replaced one. Raises what :func:`untrimmed` does.
    """
    # By partition, the spans of those in force for long enough: no two spans touch.
    in_order = sorted(untrimmed(rewrites, starts), key=lambda rewrite: rewrite.entry)
    replaced: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    purged: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    kept = []
    newest: dict[int, int] = {}
    dropped = set()
    for rewrite in reversed(in_order):
        is_purge = rewrite.segment.is_purge
        spans = (purged if is_purge else replaced)[rewrite.partition]
        # What covers the offsets below may have been trimmed.
        start = max(rewrite.start, starts[rewrite.partition])
        if not _covers(spans, start, rewrite.end):
            kept.append(rewrite)
            if rewrite.at_ms < since_ms:
                newest.setdefault(rewrite.partition, rewrite.entry)
                for ended in (replaced, purged) if is_purge else (replaced,):
                    _cover(ended[rewrite.partition], start, rewrite.end)
        else:
            dropped.add(rewrite.partition)
    return kept[::-1], {partition: newest[partition] for partition in sorted(dropped)}


def _covers(spans: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    at = bisect_right(spans, start, key=lambda span: span[0]) - 1
    return at >= 0 and end <= spans[at][1]


def _cover(spans: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a span to others, and join those that touch."""
    first = bisect_left(spans, start, key=lambda span: span[1])
    stop = bisect_right(spans, end, key=lambda span: span[0])
    if first < stop:
        start, end = min(start, spans[first][0]), max(end, spans[stop - 1][1])
    spans[first:stop] = [(start, end)]
