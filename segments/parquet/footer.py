"""The footer of a segment that is a Parquet file: its row groups, and their checksums.

The log keeps a checksum of the footer as the segment's tag, the footer keeps one of each row group
and of the page index, and pages have Parquet's own: so every byte of the file is covered. Offsets
are relative to the segment.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Final

import crc32c
import pyarrow as pa

from txnlog.segments.batch_header import (
    MAGIC_PARQUET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TAG,
    BatchHeader,
    BytesLike,
    Compression,
)
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.parquet.file_metadata import (
    CODECS,
    ColumnChunk,
    FileMetadata,
    RowGroupMetadata,
)
from txnlog.segments.records import TIMESTAMP_COLUMNS
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.untrusted import (
    MAX_DECODED_BYTES,
    check_column_chunks,
    check_parquet_footer,
    read_parquet_footer,
)

MAGIC: Final = b"PAR1"
OFFSET_COLUMN: Final = "_offset"
"""The relative offset of each row, in segments with gaps; in others it is the row's number."""
TAG_MASK: Final = 0x7FFFFFFF
CHECKSUMS_KEY: Final = b"txnlog.row_group_crc32c"
PAGE_INDEX_KEY: Final = b"txnlog.page_index_crc32c"
FOOTER_CHUNK_BYTES: Final = 64 << 10
"""How much of a file's end is read first: usually all of the footer."""

TAIL_BYTES: Final = 8  # the footer's length and the magic
_LENGTH_FIELD_BYTES = 12  # the length in a batch header counts what comes after itself
_CHECKSUM = re.compile(rb"[0-9a-f]{8}")
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
"""The type of records' times in files; in those of others they may be in milliseconds."""
_CODECS: Final = {
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4_raw": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: bytes [position, position + size_bytes) of the file.

    ``header`` has the same as a batch's: offsets, times, record count. ``crc`` is None in files
    that txnlog has not written. ``chunks`` are those of the Parquet columns. It may be a part of
    one: then chunks are the pages with its rows, of some columns, which lie between those of other
    rows, and ``dictionaries`` where the dictionaries of these columns lie, by leaf.
    """

    number: int
    first_row: int
    position: int
    size_bytes: int
    uncompressed_bytes: int
    crc: int | None
    header: BatchHeader
    chunks: tuple[ColumnChunk, ...]
    dictionaries: Mapping[int, range] | None = None

    @property
    def is_part(self) -> bool:
        """Whether it stands for some pages of a row group only."""
        return self.dictionaries is not None

    def check(self, data: BytesLike, name: str) -> None:
        """Raise CorruptRecord unless these are its bytes as written."""
        found = crc32c.crc32c(data)
        if self.crc is not None and found != self.crc:
            reason = (
                f"row group {self.number}: CRC-32C is {found:#010x}, the footer says "
                f"{self.crc:#010x}"
            )
            raise CorruptRecord.at(name, self.position, reason, self.header.base_offset)


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """The end of a file. ``metadata`` is pyarrow's; ``position`` is where it begins.

    ``described`` is the same as we have read it. ``page_index`` are the bytes between the row
    groups and the footer: where pages lie, and the least and the largest values of some, by which
    engines can skip others. ``page_index_crc`` is None in files that txnlog has not written.
    """

    described: FileMetadata
    metadata: Any
    groups: tuple[RowGroup, ...]
    stores_offsets: bool
    position: int
    tag: int
    page_index: range
    page_index_crc: int | None

    def check_page_index(self, data: BytesLike, name: str) -> None:
        """Raise CorruptRecord unless these are its bytes as written."""
        found = crc32c.crc32c(data)
        if self.page_index_crc is not None and found != self.page_index_crc:
            reason = (
                f"page index: CRC-32C is {found:#010x}, the footer says {self.page_index_crc:#010x}"
            )
            raise CorruptRecord.at(name, self.page_index.start, reason)


def units_per_ms(kind: pa.DataType) -> int:
    """How many units of a file's column of times are a millisecond; of another type 1."""
    return 1000 if kind == _MICROSECONDS else 1


def with_tail(metadata: bytes) -> bytes:
    """A footer as it ends a file: followed by its length and the magic."""
    return metadata + len(metadata).to_bytes(TAIL_BYTES - len(MAGIC), "little") + MAGIC


def footer_tag(tail: bytes | memoryview) -> int:
    """The tag of a segment whose file ends with this footer, its length and the magic: 31 bits."""
    tag: int = crc32c.crc32c(tail) & TAG_MASK
    return tag


def read_footer(file: SegmentFile) -> Footer:
    """Read and check the end of the file.

    Raises CorruptRecord: it is damaged, or belongs to another segment.
    """
    return _parse(file, read_tail(file))


def check_numbers(file: SegmentFile, columns: Collection[str]) -> None:
    """Check that Arrow may scan some columns of a file, of types of fixed length and not nested.

    Raises CorruptRecord: it is damaged, or was swapped with another one; ValueError: its pages
    contradict the footer, or take too much memory.
    """
    wanted = {(name.encode(),) for name in columns}
    for group in read_footer(file).groups:
        chunks = [chunk for chunk in group.chunks if chunk.leaf.path in wanted]
        check_column_chunks(
            [(chunk, partial(_read_chunk, file, chunk)) for chunk in chunks],
            MAX_DECODED_BYTES,
            lambda _: MAX_DECODED_BYTES + 1,
        )


def _read_chunk(file: SegmentFile, chunk: ColumnChunk, start: int, stop: int) -> BytesLike:
    first = chunk.position
    return file.read(first + start, first + min(stop, chunk.size_bytes))


def check_footer(file: SegmentFile) -> bytes:
    """Check that a file is the segment's, only by its end, which is returned.

    Arrow may read it then. Raises CorruptRecord: it is damaged, or was swapped with another one.
    """
    tail = read_tail(file)
    _check_tag(file, tail)
    position = file.size_bytes - len(tail)
    try:
        check_parquet_footer(tail, position)
    except ValueError as error:
        raise _unreadable(file, position, error) from error
    return tail


def _check_tag(file: SegmentFile, tail: bytes) -> int:
    tag = footer_tag(tail)
    if file.identity is not None and file.identity.tag not in (NO_TAG, tag):
        raise CorruptRecord.at(
            file.name,
            file.size_bytes - len(tail),
            f"the footer's checksum is {tag}, the log says {file.identity.tag}. It is "
            "damaged, or the file was exchanged for another one",
        )
    return tag


def _parse(file: SegmentFile, tail: bytes) -> Footer:
    position = file.size_bytes - len(tail)
    tag = _check_tag(file, tail)
    try:
        described, metadata = read_parquet_footer(tail, position)
        schema = metadata.schema.to_arrow_schema()
        groups = tuple(_row_groups(file, described, tag, schema))
        (page_index_crc,) = _checksums(described.pairs.get(PAGE_INDEX_KEY), 1)
    except (CorruptRecord, MemoryError):
        raise
    except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
        raise _unreadable(file, position, error) from error
    end = _check_layout(file, groups, position)
    page_index = range(end, position)
    stores_offsets = OFFSET_COLUMN in schema.names
    return Footer(
        described, metadata, groups, stores_offsets, position, tag, page_index, page_index_crc
    )


def _unreadable(file: SegmentFile, position: int, error: Exception) -> CorruptRecord:
    return CorruptRecord.at(file.name, position, f"the footer cannot be read: {error}")


def read_tail(file: SegmentFile) -> bytes:
    """The footer with its length and the magic. Raises CorruptRecord."""
    size = file.size_bytes
    least = len(MAGIC) + TAIL_BYTES
    if size < least:
        raise CorruptRecord.at(file.name, 0, f"{size} bytes are too few for a Parquet file")
    start = max(size - FOOTER_CHUNK_BYTES, 0)
    data = bytes(file.read(start, size))
    if len(data) < size - start:
        reason = f"the file has ended, {size} bytes were expected"
        raise CorruptRecord.at(file.name, start + len(data), reason)
    if data[-len(MAGIC) :] != MAGIC:
        raise CorruptRecord.at(file.name, size - len(MAGIC), "a Parquet file ends with PAR1")
    length = int.from_bytes(data[-TAIL_BYTES : -len(MAGIC)], "little") + TAIL_BYTES
    if length > size - len(MAGIC):
        reason = f"a footer of {length} bytes is claimed, the file has {size}"
        raise CorruptRecord.at(file.name, size - TAIL_BYTES, reason)
    if length > len(data):
        data = bytes(file.read(size - length, start)) + data
    return data[-length:]


def _row_groups(
    file: SegmentFile, described: FileMetadata, tag: int, schema: Any
) -> Iterator[RowGroup]:
    checksums = _checksums(described.pairs.get(CHECKSUMS_KEY), len(described.groups))
    leaves = [leaf.path for leaf in described.leaves]
    names = [name for name in TIMESTAMP_COLUMNS if (name.encode(),) in leaves]
    time = offset_leaf = None
    per_ms = 1
    if names:
        time = leaves.index((names[0].encode(),))
        per_ms = units_per_ms(schema.field(names[0]).type)
    if OFFSET_COLUMN in schema.names:
        offset_leaf = leaves.index((OFFSET_COLUMN.encode(),))
    first_rows = accumulate((group.row_count for group in described.groups), initial=0)
    for number, (group, first_row) in enumerate(zip(described.groups, first_rows, strict=False)):
        chunks, rows = group.chunks, group.row_count
        position = min(chunk.position for chunk in chunks)
        size_bytes = sum(chunk.size_bytes for chunk in chunks)
        first, last = first_row, first_row + rows - 1
        if offset_leaf is not None:
            first, last = _range_of(chunks[offset_leaf]) or (0, -1)
        least_ms, most_ms = -1, -1
        times = None if time is None else _range_of(chunks[time])
        if times is not None:
            least_ms, most_ms = (n // per_ms for n in times)
        if not 0 < rows <= last - first + 1 or first < 0:
            raise CorruptRecord.at(
                file.name,
                position,
                f"row group {number} has {rows} rows for offsets {first} to {last}",
            )
        yield RowGroup(
            number,
            first_row,
            position,
            size_bytes,
            group.uncompressed_bytes,
            checksums[number],
            row_group_header(
                group, first, last, size_bytes, tag, checksums[number], (least_ms, most_ms)
            ),
            chunks,
        )


def row_group_header(
    group: RowGroupMetadata,
    first: int,
    last: int,
    size_bytes: int,
    tag: int,
    crc: int | None = None,
    times_ms: tuple[int, int] = (-1, -1),
) -> BatchHeader:
    """The batch header of a row group with offsets ``first`` to ``last``, of ``size_bytes``."""
    return BatchHeader(
        base_offset=first,
        length=size_bytes - _LENGTH_FIELD_BYTES,
        leader_epoch=tag,
        magic=MAGIC_PARQUET,
        crc=crc or 0,
        attributes=int(_CODECS.get(CODECS[group.chunks[0].codec] or "", Compression.NONE)),
        last_offset_delta=last - first,
        base_timestamp_ms=times_ms[0],
        max_timestamp_ms=times_ms[1],
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=first,
        record_count=group.row_count,
    )


def _range_of(chunk: ColumnChunk) -> tuple[int, int] | None:
    """The least and the largest integer of a column in a row group; None: unknown."""
    if chunk.least is None or chunk.largest is None:
        return None
    least, largest = (
        int.from_bytes(bound, "little", signed=True) for bound in (chunk.least, chunk.largest)
    )
    return least, largest


def _checksums(listed: bytes | None, count: int) -> list[int | None]:
    """The listed checksums, one for each; None for each if the file has none."""
    if listed is None:
        return [None] * count
    parts = listed.split(b",")
    if len(parts) != count or not all(_CHECKSUM.fullmatch(part) for part in parts):
        raise ValueError(f"it has {len(parts)} checksums where {count} belong")
    return [int(part, 16) for part in parts]


def _check_layout(file: SegmentFile, groups: tuple[RowGroup, ...], footer: int) -> int:
    """Check that row groups are adjacent from the first magic to the footer, and offsets ascend.

    Returns where the last of them ends.
    """
    position, last_offset = len(MAGIC), -1
    for group in groups:
        if group.crc is not None and group.position != position:
            reason = f"row group {group.number} begins here, {position} was expected"
            raise CorruptRecord.at(file.name, group.position, reason)
        position = group.position + group.size_bytes
        if group.header.base_offset <= last_offset:
            reason = f"base offset {group.header.base_offset} comes after {last_offset}"
            raise CorruptRecord.at(file.name, group.position, reason)
        last_offset = group.header.last_offset
    if position > footer:
        raise CorruptRecord.at(
            file.name, footer, f"row groups end at {position}, the footer begins"
        )
    return position
