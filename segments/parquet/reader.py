"""Reads records of a segment that is a Parquet file, a row group or some of its pages at a time.

Row groups that are read whole are checked by the footer's checksums, pages by their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat, tee
from typing import Any, Final

import numpy as np
import pyarrow as pa

from txnlog.segments.arrays import numbers_of
from txnlog.segments.batch_header import BatchHeader
from txnlog.segments.errors import TxnlogError, UnsupportedRecordFormat
from txnlog.segments.formats.codecs import check_uncompressed
from txnlog.segments.parquet.file_metadata import ColumnChunk
from txnlog.segments.parquet.footer import OFFSET_COLUMN, RowGroup
from txnlog.segments.parquet.open_segment import Found, ParquetSegment
from txnlog.segments.parquet.part_file import PartFile
from txnlog.segments.records import RECORD_SCHEMA, TIMESTAMP_TYPE, Int32Array, time_column
from txnlog.segments.schema_columns import Columns, SchemaColumns, least_bytes
from txnlog.segments.segment_file import SizedCall, work_on
from txnlog.segments.untrusted import (
    check_column_chunks,
    named_bytes,
    open_parquet,
    read_own_footer,
    read_pieces,
)

_VALUE_BYTES: Final = 4
_WORK_AHEAD_BYTES: Final = 8 << 20
"""Row groups up to this size are decoded in parallel; of larger ones the columns are."""
_WORTH_THREADS_BYTES: Final = 4 << 20
"""The columns of a smaller one, even if it is alone, cost more in several threads than in one."""
_PIECE_BYTES: Final = 2 << 20
_COLUMN_BYTES: Final = 128 << 10
_PIECE_ROWS: Final = 1 << 16
"""Whole row groups are decoded in pieces of about so much, and so much for each column: memory that
was used just before is used again. What takes more at a time is given back, and cleared page by
page before its next use, which can take as long as decoding. With less for a column, as in pieces
of topics with hundreds, beginning with each takes longer than that.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupRecords:
    """Rows of a row group; ``offset_deltas`` is None if their offsets have no gaps.

    ``rows`` are their numbers among the rows that are read, if these come in pieces.
    """

    group: RowGroup
    records: pa.RecordBatch
    offset_deltas: Int32Array | None
    rows: range | None = None


def read_row_groups(
    segment: ParquetSegment,
    groups: Sequence[RowGroup],
    columns: Sequence[str] | None,
    max_uncompressed_bytes: int,
    rows: Sequence[pa.BooleanArray] | None = None,
) -> Iterator[RowGroupRecords]:
    """The rows of row groups, one after another: these columns, in that order; None: all.

    With ``rows`` those alone of each row group, and no offsets with them.
    Raises CorruptRecord; UnsupportedRecordFormat for a name that the file does not have.
    """
    reading = RowGroupReading(
        segment, groups, columns, max_uncompressed_bytes, few=rows is not None
    )
    return work_on(segment.file, reading.calls(groups, rows))


def row_group_calls(
    segment: ParquetSegment,
    groups: Sequence[RowGroup],
    columns: Columns,
    max_uncompressed_bytes: int,
    wanted: WantedRows,
) -> Generator[SizedCall[Iterable[RowGroupRecords]]]:
    """The calls that read some rows of row groups, and few others, with approximate sizes.

    Each returns the pieces of a row group or part. They may run in several threads; their bytes are
    fetched when they are iterated.
    """
    reading = RowGroupReading(segment, groups, columns, max_uncompressed_bytes)
    parts = (part for group in groups for part in wanted.parts(segment, group, reading.stored))
    return reading.piece_calls(parts)


@dataclass(frozen=True, slots=True)
class WantedRows:
    """The offsets [start_offset, stop_offset), and not what ``skip`` is true for.

    With ``by_page`` they are read page by page, otherwise in large pieces.
    """

    start_offset: int = 0
    stop_offset: int | None = None
    skip: Callable[[BatchHeader], bool] | None = None
    by_page: bool = False

    def parts(
        self, segment: ParquetSegment, group: RowGroup, columns: Sequence[str]
    ) -> Iterator[RowGroup]:
        """The parts of a row group to read for some columns."""
        found = segment.parts(
            group, columns, self.start_offset, self.stop_offset, by_page=self.by_page
        )
        return (part for part in found if self.skip is None or not self.skip(part.header))


class RowGroupReading:
    """Decodes some columns of some row groups of a file, in several threads at a time.

    Columns of a schema are found by their ids, see ``SchemaColumns``. A row group that claims more
    than ``max_uncompressed_bytes`` is damaged. ``few``: only a few rows of each are needed.
    """

    def __init__(
        self,
        segment: ParquetSegment,
        groups: Sequence[RowGroup],
        columns: Columns,
        max_uncompressed_bytes: int,
        *,
        few: bool = False,
    ) -> None:
        self._segment = segment
        self._max_bytes = max_uncompressed_bytes
        schema = segment.schema
        self._made = SchemaColumns(schema, columns) if isinstance(columns, pa.Schema) else None
        if self._made is not None:
            self._wanted = self._made.stored
        else:
            self._wanted = _check_names(segment, columns)
        gaps = [OFFSET_COLUMN] if segment.footer.stores_offsets else []
        self.stored: list[str] = [*self._wanted, *gaps]
        """The names of the columns that are read of the file."""
        self._is_all = {*self.stored} == {*schema.names}
        self._row_bytes = sum(least_bytes(schema.field(name).type) for name in self.stored)
        self._is_alone = len(groups) == 1
        self._has_checksums = all(group.crc is not None for group in groups)
        self._repeating = repeating_columns(segment, groups, self.stored) if few else []
        self._idle: list[tuple[Pieces, Any]] = []
        """The file, open once for each thread that reads of it at a time."""
        self._record_schema: tuple[pa.Schema, pa.Schema] | None = None
        """The types of a piece in the file, and as records have them."""

    def size_bytes(self, group: RowGroup) -> int:
        """About how many bytes a row group takes in memory, by what the footer says."""
        claimed = group.header.record_count * self._row_bytes
        return max(self._segment.column_bytes(group, self.stored), claimed)

    def calls(
        self, groups: Iterable[RowGroup], rows: Iterable[pa.BooleanArray] | None = None
    ) -> Generator[SizedCall[RowGroupRecords]]:
        """The calls of ``decode`` for row groups or parts, with ``rows`` for those of each."""
        every = repeat(None) if rows is None else iter(rows)
        for group, found in self._fetch(groups):
            yield self.size_bytes(group), partial(self.decode, group, found, next(every))

    def piece_calls(
        self, groups: Iterable[RowGroup]
    ) -> Generator[SizedCall[Iterable[RowGroupRecords]]]:
        """The calls that return the pieces of row groups or parts.

        What is large, by its first piece, is decoded while it is iterated.
        """
        for group, found in self._fetch(groups):
            yield self.size_bytes(group), partial(self._pieces, group, found)

    def _pieces(self, group: RowGroup, found: Found) -> Iterable[RowGroupRecords]:
        """The pieces of a row group; decoded already if they are small enough together."""
        reads = self._decode(group, found, None)
        pieces = chain.from_iterable(map(self.made, reads))
        first = next(pieces)
        if first.rows is None:
            return [first, *pieces]  # there is no other, but what is checked at the end
        size_bytes = first.records.nbytes * group.header.record_count // len(first.rows)
        ahead = chain([first], pieces)
        return ahead if size_bytes > _WORK_AHEAD_BYTES else [*ahead]

    def _fetch(self, groups: Iterable[RowGroup]) -> Generator[tuple[RowGroup, Found]]:
        runs, these = tee(self._segment.runs(groups, self.stored))
        with closing(self._segment.fetch(pieces for _, pieces in runs)) as fetched:
            for (some, _), found in zip(these, fetched, strict=True):
                yield from ((group, found) for group in some)

    def decode(
        self, group: RowGroup, found: Found, rows: pa.BooleanArray | None = None
    ) -> RowGroupRecords:
        """The stored columns of a row group, of which at least these pieces were fetched.

        ``made`` makes those that were asked for.
        """
        reads = [*self._decode(group, found, rows, group.header.record_count)]
        if len(reads) > 1:
            raise self._segment.damaged(group, "a column has more than 2 GiB")
        return reads[0]

    def made(self, read: RowGroupRecords) -> Iterable[RowGroupRecords]:
        """All rows of a row group or piece, with the columns that were asked for."""
        if self._made is None:
            return [read]
        count = read.group.header.record_count if read.rows is None else len(read.rows)
        return made_rows(self._segment, self._made, read, count)

    def _decode(
        self,
        group: RowGroup,
        found: Found,
        rows: pa.BooleanArray | None,
        most_rows: int | None = None,
    ) -> Iterator[RowGroupRecords]:
        """Decode a row group, ``most_rows`` at a time; None for pieces of a few MB.

        With ``rows`` only these rows are kept.
        """
        try:
            for piece in self._read(group, found, most_rows):
                if rows is None:
                    yield piece
                else:
                    records = keep_rows(piece.records, rows, self._repeating)
                    yield RowGroupRecords(group, records, None)
        except (TxnlogError, MemoryError):
            raise
        except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
            raise self._segment.damaged(group, str(error)) from error

    def _read(
        self, group: RowGroup, found: Found, most_rows: int | None
    ) -> Iterator[RowGroupRecords]:
        # Rows that are all alike take next to nothing in a file, and their room in memory.
        count = group.header.record_count
        claimed = count * self._row_bytes
        check_uncompressed(max(group.uncompressed_bytes, claimed), self._max_bytes)
        self._segment.check(group, found, is_all=self._is_all)
        if not self.stored:
            nothing = pa.table({"": pa.nulls(count)}).to_batches()[0].select([])
            yield RowGroupRecords(group, nothing, None)
            return
        with self._open_group(group, found) as (file, number, at_most):
            if most_rows is None:
                size_bytes = max(_PIECE_BYTES, _COLUMN_BYTES * len(self.stored))
                most_rows = size_bytes * count // max(at_most, claimed, 1)
                most_rows = min(max(most_rows, 1), _PIECE_ROWS)
            most = _WORTH_THREADS_BYTES if self._is_alone else _WORK_AHEAD_BYTES
            is_large = not group.is_part and at_most > most
            pieces = read_pieces(file, number, self.stored, most_rows, use_threads=is_large)
            yield from self._assembled(group, pieces)

    @contextmanager
    def _open_group(self, group: RowGroup, found: Found) -> Iterator[tuple[Any, int, int]]:
        """A file that has it, its number there, and how many bytes it takes decoded, at most."""
        if group.is_part:
            file, at_most = self._open_part(group, found)
            yield file, 0, at_most
            return
        at_most = self._check_pages(group, found)
        try:
            pieces, file = self._idle.pop()
        except IndexError:  # all are with other threads
            pieces, file = self._open(self._repeating)
        pieces.held = _by_position(found)
        yield file, group.number, at_most
        pieces.held = {}
        self._idle.append((pieces, file))

    def _check_pages(self, group: RowGroup, found: Found) -> int:
        """How much memory the values of its columns take at most, which must be allowed."""
        segment = self._segment
        chunks = [group.chunks[leaf] for name in {*self.stored} for leaf in segment.leaves[name]]
        return check_column_chunks(
            [(chunk, partial(_part_of, segment.bytes_of(chunk, found))) for chunk in chunks],
            self._max_bytes,
            partial(self._named_bytes, group, found),
        )

    def _named_bytes(self, group: RowGroup, found: Found, chunk: ColumnChunk) -> int:
        """How many bytes the values of a chunk of texts take, of which it names most."""
        path = ".".join(part.decode() for part in chunk.leaf.path)
        pieces, file = self._open([path])
        pieces.held = _by_position(found)
        return named_bytes(file, group.number, group.chunks.index(chunk))

    def _open_part(self, group: RowGroup, found: Found) -> tuple[Any, int]:
        """A little file of a part; the same is checked as of a whole row group."""
        segment = self._segment
        leaves = [leaf for name in dict.fromkeys(self.stored) for leaf in segment.leaves[name]]
        bytes_at = partial(segment.bytes_at, found=found)
        part = PartFile(segment.footer.described, group, leaves, bytes_at)
        source = pa.py_buffer(part.data)

        def open_part(dictionaries: Sequence[str] = ()) -> Any:
            has_compared = self._has_checksums and segment.data is not None
            return open_parquet(
                pa.BufferReader(source),
                read_own_footer(part.end),
                dictionaries,
                checks_pages=not has_compared,
            )

        def count_named(chunk: ColumnChunk) -> int:
            path = ".".join(name.decode() for name in chunk.leaf.path)
            (leaf,) = (leaf for leaf in leaves if part.chunks[leaf] is chunk)
            return named_bytes(open_part([path]), 0, leaf)

        chunks = [(part.chunks[leaf], partial(part.read, leaf)) for leaf in leaves]
        return open_part(), check_column_chunks(chunks, self._max_bytes, count_named)

    def _open(self, dictionaries: Sequence[str]) -> tuple[Pieces, Any]:
        """The file for pyarrow, which finds there the pieces that it is given, if not all bytes."""
        segment = self._segment
        pieces = Pieces(segment.file.size_bytes)
        whole = None if segment.data is None else pa.BufferReader(segment.data)
        source = whole or pa.PythonFile(pieces, mode="r")
        # Pages' own checksums tell nothing more if those of whole row groups were compared.
        has_compared = self._has_checksums and (self._is_all or segment.data is not None)
        metadata = segment.footer.metadata
        return pieces, open_parquet(source, metadata, dictionaries, checks_pages=not has_compared)

    def _assembled(
        self, group: RowGroup, pieces: Iterable[pa.RecordBatch]
    ) -> Iterator[RowGroupRecords]:
        """The pieces of a row group, which must be those that its header describes."""
        header, damaged = group.header, self._segment.damaged
        first_row, next_offset = 0, header.base_offset
        for piece in pieces:
            deltas = None
            rows = range(first_row, first_row + piece.num_rows)
            if rows.stop > header.record_count:
                raise damaged(group, f"it has more than {header.record_count} rows")
            if self._segment.footer.stores_offsets:
                offsets = numbers_of(piece.column(OFFSET_COLUMN))
                piece = piece.select(self._wanted)
                is_misplaced = not first_row and offsets[0] != next_offset
                if is_misplaced or offsets[-1] > header.last_offset:
                    raise damaged(group, f"its offsets are {offsets[0]} to {offsets[-1]}")
                if offsets[0] < next_offset or not bool((np.diff(offsets) > 0).all()):
                    raise damaged(group, "its offsets do not ascend")
                next_offset = int(offsets[-1]) + 1
                if header.last_offset_delta + 1 > header.record_count:
                    deltas = (offsets - header.base_offset).astype(np.int32)
            yield RowGroupRecords(
                group,
                self._with_own_types(group, piece),
                deltas,
                None if len(rows) == header.record_count else rows,
            )
            first_row = rows.stop
        if first_row < header.record_count:
            raise damaged(group, f"it has {first_row} rows, not {header.record_count}")
        if self._segment.footer.stores_offsets and next_offset <= header.last_offset:
            raise damaged(group, f"its last offset is {next_offset - 1}")

    def _with_own_types(self, group: RowGroup, piece: pa.RecordBatch) -> pa.RecordBatch:
        names = self._segment.schema.names
        time = time_column(names)
        if time in self.stored:
            times = piece.column(time)
            if not pa.types.is_timestamp(times.type) or times.null_count:
                reason = f"a timestamp is null, or is {times.type}"
                raise self._segment.damaged(group, reason)
        if self._made is not None:
            return piece
        known = self._record_schema
        if known is None or not known[0].equals(piece.schema):
            self._record_schema = known = piece.schema, _record_schema(piece.schema, names)
        same = known[1].equals(piece.schema, check_metadata=False)
        return piece if same else piece.cast(known[1])


def _by_position(found: Found) -> dict[int, memoryview]:
    return {piece.start: memoryview(data) for piece, data in found}


def _part_of(data: memoryview, start: int, stop: int) -> memoryview:
    return data[start:stop]


def _check_names(segment: ParquetSegment, columns: Sequence[str] | None) -> list[str]:
    names = segment.schema.names
    if columns is None:
        return [name for name in names if name != OFFSET_COLUMN]
    missing = [name for name in columns if name not in names]
    if missing:
        raise UnsupportedRecordFormat(
            f"{segment.file.name}: there is no column {missing[0]!r}, but {', '.join(names)}"
        )
    return [*columns]


def repeating_columns(
    segment: ParquetSegment, groups: Sequence[RowGroup], columns: Sequence[str]
) -> list[str]:
    """The columns of text or bytes that are stored as numbers of a few values.

    So they are decoded in a quarter of the time, which pays where few rows are wanted.
    """
    found = []
    for name in columns:
        kind = segment.schema.field(name).type
        if "." in name or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            continue
        (leaf,) = segment.leaves[name]
        chunks = (group.chunks[leaf] for group in groups)
        # Each value that stands by itself takes its length in 4 bytes at least.
        if all(
            chunk.has_dictionary and chunk.uncompressed_bytes < _VALUE_BYTES * chunk.value_count
            for chunk in chunks
        ):
            found.append(name)
    return found


def made_rows(
    segment: ParquetSegment, columns: SchemaColumns, read: RowGroupRecords, count: int
) -> Iterator[RowGroupRecords]:
    """Build ``count`` rows with a schema's columns from the stored columns that were read."""
    first = 0 if read.rows is None else read.rows.start
    deltas = read.offset_deltas
    try:
        for rows, records in columns.make(read.records, count):
            if len(rows) == count:
                yield replace(read, records=records)
                return
            some = None if deltas is None else deltas[rows.start : rows.stop]
            places = range(first + rows.start, first + rows.stop)
            yield RowGroupRecords(read.group, records, some, places)
    except (TxnlogError, MemoryError):
        raise
    except Exception as error:  # Arrow raises a dozen classes for values that do not fit
        raise segment.damaged(read.group, str(error)) from error


def keep_rows(
    records: pa.RecordBatch, rows: pa.BooleanArray, repeating: Sequence[str] = ()
) -> pa.RecordBatch:
    """Filter rows, and turn dictionary columns back into plain values.

    ``repeating`` are the columns that were read as numbers of values.
    """
    if not records.num_columns:
        return records
    if rows.true_count < len(rows):
        records = records.filter(rows)
    for name in repeating:
        at = records.schema.get_field_index(name)
        field = records.schema.field(at)
        plain = field.with_type(field.type.value_type)
        records = records.set_column(at, plain, records.column(at).cast(plain.type))
    return records


def _record_schema(found: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """A file's schema with the exact types of RECORD_SCHEMA for the columns that stand for its own.

    Parquet changes the names of list items, and times in ``found`` are in microseconds. ``names``
    are those of all columns in the file. Raises ValueError: such a column is of another type.
    """
    time = time_column(names)
    fields = []
    for field in found:
        known = RECORD_SCHEMA.get_field_index(field.name)
        same = known >= 0 and _is_record_column(field.type, RECORD_SCHEMA.field(known).type)
        if field.name == time and pa.types.is_timestamp(field.type):
            fields.append(field.with_type(TIMESTAMP_TYPE))
        elif known >= 0 and time in RECORD_SCHEMA.names and not _has_type_of(known, field.type):
            raise ValueError(f"column {field.name!r} is {field.type}")
        else:
            fields.append(RECORD_SCHEMA.field(known) if same else field)
    return pa.schema(fields)


def _has_type_of(known: int, found: pa.DataType) -> bool:
    """Whether a column has the type of a record's, perhaps as numbers of a few values."""
    kind = found.value_type if pa.types.is_dictionary(found) else found
    return _is_record_column(kind, RECORD_SCHEMA.field(known).type)


def _is_record_column(found: pa.DataType, record: pa.DataType) -> bool:
    if pa.types.is_list(record):
        return pa.types.is_list(found) and bool(found.value_type == record.value_type)
    return bool(found == record)


class Pieces:
    """Some bytes of a file, at their positions, as pyarrow reads a file."""

    closed = False

    def __init__(self, size_bytes: int) -> None:
        self.held: dict[int, memoryview] = {}
        self._size_bytes = size_bytes
        self._position = 0

    def seek(self, position: int, whence: int = 0) -> int:
        base = (0, self._position, self._size_bytes)[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> memoryview:
        stop = self._size_bytes if count < 0 else self._position + count
        for start, data in self.held.items():
            if start <= self._position and stop <= start + len(data):
                found = data[self._position - start : stop - start]
                self._position = stop
                return found
        raise OSError(f"bytes {self._position} to {stop} are of no column of this row group")

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size_bytes

    def close(self) -> None:
        self.closed = True
