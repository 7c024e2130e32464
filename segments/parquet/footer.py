"""The footer of a segment that is a Parquet file: its row groups, and their checksums.

The log keeps a checksum of the footer as the segment's tag, the footer keeps one of each row group
and of the page index, and pages have Parquet's own: so every byte of the file is covered. Offsets
are relative to the segment.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import crc32c
import pyarrow as pa

from txnlog.segments.batch_header import (
    MAGIC_PARQUET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BatchHeader,
    BytesLike,
)
from txnlog.segments.compression import Compression
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.identity import NO_TAG
from txnlog.segments.records import TIMESTAMP_COLUMNS
from txnlog.segments.segment_file import SegmentFile

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
"""The type of records' times in files; in older ones they are in milliseconds."""
_CODECS: Final = {
    "GZIP": Compression.GZIP,
    "SNAPPY": Compression.SNAPPY,
    "LZ4": Compression.LZ4,
    "ZSTD": Compression.ZSTD,
}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: bytes [position, position + size_bytes) of the file.

    ``header`` has the same as a batch's: offsets, times, record count. ``crc`` is None in files
    that txnlog has not written.
    """

    number: int
    first_row: int
    position: int
    size_bytes: int
    uncompressed_bytes: int
    crc: int | None
    header: BatchHeader

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

    ``page_index`` are the bytes between the row groups and the footer: the least and the largest
    values of pages, by which engines can skip some; it is not used here. ``page_index_crc`` is None
    in files that txnlog has not written, or in old ones.
    """

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


def footer_tag(tail: bytes | memoryview) -> int:
    """The tag of a segment whose file ends with this footer, its length and the magic: 31 bits."""
    tag: int = crc32c.crc32c(tail) & TAG_MASK
    return tag


def read_footer(file: SegmentFile) -> Footer:
    """Read and check the end of the file.

    Raises CorruptRecord: it is damaged, or belongs to another segment.
    """
    return _parse(file, read_tail(file))


def check_footer(file: SegmentFile) -> bytes:
    """Check that a file is the segment's, only by its end, which is returned.

    Raises CorruptRecord: it is damaged, or was swapped with another one.
    """
    tail = read_tail(file)
    _check_tag(file, tail)
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
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(pa.BufferReader(tail))
        schema = metadata.schema.to_arrow_schema()
        stores_offsets = OFFSET_COLUMN in schema.names
        groups = tuple(_row_groups(file, metadata, tag, schema))
        (page_index_crc,) = _checksums((metadata.metadata or {}).get(PAGE_INDEX_KEY), 1)
    except (CorruptRecord, MemoryError):
        raise
    except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
        raise CorruptRecord.at(
            file.name, position, f"the footer cannot be read: {error}"
        ) from error
    end = _check_layout(file, groups, position)
    page_index = range(end, position)
    return Footer(metadata, groups, stores_offsets, position, tag, page_index, page_index_crc)


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


def _row_groups(file: SegmentFile, metadata: Any, tag: int, schema: pa.Schema) -> Any:
    count = metadata.num_row_groups
    checksums = _checksums((metadata.metadata or {}).get(CHECKSUMS_KEY), count)
    leaves = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    time = next((name for name in TIMESTAMP_COLUMNS if name in leaves), None)
    offset_leaf = leaves.index(OFFSET_COLUMN) if OFFSET_COLUMN in schema.names else None
    groups = [metadata.row_group(number) for number in range(count)]
    first_rows = accumulate((group.num_rows for group in groups), initial=0)
    for number, (group, first_row) in enumerate(zip(groups, first_rows, strict=False)):
        chunks = [group.column(leaf) for leaf in range(group.num_columns)]
        position = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
        size_bytes = sum(chunk.total_compressed_size for chunk in chunks)
        first, last = first_row, first_row + group.num_rows - 1
        if offset_leaf is not None:
            first, last = _range_of(chunks[offset_leaf])
        least_ms, most_ms = -1, -1
        if time is not None and chunks[leaves.index(time)].is_stats_set:
            per_ms = 1000 if schema.field(time).type == _MICROSECONDS else 1
            least_ms, most_ms = (n // per_ms for n in _range_of(chunks[leaves.index(time)]))
        if not 0 < group.num_rows <= last - first + 1:
            raise CorruptRecord.at(
                file.name,
                position,
                f"row group {number} has {group.num_rows} rows for offsets {first} to {last}",
            )
        yield RowGroup(
            number,
            first_row,
            position,
            size_bytes,
            group.total_byte_size,
            checksums[number],
            BatchHeader(
                base_offset=first,
                length=size_bytes - _LENGTH_FIELD_BYTES,
                leader_epoch=tag,
                magic=MAGIC_PARQUET,
                crc=checksums[number] or 0,
                attributes=int(_CODECS.get(chunks[0].compression, Compression.NONE)),
                last_offset_delta=last - first,
                base_timestamp_ms=least_ms,
                max_timestamp_ms=most_ms,
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_PRODUCER_EPOCH,
                base_sequence=first,
                record_count=group.num_rows,
            ),
        )


def _range_of(chunk: Any) -> tuple[int, int]:
    """The least and the largest integer of a column in a row group."""
    statistics = chunk.statistics
    return int(statistics.min_raw), int(statistics.max_raw)


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


if __name__ == "__main__":  # whether a footer can be read, without risking another process
    given = sys.stdin.buffer.read()
    _parse(SegmentFile(lambda *_: b"", 1 << 62, "stdin", is_parquet=True), given)
