"""Splits and bundles segment ranges into the tasks of a read."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from msgspec.structs import replace

from txnlog.names import OWN_FILE
from txnlog.read.plan import SegmentRange
from txnlog.spark.options.task_sizes import TaskSizes


def group_ranges(
    ranges: Sequence[SegmentRange], sizes: TaskSizes | None = None
) -> list[tuple[SegmentRange, ...]]:
    """Split and bundle ranges into tasks of about equal work, keeping their order.

    Work is their bytes, plus a cost for each file that a task opens besides its first. Nothing is
    opened here: a range is split by offsets, in proportion to its bytes. Ranges of one file go into
    one task if that is possible. The ranges of a task keep the given order, and so do those of a
    partition over all tasks.
    """
    sizes = sizes or TaskSizes()
    ordered = _by_file(ranges)
    files = sum(1 for _ in groupby(ordered, lambda number: _file(ranges[number]) or number))
    target = sizes.target_bytes(sum(part.size_bytes for part in ranges), files)
    cost = sizes.cost_bytes(target)
    # A rest, or a piece, that is small compared with a task is not worth opening the segment again;
    # but a task that takes it leaves fewer tasks than requested.
    slack = 0 if sizes.min_partitions else target // 8
    tasks: list[tuple[SegmentRange, ...]] = []
    task: list[tuple[int, SegmentRange]] = []
    room, records = target, sizes.max_records
    opened: object = None

    def end_task() -> None:
        nonlocal task, room, records
        tasks.append(tuple(part for _, part in sorted(task, key=itemgetter(0))))
        task, room, records = [], target, sizes.max_records

    for number in ordered:
        file = _file(ranges[number]) or number
        rest: SegmentRange | None = ranges[number]
        while rest is not None:
            opening = cost if task and file != opened else 0
            if task and room <= opening:
                end_task()
                opening = 0
            piece, rest = _split(rest, room - opening + slack, room - opening, records)
            opened = file
            task.append((number, piece))
            room -= piece.size_bytes + opening
            records = None if records is None else records - piece.record_count
            if records == 0 or rest is not None:
                end_task()
    if task:
        end_task()
    return tasks


def _file(part: SegmentRange) -> tuple[str, str] | None:
    """The file that a range shares with others; None if it has one of its own."""
    return (
        None if part.segment.stored.position == OWN_FILE else (part.topic, part.segment.stored.name)
    )


def _by_file(ranges: Sequence[SegmentRange]) -> Sequence[int]:
    """The ranges' numbers, those of one file together, and of each partition in the given order.

    As they are if no such order is found, as after a rewrite that has moved records between files.
    """
    sharing = Counter(file for part in ranges if (file := _file(part)) is not None)
    if not sharing or max(sharing.values()) == 1:
        return range(len(ranges))
    partitions: dict[tuple[str, int], deque[int]] = {}
    for number, part in enumerate(ranges):
        partitions.setdefault((part.topic, part.partition), deque()).append(number)
    ordered: list[int] = []
    arrived: dict[tuple[str, str], list[int]] = {}
    waiting: dict[tuple[str, str], list[deque[int]]] = {}
    moving = deque(partitions.values())
    while moving:
        left = moving.popleft()
        while left and _file(ranges[left[0]]) is None:
            ordered.append(left.popleft())
        if not left:
            continue
        file = _file(ranges[left[0]])
        assert file is not None
        there = arrived.setdefault(file, [])
        while left and _file(ranges[left[0]]) == file:
            there.append(left.popleft())
        waiting.setdefault(file, []).append(left)
        if len(there) == sharing[file]:  # each partition has come to it
            ordered += sorted(arrived.pop(file))
            moving.extend(waiting.pop(file))
    return ordered if len(ordered) == len(ranges) else range(len(ranges))


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
