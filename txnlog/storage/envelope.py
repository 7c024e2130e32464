r"""The frame around every small persisted object: format version, checksum, one JSON object.

    {"format":1,"checksum":"9a3c01ff","kind":"append",...}\n

The checksum is the CRC-32C of every byte after the comma that follows it, so it needs no
canonical JSON and a person can still read the file. Knows nothing of what the objects mean.
"""

from __future__ import annotations

import re
from typing import TypeVar, cast

import msgspec
from crc32c import crc32c

from txnlog.errors import CorruptEntry, InvalidOption, UnsupportedVersion
from txnlog.limits import MOST_BYTES, MOST_ITEMS

FORMAT_VERSION = 1
"""It rises when something is kept that a version before it would misread, see docs/FORMAT.md."""

_HEAD = re.compile(rb'\{"format":(\d{1,9}),"checksum":"([0-9a-f]{8})",')
_FORMAT = re.compile(rb'\{"format":(\d{1,9})[,}]')

_BYTES_PER_BRACKET = 32

T = TypeVar("T")


def encode(value: msgspec.Struct) -> bytes:
    """Serialise a struct with its format version and checksum, ending in a newline.

    Raises CorruptEntry: it is larger than what :func:`decode` takes of its kind.
    """
    body = msgspec.json.encode(value)[1:] + b"\n"
    data = b'{"format":%d,"checksum":"%08x",' % (FORMAT_VERSION, crc32c(body)) + body
    if (excess := _excess(data, type(value))) is not None:
        raise CorruptEntry(f"a {type(value).__name__} {excess}")
    return data


def encode_readable(value: T, decoder: msgspec.json.Decoder[T], what: str, path: str) -> bytes:
    """Serialise what callers have given values for: what nobody can read makes a log useless.

    Raises InvalidOption: a value has the wrong type, or is over a limit; ``what`` it is of.
    """
    try:
        data = encode(cast("msgspec.Struct", value))
        decode(data, decoder, path)
    except (CorruptEntry, TypeError, ValueError) as error:
        raise InvalidOption(
            f"{what}: nothing was written, because it could not be read again: {error}"
        ) from error
    return data


def _excess(data: bytes, kind: object) -> str | None:
    """What an object of this type has too much of; None if nothing.

    Two characters can be an object that takes 200 bytes in memory, and lists are only measured once
    they are made: so their brackets are counted, of which a sound one has few for its size.
    """
    most: int = getattr(kind, "most_bytes", MOST_BYTES)  # a union of entries has none of its own
    if len(data) > most:
        return f"has {len(data)} bytes, and nothing of its kind is over {most}"
    if len(data) > MOST_ITEMS:
        count = data.count(b"{") + data.count(b"[")
        if count > MOST_ITEMS + len(data) // _BYTES_PER_BRACKET:
            return f"has {count} lists and objects in {len(data)} bytes"
    return None


def is_sound(data: bytes) -> bool:
    """Whether these are the bytes that :func:`encode` has made, whatever they say."""
    head = _HEAD.match(data)
    if head is None or int(head[1]) != FORMAT_VERSION:
        return False
    return bool(crc32c(memoryview(data)[head.end() :]) == int(head[2], 16))


def decode(data: bytes, decoder: msgspec.json.Decoder[T], path: str) -> T:
    """Check and decode what :func:`encode` wrote.

    What it says is within the limits of the struct's types (``txnlog/limits.py``). Raises
    UnsupportedVersion: a newer txnlog wrote it. CorruptEntry: anything else is wrong; the message
    names ``path``.
    """
    version = _FORMAT.match(data)
    if version and int(version[1]) > FORMAT_VERSION:
        raise UnsupportedVersion(
            f"{path} has format version {int(version[1])}; this txnlog reads versions up to "
            f"{FORMAT_VERSION}: install a newer txnlog to use this store"
        )
    if (excess := _excess(data, decoder.type)) is not None:
        raise CorruptEntry(
            f"{path} {excess}: txnlog did not write it; restore this file from a backup"
        )
    head = _HEAD.match(data)
    if head is None or int(head[1]) < 1:
        raise CorruptEntry(
            f"{path} is damaged: it does not begin with a format version and a checksum "
            f"({len(data)} bytes); restore this file from a backup"
        )
    body = data[head.end() :]
    if crc32c(body) != int(head[2], 16):
        raise CorruptEntry(
            f"{path} is damaged: its checksum is {crc32c(body):08x}, "
            f"{head[2].decode()} was written; restore this file from a backup"
        )
    try:
        return decoder.decode(b"{" + body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptEntry(
            f"{path} does not decode: {error}; restore this file from a backup"
        ) from error
