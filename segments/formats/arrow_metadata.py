"""Reads Arrow IPC's metadata as far as needed to know what decoding would allocate.

Arrow decompresses whatever sizes the bytes claim. This module finds those claims: it walks the
flatbuffers of an encapsulated stream (schema, record batches, end), as laid down in Arrow's
``Message.fbs`` and ``Schema.fbs``, and knows nothing of records. Everything here is little endian,
as Arrow is.

All functions raise ValueError, IndexError or struct.error if the bytes are not what they must be.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

CODEC_LZ4_FRAME: Final = 0
CODEC_ZSTD: Final = 1

_CONTINUATION = 0xFFFFFFFF
_TYPE_SCHEMA = 1
_TYPE_RECORD_BATCH = 3
_PREFIX = struct.Struct("<II")  # continuation, metadata length
_INT64 = struct.Struct("<q")
_FIELD_BYTES = 16
_PAIR_BYTES = 8
"""What a column, or a pair of metadata, takes at least besides its texts."""
_MAX_DEPTH: Final = 32
_TYPES: Final = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 16, 17, 18, 19, 20, 21))
"""Of Arrow's types, by their numbers, all but intervals, unions, runs and views."""
_NOT_COMPRESSED = -1  # instead of the uncompressed length, before a buffer that is stored as it is


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The claims of a record batch about itself. Sizes in bytes."""

    row_count: int
    codec: int | None
    uncompressed_bytes: int


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """The size of a stream's first message, which is the schema, and its record batches."""

    schema_message_bytes: int
    batches: tuple[BatchLayout, ...]


def read_layout(stream: memoryview) -> StreamLayout:
    """Walk a stream that must be exactly a schema, record batches and the end-of-stream mark."""
    schema, position = _read_message(stream, 0)
    if schema.type != _TYPE_SCHEMA or schema.body_bytes != 0:
        raise ValueError("the Arrow stream does not start with a schema")
    schema_message_bytes = position
    batches = []
    while len(stream) - position > _PREFIX.size:
        batch, stop = _read_message(stream, position)
        if batch.type != _TYPE_RECORD_BATCH:
            raise ValueError("the Arrow schema is not followed by a record batch")
        batches.append(_read_batch_layout(batch.table, stream[stop - batch.body_bytes : stop]))
        position = stop
    if _PREFIX.unpack(stream[position:]) != (_CONTINUATION, 0):
        raise ValueError("the Arrow record batch is not followed by the end of the stream")
    return StreamLayout(schema_message_bytes, tuple(batches))


def check_schema(message: memoryview) -> None:
    """Raise ValueError unless a schema's message is one that may be decoded.

    A flatbuffer may refer to the same text from many places: each would become one of its own.
    """
    schema, stop = _read_message(message, 0)
    if schema.type != _TYPE_SCHEMA or schema.body_bytes != 0 or stop != len(message):
        raise ValueError("it is not an Arrow schema")
    left = _Allowance(len(message))
    left.pairs(schema.table, 2)
    waiting = [(field, 1) for field in schema.table.tables(1)]
    while waiting:
        field, depth = waiting.pop()
        left.take(field.text_bytes(0) + _FIELD_BYTES)
        left.pairs(field, 6)
        kind = field.scalar(2, "B")
        if kind not in _TYPES or field.table(4) is not None:
            what = "dictionary" if kind in _TYPES else kind
            raise ValueError(f"it has a column of Arrow's type {what}")
        if depth > _MAX_DEPTH:
            raise ValueError(f"its columns are nested more than {_MAX_DEPTH} levels deep")
        waiting += [(child, depth + 1) for child in field.tables(5)]


@dataclass(slots=True)
class _Allowance:
    """How many bytes of text a schema may still have: each byte of its message is used once."""

    left: int

    def take(self, size_bytes: int) -> None:
        self.left -= size_bytes
        if self.left < 0:
            raise ValueError("parts of it are used more than once")

    def pairs(self, table: _Table, number: int) -> None:
        for pair in table.tables(number):
            self.take(pair.text_bytes(0) + pair.text_bytes(1) + _PAIR_BYTES)


@dataclass(frozen=True, slots=True)
class _Table:
    """A flatbuffers table: its fields are found through a vtable of 16-bit offsets."""

    data: memoryview
    start: int

    def _field(self, number: int) -> int | None:
        (back,) = struct.unpack_from("<i", self.data, _check_inside(self.data, self.start))
        vtable = _check_inside(self.data, self.start - back)
        (vtable_bytes,) = struct.unpack_from("<H", self.data, vtable)
        slot = 4 + 2 * number
        if slot + 2 > vtable_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self.data, vtable + slot)
        return self.start + offset if offset else None

    def scalar(self, number: int, code: str) -> int:
        """A number, 0 if the field is left out."""
        position = self._field(number)
        if position is None:
            return 0
        value: int = struct.unpack_from("<" + code, self.data, position)[0]
        return value

    def target(self, number: int) -> int | None:
        """The start of the table or vector to which the field refers; None if it is left out."""
        position = self._field(number)
        if position is None:
            return None
        (offset,) = struct.unpack_from("<I", self.data, position)
        return _check_inside(self.data, position + offset)

    def table(self, number: int) -> _Table | None:
        start = self.target(number)
        return None if start is None else _Table(self.data, start)

    def tables(self, number: int) -> list[_Table]:
        """The tables of a vector."""
        start = self.target(number)
        if start is None:
            return []
        (count,) = struct.unpack_from("<I", self.data, start)
        first = start + 4
        if first + 4 * count > len(self.data):
            raise ValueError("Arrow metadata points outside itself")
        places = struct.unpack_from(f"<{count}I", self.data, first)
        return [
            _Table(self.data, _check_inside(self.data, first + 4 * at + place))
            for at, place in enumerate(places)
        ]

    def text_bytes(self, number: int) -> int:
        """The length of a text, 0 if it is left out."""
        start = self.target(number)
        if start is None:
            return 0
        (length,) = struct.unpack_from("<I", self.data, start)
        return int(length)


@dataclass(frozen=True, slots=True)
class _Message:
    type: int
    body_bytes: int
    table: _Table


def _check_inside(data: memoryview, position: int) -> int:
    # struct counts negative positions from the end; here they can only be damage.
    if not 0 <= position < len(data):
        raise ValueError("Arrow metadata points outside itself")
    return position


def _read_message(stream: memoryview, start: int) -> tuple[_Message, int]:
    """The message at ``start`` and the position after its body."""
    continuation, metadata_bytes = _PREFIX.unpack_from(stream, start)
    body = start + _PREFIX.size + metadata_bytes
    if continuation != _CONTINUATION or body > len(stream):
        raise ValueError("not an Arrow message")
    metadata = stream[start + _PREFIX.size : body]
    (root,) = struct.unpack_from("<I", metadata)
    message = _Table(metadata, _check_inside(metadata, root))
    body_bytes = message.scalar(3, "q")
    table = message.table(2)
    if table is None or not 0 <= body_bytes <= len(stream) - body:
        raise ValueError("an Arrow message has a wrong body length")
    return _Message(message.scalar(1, "B"), body_bytes, table), body + body_bytes


def _read_batch_layout(batch: _Table, body: memoryview) -> BatchLayout:
    compression = batch.table(3)
    buffers = batch.target(2)
    total = 0
    if buffers is not None:
        (count,) = struct.unpack_from("<I", batch.data, buffers)
        first = buffers + 4
        if first + 16 * count > len(batch.data):
            raise ValueError("an Arrow record batch has more buffers than metadata")
        for offset, length in struct.iter_unpack("<qq", batch.data[first : first + 16 * count]):
            if offset < 0 or length < 0 or offset + length > len(body):
                raise ValueError("an Arrow buffer lies outside its record batch")
            claimed = length
            if compression is not None and length:
                (claimed,) = _INT64.unpack_from(body, offset)
                if claimed == _NOT_COMPRESSED:
                    claimed = length - _INT64.size
                elif claimed < 0:
                    raise ValueError("an Arrow buffer claims a negative size")
            total += claimed
    return BatchLayout(
        row_count=batch.scalar(0, "q"),
        codec=None if compression is None else compression.scalar(0, "b"),
        uncompressed_bytes=total,
    )
