"""The page index of a Parquet segment: where pages lie, and with which rows they begin.

It is such a segment's sparse index. By it a reader finds the pages with some offsets, or with times
from one on, and reads them alone: as parts of row groups, which begin and end where pages of all
columns do. An index that contradicts the footer is not used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from txnlog.segments.batch_header import BytesLike
from txnlog.segments.parquet.compact_values import (
    BINARY,
    I32,
    I64,
    Fields,
    list_of,
    read_struct,
    struct_of,
)
from txnlog.segments.parquet.file_metadata import ColumnChunk
from txnlog.segments.parquet.footer import RowGroup

_MOST_PAGES: Final = 1 << 16
"""Of one column in a row group."""
_OFFSET_INDEX: Final = {1: list_of(_MOST_PAGES, struct_of({1: I64, 2: I32, 3: I64}))}
_BOUNDS: Final = list_of(_MOST_PAGES, BINARY)
_COLUMN_INDEX: Final = {2: _BOUNDS, 3: _BOUNDS}
_BOUND_BYTES: Final = 8
_PAGES_AT_ONCE: Final = 2
"""Two are as large as a batch in columns; of the first one only a few rows may be wanted."""


class DataPage(NamedTuple):
    """Bytes [position, position + size_bytes) of the file, and the row that it begins with."""

    position: int
    size_bytes: int
    first_row: int


@dataclass(frozen=True, slots=True, eq=False)
class PageIndex:
    """The bytes of a page index, which are as they were written, and where they begin."""

    data: BytesLike
    position: int

    def pages(self, chunk: ColumnChunk, row_count: int) -> list[DataPage]:
        """The pages with a chunk's values, which has so many rows; not its dictionary.

        Raises ValueError: it says nothing of them, or contradicts the chunk.
        """
        found = self._read(chunk.offset_index, _OFFSET_INDEX)
        pages = [DataPage(at[1], at[2], at[3]) for at in found[1]]
        position, row = pages[0].position, -1
        stop = chunk.position + chunk.size_bytes
        if pages[0].first_row or not (
            chunk.position < position if chunk.has_dictionary else chunk.position == position
        ):
            raise ValueError("the first page is not where the chunk begins")
        for page in pages:
            if page.position != position or page.size_bytes <= 0 or page.first_row <= row:
                raise ValueError("pages do not follow each other")
            position, row = page.position + page.size_bytes, page.first_row
        if position != stop or row >= row_count:
            raise ValueError("the last page is not where the chunk ends")
        return pages

    def bounds(self, chunk: ColumnChunk, count: int) -> list[tuple[int, int]]:
        """The least and the largest integer of each of so many pages. Raises ValueError."""
        found = self._read(chunk.column_index, _COLUMN_INDEX)
        least, largest = found[2], found[3]
        if not len(least) == len(largest) == count:
            raise ValueError(f"there are not {count} bounds")
        if any(len(bound) != _BOUND_BYTES for bound in (*least, *largest)):
            raise ValueError("bounds have another type")
        return [
            (int.from_bytes(a, "little", signed=True), int.from_bytes(b, "little", signed=True))
            for a, b in zip(least, largest, strict=True)
        ]

    def _read(self, where: range, fields: Fields) -> dict[int, Any]:
        start, stop = where.start - self.position, where.stop - self.position
        if not 0 <= start < stop <= len(self.data):
            raise ValueError("a column has no page index")
        found, _ = read_struct(memoryview(self.data)[start:stop].tobytes(), 0, fields)
        return found


class Parts:
    """Cuts a row group where pages of all of some columns begin.

    ``starts`` are these rows, and the number of rows.
    """

    def __init__(
        self,
        group: RowGroup,
        index: PageIndex,
        leaves: Sequence[int],
        *,
        time_leaf: int | None,
        per_ms: int,
        offset_leaf: int | None,
    ) -> None:
        """Raises ValueError, IndexError or KeyError for an index that does not fit.

        ``leaves`` are the numbers of the columns that are read, ``time_leaf`` and ``offset_leaf``
        those of the records' times and offsets. ``per_ms`` units of the times are a millisecond.
        """
        self._group = group
        self._per_ms = per_ms
        rows = group.header.record_count
        self._pages = {leaf: index.pages(group.chunks[leaf], rows) for leaf in leaves}
        common = set.intersection(
            *({page.first_row for page in pages} for pages in self._pages.values())
        )
        self.starts = [*sorted(common), rows]
        self._times = self._bounds(index, time_leaf)
        self._offsets = self._bounds(index, offset_leaf)
        base_offset = group.header.base_offset
        self._base_offsets = [base_offset + row for row in self.starts[:-1]]
        """The first offset from each of ``starts`` on."""
        if offset_leaf is not None:
            if self._offsets is None:
                raise ValueError("there are no bounds of offsets")
            self._check_offsets(*self._offsets)
            least = dict(zip(self._offsets[0], self._offsets[1], strict=True))
            self._base_offsets = [least[row][0] for row in self.starts[:-1]]

    def _check_offsets(self, rows: Sequence[int], bounds: Sequence[tuple[int, int]]) -> None:
        """Check that offsets ascend, and that there are as many as rows."""
        last = -1
        stops = [*rows[1:], self.starts[-1]]
        for row, stop, (least, largest) in zip(rows, stops, bounds, strict=True):
            if least <= last or stop - row > largest - least + 1:
                raise ValueError("bounds of offsets contradict the rows")
            last = largest

    def _bounds(
        self, index: PageIndex, leaf: int | None
    ) -> tuple[list[int], list[tuple[int, int]]] | None:
        """The first rows of a column's pages, and their bounds; None if there are none."""
        if leaf is None:
            return None
        chunk = self._group.chunks[leaf]
        if not chunk.column_index:
            return None
        pages = self._pages.get(leaf) or index.pages(chunk, self.starts[-1])
        return [page.first_row for page in pages], index.bounds(chunk, len(pages))

    def each(self, start_offset: int, stop_offset: int | None) -> Iterator[RowGroup]:
        """Parts with the offsets [start_offset, stop_offset): a page, then a few at a time."""
        first, stop = self._numbers(start_offset, stop_offset)
        yield self.part(first, first + 1)
        for number in range(first + 1, stop, _PAGES_AT_ONCE):
            yield self.part(number, min(number + _PAGES_AT_ONCE, stop))

    def covering(self, start_offset: int, stop_offset: int | None) -> RowGroup:
        """The smallest part with the offsets [start_offset, stop_offset) of the row group."""
        return self.part(*self._numbers(start_offset, stop_offset))

    def _numbers(self, start_offset: int, stop_offset: int | None) -> tuple[int, int]:
        """The first of ``starts`` to read offsets from, and the one to read them to."""
        first = max(bisect_right(self._base_offsets, start_offset) - 1, 0)
        stop = len(self._base_offsets)
        if stop_offset is not None:
            stop = max(bisect_left(self._base_offsets, stop_offset), first + 1)
        return first, stop

    def part(self, first: int, stop: int) -> RowGroup:
        """The rows from one of ``starts`` to another one, by their indexes there.

        What could contradict itself was checked before: it raises nothing.
        """
        group = self._group
        rows = range(self.starts[first], self.starts[stop])
        if len(rows) == group.header.record_count:
            return group
        chunks, dictionaries = [*group.chunks], {}
        for leaf, pages in self._pages.items():
            chunk = chunks[leaf]
            some = pages[_at(pages, rows.start) : _at(pages, rows.stop)]
            size_bytes = sum(page.size_bytes for page in some)
            chunks[leaf] = replace(
                chunk,
                value_count=len(rows),
                position=some[0].position,
                size_bytes=size_bytes,
                uncompressed_bytes=chunk.uncompressed_bytes * size_bytes // chunk.size_bytes,
            )
            if chunk.has_dictionary:
                dictionaries[leaf] = range(chunk.position, pages[0].position)
        read = [chunks[leaf] for leaf in self._pages]
        size_bytes = sum(chunk.size_bytes for chunk in read)
        first_offset = group.header.base_offset + rows.start
        last_offset = first_offset + len(rows) - 1
        if self._offsets is not None:
            found = _within(self._offsets, rows)
            first_offset, last_offset = found[0][0], found[-1][1]
        least_ms, most_ms = group.header.base_timestamp_ms, group.header.max_timestamp_ms
        if self._times is not None:
            times = _within(self._times, rows)
            least_ms = min(least for least, _ in times) // self._per_ms
            most_ms = max(largest for _, largest in times) // self._per_ms
        return replace(
            group,
            first_row=group.first_row + rows.start,
            position=min(chunk.position for chunk in read),
            size_bytes=size_bytes,
            uncompressed_bytes=sum(chunk.uncompressed_bytes for chunk in read),
            crc=None,
            header=replace(
                group.header,
                base_offset=first_offset,
                base_sequence=first_offset,
                last_offset_delta=last_offset - first_offset,
                base_timestamp_ms=least_ms,
                max_timestamp_ms=most_ms,
                record_count=len(rows),
            ),
            chunks=tuple(chunks),
            dictionaries=dictionaries,
        )


def _at(pages: Sequence[DataPage], row: int) -> int:
    """The number of the page that begins with a row."""
    return bisect_left(pages, row, key=lambda page: page.first_row)


def _within(bounds: tuple[list[int], list[tuple[int, int]]], rows: range) -> list[tuple[int, int]]:
    """The bounds of all pages with any of these rows."""
    starts, found = bounds
    first = max(bisect_left(starts, rows.start + 1) - 1, 0)
    return found[first : bisect_left(starts, rows.stop)]
