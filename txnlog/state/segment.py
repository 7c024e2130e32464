"""Segments of a topic: what each is, and its place in entries and in the state. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from txnlog.limits import (
    BaseOffset,
    Checksum,
    Counter,
    CounterOrNone,
    FileBytes,
    FilePosition,
    HorizonMs,
    Offset,
    OffsetCount,
    PartitionCountOrNone,
    PartitionNumber,
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

    Or of one in a shared file that a rewriter which slept has placed again.

    It stands for ``offset_count`` offsets, and may have gaps; without records there is no file.
    ``is_compacted``: of each key it holds at most the newest record before its end.
    ``delete_horizon_ms`` is the time from which its tombstones may go; -1: it holds none.
    ``judged_end``: for what it leaves out there are newer records, all of them before this offset.
    ``home_partitions``: each of its keys is where murmur2 puts it among so many partitions; 0: not
    known. ``purged_from``: a purge has written it, or a merge of compacted ones, of segments of
    which this entry has placed the newest; or one that slept has placed it again, as what this
    entry has placed; -1: none of these.
    """

    offset_count: OffsetCount
    is_compacted: bool = False
    delete_horizon_ms: HorizonMs = -1
    judged_end: Offset = 0
    home_partitions: PartitionCountOrNone = 0
    purged_from: CounterOrNone = -1


class StoredSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a segment is, wherever it is placed. Times in ms, sizes in bytes.

    ``tag`` is what each of its batches carries; -1 for none. ``position`` is where it begins in a
    file that it shares with others; OWN_FILE if it shares none.
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
        """What stands for offsets of which no record is left: there is no file."""
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
        """The offset behind the segment's last one."""
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
        """The offset behind its last one."""
        return self.base_offset + self.stored.offset_count

    @property
    def is_purge(self) -> bool:
        """Whether a purge has written it, say, or it was placed again: as it stands it counts."""
        return self.stored.rewritten is not None and self.stored.rewritten.purged_from >= 0

    @property
    def source_entry(self) -> int:
        """The entry that has placed it; if a purge has, the newest one of what it was made of.

        A purge leaves a segment as compacted as it was; so does a merge of compacted ones. Of one
        that was placed again, the first.
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
