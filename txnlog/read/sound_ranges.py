"""Reads ranges past damage: what is sound comes first, and what is not is named by its offsets.

Scans fail at the first damage. Consumers and the command go on with other partitions, and behind
the damage if they are told to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from txnlog.errors import CorruptRecord, ObjectNotFound
from txnlog.names import TopicPartition
from txnlog.read.scanned_ranges import assembled, read_each, read_topics, stored_columns
from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import SegmentRange, load_aborted
from txnlog.segments.inspect.dump import dump_segment
from txnlog.segments.reader import SegmentBatch, read_segment
from txnlog.storage.ahead import MAX_AHEAD_BYTES
from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True)
class DamagedRecords:
    """Offsets [offset, next_offset) of a partition that cannot be read, and why."""

    topic: str
    partition: int
    offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        last = self.next_offset - 1
        offsets = f"offset {last}" if self.offset == last else f"offsets {self.offset} to {last}"
        return f"{offsets} of {self.where} cannot be read: {self.reason}"

    @property
    def where(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def offset_count(self) -> int:
        """How many records they are at most."""
        return self.next_offset - self.offset

    def error(self) -> CorruptRecord:
        """The error for it, which says where to go on."""
        error = CorruptRecord(f"{self}. The next records begin at offset {self.next_offset}")
        error.topic, error.partition = self.topic, self.partition
        error.offset, error.next_offset = self.offset, self.next_offset
        return error


Report: TypeAlias = Callable[[DamagedRecords], object]
"""Is told what cannot be read."""

Item: TypeAlias = pa.RecordBatch | DamagedRecords | None
"""A batch of a range, damage in it, or its end."""


def read_sound(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns | Mapping[str, ScanColumns],
    ahead_bytes: int = MAX_AHEAD_BYTES,
    *,
    skip_damaged: bool,
    by_page: bool = False,
) -> Generator[tuple[SegmentRange, Item]]:
    """Each range with its batches, and None at its end, or damage where it cannot be read.

    After damage it goes on with the other partitions; with ``skip_damaged`` with what is sound
    behind it, too. ``columns``, maybe by topic, must have the offset; ``by_page`` is as of
    ``read_each``. Raises what ``read_each`` does, but CorruptRecord.
    """
    left = [*parts]
    while left:
        at, done = left[0].start_offset, 0
        if isinstance(columns, ScanColumns):
            reads = read_each(storage, left, columns, ahead_bytes, by_page=by_page)
        else:
            reads = read_topics(storage, left, columns, ahead_bytes, by_page=by_page)
        try:
            with closing(reads):
                for part, batches in reads:
                    offset = _of_topic(columns, part.topic).offset
                    for batch in batches:
                        at = batch.column(offset)[-1].as_py() + 1
                        yield part, batch
                    yield part, None
                    done += 1
                    at = left[done].start_offset if done < len(left) else part.stop_offset
            return
        except CorruptRecord as error:
            part, rest, failure = left[done], left[done + 1 :], error
        is_damaged = False
        for item in _read_on(storage, part, _of_topic(columns, part.topic), at, failure):
            yield part, item
            if isinstance(item, DamagedRecords) and not skip_damaged:
                is_damaged = True
                break
        where = part.topic, part.partition
        left = [p for p in rest if not (is_damaged and (p.topic, p.partition) == where)]


def _of_topic(columns: ScanColumns | Mapping[str, ScanColumns], topic: str) -> ScanColumns:
    return columns if isinstance(columns, ScanColumns) else columns[topic]


def sound_batches(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    report: Report,
    *,
    skip_damaged: bool,
) -> Generator[pa.RecordBatch]:
    """The batches of exactly ``columns``, and what is damaged to ``report``; see ``read_sound``."""
    reading = columns
    if columns.offset not in columns.names:
        reading = replace(columns, names=(*columns.names, columns.offset))
    with closing(read_sound(storage, parts, reading, skip_damaged=skip_damaged)) as reads:
        for _, found in reads:
            if isinstance(found, DamagedRecords):
                report(found)
            elif found is not None:
                yield found if reading is columns else found.select([*columns.names])


def _read_on(
    storage: Storage, part: SegmentRange, columns: ScanColumns, at: int, failure: CorruptRecord
) -> Iterator[Item]:
    """The rest of a range from an offset on, after reading it has failed there."""
    shift, reason = part.segment.offset_shift, ""

    def damaged(stop: int) -> DamagedRecords:
        return DamagedRecords(part.topic, part.partition, at, stop, reason or str(failure))

    try:
        for found in _sound_batches(storage, part, columns, at):
            if isinstance(found, str):
                reason = reason or found
                continue
            shown, first, end = found
            if reason and first + shift > at:
                yield damaged(first + shift)
            reason, at = "", end + shift
            yield from assembled(part, shown, columns)
    except (CorruptRecord, ObjectNotFound) as error:
        reason = reason or str(failure if isinstance(error, ObjectNotFound) else error)
    if reason and at < part.stop_offset:
        yield damaged(part.stop_offset)
    yield None


def _sound_batches(
    storage: Storage, part: SegmentRange, columns: ScanColumns, at: int
) -> Iterator[str | tuple[list[SegmentBatch], int, int]]:
    """What is sound from an offset on, and between it the reasons why something is not.

    Batch by batch: the records that are shown of it, and its offsets [first, end) in the file.
    """
    shift = part.segment.offset_shift
    start, stop = at - shift, part.stop_offset - shift
    file, skip = part.open(storage), load_aborted(storage, part)
    reason = ""
    for dumped in dump_segment(file):
        if dumped.decoded is None:
            reason = str(dumped.damage)
            continue
        header = dumped.decoded.header
        if header.last_offset < start:
            reason = ""  # the damage was before
            continue
        if header.base_offset >= stop:
            break
        if reason:
            yield reason
            reason = ""
        first, end = max(header.base_offset, start), min(header.last_offset + 1, stop)
        shown: list[SegmentBatch] = []
        if not header.is_control and not (skip is not None and skip(header)):
            wanted = stored_columns(columns)
            shown += read_segment(
                file,
                start_offset=first,
                stop_offset=end,
                columns=wanted,
                start_position=dumped.position,
            )
        yield shown, first, end
    if reason:
        yield reason
