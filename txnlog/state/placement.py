"""Placed segments of a topic: in the form of entries, and of the state. Pure."""

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
from txnlog.segments.identity import NO_CRC, NO_TAG, SegmentIdentity


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
    """The additional facts of a segment written by merging or compaction.

    It stands for ``offset_count`` offsets, and may have gaps; without records there is no file.
    ``is_compacted``: of each key it holds at most the newest record before its end.
    ``delete_horizon_ms`` is the time from which its tombstones may go; -1: it holds none.
    ``judged_end``: for what it leaves out there are newer records, all of them before this offset.
    ``home_partitions``: each of its keys is where murmur2 puts it among so many partitions; 0: not
    known.
    """

    offset_count: OffsetCount
    is_compacted: bool = False
    delete_horizon_ms: HorizonMs = -1
    judged_end: Offset = 0
    home_partitions: PartitionCountOrNone = 0


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place that an entry gives to one uploaded segment. Times in ms, sizes in bytes.

    ``tag`` is what each of its batches carries; -1 for none. ``position`` is where it begins in a
    file that it shares with others; OWN_FILE if it shares none.
    """

    partition: PartitionNumber
    name: SegmentName
    base_offset: BaseOffset
    record_count: RecordCount
    size_bytes: FileBytes
    min_timestamp_ms: TimeMs
    max_timestamp_ms: TimeMs
    batch_count: RecordCount = 1
    base_sequence: SequenceNumber = -1
    kafka: KafkaFile | None = None
    tag: Checksum = NO_TAG
    rewritten: RewrittenFile | None = None
    position: FilePosition = OWN_FILE

    @property
    def end_offset(self) -> int:
        """The offset behind the segment's last one."""
        special = self.kafka or self.rewritten
        return self.base_offset + (special.offset_count if special else self.record_count)


class Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A placed segment as the state keeps it: its placement and the entry that placed it.

    ``transaction`` is the number of its transaction among those of the producer; -1 for none.
    """

    entry: Counter
    name: SegmentName
    base_offset: BaseOffset
    record_count: RecordCount
    size_bytes: FileBytes
    min_timestamp_ms: TimeMs
    max_timestamp_ms: TimeMs
    batch_count: RecordCount
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: SequenceNumber
    transaction: CounterOrNone = -1
    kafka: KafkaFile | None = None
    tag: Checksum = NO_TAG
    rewritten: RewrittenFile | None = None
    position: FilePosition = OWN_FILE

    @property
    def end_offset(self) -> int:
        special = self.kafka or self.rewritten
        return self.base_offset + (special.offset_count if special else self.record_count)

    @property
    def is_empty(self) -> bool:
        """Whether no record is left in its place, so that there is no file."""
        return self.rewritten is not None and self.record_count == 0

    @property
    def is_dense(self) -> bool:
        """Whether it certainly holds a record for each of its offsets."""
        return self.kafka is None and self.end_offset - self.base_offset == self.record_count

    @property
    def offset_shift(self) -> int:
        """The number added to an offset in the file to get the topic's."""
        return 0 if self.kafka else self.base_offset

    @property
    def identity(self) -> SegmentIdentity:
        """The identity of its file."""
        if self.kafka is not None:
            return SegmentIdentity(
                self.base_offset, self.end_offset, first_crc=self.kafka.first_crc
            )
        return SegmentIdentity(0, self.end_offset - self.base_offset, self.tag)

    @property
    def has_aborted(self) -> bool:
        """Whether it holds records that were aborted in Kafka."""
        return self.kafka is not None and self.kafka.aborted_count > 0


def placed_segment(
    entry: int,
    place: Placement,
    producer_id: int = -1,
    producer_epoch: int = -1,
    transaction: int = -1,
) -> Segment:
    """The segment that entry ``entry`` has placed, as the state keeps it."""
    return Segment(
        entry,
        place.name,
        place.base_offset,
        place.record_count,
        place.size_bytes,
        place.min_timestamp_ms,
        place.max_timestamp_ms,
        place.batch_count,
        producer_id,
        producer_epoch,
        place.base_sequence,
        transaction,
        place.kafka,
        place.tag,
        place.rewritten,
        place.position,
    )


def placement_of(partition: int, segment: Segment) -> Placement:
    """The place that a segment has, as an entry gives it."""
    return Placement(
        partition=partition,
        name=segment.name,
        base_offset=segment.base_offset,
        record_count=segment.record_count,
        size_bytes=segment.size_bytes,
        min_timestamp_ms=segment.min_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
        batch_count=segment.batch_count,
        kafka=segment.kafka,
        tag=segment.tag,
        rewritten=segment.rewritten,
        position=segment.position,
    )


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
