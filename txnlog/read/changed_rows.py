"""Changes of rows: what each record of a range has done to the row of its key.

A key's row is what ``latest`` shows: of its newest record in each partition the one with the
greatest timestamp. Almost every key is in one partition; there its records count one after the
other, in the order of their offsets. Where one is in several, they are put into an order in which
the last is what ``latest`` shows, whatever the times are: within a partition by offset, and across
partitions by the least time that a record or a later one of its partition has.

The records of the range are read, then the keys of what was before, and then of that the rows that
the range has changed. What does not fit into memory is done share by share of the keys; where only
the rows before do not, a share by parts, whose rows there lie next to each other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog import display
from txnlog.arguments import names_wrong_arguments
from txnlog.columns.keys import MOST_PART_BITS, WHOLE, KeyPart, encode_keys, hash_keys
from txnlog.errors import InvalidOption, SnapshotExpired
from txnlog.read.changed_ranges import ChangedRanges
from txnlog.read.latest import look_up
from txnlog.read.plan import SCAN_SCHEMA, TYPED_METADATA, ScanColumns, SegmentRange, scan_columns
from txnlog.read.rows import Rows
from txnlog.read.scan_reader import read_each
from txnlog.schema import DELETED, TopicSchema
from txnlog.segments.arrays import arrow_of, as_array, numbers_of, numbers_of_column
from txnlog.segments.records import Int64Array
from txnlog.storage.base import Storage

if TYPE_CHECKING:
    from txnlog.read.row_filter import RowFilter


CHANGE: Final = "_change"
"""The column that tells what a row is."""
KINDS: Final = ("insert", "update_before", "update_after", "delete")
_INSERT, _BEFORE, _AFTER, _DELETE = range(4)
_MOST_BYTES: Final = 128 << 20
"""Of the range's rows that are worked on together; those before them, and a copy, come on top."""
_MOST_OLDER_BYTES: Final = 128 << 20
"""Of the rows before them; the rows of one key may be larger."""
_MOST_ROWS: Final = 1 << 21
_BATCH_ROWS: Final = 1 << 14
_BATCH_BYTES: Final = 16 << 20
"""Of a batch of the feed, more or less."""
_MOST_PLACES: Final = 1 << 20
"""Places of older records, before all but the newest are dropped."""
_FAR: Final = 1 << 12
"""Older rows that lie so many records apart are read separately."""

_Mask = npt.NDArray[np.bool_]
_Places = dict[int, tuple[Int64Array, Int64Array]]
"""By partition, ascending offsets of records, and the ids of their keys."""


@dataclass(frozen=True, slots=True)
class ChangeColumns:
    """The columns of a feed, in order: ``_change``, and columns of a scan."""

    names: tuple[str, ...]
    rows: ScanColumns

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the feed."""
        return pa.schema([self.field(name) for name in self.names])

    def field(self, name: str) -> pa.Field:
        """The Arrow field of a column."""
        return pa.field(CHANGE, pa.string(), False) if name == CHANGE else self.rows.field(name)

    def with_more(self, names: Sequence[str]) -> ChangeColumns:
        """The columns of this choice and others."""
        every = tuple(dict.fromkeys((*self.names, *names)))
        others = tuple(name for name in every if name != CHANGE) or self.rows.names
        return ChangeColumns(every, replace(self.rows, names=others))

    @property
    def available(self) -> list[str]:
        """The names of all columns that there are."""
        schema = self.rows.topic_schema
        if schema is None or self.rows.as_json:
            return [CHANGE, *SCAN_SCHEMA.names]
        more = (name for name in TYPED_METADATA.names if name != DELETED)
        return [CHANGE, *schema.columns.names, *more]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns that are the key."""
        schema = self.rows.topic_schema
        return ("key",) if schema is None or self.rows.as_json else schema.key

    @property
    def deciding(self) -> str:
        """The column that tells whether a record deletes its key."""
        return "value" if self.is_plain else DELETED

    @property
    def is_plain(self) -> bool:
        """Whether rows are a key and a value: of no schema, or as JSON."""
        return self.rows.topic_schema is None or self.rows.as_json

    @property
    def place(self) -> tuple[str, ...]:
        """The names of the partition, the offset and the timestamp."""
        return self.rows.only("partition", "offset", "timestamp").names


def change_columns(
    topic: str, columns: Sequence[str] | None, schema: TopicSchema | None, *, as_json: bool = False
) -> ChangeColumns:
    """The columns of a feed. None: ``_change``, the record's place and time, and the topic's own.

    With ``as_json`` the rows of a typed topic have a key and a value, in JSON.

    Raises InvalidOption: there is no such column, or the topic has no key.
    """
    if schema is not None and not schema.key:
        raise InvalidOption(f"pre_images=True: the schema of {topic} has no key")
    if schema is not None and not as_json and CHANGE in schema.columns.names:
        raise InvalidOption(
            f"pre_images=True: {topic} has a column {CHANGE!r} of its own, which a feed of changes "
            "needs for itself: rename it"
        )
    every = scan_columns(None, schema, as_json=as_json)
    place = every.only("partition", "offset", "timestamp").names
    own = every.names if schema is not None and not as_json else ("key", "value")
    if isinstance(columns, str):
        raise InvalidOption(f"columns must be a list of names, not the string {columns!r}")
    names = (CHANGE, *place, *own) if columns is None else tuple(columns)
    others = [name for name in names if name != CHANGE]
    if not names or len(set(names)) < len(names):
        raise InvalidOption("columns must name at least one column, and none twice")
    made = ChangeColumns(names, replace(every, names=place))
    for name in others:
        if name not in made.available:
            raise InvalidOption(
                f"unknown column {name!r}; a feed of changes has {', '.join(made.available)}"
            )
    return replace(made, rows=replace(every, names=tuple(others) or place))


def read_changes(
    storage: Storage,
    ranges: ChangedRanges,
    columns: ChangeColumns,
    share: KeyPart = WHOLE,
) -> Iterator[pa.RecordBatch]:
    """The changes as batches of ``columns.schema``; those of a key are in their order.

    Those of the keys of ``share`` alone. Raises SnapshotExpired: compaction has left out records of
    it, and the segments before are gone. CorruptRecord: a segment is damaged or gone.
    """
    shares = [share]
    try:
        while shares:
            added = _Added(columns, shares.pop())
            added.read(storage, ranges.added)
            shares += added.left
            if added.row_count:
                yield from _changes(storage, ranges, columns, added)
    except SnapshotExpired as error:
        raise SnapshotExpired(
            f"some of these changes, or the rows before them, are not known any more: {error}. "
            "Take a snapshot with the newest record of each key (latest=True) instead, and go on "
            "from its token"
        ) from error


class _Added:
    """The rows of a range whose keys are in a share, which shrinks if they are too many.

    The shares that it has given up are in ``left``.
    """

    def __init__(self, columns: ChangeColumns, share: KeyPart) -> None:
        self._columns = columns
        names = (*columns.rows.names, *columns.place, *columns.keys, columns.deciding)
        self.reading = replace(columns.rows, names=tuple(dict.fromkeys(names)))
        self.share = share
        self.left: list[KeyPart] = []
        self.row_count = 0
        self._batches: list[pa.RecordBatch] = []
        self._keys: list[pa.Array] = []
        self._size_bytes = 0

    def read(self, storage: Storage, parts: Sequence[SegmentRange]) -> None:
        with closing(read_each(storage, parts, self.reading)) as reads:
            for _, batches in reads:
                for batch in batches:
                    self._add(batch)

    def take(self) -> tuple[list[pa.RecordBatch], pa.ChunkedArray]:
        """The rows, and their keys as bytes; given up here."""
        found = self._batches, pa.chunked_array(self._keys, pa.binary())
        self._batches, self._keys = [], []
        return found

    def _add(self, batch: pa.RecordBatch) -> None:
        keys = _keys_of(batch, self._columns)
        batch, keys = _filter(batch, keys, np.asarray(keys.is_valid()))
        batch, keys = self._inside(batch, keys)
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._keys.append(keys)
        self.row_count += batch.num_rows
        self._size_bytes += batch.nbytes
        while self._is_full and self.share.bits < MOST_PART_BITS:
            self._halve()

    @property
    def _is_full(self) -> bool:
        return self._size_bytes > _MOST_BYTES or self.row_count > _MOST_ROWS

    def _halve(self) -> None:
        self.share, other = self.share.halves()
        self.left.append(other)
        both = [self._inside(*both) for both in zip(self._batches, self._keys, strict=True)]
        both = [(batch, keys) for batch, keys in both if batch.num_rows]
        self._batches = [batch for batch, _ in both]
        self._keys = [keys for _, keys in both]
        self.row_count = sum(map(len, self._keys))
        self._size_bytes = sum(batch.nbytes for batch in self._batches)

    def _inside(self, batch: pa.RecordBatch, keys: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
        if self.share.bits == 0 or not batch.num_rows:
            return batch, keys
        return _filter(batch, keys, self.share.holds(hash_keys(keys)))


def _changes(
    storage: Storage, ranges: ChangedRanges, columns: ChangeColumns, added: _Added
) -> Iterator[pa.RecordBatch]:
    """The changes of one share, of as many keys at once as there is room for the rows before."""
    batches, keys = added.take()
    encoded = keys.combine_chunks().dictionary_encode()
    before = _Before(storage, ranges.before, columns, added.reading, encoded.dictionary)
    ids = before.numbers[encoded.indices.to_numpy()]
    rows = pa.Table.from_batches(batches, schema=added.reading.schema)
    first, end = 0, len(encoded.dictionary)
    while first < end:
        reached = yield from _part(before, rows, ids, first, end, columns)
        first, end = reached, min(reached + 2 * (reached - first), len(encoded.dictionary))


def _part(
    before: _Before,
    rows: pa.Table,
    ids: Int64Array,
    first: int,
    end: int,
    columns: ChangeColumns,
) -> Generator[pa.RecordBatch, None, int]:
    """The changes of the keys [first, end), or of fewer of them; returns where it has ended."""
    older, older_ids, end = before.rows(first, end)
    chosen = (ids >= first) & (ids < end)
    if not chosen.all():
        rows, ids = rows.filter(pa.array(chosen)), ids[chosen]
    rows = pa.concat_tables([pa.Table.from_batches(older, schema=rows.schema), rows])
    rows = rows.combine_chunks()
    del older
    records = _Records.of(rows, columns, np.concatenate([older_ids, ids]), len(older_ids))
    yield from _images(rows, records, columns)
    return end


def _images(rows: pa.Table, records: _Records, columns: ChangeColumns) -> Iterator[pa.RecordBatch]:
    chosen, places, kinds = _tell(records)
    size = max(1, min(_BATCH_ROWS, len(rows) * _BATCH_BYTES // max(1, rows.nbytes)))
    for start in range(0, len(chosen), size):
        stop = start + size
        images = rows.take(arrow_of(chosen[start:stop]))
        where = rows.select(columns.place).take(arrow_of(places[start:stop]))
        named = pa.array(KINDS).take(arrow_of(kinds[start:stop]))
        arrays = [
            named
            if name == CHANGE
            else as_array(where[name] if name in columns.place else images[name])
            for name in columns.names
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


class _Before:
    """The rows that some keys had before a range: the newest of each of its partitions.

    The keys are numbered so that the rows of adjacent ones lie near each other: ``numbers`` has the
    number of each of ``known``, which are bytes.
    """

    def __init__(
        self,
        storage: Storage,
        parts: Sequence[SegmentRange],
        columns: ChangeColumns,
        reading: ScanColumns,
        known: pa.Array,
    ) -> None:
        self._storage = storage
        self._parts = parts
        self._columns = columns
        self._reading = reading
        ids, partitions, offsets = self._newest(known)
        order = np.lexsort((offsets, partitions))
        ids, partitions, offsets = ids[order], partitions[order], offsets[order]
        firsts = np.unique(ids, return_index=True)[1]
        found = ids[np.sort(firsts)]
        self.numbers = np.full(len(known), -1, np.int64)
        self.numbers[found] = np.arange(len(found))
        self.numbers[self.numbers < 0] = np.arange(len(found), len(known))
        self._places = self.numbers[ids], partitions, offsets

    def rows(self, first: int, end: int) -> tuple[list[pa.RecordBatch], Int64Array, int]:
        """The rows of the keys [first, end), their keys' numbers, and where it has ended.

        It ends earlier where the rows are too large together.
        """
        found: list[pa.RecordBatch] = []
        ids: list[Int64Array] = []
        size_bytes = 0
        places, last = self._between(first, end)
        _, offset, _ = self._columns.place
        with closing(read_each(self._storage, [*self._near(places)], self._reading)) as reads:
            for part, batches in reads:
                if (part.partition, part.start_offset) > last:
                    break
                offsets, ids_here = places[part.partition]
                for batch in batches:
                    here = numbers_of(batch.column(offset))
                    at = np.minimum(np.searchsorted(offsets, here), len(offsets) - 1)
                    is_one = (offsets[at] == here) & (ids_here[at] < end)
                    if not is_one.any():
                        continue
                    found.append(batch.filter(pa.array(is_one)))
                    ids.append(ids_here[at[is_one]])
                    size_bytes += found[-1].nbytes
                    while size_bytes > _MOST_OLDER_BYTES and end - first > 1:
                        end = first + (end - first) // 2
                        _, last = self._between(first, end)
                        found = [
                            some.filter(pa.array(own < end))
                            for some, own in zip(found, ids, strict=True)
                        ]
                        ids = [own[own < end] for own in ids]
                        size_bytes = sum(some.nbytes for some in found)
        return found, np.concatenate([np.empty(0, np.int64), *ids]), end

    def _between(self, first: int, end: int) -> tuple[_Places, tuple[int, int]]:
        """The places of the keys [first, end), and the last one."""
        ids, partitions, offsets = self._places
        mine = (ids >= first) & (ids < end)
        ids, partitions, offsets = ids[mine], partitions[mine], offsets[mine]
        places = {}
        for number in np.unique(partitions).tolist():
            here = partitions == number
            places[number] = offsets[here], ids[here]
        return places, (int(partitions[-1]), int(offsets[-1])) if len(ids) else (-1, -1)

    def _newest(self, known: pa.Array) -> Int64Array:
        """The newest records, one for each key and partition: ids, partitions and offsets."""
        _, offset, _ = self._columns.place
        reading = replace(self._reading, names=(*self._columns.keys, offset))
        found: list[Int64Array] = []
        count = 0
        with closing(read_each(self._storage, self._parts, reading)) as reads:
            for part, batches in reads:
                looked_up = look_up(
                    batches,
                    lambda batch: _keys_of(batch, self._columns),
                    lambda keys: pc.index_in(keys, value_set=known),
                    len(known),
                )
                for batch, at in looked_up:
                    if at.null_count == len(at):
                        continue
                    is_one = np.asarray(at.is_valid())
                    ids = at.drop_null().to_numpy().astype(np.int64)
                    offsets = numbers_of(batch.column(offset))[is_one]
                    found.append(np.stack([ids, np.full_like(ids, part.partition), offsets]))
                    count += len(ids)
                    if count > _MOST_PLACES:
                        found = [_newest(found)]
                        # Not again for each batch where there are many keys.
                        count = min(found[0].shape[1], _MOST_PLACES // 2)
        return _newest(found)

    def _near(self, places: _Places) -> Iterator[SegmentRange]:
        """Ranges that hold all places, and not much else."""
        for part in self._parts:
            if part.partition not in places:
                continue
            offsets, _ = places[part.partition]
            first, end = np.searchsorted(offsets, (part.start_offset, part.stop_offset))
            mine = offsets[first:end]
            for cluster in np.split(mine, np.flatnonzero(np.diff(mine) > _FAR) + 1):
                if len(cluster):
                    start, stop = int(cluster[0]), int(cluster[-1]) + 1
                    yield msgspec.structs.replace(part, start_offset=start, stop_offset=stop)


def _newest(found: Sequence[Int64Array]) -> Int64Array:
    """Keep the greatest offset of each id and partition. ``found`` are columns of all three."""
    every = np.concatenate([np.empty((3, 0), np.int64), *found], axis=1)
    every = every[:, np.lexsort((every[2], every[1], every[0]))]
    same = (every[:2, 1:] == every[:2, :-1]).all(axis=0)
    return every[:, np.append(~same, True)[: every.shape[1]]]


@dataclass(slots=True, eq=False)
class _Records:
    """Records of some keys in arrays: the first ``older`` are the newest before the range."""

    ids: Int64Array
    partitions: Int64Array
    offsets: Int64Array
    times: Int64Array
    deletes: _Mask
    older: int

    @classmethod
    def of(cls, rows: pa.Table, columns: ChangeColumns, ids: Int64Array, older: int) -> _Records:
        partition, offset, timestamp = columns.place
        flags = rows[columns.deciding]
        deletes = flags.is_null() if columns.is_plain else flags
        return cls(
            ids,
            numbers_of_column(rows[partition].cast(pa.int64())),
            numbers_of_column(rows[offset]),
            numbers_of_column(rows[timestamp].cast(pa.int64())),
            np.asarray(deletes, dtype=np.bool_),
            older,
        )


def _tell(records: _Records) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The changes: the row of each, the record that made it, and its kind; rows are numbers.

    Keys that are in one partition come in the order of partitions and offsets, then the others.
    """
    ids = records.ids
    order = np.lexsort((records.offsets, records.partitions, ids))
    same = np.append(False, ids[order][1:] == ids[order][:-1])
    moved = same & np.append(False, np.diff(records.partitions[order]) != 0)
    is_shared = np.zeros(int(ids.max()) + 1, np.bool_)
    is_shared[ids[order][moved]] = True
    shared = is_shared[ids]
    if shared.any():
        order = _in_time(records, order, shared)
        same = np.append(False, ids[order][1:] == ids[order][:-1])
    is_older = order < records.older
    here = np.ones(len(order), np.bool_)
    if shared.any():
        here = _from_newest(records, order, is_older & shared[order])
        order, is_older = order[here], is_older[here]
        same = np.append(False, ids[order][1:] == ids[order][:-1])
    lives = ~records.deletes[order]
    had = np.append(False, lives[:-1]) & same
    # A row from before the range is where its key begins, unless it comes again.
    changes = (~is_older | same) & (lives | had)
    at = np.flatnonzero(changes)
    made = order[at]
    place = np.lexsort((records.offsets[made], records.partitions[made]))
    place = np.concatenate([place[~shared[made[place]]], np.flatnonzero(shared[made])])
    at = at[place]
    before = order[np.maximum(at - 1, 0)]
    after = order[at]
    is_update = had[at] & lives[at]
    first = np.where(is_update, _BEFORE, np.where(lives[at], _INSERT, _DELETE))
    count = np.where(is_update, 2, 1)
    ends = np.cumsum(count)
    size = int(ends[-1]) if len(ends) else 0
    chosen, kinds = np.empty(size, np.int64), np.empty(size, np.int64)
    begins = ends - count
    chosen[begins], kinds[begins] = np.where(had[at], before, after), first
    chosen[ends[is_update] - 1], kinds[ends[is_update] - 1] = after[is_update], _AFTER
    return chosen, np.repeat(after, count), kinds


def _in_time(records: _Records, order: Int64Array, shared: _Mask) -> Int64Array:
    """An order by key, and of keys in several partitions by times that never go back in one."""
    times = np.zeros(len(order), np.int64)
    some = order[shared[order]]
    lanes = np.stack([records.ids[some], records.partitions[some]])
    least = records.times[some].copy()
    step = 1
    while step < len(some):  # the least of a record and the later ones of its partition
        alike = (lanes[:, step:] == lanes[:, :-step]).all(axis=0)
        least[:-step] = np.where(alike, np.minimum(least[:-step], least[step:]), least[:-step])
        step *= 2
    times[some] = least
    return np.lexsort((records.offsets, records.partitions, times, records.ids))


def _from_newest(records: _Records, order: Int64Array, is_older: _Mask) -> _Mask:
    """Which records come at or after the row that each key had before the range."""
    candidates = np.flatnonzero(is_older)
    chosen = order[candidates]
    by_time = np.lexsort((records.partitions[chosen], records.times[chosen], records.ids[chosen]))
    ids = records.ids[chosen][by_time]
    is_last = np.append(ids[1:] != ids[:-1], True)[: len(ids)]
    first = np.zeros(int(records.ids.max()) + 1, np.int64)
    first[ids[is_last]] = candidates[by_time[is_last]]
    here: _Mask = np.arange(len(order)) >= first[records.ids[order]]
    return here


def _keys_of(batch: pa.RecordBatch, columns: ChangeColumns) -> pa.Array:
    """The keys as bytes."""
    if columns.is_plain:
        return batch.column("key")
    return encode_keys([batch.column(name) for name in columns.keys], batch.num_rows)


def _filter(batch: pa.RecordBatch, keys: pa.Array, stays: _Mask) -> tuple[pa.RecordBatch, pa.Array]:
    if stays.all():
        return batch, keys
    mask = pa.array(stays)
    return batch.filter(mask), keys.filter(mask)


@names_wrong_arguments()
class ChangeFeed(Rows):
    """The changes of one topic's rows between two moments; made by ``Store.changes``.

    Each change is a row, an update two: ``_change`` is ``insert``, ``update_before`` and
    ``update_after``, or ``delete``, whose row is the one that was deleted. Iterating twice gives
    the same. ``start_offsets`` and ``end_offsets`` are those of the records that made them, by
    partition. ``until`` is the token of where it ends: with it as ``since`` the next one goes on.
    That is where was asked for, but not before ``since``. It is None where the snapshot that was
    asked for has no token.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        ranges: ChangedRanges,
        columns: ChangeColumns,
        until: str | None,
        row_filter: RowFilter | None = None,
    ) -> None:
        self._storage = storage
        self.until = until
        self._topic = topic
        self._ranges = ranges
        self._columns = columns
        self._row_filter = row_filter
        self.start_offsets = dict(ranges.starts)
        self.end_offsets = dict(ranges.ends)

    def __repr__(self) -> str:
        filtered = "" if self._row_filter is None else ", filtered"
        return (
            f"ChangeFeed({self._topic!r}, of {self.record_count} records at most{filtered}, "
            f"columns {', '.join(self.columns)})"
        )

    def _repr_html_(self) -> str:
        spans = [(p, at, self.end_offsets[p]) for p, at in sorted(self.start_offsets.items())]
        return display.table(f"Changes of {self._topic!r}", ("partition", "from", "to"), spans)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order they were asked for."""
        return self._columns.names

    @property
    def schema(self) -> pa.Schema:
        """The columns of the feed, in the order they were asked for."""
        return self._columns.schema

    @property
    def record_count(self) -> int:
        """How many records were added in between, at most; known without reading any.

        An update is two rows; a record that deletes nothing is none.
        """
        return sum(part.record_count for part in self._ranges.added)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read record batches; the changes of a key are in their order.

        The range is read, the key's columns of what was before, and then the rows there that it
        has changed. Memory is bounded, about 700 MiB: a larger range is read several times, each
        time for a share of the keys.

        Raises:
            SnapshotExpired: compaction has left out records that count, and their old segments are
                gone (``file.delete.delay.ms``): what these changes were nobody knows any more.
            UnknownTopicOrPartition: the topic was deleted in the meantime.
            CorruptRecord: a segment is damaged or missing.
        """
        columns = self._columns
        row_filter = self._row_filter
        if row_filter is not None:
            columns = columns.with_more(row_filter.names)
        for batch in read_changes(self._storage, self._ranges, columns):
            if row_filter is not None:
                batch = batch.filter(row_filter.rows(batch)).select([*self.columns])
            if batch.num_rows:
                yield batch
