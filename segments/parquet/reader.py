"""Reads records of a segment that is a Parquet file: ranges of offsets, a row group at a time.

Offsets are relative to the segment. Row groups that are read whole are checked by the footer's
checksums, pages by their own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
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
_MERGE_BYTES: Final = 1 << 20
"""Columns with no more between them are read together: a request costs as much."""


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
        if file.size_bytes <= WHOLE_BYTES:
            self._data = data = bytes(file.read(0, file.size_bytes))
            file = replace(file, read=lambda start, stop: data[start:stop])
        self.footer: Footer = read_footer(file)
        if self._data is not None and not self._data.startswith(MAGIC):
            raise CorruptRecord.at(file.name, 0, "a Parquet file begins with PAR1")

    @property
    def timestamp_column(self) -> str:
        """The name of the column with the times of records. Raises CorruptRecord."""
        names = self.footer.metadata.schema.to_arrow_schema().names
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
        fields = [*self.footer.metadata.schema.to_arrow_schema()]
        places = match_fields(fields, [*columns])
        return [None if at is None else fields[at].name for at in places]

    def column_bytes(self, group: RowGroup, columns: Columns) -> int:
        """About how many bytes these columns take in a row group, decompressed."""
        schema, described = (
            self.footer.metadata.schema,
            self.footer.metadata.row_group(group.number),
        )
        names = self.names_of(columns) if isinstance(columns, pa.Schema) else columns
        roots = None if names is None else {name.partition(".")[0] for name in names if name}
        return sum(
            described.column(leaf).total_uncompressed_size
            for leaf in range(described.num_columns)
            if roots is None or schema.column(leaf).path.partition(".")[0] in roots
        )

    def read(
        self,
        groups: Sequence[RowGroup],
        columns: Columns,
        max_uncompressed_bytes: int,
    ) -> Iterator[RowGroupRecords]:
        """The rows of row groups, one after another: these columns, in that order; None: all.

        Columns of a schema are found by their ids, see ``columns.SchemaColumns``.
        Raises CorruptRecord; UnsupportedRecordFormat for a name that the file does not have.
        """
        file_schema = self.footer.metadata.schema.to_arrow_schema()
        names = file_schema.names
        made = SchemaColumns(file_schema, columns) if isinstance(columns, pa.Schema) else None
        wanted = self._check_names(names, columns) if made is None else made.stored
        stored = [*wanted, OFFSET_COLUMN] if self.footer.stores_offsets else [*wanted]
        is_all = set(stored) == set(names)
        row_bytes = sum(_least_bytes(file_schema.field(name).type) for name in stored)
        pieces: dict[int, list[range]] = {}
        if self._data is None:
            pieces = {group.number: self._pieces(group, stored) for group in groups}
        fetch = self._file.read_ahead or self._fetch
        with closing(fetch([piece for some in pieces.values() for piece in some])) as fetched:
            for group in groups:
                self._check_size(group, row_bytes, max_uncompressed_bytes)
                found = [(piece, next(fetched)) for piece in pieces.get(group.number, ())]
                source = self._source(group, found, is_all=is_all)
                read = self._read_group(group, wanted, stored, source)
                if made is not None:
                    read = replace(read, records=self._conform(read, made))
                yield read

    def _check_names(self, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return [name for name in names if name != OFFSET_COLUMN]
        missing = [name for name in columns if name not in names]
        if missing:
            raise UnsupportedRecordFormat(
                f"{self._file.name}: there is no column {missing[0]!r}, but {', '.join(names)}"
            )
        return [*columns]

    def _conform(self, read: RowGroupRecords, columns: SchemaColumns) -> pa.RecordBatch:
        try:
            return columns.make(read.records, read.group.header.record_count)
        except ValueError as error:
            raise self._damaged(read.group, str(error)) from error

    def _fetch(self, pieces: Sequence[range]) -> Generator[BytesLike]:
        yield from (self._file.read(piece.start, piece.stop) for piece in pieces)

    def _check_size(self, group: RowGroup, row_bytes: int, most: int) -> None:
        # Rows that are all alike take next to nothing in a file, and their room in memory.
        claimed = max(group.uncompressed_bytes, group.header.record_count * row_bytes)
        if claimed > most:
            reason = f"it claims {claimed} bytes, {most} are the most"
            raise self._damaged(group, reason)

    def _read_group(
        self,
        group: RowGroup,
        wanted: Sequence[str],
        stored: Sequence[str],
        source: pa.NativeFile,
    ) -> RowGroupRecords:
        try:
            table = self._decode(source, group, stored)
        except TxnlogError:
            raise
        except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
            raise self._damaged(group, str(error)) from error
        if table.num_rows != group.header.record_count:
            raise self._damaged(
                group, f"it has {table.num_rows} rows, not {group.header.record_count}"
            )
        return self._assemble(group, table, wanted)

    def _decode(self, source: Any, group: RowGroup, stored: Sequence[str]) -> pa.Table:
        from pyarrow import parquet

        opened = parquet.ParquetFile(
            source, metadata=self.footer.metadata, page_checksum_verification=True
        )
        return opened.read_row_group(group.number, columns=[*stored])

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

    def _source(
        self, group: RowGroup, found: Sequence[tuple[range, BytesLike]], *, is_all: bool
    ) -> pa.NativeFile:
        """The file, or what was fetched of it for a row group, checked if that is all."""
        name = self._file.name
        if self._data is not None:
            if group.number not in self._checked:
                stop = group.position + group.size_bytes
                group.check(memoryview(self._data)[group.position : stop], name)
                self._checked.add(group.number)
            return pa.BufferReader(self._data)
        for piece, data in found:
            if len(data) < len(piece):
                reason = f"the file has ended, {piece.stop} bytes were expected"
                raise CorruptRecord.at(name, piece.start + len(data), reason)
        if is_all:
            group.check(found[0][1], name)
        held = {piece.start: memoryview(data) for piece, data in found}
        return pa.PythonFile(_Pieces(held, self._file.size_bytes), mode="r")

    def _pieces(self, group: RowGroup, columns: Sequence[str]) -> list[range]:
        """The bytes of some columns of a row group, as few ranges; of all columns it is one."""
        described = self.footer.metadata.row_group(group.number)
        found: list[range] = []
        schema = self.footer.metadata.schema.to_arrow_schema()
        # By number: a name may have dots, as paths to nested columns do.
        owners = [field.name for field in schema for _ in range(count_leaves(field.type))]
        wanted = frozenset(columns)
        for leaf, owner in enumerate(owners):
            if owner in wanted:
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


class _Pieces:
    """Some bytes of a file, at their positions, as pyarrow reads a file."""

    closed = False

    def __init__(self, held: dict[int, memoryview], size_bytes: int) -> None:
        self._held = held
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
        for start, data in self._held.items():
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
