"""Records from a stream of bytes: lines of text, or JSON lines; as Arrow batches for a producer.

Bounded in memory: a piece of the stream at a time, and no line longer than a record may be. A paced
stream gives a batch without rows when its wait times out. Records before a wrong line are yielded
before the error.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.errors import InvalidRecord, RecordTooLarge
from txnlog.schema import PARTITION, TIMESTAMP
from txnlog.segments.records import (
    HEADERS_TYPE,
    MAX_TIMESTAMP_MS,
    TIMESTAMP_TYPE,
    record_sizes,
)

if TYPE_CHECKING:
    from txnlog.write.paced_stream import PacedStream

_CHUNK_BYTES: Final = 4 << 20
BINARY_FACTOR: Final = 8
"""How many times longer than its record a line of JSON may be: \\u0000 is one byte."""

_TIMESTAMP_BYTES: Final = 8
_OF_FIXED_SIZE: Final = ("timestamp", "partition", TIMESTAMP, PARTITION)

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes a record: as the value, or as headers, key and value with delimiters.

    Headers before a ``header_delimiter`` are ``name=value,name=value``. ``null_marker`` means null,
    as a key, a value or the value of a header. ``headers`` are added to every record.
    """

    key_delimiter: bytes | None = None
    null_marker: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    header_delimiter: bytes | None = None


def read_lines(
    stream: BufferedReader | PacedStream, line_format: LineFormat, *, max_line_bytes: int
) -> Iterator[pa.RecordBatch]:
    """One record a line, in ``key``, ``value``, ``headers``; the last need not end in a newline.

    Raises InvalidRecord: a line has no delimiter, or no headers before it; the message has its
    number. RecordTooLarge: a line is longer than ``max_line_bytes``.
    """
    first = 1
    for chunk in read_line_chunks(stream, max_line_bytes):
        lines = pa.array([], pa.binary())
        if chunk is not None:
            whole = pa.array([chunk], pa.binary())
            lines = pc.list_flatten(pc.split_pattern(whole, pattern=b"\n"))
        batch, wrong = _parse_lines(lines, line_format, first)
        yield batch
        if wrong is not None:
            raise wrong
        first += len(lines)


def _parse_lines(
    lines: pa.Array, line_format: LineFormat, first: int
) -> tuple[pa.RecordBatch, InvalidRecord | None]:
    """The records of lines, up to the first wrong one, and its error."""
    marker, wrong = line_format.null_marker, None
    constant = [{"key": key, "value": value} for key, value in line_format.headers]
    # From no arrays Arrow makes nothing, not an empty array.
    headers: pa.Array = pa.repeat(pa.scalar(constant, HEADERS_TYPE), len(lines) or 1)[: len(lines)]
    rest = lines
    if line_format.header_delimiter is not None:
        texts, rest, wrong = _split(lines, line_format.header_delimiter, "header", first)
        own, unnamed = _parse_headers(texts, marker, first)
        wrong = unnamed or wrong
        headers = _join_headers(own, headers[: len(own)]) if constant else own
        rest = rest[: len(own)]
    keys: pa.Array = pa.repeat(pa.scalar(line_format.key, pa.binary()), len(rest))
    if line_format.key_delimiter is not None:
        keys, rest, keyless = _split(rest, line_format.key_delimiter, "key", first)
        wrong = keyless or wrong
    if marker is not None:
        keys, rest = _replace_marker(keys, marker), _replace_marker(rest, marker)
    columns = {"key": keys, "value": rest, "headers": headers[: len(rest)]}
    return pa.record_batch(columns), wrong


def _split(
    lines: pa.Array, delimiter: bytes, what: str, first: int
) -> tuple[pa.Array, pa.Array, InvalidRecord | None]:
    """The parts before and after the first delimiter of each line, up to a line without one."""
    parts = pc.split_pattern(lines, pattern=delimiter, max_splits=1)
    lacking = np.flatnonzero(pc.list_value_length(parts).to_numpy() < 2)
    wrong = None
    if lacking.size:
        row = int(lacking[0])
        wrong = InvalidRecord(f"line {first + row} has no {what} delimiter {delimiter!r}")
        parts = parts[:row]
    flat = pc.list_flatten(parts)
    evens = pa.array(np.arange(0, len(flat), 2))
    return flat.take(evens), flat.take(pc.add(evens, 1)), wrong


def _parse_headers(
    texts: pa.Array, marker: bytes | None, first: int
) -> tuple[pa.Array, InvalidRecord | None]:
    """The headers ``name=value,name=value`` of each line, up to a malformed one."""
    some = pc.if_else(pc.equal(texts, b""), pa.scalar(None, pa.binary()), texts)
    pairs = pc.split_pattern(some, pattern=b",")
    ends = np.cumsum(pc.fill_null(pc.list_value_length(pairs), 0).to_numpy(), dtype=np.int64)
    halves = pc.split_pattern(pc.list_flatten(pairs), pattern=b"=", max_splits=1)
    flat, lengths = pc.list_flatten(halves), pc.list_value_length(halves).to_numpy()
    starts, lacking = np.cumsum(lengths, dtype=np.int64) - lengths, lengths < 2
    names = flat.take(pa.array(starts))
    bad = lacking | pc.equal(names, b"").to_numpy(zero_copy_only=False) | _find_invalid(names)
    wrong = None
    if bad.any():
        row = int(np.searchsorted(ends, int(bad.argmax()), side="right"))
        wrong = InvalidRecord(
            f"line {first + row} has headers {texts[row].as_py()!r:.200}, which are not of the "
            "form name=value,name=value with names in UTF-8"
        )
        ends = ends[:row]
    count = int(ends[-1]) if ends.size else 0
    values = flat.take(pa.array(starts[:count] + 1))
    if marker is not None:
        values = _replace_marker(values, marker)
    keys = names[:count].cast(pa.string())
    items = pa.StructArray.from_arrays([keys, values], fields=[*HEADERS_TYPE.value_type])
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, type=HEADERS_TYPE), wrong


def _find_invalid(names: pa.Array) -> npt.NDArray[np.bool_]:
    """Which are not UTF-8; checked one by one only if some are not."""
    try:
        names.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([not _is_text(name) for name in names.to_pylist()])
    return np.zeros(len(names), bool)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _join_headers(own: pa.Array, others: pa.Array) -> pa.Array:
    """Each record's own headers, followed by the common ones."""
    lengths = np.concatenate([pc.list_value_length(part).to_numpy() for part in (own, others)])
    rows = np.tile(np.arange(len(own)), 2)
    items = pa.concat_arrays([own.flatten(), others.flatten()])
    order = np.argsort(np.repeat(rows, lengths), kind="stable")
    ends = np.cumsum(lengths[: len(own)] + lengths[len(own) :])
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(offsets, items.take(pa.array(order)), type=HEADERS_TYPE)


def _replace_marker(column: pa.Array, marker: bytes) -> pa.Array:
    return pc.if_else(pc.equal(column, marker), pa.scalar(None, pa.binary()), column)


JsonPartition = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
JsonTimestamp = Annotated[int, msgspec.Meta(ge=-MAX_TIMESTAMP_MS, le=MAX_TIMESTAMP_MS)]


class JsonBytes(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are not given as text."""

    base64: str | None = None
    hex: str | None = None


class JsonHeader(msgspec.Struct, forbid_unknown_fields=True):
    """A header of a record."""

    key: str
    value: str | JsonBytes | None


class JsonEnvelope(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a record has besides its value; the last three, its position, are ignored."""

    key: str | JsonBytes | msgspec.UnsetType | None = msgspec.UNSET
    headers: list[JsonHeader] = []
    timestamp_ms: JsonTimestamp | None = None
    partition: JsonPartition | None = None
    topic: str | None = None
    offset: int | None = None
    timestamp_type: str | None = None


class _JsonRecord(JsonEnvelope, kw_only=True):
    """The keys that ``records read -o jsonl`` prints.

    A line of any other shape is refused: as a record it would have no value, which is a tombstone.
    So a value is required, and null must be explicit.
    """

    value: str | JsonBytes | None


class _JsonKey(JsonEnvelope, kw_only=True):
    """A record of which the key alone counts, so it may lack a value."""

    value: str | JsonBytes | None = None


_SELDOM: Final = (b'"headers"', b'"timestamp_ms"', b'"partition"', b'"base64"', b'"hex"')
"""The other keys that count in a line."""


def may_repeat(line: bytes, record: JsonEnvelope, seldom: Sequence[bytes] = _SELDOM) -> bool:
    """Whether a key that counts may occur twice; a few lines with each once look so, too.

    Without an escaped ASCII character a name stands between quotes, and within a string only if it
    is the whole string.
    """
    header_count = len(record.headers)
    return (
        line.count(b'"value"') > header_count + 1
        or line.count(b'"key"') > header_count + (record.key is not msgspec.UNSET)
        or b"\\u00" in line
        or any(line.count(name) > 1 for name in seldom)
    )


def _refuse_twice(pairs: Sequence[tuple[str, object]]) -> None:
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"{name!r} is given twice")
        names.add(name)


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_refuse_twice)


def refuse_repeated(data: bytes) -> None:
    """Raise ValueError if an object, on any level, has a key twice: the last one would win."""
    try:
        _STRICT.decode(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_SHAPE: Final = (
    'A line is an object with a "value" and optionally "key", "headers", "timestamp_ms" and '
    '"partition", as `records read -o jsonl` prints it: {"key": "k", "value": "v"}; a tombstone '
    'says "value": null. To write whole lines as values add --value-is-line, for JSON of any '
    "shape, or use --input lines, whatever is in them"
)


_KEY_SHAPE: Final = (
    'A line is an object with a "key", and may be a whole record, as `records read -o jsonl` '
    'prints it: {"key": "k"}. For a key a line add --input lines'
)


def read_json_lines(
    stream: BufferedReader | PacedStream,
    *,
    headers: Headers = (),
    max_line_bytes: int,
    partition_count: int | None = None,
    keys_alone: bool = False,
) -> Iterator[pa.RecordBatch]:
    """One JSON object a line: ``value``, ``key``, ``headers``, ``timestamp_ms``, ``partition``.

    Bytes are a string (UTF-8), ``{"base64": "..."}``, ``{"hex": "..."}`` or null. ``value`` is
    required. ``topic``, ``offset`` and ``timestamp_type`` are ignored; any other key is refused,
    and so is a key given twice, unless it is ignored. Empty lines are skipped. ``headers``: more
    for every record. ``partition_count``: if given, a line whose partition is not below it is
    refused. ``keys_alone``: only the keys count, so a line may lack a value. Batches have the
    columns ``key``, ``value``, ``headers``, ``timestamp``, ``partition``.

    Raises InvalidRecord: a line is not such an object; the message has its number. RecordTooLarge:
    a line is far longer than ``max_line_bytes``.
    """
    decoder: msgspec.json.Decoder[_JsonRecord | _JsonKey]
    decoder = msgspec.json.Decoder(_JsonRecord)
    if keys_alone:
        decoder = msgspec.json.Decoder(_JsonKey)
    shape = _KEY_SHAPE if keys_alone else _SHAPE
    number = 0
    for chunk in read_line_chunks(stream, max_line_bytes * BINARY_FACTOR):
        records, wrong = [], None
        seldom = [name for name in _SELDOM if name in (chunk or b"")]
        for line in () if chunk is None else chunk.split(b"\n"):
            number += 1
            if not line.strip():
                continue
            try:
                record = decoder.decode(line)
                if may_repeat(line, record, seldom):  # a null that wins would delete
                    refuse_repeated(line)
                records.append(_to_row(record, headers, partition_count))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                wrong = InvalidRecord(f"line {number} is not a record: {error}. {shape}")
                break
        if records or chunk is None:
            yield _to_batch(records)
        if wrong is not None:
            raise wrong


def read_json_values(
    stream: BufferedReader | PacedStream,
    *,
    key: bytes | None = None,
    headers: Headers = (),
    max_line_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """One JSON text of any shape per line, taken as the value, with this key and headers.

    Empty lines are skipped. Batches have the columns ``key``, ``value`` and ``headers``. Raises
    InvalidRecord: a line is not JSON; the message has its number. RecordTooLarge: a line is longer
    than ``max_line_bytes``.
    """
    decoder = msgspec.json.Decoder(msgspec.Raw)
    line_format = LineFormat(key=key, headers=headers)
    number = 0
    for chunk in read_line_chunks(stream, max_line_bytes):
        values, wrong = [], None
        for line in () if chunk is None else chunk.split(b"\n"):
            number += 1
            if not line.strip():
                continue
            try:
                decoder.decode(line)
                line.decode()
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                wrong = InvalidRecord(
                    f"line {number} is not JSON: {error}. --input lines takes lines whatever is in "
                    "them"
                )
                break
            values.append(line)
        if values or chunk is None:
            yield _parse_lines(pa.array(values, pa.binary()), line_format, 0)[0]
        if wrong is not None:
            raise wrong


def stop_before_large(
    batches: Iterator[pa.RecordBatch], max_record_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The batches, up to the first record that is too large for a topic, typed or not.

    A producer that meets one in a batch loses the records buffered with it. Raises RecordTooLarge
    when it comes to that record, with its number in the message.
    """
    before = 0
    for batch in batches:
        counted = [n for n in batch.schema.names if n not in _OF_FIXED_SIZE]
        sizes = record_sizes(batch.select(counted)) + _TIMESTAMP_BYTES
        large = np.flatnonzero(sizes > max_record_bytes)
        if large.size:
            row = int(large[0])
            yield batch[:row]
            raise RecordTooLarge(
                f"record {before + row + 1} of the input takes {int(sizes[row])} bytes, and "
                f"max.message.bytes of the topic is {max_record_bytes}"
            )
        before += batch.num_rows
        yield batch


def decode_json_headers(text: str) -> list[tuple[str, bytes | None]]:
    """Headers as ``records read`` writes them. Raises ValueError."""
    try:
        found = msgspec.json.decode(text, type=list[JsonHeader])
    except RecursionError as error:
        raise ValueError("headers are nested too deeply") from error
    return [(header.key, decode_bytes(header.value)) for header in found]


_Row = tuple[bytes | None, bytes | None, list[dict[str, object]], int | None, int | None]


def _to_row(record: _JsonRecord | _JsonKey, headers: Headers, partition_count: int | None) -> _Row:
    if partition_count is not None and (record.partition or 0) >= partition_count:
        raise ValueError(
            f"there is no partition {record.partition}; the topic has {partition_count}, numbered "
            "from 0; null, or no partition, chooses by key"
        )
    own: list[dict[str, object]] = [
        {"key": header.key, "value": decode_bytes(header.value)} for header in record.headers
    ]
    own += [{"key": key, "value": value} for key, value in headers]
    key = None if record.key is msgspec.UNSET else decode_bytes(record.key)
    return key, decode_bytes(record.value), own, record.timestamp_ms, record.partition


def decode_bytes(data: str | JsonBytes | None) -> bytes | None:
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


def _to_batch(rows: Sequence[_Row]) -> pa.RecordBatch:
    keys, values, headers, stamps, partitions = zip(*rows, strict=True) if rows else ((),) * 5
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": pa.array(stamps, pa.int64()).cast(TIMESTAMP_TYPE),
            "partition": pa.array(partitions, pa.int32()),
        }
    )


def read_line_chunks(
    stream: BufferedReader | PacedStream, max_line_bytes: int
) -> Iterator[bytes | None]:
    """Whole lines, many at a time, without the last one's newline; None if none has arrived."""
    rest: list[bytes] = []
    rest_bytes = 0
    read = partial(_read_chunk, stream) if isinstance(stream, BufferedReader) else stream.read
    while (data := _read_or_refuse(read)) != b"":
        if data is None:
            yield None
            continue
        end = data.rfind(b"\n")
        if end >= 0:
            yield b"".join([*rest, data[:end]])
            rest, rest_bytes = [], 0
        rest.append(data[end + 1 :])
        rest_bytes += len(rest[-1])
        if end < 0 and rest_bytes > max_line_bytes:
            raise RecordTooLarge(
                f"a line is longer than {max_line_bytes} bytes, which is more than a record of "
                "this topic may have"
            )
    if rest_bytes:
        yield b"".join(rest)


def _read_or_refuse(read: Callable[[], bytes | None]) -> bytes | None:
    try:
        return read()
    except OSError as error:
        raise InvalidRecord(f"the input cannot be read: {error.strerror or error}") from error


def _read_chunk(stream: BufferedReader) -> bytes:
    """About as many bytes as are taken at a time, fewer only at the end."""
    found = []
    missing = _CHUNK_BYTES
    # Not read(): it would gather them in one go, during which Ctrl-C can go unnoticed.
    while missing > 0 and (data := stream.read1(missing)):
        found.append(data)
        missing -= len(data)
    return b"".join(found)
