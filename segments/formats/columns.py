"""The payloads of columns: records as an Arrow stream, and few of them packed.

**columns**: after the 61-byte header come a 3-byte header check and then, at byte 64, a
self-describing Arrow stream: schema, one record batch, end of stream. Arrow pads everything to 8
bytes, so all buffers of all batches of a file stay aligned, and an uncompressed batch is decoded
without copying.

A column without information is left out of the body but kept in the schema, with Arrow's type null:
keys that are all null, headers that are all empty, a timestamp that all records share. The set of
columns is up to the records: this module gives meaning only to those of the times and of the
offsets, and knows defaults for those that every record has.

Magic 100 is for records of RECORD_SCHEMA; magic 103 for those of typed topics, which have other
names for the common columns, and find their own columns by ids.

**packed** (magic 102): an Arrow stream's metadata takes 500 bytes and more, too much for a batch of
two records. The columns here are those of RECORD_SCHEMA, so they need no metadata.

One byte of flags tells which columns are present. Then come, for n records: timestamps (int64),
lengths of keys, lengths of values, numbers of headers (int16 each), for all their headers the
lengths of keys, then of values, and finally the bytes of these four columns. A length of -1 is
null. Little endian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.segments.arrays import NULL_LENGTH, numbers_of, value_lengths
from txnlog.segments.batch_header import (
    HEADER_BYTES,
    MAGIC_TYPED_COLUMNS,
    BatchHeader,
    BytesLike,
    Compression,
)
from txnlog.segments.errors import UnsupportedCompression, UnsupportedRecordFormat
from txnlog.segments.formats.arrow_metadata import CODEC_LZ4_FRAME, CODEC_ZSTD, read_layout
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
from txnlog.segments.schema_columns import Columns, SchemaColumns
from txnlog.segments.untrusted import read_record_batch, read_schema

CHECK_BYTES: Final = 3


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the columns with a meaning here.

    ``left_out`` are those that may be left out, with their types, by their names in RECORD_SCHEMA.
    """

    timestamp: str
    offset_delta: str
    left_out: Mapping[str, tuple[str, pa.DataType]]


_PLAIN: Final = _Names(
    "timestamp", "offset_delta", {field.name: (field.name, field.type) for field in RECORD_SCHEMA}
)
_TYPED: Final = _Names(
    "_timestamp",
    "_offset",
    {"_timestamp": ("timestamp", TIMESTAMP_TYPE), "_headers": ("headers", HEADERS_TYPE)},
)

_ARROW_CODECS: Final = {
    Compression.NONE: None,
    Compression.LZ4: CODEC_LZ4_FRAME,
    Compression.ZSTD: CODEC_ZSTD,
}
_CRC_FIELD = slice(17, 21)
# The memory per row of a restored column: at most 8 bytes.
_LEFT_OUT_ROW_BYTES = 8


def header_check(header: bytes) -> bytes:
    """The 3 bytes after the header: the low 24 bits of the CRC-32C of the 61 bytes, big endian.

    Kafka's checksum leaves out the base offset, the leader epoch and the magic byte, and holds
    only once the whole batch has been read. This one lets a reader trust a header by itself, and
    so skip batches without fetching them. The CRC field counts as zero: it is computed later,
    over these bytes too.
    """
    blank = bytearray(header[:HEADER_BYTES])
    blank[_CRC_FIELD] = b"\0\0\0\0"
    return (crc32c.crc32c(bytes(blank)) & 0xFFFFFF).to_bytes(CHECK_BYTES, "big")


def is_typed(records: pa.RecordBatch) -> bool:
    """Whether records are those of a typed topic, by the name of their times."""
    return _TYPED.timestamp in records.schema.names


def encode_columns(
    records: pa.RecordBatch,
    offset_deltas: Int32Array | None,
    *,
    single_timestamp: bool,
    compression: Compression,
    level: int | None,
) -> memoryview:
    """The Arrow stream that holds ``records``; its length is a multiple of 8.

    Raises UnsupportedCompression for codecs that Arrow lacks, UnsupportedRecordFormat for
    columns that cannot be stored.
    """
    options = _write_options(compression, level)
    names = _TYPED if is_typed(records) else _PLAIN
    batch = _leave_out_empty(records, names, single_timestamp)
    if offset_deltas is not None:
        batch = batch.append_column(names.offset_delta, pa.array(offset_deltas, pa.int32()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue()).cast("B")


def decode_columns(
    header: BatchHeader, payload: memoryview, columns: Columns, max_uncompressed_bytes: int
) -> DecodedRecords:
    """The records of a payload (the bytes from 64 on); only ``columns`` are decompressed.

    Those of a schema are found by their ids, see ``SchemaColumns``, if the batch is a typed one;
    the result has the stored ones, of which they are still to be made.
    Without compression the arrays refer to ``payload``. Any failure but an unknown name in
    ``columns`` (UnsupportedRecordFormat) or an unknown codec means damage, whatever its class.
    """
    layout = read_layout(payload)
    (batch,) = layout.batches
    if batch.codec != _arrow_codec(header.codec):
        raise ValueError(f"the payload is not compressed with {header.codec.kafka_name}")
    if batch.row_count != header.record_count:
        raise ValueError(
            f"the header counts {header.record_count} records, the payload holds {batch.row_count}"
        )
    names = _TYPED if header.magic == MAGIC_TYPED_COLUMNS else _PLAIN
    message = bytes(payload[: layout.schema_message_bytes])
    schema = _parse_schema(message, is_typed=names is _TYPED)
    left_out = sum(pa.types.is_null(field.type) for field in schema) + len(names.left_out)
    claimed = batch.uncompressed_bytes + left_out * _LEFT_OUT_ROW_BYTES * header.record_count
    check_uncompressed(claimed, max_uncompressed_bytes)
    made: SchemaColumns | None = None
    if columns is None:
        wanted = [name for name in schema.names if name != names.offset_delta]
    elif not isinstance(columns, pa.Schema):
        wanted = list(columns)
    elif names is _PLAIN:
        wanted = columns.names
    else:
        made = _schema_columns(message, _Wanted(columns))
        wanted = made.stored
    stored = _read_stored(payload, schema, (*wanted, names.offset_delta), header.record_count)
    offset_deltas = _check_offset_deltas(header, stored.get(names.offset_delta))
    arrays = [_build_column(name, names, schema, stored, header) for name in wanted]
    fields = [pa.field(name, array.type) for name, array in zip(wanted, arrays, strict=True)]
    records = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return DecodedRecords(records, offset_deltas, None if made is None else made.make)


def _arrow_codec(compression: Compression) -> int | None:
    if compression not in _ARROW_CODECS:
        raise UnsupportedCompression(
            f"record.format=columns cannot carry {compression.kafka_name}: use none, lz4 or zstd, "
            "or record.format=kafka"
        )
    return _ARROW_CODECS[compression]


def _write_options(compression: Compression, level: int | None) -> pa.ipc.IpcWriteOptions:
    if _arrow_codec(compression) is None:
        return pa.ipc.IpcWriteOptions()
    name = compression.kafka_name
    if level is not None:
        # Arrow would accept any number and silently use the nearest level.
        least = pa.Codec.minimum_compression_level(name)
        most = pa.Codec.maximum_compression_level(name)
        if not least <= level <= most:
            raise UnsupportedCompression(f"{name} has levels {least} to {most}, not {level}")
    return pa.ipc.IpcWriteOptions(
        compression=pa.Codec(name, compression_level=level), use_threads=False
    )


def _leave_out_empty(
    records: pa.RecordBatch, names: _Names, single_timestamp: bool
) -> pa.RecordBatch:
    """``records`` with columns without information replaced by columns of type null."""
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for field, array in zip(records.schema, records.columns, strict=True):
        _check_storable(field, records.schema, names)
        if field.type == names.left_out.get(field.name, (None, None))[1]:
            nothing = single_timestamp if field.name == names.timestamp else _is_empty(array)
            if nothing:
                field, array = pa.field(field.name, pa.null()), pa.nulls(len(array))
        fields.append(field)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema(fields, metadata=records.schema.metadata)
    )


def _is_empty(array: pa.Array) -> bool:
    if pa.types.is_list(array.type):
        # Kafka's format does not distinguish null headers from empty ones, so neither does this.
        offsets = array.offsets
        return bool(offsets[0] == offsets[-1])
    return bool(array.null_count == len(array))


def _check_storable(field: pa.Field, schema: pa.Schema, names: _Names) -> None:
    if field.name == names.offset_delta:
        raise UnsupportedRecordFormat(f"the column name {field.name!r} is reserved")
    if schema.names.count(field.name) > 1:
        raise UnsupportedRecordFormat(f"column {field.name!r} is there more than once")
    if _has_dictionary(field.type):
        raise UnsupportedRecordFormat(
            f"column {field.name!r} is {field.type}: cast it to plain values first"
        )


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return any(_has_dictionary(kind.field(child).type) for child in range(kind.num_fields))


@lru_cache(maxsize=64)
def _parse_schema(message: bytes, *, is_typed: bool) -> pa.Schema:
    # All batches of a topic have the same few schemas; parsing one costs as much as a small batch.
    schema = read_schema(message)
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("a column name occurs twice")
    timestamp = (_TYPED if is_typed else _PLAIN).timestamp
    if timestamp not in schema.names:
        raise ValueError(f"there is no {timestamp} column")
    for name, (_, kind) in (_TYPED if is_typed else _PLAIN).left_out.items():
        if name in schema.names and schema.field(name).type not in (kind, pa.null()):
            raise ValueError(f"the {name} column is {schema.field(name).type}")
    return schema


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A schema as a cache key: equal only if ids and defaults are, too."""

    schema: pa.Schema

    def __hash__(self) -> int:
        return hash(tuple(self.schema.names))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Wanted) and bool(
            self.schema.equals(other.schema, check_metadata=True)
        )


@lru_cache(maxsize=64)
def _schema_columns(message: bytes, wanted: _Wanted) -> SchemaColumns:
    """How to build these columns from those of a typed batch, including left-out ones."""
    fields = [
        field.with_type(_TYPED.left_out[field.name][1])
        if pa.types.is_null(field.type) and field.name in _TYPED.left_out
        else field
        for field in _parse_schema(message, is_typed=True)
        if field.name != _TYPED.offset_delta
    ]
    return SchemaColumns(pa.schema(fields), wanted.schema)


def _read_stored(
    payload: memoryview, schema: pa.Schema, wanted: Sequence[str], record_count: int
) -> dict[str, pa.Array]:
    """Decode the stored ones among the wanted columns, fully validated."""
    included = [
        index
        for index, field in enumerate(schema)
        if field.name in wanted and not pa.types.is_null(field.type)
    ]
    if not included:  # an empty list would mean all of them
        return {}
    batch = read_record_batch(payload, included)
    if batch.num_rows != record_count:
        raise ValueError(f"the payload holds {batch.num_rows} records")
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _build_column(
    name: str,
    names: _Names,
    schema: pa.Schema,
    stored: dict[str, pa.Array],
    header: BatchHeader,
) -> pa.Array:
    if name in stored:
        array = stored[name]
        if name == names.timestamp and array.null_count:
            raise ValueError("a timestamp is null")
        return array
    if name == names.timestamp and header.base_timestamp_ms != header.max_timestamp_ms:
        raise ValueError("timestamps differ but are left out")
    if name in names.left_out:
        known, _ = names.left_out[name]
        return default_column(known, header.base_timestamp_ms, header.record_count)
    if name in schema.names:
        return pa.nulls(header.record_count, schema.field(name).type)
    raise UnsupportedRecordFormat(f"there is no column {name!r}; the batch has {schema.names}")


def _check_offset_deltas(header: BatchHeader, column: pa.Array | None) -> Int32Array | None:
    if column is None:
        if header.last_offset_delta != header.record_count - 1:
            raise ValueError(
                f"last offset delta {header.last_offset_delta} disagrees with "
                f"{header.record_count} records"
            )
        return None
    if column.type != pa.int32() or column.null_count:
        raise ValueError(f"the column of offset deltas is {column.type} or has nulls")
    deltas: Int32Array = numbers_of(column)
    if len(deltas) == 0 or deltas[0] < 0 or not bool(np.all(deltas[1:] > deltas[:-1])):
        raise ValueError("offset deltas do not ascend")
    if deltas[-1] != header.last_offset_delta:
        raise ValueError(
            f"last offset delta {header.last_offset_delta} disagrees with the records' {deltas[-1]}"
        )
    return deltas


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
        """Place values of these lengths at the current position, and advance it by their bytes."""
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
