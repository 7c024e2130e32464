"""Writes a segment as a Parquet file: batches become row groups, and the footer their index.

It chooses which columns have dictionaries, and where pages end. A dictionary of values that are
nearly all different makes a file larger, and dearer to read. And where the pages of all columns end
at the same rows, a reader that wants a few rows decodes a page of each column, not the row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any, Final

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.segments.batch_header import NO_TAG, Compression
from txnlog.segments.batches import SegmentEnd, SupportsWrite
from txnlog.segments.parquet.field_ids import with_record_ids
from txnlog.segments.parquet.footer import (
    CHECKSUMS_KEY,
    OFFSET_COLUMN,
    PAGE_INDEX_KEY,
    TAIL_BYTES,
    footer_tag,
    with_tail,
)
from txnlog.segments.parquet.footer_edits import Chunk, float_leaves, misleads, without_bounds
from txnlog.segments.records import RECORD_SCHEMA, TIMESTAMP_COLUMNS, Int32Array
from txnlog.segments.schema_columns import children

_SAMPLE_ROWS: Final = 4096
MOST_DICTIONARY_BYTES: Final = 128 << 10
"""What a dictionary may take: values of a larger one lie all over the memory, and cost a reader
more than those that follow each other. Arrow ends one that is larger, and stores the other values
as they are.
"""
_LENGTH_BYTES: Final = 4
_PAGE_ROWS: Final = 20_000
"""The most rows of a page, as Arrow has it."""
_RECORD_PAGE_BYTES: Final = 1 << 20
_TYPED_PAGE_BYTES: Final = 4 << 20
"""The size of one page of each column together, before they are encoded. Of records little: a
consumer decodes a page for its first one. Typed rows have many columns, and each page a header.
"""
LARGEST_PAGE_BYTES: Final = 64 << 20
"""No page ends by its size alone: its rows would not be those of the others."""


def page_rows(records: pa.Table) -> int:
    """How many rows a page of each column is to have, by the size of the first ones."""
    is_typed = records.schema.names[: len(RECORD_SCHEMA)] != RECORD_SCHEMA.names
    row_bytes: int = max(records.nbytes // max(records.num_rows, 1), 1)
    most_bytes = _TYPED_PAGE_BYTES if is_typed else _RECORD_PAGE_BYTES
    return max(min(most_bytes // row_bytes, _PAGE_ROWS), 1)


@cache
def has_page_rows() -> bool:
    """Whether pyarrow's writer can be told how many rows a page has."""
    from pyarrow import parquet

    return "max_rows_per_page" in signature(parquet.ParquetWriter).parameters


def dictionary_leaves(records: pa.Table) -> list[str]:
    """The paths of the Parquet columns for which a dictionary pays, judged by the first rows.

    Nested ones have one always.
    """
    return [
        path
        for field, column in zip(records.schema, records.columns, strict=True)
        if children(field.type) or _repeats(column)
        for path in _paths(field.name, field.type)
    ]


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a column has few values, as far as its first rows tell."""
    rows, kind = len(column), column.type
    if types.is_boolean(kind) or types.is_null(kind):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    count, distinct = len(sample), pc.count_distinct(sample, mode="all").as_py()
    value_bytes = sample.nbytes // max(count, 1) + _LENGTH_BYTES
    if 2 * distinct <= count:
        return bool(distinct * value_bytes <= MOST_DICTIONARY_BYTES)
    # Of d values that are equally frequent, n rows repeat about n * n / 2 / d.
    expected = count * count // max(2 * (count - distinct), 1)
    return count < rows and 2 * expected <= rows and expected * value_bytes <= MOST_DICTIONARY_BYTES


def _paths(path: str, kind: pa.DataType) -> Iterator[str]:
    """The paths of a column's Parquet columns, as Arrow's writer calls them."""
    if types.is_struct(kind):
        for field in children(kind):
            yield from _paths(f"{path}.{field.name}", field.type)
    elif types.is_map(kind):
        yield from _paths(f"{path}.key_value.key", kind.key_type)
        yield from _paths(f"{path}.key_value.value", kind.item_type)
    elif children(kind):
        yield from _paths(f"{path}.list.element", kind.value_type)
    else:
        yield path


_FOOTER_BYTES: Final = 1024
"""About what the footer takes besides what it says of each column."""
_COLUMN_BYTES: Final = 256
"""About what the footer says of one column in a row group, and what the column's pages add."""
_LEAST_PAGE_ROWS: Final = 1024
"""Not fewer than this many are assumed before it is known how many a page has."""
_PAGE_BYTES: Final = 64
"""About what the page index says of one page."""
_NO_CHECKSUM: Final = b"0" * 8
_BUFFER_BYTES: Final = 64 << 10
"""Arrow writes the header of each page by itself: a call into Python for each is dear."""

_CODECS: Final = {
    Compression.NONE: "none",
    Compression.GZIP: "gzip",
    Compression.SNAPPY: "snappy",
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
}


class RowGroupEncoder:
    """Writes row groups to a sink, and at the end the footer.

    ``origin`` is written into the footer: it tells people, and other engines, whose file it is.
    With ``stores_offsets`` each row's offset is stored: then there may be gaps.
    """

    def __init__(
        self,
        sink: SupportsWrite,
        *,
        compression: Compression,
        level: int | None,
        stores_offsets: bool,
        origin: Mapping[str, str],
    ) -> None:
        self._output = _Output(sink)
        self._buffered: Any = None
        self._compression = compression
        self._level = level
        self._stores_offsets = stores_offsets
        self._origin = origin
        self._checksums: list[int] = []
        self._writer: Any = None
        self._column_count = len(RECORD_SCHEMA)
        self._row_count = 0
        self._page_rows = _LEAST_PAGE_ROWS
        self._floats: dict[int, list[int]] = {}
        self._unbounded: set[Chunk] = set()

    @property
    def overhead_bytes(self) -> int:
        """The size of the footer and the page headers of this many row groups, and of one more."""
        groups = len(self._checksums) + 1
        pages = self._row_count // self._page_rows + groups
        by_column = groups * _COLUMN_BYTES + pages * _PAGE_BYTES
        return _FOOTER_BYTES + self._column_count * by_column

    def write(
        self,
        pieces: Sequence[pa.RecordBatch],
        base_offset: int,
        offset_deltas: Int32Array | None,
    ) -> int:
        """Write one row group, in pieces, not joined before; returns how many bytes it took."""
        records = pa.Table.from_batches(pieces)
        if self._stores_offsets:
            records = _with_offsets(records, base_offset, offset_deltas)
        elif offset_deltas is not None:
            raise ValueError("offsets with gaps are stored only if it is known from the start")
        before = self._output.size_bytes
        with self._output.taking():
            self._write(records)
        self._unbounded |= {
            (len(self._checksums), leaf)
            for leaf, path in self._floats.items()
            if misleads(pieces, path)
        }
        self._checksums.append(self._output.crc)
        self._row_count += records.num_rows
        return self._output.size_bytes - before

    def _write(self, records: pa.Table) -> None:
        if self._writer is None:
            self._column_count = len(records.schema)
            self._floats = float_leaves(records.schema)
            self._writer = self._begin(records)  # which writes the magic
            self._buffered.flush()
        self._output.crc = 0
        self._writer.write_table(records, row_group_size=records.num_rows)
        self._buffered.flush()

    def finish(self) -> SegmentEnd:
        """Write the footer, if there is any row group."""
        if self._writer is None:
            return SegmentEnd(0, b"", b"", NO_TAG)
        before = self._output.size_bytes
        checksums = ",".join(f"{crc:08x}" for crc in self._checksums)
        checksums_of = {
            CHECKSUMS_KEY.decode(): checksums,
            PAGE_INDEX_KEY.decode(): _NO_CHECKSUM.decode(),
        }
        self._writer.add_key_value_metadata({**self._origin, **checksums_of})
        self._output.held = bytearray()
        with self._output.taking():
            self._writer.close()
            self._buffered.flush()
        self._buffered = None
        end = bytes(self._output.held)
        self._output.held = None
        length = int.from_bytes(end[-TAIL_BYTES:-4], "little") + TAIL_BYTES
        index, footer = end[:-length], end[-length:]
        if self._unbounded:
            footer = with_tail(without_bounds(footer[:-TAIL_BYTES], self._unbounded))
        footer = _fill_in(footer, crc32c.crc32c(index))
        self._output.put(index + footer)
        return SegmentEnd(self._output.size_bytes - before, b"", b"", footer_tag(footer))

    def _begin(self, records: pa.Table) -> Any:
        from pyarrow import parquet

        schema = records.schema
        self._page_rows = page_rows(records)
        pages: dict[str, int] = {}
        if has_page_rows():
            pages["max_rows_per_page"] = self._page_rows
            pages["data_page_size"] = LARGEST_PAGE_BYTES
        file = pa.PythonFile(self._output, mode="w")
        self._buffered = pa.BufferedOutputStream(file, _BUFFER_BYTES)
        codec = _CODECS[self._compression]
        return parquet.ParquetWriter(
            self._buffered,
            with_record_ids(schema),
            version="2.6",
            compression=codec,
            compression_level=None if codec in ("none", "snappy") else self._level,
            write_page_checksum=True,
            write_page_index=True,
            store_schema=False,
            # A literal finer than a column's unit is cut by Spark before it is compared.
            coerce_timestamps="us",
            write_statistics=_statistics(schema),
            use_dictionary=dictionary_leaves(records),
            dictionary_pagesize_limit=MOST_DICTIONARY_BYTES,
            **pages,
        )


def _statistics(schema: pa.Schema) -> bool | list[str]:
    """The columns whose least and greatest values go into the footer, for reads that look them up.

    True stands for all columns.
    """
    if schema.names[: len(RECORD_SCHEMA)] != RECORD_SCHEMA.names:
        return True
    return [name for name in ("key", *TIMESTAMP_COLUMNS, OFFSET_COLUMN) if name in schema.names]


def _fill_in(footer: bytes, crc: int) -> bytes:
    """The footer with the checksum of the page index.

    The writer makes both at once, so that a place is left for it: behind its key, the type of a
    string in Thrift's compact protocol and its length. What row groups say comes before.
    """
    key = PAGE_INDEX_KEY + b"\x18\x08"
    before, place, after = footer.rpartition(key + _NO_CHECKSUM)
    assert place, "pyarrow has written the footer in another way"
    return b"%s%s%08x%s" % (before, key, crc, after)


def _with_offsets(
    records: pa.Table, base_offset: int, offset_deltas: Int32Array | None
) -> pa.Table:
    deltas = np.arange(records.num_rows) if offset_deltas is None else offset_deltas
    offsets = pa.array(deltas.astype(np.int64) + base_offset)
    field = pa.field(OFFSET_COLUMN, pa.int64(), nullable=False)
    return records.append_column(field, offsets)


class _Output:
    """The sink as pyarrow wants it: a file that is written from its beginning to its end."""

    closed = False

    def __init__(self, sink: SupportsWrite) -> None:
        self._sink = sink
        self.size_bytes = 0
        self.crc = 0
        self._is_taking = False
        self.held: bytearray | None = None
        """The bytes not passed to the sink yet, if they wait."""

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Let Arrow write to the sink within the block only.

        A writer that was not closed writes a footer when it is garbage-collected, maybe after the
        sink is gone.
        """
        self._is_taking = True
        try:
            yield
        finally:
            self._is_taking = False

    def write(self, data: Any) -> int:
        piece = bytes(data)
        if not self._is_taking:
            return len(piece)
        if self.held is not None:
            self.held += piece
        else:
            self.put(piece)
        return len(piece)

    def put(self, piece: bytes) -> None:
        """Pass bytes to the sink."""
        self._sink.write(piece)
        self.size_bytes += len(piece)
        self.crc = crc32c.crc32c(piece, self.crc)

    def tell(self) -> int:
        return self.size_bytes + len(self.held or b"")

    def flush(self) -> None:
        """Do nothing: no bytes wait here."""

    def close(self) -> None:
        """The sink is the caller's to close."""
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
