"""Reads ranges as record batches with the columns of a scan, filtered; past damage if asked to.

A filter is applied to row groups by their facts, in Parquet files before all of one is read. Past
damage what is sound comes first, and what is not is named by its offsets: scans fail at the first
damage; consumers and the command go on with other partitions, and behind it if they are told to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from txnlog.errors import CorruptRecord, ObjectNotFound
from txnlog.names import TopicPartition
from txnlog.read.json_records import json_keys, json_pieces, json_values
from txnlog.read.plan import ScanColumns
from txnlog.schema import HEADERS
from txnlog.segments.arrays import arrow_of, constant_array
from txnlog.segments.inspect.dump import dump_segment
from txnlog.segments.parquet.footer import RowGroup
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.parquet.reader import RowGroupRecords
from txnlog.segments.parquet.statistics import ValueRange, value_ranges
from txnlog.segments.reader import SegmentBatch, read_segment
from txnlog.segments.records import HEADERS_TYPE, timestamps_ms
from txnlog.segments.schema_columns import Columns
from txnlog.storage.base import Storage
from txnlog.storage.threads import MAX_AHEAD_BYTES

if TYPE_CHECKING:
    pass

from txnlog.read.plan import SegmentRange, known_of
from txnlog.read.stored_reader import RowSelection, load_aborted, read_stored


def read_ranges(
    storage: Storage, parts: Sequence[SegmentRange], columns: ScanColumns
) -> Iterator[pa.RecordBatch]:
    """Read ranges one after the other as record batches of exactly ``columns.schema``.

    Their requests are in flight together, if the storage makes that worthwhile: see
    :meth:`txnlog.storage.base.Storage.run_ahead`. Raises UnknownTopicOrPartition: the topic was
    deleted since the range was planned. CorruptRecord: the segment is damaged or gone; the message
    says where.
    """
    with closing(read_each(storage, parts, columns)) as reads:
        for _, batches in reads:
            yield from batches


def read_each(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: ScanColumns,
    ahead_bytes: int = MAX_AHEAD_BYTES,
    *,
    by_page: bool = False,
) -> Generator[tuple[SegmentRange, Iterator[pa.RecordBatch]]]:
    """Read ranges, each with its own batches, to be taken before the next one is asked for.

    At most ``ahead_bytes`` are in flight, or a single larger request. With ``by_page`` batches are
    small, and each is decoded when it is asked for; filtered reads are not.
    """
    if columns.row_filter is None:
        assemble = _Assembler(columns)
        stored_reads = read_stored(
            storage, parts, columns.stored, ahead_bytes=ahead_bytes, by_page=by_page
        )
        with closing(stored_reads) as reads:
            for part, stored in reads:
                yield part, map(partial(assemble, part), _pieces(stored, columns))
        return
    from txnlog.read.arrow_scans import scan_or_read

    read = partial(_read_filtered, storage, columns=columns, ahead_bytes=ahead_bytes)
    yield from scan_or_read(storage, parts, columns, read)


def read_topics(
    storage: Storage,
    parts: Sequence[SegmentRange],
    columns: Mapping[str, ScanColumns],
    ahead_bytes: int = MAX_AHEAD_BYTES,
    *,
    by_page: bool = False,
) -> Generator[tuple[SegmentRange, Iterator[pa.RecordBatch]]]:
    """Read ranges as :func:`read_each` does, with the columns of each topic, which have no filter.

    Topics with the same columns should share the object: then they share what is made of it.
    """
    different = {id(of): of for of in columns.values()}
    selections = {key: RowSelection(of.stored) for key, of in different.items()}
    assemblers = {key: _Assembler(of) for key, of in different.items()}

    def wanted(part: SegmentRange) -> RowSelection:
        return selections[id(columns[part.topic])]

    with closing(read_stored(storage, parts, None, wanted, ahead_bytes, by_page=by_page)) as reads:
        for part, stored in reads:
            of = columns[part.topic]
            yield part, map(partial(assemblers[id(of)], part), _pieces(stored, of))


def _read_filtered(
    storage: Storage, parts: Sequence[SegmentRange], columns: ScanColumns, ahead_bytes: int
) -> Generator[tuple[SegmentRange, Iterator[pa.RecordBatch]]]:
    reading = columns.with_looked_at
    assemble, assemble_chosen = _Assembler(reading), _Assembler(columns)
    assemble_looked_at = _Assembler(columns.looked_at)

    def wanted(part: SegmentRange) -> RowSelection:
        if not part.paths.is_parquet:
            return RowSelection(reading.stored)
        offsets, shift = range(part.start_offset, part.stop_offset), part.segment.offset_shift
        looked_at = partial(assemble_looked_at, part)
        choice = FileChoice(columns, part.partition, offsets, shift, looked_at)
        return RowSelection(columns.stored, choice)

    with closing(read_stored(storage, parts, None, wanted, ahead_bytes)) as reads:
        for part, stored in reads:
            pieces = _pieces(stored, columns)
            if part.paths.is_parquet:
                yield part, map(partial(assemble_chosen, part), pieces)
            else:
                yield part, keep_rows(map(partial(assemble, part), pieces), columns)


def stored_columns(columns: ScanColumns) -> Columns:
    """The stored columns that ``assembled`` needs."""
    return (columns if columns.row_filter is None else columns.with_looked_at).stored


def assembled(
    part: SegmentRange, stored: Sequence[SegmentBatch], columns: ScanColumns
) -> Iterator[pa.RecordBatch]:
    """A scan's batches of a range, made from stored batches that have ``stored_columns``."""
    pieces = _pieces(iter(stored), columns)
    if columns.row_filter is None:
        return map(partial(_Assembler(columns), part), pieces)
    reading = _Assembler(columns.with_looked_at)
    return keep_rows(map(partial(reading, part), pieces), columns)


def _pieces(stored: Iterator[SegmentBatch], columns: ScanColumns) -> Iterator[SegmentBatch]:
    return json_pieces(stored) if columns.as_json else stored


class _Assembler:
    """Adds the columns that are not stored: topic, partition, offset, timestampType.

    The constant columns are made once and sliced, so they cost next to nothing per batch.
    """

    def __init__(self, columns: ScanColumns) -> None:
        self._columns = columns
        self._schema = columns.schema
        stored = () if columns.as_json else columns.stored
        self._stored = frozenset(stored.names if isinstance(stored, pa.Schema) else stored)
        """Those that are shown as they are stored; as JSON a column may be called as another."""
        self._constants: dict[str, tuple[object, pa.Array]] = {}
        """By column, the last value and an array of nothing else."""

    def __call__(self, part: SegmentRange, batch: SegmentBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self._column(name, part, batch) for name in self._columns.names], schema=self._schema
        )

    def _column(self, name: str, part: SegmentRange, batch: SegmentBatch) -> pa.Array:
        if self._columns.as_json and name in ("key", "value", "headers"):
            return self._json_column(name, batch)
        meaning = self._columns.meaning(name)
        if meaning == "offset":
            return arrow_of(batch.offsets() + part.segment.offset_shift)
        if meaning == "timestamp":
            milliseconds = timestamps_ms(batch.records)
            return arrow_of(milliseconds * np.int64(1000)).view(self._schema.field(name).type)
        if name in self._stored:
            column = batch.records.column(name)
            kind = self._schema.field(name).type
            return column if column.type == kind else column.cast(kind)
        if meaning == "topic":
            return self._constant(name, part.topic, batch.record_count)
        if meaning == "partition":
            return self._constant(name, part.partition, batch.record_count)
        stamped = part.log_append_time
        if part.segment.stored.kafka is not None:
            stamped = batch.header.is_log_append_time
        return self._constant(name, int(stamped), batch.record_count)

    def _json_column(self, name: str, batch: SegmentBatch) -> pa.Array:
        schema = self._columns.topic_schema
        assert schema is not None
        if name == "headers":
            return batch.records.column(HEADERS).cast(HEADERS_TYPE)
        if name == "value" and self._columns.as_rows:
            fields = [*self._schema.field(name).type]
            return pa.StructArray.from_arrays(
                [batch.records.column(of.name).cast(of.type) for of in fields], fields=fields
            )
        if name == "key":
            return json_keys(batch.records, schema, batch.record_count)
        return json_values(batch.records, schema)

    def _constant(self, name: str, value: int | str, length: int) -> pa.Array:
        known, array = self._constants.get(name, (None, None))
        if array is None or known != value or len(array) < length:
            array = constant_array(value, self._schema.field(name).type, length)
            self._constants[name] = value, array
        return array.slice(0, length)


# -- filters -------------------------------------------------------------------------------------


class FileChoice:
    """The rows of a Parquet file that a filter keeps, for ``read_chosen``.

    ``assemble`` builds the columns that the filter needs from a batch of stored ones. ``offsets``
    are those that are read, and ``offset_shift`` is what is added to the file's to get them.
    """

    def __init__(
        self,
        columns: ScanColumns,
        partition: int,
        offsets: range,
        offset_shift: int,
        assemble: Callable[[SegmentBatch], pa.RecordBatch],
    ) -> None:
        assert columns.row_filter is not None
        self._columns = columns.looked_at
        self._filter = columns.row_filter
        self._partition = partition
        self._offsets = offsets
        self._offset_shift = offset_shift
        self._assemble = assemble
        self._stored = self._columns.stored

    @property
    def columns(self) -> Columns:
        """The stored ones of the columns that the filter needs."""
        return self._stored

    def groups(self, segment: ParquetSegment, groups: Sequence[RowGroup]) -> list[RowGroup]:
        """The row groups that the footer does not rule out."""
        known = [self._known(segment, group) for group in groups]
        matching = self._filter.can_match(known)
        return [group for group, matches in zip(groups, matching, strict=True) if matches]

    def rows(self, found: RowGroupRecords) -> pa.BooleanArray:
        """Which of the given rows the filter keeps.

        Raises InvalidOption if it fails.
        """
        header, deltas = found.group.header, found.offset_deltas
        rows = range(header.record_count) if found.rows is None else found.rows
        batch = SegmentBatch(
            header=header,
            position=found.group.position,
            records=found.records,
            record_count=len(rows),
            first_offset=header.base_offset + (rows.start if deltas is None else int(deltas[0])),
            offset_deltas=deltas,
        )
        ends = self._offsets.start - self._offset_shift, self._offsets.stop - self._offset_shift
        start, stop = (int(row) for row in np.searchsorted(batch.offsets(), ends))
        if start == stop:
            return pa.repeat(False, len(rows))
        inside = iter([batch.slice(start, stop - start)])
        pieces = json_pieces(inside) if self._columns.as_json else inside
        kept = [self._filter.rows(self._assemble(piece)) for piece in pieces]
        outside = pa.repeat(False, start), pa.repeat(False, len(rows) - stop)
        return pa.concat_arrays([outside[0], *kept, outside[1]])

    def _known(self, segment: ParquetSegment, group: RowGroup) -> dict[str, ValueRange]:
        header = group.header
        offsets = (n + self._offset_shift for n in (header.base_offset, header.last_offset))
        least_ms, most_ms = header.base_timestamp_ms, header.max_timestamp_ms
        known = known_of(self._columns, self._partition, tuple(offsets), (least_ms, most_ms))
        stored = self._stored
        if self._columns.as_json or not isinstance(stored, pa.Schema):
            return known
        own = {
            at: self._columns.field(field.name)
            for at, field in zip(segment.names_of(stored), stored, strict=True)
            if at is not None and field.name not in known
        }
        return {**known, **value_ranges(segment, group.number, own)}


def keep_rows(batches: Iterator[pa.RecordBatch], columns: ScanColumns) -> Iterator[pa.RecordBatch]:
    """The rows that the filter keeps, with only the requested columns."""
    assert columns.row_filter is not None
    names = [*columns.names]
    for batch in batches:
        kept = batch.filter(columns.row_filter.rows(batch))
        if kept.num_rows:
            yield kept.select(names)


# -- past damage ---------------------------------------------------------------------------------


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
    """The sound batches of a range from an offset on, and reasons for the damage between them.

    A batch comes with its offsets [first, end) in the file, and holds the records that are shown.
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
