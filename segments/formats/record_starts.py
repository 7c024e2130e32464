"""Finds where the records of a rows payload start: each after the previous one's length.

Follows the chain of length varints. Records of one size are found together, by comparing all their
length bytes at once; only when sizes change is a record handled by itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from txnlog.segments.batch_header import BytesLike
from txnlog.segments.formats.varints import UInt8Array, read_varint, read_varints
from txnlog.segments.records import Int64Array

# How many records are followed one by one before looking for repeated sizes again.
_SINGLE_STEPS: Final = 256


class RecordStarts:
    """Walks a payload; ``position`` is where the next record's length varint starts."""

    def __init__(self, data: BytesLike, array: UInt8Array) -> None:
        self._data = bytes(data)  # indexing bytes is a third faster than a memoryview
        self._array = array
        self.position = 0

    def next(self, count: int) -> tuple[Int64Array, Int64Array]:
        """The starts, after the length, and ends of the fields of the next ``count`` records.

        Raises ValueError if they do not all lie in the payload.
        """
        found: list[Int64Array] = []
        left = count
        while left:
            singles = self._follow(min(left, _SINGLE_STEPS))
            found.append(singles)
            left -= len(singles)
            size = self.position - int(singles[-1])
            if left and len(singles) > 1 and singles[-1] - singles[-2] == size:
                same = self._find_repeats(size, left)
                found.append(same)
                left -= len(same)
        starts = np.concatenate(found)
        lengths, fields = read_varints(self._array, starts)
        ends = fields + lengths
        if self.position > len(self._data):
            raise ValueError("a record reaches beyond the payload")
        return fields, ends

    def _follow(self, count: int) -> Int64Array:
        data, position, size_bytes = self._data, self.position, len(self._data)
        starts = []
        for _ in range(count):
            starts.append(position)
            if position >= size_bytes:
                raise ValueError("there are fewer records than the header counts")
            byte = data[position]
            if byte < 0x80:
                position += 1 + (byte >> 1)
            elif position + 1 < size_bytes and (high := data[position + 1]) < 0x80:
                position += 2 + ((high << 6) | ((byte & 0x7F) >> 1))
            else:
                length, behind = read_varint(data, position)
                position = behind + length
            if byte & 1:
                raise ValueError("the length of a record is negative")
        self.position = position
        return np.array(starts, dtype=np.int64)

    def _find_repeats(self, size: int, most: int) -> Int64Array:
        """Starts of the records from here on that have the same length bytes as the last one."""
        last = self.position - size
        most = max(min(most, (len(self._data) - self.position) // size), 0)
        _, behind = read_varint(self._data, last)
        for place in range(behind - last):
            first = self.position + place
            column = self._array[first : first + most * size : size][:most]
            differs = column != self._data[last + place]
            if len(column) and bool(differs.any()):
                most = int(differs.argmax())
            if most == 0:
                break
        starts = self.position + size * np.arange(most, dtype=np.int64)
        self.position += size * most
        return starts
