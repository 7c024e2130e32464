"""Shows a segment as it lies, damage and all: decodes what can be decoded, drops nothing.

Modifies nothing. Knows a function that reads bytes, like the reader; unlike the reader it goes on
behind damage, so what it shows must not be taken for the log's records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import crc32c

from txnlog.segments.batches import (
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    MAX_HEADER_BYTES,
    DecodedBatch,
    decode_batch,
    decode_header,
)
from txnlog.segments.errors import CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat
from txnlog.segments.header import CRC_START, MAGIC_COLUMNS, MAGIC_POSITION, BatchHeader
from txnlog.segments.reader import read_header
from txnlog.segments.window import DEFAULT_CHUNK_BYTES, ReadRange, Window

_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class DumpedBatch:
    """Bytes [position, position + size_bytes) of a segment: a batch, or what is left of one.

    ``damage`` says what is wrong, None if nothing is. Without ``header`` the bytes are not known
    to be a batch at all; without ``decoded`` its records cannot be read. ``crc_ok`` is None where
    there is no header to hold a checksum.
    """

    position: int
    size_bytes: int
    header: BatchHeader | None
    crc_ok: bool | None
    decoded: DecodedBatch | None
    damage: str | None


def dump_segment(
    read: ReadRange,
    size_bytes: int,
    *,
    name: str,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> Iterator[DumpedBatch]:
    """Yield every byte of the file once, in order, as batches and damaged stretches.

    Behind a damaged header the next batch is searched for: its own header check and checksum
    make sure that it is one. Held in memory: one chunk and one batch. Raises only what ``read``
    raises, and CorruptRecord if the file is shorter than ``size_bytes``.
    """
    window = Window(read, size_bytes, name)
    position, last_offset = 0, -1
    while position < size_bytes:
        try:
            header = read_header(window, position, position + chunk_bytes, last_offset)
        except CorruptRecord as error:
            found = _next_batch(window, position + 1, last_offset)
            yield DumpedBatch(position, found - position, None, None, None, str(error))
            position = found
            continue
        data = window.get(position, position + header.size_bytes, position + chunk_bytes)
        crc_ok = crc32c.crc32c(data[CRC_START:]) == header.crc
        decoded, damage = None, None
        try:
            decoded = decode_batch(
                data, name=name, position=position, max_uncompressed_bytes=max_uncompressed_bytes
            )
        except (CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat) as error:
            damage = str(error)
        yield DumpedBatch(position, header.size_bytes, header, crc_ok, decoded, damage)
        last_offset = header.last_offset
        position += header.size_bytes


def _next_batch(window: Window, start: int, last_offset: int) -> int:
    """Position of the next batch at or behind ``start`` that is whole; else the file's end."""
    magic = bytes([MAGIC_COLUMNS])
    while start + MAX_HEADER_BYTES <= window.size_bytes:
        stop = min(start + _SEARCH_BYTES, window.size_bytes)
        block = bytes(window.get(start, stop, stop))
        at = block.find(magic, MAGIC_POSITION)
        while at >= 0 and at - MAGIC_POSITION + MAX_HEADER_BYTES <= len(block):
            candidate = at - MAGIC_POSITION
            head = block[candidate : candidate + MAX_HEADER_BYTES]
            if _is_batch(window, start + candidate, head, last_offset):
                return start + candidate
            at = block.find(magic, at + 1)
        start += max(len(block) - MAX_HEADER_BYTES + 1, 1)
    return window.size_bytes


def _is_batch(window: Window, position: int, head: bytes, last_offset: int) -> bool:
    try:
        header = decode_header(head, name=window.name, position=position)
    except CorruptRecord:
        return False
    stop = position + header.size_bytes
    if header.base_offset <= last_offset or stop > window.size_bytes:
        return False
    data = window.read(position + CRC_START, stop)
    return crc32c.crc32c(data) == header.crc
