"""What a bridge has done, told at each commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txnlog.names import TopicPartition


@dataclass(frozen=True, slots=True)
class BridgeCommit:
    """One transaction of a bridge.

    ``positions`` are the next offsets to be read, by partition of where the records come from, of
    those that moved. ``lag`` is how many offsets are still to be read there, as far as was known.
    """

    at_ms: int
    record_count: int
    positions: Mapping[TopicPartition, int]
    lag: int
