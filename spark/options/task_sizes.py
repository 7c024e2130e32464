"""How large the tasks of a read are to be: by bytes, by records, by how many tasks are wanted."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.spark.options.option_values import OptionValues

MAX_TASK_BYTES = 128 << 20
"""A task reads about so many stored bytes: Spark's own spark.sql.files.maxPartitionBytes."""
MIN_TASK_BYTES = 32 << 20
"""Smaller tasks would spend their time on being started: 30 ms of CPU in Spark's Python worker,
while this many bytes take 0.2 s."""
OPEN_COST_BYTES = 4 << 20
"""To open one segment more takes a task as long as to read so many bytes of one: Spark's own
spark.sql.files.openCostInBytes."""
_FILES_AT_LEAST = 8
"""Unless the option says otherwise, so many tiny segments go into a task, however small it is."""
_TASKS_WANTED = 16
"""What is less than 16 full tasks is split finer: the planner does not know how many cores wait."""


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """How much a task reads at most (stored bytes: about), and how many tasks to make at least.

    ``open_cost_bytes`` is what each segment but the first of a task counts besides its bytes.
    """

    min_partitions: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    open_cost_bytes: int | None = None

    @classmethod
    def parse(cls, values: OptionValues) -> TaskSizes:
        """What is wrong is kept by the values."""
        tried = values.tried
        return cls(
            tried(lambda: values.positive("minPartitions")),
            tried(lambda: values.positive("maxRecordsPerPartition")),
            tried(lambda: values.size_bytes("maxBytesPerPartition")),
            tried(lambda: values.size_bytes("openCostInBytes", least=0)),
        )

    def target_bytes(self, total_bytes: int, segments: int = 1) -> int:
        """How much to put into a task, so that there are enough tasks: bytes and costs."""
        cost = OPEN_COST_BYTES if self.open_cost_bytes is None else self.open_cost_bytes
        work = total_bytes + cost * max(segments - 1, 0)
        if self.max_bytes is not None:
            target = self.max_bytes
        else:
            target = min(MAX_TASK_BYTES, max(MIN_TASK_BYTES, work // _TASKS_WANTED))
        if self.min_partitions is not None:
            target = min(target, total_bytes // self.min_partitions)
        return max(target, 1)

    def cost_bytes(self, target_bytes: int) -> int:
        """What opening one segment more counts in tasks of this size."""
        if self.open_cost_bytes is not None:
            return self.open_cost_bytes
        return min(OPEN_COST_BYTES, target_bytes // _FILES_AT_LEAST)
