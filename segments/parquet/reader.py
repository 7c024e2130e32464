"""Reads records of a segment that is a Parquet file, a row group or some of its pages at a time.

Row groups that are read whole are checked by the footer's checksums, pages by their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat, tee
from typing import Any, Final

import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import BatchHeader
from txnlog.segments.errors import TxnlogError, UnsupportedRecordFormat
from txnlog.segments.formats.codecs import check_uncompressed
from txnlog.segments.parquet.file_metadata import ColumnChunk
from txnlog.segments.parquet.footer import OFFSET_COLUMN, RowGroup
from txnlog.segments.parquet.open_segment import Found, ParquetSegment
from txnlog.segments.parquet.part_file import PartFile
from txnlog.segments.parquet.pieces import Pieces
from txnlog.segments.records import RECORD_SCHEMA, TIMESTAMP_TYPE, Int32Array, time_column
from txnlog.segments.schema_columns import Columns, SchemaColumns, least_bytes
from txnlog.segments.segment_file import SizedCall, work_on
from txnlog.segments.untrusted import (
    check_column_chunks,
    named_bytes,
    open_parquet,
    read_own_footer,
    read_row_group,
)

_VALUE_BYTES: Final = 4
_WORK_AHEAD_BYTES: Final = 8 << 20
"""Row groups up to this size are decoded in parallel; of larger ones the columns are."""
_WORTH_THREADS_BYTES: Final = 4 << 20
"""The columns of a smaller one, even if it is alone, cost more in several threads than in one."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupRecords:
    """The rows of a row group; ``offset_deltas`` is None if their offsets are dense."""

    group: RowGroup
    records: pa.RecordBatch
    offset_deltas: Int32Array | None


def read_row_groups(
    segment: ParquetSegment,
    groups: Sequence[RowGroup],
    columns: Columns,
    max_uncompressed_bytes: int,
    rows: Sequence[pa.BooleanArray] | None = None,
) -> Iterator[RowGroupRecords]:
    """The rows of row groups, one after another: these columns, in that order; None: all.

    With ``rows`` those alone of each row group, and no offsets with them. Columns of a schema are
    found by their ids, see ``columns.SchemaColumns``.
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
) -> Generator[SizedCall[RowGroupRecords]]:
    """The calls that read some rows of row groups, and few others, with approximate sizes.

    The calls may run in several threads; their bytes are fetched when they are iterated.
    """
    reading = RowGroupReading(segment, groups, columns, max_uncompressed_bytes)
    parts = (part for group in groups for part in wanted.parts(segment, group, reading.stored))
    return reading.calls(parts)


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
        """What to read of a row group for some columns."""
        found = segment.parts(
            group, columns, self.start_offset, self.stop_offset, by_page=self.by_page
        )
        return (part for part in found if self.skip is None or not self.skip(part.header))


class RowGroupReading:
    """Decodes some columns of row groups of a file, in several threads at a time.

    Args:
        segment: the file.
        groups: of which these are the row groups that will be read.
        columns: as of ``read_row_groups``.
        max_uncompressed_bytes: a row group that claims more is damaged.
        few: only a few rows of each are needed.
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

    def size_bytes(self, group: RowGroup) -> int:
        """About how many bytes a row group takes in memory, by what the footer says."""
        claimed = group.header.record_count * self._row_bytes
        return max(self._segment.column_bytes(group, self.stored), claimed)

    def calls(
        self, groups: Iterable[RowGroup], rows: Iterable[pa.BooleanArray] | None = None
    ) -> Generator[SizedCall[RowGroupRecords]]:
        """The calls of ``decode`` for row groups or parts, with ``rows`` for those of each."""
        every = repeat(None) if rows is None else iter(rows)
        runs, these = tee(self._segment.runs(groups, self.stored))
        with closing(self._segment.fetch(pieces for _, pieces in runs)) as fetched:
            for (some, _), found in zip(these, fetched, strict=True):
                for group in some:
                    size_bytes = self.size_bytes(group)
                    yield size_bytes, partial(self.decode, group, found, next(every))

    def decode(
        self, group: RowGroup, found: Found, rows: pa.BooleanArray | None = None
    ) -> RowGroupRecords:
        """The rows of a row group, of which at least these pieces of its columns were fetched."""
        segment = self._segment
        try:
            # Rows that are all alike take next to nothing in a file, and their room in memory.
            claimed = group.header.record_count * self._row_bytes
            check_uncompressed(max(group.uncompressed_bytes, claimed), self._max_bytes)
            segment.check(group, found, is_all=self._is_all)
            if group.is_part:
                table = self._read_part(group, found)
            else:
                self._check_pages(group, found)
                table = self._read(group, found)
            read = self._assemble(group, table)
            count = group.header.record_count
            if rows is not None:
                count = rows.true_count
                read = RowGroupRecords(group, keep_rows(read.records, rows, self._repeating), None)
            if self._made is None:
                return read
            return replace(read, records=self._made.make(read.records, count))
        except (TxnlogError, MemoryError):
            raise
        except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
            raise segment.damaged(group, str(error)) from error

    def _check_pages(self, group: RowGroup, found: Found) -> None:
        """Check that the values of its columns take as much memory as is allowed."""
        segment = self._segment
        chunks = [group.chunks[leaf] for name in {*self.stored} for leaf in segment.leaves[name]]
        check_column_chunks(
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

    def _read(self, group: RowGroup, found: Found) -> pa.Table:
        try:
            pieces, file = self._idle.pop()
        except IndexError:  # all are with other threads
            pieces, file = self._open(self._repeating)
        pieces.held = _by_position(found)
        most = _WORTH_THREADS_BYTES if self._is_alone else _WORK_AHEAD_BYTES
        is_large = self.size_bytes(group) > most
        table = read_row_group(file, group.number, self.stored, use_threads=is_large)
        pieces.held = {}
        self._idle.append((pieces, file))
        return table

    def _read_part(self, group: RowGroup, found: Found) -> pa.Table:
        """A part of a row group, by its own little file; the same is checked as of a whole one."""
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
        check_column_chunks(chunks, self._max_bytes, count_named)
        return read_row_group(open_part(), 0, self.stored, use_threads=False)

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

    def _assemble(self, group: RowGroup, table: pa.Table) -> RowGroupRecords:
        deltas = None
        damaged = self._segment.damaged
        if table.num_rows != group.header.record_count:
            reason = f"it has {table.num_rows} rows, not {group.header.record_count}"
            raise damaged(group, reason)
        if self._segment.footer.stores_offsets:
            offsets = table.column(OFFSET_COLUMN).to_numpy()
            table = table.select(self._wanted)
            header = group.header
            if offsets[0] != header.base_offset or offsets[-1] != header.last_offset:
                raise damaged(group, f"its offsets are {offsets[0]} to {offsets[-1]}")
            if not bool((np.diff(offsets) > 0).all()):
                raise damaged(group, "its offsets do not ascend")
            if header.last_offset_delta + 1 > header.record_count:
                deltas = (offsets - header.base_offset).astype(np.int32)
        time = time_column(self._segment.schema.names)
        if time in self.stored:
            times = table.column(time)
            if not pa.types.is_timestamp(times.type) or times.null_count:
                raise damaged(group, f"a timestamp is null, or is {times.type}")
        if self._made is None:
            table = _as_records(table, self._segment.schema.names)
        if any(column.num_chunks > 1 for column in table.columns):
            table = table.combine_chunks()
        batches = table.to_batches()
        if len(batches) > 1:
            raise damaged(group, "a column has more than 2 GiB")
        if batches:
            return RowGroupRecords(group, batches[0], deltas)
        nothing = pa.table({"": pa.nulls(group.header.record_count)}).to_batches()[0].select([])
        return RowGroupRecords(group, nothing, deltas)


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


def keep_rows(
    records: pa.RecordBatch, rows: pa.BooleanArray, repeating: Sequence[str] = ()
) -> pa.RecordBatch:
    """Some of the rows; the columns that were read as numbers of values have these again."""
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


def _as_records(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """With the very types of RECORD_SCHEMA, where the columns are those: Parquet renames items.

    ``names`` are those of all columns in the file: the records' times are in microseconds there.
    """
    time = time_column(names)
    fields = []
    for field in table.schema:
        known = RECORD_SCHEMA.get_field_index(field.name)
        same = known >= 0 and _is_record_column(field.type, RECORD_SCHEMA.field(known).type)
        if field.name == time and pa.types.is_timestamp(field.type):
            fields.append(field.with_type(TIMESTAMP_TYPE))
        elif known >= 0 and time in RECORD_SCHEMA.names and not _has_type_of(known, field.type):
            raise ValueError(f"column {field.name!r} is {field.type}")
        else:
            fields.append(RECORD_SCHEMA.field(known) if same else field)
    schema = pa.schema(fields)
    return table if schema.equals(table.schema, check_metadata=False) else table.cast(schema)


def _has_type_of(known: int, found: pa.DataType) -> bool:
    """Whether a column has the type of a record's, perhaps as numbers of a few values."""
    kind = found.value_type if pa.types.is_dictionary(found) else found
    return _is_record_column(kind, RECORD_SCHEMA.field(known).type)


def _is_record_column(found: pa.DataType, record: pa.DataType) -> bool:
    if pa.types.is_list(record):
        return pa.types.is_list(found) and bool(found.value_type == record.value_type)
    return bool(found == record)
