"""The ``packed`` payload (magic 102): columns of a few records, without Arrow's messages.

An Arrow stream's metadata takes 500 bytes and more, too much for a batch of two records. The
columns here are those of RECORD_SCHEMA, so they need no metadata.

One byte of flags tells which columns are present. Then come, for n records: timestamps (int64),
lengths of keys, lengths of values, numbers of headers (int16 each), for all their headers the
lengths of keys, then of values, and finally the bytes of these four columns. A length of -1 is
null. Little endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.segments.arrays import NULL_LENGTH, value_lengths
from txnlog.segments.batch_header import BatchHeader, BytesLike, Compression
from txnlog.segments.errors import UnsupportedCompression, UnsupportedRecordFormat
from txnlog.segments.formats.codecs import check_uncompressed, compress, decompress
from txnlog.segments.records import (
    HEADERS_TYPE,
    RECORD_SCHEMA,
    TIMESTAMP_TYPE,
    DecodedRecords,
    Int32Array,
    choose_columns,
    default_column,
    schema_of,
    timestamps_ms,
)

MAX_PAYLOAD_BYTES: Final = (1 << 15) - 1
"""Uncompressed: so every length fits into 16 bits, and no larger one can be claimed."""
MAX_PACKED_BYTES: Final = 8 << 10
"""Of records, as Arrow counts them: packing larger batches saves little."""

_CODECS: Final = (Compression.NONE, Compression.LZ4, Compression.ZSTD)
_KEYS, _VALUES, _TIMESTAMPS, _HEADERS = 1, 2, 4, 8
_FLAGS = _KEYS | _VALUES | _TIMESTAMPS | _HEADERS
_TIME: Final = np.dtype("<i8")
_LENGTH: Final = np.dtype("<i2")
# The memory of one row of all columns besides the bytes of its values.
_ROW_BYTES = 24


def can_pack(records: pa.RecordBatch) -> bool:
    """Whether records without offset gaps can be packed, and are few enough."""
    return bool(records.nbytes <= MAX_PACKED_BYTES and records.schema.equals(RECORD_SCHEMA))


def encode_packed(
    records: pa.RecordBatch,
    *,
    single_timestamp: bool,
    compression: Compression,
    level: int | None,
) -> tuple[bytes, Compression]:
    """The payload of records that ``can_pack`` accepts, and its codec: none if that is smaller.

    Raises UnsupportedCompression, and UnsupportedRecordFormat for a header without a key.
    """
    _check_codec(compression)
    keys, values, _, headers = records.columns
    flags, fixed, contents = 0, [b""], [b""]
    if not single_timestamp:
        flags |= _TIMESTAMPS
        fixed.append(timestamps_ms(records).astype(_TIME, copy=False).tobytes())
    for flag, column in ((_KEYS, keys), (_VALUES, values)):
        if column.null_count < len(column):
            flags |= flag
            fixed.append(_lengths(column))
            contents.append(_content(column))
    header_counts = np.maximum(value_lengths(headers), 0)  # null and no headers are the same
    if header_counts.any():
        flags |= _HEADERS
        items = headers.flatten()  # of exactly these records, without elements hidden by null lists
        names, bodies = items.field("key"), items.field("value")
        if items.null_count or names.null_count:
            raise UnsupportedRecordFormat("column 'headers' has a header whose key is null")
        fixed += (header_counts.astype(_LENGTH).tobytes(), _lengths(names), _lengths(bodies))
        contents += (_content(names), _content(bodies))
    payload = b"".join((bytes((flags,)), *fixed, *contents))
    compressed = compress(compression, payload, level)
    if len(compressed) < len(payload):
        return compressed, compression
    return payload, Compression.NONE


def decode_packed(
    header: BatchHeader,
    payload: memoryview,
    columns: Sequence[str] | None,
    max_uncompressed_bytes: int,
) -> DecodedRecords:
    """The records of a payload (the bytes from 64 on), in columns that refer to its bytes.

    Any failure but an unknown name in ``columns`` (UnsupportedRecordFormat) or an unknown codec
    means damage, whatever its class.
    """
    wanted = choose_columns(columns)
    _check_codec(header.codec)
    count = header.record_count
    if header.last_offset_delta != count - 1:
        raise ValueError(
            f"last offset delta {header.last_offset_delta} disagrees with {count} records"
        )
    data = decompress(header.codec, payload, min(max_uncompressed_bytes, MAX_PAYLOAD_BYTES))
    check_uncompressed(len(data) + count * _ROW_BYTES, max_uncompressed_bytes)
    packed = _Packed(header, data)
    arrays = []
    for name in wanted:
        array = packed.column(name)
        if array is None:
            array = default_column(name, header.base_timestamp_ms, count)
        arrays.append(array)
    schema = RECORD_SCHEMA if columns is None else schema_of(wanted)
    return DecodedRecords(pa.RecordBatch.from_arrays(arrays, schema=schema), None)


class _Place(NamedTuple):
    """The values of a column: where their bytes begin, and their offsets from there on."""

    start: int
    offsets: Int32Array
    valid: npt.NDArray[np.bool_] | None


class _Packed:
    """The position of each column in a payload. Raises ValueError if it is missing."""

    def __init__(self, header: BatchHeader, data: BytesLike) -> None:
        self._data = data
        self._at = 1
        flags = data[0] if len(data) else 0
        if flags & ~_FLAGS or not len(data):
            raise ValueError(f"{len(data)} bytes with the flags {flags:#04x} do not hold columns")
        count = header.record_count
        self._times = self._numbers(count, _TIME) if flags & _TIMESTAMPS else None
        if self._times is None and header.base_timestamp_ms != header.max_timestamp_ms:
            raise ValueError("timestamps differ but are left out")
        keys = self._numbers(count, _LENGTH) if flags & _KEYS else None
        values = self._numbers(count, _LENGTH) if flags & _VALUES else None
        header_counts = names = contents = None
        if flags & _HEADERS:
            header_counts = self._numbers(count, _LENGTH)
            total = int(header_counts.sum(dtype=np.int64))
            if total < 1 or header_counts.min() < 0:
                raise ValueError(f"the header counts add up to {total}, or one is negative")
            names = self._numbers(total, _LENGTH)
            contents = self._numbers(total, _LENGTH)
            if names.min() < 0:
                raise ValueError(f"the key of a header has the length {int(names.min())}")
        self._header_counts = header_counts
        self._places = {
            "key": self._place(keys),
            "value": self._place(values),
            "header keys": self._place(names),
            "header values": self._place(contents),
        }
        if self._at != len(data):
            raise ValueError(f"{self._at} bytes of columns are in a payload of {len(data)}")
        self._buffer = pa.py_buffer(data)

    def column(self, name: str) -> pa.Array | None:
        """One of RECORD_SCHEMA; None if it was left out."""
        if name == "timestamp":
            if self._times is None:
                return None
            times = self._times.astype(np.int64)  # a copy, because these are not aligned
            return pa.Array.from_buffers(TIMESTAMP_TYPE, len(times), [None, pa.py_buffer(times)])
        if name != "headers":
            return self._values(name, pa.binary())
        if self._header_counts is None:
            return None
        keys = self._values("header keys", pa.string())
        contents = self._values("header values", pa.binary())
        offsets = pa.py_buffer(_offsets(self._header_counts))
        items = pa.StructArray.from_arrays([keys, contents], fields=HEADERS_TYPE.value_type.fields)
        count = len(self._header_counts)
        headers = pa.Array.from_buffers(HEADERS_TYPE, count, [None, offsets], children=[items])
        headers.validate(full=True)  # keys may not be UTF-8
        return headers

    def _numbers(self, count: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        numbers = np.frombuffer(self._data, kind, count, self._at)
        self._at += numbers.nbytes
        return numbers

    def _place(self, lengths: npt.NDArray[np.int16] | None) -> _Place | None:
        """Values of these lengths, whose bytes come next."""
        if lengths is None:
            return None
        least, valid = int(lengths.min()), None
        if least < 0:
            if least < NULL_LENGTH:
                raise ValueError(f"a value has the length {least}")
            valid = lengths >= 0
            lengths = np.maximum(lengths, 0)
        place = _Place(self._at, _offsets(lengths), valid)
        self._at += int(place.offsets[-1])
        return place

    def _values(self, name: str, kind: pa.DataType) -> pa.Array | None:
        place = self._places[name]
        if place is None:
            return None
        validity = None
        if place.valid is not None:
            validity = pa.py_buffer(np.packbits(place.valid, bitorder="little"))
        content = self._buffer.slice(place.start, int(place.offsets[-1]))
        buffers = [validity, pa.py_buffer(place.offsets), content]
        return pa.Array.from_buffers(kind, len(place.offsets) - 1, buffers)


def _check_codec(compression: Compression) -> None:
    if compression not in _CODECS:
        raise UnsupportedCompression(
            f"record.format=columns cannot carry {compression.kafka_name}: use none, lz4 or zstd, "
            "or record.format=kafka"
        )


def _offsets(lengths: npt.NDArray[np.int16]) -> Int32Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _lengths(array: pa.Array) -> bytes:
    """-1 for null."""
    return value_lengths(array).astype(_LENGTH).tobytes()


def _content(array: pa.Array) -> bytes:
    """The bytes of all values of a binary or string array, one after another."""
    if array.null_count:
        array = array.drop_null()  # a null may hide bytes
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    data = array.buffers()[2]
    if data is None:
        return b""
    return bytes(data[int(offsets[array.offset]) : int(offsets[array.offset + len(array)])])
