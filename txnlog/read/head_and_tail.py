"""The oldest and the newest records of a scan, over its partitions. Reads no more than it must."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from txnlog.config import check_whole_number
from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.read.latest import find_newest, newest_rows, once
from txnlog.read.plan import ScanColumns, SegmentRange
from txnlog.read.scan_reader import Report, read_each, read_ranges, sound_batches
from txnlog.storage.base import Storage

_Ranges: TypeAlias = Sequence[SegmentRange]
"""The batches of one partition, in order."""


def first_records(
    storage: Storage,
    ranges: Sequence[SegmentRange],
    columns: ScanColumns,
    count: int,
    report: Report | None = None,
    *,
    latest: bool = False,
) -> pa.Table:
    """See :meth:`txnlog.Scan.head`."""
    read = partial(_read_first, storage, count)
    if latest:
        read = partial(_read_latest, storage, partial(_first_of, count), report)
    elif report is not None:
        read = partial(_read_sound, read, partial(_first_sound, storage, count, report))
    return _merge(ranges, columns, count, read)[:count]


def last_records(
    storage: Storage,
    ranges: Sequence[SegmentRange],
    columns: ScanColumns,
    count: int,
    report: Report | None = None,
    *,
    latest: bool = False,
) -> pa.Table:
    """See :meth:`txnlog.Scan.tail`."""
    read = partial(_read_last, storage, count)
    if latest:
        read = partial(_read_latest, storage, partial(_last_of, count), report)
    elif report is not None:
        read = partial(_read_sound, read, partial(_last_sound, storage, count, report))
    found = _merge(ranges, columns, count, read)
    return found[max(found.num_rows - count, 0) :]


def _read_sound(
    read: Callable[[Sequence[_Ranges], ScanColumns], Iterator[pa.Table]],
    read_past: Callable[[_Ranges, ScanColumns], pa.Table],
    groups: Sequence[_Ranges],
    columns: ScanColumns,
) -> Iterator[pa.Table]:
    """Read each partition with ``read``; damaged ones with ``read_past``, which skips damage."""
    try:
        yield from [*read(groups, columns)]
    except CorruptRecord:
        for group in groups:
            try:
                (table,) = read([group], columns)
            except CorruptRecord:
                table = read_past(group, columns)
            yield table


def _first_sound(
    storage: Storage, count: int, report: Report, group: _Ranges, columns: ScanColumns
) -> pa.Table:
    with closing(sound_batches(storage, group, columns, report, skip_damaged=True)) as batches:
        return _first_of(count, columns, batches)


def _first_of(count: int, columns: ScanColumns, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    found, missing = columns.schema.empty_table(), count
    for batch in batches:
        found = pa.concat_tables([found, pa.Table.from_batches([batch[:missing]])])
        missing = count - found.num_rows
        if missing <= 0:
            break
    return found


def _last_of(count: int, columns: ScanColumns, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    kept: deque[pa.RecordBatch] = deque()
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        while rows - kept[0].num_rows >= count:
            rows -= kept.popleft().num_rows
    found = pa.Table.from_batches(kept, schema=columns.schema)
    return found[max(rows - count, 0) :]


def _read_latest(
    storage: Storage,
    take: Callable[[ScanColumns, Iterable[pa.RecordBatch]], pa.Table],
    report: Report | None,
    groups: Sequence[_Ranges],
    columns: ScanColumns,
) -> Iterator[pa.Table]:
    """Read the newest rows of each partition's keys, and let ``take`` choose among them."""
    told = None if report is None else once(report)
    newest = find_newest(storage, [*chain(*groups)], columns, told)
    for group in groups:
        with closing(newest_rows(storage, group, columns, newest, told)) as batches:
            yield take(columns, batches)


def _last_sound(
    storage: Storage, count: int, report: Report, group: _Ranges, columns: ScanColumns
) -> pa.Table:
    found = columns.schema.empty_table()
    for part in reversed(group):
        batches = sound_batches(storage, [part], columns, report, skip_damaged=True)
        before = pa.Table.from_batches(batches, schema=columns.schema)
        found = pa.concat_tables([before, found])
        if found.num_rows >= count:
            break
    return found[max(found.num_rows - count, 0) :]


def _merge(
    ranges: Sequence[SegmentRange],
    columns: ScanColumns,
    count: int,
    read: Callable[[Sequence[_Ranges], ScanColumns], Iterator[pa.Table]],
) -> pa.Table:
    """The results of ``read`` in each partition, merged by time."""
    check_whole_number(count, "the number of records", InvalidOption, least=0)
    wanted = columns.with_timestamp()
    groups = [[*group] for _, group in groupby(ranges, key=lambda part: part.partition)]
    tables = [table for table in read(groups if count else (), wanted) if table.num_rows]
    if not tables:
        return columns.schema.empty_table()
    # Within a partition the order of offsets stays, even if times run backwards.
    times = [
        np.maximum.accumulate(table.column(columns.timestamp).cast(pa.int64()).to_numpy())
        for table in tables
    ]
    order = np.argsort(np.concatenate(times), kind="stable")
    return pa.concat_tables(tables).take(pa.array(order)).select([*columns.names])


def _read_first(
    storage: Storage, count: int, groups: Sequence[_Ranges], columns: ScanColumns
) -> Iterator[pa.Table]:
    """The first records of each partition; the requests of all partitions are made together."""
    is_filtered = columns.row_filter is not None
    chosen = [_first_ranges(group, count, is_filtered=is_filtered) for group in groups]
    with closing(read_each(storage, [*chain(*chosen)], columns)) as reads:
        for group, parts in zip(groups, chosen, strict=True):
            found: list[pa.RecordBatch] = []
            missing = count
            here = (next(reads)[1] for _ in parts)
            # Imported or filtered ranges may have gaps: then the chosen ranges are not enough. They
            # are never too many, so the next read is the next partition's.
            rest = read_ranges(storage, group[len(parts) :], columns)
            for batch in chain(chain.from_iterable(here), rest):
                found.append(batch[:missing])
                missing -= found[-1].num_rows
                if not missing:
                    break
            yield pa.Table.from_batches(found, schema=columns.schema)


def _first_ranges(ranges: _Ranges, count: int, *, is_filtered: bool) -> list[SegmentRange]:
    """The first ranges that hold ``count`` records, as far as offsets without gaps tell.

    The last one is cut after the last record if all of them have no gaps.
    """
    chosen: list[SegmentRange] = []
    is_exact = not is_filtered
    for part in ranges:
        if count <= 0:
            break
        is_exact = is_exact and part.segment.stored.is_dense
        if is_exact:
            part = replace(part, stop_offset=min(part.stop_offset, part.start_offset + count))
        chosen.append(part)
        count -= part.record_count
    return chosen


def _read_last(
    storage: Storage, count: int, groups: Sequence[_Ranges], columns: ScanColumns
) -> Iterator[pa.Table]:
    """The last records of each partition; requests are made together if there are no gaps."""
    is_filtered = columns.row_filter is not None
    chosen = [None if is_filtered else _last_ranges(group, count) for group in groups]
    dense = [part for parts in chosen for part in parts or ()]
    with closing(read_each(storage, dense, columns)) as reads:
        for group, parts in zip(groups, chosen, strict=True):
            if parts is None:
                yield _read_backwards(storage, count, group, columns)
            else:
                batches = [batch for _ in parts for batch in next(reads)[1]]
                yield pa.Table.from_batches(batches, schema=columns.schema)


def _last_ranges(ranges: _Ranges, count: int) -> list[SegmentRange] | None:
    """The last ranges, with ``count`` records; None if there may be gaps in them."""
    chosen: deque[SegmentRange] = deque()
    for part in reversed(ranges):
        if count <= 0:
            break
        if not part.segment.stored.is_dense:
            return None
        part = replace(part, start_offset=max(part.start_offset, part.stop_offset - count))
        chosen.appendleft(part)
        count -= part.record_count
    return [*chosen]


def _read_backwards(
    storage: Storage, count: int, ranges: _Ranges, columns: ScanColumns
) -> pa.Table:
    found: deque[pa.Table] = deque()
    missing = count
    for part in reversed(ranges):
        if part.segment.stored.is_dense and columns.row_filter is None:
            # Its offsets are dense: the others need not be read.
            part = replace(part, start_offset=max(part.start_offset, part.stop_offset - missing))
        table = _last_of(missing, columns, read_ranges(storage, [part], columns))
        found.appendleft(table)
        missing -= table.num_rows
        if not missing:
            break
    return pa.concat_tables([columns.schema.empty_table(), *found])
