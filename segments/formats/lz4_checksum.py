"""The header checksum of LZ4 frames, which Kafka's message format v0 (magic 0) computes wrongly.

A frame's header ends with a checksum of its descriptor: the second byte of its xxHash32. Clients of
message format v0 hash the frame's magic number too, and accept nothing else (KIP-57). From v1 on
the checksum is the one of LZ4's specification.
"""

from __future__ import annotations

from typing import Final

from txnlog.segments.batch_header import BytesLike

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
