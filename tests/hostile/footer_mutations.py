"""Changes to Parquet files: their footers, by Thrift's compact protocol, and their pages."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.hostile.mutations import NUMBERS, change_bytes, change_number, fill_bytes, flip_bits


def change_footer(random: Random, data: bytes) -> bytes:
    """The footer of a Parquet file, by its bytes or by what Thrift's compact protocol has there."""
    (size,) = struct.unpack("<i", data[-8:-4])
    body, footer = data[: -8 - size], data[-8 - size : -8]
    if random.random() < 0.5:
        footer = change_bytes(random, footer)
    else:
        fields, _ = read_struct(footer, 0)
        for _ in range(random.choice((1, 1, 2, 4))):
            _change_thrift(random, fields)
        footer = write_struct(fields)
    length = len(footer) if random.random() < 0.95 else random.choice((0, -1, 1 << 30, len(data)))
    return body + footer + struct.pack("<i", length) + data[-4:]


def change_pages(random: Random, data: bytes) -> bytes:
    """What lies before the footer: pages and their headers."""
    (size,) = struct.unpack("<i", data[-8:-4])
    body, tail = bytearray(data[4 : -8 - size]), data[-8 - size :]
    changed = bytes(body)
    for _ in range(random.choice((1, 1, 2, 5))):
        change = random.choice((flip_bits, change_number, change_number, fill_bytes, _header_byte))
        changed = change(random, bytearray(changed))
    return data[:4] + changed[: len(body)].ljust(len(body), b"\0") + tail


def _header_byte(random: Random, data: bytearray) -> bytes:
    """The first bytes, where the first page's header is."""
    at = random.randrange(min(40, len(data)))
    data[at] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFF, data[at] ^ 1, data[at] ^ 2))
    return bytes(data)


Thrift = list[list[Any]]
"""A struct: of each field its number, type and value. A list: its elements' type, and these."""


def read_struct(data: bytes, at: int) -> tuple[Thrift, int]:
    """A struct of Thrift's compact protocol, and where it ends."""
    fields: Thrift = []
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_integer(data, at)
        value, at = _read_value(data, at, head & 15)
        fields.append([number, head & 15, value])
    return fields, at + 1


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return None, at
    if kind == 3:
        return data[at : at + 1], at + 1
    if kind in (4, 5, 6):
        return _read_integer(data, at)
    if kind == 7:
        return data[at : at + 8], at + 8
    if kind == 8:
        count, at = _read_varint(data, at)
        return data[at : at + count], at + count
    if kind == 12:
        return read_struct(data, at)
    assert kind == 9
    head, at = data[at], at + 1
    count = head >> 4
    if count == 15:
        count, at = _read_varint(data, at)
    values = []
    for _ in range(count):
        inner = head & 15
        value, at = _read_value(data, at, 3 if inner in (1, 2) else inner)
        values.append(value)
    return [head & 15, values], at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return number, at


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _read_varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def write_struct(fields: Thrift) -> bytes:
    """The bytes of a struct, in the order of its fields, whatever that is."""
    pieces, last = [], 0
    for number, kind, value in fields:
        if 0 < number - last < 16:
            pieces.append(bytes([(number - last) << 4 | kind]))
        else:
            pieces += [bytes([kind]), _integer(number)]
        pieces.append(_value_bytes(kind, value))
        last = number
    return b"".join([*pieces, b"\0"])


def _value_bytes(kind: int, value: Any) -> bytes:
    if kind in (1, 2):
        return b""
    if kind in (3, 7):
        return bytes(value)
    if kind in (4, 5, 6):
        return _integer(value)
    if kind == 8:
        return _varint(len(value)) + bytes(value)
    if kind == 12:
        return write_struct(value)
    inner, values = value
    head = bytes([len(values) << 4 | inner]) if len(values) < 15 else bytes([0xF0 | inner])
    pieces = [_value_bytes(3 if inner in (1, 2) else inner, each) for each in values]
    return head + (_varint(len(values)) if len(values) >= 15 else b"") + b"".join(pieces)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _integer(number: int) -> bytes:
    wrapped = (number + (1 << 63)) % (1 << 64) - (1 << 63)
    return _varint(((wrapped << 1) ^ (wrapped >> 63)) & ((1 << 64) - 1))


def _change_thrift(random: Random, fields: Thrift) -> None:
    """One field anywhere in a struct is another, missing, or there twice."""
    structs = [*_structs(fields)]
    chosen = random.choice([found for found in structs if found])
    at = random.randrange(len(chosen))
    number, kind, value = chosen[at]
    what = random.randrange(8)
    if what == 0:
        del chosen[at]
    elif what == 1:
        chosen.insert(at, chosen[at])
    elif what == 2:
        chosen[at] = [random.choice((number + 1, 1, 20, 1000, -1)), kind, value]
    elif what == 3:
        donor = random.choice(random.choice([found for found in structs if found]))
        chosen[at] = [number, donor[1], donor[2]]
    elif kind == 9:
        inner, values = value
        chosen[at] = [
            number,
            kind,
            [inner, random.choice((values * 2, values[:-1], values * 50, []))],
        ]
    elif kind in (4, 5, 6):
        extremes = [n for n in NUMBERS if isinstance(n, int)]
        chosen[at] = [number, kind, random.choice((*extremes, value + 1, value - 1, -value))]
    elif kind == 8:
        chosen[at] = [number, kind, change_bytes(random, value)]
    else:
        chosen[at] = [number, random.choice((1, 2)), None] if kind in (1, 2) else chosen[at]


def _structs(fields: Thrift) -> Iterator[Thrift]:
    yield fields
    for _, kind, value in fields:
        if kind == 12:
            yield from _structs(value)
        elif kind == 9 and value[0] == 12:
            for each in value[1]:
                yield from _structs(each)
