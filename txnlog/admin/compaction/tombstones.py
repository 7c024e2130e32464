"""How long tombstones stay: their horizon, and which segments may share one. Pure.

A tombstone must stay for ``delete.retention.ms`` after it has become clean, so that a reader that
is on its way meets it. No batch tells when that was: the log does, for each segment, in the
segment's horizon, the time from which all its tombstones may go. A segment made of several has the
latest horizon of theirs. If any could be put together, a topic that is compacted often would give
its old tombstones later and later horizons, and they would never go (KAFKA-8522). So time is
divided into spans, and only horizons in the same span come together: none is put off by more.
"""

from __future__ import annotations

from typing import Final

NO_TOMBSTONES: Final = -1
"""The horizon of a segment without tombstones."""

_SPANS_OF_RETENTION = 8


def horizon_of(compacted_ms: int, delete_retention_ms: int) -> int:
    """The horizon of tombstones that become clean now, by the latest clock there is."""
    return compacted_ms + delete_retention_ms


def is_due(horizon_ms: int, now_ms: int) -> bool:
    """Whether tombstones with this horizon may go, by the earliest clock there is."""
    return horizon_ms != NO_TOMBSTONES and now_ms >= horizon_ms


def may_share(one_ms: int, other_ms: int, delete_retention_ms: int) -> bool:
    """Whether segments with these horizons may become one."""
    if NO_TOMBSTONES in (one_ms, other_ms):
        return True
    span_ms = max(delete_retention_ms // _SPANS_OF_RETENTION, 1)
    return one_ms // span_ms == other_ms // span_ms


def shared_horizon(one_ms: int, other_ms: int) -> int:
    """The horizon of what is made of both."""
    return max(one_ms, other_ms)
