"""Reading in Spark: a pinned plan becomes tasks, and a task streams its ranges as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from txnlog.clock import SystemClock
from txnlog.errors import ProducerFenced
from txnlog.spark.batch.tasks import group_ranges
from txnlog.spark.batch.worker_objects import spare_modules
from txnlog.storage.base import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.read.plan import ScanColumns, SegmentRange
    from txnlog.spark.batch.provenance import Origin
    from txnlog.spark.batch.read_plan import ReadPlan
    from txnlog.state.transaction import TransactionRef


class TxnlogPartition(InputPartition):
    """What one task reads: segment ranges, in the order of topic, partition and offset."""

    def __init__(self, ranges: tuple[SegmentRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


class TxnlogReader(DataSourceReader):
    """Reads a pinned plan. A task opens segments of its own ranges and nothing else."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[type[TaskReader], tuple[object, ...]]:
        # Every task gets a copy of the reader: without the ranges, which may be many.
        plan = self._plan
        return TaskReader, (plan.storage, plan.columns, plan.origin, plan.skip_damaged)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Nothing is listed or opened to find them."""
        groups = group_ranges(self._plan.ranges, self._plan.task_sizes)
        return [TxnlogPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        reader = TaskReader(plan.storage, plan.columns, plan.origin, plan.skip_damaged)
        return reader.read(partition)


class TaskReader(DataSourceReader):
    """The reader as it is in a task."""

    def __init__(
        self,
        storage: Storage,
        columns: ScanColumns,
        origin: Origin | None,
        skip_damaged: bool = False,
    ) -> None:
        self._storage = storage
        self._columns = columns
        self._origin = origin
        self._skip_damaged = skip_damaged

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stream a task's records in bounded memory. Raises CorruptRecord, ProducerFenced."""
        if self._origin is not None:
            from txnlog.spark.batch.provenance import leave_note

            leave_note(self._storage, self._origin)
            if not self._origin.in_block:  # a block's commit tells by itself
                _check_not_replaced(self._storage, self._origin.transaction)
        # Spark makes one empty partition of its own where there is nothing to read.
        if isinstance(partition, TxnlogPartition):
            try:
                yield from self._fitting(partition.ranges)
            finally:
                spare_modules()

    def _fitting(self, ranges: Sequence[SegmentRange]) -> Iterator[pa.RecordBatch]:
        """The batches, in the types of the columns that Spark was told."""
        columns = self._columns
        if columns.topic_schema is None:
            return self._batches(ranges)
        from txnlog.spark.batch.typed_rows import fit, task_schema

        return map(fit(task_schema(columns.schema)), self._batches(ranges))

    def _batches(self, ranges: Sequence[SegmentRange]) -> Iterator[pa.RecordBatch]:
        if not self._skip_damaged:
            from txnlog.read.scan_reader import read_ranges

            return read_ranges(self._storage, ranges, self._columns)
        from txnlog.read.scan_reader import sound_batches
        from txnlog.spark.batch.skipped_records import reporter

        report = reporter(self._storage, self._origin.transaction if self._origin else None)
        return sound_batches(self._storage, ranges, self._columns, report, skip_damaged=True)


def _check_not_replaced(storage: Storage, begun: TransactionRef) -> None:
    """Raise ProducerFenced if the read's transactional id has moved on.

    A write knows only the id, not the read that its rows come from. But its rows are read while it
    runs: this check, and the write's own that the transaction stays the same, make it impossible to
    commit one read's records with another's offsets.
    """
    from txnlog.log.transaction_log import TransactionLog
    from txnlog.state.transaction import Status

    head = TransactionLog(storage, SystemClock()).head(begun.transactional_id)
    if head is None or head.state.ref.key != begun.key or head.state.status is Status.EMPTY:
        raise ProducerFenced(
            f"{begun} was replaced: another read or job has used this transactional.id since the "
            "DataFrame was loaded. Its records must not be written any more: load again, and let "
            "only one job run"
        )
