"""Reads records of a segment that is a Parquet file: ranges of offsets, a row group at a time.

Offsets are relative to the segment. Row groups that are read whole are checked by the footer's
checksums, pages by their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import BytesLike
from txnlog.segments.errors import CorruptRecord, TxnlogError, UnsupportedRecordFormat
from txnlog.segments.parquet.footer import (
    FOOTER_CHUNK_BYTES,
    MAGIC,
    OFFSET_COLUMN,
    Footer,
    RowGroup,
    read_footer,
)
from txnlog.segments.records import RECORD_SCHEMA, TIMESTAMP_COLUMNS, Int32Array
from txnlog.segments.schema_columns import Columns, SchemaColumns, match_fields
from txnlog.segments.segment_file import SegmentFile

WHOLE_BYTES: Final = 4 << 20
"""A file up to this is read in one request."""
_OFFSET_BYTES: Final = 4
_VALUE_BYTES: Final = 4
_MERGE_BYTES: Final = 1 << 20
"""Columns with no more between them are read together: a request costs as much."""
_WORK_AHEAD_BYTES: Final = 8 << 20
"""Row groups of which no more is read are decoded side by side; of larger ones the columns are."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupRecords:
    """The rows of a row group; ``offset_deltas`` is None if their offsets are dense."""

    group: RowGroup
    records: pa.RecordBatch
    offset_deltas: Int32Array | None


def count_leaves(kind: pa.DataType) -> int:
    """How many columns of a Parquet file hold a column of this type."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(count_leaves(kind.field(number).type) for number in range(kind.num_fields))


def _least_bytes(kind: pa.DataType) -> int:
    """What each value takes in memory at least, a null too."""
    if pa.types.is_struct(kind):
        return sum(_least_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return kind.bit_width // 8 if pa.types.is_primitive(kind) else _OFFSET_BYTES


def first_chunk(size_bytes: int) -> range:
    """The bytes that are read first of a file: all of them, or its end."""
    if size_bytes <= WHOLE_BYTES:
        return range(size_bytes)
    return range(size_bytes - FOOTER_CHUNK_BYTES, size_bytes)


class ParquetSegment:
    """An open file: its footer, and all of its bytes if there are few.

    Raises CorruptRecord where the file is damaged, or not the one it should be.
    """

    def __init__(self, file: SegmentFile) -> None:
        self._file = file
        self._data: bytes | None = None
        self._checked: set[int] = set()
        self._names_of: tuple[pa.Schema, list[str | None]] | None = None
        if file.size_bytes <= WHOLE_BYTES:
            self._data = data = bytes(file.read(0, file.size_bytes))
            file = replace(file, read=lambda start, stop: data[start:stop])
        self.footer: Footer = read_footer(file)
        if self._data is not None and not self._data.startswith(MAGIC):
            raise CorruptRecord.at(file.name, 0, "a Parquet file begins with PAR1")
        self.schema: pa.Schema = self.footer.metadata.schema.to_arrow_schema()

    @property
    def timestamp_column(self) -> str:
        """The name of the column with the times of records. Raises CorruptRecord."""
        names = self.schema.names
        for name in TIMESTAMP_COLUMNS:
            if name in names:
                return name
        raise CorruptRecord(f"{self._file.name}: no column is called {TIMESTAMP_COLUMNS[1]}")

    def groups(self, start_offset: int, stop_offset: int | None) -> Iterator[RowGroup]:
        """The row groups with any offset of [start_offset, stop_offset)."""
        for group in self.footer.groups:
            if stop_offset is not None and group.header.base_offset >= stop_offset:
                return
            if group.header.last_offset >= start_offset:
                yield group

    def names_of(self, columns: pa.Schema) -> list[str | None]:
        """What each column of a schema is called in the file; None: the file has no such column."""
        if self._names_of is None or self._names_of[0] is not columns:
            fields = [*self.schema]
            places = match_fields(fields, [*columns])
            names = [None if at is None else fields[at].name for at in places]
            self._names_of = columns, names
        return self._names_of[1]

    @cached_property
    def leaves(self) -> dict[str, list[int]]:
        """By the name of each column, the numbers of those that Parquet has it as.

        By number: a name may have dots, as paths to nested columns do.
        """
        counts = [count_leaves(field.type) for field in self.schema]
        numbers = iter(range(sum(counts)))
        return {
            name: [*islice(numbers, count)]
            for name, count in zip(self.schema.names, counts, strict=True)
        }

    def column_bytes(self, group: RowGroup, columns: Columns) -> int:
        """About how many bytes these columns take in a row group, decompressed."""
        described = self.footer.metadata.row_group(group.number)
        names = self.names_of(columns) if isinstance(columns, pa.Schema) else columns
        leaves = self.leaves
        wanted = leaves if names is None else {name for name in names if name in leaves}
        return sum(
            described.column(leaf).total_uncompressed_size
            for name in wanted
            for leaf in leaves[name]
        )

    def read(
        self,
        groups: Sequence[RowGroup],
        columns: Columns,
        max_uncompressed_bytes: int,
        rows: Sequence[pa.BooleanArray] | None = None,
    ) -> Iterator[RowGroupRecords]:
        """The rows of row groups, one after another: these columns, in that order; None: all.

        With ``rows`` those alone of each row group, and no offsets with them. Columns of a schema
        are found by their ids, see ``columns.SchemaColumns``.
        Raises CorruptRecord; UnsupportedRecordFormat for a name that the file does not have.
        """
        names = self.schema.names
        made = SchemaColumns(self.schema, columns) if isinstance(columns, pa.Schema) else None
        wanted = self._check_names(names, columns) if made is None else made.stored
        stored = [*wanted, OFFSET_COLUMN] if self.footer.stores_offsets else [*wanted]
        is_all = {*stored} == {*names}
        row_bytes = sum(_least_bytes(self.schema.field(name).type) for name in stored)
        pieces: dict[int, list[range]] = {}
        if self._data is None:
            pieces = {group.number: self._pieces(group, stored) for group in groups}
        sizes = [self._claimed_bytes(group, row_bytes, stored) for group in groups]
        is_small = len(groups) > 1 and max(sizes) <= _WORK_AHEAD_BYTES
        work = self._file.work_ahead if is_small else None
        repeating = [] if rows is None else self._repeating(groups, stored)
        opened = _OpenFiles(partial(self._open, repeating), use_threads=work is None)

        def decode(
            group: RowGroup,
            found: Sequence[tuple[range, BytesLike]],
            kept: pa.BooleanArray | None,
        ) -> RowGroupRecords:
            self._check_size(group, row_bytes, max_uncompressed_bytes)
            self._check_pieces(group, found, is_all=is_all)
            table = self._decode(partial(opened.read, found), group, stored)
            read = self._assemble(group, table, wanted)
            count = group.header.record_count
            if kept is not None:
                count = kept.true_count
                read = RowGroupRecords(group, keep_rows(read.records, kept, repeating), None)
            if made is None:
                return read
            return replace(read, records=self._conform(read, count, made))

        def calls() -> Iterator[tuple[int, Callable[[], RowGroupRecords]]]:
            every = [None] * len(groups) if rows is None else rows
            for group, size_bytes, kept in zip(groups, sizes, every, strict=True):
                found = [(piece, next(fetched)) for piece in pieces.get(group.number, ())]
                yield size_bytes, partial(decode, group, found, kept)

        fetch = self._file.read_ahead or self._fetch
        with closing(fetch([piece for some in pieces.values() for piece in some])) as fetched:
            if work is None:
                yield from (call() for _, call in calls())
                return
            with closing(work(calls())) as results:
                yield from results

    def _check_names(self, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return [name for name in names if name != OFFSET_COLUMN]
        missing = [name for name in columns if name not in names]
        if missing:
            raise UnsupportedRecordFormat(
                f"{self._file.name}: there is no column {missing[0]!r}, but {', '.join(names)}"
            )
        return [*columns]

    def _conform(self, read: RowGroupRecords, count: int, columns: SchemaColumns) -> pa.RecordBatch:
        try:
            return columns.make(read.records, count)
        except ValueError as error:
            raise self._damaged(read.group, str(error)) from error

    def _fetch(self, pieces: Sequence[range]) -> Generator[BytesLike]:
        yield from (self._file.read(piece.start, piece.stop) for piece in pieces)

    def _claimed_bytes(self, group: RowGroup, row_bytes: int, stored: Sequence[str]) -> int:
        """About how many bytes a row group takes in memory, by what the footer says."""
        return max(self.column_bytes(group, stored), group.header.record_count * row_bytes)

    def _check_size(self, group: RowGroup, row_bytes: int, most: int) -> None:
        # Rows that are all alike take next to nothing in a file, and their room in memory.
        claimed = max(group.uncompressed_bytes, group.header.record_count * row_bytes)
        if claimed > most:
            reason = f"it claims {claimed} bytes, {most} are the most"
            raise self._damaged(group, reason)

    def _repeating(self, groups: Sequence[RowGroup], columns: Sequence[str]) -> list[str]:
        """The columns of text or bytes that are stored as numbers of a few values.

        So they are decoded in a quarter of the time, which pays where few rows are wanted.
        """
        found = []
        for name in columns:
            kind = self.schema.field(name).type
            if "." in name or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
                continue
            (leaf,) = self.leaves[name]
            chunks = [self.footer.metadata.row_group(g.number).column(leaf) for g in groups]
            # Each value that stands by itself takes its length in 4 bytes at least.
            if all(
                chunk.has_dictionary_page
                and chunk.total_uncompressed_size < _VALUE_BYTES * chunk.num_values
                for chunk in chunks
            ):
                found.append(name)
        return found

    def _open(self, repeating: Sequence[str]) -> tuple[_Pieces, Any]:
        """The file for pyarrow, which finds there the pieces that it is given, if not all bytes."""
        from pyarrow import parquet

        pieces = _Pieces(self._file.size_bytes)
        whole = None if self._data is None else pa.BufferReader(self._data)
        return pieces, parquet.ParquetFile(
            whole or pa.PythonFile(pieces, mode="r"),
            metadata=self.footer.metadata,
            read_dictionary=[*repeating],
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _decode(
        self, read: Callable[..., pa.Table], group: RowGroup, stored: Sequence[str]
    ) -> pa.Table:
        try:
            table = read(group.number, stored)
        except (TxnlogError, MemoryError):
            raise
        except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
            raise self._damaged(group, str(error)) from error
        if table.num_rows != group.header.record_count:
            raise self._damaged(
                group, f"it has {table.num_rows} rows, not {group.header.record_count}"
            )
        return table

    def _assemble(self, group: RowGroup, table: pa.Table, wanted: Sequence[str]) -> RowGroupRecords:
        deltas = None
        if self.footer.stores_offsets:
            offsets = table.column(OFFSET_COLUMN).to_numpy()
            table = table.select([*wanted])
            header = group.header
            if offsets[0] != header.base_offset or offsets[-1] != header.last_offset:
                raise self._damaged(group, f"its offsets are {offsets[0]} to {offsets[-1]}")
            if not bool((np.diff(offsets) > 0).all()):
                raise self._damaged(group, "its offsets do not ascend")
            if header.last_offset_delta + 1 > header.record_count:
                deltas = (offsets - header.base_offset).astype(np.int32)
        batches = _as_records(table).combine_chunks().to_batches()
        if len(batches) > 1:
            raise self._damaged(group, "a column has more than 2 GiB")
        if batches:
            return RowGroupRecords(group, batches[0], deltas)
        nothing = pa.table({"": pa.nulls(group.header.record_count)}).to_batches()[0].select([])
        return RowGroupRecords(group, nothing, deltas)

    def _check_pieces(
        self, group: RowGroup, found: Sequence[tuple[range, BytesLike]], *, is_all: bool
    ) -> None:
        """Raise CorruptRecord where what was read of a row group is known to be damaged."""
        name = self._file.name
        if self._data is not None:
            if group.number not in self._checked:
                stop = group.position + group.size_bytes
                group.check(memoryview(self._data)[group.position : stop], name)
                self._checked.add(group.number)
            return
        for piece, data in found:
            if len(data) < len(piece):
                reason = f"the file has ended, {piece.stop} bytes were expected"
                raise self._damaged(group, reason)
        if is_all:
            group.check(found[0][1], name)

    def _pieces(self, group: RowGroup, columns: Sequence[str]) -> list[range]:
        """The bytes of some columns of a row group, as few ranges; of all columns it is one."""
        described = self.footer.metadata.row_group(group.number)
        found: list[range] = []
        for leaf in (leaf for name in {*columns} for leaf in self.leaves[name]):
            chunk = described.column(leaf)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            found.append(range(start, start + chunk.total_compressed_size))
        merged: list[range] = []
        for piece in sorted(found, key=lambda piece: piece.start):
            if merged and piece.start - merged[-1].stop <= _MERGE_BYTES:
                merged[-1] = range(merged[-1].start, piece.stop)
            else:
                merged.append(piece)
        return merged

    def _damaged(self, group: RowGroup, reason: str) -> CorruptRecord:
        return CorruptRecord.at(
            self._file.name,
            group.position,
            f"row group {group.number}: {reason}",
            group.header.base_offset,
        )


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


def _as_records(table: pa.Table) -> pa.Table:
    """With the very types of RECORD_SCHEMA, where the columns are those: Parquet renames items."""
    fields = []
    for field in table.schema:
        known = RECORD_SCHEMA.get_field_index(field.name)
        same = known >= 0 and _is_record_column(field.type, RECORD_SCHEMA.field(known).type)
        fields.append(RECORD_SCHEMA.field(known) if same else field)
    schema = pa.schema(fields)
    return table if schema.equals(table.schema, check_metadata=False) else table.cast(schema)


def _is_record_column(found: pa.DataType, record: pa.DataType) -> bool:
    if pa.types.is_list(record):
        return pa.types.is_list(found) and bool(found.value_type == record.value_type)
    return bool(found == record)


class _OpenFiles:
    """A file that is open once for each thread that reads row groups of it at a time."""

    def __init__(self, opener: Callable[[], tuple[_Pieces, Any]], *, use_threads: bool) -> None:
        self._opener = opener
        self._use_threads = use_threads
        self._idle: list[tuple[_Pieces, Any]] = []

    def read(
        self, found: Sequence[tuple[range, BytesLike]], number: int, columns: Sequence[str]
    ) -> pa.Table:
        """Decode columns of a row group, of which these bytes were fetched."""
        try:
            pieces, file = self._idle.pop()
        except IndexError:  # all are with other threads
            pieces, file = self._opener()
        pieces.held = {piece.start: memoryview(data) for piece, data in found}
        table = file.read_row_group(number, columns=[*columns], use_threads=self._use_threads)
        pieces.held = {}
        self._idle.append((pieces, file))
        return table


class _Pieces:
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
