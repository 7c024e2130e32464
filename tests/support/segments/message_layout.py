"""Kafka's old messages (magic 0 and 1) by hand, sharing no code with txnlog."""

from __future__ import annotations

import struct
import zlib


def message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp: int = -1,
    attributes: int = 0,
    size: int | None = None,
    key_size: int | None = None,
    value_size: int | None = None,
) -> bytes:
    """One message with a right checksum, whatever its sizes say."""

    def sized(data: bytes | None, says: int | None) -> bytes:
        length = -1 if data is None else len(data)
        return struct.pack(">i", length if says is None else says) + (data or b"")

    body = struct.pack(">bB", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += sized(key, key_size) + sized(value, value_size)
    head = struct.pack(">qiI", offset, len(body) + 4 if size is None else size, zlib.crc32(body))
    return head + body


def resealed_message(data: bytes, changes: dict[int, bytes]) -> bytes:
    """The message with bytes replaced at positions and the checksum made right again."""
    changed = bytearray(data)
    for at, new in changes.items():
        changed[at : at + len(new)] = new
    changed[12:16] = zlib.crc32(changed[16:]).to_bytes(4, "big")
    return bytes(changed)
