"""The newest record of each key in some ranges: what compaction would leave, without its wait.

Within a partition the greatest offset is the newest, as when a topic is compacted. A key has
records in several partitions if partitions were added, or writers chose them: then the newest of
these is the one with the greatest timestamp, and of equal ones that in the last partition.

Two readings: the first, of keys and times alone, finds the offsets; the second reads their rows.
Where compaction has been, each partition begins with segments that have no key twice: of these the
first reading needs nothing, and the second leaves out the keys that the rest has. That holds for a
key in one partition. So the log says of such segments whether murmur2 has chosen all their
partitions; if not, or if the rest has keys elsewhere, the keys of all are read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from pyarrow import types

from txnlog.columns.keys import encode_keys, home_of
from txnlog.errors import InvalidOption
from txnlog.read.plan import ScanColumns, SegmentRange, matching_ranges
from txnlog.read.scan_reader import DamagedRecords, Report, read_each, read_sound
from txnlog.schema import DELETED
from txnlog.segments.arrays import arrow_of, numbers_of, numbers_of_column
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.records import Int64Array
from txnlog.storage.base import Storage

_HASHED_ROWS: Final = 1 << 12
"""Keys are hashed so many at a time: then their positions are short, too."""
_LEAST_GAP: Final = 1 << 17
"""Offsets in a row without a newest record: fewer are read, to ask for no file twice."""
_NO_NUMBERS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Newest:
    """Which records are the newest of their keys, those that delete it too.

    ``offsets``, by partition, ascending, are those from its offset in ``clean_ends`` on. Before it
    each record is the newest of its key, but for the keys in ``newer`` of its partition. ``keys``
    are those of the records at ``offsets``, where the second reading can do without them.
    """

    offsets: Mapping[int, Int64Array]
    keys: Mapping[int, pa.Table]
    clean_ends: Mapping[int, int] = field(default_factory=dict)
    newer: Mapping[int, pa.ChunkedArray] = field(default_factory=dict)

    def is_clean(self, part: SegmentRange) -> bool:
        """Whether a range lies before the offset in ``clean_ends``."""
        return part.start_offset < self.clean_ends.get(part.partition, 0)

    def key_column(self, partition: int, number: int, offsets: pa.Array) -> pa.Array:
        """A column of the keys of some of the records at ``offsets``."""
        rows = np.searchsorted(self.offsets[partition], numbers_of(offsets))
        return self.keys[partition].column(number).take(arrow_of(rows)).combine_chunks()

    def narrow(self, part: SegmentRange) -> Iterator[SegmentRange]:
        """The pieces of a range that are worth reading: long stretches without any are left out."""
        if self.is_clean(part):
            yield part
            return
        offsets = self.offsets.get(part.partition, _NO_NUMBERS)
        first, end = np.searchsorted(offsets, (part.start_offset, part.stop_offset))
        here = offsets[first:end]
        if len(here):
            cuts = np.flatnonzero(np.diff(here) > _LEAST_GAP)
            starts, lasts = here[[0, *cuts + 1]], here[[*cuts, -1]]
            for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
                yield structs.replace(part, start_offset=start, stop_offset=last + 1)


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

    Memory: for each key about 300 bytes and five times its size; see ``NewestFold``. Of compacted
    topics for each key of the rest.
    """
    keys = _key_columns(columns)
    reading = replace(columns, as_json=False, row_filter=None)
    offset, timestamp = reading.only("offset", "timestamp").names
    reading = replace(reading, names=(*keys, offset, timestamp))
    clean = Clean()
    if report is None and not columns.as_json:
        clean = find_clean(parts)
    rest = [part for part in parts if not clean.has(part)]
    tables = _fold_each(storage, rest, reading, report)
    numbers = {part.partition for part in parts}
    strays = None
    if len(numbers) > 1:
        strays = _strays(tables, len(keys), clean.partitions or 1 + max(numbers))
    if strays is not None and clean.ends:
        older = _fold_each(storage, [part for part in parts if clean.has(part)], reading, report)
        for number, table in older.items():
            both = NewestFold(len(keys))
            both.add(table)
            both.add(tables.get(number))
            tables[number] = both.finish()
        clean = Clean()
        strays = _strays(tables, len(keys), 1 + max(numbers))
    newer = {n: _lookup(table, len(keys)) for n, table in tables.items() if n in clean.ends}
    offsets = {n: np.sort(found) for n, found in _offsets(tables, len(keys), strays).items()}
    keys_of = {}
    if not (clean.ends or columns.as_json) and {*keys} & {*columns.with_looked_at.names}:
        keys_of = {n: _keys_at(tables[n], len(keys), found) for n, found in offsets.items()}
    return Newest(offsets, keys_of, clean.ends, newer)


def newest_rows(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    newest: Newest,
    report: Report | None = None,
) -> Generator[pa.RecordBatch]:
    """The rows that ``newest`` marks, without those that delete; the filter is applied to them.

    Ranges without such rows are not read, nor are long stretches without any.
    """
    is_plain = columns.topic_schema is None or columns.as_json
    deciding = "value" if is_plain else DELETED
    (offset,) = columns.only("offset").names
    keys = _key_columns(columns)
    wanted = columns.with_looked_at
    names = dict.fromkeys((*wanted.names, offset, deciding, *(keys if newest.newer else ())))
    known = {*keys} & {*wanted.names} if newest.keys else frozenset[str]()
    reading = replace(columns, names=tuple(n for n in names if n not in known), row_filter=None)
    matching = matching_ranges(parts, columns)
    chosen = [piece for part in matching for piece in newest.narrow(part)]
    with closing(_read(storage, chosen, reading, report)) as reads:
        for partition, rows, is_newest in _judge(reads, newest, keys, offset):
            flags = rows.column(deciding)
            stays = flags.is_valid() if is_plain else pc.invert(flags)
            stays = stays if is_newest is None else pc.and_(stays, is_newest)
            if stays.true_count < len(stays):
                rows = rows.filter(stays)
            for name in known:
                found = newest.key_column(partition, keys.index(name), rows.column(offset))
                own = wanted.field(name)
                rows = rows.append_column(own, found.cast(own.type))
            if columns.row_filter is not None:
                rows = rows.filter(columns.row_filter.rows(rows))
            if rows.num_rows:
                yield rows.select([*columns.names])


def _judge(
    reads: Iterator[tuple[SegmentRange, pa.RecordBatch]],
    newest: Newest,
    keys: Sequence[str],
    offset: str,
) -> Iterator[tuple[int, pa.RecordBatch, pa.Array | None]]:
    """Each batch of a partition, and which of its rows are the newest of their keys; None: all."""
    for (is_clean, partition), group in groupby(
        reads, lambda read: (newest.is_clean(read[0]), read[0].partition)
    ):
        batches = (batch for _, batch in group)
        if not is_clean:
            offsets = newest.offsets[partition]
            for batch in batches:
                yield partition, batch, pa.array(_which(numbers_of(batch.column(offset)), offsets))
        elif (newer := newest.newer.get(partition)) is None:
            yield from ((partition, batch, None) for batch in batches)
        else:
            yield from ((partition, *judged) for judged in _without(batches, keys, newer))


def _which(here: Int64Array, offsets: Int64Array) -> npt.NDArray[np.bool_]:
    """For each of ``here``, whether it is among ``offsets``; both ascend."""
    found = np.zeros(len(here), np.bool_)
    if len(here):
        first, end = np.searchsorted(offsets, (here[0], here[-1] + 1))
        some = offsets[first:end]
        at = np.searchsorted(here, some)
        found[at[here[at] == some]] = True
    return found


def _without(
    batches: Iterator[pa.RecordBatch], names: Sequence[str], newer: pa.ChunkedArray
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Each batch, and which of its rows have keys that are not in ``newer``."""
    return look_up(
        batches,
        lambda batch: _as_keys([batch.column(name) for name in names]),
        lambda keys: pc.invert(_are_in(keys, newer)),
        len(newer),
    )


def _key_columns(columns: ScanColumns) -> tuple[str, ...]:
    return ("key",) if columns.topic_schema is None else columns.topic_schema.key


def _as_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Keys by which rows are looked up: a single column as it is."""
    return columns[0] if len(columns) == 1 else encode_keys(columns, len(columns[0]))


@dataclass(frozen=True, slots=True)
class Clean:
    """The ends of each partition's clean part, in which no key occurs twice.

    ``partitions``: how many there were when murmur2 chose the partition of each key in it; 0 if
    that does not matter.
    """

    ends: Mapping[int, int] = field(default_factory=dict)
    partitions: int = 0

    def has(self, part: SegmentRange) -> bool:
        """Whether a range lies in the clean part."""
        return part.start_offset < self.ends.get(part.partition, 0)


def find_clean(parts: Sequence[SegmentRange]) -> Clean:
    """The compacted parts of a topic's ranges; none if a key may be in several partitions."""
    ends: dict[int, int] = {}
    homes: set[int] = set()
    dirty: set[int] = set()
    for part in parts:
        rewritten = part.segment.stored.rewritten
        if part.partition in dirty or rewritten is None or not rewritten.is_compacted:
            dirty.add(part.partition)
            continue
        ends[part.partition] = part.stop_offset
        if not part.segment.stored.is_empty:
            homes.add(rewritten.home_partitions)
    if len({part.partition for part in parts}) == 1:
        return Clean(ends)
    if len(homes) != 1 or 0 in homes:
        return Clean()
    return Clean(ends, homes.pop())


def _fold_each(
    storage: Storage, parts: Sequence[SegmentRange], reading: ScanColumns, report: Report | None
) -> dict[int, pa.Table]:
    """By partition, the newest rows of each key, in no particular order."""
    count = len(reading.names) - 2
    tables: dict[int, pa.Table] = {}
    with closing(_read(storage, parts, reading, report)) as reads:
        for partition, group in groupby(reads, lambda read: read[0].partition):
            here = NewestFold(count)
            for _, batch in group:
                if reading.topic_schema is None and batch.column(0).null_count:
                    batch = batch.filter(batch.column(0).is_valid())
                if batch.num_rows:
                    here.add(_rows(batch, count))
            found = here.finish()
            if found is not None:
                tables[partition] = found
    return tables


def _strays(
    tables: Mapping[int, pa.Table], key_count: int, partitions: int
) -> pa.ChunkedArray | None:
    """The keys in partitions other than murmur2 would choose; None if there are none.

    They include every key that is in several partitions.
    """
    found: list[pa.ChunkedArray] = []
    for number, table in tables.items():
        for batch in table.to_batches(_HASHED_ROWS):
            columns = [batch.column(name) for name in key_names(key_count)]
            away = home_of(encode_keys(columns, batch.num_rows), partitions) != number
            if away.any():
                rows = pa.Table.from_batches([batch]).filter(pa.array(away))
                found.append(_lookup(rows, key_count))
    if any(keys.type != found[0].type for keys in found):
        found = [keys.cast(wide(keys.type)) for keys in found]
    return pa.chunked_array([c for keys in found for c in keys.chunks]) if found else None


def _offsets(
    tables: Mapping[int, pa.Table], key_count: int, strays: pa.ChunkedArray | None
) -> dict[int, Int64Array]:
    """By partition, the offsets of rows that are the newest of all partitions."""
    if strays is None:
        return {number: numbers_of_column(table["offset"]) for number, table in tables.items()}
    alone: dict[int, Int64Array] = {}
    shared = NewestFold(key_count, by_time=True)
    for number, table in tables.items():
        is_shared = _are_in(_lookup(table, key_count), strays)
        alone[number] = numbers_of_column(table["offset"].filter(pc.invert(is_shared)))
        some = table.filter(is_shared)
        shared.add(some.append_column("partition", arrow_of(np.full(len(some), number, np.int64))))
    rows = shared.finish()
    assert rows is not None
    partitions, offsets = numbers_of_column(rows["partition"]), numbers_of_column(rows["offset"])
    return {n: np.concatenate([found, offsets[partitions == n]]) for n, found in alone.items()}


def _keys_at(table: pa.Table, key_count: int, offsets: Int64Array) -> pa.Table:
    """The keys of the rows with these offsets, in their order."""
    found = numbers_of_column(table["offset"])
    order = np.argsort(found)
    rows = order[np.searchsorted(found[order], offsets)]
    return table.select(key_names(key_count)).take(arrow_of(rows))


def _lookup(table: pa.Table, key_count: int) -> pa.ChunkedArray:
    """The keys of rows as :func:`_as_keys` has them."""
    names = key_names(key_count)
    if key_count == 1:
        return table[names[0]]
    pieces = [_as_keys(batch.columns) for batch in table.select(names).to_batches(_HASHED_ROWS)]
    return pa.chunked_array(pieces, pa.binary())


def _are_in(keys: pa.ChunkedArray, some: pa.ChunkedArray) -> pa.ChunkedArray:
    if keys.type != some.type:
        keys, some = keys.cast(wide(keys.type)), some.cast(wide(some.type))
    return pc.is_in(keys, value_set=some)


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


def _rows(batch: pa.RecordBatch, key_count: int) -> pa.Table:
    """A table of a batch's keys, offsets and timestamps."""
    *keys, offsets, timestamps = batch.columns
    names = [*key_names(key_count), "offset", "timestamp"]
    return pa.table([*keys, offsets, timestamps.view(pa.int64())], names=names)


# -- the newest row of each key, of rows in order ------------------------------------------------

_LEAST_ROWS: Final = 1 << 21
_LEAST_BYTES: Final = 128 << 20
"""Fewer rows, and keys of fewer bytes, are not worth grouping."""
_MOST_BYTES: Final = 1 << 30
"""With more, Arrow's columns of keys have long positions: the others end at 2 GiB."""
_AS_NUMBERS: Final = frozenset({0, 1, 2, 4, 8})
"""Values of these sizes Arrow hashes as numbers: of 8 digits so badly that they take 16 times as
long.
"""


class NewestFold:
    """The newest of the added rows of each key: the last one, or the one with the greatest time.

    Rows are grouped when there are many, which gives up the batches that they are slices of, and
    the groups again when there are as many as keys: so memory is about the keys, and each row is
    grouped once or twice.
    """

    def __init__(self, key_count: int, *, by_time: bool = False) -> None:
        self._keys = key_names(key_count)
        self._by_time = by_time
        self._added: list[pa.Table] = []
        self._groups: list[pa.Table] = []
        self._added_rows = self._added_bytes = self._group_rows = 0

    def add(self, rows: pa.Table | None) -> None:
        """Add rows with keys, which are newer than those before unless ``by_time``."""
        if rows is None:
            return
        self._added.append(rows)
        self._added_rows += rows.num_rows
        self._added_bytes += rows.nbytes
        if self._added_rows >= _LEAST_ROWS or self._added_bytes >= _LEAST_BYTES:
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
            self._added, self._added_rows, self._added_bytes = [], 0, 0
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
        ranks = np.arange(rows.num_rows)
        order = None
        if self._by_time:
            order = np.lexsort(
                (numbers_of_column(rows["partition"]), numbers_of_column(rows["timestamp"]))
            )
            ranks[order] = np.arange(rows.num_rows)
        grouping = pa.table({"rank": arrow_of(ranks)})
        fixed = {name: _as_fixed(rows[name]) for name in self._keys}
        for name, column in fixed.items():
            grouping = grouping.append_column(name, rows[name] if column is None else column)
        found = grouping.group_by(self._keys, use_threads=False).aggregate([("rank", "max")])
        chosen = numbers_of_column(found["rank_max"])
        if order is not None:
            chosen = order[chosen]
        columns = {
            name: found[name] if column is None else _as_it_was(found[name], rows[name].type)
            for name, column in fixed.items()
        }
        for name in rows.schema.names[len(self._keys) :]:
            columns[name] = arrow_of(numbers_of_column(rows[name])[chosen])
        return pa.table(columns)


def key_names(count: int) -> list[str]:
    return [f"key{number}" for number in range(count)]


def _with_long_positions(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(wide(field.type)) for field in schema])


def wide(kind: pa.DataType) -> pa.DataType:
    """Texts and bytes as Arrow's large types."""
    if types.is_binary(kind):
        return pa.large_binary()
    return pa.large_string() if types.is_string(kind) else kind


# -- keys of one length --------------------------------------------------------------------------


def _as_fixed(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Texts or bytes that are all of one length, as values of that size; None: they are not.

    The memory is the same, and Arrow groups them in half the time.
    """
    kind = column.type
    is_long = types.is_large_binary(kind) or types.is_large_string(kind)
    if column.null_count or not (is_long or types.is_binary(kind) or types.is_string(kind)):
        return None
    dtype = np.dtype(np.int64 if is_long else np.int32)
    chunks: list[pa.Array] = []
    for chunk in column.chunks:
        count = len(chunk)
        if not count:
            continue
        _, positions, data = chunk.buffers()
        ends = np.frombuffer(positions, dtype, count + 1, chunk.offset * dtype.itemsize)
        size = int(ends[1] - ends[0])
        if size in _AS_NUMBERS or (np.diff(ends) != size).any():
            return None
        fixed = pa.binary(size)
        if chunks and chunks[0].type != fixed:
            return None
        values = data.slice(int(ends[0]), count * size)
        chunks.append(pa.Array.from_buffers(fixed, count, [None, values]))
    return pa.chunked_array(chunks) if chunks else None


def _as_it_was(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The opposite of :func:`_as_fixed`."""
    is_long = types.is_large_binary(kind) or types.is_large_string(kind)
    dtype, size = np.int64 if is_long else np.int32, column.type.byte_width
    chunks = []
    for chunk in column.chunks:
        count = len(chunk)
        positions = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=dtype))
        values = chunk.buffers()[1].slice(chunk.offset * size, count * size)
        chunks.append(pa.Array.from_buffers(kind, count, [None, positions, values]))
    return pa.chunked_array(chunks, kind)


# -- keys among others ---------------------------------------------------------------------------

B = TypeVar("B", pa.RecordBatch, SegmentBatch)

_MOST_WAITING_BYTES: Final = 32 << 20
_WORTH_TIMES: Final = 4
"""Batches wait until they have so many rows for each key, or take so many bytes together."""


def look_up(
    batches: Iterable[B],
    keys_of: Callable[[pa.RecordBatch], pa.Array],
    find: Callable[[pa.ChunkedArray], pa.ChunkedArray],
    among: int,
) -> Iterator[tuple[B, pa.Array]]:
    """Each batch, with the result of ``find`` for the keys of its rows.

    ``among`` is the number of keys that ``find`` searches. Each call reads them all, which takes
    most of its time if a batch is small. So if there are many, several batches are looked up at
    once.
    """
    waiting: list[B] = []
    rows = size_bytes = 0
    for batch in chain(batches, [None]):
        if batch is not None:
            records = _records(batch)
            waiting.append(batch)
            rows += records.num_rows
            size_bytes += records.nbytes
            if rows < _WORTH_TIMES * among and size_bytes < _MOST_WAITING_BYTES:
                continue
        if waiting:
            keys = pa.chunked_array([keys_of(_records(other)) for other in waiting])
            found = find(keys).combine_chunks()
            start = 0
            for other in waiting:
                count = _records(other).num_rows
                yield other, found.slice(start, count)
                start += count
        waiting, rows, size_bytes = [], 0, 0


def _records(batch: pa.RecordBatch | SegmentBatch) -> pa.RecordBatch:
    return batch.records if isinstance(batch, SegmentBatch) else batch
