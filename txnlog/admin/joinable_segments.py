"""Choose which adjacent segments become one: for merging, compaction and purges. Pure.

No segment is joined with less data than it holds itself, as in a log-structured merge tree. So each
join at least doubles the segment that a record is in, and rewrites it only a few times in all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from txnlog.config import TopicConfig
from txnlog.limits import NEVER_MS

LEAST_SEGMENTS = 4
"""The fewest segments that are worth it."""
_PER_RETENTION = 8
"""By what factor they are smaller, in bytes and time, than what retention keeps, since it deletes
whole segments.
"""
_ANY_BYTES = (1 << 63) - 1


def joining_limits(config: TopicConfig) -> tuple[int, int, int]:
    """Limits of segments that become one: bytes, and milliseconds between their records.

    The last is of milliseconds between the newest records of each: retention goes by these alone,
    so records that come late keep nothing apart.
    """
    most_bytes, newest_ms = retention_limits(config)
    return min(config.segment_bytes, most_bytes), config.segment_ms, newest_ms


def retention_limits(config: TopicConfig) -> tuple[int, int]:
    """The limits of bytes and of newest times that retention sets; see :func:`joining_limits`."""
    most_bytes, newest_ms = _ANY_BYTES, NEVER_MS
    if config.deletes and config.retention_bytes >= 0:
        most_bytes = config.retention_bytes // _PER_RETENTION
    if config.deletes and config.retention_ms >= 0:
        newest_ms = config.retention_ms // _PER_RETENTION
    return most_bytes, newest_ms


def worth_joining(record_counts: Sequence[int]) -> list[range]:
    """The parts of a run of segments to join: none has one with more than half of its records.

    Bytes would not tell: each segment has some of its own, which are left out of what is joined.
    Those without any, as all was aborted, are joined with what is around them.
    """
    counts = np.array(record_counts, dtype=np.int64)
    ends = np.cumsum([0, *record_counts])
    waiting, found = [(0, len(record_counts))], []
    while waiting:
        low, high = waiting.pop()
        while low < high and not counts[low]:
            low += 1
        while low < high and not counts[high - 1]:
            high -= 1
        if high - low < LEAST_SEGMENTS:
            continue
        largest = low + int(np.argmax(counts[low:high]))
        if 2 * counts[largest] <= ends[high] - ends[low]:
            found.append(range(low, high))
        else:
            waiting += [(largest + 1, high), (low, largest)]
    return found
