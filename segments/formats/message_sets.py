"""Kafka's message sets of before 0.11 (magic 0 and 1), from and to Arrow.

They are read, and written for old consumers elsewhere; txnlog's own segments never hold them.

A message: offset int64, size int32, then CRC-32 of all that follows, magic int8, attributes int8,
in v1 timestamp int64, then key and value (length int32, -1 for null, and bytes). A compressed set
is one message whose value holds the messages; the wrapper's offset is the last one's. Inner offsets
are absolute in v0 and relative in v1. There are no headers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
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
from txnlog.segments.batch_header import (
    CODEC_BITS,
    LOG_APPEND_TIME,
    MAGIC_POSITION,
    MAGIC_V0,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    BytesLike,
    Compression,
)
from txnlog.segments.errors import (
    CorruptRecord,
    RecordTooLarge,
    UnknownCodec,
    UnsupportedCompression,
)
from txnlog.segments.formats.codecs import check_uncompressed, compress, decompress
from txnlog.segments.formats.varints import UInt8Array
from txnlog.segments.records import (
    TIMESTAMP_TYPE,
    DecodedRecords,
    Int32Array,
    Int64Array,
    choose_columns,
    decode_wanted,
    empty_headers,
    timestamps_ms,
)

NO_TIMESTAMP_MS: Final = -1

_LOG_OVERHEAD = 12  # offset and size
_CRC = slice(12, 16)
_ATTRIBUTES = 17
_TIMESTAMP = 18
_KEY = (18, 26)  # where the key's length is, in v0 and v1
_LEAST_BYTES = (26, 34)  # a message with null or empty key and value
_MAX_BYTES = (1 << 31) - 1
_RUN = struct.Struct(">qiI")  # offset, size, CRC
_ROW_BYTES = 96  # the size of one message's array entries besides its bytes


def decode_legacy_header(data: memoryview, name: str, position: int) -> BatchHeader:
    """The header of the message at the start of ``data``, as that of a batch of one record.

    Of a compressed one only the last offset and the timestamp are known before it is decoded.
    Raises CorruptRecord.
    """
    magic = data[MAGIC_POSITION]
    if len(data) < _LEAST_BYTES[magic]:
        reason = f"{len(data)} bytes are left, a message takes {_LEAST_BYTES[magic]}"
        raise CorruptRecord.at(name, position, reason)
    offset, size = _to_int(data[:8]), _to_int(data[8:12])
    attributes = data[_ATTRIBUTES]
    if size < _LEAST_BYTES[magic] - _LOG_OVERHEAD:
        raise CorruptRecord.at(name, position, f"length {size} is shorter than a message")
    if offset < 0:
        raise CorruptRecord.at(name, position, f"base offset {offset} is negative")
    if attributes & ~(CODEC_BITS if magic == MAGIC_V0 else CODEC_BITS | LOG_APPEND_TIME):
        reason = f"attributes {attributes:#04x} are not known with magic {magic}"
        raise CorruptRecord.at(name, position, reason, offset)
    time = NO_TIMESTAMP_MS if magic == MAGIC_V0 else _to_int(data[_TIMESTAMP : _TIMESTAMP + 8])
    return BatchHeader(
        base_offset=offset,
        length=size,
        leader_epoch=NO_LEADER_EPOCH,
        magic=magic,
        crc=int.from_bytes(data[_CRC], "big"),
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp_ms=time,
        max_timestamp_ms=time,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )


def message_run(header: BatchHeader, data: memoryview) -> BatchHeader:
    """One header for the uncompressed message of ``header`` and the sound ones after it.

    Decoded one by one each would cost as much as a whole batch. ``data`` begins with the first
    message; only whole messages count. The first one that is damaged, or of another kind, is left
    for the next batch. The header's CRC is that of the whole run.
    """
    kind = bytes(data[MAGIC_POSITION : _ATTRIBUTES + 1])
    least = _LEAST_BYTES[header.magic]
    stop = header.size_bytes
    last_offset, max_ms, count = header.base_offset, header.max_timestamp_ms, 1
    if legacy_checksum(data[:stop]) != header.crc:
        return header
    while (
        len(data) - stop >= least and data[stop + MAGIC_POSITION : stop + _ATTRIBUTES + 1] == kind
    ):
        offset, size, crc = _RUN.unpack_from(data, stop)
        end = stop + _LOG_OVERHEAD + size
        if (
            end - stop < least
            or end > len(data)
            or not last_offset < offset <= _MAX_BYTES + header.base_offset
        ):
            break
        if zlib.crc32(data[stop + MAGIC_POSITION : end]) != crc:
            break
        if header.magic != MAGIC_V0:
            max_ms = max(max_ms, _to_int(data[stop + _TIMESTAMP : stop + _TIMESTAMP + 8]))
        last_offset, stop, count = offset, end, count + 1
    return replace(
        header,
        length=stop - _LOG_OVERHEAD,
        crc=legacy_checksum(data[:stop]),
        last_offset_delta=last_offset - header.base_offset,
        max_timestamp_ms=max_ms,
        record_count=count,
    )


def legacy_checksum(message: memoryview) -> int:
    """CRC-32 of a whole message, which is everything from the magic on."""
    return zlib.crc32(message[MAGIC_POSITION:])


def decode_message_set(
    header: BatchHeader,
    message: memoryview,
    columns: Sequence[str] | None,
    max_uncompressed_bytes: int,
) -> tuple[BatchHeader, DecodedRecords]:
    """The records of a message, or of all that it wraps, and their header.

    Any failure but an unknown name in ``columns`` (UnsupportedRecordFormat) or an unknown codec
    means damage, whatever its class.
    """
    wanted = choose_columns(columns)
    codec = header.codec
    data: BytesLike = message
    if codec is not Compression.NONE:
        data = _unwrap(header, message, codec, max_uncompressed_bytes)
    starts, offsets = _locate_messages(header, data, is_inner=data is not message)
    check_uncompressed(len(data) + len(starts) * _ROW_BYTES, max_uncompressed_bytes)
    if data is not message:
        offsets = _make_absolute(header, offsets)
    records, times = _decode_fields(header, data, starts, wanted)
    header = _correct_header(header, offsets, times)
    dense = header.last_offset_delta == header.record_count - 1
    deltas = None if dense else (offsets - offsets[0]).astype(np.int32)
    return header, DecodedRecords(records, deltas)


def encode_message_set(
    records: pa.RecordBatch,
    magic: int,
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    base_offset: int = 0,
    offset_deltas: Int32Array | None = None,
) -> bytes:
    """Records of RECORD_SCHEMA as messages of ``magic`` 0 or 1; compressed, as one that wraps them.

    Headers are left out, and in v0 timestamps too, because these formats have no place for them.
    Raises UnsupportedCompression for zstd, which is younger than both, and RecordTooLarge.
    """
    if records.num_rows == 0 or magic not in {0, 1}:
        raise ValueError("a message set has at least one record and magic 0 or 1")
    if compression is Compression.ZSTD:
        raise UnsupportedCompression(f"messages of magic {magic} cannot carry zstd: use lz4")
    deltas = np.arange(records.num_rows, dtype=np.int64)
    if offset_deltas is not None:
        deltas = offset_deltas.astype(np.int64)
    offsets = deltas + base_offset
    times = timestamps_ms(records)
    keys, values = records.column("key"), records.column("value")
    if compression is Compression.NONE:
        return bytes(_encode_messages(magic, 0, offsets, times, keys, values))
    inner = _encode_messages(
        magic, 0, offsets if magic == MAGIC_V0 else deltas, times, keys, values
    )
    wrapped = compress(compression, inner, level)
    if magic == MAGIC_V0 and compression is Compression.LZ4:
        wrapped = with_v0_checksum(wrapped)
    return bytes(
        _encode_messages(
            magic,
            int(compression),
            offsets[-1:],
            np.array([times.max()], dtype=np.int64),
            pa.nulls(1, pa.binary()),
            pa.array([wrapped], pa.binary()),
        )
    )


def _unwrap(
    header: BatchHeader, message: memoryview, codec: Compression, max_bytes: int
) -> BytesLike:
    if codec is Compression.ZSTD:
        raise UnknownCodec(f"messages of magic {header.magic} cannot carry zstd")
    at = _KEY[header.magic]
    key_bytes = _to_int(message[at : at + 4])
    at += 4 + max(key_bytes, 0)
    value_bytes = _to_int(message[at : at + 4])
    at += 4
    if key_bytes < NULL_LENGTH or value_bytes < 0 or at + value_bytes != len(message):
        raise ValueError("the key and value of a wrapper do not fill it")
    value = message[at:]
    if header.magic == MAGIC_V0 and codec is Compression.LZ4:
        value = memoryview(with_standard_checksum(value))
    return decompress(codec, value, min(max_bytes, _MAX_BYTES))


def _locate_messages(
    header: BatchHeader, data: BytesLike, *, is_inner: bool
) -> tuple[Int64Array, Int64Array]:
    """The starts of the messages in ``data``, and their offsets as stored; all verified."""
    view = memoryview(data)
    least = _LEAST_BYTES[header.magic]
    starts, offsets, at = [], [], 0
    while at < len(view):
        if len(view) - at < least:
            raise ValueError(f"{len(view) - at} bytes follow the last message")
        stop = at + _LOG_OVERHEAD + _to_int(view[at + 8 : at + 12])
        if stop - at < least or stop > len(view):
            raise ValueError("a message is shorter than its fields or longer than its set")
        if view[at + MAGIC_POSITION] != header.magic:
            raise ValueError("the magic of a message differs from its wrapper's")
        if is_inner:
            if view[at + _ATTRIBUTES] & CODEC_BITS:
                raise ValueError("a compressed message wraps another one")
            crc = int.from_bytes(view[at + 12 : at + 16], "big")
            if legacy_checksum(view[at:stop]) != crc:
                raise ValueError("the CRC-32 of a message inside is wrong")
        starts.append(at)
        offsets.append(_to_int(view[at : at + 8]))
        at = stop
    if not starts:
        raise ValueError("a compressed message wraps nothing")
    return np.array([*starts, at], dtype=np.int64), np.array(offsets, dtype=np.int64)


def _make_absolute(header: BatchHeader, offsets: Int64Array) -> Int64Array:
    if offsets[0] < 0 or not bool(np.all(offsets[1:] > offsets[:-1])):
        raise ValueError("offsets of the messages inside do not ascend")
    last = header.last_offset
    # Producers leave the wrapper's offset at 0, and old brokers kept it: then it means nothing.
    if last == 0 or last == offsets[-1]:
        return offsets
    if header.magic == MAGIC_V0 or last < offsets[-1]:
        raise ValueError(
            f"the wrapper's offset {last} disagrees with the last one inside, {int(offsets[-1])}"
        )
    absolute: Int64Array = offsets + (last - int(offsets[-1]))
    return absolute


def _decode_fields(
    header: BatchHeader, data: BytesLike, bounds: Int64Array, wanted: Sequence[str]
) -> tuple[pa.RecordBatch, Int64Array]:
    block, buffer = np.frombuffer(data, dtype=np.uint8), pa.py_buffer(data)
    starts, stops = bounds[:-1], bounds[1:]
    at = starts + _KEY[header.magic]
    key_lengths = _read_integers(block, at, ">i4")
    keys = at + 4
    at = keys + np.maximum(key_lengths, 0)
    if int(key_lengths.min()) < NULL_LENGTH or bool(np.any(at + 4 > stops)):
        raise ValueError("a key reaches beyond its message")
    sizes = _read_integers(block, at, ">i4")
    values = at + 4
    if int(sizes.min()) < NULL_LENGTH or bool(np.any(values + np.maximum(sizes, 0) != stops)):
        raise ValueError("a value does not end with its message")
    times = np.full(len(starts), header.max_timestamp_ms, dtype=np.int64)
    if header.magic != MAGIC_V0 and not (header.is_log_append_time and header.is_message_set):
        times = _read_integers(block, starts + _TIMESTAMP, ">i8")
    decoders = {
        "key": lambda: cut(buffer, keys, key_lengths),
        "value": lambda: cut(buffer, values, sizes),
        "timestamp": lambda: pa.array(times).view(TIMESTAMP_TYPE),
        "headers": lambda: empty_headers(len(starts)),
    }
    return decode_wanted(wanted, decoders), times


def _correct_header(header: BatchHeader, offsets: Int64Array, times: Int64Array) -> BatchHeader:
    span = int(offsets[-1]) - int(offsets[0])
    if span > _MAX_BYTES:
        raise ValueError(f"the messages inside span {span} offsets")
    return replace(
        header,
        base_offset=int(offsets[0]),
        last_offset_delta=span,
        base_timestamp_ms=int(times[0]),
        max_timestamp_ms=int(times.max()),
        record_count=len(offsets),
    )


def _encode_messages(
    magic: int,
    attributes: int,
    offsets: Int64Array,
    times: Int64Array,
    keys: pa.Array,
    values: pa.Array,
) -> bytearray:
    """The messages one after the other, with their checksums."""
    count = len(offsets)
    key_lengths, sizes = value_lengths(keys), value_lengths(values)
    lengths = np.maximum(key_lengths, 0) + np.maximum(sizes, 0) + _LEAST_BYTES[magic]
    if int(lengths.sum()) > _MAX_BYTES:
        raise RecordTooLarge("records do not fit into one message set: make smaller batches")
    fields = [("offset", ">i8"), ("size", ">i4"), ("crc", ">u4"), ("magic", "i1"), ("bits", "i1")]
    if magic != MAGIC_V0:
        fields.append(("timestamp", ">i8"))
    heads = np.zeros(count, dtype=np.dtype([*fields, ("key", ">i4")]))
    heads["offset"], heads["size"] = offsets, lengths - _LOG_OVERHEAD
    heads["magic"], heads["bits"], heads["key"] = magic, attributes, key_lengths
    if magic != MAGIC_V0:
        heads["timestamp"] = times
    parts = [_fixed_width_array(heads), keys, _fixed_width_array(sizes.astype(">i4")), values]
    data = bytearray(all_bytes(interleave(parts, count)))
    view = memoryview(data)
    stops = np.cumsum(lengths)
    for start, stop in zip((stops - lengths).tolist(), stops.tolist(), strict=True):
        view[start + 12 : start + 16] = legacy_checksum(view[start:stop]).to_bytes(4, "big")
    view.release()
    return data


def _fixed_width_array(rows: np.ndarray) -> pa.Array:
    sizes = np.full(len(rows), rows.dtype.itemsize, dtype=np.int64)
    return rows_of_bytes(rows.view(np.uint8).reshape(-1), sizes)


def _read_integers(data: UInt8Array, at: Int64Array, kind: str) -> Int64Array:
    """Big-endian integers at any positions, all of them inside ``data``."""
    width = np.dtype(kind).itemsize
    cells = np.ascontiguousarray(data.take(at[:, None] + np.arange(width)))
    return cells.view(kind).reshape(-1).astype(np.int64)


def _to_int(data: BytesLike) -> int:
    return int.from_bytes(data, "big", signed=True)


# -- the header checksum of LZ4 frames -----------------------------------------------------------
# A frame's header ends with a checksum of its descriptor: the second byte of its xxHash32. Clients
# of message format v0 hash the frame's magic number too, and accept nothing else (KIP-57). From v1
# on the checksum is the one of LZ4's specification.

_PRIME_1: Final = 0x9E3779B1
_PRIME_2: Final = 0x85EBCA77
_PRIME_3: Final = 0xC2B2AE3D
_PRIME_4: Final = 0x27D4EB2F
_PRIME_5: Final = 0x165667B1
_MASK: Final = 0xFFFFFFFF

_MAGIC_BYTES = 4
_CONTENT_SIZE = 0x08
_DICTIONARY = 0x01


def with_standard_checksum(frame: BytesLike) -> bytes:
    """The frame with LZ4's own checksum, as every library reads it.

    The checksum that it had is ignored, as in Kafka. Raises ValueError if it is too short.
    """
    return _replace_checksum(bytes(frame), _MAGIC_BYTES)


def with_v0_checksum(frame: BytesLike) -> bytes:
    """The frame with the checksum that clients of message format v0 expect."""
    return _replace_checksum(bytes(frame), 0)


def _replace_checksum(frame: bytes, hashed_from: int) -> bytes:
    if len(frame) < _MAGIC_BYTES + 3:
        raise ValueError(f"an lz4 frame of {len(frame)} bytes has no header")
    flags = frame[_MAGIC_BYTES]
    at = _MAGIC_BYTES + 2 + 8 * bool(flags & _CONTENT_SIZE) + 4 * bool(flags & _DICTIONARY)
    checksum = (xxh32(frame[hashed_from:at]) >> 8) & 0xFF
    return frame[:at] + bytes([checksum]) + frame[at + 1 :]


def xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes, which is all that a frame's header can be."""
    if len(data) >= 16:
        raise ValueError("only the short form of xxHash32 is implemented")
    value = (_PRIME_5 + len(data)) & _MASK
    words = len(data) // 4 * 4
    for at in range(0, words, 4):
        value = (value + int.from_bytes(data[at : at + 4], "little") * _PRIME_3) & _MASK
        value = (_rotate(value, 17) * _PRIME_4) & _MASK
    for byte in data[words:]:
        value = (value + byte * _PRIME_5) & _MASK
        value = (_rotate(value, 11) * _PRIME_1) & _MASK
    value = ((value ^ (value >> 15)) * _PRIME_2) & _MASK
    value = ((value ^ (value >> 13)) * _PRIME_3) & _MASK
    return value ^ (value >> 16)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
