"""Names from txnlog.testing that many tests of this folder take from here."""

from __future__ import annotations

from txnlog.testing import Fault, FaultyStorage, ProcessStopped, VirtualClock

SNAPSHOT_LEVEL = True
"""Whether the library has ``isolation_level="snapshot"`` and ``Snapshot.is_atomic``."""
ATOMIC = "snapshot" if SNAPSHOT_LEVEL else "read_committed"
"""The level at which a snapshot of several topics shows each transaction whole or not at all."""

__all__ = ["ATOMIC", "SNAPSHOT_LEVEL", "Fault", "FaultyStorage", "ProcessStopped", "VirtualClock"]
