"""Names from txnlog.testing that many tests of this folder take from here."""

from __future__ import annotations

from txnlog.testing import Fault, FaultyStorage, ProcessStopped, VirtualClock

ATOMIC = "snapshot"
"""The level at which a snapshot of several topics shows each transaction whole or not at all."""

__all__ = ["ATOMIC", "Fault", "FaultyStorage", "ProcessStopped", "VirtualClock"]
