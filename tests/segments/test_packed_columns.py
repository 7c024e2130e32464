"""Packed columns: round trips, what is packed and what is not, and damage."""

from __future__ import annotations

import io

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.support.segments.batch_damage import check_corrupt, check_flipped_bits, decode_damaged
from tests.support.segments.packed_layout import (
    HEADERS,
    KEYS,
    TIMESTAMPS,
    VALUES,
    payload_of,
    rows_in,
)
from tests.support.segments.segment_layout import raw_batches, resealed
from tests.support.segments.segment_samples import (
    Row,
    batch_of,
    file_of,
    numbered,
    random_records,
    rows_of,
)
from txnlog.segments.batch_header import Compression, SegmentIdentity
from txnlog.segments.batches import decode_batch, encode_batch
from txnlog.segments.errors import CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat
from txnlog.segments.formats.columns import MAX_PACKED_BYTES, MAX_PAYLOAD_BYTES
from txnlog.segments.indexes.sparse import OffsetIndex, TimeIndex
from txnlog.segments.inspect.dump import dump_segment, verify_batches
from txnlog.segments.reader import find_timestamp, read_segment
from txnlog.segments.records import RECORD_SCHEMA
from txnlog.segments.writer import SegmentWriter

PACKED, COLUMNS = 102, 100
CODECS = [Compression.NONE, Compression.LZ4, Compression.ZSTD]

some_bytes = st.none() | st.binary(max_size=30)
some_row = st.tuples(
    some_bytes,
    some_bytes,
    st.integers(-(1 << 40), 1 << 45) | st.sampled_from([0, -1]),
    st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3),
)


def packed(records: pa.RecordBatch, codec: Compression = Compression.NONE) -> bytes:
    """A batch as a writer makes it of a few records."""
    data = encode_batch(records, compression=codec, packs_few=True)
    assert data[16] == PACKED
    return data


def with_payload(payload: bytes, count: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch of ``count`` records with any payload, and both checksums right."""
    data = packed(batch_of([(None, b"", 7, [])] * count))[:64] + payload
    length, codec_bits = (len(data) - 12).to_bytes(4, "big"), int(codec).to_bytes(2, "big")
    return resealed(data, {8: length, 21: codec_bits})


# -- what is written -----------------------------------------------------------------------------


@pytest.mark.condition(46)
@some(60)
@given(rows=st.lists(some_row, min_size=1, max_size=30), codec=st.sampled_from(CODECS))
def test_round_trip_of_any_records(rows: list[Row], codec: Compression) -> None:
    """Decoding gives back the records, also those encoded by hand; smaller than Arrow's stream."""
    records = batch_of(rows)
    data = packed(records, codec)
    decoded = decode_batch(data)
    assert rows_of(decoded.records) == rows
    assert decoded.records.schema == RECORD_SCHEMA
    decoded.records.validate(full=True)
    assert decoded.offset_deltas is None
    (raw,) = raw_batches(data)
    assert raw.record_count == len(rows)
    assert rows_in(raw_payload(raw.payload, raw.attributes), len(rows), raw.base_timestamp) == rows
    assert len(data) < len(encode_batch(records, compression=codec)) - 300


def raw_payload(payload: bytes, codec: int) -> bytes:
    """The payload by the codec's own library."""
    if codec == Compression.LZ4:
        return bytes(lz4.frame.decompress(payload))
    return zstandard.decompress(payload) if codec == Compression.ZSTD else payload


def test_bytes_of_a_payload() -> None:
    """They are where docs/FORMAT.md says; what says nothing takes none."""
    data = packed(batch_of([(b"k", b"one", 5, []), (None, b"", 5, []), (b"", b"three", 5, [])]))
    assert data[64:] == payload_of(
        KEYS | VALUES, ("h", [1, -1, 0]), ("h", [3, 0, 5]), content=b"konethree"
    )
    data = packed(batch_of([(None, b"v", 5, [("h", b"x"), ("", None)]), (None, b"w", 3, [])]))
    assert data[64:] == payload_of(
        VALUES | TIMESTAMPS | HEADERS,
        ("q", [5, 3]),
        ("h", [1, 1]),
        ("h", [2, 0]),
        ("h", [1, 0]),
        ("h", [1, -1]),
        content=b"vwhx",
    )
    assert packed(batch_of([(None, None, 5, [])] * 9))[64:] == b"\0"


def test_a_codec_that_makes_it_larger_is_not_used() -> None:
    """The attributes say which one was, if any."""
    noise = batch_of([(b"", np.random.default_rng(1).bytes(300), 0, [])])
    words = batch_of([(b"", b"again and " * 30, 0, [])])
    for codec in (Compression.LZ4, Compression.ZSTD):
        assert packed(noise, codec) == packed(noise)
        assert decode_batch(packed(words, codec)).header.codec is codec
        assert len(packed(words, codec)) < len(packed(words))


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY])
def test_codecs_are_those_of_columns(codec: Compression) -> None:
    """Neither written nor read."""
    with pytest.raises(UnsupportedCompression, match=codec.kafka_name):
        encode_batch(numbered(1), compression=codec, packs_few=True)
    with pytest.raises(UnsupportedCompression, match=codec.kafka_name):
        decode_batch(with_payload(b"\0", 1, codec))


def test_what_is_not_packed() -> None:
    """Many bytes, offsets with gaps, other columns; and nothing unless it is asked for."""
    fits = batch_of([(None, bytes(MAX_PACKED_BYTES - 21), 0, [])])
    over = batch_of([(None, bytes(MAX_PACKED_BYTES - 20), 0, [])])
    assert (fits.nbytes, over.nbytes) == (MAX_PACKED_BYTES, MAX_PACKED_BYTES + 1)
    assert encode_batch(fits, packs_few=True)[16] == PACKED
    assert encode_batch(over, packs_few=True)[16] == COLUMNS
    assert encode_batch(fits)[16] == COLUMNS
    gaps = np.array([0, 2], dtype=np.int32)
    assert encode_batch(numbered(2), offset_deltas=gaps, packs_few=True)[16] == COLUMNS
    typed = numbered(2).append_column("more", pa.array([1, 2]))
    assert encode_batch(typed, packs_few=True)[16] == COLUMNS
    without_key = numbered(2).select(["value", "timestamp", "headers"])
    assert encode_batch(without_key, packs_few=True)[16] == COLUMNS


def test_rows_of_kafka_stay_as_they_are() -> None:
    """There is one format for these topics."""
    records = numbered(2)
    plain = encode_batch(records, record_format="kafka", guarded=True)
    assert plain == encode_batch(records, record_format="kafka", guarded=True, packs_few=True)


def test_slices_and_nulls_that_hide_bytes() -> None:
    """Only what the records hold is written."""
    records = random_records(200, seed=3)
    for start in range(0, 190, 7):
        part = records.slice(start, 9)
        assert decode_batch(packed(part)).records.equals(part)
    offsets = pa.py_buffer(np.array([0, 3, 9, 12], dtype=np.int32))
    buffers = [pa.py_buffer(b"\5"), offsets, pa.py_buffer(b"onesecrettwo")]
    hiding = pa.Array.from_buffers(pa.binary(), 3, buffers)
    shown = numbered(3).set_column(1, RECORD_SCHEMA.field("value"), hiding)
    data = packed(shown)
    assert b"secret" not in data
    assert decode_batch(data).records.column("value").to_pylist() == [b"one", None, b"two"]
    headers = pa.array([None, [], [{"key": "h", "value": b"x"}]], RECORD_SCHEMA.field(3).type)
    shown = numbered(3).set_column(3, RECORD_SCHEMA.field(3), headers)
    found = decode_batch(packed(shown)).records.column("headers").to_pylist()
    assert found == [[], [], [{"key": "h", "value": b"x"}]]


def test_projection() -> None:
    """The columns asked for, in that order, and a name that is none of them."""
    records = random_records(20, seed=2)
    data = packed(records, Compression.LZ4)
    for names in ([], ["value"], ["headers", "key"], ["timestamp"], RECORD_SCHEMA.names):
        decoded = decode_batch(data, columns=names).records
        assert decoded.schema.names == names
        assert all(decoded.column(name).equals(records.column(name)) for name in names)
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])  # as compaction asks
        assert decode_batch(data, columns=schema).records.equals(decoded)
    with pytest.raises(UnsupportedRecordFormat, match="absent"):
        decode_batch(data, columns=["absent"])


# -- in segments ---------------------------------------------------------------------------------


@some(15)
@given(counts=st.lists(st.sampled_from([1, 2, 60, 150, 400]), min_size=1, max_size=8))
def test_segments_of_packed_and_other_batches(counts: list[int]) -> None:
    """They follow each other in a segment; reads, times, indexes and checks notice nothing."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, tag=77, index_interval_bytes=1)
    records = numbered(sum(counts), value_bytes=60)
    start = 0
    for count in counts:
        writer.append(records.slice(start, count))
        writer.flush()
        start += count
    summary, data = writer.finish(), sink.getvalue()
    sizes = [records.slice(0, count).nbytes for count in counts]
    magics = [raw.magic for raw in raw_batches(data)]
    assert magics == [PACKED if size <= MAX_PACKED_BYTES else COLUMNS for size in sizes]
    file = file_of(data, identity=SegmentIdentity(0, start, tag=77))
    assert not verify_batches(dump_segment(file)).damages
    index, times = OffsetIndex.decode(summary.index), TimeIndex.decode(summary.time_index)
    for first in (0, start // 3, start - 1):
        found = pa.Table.from_batches(
            part.records for part in read_segment(file, start_offset=first, index=index)
        )
        assert found.combine_chunks().equals(pa.Table.from_batches([records.slice(first)]))
        place = find_timestamp(file, 1000 + 10 * first, time_index=times, index=index)
        assert place is not None
        assert place.offset == first
    with pytest.raises(CorruptRecord, match="exchanged"):
        next(read_segment(file_of(data, identity=SegmentIdentity(0, start, tag=78))))


def test_a_damaged_batch_is_passed_over_by_tools() -> None:
    """Behind a header that cannot be read they find the next packed batch."""
    first, second = (
        packed(numbered(2)),
        encode_batch(numbered(2, start=2), base_offset=2, packs_few=True),
    )
    broken = bytearray(first + second)
    broken[16] ^= 0xFF
    found = [*dump_segment(file_of(bytes(broken)))]
    assert [batch.damage is None for batch in found] == [False, True]
    assert found[1].position == len(first)


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.condition(44)
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_corrupt(codec: Compression) -> None:
    """One flipped bit anywhere, header included, is CorruptRecord with its place."""
    rows: list[Row] = [(b"k", b"v" * 40, 7, [("h", None)]), (None, b"w", 9, [])]
    data = packed(batch_of(rows), codec)
    check_flipped_bits(data)


@pytest.mark.condition(43)
@pytest.mark.parametrize("codec", CODECS)
def test_truncated_anywhere(codec: Compression) -> None:
    """Every truncation is CorruptRecord, with right length and checksums too."""
    data = packed(random_records(9, seed=1), codec)
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_batch(data[:size])
        if size >= 64:
            with pytest.raises(CorruptRecord):
                decode_batch(resealed(data[:size], {8: (size - 12).to_bytes(4, "big")}))


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (b"", "do not hold columns"),
        (b"\x10", "do not hold columns"),
        (b"\0\0", "payload of 2"),
        (payload_of(VALUES, ("h", [1])), "buffer"),
        (payload_of(VALUES, ("h", [1, 1]), content=b"a"), "payload of 6"),
        (payload_of(VALUES, ("h", [1, 1]), content=b"abc"), "payload of 8"),
        (payload_of(VALUES, ("h", [3, -2]), content=b"abc"), "length -2"),
        (payload_of(KEYS, ("h", [-1, -32768])), "length -32768"),
        (payload_of(TIMESTAMPS, ("q", [1])), "buffer"),
        (payload_of(HEADERS, ("h", [0, 0])), "header counts"),
        (payload_of(HEADERS, ("h", [2, -1]), ("h", [0]), ("h", [0])), "header counts"),
        (payload_of(HEADERS, ("h", [0, 1]), ("h", [-1]), ("h", [0])), "length -1"),
        (payload_of(HEADERS, ("h", [0, 1]), ("h", [1]), ("h", [0]), content=b"\xff"), "UTF"),
        (payload_of(HEADERS, ("h", [0, 9]), ("h", [1]), ("h", [0]), content=b"a"), "buffer"),
    ],
)
def test_lies_under_a_right_checksum(payload: bytes, word: str) -> None:
    """Bytes that cannot be the columns of two records are corrupt."""
    with pytest.raises(CorruptRecord, match=word):
        decode_batch(with_payload(payload, 2))


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    "changes",
    [
        {57: (2).to_bytes(4, "big")},
        {57: (0).to_bytes(4, "big")},
        {23: (3).to_bytes(4, "big")},
        {23: (3).to_bytes(4, "big"), 57: (4).to_bytes(4, "big")},
        {23: (1).to_bytes(4, "big"), 57: (2).to_bytes(4, "big")},
        {22: b"\4"},
        {22: b"\x0b"},
        {35: (8).to_bytes(8, "big")},
    ],
)
def test_headers_that_disagree_with_the_payload(changes: dict[int, bytes]) -> None:
    """Counts, last offset, codec, other attributes, and two timestamps where none is stored."""
    data = resealed(packed(batch_of([(b"k", b"v" * 50, 7, [])] * 3), Compression.LZ4), changes)
    check_corrupt(data)


@pytest.mark.parametrize("codec", CODECS)
def test_random_damage_under_a_right_checksum_never_crashes(codec: Compression) -> None:
    """A hostile writer gets CorruptRecord or sound records, never another error or a crash."""
    data = packed(random_records(40, seed=5), codec)
    for records in decode_damaged(data, 150):
        assert records.num_rows == 40
        records.validate(full=True)


def test_decompression_is_bounded() -> None:
    """No payload has more bytes than lengths of 16 bits can say, whatever it claims."""
    for codec, data in (
        (Compression.LZ4, lz4.frame.compress(b"\0" * (1 << 20))),
        (Compression.ZSTD, zstandard.compress(b"\0" * (1 << 20))),
        (Compression.NONE, b"\0" * (MAX_PAYLOAD_BYTES + 1)),
    ):
        with pytest.raises(CorruptRecord, match="over the limit 32767"):
            decode_batch(with_payload(data, 1, codec))
    many = (1 << 30).to_bytes(4, "big")
    lie = resealed(with_payload(b"\0", 1), {23: ((1 << 30) - 1).to_bytes(4, "big"), 57: many})
    with pytest.raises(CorruptRecord, match="over the limit"):
        decode_batch(lie)
