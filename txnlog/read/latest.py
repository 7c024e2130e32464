"""The newest record of each key in some ranges: what compaction would leave, without its wait.

Within a partition the greatest offset is the newest, as when a topic is compacted. A key has
records in several partitions if partitions were added, or writers chose them: then the newest of
these is the one with the greatest timestamp, and of equal ones that in the last partition.

Two readings: the first, of keys and times alone, finds the offsets; the second reads their rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.errors import InvalidOption
from txnlog.read.filtered_ranges import matching_ranges
from txnlog.read.scanned_ranges import read_each
from txnlog.read.schema import ScanColumns
from txnlog.read.segment_ranges import SegmentRange
from txnlog.read.sound_ranges import DamagedRecords, Report, read_sound
from txnlog.schema import DELETED
from txnlog.segments.number_arrays import arrow_of, numbers_of
from txnlog.segments.records import Int64Array
from txnlog.storage.base import Storage

Newest: TypeAlias = Mapping[int, Int64Array]
"""By partition, the offsets of the newest records, ascending."""

_NUMBERS: Final = ("partition", "offset", "timestamp")
_LEAST_ROWS: Final = 1 << 17
"""Fewer are not worth grouping."""
_MOST_BYTES: Final = 1 << 30
"""With more, Arrow's columns of keys have long positions: the others end at 2 GiB."""


def check_has_key(topic: str, columns: ScanColumns) -> None:
    """Raise InvalidOption if the topic has a schema without a key."""
    if columns.topic_schema is not None and not columns.topic_schema.key:
        raise InvalidOption(f"latest=True: the schema of {topic} has no key")


def read_latest(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    report: Report | None = None,
) -> Generator[pa.RecordBatch]:
    """One row for each key, in the order of ``parts``; the filter is applied to these rows.

    ``parts`` are in the order of partitions and offsets. Records without a key are left out, and
    keys whose newest record deletes them. With ``report`` damaged records count as not there, and
    it is called with them.

    Raises what ``read_each`` does; with ``report`` no CorruptRecord.
    """
    told = None if report is None else once(report)
    newest = find_newest(storage, parts, columns, told)
    yield from newest_rows(storage, parts, columns, newest, told)


def find_newest(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    report: Report | None = None,
) -> Newest:
    """Where the newest record of each key is, those that delete it too.

    Memory: for each key about 300 bytes and five times its size; see ``_Fold``.
    """
    schema = columns.topic_schema
    keys = ("key",) if schema is None else schema.key
    reading = replace(columns, as_json=False, row_filter=None)
    offset, timestamp = reading.only("offset", "timestamp").names
    reading = replace(reading, names=(*keys, offset, timestamp))
    result = _Fold(len(keys), by_time=True)
    here, partition = _Fold(len(keys)), -1
    with closing(_read(storage, parts, reading, report)) as reads:
        for part, batch in reads:
            if part.partition != partition:
                result.add(here.finish())
                here, partition = _Fold(len(keys)), part.partition
            if schema is None and batch.column(0).null_count:
                batch = batch.filter(batch.column(0).is_valid())
            if batch.num_rows:
                here.add(_rows(batch, len(keys), partition))
    result.add(here.finish())
    found = result.finish()
    if found is None:
        return {}
    partitions, offsets = _numbers(found["partition"]), _numbers(found["offset"])
    order = np.lexsort((offsets, partitions))
    partitions, offsets = partitions[order], offsets[order]
    numbers, starts = np.unique(partitions, return_index=True)
    return dict(zip(numbers.tolist(), np.split(offsets, starts[1:]), strict=True))


def newest_rows(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    newest: Newest,
    report: Report | None = None,
) -> Generator[pa.RecordBatch]:
    """The rows of these records but those that delete; the filter is applied to them.

    Ranges that hold none of them are not read.
    """
    is_plain = columns.topic_schema is None or columns.as_json
    deciding = "value" if is_plain else DELETED
    (offset,) = columns.only("offset").names
    names = (*columns.with_looked_at.names, offset, deciding)
    reading = replace(columns, names=tuple(dict.fromkeys(names)), row_filter=None)
    chosen = [part for part in matching_ranges(parts, columns) if _holds(part, newest)]
    with closing(_read(storage, chosen, reading, report)) as reads:
        for part, batch in reads:
            offsets = newest[part.partition]
            here = numbers_of(batch.column(offset))
            at = np.minimum(np.searchsorted(offsets, here), len(offsets) - 1)
            rows = batch.take(arrow_of(np.flatnonzero(offsets[at] == here)))
            flags = rows.column(deciding)
            rows = rows.filter(flags.is_valid() if is_plain else pc.invert(flags))
            if columns.row_filter is not None:
                rows = rows.filter(columns.row_filter.rows(rows))
            if rows.num_rows:
                yield rows.select([*columns.names])


def _holds(part: SegmentRange, newest: Newest) -> bool:
    offsets = newest.get(part.partition)
    if offsets is None:
        return False
    first, end = np.searchsorted(offsets, (part.start_offset, part.stop_offset))
    return bool(first < end)


def _read(
    storage: Storage, parts: Sequence[SegmentRange], columns: ScanColumns, report: Report | None
) -> Generator[tuple[SegmentRange, pa.RecordBatch]]:
    """Each batch with its range; with ``report`` past damage."""
    if report is None:
        with closing(read_each(storage, parts, columns)) as reads:
            for part, batches in reads:
                for batch in batches:
                    yield part, batch
        return
    with closing(read_sound(storage, parts, columns, skip_damaged=True)) as found:
        for part, item in found:
            if isinstance(item, DamagedRecords):
                report(item)
            elif item is not None:
                yield part, item


def once(report: Report) -> Report:
    """Tells what both readings find only once."""
    told: set[tuple[int, int, int]] = set()

    def report_new(damaged: DamagedRecords) -> None:
        place = damaged.partition, damaged.offset, damaged.next_offset
        if place not in told:
            told.add(place)
            report(damaged)

    return report_new


def _rows(batch: pa.RecordBatch, key_count: int, partition: int) -> pa.Table:
    """Of a batch of keys, offsets and timestamps."""
    *keys, offsets, timestamps = batch.columns
    numbers = arrow_of(np.full(batch.num_rows, partition, dtype=np.int64))
    columns = [*keys, numbers, offsets, timestamps.view(pa.int64())]
    return pa.table(columns, names=[*_key_names(key_count), *_NUMBERS])


def _key_names(count: int) -> list[str]:
    return [f"key{number}" for number in range(count)]


def _numbers(column: pa.ChunkedArray) -> Int64Array:
    """Those of a column without nulls."""
    return np.concatenate([np.empty(0, np.int64), *map(numbers_of, column.chunks)])


class _Fold:
    """The newest of the added rows of each key: the last one, or the one with the greatest time.

    Rows are grouped when there are a few, which gives up the batches that they are slices of, and
    the groups again when there are as many as keys: so memory is about the keys, and each row is
    grouped about three times.
    """

    def __init__(self, key_count: int, *, by_time: bool = False) -> None:
        self._keys = _key_names(key_count)
        self._by_time = by_time
        self._added: list[pa.Table] = []
        self._groups: list[pa.Table] = []
        self._added_rows = self._group_rows = 0

    def add(self, rows: pa.Table | None) -> None:
        """Add rows with keys, which are newer than those before unless ``by_time``."""
        if rows is None:
            return
        self._added.append(rows)
        self._added_rows += rows.num_rows
        if self._added_rows >= _LEAST_ROWS:
            self._group_added()

    def finish(self) -> pa.Table | None:
        """One row for each key, in no particular order; None if there is none."""
        self._group_added()
        self._merge_groups()
        return self._groups[0] if self._groups else None

    def _group_added(self) -> None:
        if self._added:
            self._groups.append(self._newest_of(self._added))
            self._group_rows += self._groups[-1].num_rows
            self._added, self._added_rows = [], 0
        if self._groups and self._group_rows > 2 * self._groups[0].num_rows:
            self._merge_groups()

    def _merge_groups(self) -> None:
        if len(self._groups) > 1:
            self._groups = [self._newest_of(self._groups)]
            self._group_rows = self._groups[0].num_rows

    def _newest_of(self, tables: Sequence[pa.Table]) -> pa.Table:
        size = sum(table.select(self._keys).nbytes for table in tables)
        if size > _MOST_BYTES or any(table.schema != tables[0].schema for table in tables):
            tables = [table.cast(_with_long_positions(table.schema)) for table in tables]
        rows = pa.concat_tables(tables)
        count = rows.num_rows
        order = np.arange(count)
        if self._by_time:
            order = np.lexsort((_numbers(rows["partition"]), _numbers(rows["timestamp"])))
        ranks = np.empty(count, dtype=np.int64)
        ranks[order] = np.arange(count)
        grouping = rows.select(self._keys).append_column("rank", arrow_of(ranks))
        found = grouping.group_by(self._keys, use_threads=False).aggregate([("rank", "max")])
        chosen = order[_numbers(found["rank_max"])]
        columns = {name: found[name] for name in self._keys}
        for name in _NUMBERS:
            columns[name] = arrow_of(_numbers(rows[name])[chosen])
        return pa.table(columns)


def _with_long_positions(schema: pa.Schema) -> pa.Schema:
    """Texts and bytes as Arrow's large types."""

    def wide(kind: pa.DataType) -> pa.DataType:
        if types.is_binary(kind):
            return pa.large_binary()
        return pa.large_string() if types.is_string(kind) else kind

    return pa.schema([field.with_type(wide(field.type)) for field in schema])
