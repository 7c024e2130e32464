"""Kafka's varints, many at a time: zig-zag encoded, 7 bits a byte, the lowest first.

Every function works on one varint per record, for all records of a batch at once; numpy does the
loops. Knows arrays of bytes and positions, and nothing of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from txnlog.segments.batch_header import BytesLike
from txnlog.segments.records import Int64Array

UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]

VARINT_BITS: Final = 32
VARLONG_BITS: Final = 64

_SEVEN = np.uint64(7)
_CONTINUES = 0x80
# What a varint of one byte stands for: nearly all of them are.
_ONE_BYTE = np.array([(n >> 1) ^ -(n & 1) for n in range(_CONTINUES)], dtype=np.int64)


def read_varints(
    data: UInt8Array, at: Int64Array, bits: int = VARINT_BITS
) -> tuple[Int64Array, Int64Array]:
    """The varints that start at the positions ``at``, and the positions behind them.

    ``data`` is not empty. Positions outside it are read as its last byte: whoever follows
    positions that only grow, and checks where the last one must lie, has checked them all. Bytes
    that add nothing (a padded varint) are taken as Kafka takes them. Raises ValueError for more
    bytes or bits than a number of ``bits`` has.
    """
    byte = data.take(at, mode="clip")
    if len(at) == 0 or int(byte.max()) < _CONTINUES:
        return _ONE_BYTE.take(byte), at + 1
    value = (byte & 0x7F).astype(np.uint64)
    width = np.ones(len(at), dtype=np.int64)
    rows = np.flatnonzero(byte >= _CONTINUES)
    most_bytes = -(-bits // 7)
    for count in range(1, most_bytes):
        byte = data.take(at[rows] + count, mode="clip")
        if count == most_bytes - 1 and int(byte.max()) >> (bits - 7 * count):
            break
        value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
        width[rows] += 1
        rows = rows[byte >= _CONTINUES]
        if len(rows) == 0:
            return _from_zigzag(value), at + width
    raise ValueError(f"a varint is longer than its {bits} bits")


def read_varint(data: BytesLike, at: int) -> tuple[int, int]:
    """One varint of 32 bits by itself: the number and the position behind it. Raises as above."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("a varint is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            if value >> VARINT_BITS:
                raise ValueError(f"a varint is longer than its {VARINT_BITS} bits")
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= VARINT_BITS:
            raise ValueError(f"a varint is longer than its {VARINT_BITS} bits")


def varint_sizes(values: Int64Array) -> Int64Array:
    """Bytes that each number takes as a varint."""
    zigzag = _to_zigzag(values)
    sizes = np.ones(len(values), dtype=np.int64)
    if len(values):
        most = int(zigzag.max())
        for bits in range(7, most.bit_length(), 7):
            sizes += zigzag >= np.uint64(1 << bits)
    return sizes


def write_varints(columns: Sequence[Int64Array]) -> tuple[UInt8Array, Int64Array]:
    """The varints of each row, one after the other: all bytes, and how many each row takes.

    ``columns`` are of the same length: the first number of every row, the second and so on.
    """
    count = len(columns[0])
    cells: list[UInt8Array] = []  # one column of bytes for each byte that some row needs
    used: list[npt.NDArray[np.bool_] | None] = []  # which rows need it; None: all
    for column in columns:
        rest = _to_zigzag(column)
        present: npt.NDArray[np.bool_] | None = None
        while True:
            more = rest >= np.uint64(_CONTINUES)
            byte = (rest & np.uint64(0x7F)).astype(np.uint8)
            cells.append(np.where(more, byte | np.uint8(_CONTINUES), byte))
            used.append(present)
            if not more.any():
                break
            present = None if bool(more.all()) else more
            rest = rest >> _SEVEN
    table = np.empty((count, len(cells)), dtype=np.uint8)
    for number, cell in enumerate(cells):
        table[:, number] = cell
    if all(present is None for present in used):
        return table.reshape(-1), np.full(count, len(cells), dtype=np.int64)
    mask = np.ones(table.shape, dtype=np.bool_)
    for number, present in enumerate(used):
        if present is not None:
            mask[:, number] = present
    return table[mask], mask.sum(axis=1, dtype=np.int64)


def _to_zigzag(values: Int64Array) -> UInt64Array:
    zigzag: UInt64Array = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return zigzag


def _from_zigzag(values: UInt64Array) -> Int64Array:
    one = np.uint64(1)
    numbers: Int64Array = (values >> one).view(np.int64) ^ -((values & one).view(np.int64))
    return numbers
