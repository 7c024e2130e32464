"""The batch header and the bytes of a batch, against a decoder written by hand."""

from __future__ import annotations

import random
import struct

import crc32c as library
import pytest

from tests.support.segments.segment_layout import crc32c, raw_batches, resealed
from tests.support.segments.segment_samples import batch_of, numbered, segment
from txnlog.segments.batch_header import DELETE_HORIZON, HEADER_BYTES, BatchHeader, Compression
from txnlog.segments.batches import decode_batch, encode_batch
from txnlog.segments.errors import CorruptRecord, UnknownMagic, UnsupportedCompression


def test_crc_of_the_tests_is_crc32c() -> None:
    """The tests' own checksum gives the published check value."""
    assert crc32c(b"123456789") == 0xE3069283
    large = random.Random(1).randbytes((1 << 20) + 77)  # in pieces
    assert crc32c(large) == library.crc32c(large)


def test_every_header_field_is_where_the_format_says() -> None:
    """Fields written by the code are found by hand at Kafka's positions."""
    records = batch_of([(b"k", b"v", 5000, []), (b"k", b"w", 4000, []), (None, None, 7000, [])])
    data = encode_batch(
        records,
        compression=Compression.ZSTD,
        base_offset=1 << 40,
        producer_id=1 << 50,
        producer_epoch=7,
        base_sequence=11,
        leader_epoch=3,
    )
    (raw,) = raw_batches(data)
    assert raw.base_offset == 1 << 40
    assert raw.length == len(data) - 12
    assert (raw.leader_epoch, raw.magic, raw.attributes) == (3, 100, 4)
    assert (raw.last_offset_delta, raw.record_count) == (2, 3)
    assert (raw.base_timestamp, raw.max_timestamp) == (5000, 7000)
    assert (raw.producer_id, raw.producer_epoch, raw.base_sequence) == (1 << 50, 7, 11)
    assert raw.crc == crc32c(data[21:])
    blank = data[:17] + bytes(4) + data[21:61]
    assert raw.check == (crc32c(blank) & 0xFFFFFF).to_bytes(3, "big")
    assert raw.table().column("value").to_pylist() == [b"v", b"w", None]


def test_defaults_say_that_a_field_does_not_apply() -> None:
    """Batches of a segment have no producer, no epochs, and sequences that are offsets."""
    data, _ = segment(numbered(3), numbered(4, start=3))
    first, second = raw_batches(data)
    assert (first.base_offset, second.base_offset) == (0, 3)
    assert (first.base_sequence, second.base_sequence) == (0, 3)
    assert (second.leader_epoch, second.producer_id, second.producer_epoch) == (-1, -1, -1)


def test_batches_keep_arrow_aligned() -> None:
    """Every batch is a multiple of 8 bytes, whatever it holds."""
    for compression in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
        for count in range(1, 20):
            assert len(encode_batch(numbered(count), compression=compression)) % 8 == 0


def test_header_decodes_what_kafka_writes() -> None:
    """A header packed by hand in Kafka's layout is read field by field."""
    data = struct.pack(">qiibIhiqqqhii", 9, 66, 4, 2, 77, 0x3B, 5, 1, 2, 6, 8, 2147483645, 6)
    header = BatchHeader.decode(data)
    assert (header.base_offset, header.last_offset, header.size_bytes) == (9, 14, 78)
    assert header.codec is Compression.LZ4
    assert header.is_log_append_time
    assert header.is_transactional
    assert header.is_control
    assert not header.attributes & DELETE_HORIZON
    assert header.last_sequence == 2  # 2^31 - 3, plus 5, wraps to 0 after 2^31 - 1
    assert header.encode() == data


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    ("at", "new", "word"),
    [
        (8, (10).to_bytes(4, "big"), "length 10"),
        (8, (48).to_bytes(4, "big"), "length 48"),
        (8, b"\xff\xff\xff\xff", "length -1"),
        (0, b"\xff" * 8, "base offset -1"),
        (23, b"\xff" * 4, "last offset delta -1"),
        (57, (4).to_bytes(4, "big"), "record count 4"),
        (57, b"\xff" * 4, "record count -1"),
    ],
)
def test_implausible_headers_are_corrupt(at: int, new: bytes, word: str) -> None:
    """Fields that no batch can have are named, though both checksums are right."""
    data = resealed(encode_batch(numbered(3)), {at: new})
    with pytest.raises(CorruptRecord, match=f"x.log at byte 640.*{word}"):
        decode_batch(data, name="x.log", position=640)


def test_too_few_bytes() -> None:
    """Every truncation of a batch is CorruptRecord, with the file and the position."""
    data = encode_batch(numbered(3))
    for size in range(len(data)):
        with pytest.raises(CorruptRecord, match=r"x\.log at byte 8"):
            decode_batch(data[:size], name="x.log", position=8)


def test_unknown_magic_is_damage_or_the_future() -> None:
    """A magic byte that is not known is caught by handlers of either error."""
    data = bytearray(encode_batch(numbered(3)))
    data[16] = 101
    with pytest.raises(UnknownMagic, match=r"x\.log at byte 5: magic 101"):
        decode_batch(bytes(data), name="x.log", position=5)
    assert issubclass(UnknownMagic, CorruptRecord)


def test_codec_numbers_and_names() -> None:
    """Codecs have Kafka's names and numbers, "uncompressed" is read and never written."""
    assert [codec.kafka_name for codec in Compression] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [int(codec) for codec in Compression] == [0, 1, 2, 3, 4]
    assert Compression.parse("uncompressed") is Compression.NONE
    assert all(Compression.parse(codec.kafka_name) is codec for codec in Compression)
    with pytest.raises(UnsupportedCompression, match="'LZ4'"):
        Compression.parse("LZ4")
    data = resealed(encode_batch(numbered(3)), {21: b"\0\7"})
    with pytest.raises(UnsupportedCompression, match="number 7"):
        decode_batch(data)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY])
def test_codecs_that_arrow_has_not(codec: Compression) -> None:
    """Gzip and snappy are refused with the way out."""
    with pytest.raises(UnsupportedCompression, match=r"record\.format=kafka"):
        encode_batch(numbered(1), compression=codec)


def test_header_size() -> None:
    """The constant others rely on."""
    assert HEADER_BYTES == 61
