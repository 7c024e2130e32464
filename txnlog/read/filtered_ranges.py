"""Which segments a filter may match, judged by the log's facts about their records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING

from txnlog.read.filtered_reads import known_of
from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import SegmentRange

if TYPE_CHECKING:
    from txnlog.read.row_filter import Known

_TOGETHER = 32
"""How many adjacent ranges are judged as one before each is judged by itself."""


def matching_ranges(parts: Sequence[SegmentRange], columns: ScanColumns) -> Sequence[SegmentRange]:
    """The ranges in which a scan's filter may keep rows, by offsets, times, partitions.

    No segment is read.
    """
    row_filter = columns.row_filter
    if row_filter is None:
        return parts
    looked_at = columns.looked_at
    if not known_of(looked_at, 0, (0, 0), (0, 0)):
        return parts if row_filter.can_match([{}]) == [True] else []
    groups = [parts[at : at + _TOGETHER] for at in range(0, len(parts), _TOGETHER)]
    # A group may span several partitions: then these facts are unknown.
    matching = row_filter.can_match([_known(group, looked_at) for group in groups])
    left = [part for group in compress(groups, matching) for part in group]
    return [*compress(left, row_filter.can_match([_known([part], looked_at) for part in left]))]


def _known(parts: Sequence[SegmentRange], columns: ScanColumns) -> Known:
    """The facts known about the records of several ranges together."""
    offsets = min(p.start_offset for p in parts), max(p.stop_offset for p in parts) - 1
    least_ms = min(part.segment.stored.min_timestamp_ms for part in parts)
    most_ms = max(part.segment.stored.max_timestamp_ms for part in parts)
    partitions = {part.partition for part in parts}
    known = known_of(columns, min(partitions), offsets, (least_ms, most_ms))
    if len(partitions) > 1:
        known = {n: b for n, b in known.items() if columns.meaning(n) != "partition"}
    return known
