"""Reading in Spark: which segment ranges make a task, and how a task streams them as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from txnlog.storage.base import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.scan import SegmentRange
    from txnlog.spark.planning import ReadPlan
    from txnlog.state.transaction import TransactionRef

MAX_TASK_BYTES = 128 << 20
"""A task reads about so many stored bytes: Spark's own spark.sql.files.maxPartitionBytes."""
MIN_TASK_BYTES = 8 << 20
"""Smaller tasks would spend their time on being started."""
_TASKS_WANTED = 16
"""What is less than 16 full tasks is split finer: the planner does not know how many cores wait."""


class TxnlogPartition(InputPartition):
    """What one task reads: segment ranges, in the order of topic, partition and offset."""

    def __init__(self, ranges: tuple[SegmentRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


class TxnlogReader(DataSourceReader):
    """Reads a pinned plan. A task opens segments of its own ranges and nothing else."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[type[_TaskReader], tuple[object, ...]]:
        # Every task gets a copy of the reader: without the ranges, which may be many.
        return _TaskReader, (self._plan.storage, self._plan.columns, self._plan.transaction)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Nothing is listed or opened to find them."""
        groups = group_ranges(self._plan.ranges, self._plan.min_partitions)
        return [TxnlogPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        return _TaskReader(plan.storage, plan.columns, plan.transaction).read(partition)


class _TaskReader(DataSourceReader):
    """The reader as it is in a task."""

    def __init__(
        self, storage: Storage, columns: tuple[str, ...], transaction: TransactionRef | None
    ) -> None:
        self._storage = storage
        self._columns = columns
        self._transaction = transaction

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stream a task's records in bounded memory. Raises CorruptRecord, ProducerFenced."""
        from txnlog.scan import read_range

        if self._transaction is not None:
            _check_not_replaced(self._storage, self._transaction)
        # Spark makes one empty partition of its own where there is nothing to read.
        if isinstance(partition, TxnlogPartition):
            for part in partition.ranges:
                yield from read_range(self._storage, part, self._columns)


def _check_not_replaced(storage: Storage, begun: TransactionRef) -> None:
    """Raise ProducerFenced if the read's transactional id has moved on to something else.

    A write knows only the id, not which read its rows come from. But its rows are read while it
    runs: this check, and the write's own that the transaction is the same from its start to its
    end, leave no way for one read's records to go out with another one's offsets.
    """
    from txnlog.clock import SystemClock
    from txnlog.errors import ProducerFenced
    from txnlog.state.transaction import Status
    from txnlog.transaction_log import TransactionLog

    head = TransactionLog(storage, SystemClock(), 0).head(begun.transactional_id)
    if head is None or head.state.ref.key != begun.key or head.state.status is Status.EMPTY:
        raise ProducerFenced(
            f"{begun} was replaced: another read or job has used this transactional.id since the "
            "DataFrame was loaded. Its records must not be written any more: load again, and let "
            "only one job run"
        )


def group_ranges(
    ranges: Sequence[SegmentRange], min_partitions: int | None
) -> list[tuple[SegmentRange, ...]]:
    """Cut and bundle ranges into tasks of about equal bytes, keeping their order.

    Args:
        ranges: what is to be read.
        min_partitions: make at least so many tasks, if there are so many records.
    """
    total = sum(part.size_bytes for part in ranges)
    target = min(MAX_TASK_BYTES, max(MIN_TASK_BYTES, total // _TASKS_WANTED))
    if min_partitions is not None:
        target = max(min(target, total // min_partitions), 1)
    tasks: list[tuple[SegmentRange, ...]] = []
    task: list[SegmentRange] = []
    filled = 0
    for part in ranges:
        rest: SegmentRange | None = part
        while rest is not None:
            piece, rest = _split(rest, target - filled, target)
            task.append(piece)
            filled += piece.size_bytes
            if filled >= target or rest is not None:
                tasks.append(tuple(task))
                task, filled = [], 0
    if task:
        tasks.append(tuple(task))
    return tasks


def _split(part: SegmentRange, room: int, target: int) -> tuple[SegmentRange, SegmentRange | None]:
    """The piece of a range that fits into ``room`` bytes, and the rest.

    A rest, or a piece, that is small beside a task is not worth opening the segment again.
    """
    size = part.size_bytes
    if size <= room + target // 8 or part.record_count < 2:
        return part, None
    count = min(max(part.record_count * room // max(size, 1), 1), part.record_count - 1)
    middle = part.start_offset + count
    return replace(part, stop_offset=middle), replace(part, start_offset=middle)
