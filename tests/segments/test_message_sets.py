"""Kafka's old message sets: every codec, wrappers, offsets, damage."""

from __future__ import annotations

import gzip
import zlib

import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.support.segments.message_layout import message, resealed_message
from tests.support.segments.segment_samples import Row, batch_of, numbered, random_records, rows_of
from tests.support.tiers import more
from txnlog.segments.batch_header import Compression
from txnlog.segments.batches import DecodedBatch, decode_batch, decode_header
from txnlog.segments.errors import CorruptRecord, UnknownCodec, UnsupportedCompression
from txnlog.segments.formats.codecs import compress
from txnlog.segments.formats.message_sets import encode_message_set
from txnlog.segments.inspect.dump import dump_segment
from txnlog.segments.segment_file import SegmentFile

CODECS = [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]
WHERE = r"x\.log at byte 9"

some_bytes = st.none() | st.binary(max_size=30)
some_row: st.SearchStrategy[Row] = st.tuples(
    some_bytes, some_bytes, st.integers(-(1 << 63), (1 << 63) - 1), st.just([])
)


def decoded_set(data: bytes) -> list[DecodedBatch]:
    """Every message or wrapper of a set."""
    found = []
    while data:
        found.append(decode_batch(data))
        data = data[found[-1].header.size_bytes :]
    return found


def rows_and_offsets(data: bytes) -> tuple[list[Row], list[int]]:
    rows: list[Row] = []
    offsets: list[int] = []
    for batch in decoded_set(data):
        batch.records.validate(full=True)
        rows += rows_of(batch.records)
        base, deltas = batch.header.base_offset, batch.offset_deltas
        assert batch.header.record_count == batch.records.num_rows
        dense = np.arange(batch.records.num_rows) if deltas is None else deltas
        offsets += [base + delta for delta in dense.tolist()]
        assert offsets[-1] == batch.header.last_offset
    return rows, offsets


def wrapper(
    magic: int, offset: int, inner: bytes, *, attributes: int = 1, timestamp: int = -1
) -> bytes:
    return message(
        magic, offset, None, gzip.compress(inner), attributes=attributes, timestamp=timestamp
    )


@pytest.mark.condition(46)
@some(150)
@given(
    rows=st.lists(some_row, min_size=1, max_size=20),
    magic=st.sampled_from([0, 1]),
    codec=st.sampled_from(CODECS),
    base=st.integers(1, 1 << 40),
    gaps=st.lists(st.integers(1, 1000), min_size=20, max_size=20),
)
def test_round_trip(
    rows: list[Row], magic: int, codec: Compression, base: int, gaps: list[int]
) -> None:
    """Keys, values, times and offsets with gaps come back; v0 has no times."""
    deltas = (np.cumsum(gaps) - gaps[0])[: len(rows)].astype(np.int32)
    data = encode_message_set(
        batch_of(rows), magic, compression=codec, base_offset=base, offset_deltas=deltas
    )
    expected: list[Row] = [(key, value, time if magic else -1, []) for key, value, time, _ in rows]
    assert rows_and_offsets(data) == (expected, [base + delta for delta in deltas.tolist()])
    assert len(decoded_set(data)) == (len(rows) if codec is Compression.NONE else 1)


@pytest.mark.parametrize("magic", [0, 1])
def test_bytes_are_those_of_the_format(magic: int) -> None:
    """Messages packed by hand are what is written, inside a wrapper too."""
    records = batch_of(
        [(b"k", b"v", 5, []), (None, b"", 9, [("h", b"dropped")]), (b"", None, 7, [])]
    )
    contents = [(b"k", b"v", 5), (None, b"", 9), (b"", None, 7)]

    def by_hand(first: int) -> bytes:
        return b"".join(
            message(magic, first + number, key, value, timestamp=time)
            for number, (key, value, time) in enumerate(contents)
        )

    assert encode_message_set(records, magic, base_offset=40) == by_hand(40)
    wrapped = encode_message_set(records, magic, base_offset=40, compression=Compression.GZIP)
    inner = compress(Compression.GZIP, by_hand(0 if magic else 40))
    assert wrapped == message(magic, 42, None, inner, timestamp=9, attributes=1)


@pytest.mark.condition(46)
@pytest.mark.parametrize(
    ("codec", "count"),
    [
        *((codec, 1_000) for codec in CODECS),
        *(pytest.param(codec, 10_000, marks=pytest.mark.slow) for codec in CODECS),
    ],
)
@pytest.mark.parametrize("magic", [*more([0]), 1])
def test_many_records_and_large_values(magic: int, codec: Compression, count: int) -> None:
    """Thousands of records, and values up to 16 MiB."""
    records = random_records(count, seed=4)
    rows, offsets = rows_and_offsets(encode_message_set(records, magic, compression=codec))
    assert [row[:2] for row in rows] == [row[:2] for row in rows_of(records)]
    assert offsets == list(range(count))
    value = np.random.default_rng(1).bytes(16 << 20)
    large: list[Row] = [(None, value, -1, []), (b"", b"", -1, [])]
    assert (
        rows_and_offsets(encode_message_set(batch_of(large), magic, compression=codec))[0] == large
    )


def test_offsets_inside_wrappers() -> None:
    """Absolute in v0; relative to the wrapper's in v1, with gaps; 0 as producers leave it."""
    for magic, wrapper_offset, inner, expected in (
        (0, 12, [10, 11, 12], [10, 11, 12]),
        (0, 12, [3, 12], [3, 12]),
        (0, 0, [0, 1, 2], [0, 1, 2]),
        (1, 12, [0, 1, 2], [10, 11, 12]),
        (1, 12, [0, 2], [10, 12]),
        (1, 12, [2, 4], [10, 12]),
        (1, 12, [10, 12], [10, 12]),
        (1, 0, [0, 1, 2], [0, 1, 2]),
    ):
        messages = b"".join(message(magic, offset, b"k", b"v") for offset in inner)
        assert rows_and_offsets(wrapper(magic, wrapper_offset, messages))[1] == expected


@pytest.mark.parametrize("damaged", range(3))
@pytest.mark.parametrize("codec", CODECS[1:])
def test_wrappers_behind_damage_are_found_whatever_their_offset_says(
    codec: Compression, damaged: int
) -> None:
    """Producers of v0 leave 0 there; the messages inside have their offsets."""
    for hidden in range(8):
        parts = []
        for n, base in enumerate((0, 5, 10)):
            part = bytearray(
                encode_message_set(numbered(5, start=base), 0, compression=codec, base_offset=base)
            )
            if hidden >> n & 1:
                part[:8] = bytes(8)
            parts.append(part)
        parts[damaged][40] ^= 1
        data = b"".join(parts)
        file = SegmentFile(lambda start, stop, data=data: data[start:stop], len(data), "x.log")  # type: ignore[misc]
        found = [
            one.header.base_offset for one in dump_segment(file) if one.header and not one.damage
        ]
        assert found == [base for n, base in enumerate((0, 5, 10)) if n != damaged]


@pytest.mark.parametrize("codec", range(4, 8))
def test_a_wrapper_of_a_codec_that_is_none_is_shown_as_damage(codec: int) -> None:
    data = wrapper(0, 0, message(0, 5, b"k", b"v"), attributes=codec)
    sound = message(0, 6, b"k", b"v")
    whole = data + sound
    for there in (data, whole):
        file = SegmentFile(lambda start, stop, there=there: there[start:stop], len(there), "x.log")  # type: ignore[misc]
        first, *rest = dump_segment(file)
        assert (first.size_bytes, first.damage is None) == (len(data), False)
        assert [one.damage for one in rest] == [None] * (there is whole)


def test_timestamps_of_wrappers() -> None:
    """With create time each message has its own, with log append time all the wrapper's."""
    inner = b"".join(message(1, n, None, b"v", timestamp=100 + n) for n in range(3))
    (created,) = decoded_set(wrapper(1, 2, inner, timestamp=102))
    assert [row[2] for row in rows_of(created.records)] == [100, 101, 102]
    (appended,) = decoded_set(wrapper(1, 2, inner, attributes=9, timestamp=777))
    assert [row[2] for row in rows_of(appended.records)] == [777, 777, 777]
    assert appended.header.max_timestamp_ms == 777
    single = decode_batch(message(1, 5, None, b"v", timestamp=3, attributes=8))
    assert (single.header.is_log_append_time, single.header.max_timestamp_ms) == (True, 3)


def test_header_before_decoding() -> None:
    """The same magic position, and size; of a wrapper the last offset and the time."""
    data = wrapper(1, 12, message(1, 0, b"k", b"v"), timestamp=5)
    header = decode_header(data[:64])
    assert (header.magic, header.size_bytes, header.codec) == (1, len(data), Compression.GZIP)
    assert (header.last_offset, header.max_timestamp_ms, header.is_message_set) == (12, 5, True)
    plain = decode_header(message(0, 3, None, None))
    assert (plain.base_offset, plain.size_bytes, plain.is_message_set) == (3, 26, False)


@pytest.mark.condition(44)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit(magic: int, codec: Compression) -> None:
    """A flipped bit is CorruptRecord, but where the format has nothing to tell it by.

    No checksum covers offset and size. A changed size is noticed by what the fields fill; the
    offset of a wrapper disagrees with absolute ones inside (v0), and that of others with nothing.
    """
    data = encode_message_set(numbered(3), magic, compression=codec, base_offset=40)
    data = data[: decode_header(data).size_bytes]
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            if at < 8 and not (magic == 0 and codec):
                continue
            with pytest.raises(CorruptRecord, match=WHERE):
                decode_batch(bytes(broken), name="x.log", position=9)


@pytest.mark.condition(45)
@pytest.mark.parametrize("magic", [0, 1])
def test_lies_under_a_right_checksum(magic: int) -> None:
    """Sizes, codecs, attributes and nesting that cannot be are corrupt."""
    good = message(magic, 3, b"k", b"v")
    least = len(good) - 2
    key_at = 18 + 8 * magic
    cases = [
        message(magic, 3, b"k", b"v", size=10),
        message(magic, 3, b"k", b"v", size=least - 13),
        message(magic, 3, b"k", b"v", size=2**31 - 1),
        message(magic, 3, b"k", b"v", size=-1),
        message(magic, -1, b"k", b"v"),
        *[message(magic, 3, b"k", b"v", key_size=n) for n in (-2, 2, 0, 2**31 - 1, -(2**31))],
        *[message(magic, 3, b"k", b"v", value_size=n) for n in (-2, -1, 0, 2, 2**31 - 1)],
        message(magic, 3, None, b"v", key_size=1),
        *[
            resealed_message(good, {17: bytes([bits])})
            for bits in (1, 2, 3, 4, 5, 6, 7, 0x10, 0x80)
        ],
        wrapper(magic, 3, b""),
        wrapper(magic, 3, good[:-1]),
        wrapper(magic, 3, good + b"\0"),
        wrapper(magic, 3, good + bytes(40)),
        wrapper(magic, 3, wrapper(magic, 3, good)),
        wrapper(magic, 3, message(1 - magic, 3, b"k", b"v")),
        wrapper(magic, 3, good[:-1] + b"x"),
        wrapper(magic, 3, message(magic, 3, None, None) + message(magic, 3, None, None)),
        wrapper(magic, 3, message(magic, 3, None, None) + message(magic, 2, None, None)),
        wrapper(magic, 3, message(magic, 4, None, None)),
        wrapper(magic, 3, message(magic, -5, None, None)),
        message(magic, 3, None, None, attributes=1),
        message(magic, 3, b"k", gzip.compress(good), attributes=1, value_size=5),
        message(magic, 3, None, gzip.compress(good)[:-1], attributes=1),
        message(magic, 3, None, b"junk", attributes=3),
    ]
    if magic == 0:
        cases.append(resealed_message(good, {17: b"\x08"}))
        cases.append(wrapper(0, 9, good))
    for data in cases:
        with pytest.raises(CorruptRecord, match=WHERE):
            decode_batch(data, name="x.log", position=9)
    with pytest.raises(CorruptRecord, match="a key reaches beyond"):
        decode_batch(message(magic, 3, b"k", b"v", key_size=2**31 - 1))
    assert key_at + 10 == len(good)
    for size in range(len(good)):
        with pytest.raises(CorruptRecord, match=WHERE):
            decode_batch(good[:size], name="x.log", position=9)


def test_zstd_is_younger() -> None:
    """Zstd in an old message is refused, reading and writing."""
    data = message(1, 0, None, compress(Compression.ZSTD, message(1, 0, None, None)), attributes=4)
    with pytest.raises(UnknownCodec, match=f"{WHERE}.*zstd"):
        decode_batch(data, name="x.log", position=9)
    with pytest.raises(UnsupportedCompression, match="zstd"):
        encode_message_set(numbered(1), 1, compression=Compression.ZSTD)
    for magic, count in ((2, 1), (1, 0)):
        with pytest.raises(ValueError, match="magic 0 or 1"):
            encode_message_set(numbered(count), magic)


def test_lz4_with_the_wrong_checksum() -> None:
    """V0 is written with the checksum that its readers want, and read with any."""
    data = encode_message_set(numbered(30), 0, compression=Compression.LZ4)
    frame = data[26:]
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(frame)
    for checksum in (0, frame[6], 255):
        changed = resealed_message(data, {26 + 6: bytes([checksum])})
        assert decode_batch(changed).records.column("key").equals(numbered(30).column("key"))
    newer = encode_message_set(numbered(30), 1, compression=Compression.LZ4)
    with pytest.raises(CorruptRecord):
        decode_batch(resealed_message(newer, {34 + 6: bytes([newer[34 + 6] ^ 1])}))


def test_wrapped_bombs_are_bounded() -> None:
    """What a wrapper decompresses to, and how many messages it holds, are bounded."""
    huge = message(1, 0, None, bytes(64 << 20))
    many = b"".join(message(1, n, None, None) for n in range(50_000))
    for inner, offset in ((huge, 0), (many, 49_999)):
        data = wrapper(1, offset, inner)
        assert decode_batch(data).records.num_rows > 0
        with pytest.raises(CorruptRecord, match="over the limit"):
            decode_batch(data, max_uncompressed_bytes=2 << 20)


@some(300)
@given(magic=st.sampled_from([0, 1]), inner=st.binary(max_size=60), wrap=st.booleans())
def test_any_bytes_are_corrupt_or_records(magic: int, inner: bytes, wrap: bool) -> None:
    """Whatever the bytes, CorruptRecord or valid records."""
    body = bytes([magic, 0]) + inner
    plain = (
        bytes(8) + (len(body) + 4).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
    )
    try:
        decoded = decode_batch(wrapper(magic, 0, plain) if wrap else plain)
    except CorruptRecord:
        return
    decoded.records.validate(full=True)
