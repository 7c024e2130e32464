"""Feeds of changes: what was done to the rows of a topic's keys between two moments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from txnlog import display
from txnlog.arguments import names_wrong_arguments
from txnlog.read.changed_ranges import ChangedRanges
from txnlog.read.changed_rows import ChangeColumns, read_changes
from txnlog.read.rows import Rows
from txnlog.storage.base import Storage

if TYPE_CHECKING:
    from txnlog.read.row_filter import RowFilter


@names_wrong_arguments()
class ChangeFeed(Rows):
    """The changes of one topic's rows between two moments; made by ``Store.changes``.

    Each change is a row, an update two: ``_change`` is ``insert``, ``update_before`` and
    ``update_after``, or ``delete``, whose row is the one that was deleted. Iterating twice gives
    the same. ``start_offsets`` and ``end_offsets`` are those of the records that made them, by
    partition.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        ranges: ChangedRanges,
        columns: ChangeColumns,
        row_filter: RowFilter | None = None,
    ) -> None:
        self._storage = storage
        self._topic = topic
        self._ranges = ranges
        self._columns = columns
        self._row_filter = row_filter
        self.start_offsets = dict(ranges.starts)
        self.end_offsets = dict(ranges.ends)

    def __repr__(self) -> str:
        filtered = "" if self._row_filter is None else ", filtered"
        return (
            f"ChangeFeed({self._topic!r}, of {self.record_count} records at most{filtered}, "
            f"columns {', '.join(self.columns)})"
        )

    def _repr_html_(self) -> str:
        spans = [(p, at, self.end_offsets[p]) for p, at in sorted(self.start_offsets.items())]
        return display.table(f"Changes of {self._topic!r}", ("partition", "from", "to"), spans)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order they were asked for."""
        return self._columns.names

    @property
    def schema(self) -> pa.Schema:
        """The columns of the feed, in the order they were asked for."""
        return self._columns.schema

    @property
    def record_count(self) -> int:
        """How many records were added in between, at most; known without reading any.

        An update is two rows; a record that deletes nothing is none.
        """
        return sum(part.record_count for part in self._ranges.added)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read record batches; the changes of a key are in their order.

        The range is read, the key's columns of what was before, and then the rows there that it
        has changed. Memory is bounded, about 700 MiB: a larger range is read several times, each
        time for a share of the keys.

        Raises:
            SnapshotExpired: compaction has left out records that count, and their old segments are
                gone (``file.delete.delay.ms``): what these changes were nobody knows any more.
            UnknownTopicOrPartition: the topic was deleted in the meantime.
            CorruptRecord: a segment is damaged or missing.
        """
        columns = self._columns
        row_filter = self._row_filter
        if row_filter is not None:
            columns = columns.with_more(row_filter.names)
        for batch in read_changes(self._storage, self._ranges, columns):
            if row_filter is not None:
                batch = batch.filter(row_filter.rows(batch)).select([*self.columns])
            if batch.num_rows:
                yield batch
