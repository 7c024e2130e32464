"""The rows payload: Kafka's own batches, from and to Arrow, against a decoder written by hand."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.support.segments.rows_layout import HEADER, batch, raw_records, record
from tests.support.segments.segment_layout import crc32c, resealed
from tests.support.segments.segment_samples import Row, batch_of, numbered, random_records, rows_of
from tests.support.tiers import more
from txnlog.segments.batch_header import DELETE_HORIZON, Compression
from txnlog.segments.batches import decode_batch, encode_batch, encode_marker
from txnlog.segments.errors import (
    CorruptRecord,
    RecordTooLarge,
    UnsupportedCompression,
    UnsupportedRecordFormat,
)
from txnlog.segments.formats.rows import BLOCK_ROWS
from txnlog.segments.kafka_markers import ABORT, COMMIT, ControlMarker

CODECS = list(Compression)

some_bytes = st.none() | st.binary(max_size=30) | st.integers(60, 70).map(bytes)
some_row = st.tuples(
    some_bytes,
    some_bytes,
    st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([0, -1]),
    st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3),
)


def encoded(records: pa.RecordBatch, **named: object) -> bytes:
    named.setdefault("compression", Compression.NONE)
    return encode_batch(records, record_format="kafka", **named)  # type: ignore[arg-type]


@pytest.mark.condition(46)
@some(200)
@given(rows=st.lists(some_row, min_size=1, max_size=30), codec=st.sampled_from(CODECS))
def test_round_trip_of_any_records(rows: list[Row], codec: Compression) -> None:
    """Whatever the records, what is decoded is what was encoded."""
    decoded = decode_batch(encoded(batch_of(rows), compression=codec))
    decoded.records.validate(full=True)
    assert rows_of(decoded.records) == rows
    assert decoded.header.record_count == len(rows)
    assert decoded.offset_deltas is None


@some(200)
@given(rows=st.lists(some_row, min_size=1, max_size=30))
def test_bytes_are_those_of_the_format(rows: list[Row]) -> None:
    """A decoder written by hand from the format's description finds every field."""
    data = encoded(batch_of(rows))
    found = raw_records(data[61:])
    first = rows[0][2]
    for number, (raw, row) in enumerate(zip(found, rows, strict=True)):
        assert (raw.attributes, raw.offset_delta) == (0, number)
        assert (raw.timestamp_delta - (row[2] - first)) % (1 << 64) == 0
        assert (raw.key, raw.value) == row[:2]
        assert raw.headers == [(name.encode(), content) for name, content in row[3]]


def test_every_header_field_is_where_the_format_says() -> None:
    """The 61 bytes, unpacked by hand; the checksum is CRC-32C of byte 21 to the end."""
    records = batch_of([(b"k", b"v", 5000, []), (b"k", b"w", 4000, []), (None, None, 7000, [])])
    data = encoded(
        records,
        compression=Compression.ZSTD,
        base_offset=1 << 40,
        producer_id=1 << 50,
        producer_epoch=7,
        base_sequence=11,
        leader_epoch=3,
        transactional=True,
    )
    assert HEADER.unpack_from(data) == (
        *(1 << 40, len(data) - 12, 3, 2, crc32c(data[21:]), 0x14),
        *(2, 5000, 7000, 1 << 50, 7, 11, 3),
    )


@pytest.mark.condition(46)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 1 << 13, 1 << 16, *more([16 << 20])])
def test_round_trip_of_value_sizes(codec: Compression, size: int) -> None:
    """Values from nothing to 16 MiB, on both sides of each length of their varint."""
    value = np.random.default_rng(size).bytes(size)
    rows: list[Row] = [(b"", value, 0, []), (None, value, -1, [("h", None), ("", b"")])]
    assert rows_of(decode_batch(encoded(batch_of(rows), compression=codec)).records) == rows


@pytest.mark.condition(46)
@pytest.mark.parametrize("codec", CODECS)
def test_round_trip_of_many_records(codec: Compression) -> None:
    """More records than are worked on at once; a slice is encoded as itself."""
    records = random_records(2 * BLOCK_ROWS + 100, seed=1)
    data = encoded(records.slice(50, 2 * BLOCK_ROWS + 3), compression=codec)
    assert decode_batch(data).records.equals(records.slice(50, 2 * BLOCK_ROWS + 3))


def test_levels() -> None:
    """Levels do what they say; those that a codec has not are refused."""
    records = random_records(5_000, seed=2)
    for codec in (Compression.GZIP, Compression.LZ4, Compression.ZSTD):
        sizes = [len(encoded(records, compression=codec, level=level)) for level in (1, 9)]
        assert sizes[1] < sizes[0]
    for codec, level in (
        (Compression.GZIP, 10),
        (Compression.LZ4, 13),
        (Compression.ZSTD, 23),
        (Compression.SNAPPY, 1),
        (Compression.NONE, 1),
    ):
        with pytest.raises(UnsupportedCompression, match=f"{codec.kafka_name} has .*{level}"):
            encoded(records, compression=codec, level=level)


def test_records_of_every_mix_of_sizes() -> None:
    """Runs of one size, changes and single oddities: record starts are found in all."""
    rng = np.random.default_rng(3)
    for run in (1, 2, 3, 255, 256, 257, 258, 600):
        sizes = np.repeat(rng.integers(0, 20_000, 12), run)
        rows: list[Row] = [(None, bytes(int(size)), 0, []) for size in sizes]
        assert rows_of(decode_batch(encoded(batch_of(rows))).records) == rows


def test_a_few_records_with_very_many_headers() -> None:
    """Headers are found in lockstep and one by one, in their order, at no quadratic price."""
    many = [(f"h{n}", b"%d" % n if n % 3 else None) for n in range(20_000)]
    for wide in (1, 31, 32, 40):
        rows: list[Row] = [
            (b"k", b"v", 0, many[: 2000 if number % 2 else 3]) for number in range(wide)
        ]
        rows.append((None, None, 1, []))
        rows.append((None, None, 1, many))
        assert rows_of(decode_batch(encoded(batch_of(rows))).records) == rows


def test_columns_that_are_not_there_are_null() -> None:
    """Key, value and headers may be left out; what Kafka has no place for is refused."""
    records = numbered(3)
    alone = decode_batch(encoded(records.select(["timestamp"]))).records
    assert alone.column("key").null_count == alone.column("value").null_count == 3
    for bad in (
        records.append_column("price", pa.array([1, 2, 3])),
        records.append_column("key", records.column("key")),
        records.set_column(0, "key", pa.array(["a", "b", "c"])),
    ):
        with pytest.raises(UnsupportedRecordFormat, match="column"):
            encoded(bad)


def test_null_lists_and_null_header_keys() -> None:
    """A null list of headers is an empty one; a header without a key is refused."""
    kind = numbered(1).schema.field("headers").type
    two = numbered(2)
    nulls = two.set_column(3, "headers", pa.array([None, [{"key": "h", "value": b"x"}]], kind))
    headers = decode_batch(encoded(nulls)).records.column("headers").to_pylist()
    assert headers == [[], [{"key": "h", "value": b"x"}]]
    bad = two.set_column(3, "headers", pa.array([[], [{"key": None, "value": b"x"}]], kind))
    with pytest.raises(UnsupportedRecordFormat, match="key is null"):
        encoded(bad)


def test_projection_returns_the_columns_asked_for() -> None:
    """Columns come in the order asked for; none at all is possible; unknown is an error."""
    records = random_records(50, seed=3)
    data = encoded(records, compression=Compression.SNAPPY)
    for columns in (["value"], ["timestamp", "key"], ["headers"], ["key", "headers", "value"]):
        decoded = decode_batch(data, columns=columns).records
        assert decoded.schema.names == columns
        assert decoded.equals(records.select(columns))
    assert decode_batch(data, columns=[]).header.record_count == 50
    with pytest.raises(UnsupportedRecordFormat, match=r"x\.log at byte 3.*'price'"):
        decode_batch(data, name="x.log", position=3, columns=["price"])


def test_columns_own_their_bytes() -> None:
    """One small column of a batch does not keep the whole batch in memory."""
    records = decode_batch(encoded(numbered(1000, value_bytes=1000)), columns=["key"]).records
    assert records.column("key").get_total_buffer_size() < 20_000


def test_offsets_with_gaps() -> None:
    """Compacted offsets round-trip; the last record may be gone too, as Kafka leaves it."""
    deltas = np.array([0, 3, 4], dtype=np.int32)
    decoded = decode_batch(encoded(numbered(3), base_offset=10, offset_deltas=deltas))
    assert decoded.offset_deltas is not None
    assert decoded.offset_deltas.dtype == np.int32
    assert decoded.offset_deltas.tolist() == [0, 3, 4]
    assert decoded.header.last_offset == 14
    payload = record(offset_delta=1) + record(offset_delta=5)
    compacted = decode_batch(batch(payload, 2, last_offset_delta=9, base_offset=100))
    assert compacted.offset_deltas is not None
    assert compacted.offset_deltas.tolist() == [1, 5]
    assert compacted.header.last_offset == 109


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_batch_that_compaction_has_emptied(codec: int) -> None:
    """61 bytes without records keep their offsets and sequence and hold nothing."""
    data = batch(b"", 0, last_offset_delta=6, base_offset=40, base_sequence=9, attributes=codec)
    assert len(data) == 61
    decoded = decode_batch(data)
    assert decoded.records.num_rows == 0
    assert decoded.records.schema.names == ["key", "value", "timestamp", "headers"]
    assert decoded.offset_deltas is not None
    assert decoded.header.last_offset == 46
    assert decoded.header.last_sequence == 15


def test_log_append_time() -> None:
    """With bit 3 every record has the max timestamp, whatever its own says."""
    payload = record(timestamp_delta=5) + record(timestamp_delta=-7, offset_delta=1)
    decoded = decode_batch(batch(payload, 2, attributes=8, max_timestamp=9999))
    assert [row[2] for row in rows_of(decoded.records)] == [9999, 9999]
    assert decoded.header.is_log_append_time
    same: list[Row] = [(b"", b"", 5, []), (b"", b"", 5, [])]
    again = decode_batch(encoded(batch_of(same), log_append_time=True))
    assert again.header.is_log_append_time
    assert rows_of(again.records) == same
    with pytest.raises(ValueError, match="log append time"):
        encoded(batch_of([(b"", b"", 5, []), (b"", b"", 6, [])]), log_append_time=True)


def test_delete_horizon() -> None:
    """With bit 6 the base timestamp is the horizon, and deltas still count from it."""
    rows: list[Row] = [(b"a", None, 700, []), (b"b", None, 900, [])]
    data = encoded(batch_of(rows), delete_horizon_ms=1_000_000)
    decoded = decode_batch(data)
    assert decoded.header.attributes & DELETE_HORIZON
    assert decoded.header.base_timestamp_ms == 1_000_000
    assert rows_of(decoded.records) == rows
    assert raw_records(data[61:])[0].timestamp_delta == 700 - 1_000_000


def test_record_attributes_say_nothing() -> None:
    """The attributes of a record are not used yet; a reader takes any, as Kafka does."""
    assert decode_batch(batch(record(attributes=0xFF), 1)).records.num_rows == 1


def test_padded_varints_are_read() -> None:
    """A varint with bytes that add nothing is read, as Kafka reads it."""
    from tests.support.segments.rows_layout import varint

    body = bytes([0]) + varint(3, padded_to=10) + varint(0, padded_to=5)
    body += varint(1, padded_to=5) + b"k" + varint(-1, padded_to=5) + varint(0, padded_to=2)
    decoded = decode_batch(batch(varint(len(body), padded_to=5) + body, 1))
    assert rows_of(decoded.records) == [(b"k", None, 1003, [])]


@pytest.mark.parametrize("commit", [False, True])
def test_control_batches_are_no_data(commit: bool) -> None:
    """A marker is 78 bytes, is read as what it says, and is not a record in any column."""
    data = encode_marker(
        commit=commit,
        offset=77,
        timestamp_ms=5,
        producer_id=9,
        producer_epoch=2,
        coordinator_epoch=4,
    )
    assert len(data) == 78
    (raw,) = raw_records(data[61:])
    assert raw.key == struct.pack(">hh", 0, commit)
    assert raw.value == struct.pack(">hi", 0, 4)
    assert HEADER.unpack_from(data)[5:] == (0x30, 0, 5, 5, 9, 2, -1, 1)
    for columns in (None, [], ["value"]):
        decoded = decode_batch(data, columns=columns)
        assert decoded.header.is_control
        assert decoded.header.is_transactional
        assert decoded.records.num_rows == 0
        assert decoded.markers == (ControlMarker(77, 5, COMMIT if commit else ABORT, 4),)


def test_other_control_records() -> None:
    """Control records of later versions and kinds are shown with their type, and skipped."""
    payload = record(struct.pack(">hhh", 1, 2, 0), b"") + record(
        struct.pack(">hh", 0, 1), struct.pack(">hib", 1, 8, 0), offset_delta=2
    )
    decoded = decode_batch(batch(payload, 2, attributes=0x20, last_offset_delta=2, base_offset=5))
    assert decoded.markers == (ControlMarker(5, 1000, 2, None), ControlMarker(7, 1000, COMMIT, 8))


def test_bytes_like_inputs() -> None:
    """Bytes, bytearray, memoryview and Arrow's buffers are all read, with bytes behind."""
    for codec in CODECS:
        data = encoded(numbered(3), compression=codec) + b"next"
        for view in (bytearray(data), memoryview(data), memoryview(pa.py_buffer(data))):
            assert decode_batch(view).records.equals(numbered(3))


def test_what_does_not_fit_into_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch beyond the 32-bit length is refused before its bytes are laid out."""
    from txnlog.segments.formats import rows

    monkeypatch.setattr(rows, "MAX_PAYLOAD_BYTES", 10_000)
    for codec in (Compression.NONE, Compression.ZSTD):
        assert encoded(numbered(100), compression=codec)
        with pytest.raises(RecordTooLarge, match="smaller batches"):
            encoded(numbered(1_000), compression=codec)
    records = numbered(10, value_bytes=1_000)
    with pytest.raises(RecordTooLarge, match="smaller batches"):
        encoded(records)


def test_attributes_are_for_rows() -> None:
    """Columns have no attributes besides the codec, in writing and in reading."""
    attributes: list[dict[str, Any]] = [
        {"transactional": True},
        {"log_append_time": True},
        {"delete_horizon_ms": 5},
    ]
    for named in attributes:
        with pytest.raises(ValueError, match=r"record\.format=kafka"):
            encode_batch(numbered(1), **named)
    for bits in (b"\0\x08", b"\0\x13", b"\0\x23", b"\0\x43", b"\1\3"):
        with pytest.raises(CorruptRecord, match="attributes"):
            decode_batch(resealed(encode_batch(numbered(1)), {21: bits}))
