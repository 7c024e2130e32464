"""Dumps Parquet files that txnlog has not written: whether they are sound, and their rows.

Nothing of the columns has a meaning here, whatever they are called. What Parquet allows and is not
read here, an encoding say, is no damage: it is said by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from txnlog.segments.batches import DecodedBatch
from txnlog.segments.errors import CorruptRecord, UnsupportedRecordFormat
from txnlog.segments.formats.codecs import OverLimit, check_uncompressed
from txnlog.segments.identity import NO_TAG
from txnlog.segments.inspect.dumped_batch import DumpedBatch
from txnlog.segments.parquet.compact_values import ForeignFeature
from txnlog.segments.parquet.file_metadata import ColumnChunk, RowGroupMetadata
from txnlog.segments.parquet.footer import CHECKSUMS_KEY, row_group_header
from txnlog.segments.parquet.pieces import Pieces
from txnlog.segments.records import concat_batches
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.untrusted import (
    ParquetFile,
    ParquetMetadata,
    check_column_chunks,
    check_parquet_footer,
    named_bytes,
    open_parquet,
    read_own_footer,
    read_pieces,
)


def is_foreign(file: SegmentFile, tail: bytes) -> bool:
    """Whether a Parquet file with this end is no segment: then nobody has said what it is."""
    return file.identity is None and CHECKSUMS_KEY not in tail


def dump_foreign(file: SegmentFile, tail: bytes, max_bytes: int) -> Iterator[DumpedBatch]:
    """Row groups as batches whose offsets are numbers of rows; those without rows are left out.

    Args:
        file: the file.
        tail: its end, from the footer on.
        max_bytes: a row group whose values take more memory is not read.

    Raises:
        UnsupportedRecordFormat: it has what is not read here; it may be sound.
    """
    position = file.size_bytes - len(tail)
    try:
        with _errors(file, position, "the footer cannot be read"):
            opened = _open(file, tail, position)
    except CorruptRecord as error:
        yield DumpedBatch(0, file.size_bytes, None, None, None, str(error))
        return
    groups = [(at, group) for at, group in enumerate(opened.groups) if group.row_count]
    start = row = 0
    for at, group in groups:
        stop = max(chunk.position + chunk.size_bytes for chunk in group.chunks)
        if at == groups[-1][0]:
            stop = file.size_bytes
        size_bytes = sum(chunk.size_bytes for chunk in group.chunks)
        header = row_group_header(group, row, row + group.row_count - 1, size_bytes, NO_TAG)
        row += group.row_count
        decoded: DecodedBatch | None = None
        damage: str | None = None
        try:
            begin = min(chunk.position for chunk in group.chunks)
            with _errors(file, begin, f"row group {at}"):
                decoded = DecodedBatch(header, opened.read(at, group, max_bytes), None)
        except CorruptRecord as error:
            damage = str(error)
        size_bytes = max(stop - start, 0)
        yield DumpedBatch(start, size_bytes, header, None, decoded, damage, is_foreign=True)
        start = stop


def _open(file: SegmentFile, tail: bytes, position: int) -> _Opened:
    described = check_parquet_footer(tail, position)
    try:
        metadata = read_own_footer(tail)
        metadata.schema.to_arrow_schema()
    except (pa.ArrowException, ValueError) as error:
        raise ForeignFeature(f"Arrow says: {error}".rstrip(".")) from error
    return _Opened(file, described.groups, metadata)


@contextmanager
def _errors(file: SegmentFile, position: int, what: str) -> Iterator[None]:
    """What is wrong as CorruptRecord, what is only not read here as UnsupportedRecordFormat."""
    try:
        yield
    except (ForeignFeature, OverLimit, pa.ArrowNotImplementedError) as error:
        raise UnsupportedRecordFormat(
            f"{file.name} is a Parquet file of another program, and is not read here: "
            f"{error}. Nothing tells if it is sound"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
        raise CorruptRecord.at(file.name, position, f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file whose footer was read, and checked, as far as that can be."""

    file: SegmentFile
    groups: tuple[RowGroupMetadata, ...]
    metadata: ParquetMetadata

    def read(self, number: int, group: RowGroupMetadata, max_bytes: int) -> pa.RecordBatch:
        """The rows of a row group. Raises what Arrow raises, and ValueError."""
        stored_bytes = sum(chunk.size_bytes for chunk in group.chunks)
        check_uncompressed(max(group.uncompressed_bytes, stored_bytes), max_bytes)
        held = {chunk.position: self._fetch(chunk) for chunk in group.chunks}
        count_named = partial(self._count_named, held, number, group)
        check_column_chunks(
            [(chunk, partial(_part_of, held[chunk.position])) for chunk in group.chunks],
            max_bytes,
            count_named,
        )
        file = self._file(held)
        pieces = [*read_pieces(file, number, None, group.row_count, use_threads=False)]
        count = sum(piece.num_rows for piece in pieces)
        if count != group.row_count:
            raise ValueError(f"it has {count} rows, not {group.row_count}")
        return concat_batches(pieces)

    def _fetch(self, chunk: ColumnChunk) -> memoryview:
        data = self.file.read(chunk.position, chunk.position + chunk.size_bytes)
        if len(data) < chunk.size_bytes:
            raise ValueError(f"the file has ended within {chunk.size_bytes} bytes of a column")
        return memoryview(data)

    def _file(
        self, held: Mapping[int, memoryview], dictionaries: tuple[str, ...] = ()
    ) -> ParquetFile:
        pieces = Pieces(self.file.size_bytes)
        pieces.held = dict(held)
        return open_parquet(pa.PythonFile(pieces, mode="r"), self.metadata, dictionaries)

    def _count_named(
        self,
        held: Mapping[int, memoryview],
        number: int,
        group: RowGroupMetadata,
        chunk: ColumnChunk,
    ) -> int:
        path = ".".join(part.decode() for part in chunk.leaf.path)
        return named_bytes(self._file(held, (path,)), number, group.chunks.index(chunk))


def _part_of(data: memoryview, start: int, stop: int) -> memoryview:
    return data[start:stop]
