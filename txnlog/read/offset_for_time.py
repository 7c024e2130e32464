"""The first offset of a partition at or after a time, and its newest record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnlog.config import check_whole_number
from txnlog.errors import InvalidOption
from txnlog.read.plan import SegmentRange
from txnlog.read.stored_reader import first_at_or_after
from txnlog.read.topic_view import TopicView
from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The offset for a time, and the timestamp (ms) of its record."""

    offset: int
    timestamp: int


def offset_for_time(
    view: TopicView, storage: Storage, partition: int, timestamp_ms: int
) -> OffsetAndTimestamp | None:
    """The first record of a partition at or after a time; None if there is none.

    Reads only segments whose newest record is not older. Raises InvalidOption,
    UnknownTopicOrPartition.
    """
    view.check_partition(partition)
    check_whole_number(timestamp_ms, "a time (milliseconds since the epoch)", InvalidOption)
    pinned = view.partitions[partition]
    start, end = {partition: pinned.log_start_offset}, {partition: pinned.end_offset}
    for part in view.visible_ranges(start, end):
        if part.segment.stored.max_timestamp_ms >= timestamp_ms:
            found = first_at_or_after(storage, part, timestamp_ms)
            if found is not None:
                return OffsetAndTimestamp(*found)
    return None


def newest_record(view: TopicView, storage: Storage, partition: int) -> OffsetAndTimestamp | None:
    """The record of a partition with the greatest time, the first of several; None if empty.

    Reads a piece of one segment, of more only if its newest records are not visible. Raises
    UnknownTopicOrPartition.
    """
    view.check_partition(partition)
    pinned = view.partitions[partition]
    parts = view.visible_ranges(
        {partition: pinned.log_start_offset}, {partition: pinned.end_offset}
    )
    found = _find_newest(storage, parts)
    return None if found is None else OffsetAndTimestamp(*found)


def _find_newest(storage: Storage, parts: Iterable[SegmentRange]) -> tuple[int, int] | None:
    """Offset and time (ms) of the record with the greatest time, the first of several, or None.

    Reads a piece of one segment; of more only if a segment's newest records are not visible.
    """
    best: tuple[int, int] | None = None  # newest first, then by offset
    ordered = sorted(
        parts, key=lambda part: (-part.segment.stored.max_timestamp_ms, part.start_offset)
    )
    for part in ordered:
        if best is not None and best < (-part.segment.stored.max_timestamp_ms, part.start_offset):
            continue  # all of its records are older, or as new and later
        found = _find_newest_of(storage, part)
        if found is not None:
            here = (-found[1], found[0])
            best = here if best is None else min(best, here)
    return None if best is None else (best[1], -best[0])


def _find_newest_of(storage: Storage, part: SegmentRange) -> tuple[int, int] | None:
    segment = part.segment
    found = first_at_or_after(storage, part, segment.stored.max_timestamp_ms)
    if found is not None:
        return found
    # Only a part is read, or it has aborted records: bisect for the greatest time that some record
    # reaches.
    found = first_at_or_after(storage, part, segment.stored.min_timestamp_ms)
    beyond = segment.stored.max_timestamp_ms
    while found is not None and (at := found[1] + 1) < beyond:
        middle = (at + beyond) // 2
        later = first_at_or_after(storage, part, middle)
        if later is None:
            beyond = middle
        else:
            found = later
    return found
