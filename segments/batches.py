"""One record batch to bytes and back, whatever its payload: header, checksum, dispatch by magic.

A payload is added here and nowhere else: one entry in ``_PAYLOADS`` and one in ``_FORMATS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import crc32c
import pyarrow as pa

from txnlog.segments.columns import (
    CHECK_BYTES,
    Int32Array,
    decode_columns,
    encode_columns,
    header_check,
)
from txnlog.segments.compression import Compression
from txnlog.segments.errors import (
    CorruptRecord,
    TxnlogError,
    UnknownMagic,
    UnsupportedCompression,
    UnsupportedRecordFormat,
)
from txnlog.segments.header import (
    CRC_START,
    HEADER_BYTES,
    MAGIC_COLUMNS,
    MAGIC_POSITION,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    BytesLike,
    batch_length,
)
from txnlog.segments.records import TIMESTAMP_TYPE, Int64Array, timestamps_ms

# A reader that has this many bytes (or all that the file has) can decode any header.
MAX_HEADER_BYTES: Final = HEADER_BYTES + CHECK_BYTES

# More than any batch that a writer makes, little enough to refuse a decompression bomb.
DEFAULT_MAX_UNCOMPRESSED_BYTES: Final = 1 << 30

_FORMATS: Final = {"columns": MAGIC_COLUMNS}
_KNOWN_MAGICS: Final = frozenset(_FORMATS.values())


@dataclass(frozen=True, slots=True, eq=False)
class DecodedBatch:
    """A batch's header and records; ``offset_deltas`` (int32) is None if offsets are dense."""

    header: BatchHeader
    records: pa.RecordBatch
    offset_deltas: Int32Array | None


def check_format(record_format: str) -> None:
    """Raise UnsupportedRecordFormat for a record.format that no batch can be written in."""
    if record_format not in _FORMATS:
        raise UnsupportedRecordFormat(
            f"record.format {record_format!r} is not one of {', '.join(_FORMATS)}"
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
) -> bytes:
    """The bytes of one batch.

    ``records`` has at least one row and a ``timestamp`` column without nulls (RECORD_SCHEMA has);
    ``offset_deltas`` (int32, ascending, one for each row) is given only if offsets have gaps.
    Raises UnsupportedRecordFormat or UnsupportedCompression.
    """
    check_format(record_format)
    timestamps = _checked_timestamps(records)
    first_ms, max_ms = int(timestamps[0]), int(timestamps.max())
    single = first_ms == max_ms == int(timestamps.min())
    last_delta = records.num_rows - 1 if offset_deltas is None else int(offset_deltas[-1])
    stream = encode_columns(
        records, offset_deltas, single_timestamp=single, compression=compression, level=level
    )
    header = BatchHeader(
        base_offset=base_offset,
        length=batch_length(CHECK_BYTES + len(stream)),
        leader_epoch=leader_epoch,
        magic=_FORMATS[record_format],
        crc=0,
        attributes=int(compression),
        last_offset_delta=last_delta,
        base_timestamp_ms=first_ms,
        max_timestamp_ms=max_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=records.num_rows,
    )
    blank = header.encode()
    check = header_check(blank)
    crc = crc32c.crc32c(stream, crc32c.crc32c(blank[CRC_START:] + check))
    return b"".join((replace(header, crc=crc).encode(), check, stream))


def decode_header(data: BytesLike, *, name: str = "batch", position: int = 0) -> BatchHeader:
    """The header at the start of ``data``, which holds MAX_HEADER_BYTES or all that is left.

    A header of a columns batch is verified by its own check: it can be trusted without the rest.
    Raises CorruptRecord; UnknownMagic (both CorruptRecord and UnsupportedRecordFormat) for a magic
    byte that is not known.
    """
    view = memoryview(data).cast("B")  # Arrow's own buffers come as signed bytes
    header = _decode_any_header(view, name, position)
    if view[HEADER_BYTES:MAX_HEADER_BYTES] != header_check(bytes(view[:HEADER_BYTES])):
        raise CorruptRecord.at(name, position, "the header does not match its check")
    return header


def decode_batch(
    data: BytesLike,
    *,
    name: str = "batch",
    position: int = 0,
    columns: Sequence[str] | None = None,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> DecodedBatch:
    """Verify and decode the batch at the start of ``data``; bytes after it are ignored.

    ``columns`` names those to return, in that order (None: all that the batch has); others are
    not decompressed. ``name`` and ``position`` are for messages alone. Raises CorruptRecord for
    any damage, UnsupportedRecordFormat for a column that the batch does not have, and
    UnsupportedCompression.
    """
    view = memoryview(data).cast("B")  # Arrow's own buffers come as signed bytes
    header = decode_header(view[:MAX_HEADER_BYTES], name=name, position=position)
    if header.size_bytes > len(view):
        reason = f"{header.size_bytes} bytes are claimed, {len(view)} are left"
        raise CorruptRecord.at(name, position, reason, header.base_offset)
    view = view[: header.size_bytes]
    crc = crc32c.crc32c(view[CRC_START:])
    if crc != header.crc:
        reason = f"CRC-32C is {crc:#010x}, the header says {header.crc:#010x}"
        raise CorruptRecord.at(name, position, reason, header.base_offset)
    try:
        decoded = decode_columns(header, view[MAX_HEADER_BYTES:], columns, max_uncompressed_bytes)
    except (UnsupportedCompression, UnsupportedRecordFormat) as error:
        raise type(error)(f"{name} at byte {position}: {error}") from error
    except (TxnlogError, MemoryError):
        raise
    except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
        raise CorruptRecord.at(name, position, str(error), header.base_offset) from error
    return DecodedBatch(header, decoded.records, decoded.offset_deltas)


def _decode_any_header(view: memoryview, name: str, position: int) -> BatchHeader:
    # The magic byte comes first: in a format that is not known no other field means anything.
    if len(view) > MAGIC_POSITION and view[MAGIC_POSITION] not in _KNOWN_MAGICS:
        raise UnknownMagic.at(
            name,
            position,
            f"magic {view[MAGIC_POSITION]} is not known: the file is damaged or of a newer version",
        )
    return BatchHeader.decode(view, name=name, position=position)


def _checked_timestamps(records: pa.RecordBatch) -> Int64Array:
    if records.num_rows == 0:
        raise ValueError("a batch needs at least one record")
    index = records.schema.get_field_index("timestamp")
    if index < 0 or records.schema.field(index).type != TIMESTAMP_TYPE:
        raise UnsupportedRecordFormat(f"column 'timestamp' of type {TIMESTAMP_TYPE} is needed")
    if records.column(index).null_count:
        raise UnsupportedRecordFormat("column 'timestamp' has nulls")
    return timestamps_ms(records)
