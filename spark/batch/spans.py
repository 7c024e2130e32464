"""The offsets of each partition in a read: from its start to its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.errors import (
    CorruptRecord,
    InvalidOption,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from txnlog.names import TopicPartition
from txnlog.read.offset_for_time import OffsetAndTimestamp
from txnlog.read.scan_reader import sound_batches
from txnlog.read.topic_view import EARLIEST, LATEST
from txnlog.snapshot import Snapshot
from txnlog.spark.options.columns import ColumnChoice
from txnlog.spark.options.positions import ByTime, Numbers, Position
from txnlog.spark.options.read_options import ReadOptions
from txnlog.spark.options.subscription import Partitions
from txnlog.storage.base import Storage


def wanted_partitions(snapshot: Snapshot, subscription: Partitions) -> list[TopicPartition]:
    """The partitions of a subscription. Raises UnknownTopicOrPartition."""
    wanted = []
    for topic, chosen in subscription.items():
        known = snapshot.partitions(topic)
        for number in chosen if chosen is not None else known:
            if number not in known:
                raise UnknownTopicOrPartition(
                    f"option assign: topic {topic!r} has no partition {number}; it has "
                    f"{len(known)}, numbered from 0"
                )
            wanted.append(TopicPartition(topic, number))
    return wanted


def resolve_position(
    storage: Storage,
    snapshot: Snapshot,
    wanted: Sequence[TopicPartition],
    option: str,
    position: Position,
    *,
    skip_damaged: bool = False,
) -> dict[TopicPartition, int]:
    """The offset of each partition; -2 and -1 mean the edges of the snapshot.

    With ``skip_damaged`` a time is looked for in sound records. Raises InvalidOption: numbers for
    partitions other than those wanted, or not for all of them; OffsetOutOfRange: no record is as
    late as a given time.
    """
    if isinstance(position, str):
        return dict.fromkeys(wanted, EARLIEST if position == "earliest" else LATEST)
    if isinstance(position, ByTime):
        return _find_times(storage, snapshot, wanted, position, skip_damaged=skip_damaged)
    return _flatten_numbers(snapshot, wanted, option, position)


def _find_times(
    storage: Storage,
    snapshot: Snapshot,
    wanted: Sequence[TopicPartition],
    position: ByTime,
    *,
    skip_damaged: bool,
) -> dict[TopicPartition, int]:
    times = (
        dict.fromkeys(wanted, position.times)
        if isinstance(position.times, int)
        else _flatten_numbers(snapshot, wanted, position.option, position.times)
    )
    find = partial(_find_sound, storage, snapshot) if skip_damaged else snapshot.offset_for_time
    found: Sequence[OffsetAndTimestamp | None] = storage.gather(
        [partial(find, where, times[where]) for where in wanted]
    )
    late = [where for where, at in zip(wanted, found, strict=True) if at is None]
    if late and not position.or_latest:
        raise OffsetOutOfRange(
            f"option {position.option}: {late[0]} has no record at or after {times[late[0]]} ms"
            f"{f', nor have {len(late) - 1} other partitions' if len(late) > 1 else ''}; give an "
            "earlier time, or startingOffsetsByTimestampStrategy=latest to start at the end there"
        )
    return {w: LATEST if at is None else at.offset for w, at in zip(wanted, found, strict=True)}


def _find_sound(
    storage: Storage, snapshot: Snapshot, where: TopicPartition, timestamp_ms: int
) -> OffsetAndTimestamp | None:
    """The first record at or after a time that can be read: tasks pass what is damaged too."""
    try:
        return snapshot.offset_for_time(where, timestamp_ms)
    except CorruptRecord:
        view = snapshot.view(where.topic)
    partition, pinned = where.partition, view.partitions[where.partition]
    parts = [
        part
        for part in view.visible_ranges(
            {partition: pinned.log_start_offset}, {partition: pinned.end_offset}
        )
        if part.segment.stored.max_timestamp_ms >= timestamp_ms
    ]
    columns = ColumnChoice(None).of(view.schema).only("offset", "timestamp")
    batches = sound_batches(storage, parts, columns, lambda _: None, skip_damaged=True)
    with closing(batches):
        for batch in batches:
            offsets, times = (batch.column(name) for name in columns.names)
            times = times.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            late = pc.index(pc.greater_equal(times, timestamp_ms), True).as_py()
            if late >= 0:
                return OffsetAndTimestamp(offsets[late].as_py(), times[late].as_py())
    return None


def _flatten_numbers(
    snapshot: Snapshot, wanted: Sequence[TopicPartition], option: str, numbers: Numbers
) -> dict[TopicPartition, int]:
    flat = {TopicPartition(t, p): at for t, parts in numbers.items() for p, at in parts.items()}
    known = set(wanted)
    for where in flat:
        if where not in known:
            reason = (
                "has no such partition, or it is not assigned"
                if where.topic in snapshot.topics
                else "is not subscribed"
            )
            raise InvalidOption(
                f"option {option} names {where}, but topic {where.topic!r} {reason}"
            )
    missing = [str(where) for where in wanted if where not in flat]
    if missing:
        edges = "" if option.endswith("ByTimestamp") else " (-2 is earliest, -1 latest)"
        raise InvalidOption(
            f"option {option} must have a number for every partition{edges}; it has none for "
            f"{', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''}"
        )
    return flat


def span_of(
    snapshot: Snapshot,
    where: TopicPartition,
    start: int,
    stop: int,
    options: ReadOptions,
    committed: int | None = None,
) -> range:
    """The offsets from ``start`` to ``stop``; -2 and -1 are the snapshot's start and end.

    The ends of successive snapshots may go back while a transaction is open, and what was read up
    to the end of one is not lost: a start between the snapshot's end and the log's is valid, and
    has nothing to read yet. So that nothing is read twice, a start at the end is no earlier than
    what the group has ``committed``, if the log has that.

    Raises OffsetOutOfRange, InvalidOption.
    """
    view = snapshot.view(where.topic)
    begin = view.partitions[where.partition].log_start_offset
    end = view.partitions[where.partition].end_offset
    log_end = max(end, view.log_end_offsets[where.partition])
    if start == LATEST:
        start = max(end, min(committed or 0, log_end))
    elif start == EARLIEST:
        start = begin
    stop = {EARLIEST: begin, LATEST: max(start, end)}.get(stop, stop)
    if options.fail_on_data_loss:
        _check_span(where, range(begin, log_end), start, stop, end)
    start = min(max(start, begin), log_end)
    return range(start, max(start, min(stop, end)))


def _check_span(where: TopicPartition, log: range, start: int, stop: int, end: int) -> None:
    if start < log.start:
        reason = f"is below the log start offset {log.start}: those records were deleted"
    elif start > log.stop:
        reason = f"is beyond the end {log.stop}"
    elif stop > max(start, end):
        raise OffsetOutOfRange(f"the ending offset {stop} of {where} is beyond the end {end}")
    elif stop < start:
        raise InvalidOption(f"{where} would end at offset {stop}, before its start {start}")
    else:
        return
    raise OffsetOutOfRange(
        f"the starting offset {start} of {where} {reason}. Was the topic trimmed, or deleted and "
        "recreated? Give startingOffsets that are in the log, or failOnDataLoss=false to go on "
        "with what is there"
    )
