"""Names from txnlog.testing that many tests of this folder take from here."""

from __future__ import annotations

from txnlog.testing import Fault, FaultyStorage, ProcessStopped, VirtualClock

__all__ = ["Fault", "FaultyStorage", "ProcessStopped", "VirtualClock"]
