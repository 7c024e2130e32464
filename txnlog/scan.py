"""Scans: a pinned range of one topic, read as Arrow. Nothing is read until it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from txnlog import display
from txnlog.arguments import names_wrong_arguments
from txnlog.read.plan import ScanColumns, SegmentRange
from txnlog.read.rows import Rows
from txnlog.read.scan_reader import DamagedRecords, read_each, read_ranges, sound_batches
from txnlog.segments.arrays import numbers_of
from txnlog.storage.base import Storage


@names_wrong_arguments()
class Scan(Rows):
    """A pinned range of one topic. Iterating twice gives the same records.

    ``start_offsets`` and ``end_offsets`` are resolved, by partition. A scan with ``latest`` has
    one row for each key; each reading finds out anew which. ``until`` is None but in what
    ``Store.changes`` returns: see :class:`ChangeFeed`.
    """

    def __init__(
        self,
        storage: Storage,
        ranges: Sequence[SegmentRange],
        columns: ScanColumns,
        start_offsets: Mapping[int, int],
        end_offsets: Mapping[int, int],
        *,
        latest: bool = False,
    ) -> None:
        self._storage = storage
        self.until: str | None = None
        self.ranges = tuple(ranges)
        self._columns = columns
        self.start_offsets = dict(start_offsets)
        self.end_offsets = dict(end_offsets)
        self._latest = latest

    def __repr__(self) -> str:
        spans = ", ".join(f"{p}: [{start}, {stop})" for p, start, stop in self._spans()[:8])
        more = ", ..." if len(self.start_offsets) > 8 else ""
        columns = ", ".join(self.columns[:8]) + (", ..." if len(self.columns) > 8 else "")
        filtered = "" if self._columns.row_filter is None else ", filtered"
        latest = ", newest of each key" if self._latest else ""
        return (
            f"Scan({self._topic}, offsets {{{spans}{more}}}, {self.record_count} records at most"
            f"{latest}{filtered}, columns {columns})"
        )

    def _repr_html_(self) -> str:
        facts = [("records, at most", self.record_count), ("columns", self.columns)]
        if self._latest:
            facts.append(("latest", "newest record of each key"))
        if self._columns.row_filter is not None:
            facts.append(("filter", self._columns.row_filter))
        return display.table(f"Scan of {self._topic}", ("", ""), facts) + display.table(
            "offsets", ("partition", "from", "to"), self._spans()
        )

    @property
    def _topic(self) -> str:
        return repr(self.ranges[0].topic) if self.ranges else "nothing"

    def _spans(self) -> list[tuple[int, int, int]]:
        return [(p, at, self.end_offsets[p]) for p, at in sorted(self.start_offsets.items())]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order they were asked for."""
        return self._columns.names

    @property
    def schema(self) -> pa.Schema:
        """The columns of the scan, in the order they were asked for."""
        return self._columns.schema

    @property
    def record_count(self) -> int:
        """How many records the scan returns, known without reading any.

        Records that were imported from Kafka, or compacted, may have gaps between their offsets:
        then it is an upper bound. With a filter or ``latest`` it is the number of records that
        are looked at.
        """
        return sum(part.record_count for part in self.ranges)

    def count(self, *, report: Callable[[DamagedRecords], object] | None = None) -> dict[int, int]:
        """How many records the scan returns of each of its partitions, exactly.

        Without a filter, only segments with possible gaps are read: those that came from Kafka,
        or were compacted. With a filter, all segments that may hold matching records are; with
        ``latest`` the keys of all. Damage in what is not read does not show.

        With ``report`` everything is read, and the sound records are counted; it is called with
        what cannot be read, as by :meth:`sound_batches`. Otherwise raises CorruptRecord.
        """
        counts = dict.fromkeys(self.start_offsets, 0)
        if report is not None or self._latest:
            number_of = self._columns.only("partition")
            for batch in self._to_count(number_of, report):
                found = np.bincount(numbers_of(batch.column(number_of.names[0])))
                for number in np.flatnonzero(found).tolist():
                    counts[number] += int(found[number])
            return counts
        is_filtered = self._columns.row_filter is not None
        unknown = [part for part in self.ranges if is_filtered or part.exact_count is None]
        for part in () if is_filtered else self.ranges:
            counts[part.partition] += part.exact_count or 0
        for part, batches in read_each(self._storage, unknown, self._columns.only("offset")):
            counts[part.partition] += sum(batch.num_rows for batch in batches)
        return counts

    def _to_count(
        self, number_of: ScanColumns, report: Callable[[DamagedRecords], object] | None
    ) -> Iterator[pa.RecordBatch]:
        """The records with their partitions; with ``report`` only if all of a record is sound."""
        columns = number_of
        if report is not None and number_of.names[0] not in self.columns:
            columns = replace(self._columns, names=(*self.columns, *number_of.names))
        elif report is not None:
            columns = self._columns
        if self._latest:
            return self._latest_batches(columns, report)
        assert report is not None
        return sound_batches(self._storage, self.ranges, columns, report, skip_damaged=True)

    def head(
        self, count: int, *, report: Callable[[DamagedRecords], object] | None = None
    ) -> pa.Table:
        """The oldest records by timestamp, at most ``count``.

        Records of one partition stay in the order of their offsets. Holds up to ``count`` records
        of each partition in memory. With ``report`` they are the sound ones; it is called with what
        cannot be read on the way. Otherwise raises CorruptRecord.
        """
        from txnlog.read.head_and_tail import first_records

        return first_records(
            self._storage, self.ranges, self._columns, count, report, latest=self._latest
        )

    def tail(
        self, count: int, *, report: Callable[[DamagedRecords], object] | None = None
    ) -> pa.Table:
        """The newest records by timestamp, at most ``count``; see :meth:`head`."""
        from txnlog.read.head_and_tail import last_records

        return last_records(
            self._storage, self.ranges, self._columns, count, report, latest=self._latest
        )

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read record batches, partition by partition in the order of their offsets.

        Memory is bounded, however large the topic is: one chunk and one batch; 32 MiB more for
        Parquet files of which few columns are read; 64 MiB more where the storage is so slow that
        several requests run at once. With ``latest`` there is more for each key: see
        :meth:`txnlog.Snapshot.scan`.

        Raises:
            UnknownTopicOrPartition: the topic was deleted in the meantime.
            CorruptRecord: a segment is damaged or missing.
        """
        if self._latest:
            yield from self._latest_batches(self._columns)
        else:
            yield from read_ranges(self._storage, self.ranges, self._columns)

    def _latest_batches(
        self, columns: ScanColumns, report: Callable[[DamagedRecords], object] | None = None
    ) -> Iterator[pa.RecordBatch]:
        from txnlog.read.latest import read_latest

        return read_latest(self._storage, self.ranges, columns, report)

    def sound_batches(
        self, report: Callable[[DamagedRecords], object], *, skip_damaged: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Read what is sound, whatever of the scan cannot be read.

        Args:
            report: called with what cannot be read: a ``txnlog.results.DamagedRecords``, which has
                its partition and offsets. What is sound of the other partitions follows.
            skip_damaged: go on behind it in its own partition, too.

        With ``latest`` damage may hide which record of a key is the newest: then it is an error,
        or with ``skip_damaged`` these are the newest of the sound ones.

        Raises:
            UnknownTopicOrPartition: the topic was deleted in the meantime.
            CorruptRecord: damage, with ``latest`` and without ``skip_damaged``.
        """
        if self._latest:
            yield from self._latest_batches(self._columns, report if skip_damaged else None)
            return
        yield from sound_batches(
            self._storage, self.ranges, self._columns, report, skip_damaged=skip_damaged
        )
