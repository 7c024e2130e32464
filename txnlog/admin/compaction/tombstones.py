"""How long tombstones stay: their horizon, and which segments may share one. Pure.

docs/PROTOCOL.md ("Rewrites") has the rule. A segment made of several has the latest of their
horizons. If any could be combined, a topic that is compacted often would give its old tombstones
later and later horizons, and they would never be removed (KAFKA-8522). So time is divided into
spans, and only horizons in the same span are combined: none is delayed by more.
"""

from __future__ import annotations

from typing import Final

from txnlog.limits import NEVER_MS

NO_TOMBSTONES: Final = -1
"""The horizon of a segment without tombstones."""

_SPANS_OF_RETENTION = 8


def horizon_of(compacted_ms: int, delete_retention_ms: int) -> int:
    """The horizon of tombstones that become clean now, by the latest clock available."""
    return min(compacted_ms + delete_retention_ms, NEVER_MS)


def is_due(horizon_ms: int, now_ms: int) -> bool:
    """Whether tombstones with this horizon may be removed, by the earliest clock available."""
    return horizon_ms != NO_TOMBSTONES and now_ms >= horizon_ms


def may_share(one_ms: int, other_ms: int, delete_retention_ms: int) -> bool:
    """Whether segments with these horizons may become one."""
    if NO_TOMBSTONES in (one_ms, other_ms):
        return True
    span_ms = max(delete_retention_ms // _SPANS_OF_RETENTION, 1)
    return one_ms // span_ms == other_ms // span_ms


def shared_horizon(one_ms: int, other_ms: int) -> int:
    """The horizon of a segment made of both."""
    return max(one_ms, other_ms)
