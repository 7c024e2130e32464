"""The way in for bytes of Arrow and Parquet: everything that pyarrow decodes comes through here.

A checksum says that bytes are those that somebody wrote, not that he meant well. pyarrow's C++
allocates what bytes claim, reads where their offsets point, and on some contradictions ends the
process. So what they claim is read and checked here first, and what was decoded is validated.

Everything raises ValueError, or one of Arrow's own errors, if the bytes are not what they must be:
the caller knows the file's name, and says what is to be done.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.segments.formats.arrow_metadata import check_schema, read_layout
from txnlog.segments.formats.codecs import check_uncompressed
from txnlog.segments.parquet.file_metadata import (
    BYTE_ARRAY,
    ColumnChunk,
    FileMetadata,
    read_file_metadata,
)
from txnlog.segments.parquet.pages import ReadChunk, most_decoded_bytes, page_sizes

MAX_DECODED_BYTES: Final = 128 << 20
"""The most memory for the values of one batch, row group or table: several times what writers make,
and little enough for copies of them to fit into a small machine.
"""
ParquetFile: TypeAlias = Any  # pyarrow has no types
ParquetMetadata: TypeAlias = Any

_TAIL_BYTES: Final = 8
_KEPT_BYTES: Final = 32 << 10
"""Of schemas and footers up to this what they say is kept: by their bytes, so nobody else's can be
taken. Eight row groups of 20 columns take 24 KiB, and ten times as much once they are parsed.
"""
_KEPT_COUNT: Final = 64
_SHARED_BYTES: Final = 64 << 10
"""Decoding less than this in several threads takes longer than in one."""
_ARROW_SCHEMA: Final = b"ARROW:schema"
_LEVEL_BYTES: Final = 4
"""What Arrow keeps for each nested value while it reads them."""
_OFFSET_BYTES: Final = 4


# -- Arrow's IPC format --------------------------------------------------------------------------


def read_schema(message: bytes) -> pa.Schema:
    """A schema from its message, which has the limits of ``check_schema``."""
    if len(message) <= _KEPT_BYTES:  # a topic's manifests all have the same
        return _read_small_schema(message)
    return _read_schema(message)


def _read_schema(message: bytes) -> pa.Schema:
    try:
        check_schema(memoryview(message))
    except (IndexError, struct.error) as error:
        raise ValueError(f"it is not an Arrow schema: {error}") from None
    return pa.ipc.read_schema(pa.py_buffer(message))


_read_small_schema = lru_cache(maxsize=_KEPT_COUNT)(_read_schema)


def read_record_batch(stream: memoryview, included: Sequence[int]) -> pa.RecordBatch:
    """Some columns, by number, of a stream of one batch.

    Its layout was read and checked, and so was its schema.
    """
    options = pa.ipc.IpcReadOptions(included_fields=[*included], use_threads=False)
    with pa.ipc.open_stream(pa.py_buffer(stream), options=options) as batches:
        batch = batches.read_next_batch()
    # It costs under 10 % of decoding, and keeps a bad offset from ever reaching foreign memory.
    batch.validate(full=True)
    return batch


def read_table(stream: bytes, expected: pa.Schema, row_count: int, max_bytes: int) -> pa.Table:
    """Read a stream as a table, which must have this schema and ``row_count`` rows."""
    view = memoryview(stream)
    try:
        layout = read_layout(view)
    except (IndexError, struct.error) as error:
        raise ValueError(f"it is not an Arrow stream: {error}") from None
    rows = sum(batch.row_count for batch in layout.batches)
    if rows != row_count or any(batch.row_count < 0 for batch in layout.batches):
        raise ValueError(f"it has {rows} rows, {row_count} were expected")
    check_uncompressed(sum(batch.uncompressed_bytes for batch in layout.batches), max_bytes)
    schema = read_schema(stream[: layout.schema_message_bytes])
    if schema != expected:
        raise ValueError(f"it has other columns: {', '.join(schema.names)}")
    options = pa.ipc.IpcReadOptions(use_threads=len(stream) > _SHARED_BYTES)
    with pa.ipc.open_stream(pa.py_buffer(stream), options=options) as batches:
        table = batches.read_all()
    table.validate(full=True)
    if table.num_rows != row_count:
        raise ValueError(f"it has {table.num_rows} rows, {row_count} were expected")
    return table


# -- Parquet -------------------------------------------------------------------------------------


def check_parquet_footer(tail: bytes, position: int) -> FileMetadata:
    """What a Parquet file's footer says, which pyarrow may then read.

    ``tail``: the file from ``position``, where the footer begins, with its length and the magic.
    """
    if len(tail) <= _KEPT_BYTES:  # small files are opened again and again
        return _check_small_footer(tail, position)
    return _check_footer(tail, position)


def _check_footer(tail: bytes, position: int) -> FileMetadata:
    described = read_file_metadata(tail[:-_TAIL_BYTES], position)
    arrow = described.pairs.get(_ARROW_SCHEMA)
    if arrow is not None:  # pyarrow goes by it
        read_schema(base64.b64decode(arrow, validate=True))
    return described


def read_parquet_footer(tail: bytes, position: int) -> tuple[FileMetadata, ParquetMetadata]:
    """Check a footer, and return it as it was parsed and as pyarrow has it."""
    described = check_parquet_footer(tail, position)
    read = _read_small_metadata if len(tail) <= _KEPT_BYTES else _read_metadata
    return described, read(tail)


def _read_metadata(tail: bytes) -> ParquetMetadata:
    from pyarrow import parquet

    return parquet.read_metadata(pa.BufferReader(tail))


_check_small_footer = lru_cache(maxsize=_KEPT_COUNT)(_check_footer)
_read_small_metadata = lru_cache(maxsize=_KEPT_COUNT)(_read_metadata)


def read_own_footer(end: bytes) -> ParquetMetadata:
    """A footer that was made of one that is checked, as pyarrow has it."""
    from pyarrow import parquet

    return parquet.read_metadata(pa.BufferReader(end))


def open_parquet(
    source: pa.NativeFile,
    metadata: ParquetMetadata,
    dictionaries: Sequence[str] = (),
    *,
    checks_pages: bool = True,
) -> ParquetFile:
    """A file whose footer was read by ``read_parquet_footer``.

    ``dictionaries``: paths to columns to be read as numbers of a few values. ``checks_pages``: by
    their checksums.
    """
    from pyarrow import parquet

    return parquet.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=[*dictionaries],
        pre_buffer=False,
        page_checksum_verification=checks_pages,
    )


def read_pieces(
    file: ParquetFile,
    number: int,
    columns: Sequence[str] | None,
    most_rows: int,
    *,
    use_threads: bool,
) -> Iterator[pa.RecordBatch]:
    """Columns of a row group of which ``check_column_chunks`` has seen the chunks; None: all.

    At least one column, and at most so many rows at a time.
    """
    wanted = None if columns is None else [*columns]
    pieces = file.iter_batches(
        most_rows, row_groups=[number], columns=wanted, use_threads=use_threads
    )
    for piece in pieces:
        piece.validate(full=True)  # texts are UTF-8
        yield piece


def check_column_chunks(
    chunks: Iterable[tuple[ColumnChunk, ReadChunk]],
    max_bytes: int,
    count_named: Callable[[ColumnChunk], int],
) -> int:
    """How many bytes the values of the column chunks of one row group take at most.

    ``count_named`` tells exactly how many bytes the values of texts take that their pages name.

    Raises ValueError if these are more than ``max_bytes``.
    """
    total = levels = uncompressed = 0
    unsure: list[tuple[int, ColumnChunk]] = []
    for chunk, read in chunks:
        sizes = page_sizes(chunk, read)
        # Whatever of it is named; and all dictionaries together are no more work than this.
        uncompressed += sizes.uncompressed_bytes
        check_uncompressed(uncompressed, max_bytes)
        width = chunk.leaf.width
        at_most = chunk.value_count * (_OFFSET_BYTES if width is None else width)
        if chunk.leaf.is_nested:
            levels += chunk.value_count * _LEVEL_BYTES
        if chunk.leaf.kind == BYTE_ARRAY:
            texts = most_decoded_bytes(chunk, sizes, read, max_bytes)
            at_most += texts
            if sizes.named_count:
                unsure.append((texts, chunk))
        total += max(at_most, sizes.uncompressed_bytes)
    for texts, chunk in unsure if total > max_bytes else ():
        total += count_named(chunk) - texts
    check_uncompressed(total, max_bytes)
    check_uncompressed(levels, max_bytes)
    return total


def named_bytes(file: ParquetFile, group: int, leaf: int) -> int:
    """How many bytes the values of one column in a row group take.

    ``file`` is open for this column to be read as numbers of a few values.
    """
    table = file.reader.read_row_group(group, column_indices=[leaf], use_threads=False)
    total = 0
    for array in table.column(0).chunks:
        values = _innermost(array)
        if not pa.types.is_dictionary(values.type):
            raise ValueError("a column's values cannot be counted")
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        total += pc.sum(lengths.take(values.indices)).as_py() or 0
    return total


def _innermost(array: pa.Array) -> pa.Array:
    """The values of a nested column of which one leaf was read."""
    while pa.types.is_nested(array.type):
        array = array.field(0) if pa.types.is_struct(array.type) else array.values
    return array
