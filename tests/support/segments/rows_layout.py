"""Kafka's batches of magic 2 by hand: bytes from fields and back, record by record.

Shares no code with txnlog. Offsets and sizes are those of docs/FORMAT.md; what is written here
may be wrong on purpose, but for the checksum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.support.segments.segment_layout import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")


def zigzag(number: int) -> int:
    return (number << 1) ^ (number >> 63)


def varint(number: int, *, padded_to: int = 1) -> bytes:
    """A zig-zag varint; ``padded_to`` adds bytes that say nothing."""
    rest, out = zigzag(number) & ((1 << 64) - 1), bytearray()
    while rest > 0x7F or len(out) + 1 < padded_to:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def fields(
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    *,
    timestamp_delta: int = 0,
    offset_delta: int = 0,
    headers: list[tuple[bytes | None, bytes | None]] | None = None,
    attributes: int = 0,
) -> bytes:
    """What follows a record's length."""
    found = headers or []
    return b"".join(
        [
            bytes([attributes]),
            varint(timestamp_delta),
            varint(offset_delta),
            nullable(key),
            nullable(value),
            varint(len(found)),
            *[nullable(name) + nullable(content) for name, content in found],
        ]
    )


def record(*args: object, **named: object) -> bytes:
    """One record, length included."""
    body = fields(*args, **named)  # type: ignore[arg-type]
    return varint(len(body)) + body


def batch(
    payload: bytes,
    count: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    length: int | None = None,
) -> bytes:
    """A batch with a right checksum, whatever the rest says."""
    covered = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    covered += payload
    size = len(covered) + 9 if length is None else length
    return struct.pack(">qiibI", base_offset, size, leader_epoch, 2, crc32c(covered)) + covered


def resealed_rows(data: bytes, changes: dict[int, bytes]) -> bytes:
    """The batch with bytes replaced at positions and the checksum made right again."""
    changed = bytearray(data)
    for at, new in changes.items():
        changed[at : at + len(new)] = new
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


@dataclass
class RawRecord:
    """One record as found in the bytes; ``size`` includes its length."""

    size: int
    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def nullable(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at]


def raw_records(payload: bytes) -> list[RawRecord]:
    """The records of an uncompressed payload."""
    reader, found = _Reader(payload), []
    while reader.at < len(payload):
        start = reader.at
        size = reader.varint()
        size += reader.at - start
        attributes = payload[reader.at]
        reader.at += 1
        numbers = reader.varint(), reader.varint()
        contents = reader.nullable(), reader.nullable()
        headers = [(reader.nullable(), reader.nullable()) for _ in range(reader.varint())]
        assert reader.at == start + size
        found.append(RawRecord(size, attributes, *numbers, *contents, headers))
    return found
