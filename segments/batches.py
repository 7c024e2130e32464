"""Record batches to bytes and back, whatever their payload: dispatch by magic.

A payload is added here and nowhere else: one entry in ``_FORMATS``, and one in ``_MAGICS`` if
batches are written in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import crc32c
import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import (
    CODEC_BITS,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    GUARD_BITS,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    MAGIC_PACKED,
    MAGIC_POSITION,
    MAGIC_TYPED_COLUMNS,
    MAGIC_V0,
    MAGIC_V1,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TAG,
    TRANSACTIONAL,
    BatchHeader,
    BytesLike,
    Compression,
    batch_length,
    guard_of,
)
from txnlog.segments.errors import (
    CorruptRecord,
    TxnlogError,
    UnknownCodec,
    UnknownMagic,
    UnsupportedCompression,
    UnsupportedRecordFormat,
)
from txnlog.segments.formats.columns import (
    CHECK_BYTES,
    can_pack,
    decode_columns,
    decode_packed,
    encode_columns,
    encode_packed,
    header_check,
    is_typed,
)
from txnlog.segments.formats.message_sets import (
    decode_legacy_header,
    decode_message_set,
    legacy_checksum,
)
from txnlog.segments.formats.rows import decode_rows, encode_rows
from txnlog.segments.indexes.sparse import IndexBuilder
from txnlog.segments.kafka_markers import (
    ABORT,
    COMMIT,
    ControlMarker,
    decode_markers,
    marker_record,
)
from txnlog.segments.records import (
    TIMESTAMP_COLUMNS,
    TIMESTAMP_TYPE,
    DecodedRecords,
    Int32Array,
    Int64Array,
    MakeColumns,
    concat_batches,
    timestamps_ms,
)
from txnlog.segments.schema_columns import Columns
from txnlog.segments.untrusted import MAX_DECODED_BYTES

# A reader that has this many bytes (or all that the file has) can decode any header.
MAX_HEADER_BYTES: Final = HEADER_BYTES + CHECK_BYTES

# More than any batch that a writer makes, little enough to refuse a decompression bomb.
DEFAULT_MAX_UNCOMPRESSED_BYTES: Final = MAX_DECODED_BYTES

_MAGICS: Final = {"columns": MAGIC_COLUMNS, "kafka": MAGIC_KAFKA}
_KAFKA_BITS = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON


@dataclass(frozen=True, slots=True, eq=False)
class DecodedBatch:
    """A batch's header and records; ``offset_deltas`` (int32) is None if offsets are dense.

    A control batch has no records, whatever its header counts: it has ``markers``. ``make`` is as
    in ``DecodedRecords``.
    """

    header: BatchHeader
    records: pa.RecordBatch
    offset_deltas: Int32Array | None
    markers: tuple[ControlMarker, ...] = ()
    make: MakeColumns | None = None


@dataclass(frozen=True, slots=True)
class _Format:
    """The format of one magic number. All functions take the bytes of a batch from its first on."""

    decode_header: Callable[[memoryview, str, int], BatchHeader]
    checksum: Callable[[memoryview], int]
    decode: Callable[[BatchHeader, memoryview, Columns, int], tuple[BatchHeader, DecodedRecords]]


def check_format(record_format: str) -> None:
    """Raise UnsupportedRecordFormat for a record.format without batches."""
    if record_format not in _MAGICS:
        raise UnsupportedRecordFormat(
            f"record.format {record_format!r} is not one of {', '.join(_MAGICS)}"
        )


def encode_batch(
    records: pa.RecordBatch,
    *,
    record_format: str = "columns",
    compression: Compression = Compression.LZ4,
    level: int | None = None,
    base_offset: int = 0,
    offset_deltas: Int32Array | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    transactional: bool = False,
    log_append_time: bool = False,
    delete_horizon_ms: int | None = None,
    packs_few: bool = False,
    guarded: bool = False,
) -> bytes:
    """The bytes of one batch.

    ``records`` has at least one row and a ``timestamp`` column without nulls (RECORD_SCHEMA has),
    or ``_timestamp`` if it is of a typed topic, which only record_format "columns" can store;
    ``offset_deltas`` (int32, ascending, one for each row) is given only if offsets have gaps. The
    last three say what Kafka's attributes say, and only record_format "kafka" can; with
    ``log_append_time`` all timestamps must be equal. With ``packs_few`` a few records of
    record_format "columns" are packed. Rows may be ``guarded``: then base sequence is base offset.
    Raises UnsupportedRecordFormat, UnsupportedCompression, and
    for rows RecordTooLarge.
    """
    check_format(record_format)
    timestamps = _check_timestamps(records)
    first_ms, max_ms = int(timestamps[0]), int(timestamps.max())
    single = first_ms == max_ms == int(timestamps.min())
    if log_append_time and not single:
        raise ValueError("with log append time all records have the same timestamp")
    attributes = int(compression)
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= LOG_APPEND_TIME if log_append_time else 0
    attributes |= 0 if delete_horizon_ms is None else DELETE_HORIZON
    if guarded:
        attributes |= guard_of(leader_epoch)
        base_sequence = base_offset
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=_magic(record_format, records),
        crc=0,
        attributes=attributes,
        last_offset_delta=(
            records.num_rows - 1 if offset_deltas is None else int(offset_deltas[-1])
        ),
        base_timestamp_ms=first_ms if delete_horizon_ms is None else delete_horizon_ms,
        max_timestamp_ms=max_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=records.num_rows,
    )
    if header.magic == MAGIC_KAFKA:
        return _rows_batch(header, records, offset_deltas, compression, level)
    if attributes & ~CODEC_BITS:
        raise ValueError("only record.format=kafka has attributes besides the codec")
    packs_few = packs_few and header.magic == MAGIC_COLUMNS and offset_deltas is None
    if packs_few and can_pack(records):
        payload, codec = encode_packed(
            records, single_timestamp=single, compression=compression, level=level
        )
        return _checked_batch(header, MAGIC_PACKED, codec, payload)
    stream = encode_columns(
        records, offset_deltas, single_timestamp=single, compression=compression, level=level
    )
    return _checked_batch(header, header.magic, compression, stream)


def encode_marker(
    *,
    commit: bool,
    offset: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The 78 bytes of a control batch that ends a producer's transaction, as Kafka writes it."""
    header = BatchHeader(
        base_offset=offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC_KAFKA,
        crc=0,
        attributes=CONTROL | TRANSACTIONAL,
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    record = marker_record(COMMIT if commit else ABORT, timestamp_ms, coordinator_epoch)
    return _rows_batch(header, record, None, Compression.NONE, None)


def decode_header(data: BytesLike, *, name: str = "batch", position: int = 0) -> BatchHeader:
    """The header at the start of ``data``, which holds MAX_HEADER_BYTES or all that is left.

    A header of columns, packed or not, is verified by its own check: it can be trusted without the
    rest. Any other one (see ``is_self_checked``) only after ``verify_checksum``. Raises
    CorruptRecord; UnknownMagic (both CorruptRecord and UnsupportedRecordFormat) for a magic byte
    that is not known.
    """
    view = memoryview(data).cast("B")  # Arrow's own buffers come as signed bytes
    if len(view) <= MAGIC_POSITION:
        raise CorruptRecord.at(
            name, position, f"{len(view)} bytes are left, a batch header takes {HEADER_BYTES}"
        )
    # The magic byte comes first: in an unknown format no other field has a meaning.
    magic = view[MAGIC_POSITION]
    if magic not in _FORMATS:
        raise UnknownMagic.at(
            name,
            position,
            f"magic {magic} is not known: the file is damaged or of a newer version",
        )
    return _FORMATS[magic].decode_header(view, name, position)


def has_right_checksum(header: BatchHeader, data: BytesLike) -> bool:
    """Whether the bytes of a whole batch, including its header, are as they were written."""
    return _FORMATS[header.magic].checksum(memoryview(data).cast("B")) == header.crc


def verify_checksum(
    header: BatchHeader, data: BytesLike, *, name: str = "batch", position: int = 0
) -> None:
    """Raise CorruptRecord if a whole batch, which starts with ``header``, is not as it was written.

    In Kafka's layouts the checksum does not cover the fields before it, above all the base offset.
    In rows that txnlog writes the base sequence repeats the base offset, and the attributes have a
    sum of the leader epoch: these are compared.
    """
    crc = _FORMATS[header.magic].checksum(memoryview(data).cast("B"))
    reason = None
    if crc != header.crc:
        kind = "CRC-32" if header.magic < MAGIC_KAFKA else "CRC-32C"
        reason = f"{kind} is {crc:#010x}, the header says {header.crc:#010x}"
    else:
        reason = header.broken_guard()
    if reason is not None:
        raise CorruptRecord.at(name, position, reason, header.base_offset)


def decode_batch(
    data: BytesLike,
    *,
    name: str = "batch",
    position: int = 0,
    header: BatchHeader | None = None,
    columns: Columns = None,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> DecodedBatch:
    """Verify and decode the batch at the start of ``data``; bytes after it are ignored.

    ``header`` saves decoding it again; that of a run of old messages must be given. ``columns``
    names those to return, in that order (None: all that the batch has); others are not
    decompressed. Of a typed topic they are those of its schema, still to be made. ``name`` and
    ``position`` are only for messages. Raises CorruptRecord for any damage, UnsupportedRecordFormat
    for a column that the batch does not have, and UnsupportedCompression.
    """
    view = memoryview(data).cast("B")  # Arrow's own buffers come as signed bytes
    if header is None:
        header = decode_header(view[:MAX_HEADER_BYTES], name=name, position=position)
    if header.size_bytes > len(view):
        reason = f"{header.size_bytes} bytes are claimed, {len(view)} are left"
        raise CorruptRecord.at(name, position, reason, header.base_offset)
    view = view[: header.size_bytes]
    verify_checksum(header, view, name=name, position=position)
    try:
        return _decode_payload(header, view, columns, max_uncompressed_bytes)
    except UnknownCodec as error:
        raise UnknownCodec.at(name, position, str(error), header.base_offset) from error
    except (UnsupportedCompression, UnsupportedRecordFormat) as error:
        raise type(error)(f"{name} at byte {position}: {error}") from error
    except (TxnlogError, MemoryError):
        raise
    except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
        raise CorruptRecord.at(name, position, str(error), header.base_offset) from error


def _decode_payload(
    header: BatchHeader, batch: memoryview, columns: Columns, limit: int
) -> DecodedBatch:
    decode = _FORMATS[header.magic].decode
    if not header.is_control:
        header, decoded = decode(header, batch, columns, limit)
        return DecodedBatch(header, decoded.records, decoded.offset_deltas, make=decoded.make)
    _, decoded = decode(header, batch, None, limit)
    deltas = decoded.offset_deltas
    if deltas is None:
        deltas = np.arange(header.record_count, dtype=np.int32)
    markers = decode_markers(decoded.records, header.base_offset + deltas.astype(np.int64))
    nothing = decoded.records.slice(0, 0)
    return DecodedBatch(
        header, nothing if columns is None else nothing.select(_names(columns)), None, markers
    )


def _checked_batch(
    header: BatchHeader, magic: int, codec: Compression, payload: BytesLike
) -> bytes:
    """A batch of txnlog's own formats: its header has a check of its own."""
    length = batch_length(CHECK_BYTES + len(payload))
    header = replace(header, magic=magic, attributes=int(codec), length=length)
    blank = header.encode()
    check = header_check(blank)
    crc = crc32c.crc32c(payload, crc32c.crc32c(blank[CRC_START:] + check))
    return b"".join((replace(header, crc=crc).encode(), check, payload))


def _rows_batch(
    header: BatchHeader,
    records: pa.RecordBatch,
    offset_deltas: Int32Array | None,
    compression: Compression,
    level: int | None,
) -> bytes:
    payload = encode_rows(
        records,
        offset_deltas,
        base_timestamp_ms=header.base_timestamp_ms,
        compression=compression,
        level=level,
    )
    header = replace(header, length=batch_length(len(payload)))
    crc = crc32c.crc32c(payload, crc32c.crc32c(header.encode()[CRC_START:]))
    return b"".join((replace(header, crc=crc).encode(), payload))


def _check_timestamps(records: pa.RecordBatch) -> Int64Array:
    if records.num_rows == 0:
        raise ValueError("a batch needs at least one record")
    name = TIMESTAMP_COLUMNS[0] if is_typed(records) else TIMESTAMP_COLUMNS[1]
    index = records.schema.get_field_index(name)
    if index < 0 or records.schema.field(index).type != TIMESTAMP_TYPE:
        raise UnsupportedRecordFormat(f"column {name!r} of type {TIMESTAMP_TYPE} is needed")
    if records.column(index).null_count:
        raise UnsupportedRecordFormat(f"column {name!r} has nulls")
    return timestamps_ms(records)


def _magic(record_format: str, records: pa.RecordBatch) -> int:
    magic = _MAGICS[record_format]
    return MAGIC_TYPED_COLUMNS if magic == MAGIC_COLUMNS and is_typed(records) else magic


# -- the magic numbers ---------------------------------------------------------------------------


def _checked_header(data: memoryview, name: str, position: int) -> BatchHeader:
    header = BatchHeader.decode(data, name=name, position=position)
    if data[HEADER_BYTES:MAX_HEADER_BYTES] != header_check(bytes(data[:HEADER_BYTES])):
        raise CorruptRecord.at(name, position, "the header does not match its check")
    _check_attributes(header, CODEC_BITS, name, position)
    return header


def _rows_header(data: memoryview, name: str, position: int) -> BatchHeader:
    header = BatchHeader.decode(data, name=name, position=position)
    known = CODEC_BITS | _KAFKA_BITS | (GUARD_BITS if header.is_guarded else 0)
    _check_attributes(header, known, name, position)
    return header


def _check_attributes(header: BatchHeader, known: int, name: str, position: int) -> None:
    if header.attributes & ~known:
        reason = f"attributes {header.attributes:#06x} are not known with magic {header.magic}"
        raise CorruptRecord.at(name, position, reason, header.base_offset)


def _decode_columns(
    header: BatchHeader, batch: memoryview, columns: Columns, limit: int
) -> tuple[BatchHeader, DecodedRecords]:
    return header, decode_columns(header, batch[MAX_HEADER_BYTES:], columns, limit)


def _decode_packed(
    header: BatchHeader, batch: memoryview, columns: Columns, limit: int
) -> tuple[BatchHeader, DecodedRecords]:
    return header, decode_packed(header, batch[MAX_HEADER_BYTES:], _names(columns), limit)


def _decode_rows(
    header: BatchHeader, batch: memoryview, columns: Columns, limit: int
) -> tuple[BatchHeader, DecodedRecords]:
    return header, decode_rows(header, batch[HEADER_BYTES:], _names(columns), limit)


def _decode_messages(
    header: BatchHeader, batch: memoryview, columns: Columns, limit: int
) -> tuple[BatchHeader, DecodedRecords]:
    return decode_message_set(header, batch, _names(columns), limit)


def _names(columns: Columns) -> Sequence[str] | None:
    names: Sequence[str] | None = columns.names if isinstance(columns, pa.Schema) else columns
    return names


def _crc32c(batch: memoryview) -> int:
    crc: int = crc32c.crc32c(batch[CRC_START:])
    return crc


_MESSAGES = _Format(decode_legacy_header, legacy_checksum, _decode_messages)
_FORMATS: Final = {
    MAGIC_V0: _MESSAGES,
    MAGIC_V1: _MESSAGES,
    MAGIC_KAFKA: _Format(_rows_header, _crc32c, _decode_rows),
    MAGIC_COLUMNS: _Format(_checked_header, _crc32c, _decode_columns),
    MAGIC_TYPED_COLUMNS: _Format(_checked_header, _crc32c, _decode_columns),
    MAGIC_PACKED: _Format(_checked_header, _crc32c, _decode_packed),
}


class SupportsWrite(Protocol):
    """The destination of a segment: a file, a buffer, an upload."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The end of a segment: how many more bytes were written, the index files, and its tag."""

    size_bytes: int
    index: bytes
    time_index: bytes
    tag: int


class SegmentEncoder(Protocol):
    """Writes batches to a sink, in the order of their offsets, and then the end."""

    @property
    def overhead_bytes(self) -> int:
        """About how many bytes the file takes at most besides its records."""

    def write(
        self,
        pieces: Sequence[pa.RecordBatch],
        base_offset: int,
        offset_deltas: Int32Array | None,
    ) -> int:
        """Write records, given in pieces, as one batch; returns how many bytes it took."""

    def finish(self) -> SegmentEnd: ...


# The most that a batch takes besides its records: its header; the schema and the layout of columns,
# or a codec's frame around rows.
_OVERHEAD_BYTES = {"columns": 1536, "kafka": 128}
_COLUMN_BYTES = 128
"""About what the layout of a typed topic's column adds, besides its schema."""


class BatchEncoder:
    """Batches in columns, packed if they are few, or in Kafka's own format.

    Each carries the tag, if there is one, and in Kafka's format the producer's id and epoch.
    """

    def __init__(
        self,
        sink: SupportsWrite,
        *,
        record_format: str,
        compression: Compression,
        level: int | None,
        index_interval_bytes: int,
        tag: int,
        producer: tuple[int, int] | None,
    ) -> None:
        check_format(record_format)
        self.overhead_bytes = _OVERHEAD_BYTES[record_format]
        self._sink = sink
        self._record_format = record_format
        self._tag = tag
        self._leader_epoch = NO_LEADER_EPOCH if tag == NO_TAG else tag
        self._is_rows = record_format == "kafka"
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        if self._is_rows and producer is not None:
            self._producer_id, self._producer_epoch = producer
        self._compression = compression
        self._level = level
        self._indexes = IndexBuilder(index_interval_bytes)
        self._size_bytes = 0

    def write(
        self,
        pieces: Sequence[pa.RecordBatch],
        base_offset: int,
        offset_deltas: Int32Array | None,
    ) -> int:
        records = concat_batches(pieces)
        if self._size_bytes == 0 and is_typed(records):
            schema = records.schema
            self.overhead_bytes += schema.serialize().size + len(schema) * _COLUMN_BYTES
        data = encode_batch(
            records,
            record_format=self._record_format,
            compression=self._compression,
            level=self._level,
            base_offset=base_offset,
            offset_deltas=offset_deltas,
            producer_id=self._producer_id,
            base_sequence=base_offset,
            guarded=self._is_rows,
            producer_epoch=self._producer_epoch,
            leader_epoch=self._leader_epoch,
            packs_few=True,
        )
        last_delta = records.num_rows - 1 if offset_deltas is None else int(offset_deltas[-1])
        # Before the bytes: a batch that does not fit must not be in the file either.
        self._indexes.add(
            position=self._size_bytes,
            size_bytes=len(data),
            last_offset=base_offset + last_delta,
            max_timestamp_ms=int(timestamps_ms(records).max()),
        )
        self._sink.write(data)
        self._size_bytes += len(data)
        return len(data)

    def finish(self) -> SegmentEnd:
        index, time_index = self._indexes.finish()
        return SegmentEnd(0, index.encode(), time_index.encode(), self._tag)
