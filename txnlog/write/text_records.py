"""Records from a stream of bytes: lines of text, or JSON lines; as Arrow batches for a producer.

Bounded in memory: a piece of the stream at a time, and no line longer than a record may be.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import Annotated, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.errors import InvalidRecord, RecordTooLarge
from txnlog.segments.records import HEADERS_TYPE, MAX_TIMESTAMP_MS, TIMESTAMP_TYPE

_CHUNK_BYTES: Final = 4 << 20
_BINARY_FACTOR: Final = 8
"""A line of JSON may be so many times as long as the record in it: \\u0000 stands for one byte."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line is a record: all of it the value, or key, ``key_delimiter``, value.

    ``null_marker`` stands for null, as a key and as a value. ``headers`` are those of every record.
    """

    key_delimiter: bytes | None = None
    null_marker: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()


def read_lines(
    stream: BufferedReader, line_format: LineFormat, *, max_line_bytes: int
) -> Iterator[pa.RecordBatch]:
    """One record a line; the last one need not end in a newline.

    Returns:
        Batches with the columns ``key``, ``value`` and ``headers``.

    Raises:
        InvalidRecord: a line has no key delimiter; the message has the line's number.
        RecordTooLarge: a line is longer than ``max_line_bytes``.
    """
    first = 1
    for chunk in _read_line_chunks(stream, max_line_bytes):
        lines = pc.list_flatten(pc.split_pattern(pa.array([chunk], pa.binary()), pattern=b"\n"))
        keys, values = _split_keys(lines, line_format, first)
        if line_format.null_marker is not None:
            keys, values = (
                _replace_marker(part, line_format.null_marker) for part in (keys, values)
            )
        headers = [{"key": key, "value": value} for key, value in line_format.headers]
        yield pa.record_batch(
            {
                "key": keys,
                "value": values,
                "headers": pa.repeat(pa.scalar(headers, HEADERS_TYPE), len(lines)),
            }
        )
        first += len(lines)


def _split_keys(lines: pa.Array, line_format: LineFormat, first: int) -> tuple[pa.Array, pa.Array]:
    delimiter = line_format.key_delimiter
    if delimiter is None:
        return pa.repeat(pa.scalar(line_format.key, pa.binary()), len(lines)), lines
    parts = pc.split_pattern(lines, pattern=delimiter, max_splits=1)
    lacking = np.flatnonzero(pc.list_value_length(parts).to_numpy() < 2)
    if lacking.size:
        raise InvalidRecord(
            f"line {first + int(lacking[0])} has no key delimiter {delimiter!r}; nothing was "
            "written"
        )
    flat = pc.list_flatten(parts)
    return flat[::2] if len(flat) else flat, flat.take(pa.array(np.arange(1, len(flat), 2)))


def _replace_marker(column: pa.Array, marker: bytes) -> pa.Array:
    return pc.if_else(pc.equal(column, marker), pa.scalar(None, pa.binary()), column)


_Partition = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Timestamp = Annotated[int, msgspec.Meta(ge=-MAX_TIMESTAMP_MS, le=MAX_TIMESTAMP_MS)]


class _Bytes(msgspec.Struct, forbid_unknown_fields=True):
    base64: str | None = None
    hex: str | None = None


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    value: str | _Bytes | None


class _JsonRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What ``records read -o jsonl`` prints; where it was (the last three) does not count.

    A line of any other shape is refused: taken for a record it would be one without a value, which
    is a tombstone. So a value must be there, and one that is null says so.
    """

    value: str | _Bytes | None
    key: str | _Bytes | None = None
    headers: list[_Header] = []
    timestamp_ms: _Timestamp | None = None
    partition: _Partition | None = None
    topic: str | None = None
    offset: int | None = None
    timestamp_type: str | None = None


_SHAPE: Final = (
    'A line is an object with a "value" and, as wanted, "key", "headers", "timestamp_ms" and '
    '"partition", as `records read -o jsonl` prints it: {"key": "k", "value": "v"}; a tombstone '
    'says "value": null. To write whole lines as values, whatever is in them, use --input lines'
)


def read_json_lines(
    stream: BufferedReader,
    *,
    headers: Headers = (),
    max_line_bytes: int,
    partition_count: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """One JSON object a line: ``value``, ``key``, ``headers``, ``timestamp_ms``, ``partition``.

    Bytes are a string (UTF-8), ``{"base64": "..."}``, ``{"hex": "..."}`` or null. ``value`` must
    be there. ``topic``, ``offset`` and ``timestamp_type`` may be, and do not count; any other key
    is refused. Empty lines are passed over.

    Args:
        stream: the lines.
        headers: more headers for every record.
        max_line_bytes: how long a record may be.
        partition_count: a line with a partition that is not below it is refused, if it is given.

    Returns:
        Batches with the columns ``key``, ``value``, ``headers``, ``timestamp``, ``partition``.

    Raises:
        InvalidRecord: a line is not such an object; the message has its number.
        RecordTooLarge: a line is far longer than ``max_line_bytes``.
    """
    decoder = msgspec.json.Decoder(_JsonRecord)
    number = 0
    for chunk in _read_line_chunks(stream, max_line_bytes * _BINARY_FACTOR):
        records = []
        for line in chunk.split(b"\n"):
            number += 1
            if not line.strip():
                continue
            try:
                records.append(_to_row(decoder.decode(line), headers, partition_count))
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
                raise InvalidRecord(
                    f"line {number} is not a record: {error}; nothing was written. {_SHAPE}"
                ) from error
        if records:
            yield _to_batch(records)


_Row = tuple[bytes | None, bytes | None, list[dict[str, object]], int | None, int | None]


def _to_row(record: _JsonRecord, headers: Headers, partition_count: int | None) -> _Row:
    if partition_count is not None and (record.partition or 0) >= partition_count:
        raise ValueError(
            f"there is no partition {record.partition}; the topic has {partition_count} "
            "partitions, numbered from 0"
        )
    own: list[dict[str, object]] = [
        {"key": header.key, "value": _decode_bytes(header.value)} for header in record.headers
    ]
    own += [{"key": key, "value": value} for key, value in headers]
    stamp = record.timestamp_ms
    return _decode_bytes(record.key), _decode_bytes(record.value), own, stamp, record.partition


def _decode_bytes(data: str | _Bytes | None) -> bytes | None:
    if data is None:
        return None
    if isinstance(data, str):
        return data.encode()
    if (data.base64 is None) == (data.hex is None):
        raise ValueError('bytes are {"base64": "..."} or {"hex": "..."}')
    try:
        if data.base64 is not None:
            return base64.b64decode(data.base64, validate=True)
        return bytes.fromhex(data.hex or "")
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"bytes that cannot be decoded: {error}") from error


def _to_batch(rows: Iterable[_Row]) -> pa.RecordBatch:
    keys, values, headers, stamps, partitions = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": pa.array(stamps, pa.int64()).cast(TIMESTAMP_TYPE),
            "partition": pa.array(partitions, pa.int32()),
        }
    )


def _read_line_chunks(stream: BufferedReader, max_line_bytes: int) -> Iterator[bytes]:
    """Whole lines, many at a time, without the last one's newline."""
    rest = b""
    while data := _read_chunk(stream):
        end = data.rfind(b"\n")
        if end < 0:
            rest += data
            if len(rest) > max_line_bytes:
                raise RecordTooLarge(
                    f"a line is longer than {max_line_bytes} bytes, which is more than a record of "
                    "this topic may have; nothing was written"
                )
            continue
        yield rest + data[:end]
        rest = data[end + 1 :]
    if rest:
        yield rest


def _read_chunk(stream: BufferedReader) -> bytes:
    """About so many bytes as are taken at a time, fewer only at the end."""
    found = []
    missing = _CHUNK_BYTES
    # Not read(): it would gather them in one go, during which Ctrl-C can go unnoticed.
    while missing > 0 and (data := stream.read1(missing)):
        found.append(data)
        missing -= len(data)
    return b"".join(found)
