"""Isolation levels: which transactions a reader sees."""

from __future__ import annotations

from typing import Literal

from txnlog.errors import InvalidOption

IsolationLevel = Literal["read_committed", "snapshot", "read_uncommitted"]
ConsumerIsolationLevel = Literal["read_committed", "read_uncommitted"]
"""The levels for readers that go on by offsets, as consumers do."""
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "snapshot", "read_uncommitted")
"""``read_committed``: everything before the first undecided record of each partition. ``snapshot``:
every committed transaction, whole, wherever undecided ones lie. ``read_uncommitted``: all.
"""

Consistency = Literal["instant", "causal", "atomic", "none"]
"""What a snapshot of several partitions is as a whole, each word more than the next. ``instant``:
the state at one instant between the call and its return. ``causal``: no such instant is known,
because others wrote all the while; what shows has what it is known to rest on. ``atomic``: each
transaction shows whole or not at all. ``none``: each partition is for itself.
"""


def check_isolation_level(isolation_level: str) -> IsolationLevel:
    """Return the level if it is a known one, else raise InvalidOption."""
    for level in ISOLATION_LEVELS:
        if isolation_level == level:
            return level
    raise InvalidOption(
        f"isolation_level {isolation_level!r} is not one of {', '.join(ISOLATION_LEVELS)}"
    )


def check_reading_on(isolation_level: str) -> ConsumerIsolationLevel:
    """Return the level if one can go on by offsets under it, else raise InvalidOption."""
    level = check_isolation_level(isolation_level)
    if level == "snapshot":
        raise InvalidOption(
            "isolation_level 'snapshot' is for scans and snapshots, not for reading on from "
            "offsets: it shows records behind undecided ones, and these would be skipped once they "
            "are committed. Use read_committed"
        )
    return level
