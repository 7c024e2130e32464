"""The columns payload of typed topics: columns by ids, what is left out, and damage."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.segments.batch_damage import check_flipped_bits, decode, decode_damaged
from tests.support.segments.segment_layout import resealed
from tests.support.segments.segment_samples import file_of, numbered
from txnlog.segments.batch_header import MAGIC_TYPED_COLUMNS, Compression, SegmentIdentity, tag_of
from txnlog.segments.batches import decode_batch, encode_batch
from txnlog.segments.errors import CorruptRecord, UnsupportedRecordFormat
from txnlog.segments.inspect.dump import dump_segment, verify_batches
from txnlog.segments.reader import find_timestamp, read_segment
from txnlog.segments.records import HEADERS_TYPE, TIMESTAMP_TYPE
from txnlog.segments.schema_columns import DEFAULT, FIELD_ID
from txnlog.segments.writer import SegmentWriter

CODECS = [Compression.NONE, Compression.LZ4, Compression.ZSTD]
OWN = {
    "_timestamp": pa.field("_timestamp", TIMESTAMP_TYPE, nullable=False),
    "_headers": pa.field("_headers", HEADERS_TYPE),
}


def column(number: int, name: str, kind: pa.DataType, **more: Any) -> pa.Field:
    metadata = {FIELD_ID: b"%d" % number}
    if "default" in more:
        metadata[DEFAULT] = more.pop("default")
    return pa.field(name, kind, metadata=metadata, **more)


STORED = pa.schema(
    [
        column(1, "offset_delta", pa.int32(), nullable=False),
        column(2, "timestamp", pa.string()),
        column(3, "in", pa.struct([column(4, "a", pa.int8()), column(5, "b", pa.string())])),
        *OWN.values(),
    ]
)


def typed(count: int, *, step_ms: int = 10) -> pa.RecordBatch:
    """Records of STORED, with names that mean something in other topics."""
    numbers = range(count)
    times = pa.array([n * step_ms for n in numbers], pa.int64()).cast(TIMESTAMP_TYPE)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(numbers, pa.int32()),
            pa.array([f"text {n}" if n % 3 else None for n in numbers]),
            pa.array([{"a": n % 100, "b": "x"} for n in numbers], STORED.field("in").type),
            times,
            pa.array([[]] * count, HEADERS_TYPE),
        ],
        schema=STORED,
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("step_ms", [0, 10])
def test_columns_come_back_by_their_ids(codec: Compression, step_ms: int) -> None:
    """Renamed, wider, in another order, with fields and columns that the batch lacks."""
    records = typed(5, step_ms=step_ms)
    data = encode_batch(records, compression=codec)
    assert data[16] == MAGIC_TYPED_COLUMNS == 103
    assert decode(data, STORED).equals(records)
    assert decode_batch(data).records.to_pylist() == records.to_pylist()
    wanted = pa.schema(
        [
            column(7, "late", pa.int16(), default=b"9"),
            column(3, "inner", pa.struct([column(9, "c", pa.bool_()), column(4, "a", pa.int32())])),
            column(6, "timestamp", pa.float64()),
            column(2, "words", pa.string()),
            column(1, "number", pa.int64(), nullable=False),
            *OWN.values(),
        ]
    )
    found = decode(data, wanted)
    assert found.schema.equals(wanted)
    assert found.to_pylist() == [
        {
            "late": 9,
            "inner": {"c": None, "a": row["in"]["a"]},
            "timestamp": None,
            "words": row["timestamp"],
            "number": row["offset_delta"],
            "_timestamp": row["_timestamp"],
            "_headers": [],
        }
        for row in records.to_pylist()
    ]
    only = pa.schema([wanted.field("late")])
    assert decode(data, only).to_pylist() == [{"late": 9}] * 5


def test_schemas_that_differ_in_ids_or_defaults_are_told_apart() -> None:
    """Arrow takes them for equal, and what was worked out for one is kept."""
    data = encode_batch(typed(1))
    for field, expected in (
        (column(2, "x", pa.string()), None),
        (column(8, "x", pa.string(), default=b"one"), "one"),
        (column(8, "x", pa.string(), default=b"two"), "two"),
    ):
        found = decode(data, pa.schema([field]))
        assert found.column("x").to_pylist() == [expected]


def test_offsets_with_gaps() -> None:
    """They are beside the columns under a name that no column has."""
    records = typed(3)
    deltas = np.array([0, 3, 4], dtype=np.int32)
    data = encode_batch(records, base_offset=7, offset_deltas=deltas)
    for columns in (None, STORED, pa.schema([STORED.field(1)])):
        decoded = decode_batch(data, columns=columns)
        assert decoded.offset_deltas is not None
        assert decoded.offset_deltas.tolist() == [0, 3, 4]
    assert decode(data, STORED).equals(records)
    again = records.append_column("_offset", pa.array([1, 2, 3]))
    with pytest.raises(UnsupportedRecordFormat, match="'_offset' is reserved"):
        encode_batch(again)
    with pytest.raises(UnsupportedRecordFormat):
        encode_batch(records, record_format="kafka")


@pytest.mark.condition(44)
@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_corrupt(codec: Compression) -> None:
    """One flipped bit anywhere, header included, is CorruptRecord with its place."""
    data = encode_batch(typed(2).select(["offset_delta", "_timestamp"]), compression=codec)
    check_flipped_bits(data, STORED)


def test_random_damage_under_a_right_checksum_never_crashes() -> None:
    """A hostile writer gets CorruptRecord or records, never another error or a crash."""
    for records in decode_damaged(encode_batch(typed(20)), 250, STORED):
        assert records.num_rows == 20


@pytest.mark.condition(45)
def test_lies_under_a_right_checksum() -> None:
    """Nulls where none may be, a column of another type, and no times at all."""
    records = typed(2)
    nulls = records.set_column(
        0, STORED.field(0).with_nullable(True), pa.array([1, None], STORED.field(0).type)
    )
    with pytest.raises(CorruptRecord, match=r"'offset_delta'.* has nulls"):
        decode(encode_batch(nulls), pa.schema([OWN["_timestamp"], STORED.field(0)]))
    other = pa.schema([column(2, "timestamp", pa.binary())])
    wrong = pa.schema([column(2, "timestamp", pa.list_(pa.int8()))])
    assert decode(encode_batch(records), other).num_rows == 2
    with pytest.raises(CorruptRecord, match="column 'timestamp' is string"):
        decode(encode_batch(records), wrong)
    plain = bytearray(encode_batch(numbered(2)))
    with pytest.raises(CorruptRecord, match="no _timestamp column"):
        decode_batch(resealed(bytes(plain), {16: bytes([MAGIC_TYPED_COLUMNS])}))
    data = resealed(encode_batch(typed(1)), {35: (8).to_bytes(8, "big")})
    with pytest.raises(CorruptRecord, match="timestamps differ"):
        decode_batch(data, columns=STORED)


def test_segments_are_read_searched_and_shown() -> None:
    """Many batches: ranges of offsets, times, damage in the middle that the next batch ends."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, batch_bytes=2000, index_interval_bytes=1, tag=tag_of("n"))
    writer.append(typed(500))
    summary = writer.finish()
    assert summary.batch_count > 5
    data = sink.getvalue()
    file = file_of(data, "x.log", identity=SegmentIdentity(0, 500, tag_of("n")))
    found = pa.Table.from_batches(
        part.records
        for part in read_segment(file, start_offset=100, stop_offset=400, columns=STORED)
    )
    assert found.equals(pa.Table.from_batches([typed(500).slice(100, 300)]))
    at = find_timestamp(file, 3333)
    assert at is not None
    assert (at.offset, at.timestamp_ms) == (334, 3340)
    assert verify_batches(dump_segment(file)).record_count == 500
    second = [*dump_segment(file)][1].position
    broken = bytearray(data)
    broken[second + 5] ^= 1
    shown = [*dump_segment(file_of(bytes(broken), "x.log"))]
    assert [batch.damage is None for batch in shown[:3]] == [True, False, True]
    assert sum(batch.size_bytes for batch in shown) == len(data)
