"""Compresses and decompresses what follows the header of Kafka's batches, in Kafka's framings.

Knows bytes and a limit, and nothing of records. Input may be hostile: output is made in steps and
never beyond the limit, whatever sizes the input claims, and decompression must consume the whole
input. All decompression raises ValueError, or what its library raises, for damage.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import lz4.frame
import pyarrow as pa
import zstandard

from txnlog.segments.batch_header import BytesLike, Compression
from txnlog.segments.errors import UnsupportedCompression

# How much is decompressed between two checks of the limit. Pieces that malloc need not request from
# the system again: decoding 2 MiB batches of lz4 runs at 8 M records/s with 64 KiB, at 4 M with 256
# KiB.
_STEP_BYTES = 1 << 16

_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # 16: with gzip's header and trailer
# zlib copies what follows a member; small pieces keep a chain of tiny members from being quadratic.
_GZIP_INPUT_BYTES = 1 << 14
_LZ4_INPUT_BYTES = 1 << 16

# The framing of xerial's Java library: a magic, two versions, then blocks of (length, raw snappy).
XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES = 32 << 10
# No snappy element makes more than 64 bytes out of 3; beyond that a claim is a lie.
_SNAPPY_MOST_RATIO = 22

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_REPEATED = 1

# Levels that Kafka names and these libraries have. Snappy has none.
_LEVELS: Final = {
    Compression.GZIP: (1, 9),
    Compression.LZ4: (1, 12),
    Compression.ZSTD: (-(1 << 17), 22),
}


def check_level(codec: Compression, level: int | None) -> None:
    """Raise UnsupportedCompression for a level that the codec lacks; None is its default."""
    if level is None:
        return
    if codec not in _LEVELS:
        raise UnsupportedCompression(f"{codec.kafka_name} has no levels, {level} was asked for")
    least, most = _LEVELS[codec]
    if not least <= level <= most:
        raise UnsupportedCompression(
            f"{codec.kafka_name} has levels {least} to {most}, not {level}"
        )


def compress(codec: Compression, data: BytesLike, level: int | None = None) -> bytes:
    """``data`` compressed as by Kafka's own clients. Raises UnsupportedCompression."""
    check_level(codec, level)
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        gzip = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
        return gzip.compress(data) + gzip.flush()
    if codec is Compression.SNAPPY:
        return b"".join(_xerial_pieces(memoryview(data)))
    if codec is Compression.LZ4:
        # Java reads only independent blocks, and writes 64 KiB ones without sizes or checksums.
        frame: bytes = lz4.frame.compress(
            data,
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return frame
    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def decompress(codec: Compression, data: BytesLike, max_bytes: int) -> BytesLike:
    """``data`` decompressed, or unchanged without a codec.

    Raises ValueError, or what the codec's library raises, if it is damaged or holds more than
    ``max_bytes``.
    """
    if codec is Compression.NONE:
        if len(data) > max_bytes:
            raise ValueError(_over(max_bytes))
        return data
    chunks, size_bytes = [], 0
    for chunk in _DECOMPRESSORS[codec](memoryview(data), max_bytes):
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise ValueError(_over(max_bytes))
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class OverLimit(ValueError):
    """Decompressed bytes would take more memory than is allowed."""


def check_uncompressed(size_bytes: int, max_bytes: int) -> None:
    """Raise OverLimit for records that would take more memory than ``max_bytes``."""
    if size_bytes > max_bytes:
        raise OverLimit(f"{size_bytes} bytes uncompressed are over the limit {max_bytes}")


def _over(max_bytes: int) -> str:
    return f"the records uncompressed are over the limit {max_bytes}"


def _xerial_pieces(data: memoryview) -> Iterator[bytes]:
    snappy = pa.Codec("snappy")
    yield _XERIAL_HEADER
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        yield len(block).to_bytes(4, "big")
        yield block


def _decompress_gzip(data: memoryview, _: int) -> Iterator[bytes]:
    """One or more gzip members, as Java's reader takes them."""
    at = 0
    while at < len(data):
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            # Reading on without any input left would never end.
            piece = member.unconsumed_tail or data[at : at + _GZIP_INPUT_BYTES]
            if not piece:
                raise ValueError("the gzip stream is truncated")
            if not member.unconsumed_tail:
                at += len(piece)
            yield member.decompress(piece, _STEP_BYTES)
        at -= len(member.unused_data)


def _decompress_snappy(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield _decompress_snappy_block(data, max_bytes)  # some clients write one raw block
        return
    at, left = 0, max_bytes
    while at < len(data):
        if bytes(data[at : at + len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
            # Streams may be concatenated. The versions after the magic are ignored: there is only
            # one, and some writers have its bytes in the other order.
            at += len(_XERIAL_HEADER)
            continue
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if not 0 < length <= len(data) - at:
            raise ValueError(f"a snappy block of {length} bytes has {len(data) - at}")
        block = _decompress_snappy_block(data[at : at + length], left)
        left -= len(block)
        yield block
        at += length
    if at > len(data):
        raise ValueError("the snappy stream is truncated")


def _decompress_snappy_block(block: memoryview, max_bytes: int) -> bytes:
    claimed = shift = 0
    for byte in block[:5]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise ValueError(f"a snappy block of {len(block)} bytes does not say its size")
    if claimed > max_bytes or claimed > _SNAPPY_MOST_RATIO * len(block):
        raise ValueError(f"a snappy block of {len(block)} bytes claims {claimed} uncompressed")
    raw: bytes = pa.Codec("snappy").decompress(block, claimed, asbytes=True)
    return raw


def _decompress_lz4(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    """Exactly one frame, as Java reads and writes it."""
    frame = lz4.frame.LZ4FrameDecompressor()
    # The library allocates what it may return at most, and copies the input that it has not used.
    step, at = min(_STEP_BYTES, max_bytes + 1), 0
    while not frame.eof:
        piece = data[at : at + _LZ4_INPUT_BYTES] if frame.needs_input else b""
        if frame.needs_input and not piece:
            raise ValueError("the lz4 frame is truncated")
        at += len(piece)
        yield frame.decompress(piece, max_length=step)
    rest = len(data) - at + len(frame.unused_data or b"")
    if rest:
        raise ValueError(f"{rest} bytes follow the lz4 frame")


def _decompress_zstd(data: memoryview, _: int) -> Iterator[bytes]:
    """One or more frames, with or without a content size. The library's window limit is 128 MiB."""
    _check_zstd_frames(data)
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        while chunk := stream.read(_STEP_BYTES):
            yield chunk


def _check_zstd_frames(data: memoryview) -> None:
    """Walk the frames from block to block: the library is silent when the last one is cut off.

    Raises ValueError if the data does not end with a frame (RFC 8878, section 3.1).
    """
    at = 0
    while at < len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & ~0xF == _ZSTD_SKIPPABLE:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD_MAGIC or at + 5 > len(data):
            raise ValueError("bytes of the zstd stream are not a frame")
        flags = data[at + 4]
        is_single = bool(flags & 0x20)
        content_size = (int(is_single), 2, 4, 8)[flags >> 6]
        at += 5 + (not is_single) + (0, 1, 2, 4)[flags & 3] + content_size
        is_last = False
        while not is_last:
            if at + 3 > len(data):
                raise ValueError("the zstd frame is truncated")
            block = int.from_bytes(data[at : at + 3], "little")
            is_last = bool(block & 1)
            # Of a block that repeats one byte only that byte is there.
            at += 3 + (1 if block >> 1 & 3 == _ZSTD_REPEATED else block >> 3)
        at += 4 * bool(flags & 0x04)
    if at > len(data):
        raise ValueError("the zstd frame is truncated")


_DECOMPRESSORS: Final[dict[Compression, Callable[[memoryview, int], Iterator[bytes]]]] = {
    Compression.GZIP: _decompress_gzip,
    Compression.SNAPPY: _decompress_snappy,
    Compression.LZ4: _decompress_lz4,
    Compression.ZSTD: _decompress_zstd,
}
