"""The columns payload: round trips, what is left out, and damage."""

from __future__ import annotations

import re
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.support.segments.batch_damage import check_corrupt, check_flipped_bits, decode_damaged
from tests.support.segments.segment_layout import raw_batches, resealed
from tests.support.segments.segment_samples import Row, batch_of, numbered, random_records, rows_of
from txnlog.segments.batch_header import Compression
from txnlog.segments.batches import decode_batch, encode_batch
from txnlog.segments.errors import CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat

LZ4_FRAME = b"\x04\x22\x4d\x18"
CODECS = [Compression.NONE, Compression.LZ4, Compression.ZSTD]

some_bytes = st.none() | st.binary(max_size=30)
some_row = st.tuples(
    some_bytes,
    some_bytes,
    st.integers(-(1 << 40), 1 << 45) | st.sampled_from([0, -1]),
    st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3),
)


@pytest.mark.condition(46)
@some(150)
@given(rows=st.lists(some_row, min_size=1, max_size=30), codec=st.sampled_from(CODECS))
def test_round_trip_of_any_records(rows: list[Row], codec: Compression) -> None:
    """Whatever the records, what is decoded is what was encoded."""
    decoded = decode_batch(encode_batch(batch_of(rows), compression=codec))
    assert rows_of(decoded.records) == rows
    assert decoded.header.record_count == len(rows)


@pytest.mark.condition(46)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 1 << 16, 16 << 20])
def test_round_trip_of_value_sizes(codec: Compression, size: int) -> None:
    """Values from nothing to 16 MiB."""
    value = np.random.default_rng(size).bytes(size)
    rows: list[Row] = [(b"", value, 0, []), (None, value, -1, [("h", None), ("", b"")])]
    records = decode_batch(encode_batch(batch_of(rows), compression=codec)).records
    assert rows_of(records) == rows


@pytest.mark.condition(46)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("level", [None, 1, 9])
def test_round_trip_of_many_records(codec: Compression, level: int | None) -> None:
    """10,000 mixed records at several levels; a slice is encoded as itself."""
    records = random_records(10_000, seed=1)
    data = encode_batch(records.slice(100, 9_000), compression=codec, level=level)
    assert decode_batch(data).records.equals(records.slice(100, 9_000))


@pytest.mark.condition(46)
def test_null_and_empty_stay_apart() -> None:
    """An empty key or value never becomes a null one, nor the other way round."""
    cases: list[list[Row]] = [
        [(None, b"", 1, []), (None, b"", 2, [])],
        [(b"", None, 1, []), (b"", None, 2, [])],
        [(b"", None, 1, []), (None, b"", 1, [])],
        [(None, None, -1, [])],
    ]
    for rows in cases:
        assert rows_of(decode_batch(encode_batch(batch_of(rows))).records) == rows


def test_columns_that_say_nothing_take_no_bytes() -> None:
    """Null keys, no headers and one timestamp are stored as columns of type null."""
    data = encode_batch(batch_of([(None, b"v", 7, []), (None, b"w", 7, [])]))
    (raw,) = raw_batches(data)
    assert {field.name: str(field.type) for field in raw.table().schema} == {
        "key": "null",
        "value": "binary",
        "timestamp": "null",
        "headers": "null",
    }
    assert (raw.base_timestamp, raw.max_timestamp) == (7, 7)


def test_timestamps_that_come_back_to_the_first_are_kept() -> None:
    """First == max is not enough to leave timestamps out; a smaller one is between."""
    rows: list[Row] = [(b"", b"", 9, []), (b"", b"", 3, []), (b"", b"", 9, [])]
    assert rows_of(decode_batch(encode_batch(batch_of(rows))).records) == rows


def test_projection_returns_the_columns_asked_for() -> None:
    """Columns come in the order asked for; none at all is possible; unknown is an error."""
    records = random_records(50, seed=3)
    data = encode_batch(records)
    for columns in (["value"], ["timestamp", "key"], ["headers"], ["key", "headers", "value"]):
        decoded = decode_batch(data, columns=columns).records
        assert decoded.schema.names == columns
        assert decoded.equals(records.select(columns))
    assert decode_batch(data, columns=[]).header.record_count == 50
    with pytest.raises(UnsupportedRecordFormat, match="'price'"):
        decode_batch(data, name="x.log", columns=["price"])


def test_projection_does_not_touch_other_columns() -> None:
    """Keys are read though the values' compressed bytes are nonsense under good checksums."""
    records = numbered(500, value_bytes=200)
    data = encode_batch(records)
    # LZ4 frames: offsets and bytes of the keys, offsets and bytes of the values, timestamps.
    frames = [match.start() for match in re.finditer(LZ4_FRAME, data)]
    assert len(frames) == 5
    broken = resealed(data, {frames[3]: b"\xff" * 400})
    assert decode_batch(broken, columns=["key"]).records.column(0).equals(records.column("key"))
    with pytest.raises(CorruptRecord):
        decode_batch(broken, columns=["value"])


def test_columns_of_a_typed_schema() -> None:
    """Nothing depends on key and value: any Arrow columns beside the timestamp are kept."""
    stamp = pa.array([5, 6], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    records = pa.record_batch(
        {
            "timestamp": stamp,
            "price": pa.array([1.5, None]),
            "tags": pa.array([["a"], []], pa.list_(pa.string())),
            "nothing": pa.nulls(2),
            "where": pa.array([{"x": 1}, None]),
        }
    )
    decoded = decode_batch(encode_batch(records)).records
    assert decoded.equals(records)
    assert decode_batch(encode_batch(records), columns=["price"]).records.num_columns == 1


def test_what_cannot_be_stored_is_named() -> None:
    """Dictionaries, reserved and repeated names, and bad timestamps name their column."""
    good = numbered(2)
    dictionary = pa.array(["x", "y"]).dictionary_encode()
    for bad, word in (
        (good.append_column("colour", dictionary), "'colour'"),
        (good.append_column("nested", pa.StructArray.from_arrays([dictionary], ["d"])), "'nested'"),
        (good.append_column("offset_delta", pa.array([0, 1], pa.int32())), "reserved"),
        (good.append_column("value", good.column("value")), "'value'"),
        (good.drop_columns(["timestamp"]), "'timestamp'"),
    ):
        with pytest.raises(UnsupportedRecordFormat, match=word):
            encode_batch(bad)
    with pytest.raises(ValueError, match="at least one"):
        encode_batch(good.slice(0, 0))
    with pytest.raises(UnsupportedRecordFormat, match="avro"):
        encode_batch(good, record_format="avro")
    with pytest.raises(UnsupportedCompression, match="99"):
        encode_batch(good, compression=Compression.ZSTD, level=99)


def test_offset_deltas_round_trip() -> None:
    """Offsets with gaps are stored beside the records and are no column of them."""
    deltas = np.array([0, 3, 4], dtype=np.int32)
    decoded = decode_batch(encode_batch(numbered(3), base_offset=10, offset_deltas=deltas))
    assert decoded.offset_deltas is not None
    assert decoded.offset_deltas.tolist() == [0, 3, 4]
    assert decoded.header.last_offset == 14
    assert "offset_delta" not in decoded.records.schema.names
    assert decode_batch(encode_batch(numbered(3))).offset_deltas is None


@pytest.mark.condition(45)
@pytest.mark.parametrize("deltas", [[3, 0, 4], [0, 0, 4], [-1, 0, 4], [0, 4, 4]])
def test_offset_deltas_that_do_not_ascend(deltas: list[int]) -> None:
    """A writer's wrong offsets are found by the reader."""
    data = encode_batch(numbered(3), offset_deltas=np.array(deltas, dtype=np.int32))
    with pytest.raises(CorruptRecord, match="ascend"):
        decode_batch(data)


@pytest.mark.condition(44)
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_corrupt(codec: Compression) -> None:
    """One flipped bit anywhere, header included, is CorruptRecord with its place."""
    data = encode_batch(numbered(4), compression=codec, base_offset=4)
    check_flipped_bits(data)


@pytest.mark.condition(44)
def test_every_changed_byte_is_corrupt() -> None:
    """The same for bytes set to 0, 255 and to what differs in all bits."""
    data = encode_batch(numbered(4))
    for at in range(len(data)):
        for new in {0, 255, data[at] ^ 255, 2, 1} - {data[at]}:
            broken = bytearray(data)
            broken[at] = new
            with pytest.raises(CorruptRecord):
                decode_batch(bytes(broken))


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    "changes",
    [
        {57: (4).to_bytes(4, "big")},
        {57: (2).to_bytes(4, "big")},
        {57: (0).to_bytes(4, "big")},
        {23: (3).to_bytes(4, "big")},
        {23: (3).to_bytes(4, "big"), 57: (4).to_bytes(4, "big")},
        {23: (1).to_bytes(4, "big"), 57: (2).to_bytes(4, "big")},
        {22: b"\4"},
        {22: b"\0"},
    ],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_lies_under_a_right_checksum(changes: dict[int, bytes], gaps: bool) -> None:
    """Counts, last offset and codec that disagree with the records are corrupt."""
    deltas = np.array([0, 2, 5], dtype=np.int32) if gaps else None
    data = resealed(encode_batch(numbered(3), offset_deltas=deltas), changes)
    check_corrupt(data)


@pytest.mark.condition(45)
def test_timestamps_left_out_though_they_differ() -> None:
    """A header that claims two timestamps for a batch that stores none is corrupt."""
    data = encode_batch(batch_of([(b"", b"", 7, [])]))
    with pytest.raises(CorruptRecord, match="timestamps differ"):
        decode_batch(resealed(data, {35: (8).to_bytes(8, "big")}))


@pytest.mark.parametrize("times", [300, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("codec", CODECS)
def test_random_damage_under_a_right_checksum_never_crashes(codec: Compression, times: int) -> None:
    """A hostile writer gets CorruptRecord or records, never another error or a crash."""
    data = encode_batch(random_records(40, seed=5), compression=codec)
    for records in decode_damaged(data, times):
        assert records.num_rows == 40


def test_decompression_is_bounded() -> None:
    """A batch's claimed size is refused before it is allocated."""
    data = encode_batch(batch_of([(None, bytes(1 << 20), 0, [])]))
    assert len(data) < 10_000
    with pytest.raises(CorruptRecord, match="over the limit"):
        decode_batch(data, max_uncompressed_bytes=1 << 20)
    claim = data.index((1 << 20).to_bytes(8, "little") + LZ4_FRAME)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptRecord, match="over the limit"):
        decode_batch(resealed(data, {claim: (1 << 40).to_bytes(8, "little")}))
    with pytest.raises(CorruptRecord):
        decode_batch(resealed(data, {claim: (-5).to_bytes(8, "little", signed=True)}))
    # A negative claim must not make room for a large one in the sum.
    offsets = data.index(LZ4_FRAME, data.index(LZ4_FRAME) - 40) - 8
    evil = {
        offsets: (-(1 << 40)).to_bytes(8, "little", signed=True),
        claim: (1 << 40).to_bytes(8, "little"),
    }
    with pytest.raises(CorruptRecord, match="negative"):
        decode_batch(resealed(data, evil))
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_arrow_offsets_that_point_outside() -> None:
    """Offsets of values beyond the values' bytes are found before anybody follows them."""
    data = encode_batch(
        batch_of([(None, b"abcdefg", 0, []), (None, b"hij", 0, [])]), compression=Compression.NONE
    )
    offsets = data.index(struct.pack("<iii", 0, 7, 10), 64)
    for wrong in ((0, 7, 1 << 30), (0, 70, 10), (0, -7, 10), (-1, 7, 10)):
        with pytest.raises(CorruptRecord):
            decode_batch(resealed(data, {offsets: struct.pack("<iii", *wrong)}))


def test_uncompressed_batches_are_not_copied() -> None:
    """Without compression the values refer to the bytes that were read."""
    data = encode_batch(numbered(1000, value_bytes=1000), compression=Compression.NONE)
    before = pa.total_allocated_bytes()
    records = decode_batch(data).records
    assert pa.total_allocated_bytes() - before < 20_000
    assert records.num_rows == 1000


def test_bytes_like_inputs() -> None:
    """Bytes, bytearray, memoryview and Arrow's buffers are all read."""
    data = encode_batch(numbered(3))
    for view in (bytearray(data), memoryview(data), memoryview(pa.py_buffer(data))):
        assert decode_batch(view).records.equals(numbered(3))
