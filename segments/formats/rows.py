"""The ``rows`` payload (magic 2): Kafka's own record format, byte for byte, from and to Arrow.

One record: length varint, attributes int8, timestamp delta varlong, offset delta varint, key
(length varint, -1 for null, and bytes), value likewise, headers (count varint, then keys and
values likewise). The records follow each other and are compressed as one block.

Only one thing is done record by record: where a record starts is known only from the length of the
one before, and even there records of one size are taken together. All fields are read and written
for a whole block of records at once. Headers of all records are found in lockstep: the first ones
of all records, then the second ones. The few records with many more headers than the rest are
finished one by one, so that time is in proportion to the headers whatever their distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from txnlog.segments.arrays import (
    NULL_LENGTH,
    all_bytes,
    cut,
    interleave,
    rows_of_bytes,
    value_lengths,
)
from txnlog.segments.batch_header import BatchHeader, BytesLike, Compression
from txnlog.segments.errors import RecordTooLarge, UnsupportedRecordFormat
from txnlog.segments.formats.codecs import check_uncompressed, compress, decompress
from txnlog.segments.formats.varints import (
    VARLONG_BITS,
    UInt8Array,
    read_varint,
    read_varints,
    varint_sizes,
    write_varints,
)
from txnlog.segments.records import (
    RECORD_SCHEMA,
    TIMESTAMP_TYPE,
    DecodedRecords,
    Int32Array,
    Int64Array,
    choose_columns,
    concat_batches,
    decode_wanted,
    empty_headers,
    schema_of,
    timestamps_ms,
)

_LEAST_LOCKSTEP_ROWS: Final = 32  # below this a Python loop is as fast as a numpy step
_LEAST_HEADER_BYTES: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class HeaderPlaces:
    """Positions of headers: ``counts`` and ``ends`` for each record, the rest for each header."""

    counts: Int64Array
    ends: Int64Array
    key_starts: Int64Array
    key_lengths: Int64Array
    value_starts: Int64Array
    value_lengths: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class EncodedHeaders:
    """``block``: binary, count and headers of each record (or one for all); ``sizes`` in bytes."""

    block: pa.Array
    sizes: Int64Array


def locate_headers(
    data: UInt8Array, at: Int64Array, counts: Int64Array, limits: Int64Array
) -> HeaderPlaces:
    """Find the headers that start at ``at``, ``counts`` of them in each record.

    Raises ValueError if they cannot lie before ``limits``, the ends of the records.
    """
    if int(counts.min()) < 0:
        raise ValueError(f"a record has {int(counts.min())} headers")
    nothing = np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(counts)
    if len(rows) == 0:
        return HeaderPlaces(counts, at, nothing, nothing, nothing, nothing)
    if bool(np.any(counts * _LEAST_HEADER_BYTES > limits - at)):
        raise ValueError("a record has more headers than bytes")
    ends = at.copy()
    positions, left = at[rows], counts[rows]
    found: list[tuple[Int64Array, ...]] = []
    while len(rows) >= _LEAST_LOCKSTEP_ROWS:
        key_lengths, key_starts = read_varints(data, positions)
        value_lengths_, value_starts = read_varints(data, key_starts + key_lengths)
        positions = value_starts + np.maximum(value_lengths_, 0)
        _check_lengths(int(key_lengths.min()), int(value_lengths_.min()))
        found.append((rows, key_starts, key_lengths, value_starts, value_lengths_))
        left = left - 1
        ends[rows] = positions
        more = left > 0
        rows, positions, left = rows[more], positions[more], left[more]
    if len(rows):
        found.append(_one_by_one(data.data, rows, positions, left, ends))
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return HeaderPlaces(counts, ends, *(column[order] for column in columns[1:]))


def decode_headers(block: pa.Buffer, places: HeaderPlaces) -> pa.Array:
    """The headers as a column of HEADERS_TYPE. Raises ArrowInvalid for keys that are not UTF-8."""
    if len(places.key_starts) == 0:
        return empty_headers(len(places.counts))
    keys = cut(block, places.key_starts, places.key_lengths).cast(pa.string())
    values = cut(block, places.value_starts, places.value_lengths)
    offsets = np.zeros(len(places.counts) + 1, dtype=np.int32)
    np.cumsum(places.counts, out=offsets[1:])
    items = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), items)


def encode_headers(column: pa.Array) -> EncodedHeaders:
    """The end of each record: the count of headers and the headers.

    Raises UnsupportedRecordFormat for a header whose key is null.
    """
    offsets = column.offsets.to_numpy().astype(np.int64)
    counts = np.diff(offsets)
    if column.null_count:
        counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
    items = column.flatten()  # of exactly this slice, without elements hidden by null lists
    if len(items) == 0:
        return EncodedHeaders(pa.array([b"\0"], pa.binary()), np.ones(len(column), dtype=np.int64))
    keys, values = items.field("key"), items.field("value")
    if items.null_count or keys.null_count:
        raise UnsupportedRecordFormat("column 'headers' has a header whose key is null")
    key_sizes, value_sizes = value_lengths(keys), value_lengths(values)
    parts = [
        rows_of_bytes(*write_varints([key_sizes])),
        keys.view(pa.binary()),
        rows_of_bytes(*write_varints([value_sizes])),
        values,
    ]
    bodies = all_bytes(interleave(parts, len(items)))
    ends = np.zeros(len(items) + 1, dtype=np.int64)
    np.cumsum(
        varint_sizes(key_sizes)
        + key_sizes
        + varint_sizes(value_sizes)
        + np.maximum(value_sizes, 0),
        out=ends[1:],
    )
    stops = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=stops[1:])
    body_sizes = np.diff(ends[stops])
    rows = rows_of_bytes(np.frombuffer(bodies, dtype=np.uint8), body_sizes)
    block = interleave([rows_of_bytes(*write_varints([counts])), rows], len(counts))
    sizes = varint_sizes(counts) + body_sizes
    return EncodedHeaders(rows_of_bytes(np.frombuffer(all_bytes(block), np.uint8), sizes), sizes)


def _check_lengths(key_length: int, value_length: int) -> None:
    if key_length < 0 or value_length < NULL_LENGTH:
        raise ValueError(f"a header has lengths {key_length} and {value_length}")


def _one_by_one(
    data: memoryview, rows: Int64Array, positions: Int64Array, left: Int64Array, ends: Int64Array
) -> tuple[Int64Array, ...]:
    """The rest of the headers of these records, row by row; ``ends`` is filled in for them."""
    found: list[tuple[int, int, int, int, int]] = []
    for row, position, count in zip(rows.tolist(), positions.tolist(), left.tolist(), strict=True):
        for _ in range(count):
            key_length, key_start = read_varint(data, position)
            value_length, value_start = read_varint(data, key_start + max(key_length, 0))
            _check_lengths(key_length, value_length)
            found.append((row, key_start, key_length, value_start, value_length))
            position = value_start + max(value_length, 0)
        ends[row] = position
    return tuple(np.array(found, dtype=np.int64).T)


# Records that are processed at once: enough to make numpy's calls cheap, few enough to stay in the
# processor's cache and to bound the memory besides the records themselves.
BLOCK_ROWS: Final = 1 << 14

MAX_PAYLOAD_BYTES: Final = (1 << 31) - 1 - 61
LEAST_RECORD_BYTES: Final = 7  # seven fields of one byte each
# What the arrays of one record take besides the bytes of its values.
_ROW_BYTES = 40

# How many records are followed one by one before looking for repeated sizes again.
_SINGLE_STEPS: Final = 256


class _RecordStarts:
    """Finds where records start; ``position`` is where the next one's length varint does.

    Follows the chain of length varints. Records of one size are found together, by comparing all
    their length bytes at once; only when sizes change is a record handled by itself.
    """

    def __init__(self, data: BytesLike, array: UInt8Array) -> None:
        self._data = bytes(data)  # indexing bytes is a third faster than a memoryview
        self._array = array
        self.position = 0

    def next(self, count: int) -> tuple[Int64Array, Int64Array]:
        """The starts, after the length, and ends of the fields of the next ``count`` records.

        Raises ValueError if they do not all lie in the payload.
        """
        found: list[Int64Array] = []
        left = count
        while left:
            singles = self._follow(min(left, _SINGLE_STEPS))
            found.append(singles)
            left -= len(singles)
            size = self.position - int(singles[-1])
            if left and len(singles) > 1 and singles[-1] - singles[-2] == size:
                same = self._find_repeats(size, left)
                found.append(same)
                left -= len(same)
        starts = np.concatenate(found)
        lengths, fields = read_varints(self._array, starts)
        ends = fields + lengths
        if self.position > len(self._data):
            raise ValueError("a record reaches beyond the payload")
        return fields, ends

    def _follow(self, count: int) -> Int64Array:
        data, position, size_bytes = self._data, self.position, len(self._data)
        starts = []
        for _ in range(count):
            starts.append(position)
            if position >= size_bytes:
                raise ValueError("there are fewer records than the header counts")
            byte = data[position]
            if byte < 0x80:
                position += 1 + (byte >> 1)
            elif position + 1 < size_bytes and (high := data[position + 1]) < 0x80:
                position += 2 + ((high << 6) | ((byte & 0x7F) >> 1))
            else:
                length, behind = read_varint(data, position)
                position = behind + length
            if byte & 1:
                raise ValueError("the length of a record is negative")
        self.position = position
        return np.array(starts, dtype=np.int64)

    def _find_repeats(self, size: int, most: int) -> Int64Array:
        """Starts of the records from here on that have the same length bytes as the last one."""
        last = self.position - size
        most = max(min(most, (len(self._data) - self.position) // size), 0)
        _, behind = read_varint(self._data, last)
        for place in range(behind - last):
            first = self.position + place
            column = self._array[first : first + most * size : size][:most]
            differs = column != self._data[last + place]
            if len(column) and bool(differs.any()):
                most = int(differs.argmax())
            if most == 0:
                break
        starts = self.position + size * np.arange(most, dtype=np.int64)
        self.position += size * most
        return starts


def encode_rows(
    records: pa.RecordBatch,
    offset_deltas: Int32Array | None,
    *,
    base_timestamp_ms: int,
    compression: Compression,
    level: int | None,
) -> bytes:
    """The payload that holds ``records``; columns of RECORD_SCHEMA that they lack are null.

    Raises UnsupportedRecordFormat, UnsupportedCompression, and RecordTooLarge if they do not fit
    into a batch.
    """
    _check_storable(records)
    blocks: list[BytesLike] = []
    size_bytes = 0
    for start in range(0, records.num_rows, BLOCK_ROWS):
        block = records.slice(start, BLOCK_ROWS)
        stop = start + block.num_rows
        if offset_deltas is None:
            deltas = np.arange(start, stop, dtype=np.int64)
        else:
            deltas = offset_deltas[start:stop].astype(np.int64)
        blocks.append(_encode_block(block, deltas, base_timestamp_ms))
        size_bytes += len(blocks[-1])
        _check_size(size_bytes)
    payload = compress(compression, b"".join(blocks), level)
    _check_size(len(payload))
    return payload


def decode_rows(
    header: BatchHeader,
    payload: memoryview,
    columns: Sequence[str] | None,
    max_uncompressed_bytes: int,
) -> DecodedRecords:
    """The records of a payload (the bytes from 61 on), in columns that own their bytes.

    Any failure but an unknown name in ``columns`` (UnsupportedRecordFormat) or an unknown codec
    means damage, whatever its class.
    """
    wanted = choose_columns(columns)
    codec = header.codec if len(payload) else Compression.NONE  # empty after compaction
    data = decompress(codec, payload, min(max_uncompressed_bytes, MAX_PAYLOAD_BYTES))
    count = header.record_count
    if count * LEAST_RECORD_BYTES > len(data):
        raise ValueError(f"{count} records do not fit into {len(data)} bytes")
    check_uncompressed(len(data) + count * _ROW_BYTES, max_uncompressed_bytes)
    batches: list[pa.RecordBatch] = []
    offset_blocks: list[Int64Array] = []
    for batch, offsets in _decode_blocks(header, data, wanted):
        batches.append(batch)
        offset_blocks.append(offsets)
    records = _join(batches, wanted)
    deltas = np.concatenate(offset_blocks) if offset_blocks else np.empty(0, dtype=np.int64)
    if header.is_guarded and count and deltas[-1] != header.last_offset_delta:
        raise ValueError(
            f"last offset delta {header.last_offset_delta} disagrees with the records' {deltas[-1]}"
        )
    return DecodedRecords(records, _check_deltas(deltas, header.last_offset_delta))


def _join(batches: list[pa.RecordBatch], names: Sequence[str]) -> pa.RecordBatch:
    """One batch of all; with no batch, no rows of the columns of RECORD_SCHEMA with ``names``."""
    if not batches or not names:
        schema = schema_of(names)
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    return concat_batches(batches)


def _check_deltas(deltas: Int64Array, last_offset_delta: int) -> Int32Array | None:
    """Check offset deltas; None if they are dense. Raises ValueError.

    Kafka's compaction may remove the last record and leave last offset delta as it was; a record
    after it is impossible.
    """
    if len(deltas) and (deltas[0] < 0 or not bool(np.all(deltas[1:] > deltas[:-1]))):
        raise ValueError("offset deltas do not ascend")
    if len(deltas) and deltas[-1] > last_offset_delta:
        raise ValueError(
            f"last offset delta {last_offset_delta} disagrees with the records' {deltas[-1]}"
        )
    # Ascending numbers from 0 to last offset delta: if there are as many as possible, it is all of
    # them.
    return None if len(deltas) == last_offset_delta + 1 else deltas.astype(np.int32)


def _decode_blocks(
    header: BatchHeader, data: BytesLike, wanted: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Int64Array]]:
    buffer = pa.py_buffer(data)
    block = np.frombuffer(data, dtype=np.uint8)
    starts = _RecordStarts(data, block)
    left = header.record_count
    while left:
        at, ends = starts.next(min(left, BLOCK_ROWS))
        left -= len(at)
        yield _decode_block(header, buffer, block, at, ends, wanted)
    if starts.position != len(data):
        raise ValueError(f"{len(data) - starts.position} bytes follow the last record")


def _decode_block(
    header: BatchHeader,
    buffer: pa.Buffer,
    data: UInt8Array,
    at: Int64Array,
    ends: Int64Array,
    wanted: Sequence[str],
) -> tuple[pa.RecordBatch, Int64Array]:
    """The records whose fields lie in [at, ends): attributes to headers."""
    # The attributes byte has no meaning yet, and Kafka ignores it too. Positions are not checked
    # one by one: each is at least the one before, and the last one must be the record's end.
    timestamp_deltas, at = read_varints(data, at + 1, VARLONG_BITS)
    offset_deltas, at = read_varints(data, at)
    key_lengths, keys = read_varints(data, at)
    value_lengths_, values = read_varints(data, _ends("key", keys, key_lengths))
    header_counts, at = read_varints(data, _ends("value", values, value_lengths_))
    headers = locate_headers(data, at, header_counts, ends)
    if not np.array_equal(headers.ends, ends):
        row = int(np.flatnonzero(headers.ends != ends)[0])
        raise ValueError(
            f"the record with offset delta {int(offset_deltas[row])} claims to end at byte "
            f"{int(ends[row])} of the payload, its fields end at {int(headers.ends[row])}"
        )
    decoders = {
        "key": lambda: cut(buffer, keys, key_lengths),
        "value": lambda: cut(buffer, values, value_lengths_),
        "timestamp": lambda: _decode_timestamps(header, timestamp_deltas),
        "headers": lambda: decode_headers(buffer, headers),
    }
    return decode_wanted(wanted, decoders), offset_deltas


def _ends(what: str, starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """The ends of values with these lengths; a null has no bytes."""
    least = int(lengths.min())
    if least < NULL_LENGTH:
        raise ValueError(f"a {what} has the length {least}")
    return starts + lengths if least >= 0 else starts + np.maximum(lengths, 0)


def _decode_timestamps(header: BatchHeader, deltas: Int64Array) -> pa.Array:
    # With a delete horizon in its place the base timestamp is still what the deltas are added to.
    if header.is_log_append_time:
        values = np.full(len(deltas), header.max_timestamp_ms, dtype=np.int64)
    else:
        values = deltas + np.int64(header.base_timestamp_ms)
    return pa.Array.from_buffers(TIMESTAMP_TYPE, len(values), [None, pa.py_buffer(values)])


def _encode_block(records: pa.RecordBatch, deltas: Int64Array, base_ms: int) -> memoryview:
    count = records.num_rows
    keys, values = _binary_column(records, "key"), _binary_column(records, "value")
    key_lengths, value_sizes = value_lengths(keys), value_lengths(values)
    time_deltas = timestamps_ms(records) - np.int64(base_ms)
    index = records.schema.get_field_index("headers")
    headers = encode_headers(empty_headers(count) if index < 0 else records.column(index))
    sizes = (
        1
        + varint_sizes(time_deltas)
        + varint_sizes(deltas)
        + varint_sizes(key_lengths)
        + np.maximum(key_lengths, 0)
        + varint_sizes(value_sizes)
        + np.maximum(value_sizes, 0)
        + headers.sizes
    )
    _check_size(int(sizes.sum()) + 5 * count)
    attributes = np.zeros(count, dtype=np.int64)
    before_key = write_varints([sizes, attributes, time_deltas, deltas, key_lengths])
    before_value = write_varints([value_sizes])
    parts = [rows_of_bytes(*before_key), keys, rows_of_bytes(*before_value), values, headers.block]
    return all_bytes(interleave(parts, count))


def _binary_column(records: pa.RecordBatch, name: str) -> pa.Array:
    index = records.schema.get_field_index(name)
    return pa.nulls(records.num_rows, pa.binary()) if index < 0 else records.column(index)


def _check_storable(records: pa.RecordBatch) -> None:
    for field in records.schema:
        expected = RECORD_SCHEMA.names
        if field.name not in expected or field.type != RECORD_SCHEMA.field(field.name).type:
            raise UnsupportedRecordFormat(
                f"record.format=kafka cannot carry column {field.name!r} of type {field.type}; "
                f"its columns are those of RECORD_SCHEMA: {', '.join(expected)}"
            )
        if records.schema.names.count(field.name) > 1:
            raise UnsupportedRecordFormat(f"column {field.name!r} is there more than once")


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_PAYLOAD_BYTES:
        raise RecordTooLarge(
            f"records of {size_bytes} bytes do not fit into one of Kafka's batches, which end at "
            f"{MAX_PAYLOAD_BYTES} bytes: make smaller batches"
        )
