"""Splits and bundles segment ranges into the tasks of a read."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from txnlog.read.segment_ranges import SegmentRange
from txnlog.spark.options.task_sizes import TaskSizes


def group_ranges(
    ranges: Sequence[SegmentRange], sizes: TaskSizes | None = None
) -> list[tuple[SegmentRange, ...]]:
    """Split and bundle ranges into tasks of about equal work, keeping their order.

    Work is their bytes, plus a cost for each segment that a task opens besides its first. Nothing
    is opened here: a range is split by offsets, in proportion to its bytes.
    """
    sizes = sizes or TaskSizes()
    target = sizes.target_bytes(sum(part.size_bytes for part in ranges), len(ranges))
    cost = sizes.cost_bytes(target)
    # A rest, or a piece, that is small compared with a task is not worth opening the segment again;
    # but a task that takes it leaves fewer tasks than requested.
    slack = 0 if sizes.min_partitions else target // 8
    tasks: list[tuple[SegmentRange, ...]] = []
    task: list[SegmentRange] = []
    room, records = target + cost, sizes.max_records
    for part in ranges:
        rest: SegmentRange | None = part
        while rest is not None:
            piece, rest = _split(rest, room - cost + slack, room - cost, records)
            task.append(piece)
            room -= piece.size_bytes + cost
            records = None if records is None else records - piece.record_count
            if room <= cost or records == 0 or rest is not None:
                tasks.append(tuple(task))
                task, room, records = [], target + cost, sizes.max_records
    if task:
        tasks.append(tuple(task))
    return tasks


def _split(
    part: SegmentRange, whole: int, room: int, records: int | None
) -> tuple[SegmentRange, SegmentRange | None]:
    """The piece of a range that fits into ``room`` bytes and ``records``, and the rest.

    A range of up to ``whole`` bytes is not split because of its bytes.
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
