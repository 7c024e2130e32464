"""A Parquet footer in which columns have other names, for engines that find them by these.

The footer is a struct in Thrift's compact protocol; of that no more is understood than it takes to
find the names. Everything else stays byte for byte, and so does the rest of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_LENGTH_BYTES: Final = 4
_TAIL_BYTES: Final = 8  # the footer's length and the magic

# Thrift's compact types; Parquet has no maps.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _, _STRUCT = range(1, 13)
_MANY: Final = 15
"""Instead of a count: it follows."""
_MAX_DEPTH: Final = 32
_MAX_BITS: Final = 63

# Fields of Parquet's FileMetaData and SchemaElement.
_SCHEMA: Final = 2
_NAME: Final = 4
_FIELD_ID: Final = 9


def rename_columns(tail: bytes, names: Mapping[int, str]) -> bytes:
    """The end of a file, from its footer on, where columns have these names by their ids.

    Columns with other ids get names that no column of a topic has; those without one keep theirs.
    Raises ValueError: it is no such footer.
    """
    footer = tail[:-_TAIL_BYTES]
    pieces, position = [], 0
    for start, stop, number in _Footer(footer).find_names():
        name = names.get(number, f"\0{number}").encode()
        pieces += [footer[position:start], _varint(len(name)), name]
        position = stop
    renamed = b"".join([*pieces, footer[position:]])
    return renamed + len(renamed).to_bytes(_LENGTH_BYTES, "little") + tail[-_LENGTH_BYTES:]


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


class _Footer:
    """Reads a footer from its beginning on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def find_names(self) -> list[tuple[int, int, int]]:
        """For each column with an id, the position of its name, after its length, and the id."""
        found = []
        for field, kind in self._fields():
            if field != _SCHEMA:
                self._skip(kind)
                continue
            for _ in range(self._list_head()[0]):
                place = self._find_name()
                if place is not None:
                    found.append(place)
        return found

    def _find_name(self) -> tuple[int, int, int] | None:
        start = stop = number = -1
        for field, kind in self._fields():
            before = self._at
            if field == _FIELD_ID:
                number = self._integer()
                continue
            self._skip(kind)
            if field == _NAME:
                start, stop = before, self._at
        return (start, stop, number) if start >= 0 and number >= 0 else None

    def _fields(self) -> Iterator[tuple[int, int]]:
        """The numbers and types of a struct's fields. The caller reads each before the next."""
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._integer()
            yield field, head & 0xF

    def _skip(self, kind: int, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError(f"the footer is nested more than {_MAX_DEPTH} levels deep")
        if kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            self._advance(self._varint())
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            count, inner = self._list_head()
            for _ in range(count):
                # Outside of a list the type of a boolean is its value.
                self._skip(_BYTE if inner in (_TRUE, _FALSE) else inner, depth + 1)
        elif kind in (_BYTE, _DOUBLE):
            self._advance(1 if kind == _BYTE else 8)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"the footer has a value of type {kind}")

    def _list_head(self) -> tuple[int, int]:
        """How many elements follow, of which type."""
        head = self._byte()
        count = head >> 4
        return (self._varint() if count == _MANY else count), head & 0xF

    def _byte(self) -> int:
        self._advance(1)
        return self._data[self._at - 1]

    def _advance(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise ValueError("the footer ends within a value")

    def _integer(self) -> int:
        zigzag = self._varint()
        return zigzag >> 1 ^ -(zigzag & 1)

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > _MAX_BITS:
                raise ValueError("the footer has a number that is malformed")
        return number | byte << shift
