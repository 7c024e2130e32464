"""Which segment ranges make a task: by bytes, by records, by how many tasks are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from txnlog.read.ranges import SegmentRange
from txnlog.spark.given import Given

MAX_TASK_BYTES = 128 << 20
"""A task reads about so many stored bytes: Spark's own spark.sql.files.maxPartitionBytes."""
MIN_TASK_BYTES = 32 << 20
"""Smaller tasks would spend their time on being started: 30 ms of CPU in Spark's Python worker,
while this many bytes take 0.2 s."""
_TASKS_WANTED = 16
"""What is less than 16 full tasks is split finer: the planner does not know how many cores wait."""


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """How much a task reads at most (stored bytes: about), and how many tasks to make at least."""

    min_partitions: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None

    @classmethod
    def parse(cls, given: Given) -> TaskSizes:
        return cls(
            given.whole_number("minPartitions"),
            given.whole_number("maxRecordsPerPartition"),
            given.size_bytes("maxBytesPerPartition"),
        )

    def target_bytes(self, total_bytes: int) -> int:
        """How many bytes to put into a task, so that there are enough tasks."""
        if self.max_bytes is not None:
            target = self.max_bytes
        else:
            target = min(MAX_TASK_BYTES, max(MIN_TASK_BYTES, total_bytes // _TASKS_WANTED))
        if self.min_partitions is not None:
            target = min(target, total_bytes // self.min_partitions)
        return max(target, 1)


def group_ranges(
    ranges: Sequence[SegmentRange], sizes: TaskSizes | None = None
) -> list[tuple[SegmentRange, ...]]:
    """Cut and bundle ranges into tasks of about equal bytes, keeping their order.

    Nothing is opened: a range is cut by offsets, in proportion to its bytes.
    """
    sizes = sizes or TaskSizes()
    target = sizes.target_bytes(sum(part.size_bytes for part in ranges))
    # A rest, or a piece, that is small beside a task is not worth opening the segment again; but
    # a task that takes it leaves fewer tasks than were asked for.
    slack = 0 if sizes.min_partitions else target // 8
    tasks: list[tuple[SegmentRange, ...]] = []
    task: list[SegmentRange] = []
    room, records = target, sizes.max_records
    for part in ranges:
        rest: SegmentRange | None = part
        while rest is not None:
            piece, rest = _split(rest, room + slack, room, records)
            task.append(piece)
            room -= piece.size_bytes
            records = None if records is None else records - piece.record_count
            if room <= 0 or records == 0 or rest is not None:
                tasks.append(tuple(task))
                task, room, records = [], target, sizes.max_records
    if task:
        tasks.append(tuple(task))
    return tasks


def _split(
    part: SegmentRange, whole: int, room: int, records: int | None
) -> tuple[SegmentRange, SegmentRange | None]:
    """The piece of a range that fits into ``room`` bytes and ``records``, and the rest.

    A range of up to ``whole`` bytes is not cut for its bytes.
    """
    size = part.size_bytes
    count = part.record_count
    if size > whole and count > 1:
        count = min(max(count * room // max(size, 1), 1), count - 1)
    if records is not None:
        count = min(count, records)
    if count == part.record_count:
        return part, None
    middle = part.start_offset + count
    return replace(part, stop_offset=middle), replace(part, start_offset=middle)
