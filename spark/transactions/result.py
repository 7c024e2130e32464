"""What a ``transaction(...)`` block has committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnlog.display import Shown
from txnlog.names import TopicPartition

if TYPE_CHECKING:
    from txnlog.results import DamagedRecords


@dataclass(frozen=True, slots=True)
class TransactionResult(Shown):
    """What a transaction has committed.

    Both are by partition: ``written`` has the offsets of its records, ``consumed`` the offsets
    that it read, from start up to but not including stop. ``skipped``: the damaged records among
    these that its reads with ``onCorrupt=skip`` have passed.
    """

    written: Mapping[TopicPartition, Sequence[range]]
    consumed: Mapping[TopicPartition, range]
    skipped: Sequence[DamagedRecords] = ()

    @property
    def written_records(self) -> int:
        """How many records were written, to all topics together."""
        return sum(len(span) for spans in self.written.values() for span in spans)
