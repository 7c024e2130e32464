"""The streaming source as Spark calls it: offsets and tasks of micro-batches.

Spark keeps one of these in a process beside the driver for as long as the query runs, and pickles
another for the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from txnlog.errors import TxnlogError
from txnlog.read.plan import ScanColumns
from txnlog.spark.batch.reader import TaskReader, TxnlogPartition
from txnlog.spark.batch.tasks import group_ranges
from txnlog.spark.options.store_options import open_at
from txnlog.spark.options.stream_options import MicroBatchLimits, StreamOptions
from txnlog.spark.stream.offsets import StreamOffset
from txnlog.spark.stream.planner import StreamPlanner
from txnlog.storage.base import Storage

_UNKNOWN = {**StreamOffset({}, {}).to_json(), "unknown": True}
"""Where a query begins of which that cannot be told. One that has found no topic yet has read up to
offsets of none, which its checkpoint may hold: topics that come later are read from their start."""


class TxnlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. Nothing is opened before Spark asks for an offset."""

    def __init__(self, options: StreamOptions, columns: ScanColumns) -> None:
        super().__init__()
        self._options = options
        self._columns = columns

    def __reduce__(self) -> tuple[type[TaskReader], tuple[object, ...]]:
        return TaskReader, (self._storage(), self._columns, None, self._options.read.skip_damaged)

    def _storage(self) -> Storage:
        """The storage that tasks read: with replicas, all roots. Tasks put none of them out."""
        return open_at(self._options.read.address).storage

    @cached_property
    def _planner(self) -> StreamPlanner:
        return StreamPlanner(
            open_at(self._options.read.address), self._options, self._columns.topic_schema
        )

    # -- offsets ---------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """The offsets at which a new query begins.

        Spark also asks for them when a query that died in its first batch goes on. The end of that
        batch says where it began, so offsets that are not there (any more) are no error yet.
        """
        try:
            return self._planner.initial().to_json()
        except TxnlogError:
            return dict(_UNKNOWN)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end: this run reads only what exists now."""
        self._planner.pin_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rates = self._options.rates
        if rates.most is not None:
            return ReadMaxRows(rates.most)
        return ReadAllAvailable() if rates.least is None else ReadMinRows(rates.least)

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """The end of the next batch.

        Everything before ``start`` is done: that is told to the group here, since Spark calls
        ``commit`` only when it has planned another batch, and so never for the last one.
        """
        done = self._planner.initial() if start == _UNKNOWN else StreamOffset.parse(start)
        self._planner.commit_group(done)
        # A limit of Spark's holds one of our two; it asks for all where ours must not count.
        rates = MicroBatchLimits() if isinstance(limit, ReadAllAvailable) else self._options.rates
        return self._planner.latest(done, rates).to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """All that there was at the last trigger, for the query's progress, and how far it is.

        Spark has no metrics of Python sources, and shows a class for their name: what else there is
        to say of a stream has its place here.
        """
        newest, behind = self._planner.newest(), self._planner.behind()
        if newest is None:
            return None
        return newest.to_json() | ({} if behind is None else {"behind": behind})

    def commit(self, end: Mapping[str, object]) -> None:
        self._planner.commit_group(StreamOffset.parse(end))

    # -- tasks -----------------------------------------------------------------------------------

    def partitions(
        self, start: Mapping[str, object], end: Mapping[str, object]
    ) -> Sequence[InputPartition]:
        """The tasks of one batch, the same however often it is run."""
        ranges = self._planner.ranges(StreamOffset.parse(start), StreamOffset.parse(end))
        groups = group_ranges(ranges, self._options.read.task_sizes)
        return [TxnlogPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        skips = self._options.read.skip_damaged
        return TaskReader(self._storage(), self._columns, None, skips).read(partition)
