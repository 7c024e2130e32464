"""What a ``transaction(...)`` block has committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txnlog.display import Shown
from txnlog.names import TopicPartition

if TYPE_CHECKING:
    from txnlog.errors import TxnlogError
    from txnlog.results import DamagedRecords, TablePublication


@dataclass(frozen=True, slots=True)
class TransactionResult(Shown):
    """What a transaction has committed.

    Both are by partition: ``written`` has the offsets of its records, ``consumed`` the offsets
    that it read, from start up to but not including stop. ``skipped``: the damaged records among
    these that its reads with ``onCorrupt=skip`` have passed. ``published``: the tables that were
    made or renewed at its end; ``unpublished``: why others were not, by topic.
    """

    written: Mapping[TopicPartition, Sequence[range]]
    consumed: Mapping[TopicPartition, range]
    skipped: Sequence[DamagedRecords] = ()
    published: Sequence[TablePublication] = ()
    unpublished: Mapping[str, TxnlogError] = field(default_factory=dict)

    @property
    def written_records(self) -> int:
        """How many records were written, to all topics together."""
        return sum(len(span) for spans in self.written.values() for span in spans)
