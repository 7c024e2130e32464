"""Reads Thrift's compact protocol, in which Parquet's footers are, as far as editing one takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txnlog.segments.batch_header import BytesLike

# Thrift's compact types; Parquet has no maps.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _, _STRUCT = range(1, 13)
_MANY: Final = 15
"""Instead of a count: it follows."""
_MAX_DEPTH: Final = 32
_MAX_BITS: Final = 63


class CompactReader:
    """Reads a struct from its beginning on. Raises ValueError for what is none."""

    def __init__(self, data: BytesLike) -> None:
        self.data = data
        self.at = 0
        """The position of the next value."""
        self.head_at = 0
        """The position of the head of the field before it."""

    def fields(self) -> Iterator[tuple[int, int]]:
        """The numbers and types of a struct's fields. The caller reads each before the next."""
        field = 0
        while True:
            head_at = self.at
            head = self._byte()
            if not head:
                return
            field = field + (head >> 4) if head >> 4 else self.integer()
            self.head_at = head_at
            yield field, head & 0xF

    def skip(self, kind: int, depth: int = 0) -> None:
        """Pass by a value of this type."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"the footer is nested more than {_MAX_DEPTH} levels deep")
        if kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            self._advance(self._varint())
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            count, inner = self.list_head()
            for _ in range(count):
                # Outside of a list the type of a boolean is its value.
                self.skip(_BYTE if inner in (_TRUE, _FALSE) else inner, depth + 1)
        elif kind in (_BYTE, _DOUBLE):
            self._advance(1 if kind == _BYTE else 8)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"the footer has a value of type {kind}")

    def list_head(self) -> tuple[int, int]:
        """How many elements follow, of which type."""
        head = self._byte()
        count = head >> 4
        return (self._varint() if count == _MANY else count), head & 0xF

    def integer(self) -> int:
        """A whole number."""
        zigzag = self._varint()
        return zigzag >> 1 ^ -(zigzag & 1)

    def _byte(self) -> int:
        self._advance(1)
        return self.data[self.at - 1]

    def _advance(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise ValueError("the footer ends within a value")

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > _MAX_BITS:
                raise ValueError("the footer has a number that is malformed")
        return number | byte << shift


def varint(number: int) -> bytes:
    """A number that is not negative, such as a length."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def field_head(before: int, field: int, kind: int) -> bytes:
    """The head of a struct's field behind another one, whose number is less."""
    if field - before <= _MANY:
        return bytes([field - before << 4 | kind])
    return bytes([kind]) + varint(field << 1)
