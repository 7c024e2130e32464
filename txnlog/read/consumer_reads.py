"""What a consumer reads: where it begins in a partition, batches, positions, and their records.

A poll that fails leaves the positions where they were, so its records are returned again. What is
fetched are planned ranges as Arrow batches, one at a time, partitions in turn: of positions, groups
or waiting it knows nothing. Single records are built from Arrow columns when they are asked for.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import chain, groupby, islice, repeat, zip_longest
from typing import Any, Final, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from txnlog.config import AutoOffsetReset, OnCorrupt
from txnlog.display import shorten
from txnlog.errors import (
    CorruptRecord,
    InvalidOption,
    NoOffsetForPartition,
    OffsetOutOfRange,
    RecordDeserializationFailed,
    SnapshotExpired,
    UnknownTopicOrPartition,
)
from txnlog.metric import Meter
from txnlog.names import TopicPartition
from txnlog.read.plan import TYPED_METADATA, ScanColumns, SegmentRange, scan_columns
from txnlog.read.scan_reader import DamagedRecords, read_sound
from txnlog.read.topic_view import TopicView
from txnlog.schema import DELETED, PARTITION, TOPIC, TopicSchema
from txnlog.segments.arrays import numbers_of
from txnlog.serializers import Serializers
from txnlog.storage.base import Storage

Pairs: TypeAlias = tuple[tuple[str, bytes | None], ...]
_ROWS_AT_ONCE: Final = 256


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """One record. ``timestamp`` is in milliseconds; ``timestamp_type``: 0 create, 1 append.

    ``value`` is bytes, or None; of a typed topic, a dict of its columns, as ``send`` takes it, in
    which a record that deletes has ``_deleted``. ``key`` is bytes in both; see docs/TYPED.md. With
    deserializers both are what these make of it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: Pairs

    def __repr__(self) -> str:
        shown = (f"{name}={shorten(getattr(self, name))}" for name in self.__struct_fields__)
        return f"ConsumerRecord({', '.join(shown)})"


RECORD_COLUMNS: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of records, besides their topic and partition."""


def each_record(where: TopicPartition, batch: pa.RecordBatch) -> Iterator[ConsumerRecord]:
    """The records of a non-empty batch, each built when asked for.

    No Python code runs per record: the iterators below are the interpreter's own, and shared values
    are built once. ``batch``: with RECORD_COLUMNS as a scan has them, and any others.
    """
    offset, stamp, kind, key, value, headers = (batch.column(name) for name in RECORD_COLUMNS)
    return map(
        ConsumerRecord,
        repeat(where.topic),
        repeat(where.partition),
        _integers(numbers_of(offset)),
        _integers(numbers_of(stamp.view(pa.int64())) // 1000),
        _integers(numbers_of(kind)),
        _byte_strings(key),
        _rows(value) if types.is_struct(value.type) else _byte_strings(value),
        _headers_of(headers, batch.num_rows),
    )


def _integers(values: npt.NDArray[np.int64]) -> Iterable[int]:
    """At least one whole number, as Python's."""
    first, last, count = int(values[0]), int(values[-1]), len(values)
    if last - first == count - 1 and (np.diff(values) == 1).all():
        return range(first, last + 1)
    if first == last and (values == first).all():
        return repeat(first)
    listed: list[int] = values.tolist()
    return listed


def _byte_strings(column: pa.Array) -> Iterable[bytes | None]:
    """Each value of an array of bytes or text as bytes; None for a null."""
    if column.null_count == len(column):
        return repeat(None)
    _, ends, data = column.buffers()
    bounds = np.frombuffer(ends, dtype=np.int32)[column.offset :][: len(column) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    held = b"" if data is None else data.slice(first, last - first).to_pybytes()
    # Read one after another: slices of it would take three times as long.
    found = map(BytesIO(held).read, np.diff(bounds).tolist())
    if not column.null_count:
        return found
    values: list[bytes | None] = [*found]
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[row] = None
    return values


def _rows(column: pa.Array) -> Iterator[dict[str, Any]]:
    """Each struct as a mapping that ``send`` takes; a few are converted at a time."""
    names = [field.name for field in column.type]
    for start in range(0, len(column), _ROWS_AT_ONCE):
        piece = column.slice(start, _ROWS_AT_ONCE)
        for values in zip(*map(_python_values, piece.flatten()), strict=True):
            row = dict(zip(names, values, strict=True))
            if row.get(DELETED) is False:
                del row[DELETED]
            yield row


def _python_values(column: pa.Array) -> list[Any]:
    """Values of Python's types; what these cannot hold, a time after 9999 say, as Arrow has it."""
    kind = column.type
    if not column.null_count and (types.is_integer(kind) or types.is_floating(kind)):
        numbers: list[Any] = numbers_of(column).tolist()  # several times as fast
        return numbers
    try:
        return _times(column) if types.is_timestamp(kind) else [*column.to_pylist()]
    except (AttributeError, OverflowError, ValueError):
        return [*map(_python_value, column)]


def _times(column: pa.Array) -> list[Any]:
    """Timestamps, by way of numpy. Raises AttributeError for one that Python cannot hold."""
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()).fill_null(0)
    zone = None if column.type.tz is None else dt.UTC
    naive = numbers_of(microseconds).view("M8[us]").tolist()
    listed = [time.replace(tzinfo=zone) for time in naive]
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
        listed[row] = None
    return listed


def _python_value(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value


def _headers_of(column: pa.Array, count: int) -> Iterable[Pairs]:
    """The pairs of each of ``count`` records."""
    bounds = numbers_of(column.offsets)
    first, last = int(bounds[0]), int(bounds[-1])
    if first == last:  # as with most topics
        return repeat((), count)
    if column.null_count:
        listed = (row or () for row in column.to_pylist())
        return [tuple((pair["key"], pair["value"]) for pair in row) for row in listed]
    names, contents = column.values.slice(first, last - first).flatten()
    texts = map(bytes.decode, _byte_strings(names))  # type: ignore[arg-type]  # a name is not null
    pairs = zip(texts, _byte_strings(contents), strict=False)
    return map(tuple, map(islice, repeat(pairs), np.diff(bounds).tolist()))


_logger = logging.getLogger(__name__)


# -- where a partition is begun ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartPositions:
    """Kafka's ``auto.offset.reset``, for a group or for a consumer without one."""

    reset: AutoOffsetReset
    group_id: str | None

    @classmethod
    def of(cls, reset: str, group_id: str | None) -> StartPositions:
        """The rule of this name. Raises InvalidOption."""
        resets: tuple[AutoOffsetReset, ...] = get_args(AutoOffsetReset)
        for known in resets:
            if known == reset:
                return cls(known, group_id)
        raise InvalidOption(f"auto_offset_reset {reset!r} is not one of {', '.join(resets)}")

    def start(
        self, view: TopicView, where: TopicPartition, at: int | None, first_partitions: int
    ) -> int:
        """Where to begin. ``at``: the position, or the committed offset; None: there is neither.

        ``first_partitions``: how many partitions the topic had when it was first read: others were
        added since, so nothing of them was passed on purpose.

        Raises NoOffsetForPartition, OffsetOutOfRange: the policy is none.
        """
        partition = view.partitions[where.partition]
        begin, log_end = partition.log_start_offset, view.log_end_offsets[where.partition]
        if at is not None and begin <= at <= log_end:
            return at
        if self.reset == "none":
            if at is None:
                lacks = f"group {self.group_id!r} has no committed offset for {where}"
                if self.group_id is None:
                    lacks = f"the consumer has no position in {where}"
                raise NoOffsetForPartition(
                    f"{lacks} and auto_offset_reset is 'none': seek, or choose 'earliest' or "
                    "'latest'"
                )
            raise OffsetOutOfRange(
                f"position {at} of {where} is out of range: the log has {begin} to {log_end}; "
                "seek to an offset in it"
            )
        is_added = at is None and where.partition >= first_partitions
        found = begin if self.reset == "earliest" or is_added else partition.end_offset
        if at is not None:
            _logger.warning(
                "position %d of %s is out of range: the log has %d to %d; reading goes on at %d "
                "(auto_offset_reset is %s)",
                at, where, begin, log_end, found, self.reset,
            )  # fmt: skip
        return found


# -- records and positions -----------------------------------------------------------------------

OUTDATED: Final = (OffsetOutOfRange, SnapshotExpired, UnknownTopicOrPartition)
"""What is raised when planned files are gone that the topics do not need any more: deleted records'
or topics', or those of records that were merged or compacted."""


class Reading:
    """Returns the planned ranges as records or batches, and advances the positions.

    ``views`` are the topics that it reads, or has read to their ends; none once it was dropped.
    """

    def __init__(
        self,
        storage: Storage,
        settings: FetchSettings,
        meter: Meter,
        deserializers: Serializers | None = None,
    ) -> None:
        self._meter = meter
        self._deserializers = deserializers
        self.views: list[TopicView] = []
        self.records: Iterator[ConsumerRecord] = iter(())
        """The fetched records, all of one partition. A new iterator after they were dropped."""
        self.seen: ConsumerRecord | None = None
        """The last record taken from ``records`` by iterating: its position is not advanced yet."""
        self._settings = settings
        self._fetcher = Fetcher(storage, settings)
        self._current: Fetched | None = None
        """The one whose records are in ``records``."""
        self._held: Fetched | None = None
        self._damage: CorruptRecord | RecordDeserializationFailed | None = None
        """The error of the next poll."""
        self._positions: dict[TopicPartition, int] = {}
        self._moved: dict[TopicPartition, int] = {}
        """The positions before this poll of the partitions that it has moved."""
        self._before: dict[TopicPartition, int] | None = None

    # -- positions -------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next record by partition, as far as it is known."""
        seen, self.seen = self.seen, None
        if seen is not None:
            assert self._current is not None
            self._positions[self._current.where] = self._current.after(seen)
        return self._positions

    @positions.setter
    def positions(self, offsets: dict[TopicPartition, int]) -> None:
        self.seen = None
        self._positions = offsets

    def peek(self) -> dict[TopicPartition, int]:
        """A copy of the positions, which any thread may ask for.

        They are the offsets after the records that polls have returned. While a loop iterates over
        records, they are only close to that.
        """
        return dict(self._positions)

    def begin_poll(self) -> None:
        """Let :meth:`before_poll` return the current positions from now on."""
        self._moved, self._before = {}, None
        self.positions  # noqa: B018 - that of the last record seen is one of them

    def before_poll(self) -> dict[TopicPartition, int]:
        """All positions before this poll, and those that :meth:`place` has given since.

        Computed only when needed: its cost grows with the partitions, and a poll of one record
        should be cheap.
        """
        if self._before is None:
            self._before = {**self.positions, **self._moved}
        return self._before

    def place(self, where: TopicPartition, offset: int) -> None:
        """Read on from here, even if the current poll fails."""
        self.positions[where] = offset
        self._moved.pop(where, None)
        if self._before is not None:
            self._before[where] = offset

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the positions of partitions, both the current ones and those before this poll."""
        for known in (self.positions, self._moved, self._before or {}):
            for where in partitions:
                known.pop(where, None)

    def _move(self, where: TopicPartition, offset: int) -> None:
        self._moved.setdefault(where, self.positions[where])
        self.positions[where] = offset

    # -- fetched records -------------------------------------------------------------------------

    def begin(
        self,
        views: Sequence[TopicView],
        ranges: Sequence[SegmentRange],
        ends: Mapping[TopicPartition, int],
        *,
        as_records: bool,
    ) -> None:
        """Return these ranges of these topics from now on; ``ends`` is where partitions end."""
        self.drop()
        schemas = {view.topic: view.schema for view in views}
        self._fetcher.begin(ranges, ends, schemas, as_records=as_records)
        self.views = [*views]

    def drop(self) -> None:
        """Drop fetched and planned records: those not returned yet are read again."""
        self._fetcher.drop()
        self._held = self._damage = None
        self.records = iter(())
        self.views = []

    def take_records(self, limit: int) -> list[ConsumerRecord]:
        """The next records, at most this many; fewer only if there are no more.

        Raises what :func:`txnlog.read.scan_reader.read_ranges` does, and drops everything.
        """
        found: list[ConsumerRecord] = []
        while len(found) < limit:
            records = [*islice(self.records, limit - len(found))]
            if records:
                assert self._current is not None
                self._move(self._current.where, self._current.after(records[-1]))
                found += records
                continue
            fetched = self._next(ending=bool(found))
            if fetched is None:
                break
            self._current = fetched
            if fetched.batch is not None:
                self.records = each_record(fetched.where, fetched.batch)
                if self._deserializers is not None:
                    self.records = self._deserialized(self.records, self._deserializers)
        return found

    def _deserialized(
        self, records: Iterator[ConsumerRecord], deserialize: Serializers
    ) -> Iterator[ConsumerRecord]:
        """The records in the user's form; ends before one that has none, whose error is next."""
        for record in records:
            try:
                key, value = deserialize(record.key, record.value)
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                self._damage = _undeserializable(record, error)
                return
            yield msgspec.structs.replace(record, key=key, value=value)

    def take_batches(self) -> dict[TopicPartition, list[pa.RecordBatch]]:
        """The next batches by partition: as many bytes as the settings allow, or one batch.

        Raises what :meth:`take_records` does.
        """
        found: dict[TopicPartition, list[pa.RecordBatch]] = {}
        left = self._settings.max_bytes
        room: dict[TopicPartition, int] = {}
        while (fetched := self._next(ending=bool(found))) is not None:
            where, batch = fetched.where, fetched.batch
            if batch is None:
                continue
            size_bytes = batch.nbytes
            if found and size_bytes > min(
                left, room.get(where, self._settings.max_partition_bytes)
            ):
                self._held = fetched
                break
            left -= size_bytes
            room[where] = room.get(where, self._settings.max_partition_bytes) - size_bytes
            found.setdefault(where, []).append(batch)
            self._move(where, fetched.next_offset)
        return found

    def _next(self, *, ending: bool) -> Fetched | None:
        """The next batch, skipping ends of ranges; None if there is none.

        With ``ending``, also None if the plan is found outdated, or damage is all that is left: the
        records taken so far are returned.
        """
        held, self._held = self._held, None
        if held is not None:
            return held
        if self._damage is not None:
            if ending:
                return None
            damage, self._damage = self._damage, None
            raise damage
        try:
            with self._meter.timed("fetch"):
                fetched = self._fetcher.next()
        except CorruptRecord as error:
            if not ending:
                raise
            self._damage = error  # after what was found before it
            return None
        except OUTDATED:
            self.drop()
            if ending:
                return None
            raise
        if fetched is None:
            return None
        if fetched.batch is None:
            at = self.positions[fetched.where]
            self._move(fetched.where, max(at, fetched.next_offset))
        else:
            self._meter.add("records", fetched.batch.num_rows)
            self._meter.add("bytes", fetched.batch.nbytes)
        return fetched


def _undeserializable(record: ConsumerRecord, error: Exception) -> RecordDeserializationFailed:
    where = TopicPartition(record.topic, record.partition)
    failed = RecordDeserializationFailed(
        f"the record at offset {record.offset} of {where} cannot be deserialized: "
        f"{type(error).__name__}: {error}. It comes again with each poll, until the consumer seeks "
        f"past it: consumer.seek({where!r}, {record.offset + 1})"
    )
    failed.where, failed.offset, failed.__cause__ = where, record.offset, error
    return failed


# -- batches -------------------------------------------------------------------------------------

Schemas = Mapping[str, TopicSchema | None]

_RECORDS_AT_ONCE: Final = 8192
"""How many records are unpacked together: few wait as Python objects."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch of one partition's records.

    ``stop_offset`` is the offset after its last record, ``next_offset`` the one to read on from:
    nothing before it is shown. ``batch`` is None at the end of a range.
    """

    where: TopicPartition
    stop_offset: int
    next_offset: int
    batch: pa.RecordBatch | None

    def after(self, record: ConsumerRecord) -> int:
        """The offset to read on from after one of its records."""
        at = record.offset + 1
        return self.next_offset if at == self.stop_offset else at


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's settings, in bytes and milliseconds.

    ``max_bytes``: in flight from the storage, or returned as batches, in all;
    ``max_partition_bytes``: of one partition before another one's turn. A single larger batch may
    exceed both. ``min_bytes`` must have arrived, or ``max_wait_ms`` have passed since the first
    did, before any are read; ``max_wait_ms`` is also the longest pause between two looks for more.
    ``on_corrupt``: whether damaged records are an error, after all that is sound, or skipped.
    ``as_json``: whether values of typed topics are JSON, or rows.
    """

    min_bytes: int
    max_bytes: int
    max_partition_bytes: int
    max_wait_ms: int
    on_corrupt: OnCorrupt
    as_json: bool

    def __post_init__(self) -> None:
        if self.on_corrupt not in ("raise", "skip"):
            raise InvalidOption(f"on_corrupt {self.on_corrupt!r} is not one of raise, skip")


class Fetcher:
    """Reads planned ranges for one consumer, and holds one batch at a time."""

    def __init__(self, storage: Storage, settings: FetchSettings) -> None:
        self._storage = storage
        self._settings = settings
        self._reads: Generator[Fetched] | None = None

    def begin(
        self,
        ranges: Sequence[SegmentRange],
        ends: Mapping[TopicPartition, int],
        schemas: Schemas,
        *,
        as_records: bool,
    ) -> None:
        """Read these ranges from now on, in pieces with the columns of records.

        ``ends`` is by partition where its read ends: nothing is shown between its last range and
        there. ``schemas`` are those of their topics, None if untyped. Without ``as_records`` in
        whole batches with the columns of scans.
        """
        self.drop()
        self._reads = self._read(ranges, ends, schemas, as_records=as_records)

    def drop(self) -> None:
        """Drop the planned ranges."""
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.close()

    def next(self) -> Fetched | None:
        """The next batch, or the end of a range; None if all is read.

        Raises what :func:`txnlog.read.scan_reader.read_ranges` does; CorruptRecord when all that
        is sound was returned, with its partition and offsets.
        """
        return next(self._reads, None) if self._reads is not None else None

    def _read(
        self,
        ranges: Sequence[SegmentRange],
        ends: Mapping[TopicPartition, int],
        schemas: Schemas,
        *,
        as_records: bool,
    ) -> Generator[Fetched]:
        damaged: list[DamagedRecords] = []
        last = {TopicPartition(part.topic, part.partition): part for part in ranges}
        make = partial(_columns_of, as_records=as_records, as_json=self._settings.as_json)
        columns = _by_topic(ranges, schemas, make)
        turns = in_turns(ranges, self._settings.max_partition_bytes)
        skips = self._settings.on_corrupt == "skip"
        limit = self._settings.max_bytes
        reads = read_sound(self._storage, turns, columns, limit, skip_damaged=skips, by_page=True)
        with closing(reads):
            for part, found in reads:
                where = TopicPartition(part.topic, part.partition)
                # Aborted records may follow, and a segment may end with what is not shown.
                end = ends[where] if part is last[where] else part.stop_offset
                if found is None:
                    yield Fetched(where, end, end, None)
                elif not isinstance(found, DamagedRecords):
                    offset = columns[part.topic].offset
                    for piece in _pieces_of(found) if as_records else (found,):
                        stop = piece.column(offset)[-1].as_py() + 1
                        after = end if stop == part.stop_offset else stop
                        yield Fetched(where, stop, after, piece)
                elif skips:
                    _logger.warning("skipped, %d at most: %s", found.offset_count, found)
                    yield Fetched(where, found.next_offset, found.next_offset, None)
                else:
                    damaged.append(found)
        if damaged:
            raise damaged[0].error()


def _pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    starts = range(0, batch.num_rows, _RECORDS_AT_ONCE)
    return (batch.slice(start, _RECORDS_AT_ONCE) for start in starts)


def _by_topic(
    ranges: Iterable[SegmentRange],
    schemas: Schemas,
    make: Callable[[TopicSchema | None], ScanColumns],
) -> dict[str, ScanColumns]:
    """The columns of each topic; those with equal schemas share them."""
    made: list[tuple[TopicSchema | None, ScanColumns]] = []
    found = {}
    for topic in dict.fromkeys(part.topic for part in ranges):
        schema = schemas[topic]
        columns = next((known for of, known in made if of == schema), None)
        if columns is None:
            columns = make(schema)
            made.append((schema, columns))
        found[topic] = columns
    return found


def _columns_of(schema: TopicSchema | None, *, as_records: bool, as_json: bool) -> ScanColumns:
    if as_records:
        return scan_columns(RECORD_COLUMNS, schema, as_json=True, as_rows=not as_json)
    if schema is None:
        return scan_columns(None)
    left_out = (TOPIC, PARTITION) if schema.key else (TOPIC, PARTITION, DELETED)
    more = [name for name in TYPED_METADATA.names if name not in left_out]
    return scan_columns([*schema.columns.names, *more], schema)


def in_turns(ranges: Sequence[SegmentRange], most_bytes: int) -> list[SegmentRange]:
    """Order ranges by partitions in turn: this many bytes of each, or one larger segment.

    Ranges of a partition stay in order, and small ones stay together, so that adjacent small
    segments in a file are still read in one request.
    """
    partitions = [
        _in_pieces(mine, most_bytes)
        for _, mine in groupby(ranges, key=lambda part: (part.topic, part.partition))
    ]
    turns = chain.from_iterable(zip_longest(*partitions, fillvalue=()))
    return [part for piece in turns for part in piece]


def _in_pieces(ranges: Iterable[SegmentRange], most_bytes: int) -> list[list[SegmentRange]]:
    pieces: list[list[SegmentRange]] = []
    room = 0
    for part in ranges:
        if not pieces or part.size_bytes > room:
            pieces.append([])
            room = most_bytes
        pieces[-1].append(part)
        room -= part.size_bytes
    return pieces
