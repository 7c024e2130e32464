"""The codecs in Kafka's framings: what they write, what they read, and what they refuse."""

from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import lz4.frame
import numpy as np
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from txnlog.segments.batch_header import Compression
from txnlog.segments.formats.codecs import XERIAL_MAGIC, compress, decompress
from txnlog.segments.formats.message_sets import with_standard_checksum, with_v0_checksum, xxh32

CODECS = list(Compression)[1:]
TEXT = b"to be or not to be, " * 10_000
NOISE = np.random.default_rng(1).bytes(200_000)
LIMIT = 1 << 20


def raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks: bytes, version: bytes = struct.pack(">ii", 1, 1)) -> bytes:
    return XERIAL_MAGIC + version + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE])
def test_round_trip(codec: Compression, data: bytes) -> None:
    """Decompression gives back the input, whatever the bytes and their type."""
    for given_as in (data, bytearray(data), memoryview(data)):
        assert bytes(decompress(codec, compress(codec, given_as), LIMIT)) == data


def test_others_read_what_is_written() -> None:
    """Libraries that share no code with ours read each codec."""
    assert gzip.decompress(compress(Compression.GZIP, TEXT)) == TEXT
    assert bytes(cramjam.lz4.decompress(compress(Compression.LZ4, TEXT))) == TEXT
    assert bytes(cramjam.zstd.decompress(compress(Compression.ZSTD, TEXT))) == TEXT
    stream = compress(Compression.SNAPPY, TEXT)
    assert stream[:16] == bytes.fromhex("82534e4150505900 00000001 00000001")
    at, found = 16, []
    while at < len(stream):
        size = int.from_bytes(stream[at : at + 4], "big")
        found.append(snappy.decompress(stream[at + 4 : at + 4 + size]))
        at += 4 + size
    assert b"".join(found) == TEXT
    assert {len(block) for block in found[:-1]} == {32 << 10}


def test_lz4_blocks_are_as_java_reads_them() -> None:
    """Independent blocks of 64 KiB, no sizes, no checksums of the content."""
    frame = compress(Compression.LZ4, TEXT)
    info = lz4.frame.get_frame_info(frame)
    assert not info["block_linked"]
    assert info["block_size"] == 64 << 10
    assert (info["content_size"], info["content_checksum"], info["block_checksum"]) == (0, 0, 0)
    assert frame[4] == 0x60


def test_gzip_members_follow_each_other() -> None:
    """Several members are one stream, as Java reads them, small and large."""
    for parts in ([b"a", b"", b"b"], [TEXT, NOISE], [b"x"] * 1000):
        stream = b"".join(gzip.compress(part) for part in parts)
        assert bytes(decompress(Compression.GZIP, stream, LIMIT)) == b"".join(parts)


def test_zstd_frames_of_every_kind() -> None:
    """Streamed frames without content size, several frames, and skippable ones are read."""
    stream = zstandard.ZstdCompressor().compressobj()
    streamed = stream.compress(TEXT) + stream.flush()
    assert zstandard.frame_content_size(streamed) == -1
    sized = zstandard.ZstdCompressor().compress(b"more")
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    for data, expected in (
        (streamed, TEXT),
        (streamed + sized, TEXT + b"more"),
        (sized + streamed, b"more" + TEXT),
        (sized + skippable + sized, b"moremore"),
    ):
        assert bytes(decompress(Compression.ZSTD, data, LIMIT)) == expected


def test_snappy_streams_of_every_kind() -> None:
    """Xerial's framing, with any version bytes, concatenated, and one raw block are read."""
    for data, expected in (
        (xerial(raw(b"a"), raw(b"b" * 100)), b"a" + b"b" * 100),
        (xerial(raw(b"a"), version=struct.pack("<ii", 1, 1)), b"a"),
        (xerial(raw(b"a")) + xerial(raw(b"b")), b"ab"),
        (xerial(), b""),
        (xerial(raw(b"")), b""),
        (raw(TEXT), TEXT),
        (raw(b""), b""),
    ):
        assert bytes(decompress(Compression.SNAPPY, data, LIMIT)) == expected


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [TEXT, NOISE])
def test_cut_off_or_followed_by_garbage(codec: Compression, data: bytes) -> None:
    """A stream that is cut never gives all of its bytes; garbage behind it is an error."""
    stream = compress(codec, data)
    for size in [*range(1, 30), *range(30, len(stream) - 8, 997), *range(len(stream) - 4)[-4:]]:
        try:
            found = bytes(decompress(codec, stream[:size], LIMIT))
        except Exception:  # noqa: BLE001 - every library has its own; rows make one of all
            continue
        assert len(found) < len(data)
        assert codec is Compression.SNAPPY  # cut between two blocks
    for garbage in (b"\0", b"garbage", stream[:7]):
        with pytest.raises(Exception, match=r"."):
            decompress(codec, stream + garbage, LIMIT)


def test_snappy_claims() -> None:
    """Sizes that a block cannot have are refused before anything is allocated."""
    huge = b"\xff\xff\xff\xff\x0f"
    for data in (
        xerial(huge + b"\0" * 10),
        xerial(b"\x80\x80\x40" + b"\0\0"),
        xerial(b""),
        xerial(b"\xff"),
        xerial(b"\xff" * 9),
        xerial(raw(b"a"))[:-1],
        XERIAL_MAGIC + bytes(8) + b"\xff\xff\xff\xff",
        XERIAL_MAGIC + bytes(8) + b"\0\0",
        XERIAL_MAGIC,
        huge,
        b"",
    ):
        with pytest.raises(ValueError, match=r"snappy|Snappy"):
            decompress(Compression.SNAPPY, data, 1 << 40)


@pytest.mark.parametrize("codec", list(Compression))
def test_the_limit_is_exact(codec: Compression) -> None:
    """Output of exactly the limit passes, one byte more is refused."""
    stream = compress(codec, TEXT)
    assert bytes(decompress(codec, stream, len(TEXT))) == TEXT
    for limit in (len(TEXT) - 1, 1, 0):
        with pytest.raises(ValueError, match=r"over the limit|claims"):
            decompress(codec, stream, limit)


@some(300)
@given(codec=st.sampled_from(CODECS), data=st.binary(max_size=80), whole=st.booleans())
def test_any_bytes(codec: Compression, data: bytes, whole: bool) -> None:
    """Hostile bytes raise or are within the limit; they never hang."""
    stream = data if whole else compress(codec, TEXT[:500])[: len(data)] + data
    try:
        assert len(decompress(codec, stream, 600)) <= 600
    except Exception:  # noqa: BLE001 - see above
        return


def test_wrong_and_right_checksums_of_lz4() -> None:
    """The oldest frames are repaired and broken again, with or without a content size."""
    import xxhash

    for store_size in (False, True):
        frame = lz4.frame.compress(TEXT, block_linked=False, store_size=store_size)
        wrong = with_v0_checksum(frame)
        at = 14 if store_size else 6
        assert wrong[at] == (xxhash.xxh32(frame[:at]).intdigest() >> 8) & 0xFF != frame[at]
        assert wrong[:at] + wrong[at + 1 :] == frame[:at] + frame[at + 1 :]
        with pytest.raises(RuntimeError):
            lz4.frame.decompress(wrong)
        assert with_standard_checksum(wrong) == frame
    for size in range(16):
        assert xxh32(NOISE[:size]) == xxhash.xxh32(NOISE[:size]).intdigest()
    for frame in (b"", b"\x04\x22\x4d\x18\x60\x40"):
        with pytest.raises(ValueError, match="no header"):
            with_standard_checksum(frame)


def test_gzip_levels_and_header() -> None:
    """The output is a gzip member without name or time, so always the same bytes."""
    stream = compress(Compression.GZIP, TEXT)
    assert stream[:8] == b"\x1f\x8b\x08\0\0\0\0\0"
    assert zlib.crc32(TEXT) == int.from_bytes(stream[-8:-4], "little")
