"""Damaged and hostile rows: CorruptRecord with its place, never wrong data, never much memory."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.support.segments.rows_layout import batch, fields, record, resealed_rows, varint
from tests.support.segments.segment_samples import Row, batch_of, numbered, random_records, rows_of
from txnlog.segments.batch_header import Compression
from txnlog.segments.batches import decode_batch, encode_batch
from txnlog.segments.errors import CorruptRecord, UnknownCodec
from txnlog.segments.formats.codecs import XERIAL_MAGIC

CODECS = list(Compression)
WHERE = r"x\.log at byte 77"


def encoded(records: pa.RecordBatch, codec: Compression = Compression.NONE) -> bytes:
    """A batch as a segment's writer makes it."""
    return encode_batch(
        records,
        record_format="kafka",
        compression=codec,
        guarded=True,
        producer_id=1 << 40,
        producer_epoch=5,
    )


def check_corrupt(data: bytes, word: str = "") -> None:
    with pytest.raises(CorruptRecord, match=rf"{WHERE}.*{word}"):
        decode_batch(data, name="x.log", position=77)


@pytest.mark.condition(44)
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_corrupt(codec: Compression) -> None:
    """One flipped bit anywhere is CorruptRecord, though Kafka's checksum covers less."""
    data = encoded(numbered(4), codec)
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            check_corrupt(bytes(broken))


def test_what_kafka_does_not_check() -> None:
    """A Kafka producer's batch may get its base offset and leader epoch set; it is read."""
    data = bytearray(
        encode_batch(numbered(4), record_format="kafka", producer_id=1, base_sequence=9)
    )
    data[0:8] = (1 << 40).to_bytes(8, "big")
    data[12:16] = (7).to_bytes(4, "big")
    header = decode_batch(bytes(data)).header
    assert (header.base_offset, header.leader_epoch, header.base_sequence) == (1 << 40, 7, 9)


@pytest.mark.condition(43)
@pytest.mark.parametrize("codec", CODECS)
def test_truncated_anywhere(codec: Compression) -> None:
    """Every truncation is CorruptRecord, with right length and checksum too."""
    data = encoded(random_records(20, seed=1), codec)
    for size in range(len(data)):
        check_corrupt(data[:size])
        if size >= 61:
            length = (size - 12).to_bytes(4, "big")
            check_corrupt(resealed_rows(data[:size], {8: length}))


@pytest.mark.condition(45)
@pytest.mark.parametrize("codec", CODECS)
def test_bytes_behind_the_records(codec: Compression) -> None:
    """Bytes that belong to no record are corrupt, under a right checksum too."""
    data = encoded(numbered(3), codec)
    for rest in (b"\0", b"\1\0", record()):
        length = (len(data) + len(rest) - 12).to_bytes(4, "big")
        check_corrupt(resealed_rows(data + rest, {8: length}))


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({57: (4).to_bytes(4, "big")}, "record count 4"),
        ({57: (2).to_bytes(4, "big")}, "bytes follow"),
        ({57: (0).to_bytes(4, "big")}, "bytes follow"),
        ({57: b"\xff" * 4}, "record count -1"),
        ({23: (3).to_bytes(4, "big"), 57: (4).to_bytes(4, "big")}, "fewer records|beyond"),
        ({23: b"\x7f\xff\xff\xff", 57: b"\x7f\xff\xff\xff"}, "do not fit"),
        ({23: (1).to_bytes(4, "big"), 57: (2).to_bytes(4, "big")}, "bytes follow"),
        ({23: (1).to_bytes(4, "big")}, "record count"),
        ({23: (3).to_bytes(4, "big")}, "last offset delta"),
        ({23: b"\xff" * 4}, "last offset delta"),
        ({0: (1).to_bytes(8, "big")}, "base offset"),
        ({8: (10).to_bytes(4, "big")}, "length 10"),
        ({8: b"\x7f\xff\xff\xff"}, "bytes are claimed"),
        ({8: b"\xff" * 4}, "length -1"),
        ({16: b"\3"}, "magic 3"),
        ({21: b"\0\5"}, "codec"),
        ({21: b"\0\7"}, "codec"),
        ({21: b"\0\x80"}, "attributes"),
        ({21: b"\1\0"}, "leader epoch -1 was another"),
        ({21: b"\2\0"}, "attributes"),
        ({21: b"\xf9\0"}, "attributes"),
        ({21: b"\0\1"}, ""),
        ({21: b"\0\2"}, ""),
        ({21: b"\0\3"}, ""),
        ({21: b"\0\4"}, ""),
    ],
)
def test_lies_under_a_right_checksum(changes: dict[int, bytes], word: str) -> None:
    """Counts, offsets, lengths, codecs and attributes that cannot be are corrupt."""
    check_corrupt(resealed_rows(encoded(numbered(3)), changes), word)


def test_unknown_codecs_are_damage_or_the_future() -> None:
    """A codec that does not exist is caught by handlers of either error."""
    with pytest.raises(UnknownCodec, match=WHERE):
        decode_batch(resealed_rows(encoded(numbered(3)), {21: b"\0\6"}), name="x.log", position=77)


LONG = varint(0, padded_to=6)
BODY = fields()


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (LONG[:-1] + b"\0" + BODY, "varint"),  # length
        (varint(-1) + BODY, "negative"),
        (varint(-200) + BODY, "negative"),
        (varint(2**31 - 1) + BODY, "beyond"),
        (varint(-(2**31)) + BODY, "negative"),
        (b"\xff\xff\xff\xff\x10" + BODY, "varint"),
        (b"\xff" * 12, "varint"),
        (varint(0) + BODY, "claims to end"),
        (varint(len(BODY) + 1) + BODY + b"\0", "claims to end"),
        (varint(len(BODY) - 1) + BODY, "claims to end"),
        (b"\0" * 7, "claims to end"),
        (varint(17) + b"\0" + b"\x80" * 10 + b"\0\0\0\1\1\0", "varint"),  # timestamp, 11 bytes
        (varint(16) + b"\0" + b"\x80" * 9 + b"\2\0\0\1\1\0", "varint"),  # timestamp, 65 bits
        (varint(12) + b"\0\0" + LONG + b"\1\1\0\0", "varint"),  # offset
        (varint(7) + b"\0\0\0\3\1\0\0", "key has the length -2"),
        (varint(7) + b"\0\0\0\1\3\0\0", "value has the length -2"),
        (varint(7) + b"\0\0\0\1\1\1\0", "headers"),  # -1 headers
        (varint(7) + b"\0\0\0\1\1\4\0", "more headers"),
        (varint(8) + b"\0\0\0\1\1\2\1\0", "header has lengths -1"),
        (varint(8) + b"\0\0\0\1\1\2\0\3", "header has lengths 0 and -2"),
        (varint(8) + b"\0\0\0\1\1\2\0\x0c", "claims to end"),
        (varint(9) + b"\0\0\0\1\1\2\2\xff\1", ""),  # a header's key that is not UTF-8
        (varint(6) + b"\0\0\0\1\1\x80", ""),  # a varint cut off by the end
        (varint(6) + b"\0\0\0\x7e\1\0", "claims to end"),  # a key beyond the end
    ],
)
@pytest.mark.parametrize("count", [1, 40])
def test_records_that_are_not_what_they_say(payload: bytes, word: str, count: int) -> None:
    """Lengths out of bounds and varints too long, in one record and in many."""
    good = b"".join(record(offset_delta=n) for n in range(count - 1))
    check_corrupt(batch(good + payload, count), word)
    check_corrupt(batch(payload * count, count))


@pytest.mark.condition(45)
@pytest.mark.parametrize("deltas", [[0, 0], [1, 0], [-1, 0], [0, 2], [0, 2**31 - 1]])
def test_offset_deltas_that_do_not_ascend(deltas: list[int]) -> None:
    """Offsets that repeat, go back or lie behind the last one are corrupt."""
    payload = b"".join(record(offset_delta=delta) for delta in deltas)
    check_corrupt(batch(payload, 2), "offset delta")


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    ("headers", "word"),
    [
        (b"\2\1\0", "header has lengths -1"),
        (b"\2\0\3", "header has lengths 0 and -2"),
        (b"\4\0\1\0\3", "header has lengths 0 and -2"),
        (b"\2\0\x7e", "claims to end"),
        (b"\2\x7e\1", ""),
    ],
)
@pytest.mark.parametrize("count", [1, 31, 32, 100])
def test_headers_that_are_not_what_they_say(headers: bytes, word: str, count: int) -> None:
    """Lengths of headers that cannot be, found in lockstep and one by one."""
    payload = b""
    for number in range(count):
        body = b"\0\0" + varint(number) + b"\1\1" + headers
        payload += varint(len(body)) + body
    check_corrupt(batch(payload, count), word)


def test_control_records_that_are_none() -> None:
    """A control batch whose records are no markers is corrupt."""
    for payload in (
        record(None),
        record(b"\0"),
        record(b"\0\0\0\1", b"\0"),
        record(b"\0\0\0\0", None),
    ):
        check_corrupt(batch(payload, 1, attributes=0x20))


@some(400)
@given(payload=st.binary(max_size=60), count=st.integers(0, 9), attributes=st.integers(0, 0x7F))
def test_any_bytes_are_corrupt_or_records(payload: bytes, count: int, attributes: int) -> None:
    """Whatever the payload, CorruptRecord or as many valid records as the header counts."""
    _decodes_or_is_corrupt(batch(payload, count, last_offset_delta=9, attributes=attributes))


@some(400)
@given(
    codec=st.sampled_from(CODECS),
    at=st.integers(17, 400),
    new=st.binary(min_size=1, max_size=4),
    seed=st.integers(0, 5),
)
def test_random_damage_under_a_right_checksum(
    codec: Compression, at: int, new: bytes, seed: int
) -> None:
    """A hostile writer gets CorruptRecord or records, never another error or a crash."""
    data = encoded(random_records(20, seed=seed), codec)
    at = 21 + at % (len(data) - 25)
    _decodes_or_is_corrupt(resealed_rows(data, {at: new}))


def _decodes_or_is_corrupt(data: bytes) -> None:
    try:
        decoded = decode_batch(data)
    except CorruptRecord:
        return
    decoded.records.validate(full=True)
    expected = 0 if decoded.header.is_control else decoded.header.record_count
    assert decoded.records.num_rows == expected
    if decoded.offset_deltas is None and not decoded.header.is_control:
        assert decoded.header.last_offset_delta == decoded.header.record_count - 1


# -- decompression bombs -------------------------------------------------------------------------

BOMB_BYTES = 1 << 30
NULL_BYTES = bytes(1 << 20)


def _bomb(codec: Compression) -> bytes:
    """A GiB of zeros, as small as the codec makes it."""
    pieces = [NULL_BYTES] * (BOMB_BYTES >> 20)
    if codec is Compression.GZIP:
        gzip = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join([gzip.compress(piece) for piece in pieces]) + gzip.flush()
    if codec is Compression.ZSTD:
        stream = zstandard.ZstdCompressor().compressobj()
        return b"".join([stream.compress(piece) for piece in pieces]) + stream.flush()
    if codec is Compression.LZ4:
        with lz4.frame.LZ4FrameCompressor(block_linked=False) as frame:
            body = [frame.begin(), *[frame.compress(piece) for piece in pieces], frame.flush()]
        return b"".join(body)
    block: bytes = pa.Codec("snappy").compress(NULL_BYTES, asbytes=True)
    return XERIAL_MAGIC + bytes(8) + (len(block).to_bytes(4, "big") + block) * len(pieces)


@pytest.mark.more
@pytest.mark.parametrize("codec", CODECS[1:])
def test_bombs_are_bounded(codec: Compression) -> None:
    """What decompresses to a GiB is refused with memory for the limit of 8 MiB only."""
    data = batch(_bomb(codec), 1, attributes=int(codec))
    assert len(data) < BOMB_BYTES / 15
    script = (
        "import sys, resource\n"
        "from txnlog.segments.batches import decode_batch\n"
        "from txnlog.segments.errors import CorruptRecord\n"
        "data = sys.stdin.buffer.read()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    decode_batch(data, max_uncompressed_bytes=8 << 20)\n"
        "except CorruptRecord as error:\n"
        "    print(error, file=sys.stderr)\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, check=True
    )
    assert b"over the limit" in done.stderr or b"claims" in done.stderr
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 64 << 20


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: Compression) -> None:
    """A batch at the limit is read, one byte less is refused."""
    value = bytes(1 << 20)
    rows: list[Row] = [(None, value, 0, [])]
    data = encode_batch(batch_of(rows), record_format="kafka", compression=codec)
    plain = encode_batch(batch_of(rows), record_format="kafka", compression=Compression.NONE)
    needed = len(plain) - 61 + 40  # and what the arrays of one record take
    assert rows_of(decode_batch(data, max_uncompressed_bytes=needed).records) == rows
    with pytest.raises(CorruptRecord, match="over the limit"):
        decode_batch(data, max_uncompressed_bytes=needed - 1)
    with pytest.raises(CorruptRecord, match=r"over the limit|claims"):
        decode_batch(data, max_uncompressed_bytes=len(plain) - 62)


def test_many_tiny_records_are_bounded() -> None:
    """A payload within the limit does not become arrays far beyond it."""
    count = 200_000
    payload = b"".join(record(None, None, offset_delta=n) for n in range(count))
    data = batch(payload, count)
    assert decode_batch(data).records.num_rows == count
    with pytest.raises(CorruptRecord, match="over the limit"):
        decode_batch(data, max_uncompressed_bytes=2 * len(payload))


def test_chains_of_tiny_streams_are_not_quadratic() -> None:
    """A hundred thousand empty gzip members, frames or blocks cost time in proportion."""
    empty = zlib.compressobj(9, zlib.DEFLATED, 31)
    member = empty.compress(b"") + empty.flush()
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"")
    block = b"\0\0\0\1\0"
    start = time.process_time()
    for codec, chain in (
        (Compression.GZIP, member * 200_000),
        (Compression.ZSTD, frame * 100_000),
        (Compression.SNAPPY, XERIAL_MAGIC + bytes(8) + block * 100_000),
    ):
        check_corrupt(batch(chain, 1, attributes=int(codec)))
    assert time.process_time() - start < 5


def test_lies_about_header_counts_cost_nothing() -> None:
    """A record that claims 2^31 - 1 headers is refused before they are looked for."""
    body = b"\0\0\0\1\1" + varint(2**31 - 1)
    check_corrupt(batch(varint(len(body)) + body, 1), "more headers")
    many = np.full(5, 2**31 - 1)
    assert many.sum() > 2**31
