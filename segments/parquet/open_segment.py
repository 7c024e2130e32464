"""An open segment that is a Parquet file: its footer, its columns' names, its bytes.

Offsets are relative to the segment.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice, tee
from typing import Final, TypeAlias

import pyarrow as pa

from txnlog.segments.batch_header import BytesLike
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.parquet.file_metadata import ColumnChunk
from txnlog.segments.parquet.footer import (
    FOOTER_CHUNK_BYTES,
    MAGIC,
    OFFSET_COLUMN,
    Footer,
    RowGroup,
    read_footer,
    units_per_ms,
)
from txnlog.segments.parquet.page_index import PageIndex, Parts
from txnlog.segments.records import TIMESTAMP_COLUMNS, time_column
from txnlog.segments.schema_columns import Columns, match_fields
from txnlog.segments.segment_file import SegmentFile

WHOLE_BYTES: Final = 4 << 20
"""A file up to this is read in one request."""
_MERGE_BYTES: Final = 1 << 20
"""Columns at most this far apart are read together: a request costs as much."""
_RUN_BYTES: Final = 4 << 20
"""Parts of a row group are requested together up to this size."""
_SMALL_BYTES: Final = 2 << 20
"""A row group up to this size, decompressed, is no more than a batch in columns: it is not cut."""
_MOST_INDEX_BYTES: Final = 16 << 20
"""A larger page index is not used: whole row groups are read."""

Found: TypeAlias = Sequence[tuple[range, BytesLike]]
"""Pieces of a file, and their bytes."""


def count_leaves(kind: pa.DataType) -> int:
    """How many Parquet columns a column of this type takes."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(count_leaves(kind.field(number).type) for number in range(kind.num_fields))


def leaves_of(schema: pa.Schema) -> dict[str, list[int]]:
    """By column name, the numbers of its Parquet columns.

    By number: a name may have dots, as paths to nested columns do.
    """
    counts = [count_leaves(field.type) for field in schema]
    numbers = iter(range(sum(counts)))
    return {
        name: [*islice(numbers, count)] for name, count in zip(schema.names, counts, strict=True)
    }


def first_chunk(size_bytes: int) -> range:
    """The bytes of a file that are read first: all of them, or its end."""
    if size_bytes <= WHOLE_BYTES:
        return range(size_bytes)
    return range(size_bytes - FOOTER_CHUNK_BYTES, size_bytes)


class ParquetSegment:
    """An open file: its footer, and all of its bytes if there are few.

    Raises CorruptRecord if the file is damaged, or not the right one.
    """

    def __init__(self, file: SegmentFile) -> None:
        self.file = file
        self.data: bytes | None = None
        self._checked: set[int] = set()
        self._names_of: tuple[pa.Schema, list[str | None]] | None = None
        self._index: tuple[PageIndex | None] | None = None
        self._end: tuple[int, BytesLike] = file.size_bytes, b""
        """Where the bytes of the file's end begin that were read for the footer, and these."""
        if file.size_bytes <= WHOLE_BYTES:
            self.data = bytes(file.read(0, file.size_bytes))
        self.footer: Footer = read_footer(replace(file, read=self._read_end))
        if self.data is not None and not self.data.startswith(MAGIC):
            raise CorruptRecord.at(file.name, 0, "a Parquet file begins with PAR1")
        self.schema: pa.Schema = self.footer.metadata.schema.to_arrow_schema()

    def _read_end(self, start: int, stop: int) -> BytesLike:
        data = self._bytes(start, stop)
        if stop == self.file.size_bytes:
            self._end = start, data
        return data

    def _bytes(self, start: int, stop: int) -> BytesLike:
        if self.data is not None:
            return memoryview(self.data)[start:stop]
        kept_start, kept = self._end
        if start >= kept_start:
            return memoryview(kept)[start - kept_start : stop - kept_start]
        return self.file.read(start, stop)

    def _page_index(self) -> PageIndex | None:
        """The page index, if it is known to be sound; without it whole row groups are read."""
        # No cached_property: in Python 3.11 all segments would wait for each other's bytes, and a
        # child of a fork for a thread that only its parent has.
        if self._index is None:
            self._index = (self._read_page_index(),)
        return self._index[0]

    def _read_page_index(self) -> PageIndex | None:
        where = self.footer.page_index
        if self.footer.page_index_crc is None or not 0 < len(where) <= _MOST_INDEX_BYTES:
            return None
        data = self._bytes(where.start, where.stop)
        try:
            self.footer.check_page_index(data, self.file.name)
        except CorruptRecord:
            return None
        return PageIndex(data, where.start)

    def parts(
        self,
        group: RowGroup,
        columns: Sequence[str],
        start_offset: int = 0,
        stop_offset: int | None = None,
        *,
        by_page: bool = False,
    ) -> Iterator[RowGroup]:
        """What to read of a row group for some columns and the offsets [start_offset, stop_offset).

        All of it, or the part with the pages that have these offsets; with ``by_page`` in parts
        of a few pages, if it is not small.
        """
        header = group.header
        covers = header.base_offset >= start_offset and (
            stop_offset is None or header.last_offset < stop_offset
        )
        is_small = group.uncompressed_bytes <= _SMALL_BYTES
        is_read_whole = covers and (is_small or not by_page)
        parts = None if is_read_whole else self._parts_of(group, columns)
        if parts is None:
            yield group
        elif by_page:
            yield from parts.each(start_offset, stop_offset)
        else:
            yield parts.covering(start_offset, stop_offset)

    def pages(self) -> Iterator[RowGroup]:
        """The parts of all row groups that are as small as pages of all columns allow."""
        for group in self.footer.groups:
            parts = self._parts_of(group, self.schema.names)
            if parts is None:
                yield group
            else:
                yield from (parts.part(at, at + 1) for at in range(len(parts.starts) - 1))

    def _parts_of(self, group: RowGroup, columns: Sequence[str]) -> Parts | None:
        """How a row group may be cut for some columns; None if it has one page, or no index."""
        leaves = sorted({leaf for name in columns for leaf in self.leaves[name]})
        if not leaves or all(not group.chunks[leaf].offset_index for leaf in leaves):
            return None
        index = self._page_index()
        if index is None:
            return None
        time = time_column(self.schema.names)
        offsets = OFFSET_COLUMN if self.footer.stores_offsets else None
        try:
            parts = Parts(
                group,
                index,
                leaves,
                time_leaf=self.leaves[time][0] if time is not None else None,
                per_ms=1 if time is None else units_per_ms(self.schema.field(time).type),
                offset_leaf=self.leaves[offsets][0] if offsets is not None else None,
            )
        except (ValueError, IndexError, KeyError, OverflowError):
            return None  # it contradicts the footer, and is needed for nothing
        return parts if parts.starts[1] < group.header.record_count else None

    @property
    def timestamp_column(self) -> str:
        """The name of the column with the times of records. Raises CorruptRecord."""
        name = time_column(self.schema.names)
        if name is not None:
            return name
        raise CorruptRecord(f"{self.file.name}: no column is called {TIMESTAMP_COLUMNS[1]}")

    def groups(self, start_offset: int, stop_offset: int | None) -> Iterator[RowGroup]:
        """The row groups with any offset of [start_offset, stop_offset)."""
        for group in self.footer.groups:
            if stop_offset is not None and group.header.base_offset >= stop_offset:
                return
            if group.header.last_offset >= start_offset:
                yield group

    def names_of(self, columns: pa.Schema) -> list[str | None]:
        """The name of each column of a schema in the file; None: the file has no such column."""
        if self._names_of is None or self._names_of[0] is not columns:
            fields = [*self.schema]
            places = match_fields(fields, [*columns])
            names = [None if at is None else fields[at].name for at in places]
            self._names_of = columns, names
        return self._names_of[1]

    @cached_property
    def leaves(self) -> dict[str, list[int]]:
        """By column name, the numbers of its Parquet columns."""
        return leaves_of(self.schema)

    def column_bytes(self, group: RowGroup, columns: Columns) -> int:
        """About how many bytes these columns take in a row group, decompressed."""
        names = self.names_of(columns) if isinstance(columns, pa.Schema) else columns
        chunks = self._chunks(group, self.leaves if names is None else names)
        return sum(chunk.uncompressed_bytes for chunk in chunks)

    def stored_bytes(self, group: RowGroup, columns: Iterable[str]) -> int:
        """How many bytes of the file these columns take in a row group."""
        return sum(chunk.size_bytes for chunk in self._chunks(group, columns))

    def _chunks(self, group: RowGroup, columns: Iterable[str | None]) -> Iterator[ColumnChunk]:
        """The footer's column chunks for some columns; columns that the file lacks are skipped."""
        leaves = self.leaves
        wanted = (leaves[name] for name in {*columns} if name in leaves)
        return (group.chunks[leaf] for some in wanted for leaf in some)

    def pieces(self, group: RowGroup, columns: Iterable[str]) -> list[range]:
        """The byte ranges of some columns of a row group, as few as possible."""
        return self._merged(self._places(group, columns))

    def runs(
        self, groups: Iterable[RowGroup], columns: Sequence[str]
    ) -> Iterator[tuple[list[RowGroup], list[range]]]:
        """Row groups with their pieces; parts of one that are not large are read together."""
        some: list[RowGroup] = []
        places: list[range] = []
        room = 0
        for group in groups:
            found = self._places(group, columns)
            size_bytes = sum(map(len, found))
            is_next = group.is_part and some and some[-1].number == group.number
            if some and not (is_next and size_bytes <= room):
                yield some, self._merged(places)
                some, places, room = [], [], _RUN_BYTES
            some.append(group)
            places += found
            room -= size_bytes
        if some:
            yield some, self._merged(places)

    def _places(self, group: RowGroup, columns: Iterable[str]) -> list[range]:
        """The byte ranges of some columns of a row group."""
        found = [
            range(chunk.position, chunk.position + chunk.size_bytes)
            for chunk in self._chunks(group, columns)
        ]
        if group.dictionaries is None:
            return found
        found += group.dictionaries.values()
        return [place for place in found if place.start < self._end[0]]

    def _merged(self, found: Sequence[range]) -> list[range]:
        merged: list[range] = []
        for piece in sorted(found, key=lambda piece: piece.start):
            if merged and piece.start - merged[-1].stop <= _MERGE_BYTES:
                merged[-1] = range(merged[-1].start, max(merged[-1].stop, piece.stop))
            else:
                merged.append(piece)
        return merged

    def fetch(self, pieces: Iterable[Sequence[range]]) -> Generator[Found]:
        """The pieces to read of some row groups; none if all bytes of the file are in memory."""
        if self.data is not None:
            yield from ([] for _ in pieces)
            return
        ahead = self.file.read_ahead or self._read_in_order
        coming, these = tee(pieces)
        with closing(ahead(piece for some in coming for piece in some)) as fetched:
            for some in these:
                yield [(piece, next(fetched)) for piece in some]

    def _read_in_order(self, pieces: Iterable[range]) -> Generator[BytesLike]:
        yield from (self.file.read(piece.start, piece.stop) for piece in pieces)

    def bytes_of(self, chunk: ColumnChunk, found: Found) -> memoryview:
        """The bytes of a column chunk, which were fetched."""
        return self.bytes_at(range(chunk.position, chunk.position + chunk.size_bytes), found)

    def bytes_at(self, where: range, found: Found) -> memoryview:
        """The bytes of a range of the file, which were fetched."""
        start, stop = where.start, where.stop
        if self.data is not None or start >= self._end[0]:
            return memoryview(self._bytes(start, stop))
        for piece, data in found:
            if piece.start <= start and stop <= piece.stop:
                return memoryview(data)[start - piece.start : stop - piece.start]
        raise ValueError(f"bytes {start} to {stop} were not fetched")

    def check(self, group: RowGroup, found: Found, *, is_all: bool) -> None:
        """Raise CorruptRecord if the bytes read of a row group are known to be damaged.

        ``is_all``: one of the pieces is all of it.
        """
        if self.data is not None:
            if group.number not in self._checked:
                whole = self.footer.groups[group.number]
                stop = whole.position + whole.size_bytes
                whole.check(memoryview(self.data)[whole.position : stop], self.file.name)
                self._checked.add(group.number)
            return
        for piece, data in found:
            if len(data) < len(piece):
                reason = f"the file has ended, {piece.stop} bytes were expected"
                raise self.damaged(group, reason)
        if is_all and not group.is_part:
            place = range(group.position, group.position + group.size_bytes)
            (data,) = (data for piece, data in found if piece == place)
            group.check(data, self.file.name)

    def damaged(self, group: RowGroup, reason: str) -> CorruptRecord:
        """The CorruptRecord to raise for a damaged row group."""
        return CorruptRecord.at(
            self.file.name,
            group.position,
            f"row group {group.number}: {reason}",
            group.header.base_offset,
        )
