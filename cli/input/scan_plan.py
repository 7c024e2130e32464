"""Turns a typed range into the scan of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnlog.cli.input.places import Bound, FromEnd, FromStart, Offset, Range, Target, Time

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from txnlog.scan import Scan
    from txnlog.snapshot import Snapshot


def plan_scan(
    snapshot: Snapshot,
    where: Target,
    chosen: Range,
    *,
    row_filter: pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    as_json: bool = True,
    latest: bool = False,
) -> Scan:
    """The records of a range, taken in each partition; of a typed topic with values in JSON.

    Raises UnknownTopicOrPartition; InvalidOption: ``latest`` and the topic has no key.
    """
    from txnlog.names import TopicPartition
    from txnlog.read.topic_view import EARLIEST

    partitions = snapshot.partitions(where.topic)
    if where.partition is None:
        wanted = partitions
    else:
        wanted = [where.partition]
        snapshot.check_partition(TopicPartition(where.topic, where.partition))
    starts = {number: _find_offset(snapshot, where, number, chosen.start) for number in wanted}
    ends = dict.fromkeys(partitions, EARLIEST)
    for number in wanted:
        # If the end lies before the beginning there is simply nothing to read.
        ends[number] = max(_find_offset(snapshot, where, number, chosen.stop), starts[number])
    return snapshot.scan(
        where.topic, starts, ends, columns, filter=row_filter, as_json=as_json, latest=latest
    )


def _find_offset(snapshot: Snapshot, where: Target, partition: int, bound: Bound) -> int:
    """The offset of one end of a range in one partition."""
    from txnlog.names import TopicPartition

    first = snapshot.beginning_offsets(where.topic)[partition]
    last = snapshot.end_offsets(where.topic)[partition]
    match bound:
        case "earliest":
            return first
        case Offset(offset):
            # For a single partition, offsets are clamped: the library refuses those outside.
            return offset if where.partition is not None else min(max(offset, first), last)
        case Time(timestamp_ms):
            found = snapshot.offset_for_time(TopicPartition(where.topic, partition), timestamp_ms)
            return last if found is None else found.offset
        case FromStart(count):
            return min(first + count, last)
        case FromEnd(count):
            return max(last - count, first)
        case _:
            return last
