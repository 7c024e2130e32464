"""The sizes of a read's tasks: by bytes, by records, by the number of tasks."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.spark.options.option_values import OptionValues

MAX_TASK_BYTES = 128 << 20
"""About how many stored bytes a task reads: Spark's own spark.sql.files.maxPartitionBytes."""
MIN_TASK_BYTES = 32 << 20
"""The least size of a task: starting one takes 30 ms of CPU in Spark's Python worker, reading this
many bytes 0.2 s.
"""
OPEN_COST_BYTES = 4 << 20
"""The cost of opening a file, in bytes read in the same time: Spark's own
spark.sql.files.openCostInBytes.
"""
_FILES_AT_LEAST = 8
"""Unless the option says otherwise, at least this many tiny files go into a task."""
_TASKS_WANTED = 16
"""Less than 16 full tasks is split finer: the planner does not know how many cores wait."""


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """How much a task reads at most (stored bytes: about), and the least number of tasks.

    ``open_cost_bytes`` is added for each file of a task but the first.
    """

    min_partitions: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    open_cost_bytes: int | None = None

    @classmethod
    def parse(cls, values: OptionValues) -> TaskSizes:
        """Errors are kept by the values."""
        tried = values.tried
        return cls(
            tried(lambda: values.positive("minPartitions")),
            tried(lambda: values.positive("maxRecordsPerPartition")),
            tried(lambda: values.size_bytes("maxBytesPerPartition")),
            tried(lambda: values.size_bytes("openCostInBytes", least=0)),
        )

    def target_bytes(self, total_bytes: int, files: int = 1) -> int:
        """The size of a task, in bytes and costs, such that there are enough tasks."""
        cost = OPEN_COST_BYTES if self.open_cost_bytes is None else self.open_cost_bytes
        work = total_bytes + cost * max(files - 1, 0)
        if self.max_bytes is not None:
            target = self.max_bytes
        else:
            target = min(MAX_TASK_BYTES, max(MIN_TASK_BYTES, work // _TASKS_WANTED))
        if self.min_partitions is not None:
            target = min(target, total_bytes // self.min_partitions)
        return max(target, 1)

    def cost_bytes(self, target_bytes: int) -> int:
        """The cost of opening another file in tasks of this size."""
        if self.open_cost_bytes is not None:
            return self.open_cost_bytes
        return min(OPEN_COST_BYTES, target_bytes // _FILES_AT_LEAST)
