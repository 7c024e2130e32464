"""The oldest and the newest records of a scan, over its partitions. Reads no more than it must."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa

from txnlog.config import check_whole_number
from txnlog.errors import InvalidOption
from txnlog.read.schema import scan_schema
from txnlog.read.segment_ranges import SegmentRange, read_range
from txnlog.storage.base import Storage


def first_records(
    storage: Storage, ranges: Sequence[SegmentRange], columns: Sequence[str], count: int
) -> pa.Table:
    """See :meth:`txnlog.Scan.head`."""
    found = _merge(ranges, columns, count, partial(_read_first, storage, count))
    return found[:count]


def last_records(
    storage: Storage, ranges: Sequence[SegmentRange], columns: Sequence[str], count: int
) -> pa.Table:
    """See :meth:`txnlog.Scan.tail`."""
    found = _merge(ranges, columns, count, partial(_read_last, storage, count))
    return found[max(found.num_rows - count, 0) :]


def _merge(
    ranges: Sequence[SegmentRange],
    columns: Sequence[str],
    count: int,
    read: Callable[[Sequence[SegmentRange], Sequence[str]], pa.Table],
) -> pa.Table:
    """What ``read`` finds in each partition, merged by time."""
    check_whole_number(count, "the number of records", InvalidOption, least=0)
    wanted = [*columns] if "timestamp" in columns else [*columns, "timestamp"]
    tables = []
    for _, group in groupby(ranges if count else (), key=lambda part: part.partition):
        table = read([*group], wanted)
        if table.num_rows:
            tables.append(table)
    if not tables:
        return scan_schema(columns).empty_table()
    # Within a partition the order of the offsets stays, also where times run backwards in it.
    times = [
        np.maximum.accumulate(table.column("timestamp").cast(pa.int64()).to_numpy())
        for table in tables
    ]
    order = np.argsort(np.concatenate(times), kind="stable")
    return pa.concat_tables(tables).take(pa.array(order)).select([*columns])


def _read_first(
    storage: Storage, count: int, ranges: Sequence[SegmentRange], columns: Sequence[str]
) -> pa.Table:
    found: list[pa.RecordBatch] = []
    missing = count
    for batch in _read_batches(storage, ranges, columns):
        found.append(batch[:missing])
        missing -= found[-1].num_rows
        if not missing:
            break
    return pa.Table.from_batches(found, schema=scan_schema(columns))


def _read_last(
    storage: Storage, count: int, ranges: Sequence[SegmentRange], columns: Sequence[str]
) -> pa.Table:
    found: deque[pa.RecordBatch] = deque()
    missing = count
    for part in reversed(ranges):
        if part.segment.kafka is None:
            # Its offsets are dense: what is not wanted need not be read.
            part = replace(part, start_offset=max(part.start_offset, part.stop_offset - missing))
        kept: deque[pa.RecordBatch] = deque()
        rows = 0
        for batch in read_range(storage, part, columns):
            kept.append(batch)
            rows += batch.num_rows
            while rows - kept[0].num_rows >= missing:
                rows -= kept.popleft().num_rows
        if rows > missing:
            kept[0] = kept[0][rows - missing :]
            rows = missing
        found.extendleft(reversed(kept))
        missing -= rows
        if not missing:
            break
    return pa.Table.from_batches(found, schema=scan_schema(columns))


def _read_batches(
    storage: Storage, ranges: Sequence[SegmentRange], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for part in ranges:
        yield from read_range(storage, part, columns)
