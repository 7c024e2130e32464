"""Reads Thrift's compact protocol, in which Parquet's metadata is; whole structs by their form.

A form says which fields a struct may have, and of which types. Everything is checked while it is
read: what C++ would be given is known before it is. Fields without a form are passed by, so that
later versions of Parquet can add some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from txnlog.segments.batch_header import BytesLike

# Thrift's compact types; Parquet has no maps.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _, _STRUCT = range(1, 13)
_MANY: Final = 15
"""Instead of a count: it follows."""
_MAX_DEPTH: Final = 32
_MAX_BITS: Final = 63
_I32_BITS: Final = 32
_SMALL: Final = [number >> 1 ^ -(number & 1) for number in range(0x80)]
"""The numbers that take one byte, by this."""
_MAX_FIELD: Final = (1 << 15) - 1

Fields: TypeAlias = Mapping[int, "Form"]
"""The forms of a struct's fields."""
Form: TypeAlias = tuple[int, Any]
"""A type, and of a struct its fields, of a list the most elements and their form."""

BOOLEAN: Final[Form] = (_TRUE, None)
BYTE: Final[Form] = (_BYTE, None)
I16: Final[Form] = (_I16, None)
I32: Final[Form] = (_I32, None)
I64: Final[Form] = (_I64, None)
BINARY: Final[Form] = (_BINARY, None)
REFUSED: Final[Form] = (-1, None)
"""Of a field that Parquet allows, and no segment has."""


def struct_of(fields: Fields) -> Form:
    return _STRUCT, fields


def list_of(most: int, element: Form) -> Form:
    return _LIST, (most, element)


def read_struct(data: BytesLike, at: int, fields: Fields) -> tuple[dict[int, Any], int]:
    """The fields of a struct that begins at a position, by number, and the position behind it.

    Raises ValueError: it has another form; IndexError: the data ends within it.
    """
    # Mostly in one piece: a footer has fifty values for each column, and calls take time.
    found: dict[int, Any] = {}
    field = 0
    while True:
        head = data[at]
        at += 1
        if not head:
            return found, at
        kind = head & 0xF
        if head >> 4:
            field += head >> 4
        else:
            field, at = _read_integer(data, at, _I16)
        if field not in fields:
            at = skip_field(data, at, field, kind)
            continue
        form = fields[field]
        if field in found:
            raise ValueError(f"field {field} is there twice")
        if _I16 <= kind <= _I64 and kind == form[0]:
            number = data[at]
            at += 1
            if number < 0x80:
                found[field] = _SMALL[number]
            elif data[at] < 0x80:
                number = number & 0x7F | data[at] << 7
                at += 1
                found[field] = number >> 1 ^ -(number & 1)
            else:
                found[field], at = _read_integer(data, at - 1, kind)
        elif kind == _BINARY == form[0] and data[at] < 0x80:
            length = data[at]
            at += 1 + length
            found[field] = data[at - length : at]
        elif kind == _STRUCT == form[0]:
            found[field], at = read_struct(data, at, form[1])
        else:
            found[field], at = read_value(data, at, kind, form)


def read_value(data: BytesLike, at: int, kind: int, form: Form) -> tuple[Any, int]:
    """A field of a type that begins at a position, and the position behind it.

    Raises what ``read_struct`` raises.
    """
    wanted, inner = form
    if kind != wanted and not (wanted == _TRUE and kind == _FALSE):
        raise ValueError(f"a value is of type {kind}, not {wanted}")
    if kind == _STRUCT:
        return read_struct(data, at, inner)
    if kind == _LIST:
        return _read_list(data, at, *inner)
    if kind == _BINARY:
        length, at = _read_varint(data, at)
        return data[at : at + length], at + length
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind == _BYTE:
        return data[at], at + 1
    return _read_integer(data, at, kind)


def skip_field(data: BytesLike, at: int, field: int, kind: int) -> int:
    """Skip a field that ``Form`` does not describe; returns the position after it."""
    if not 0 < field <= _MAX_FIELD:  # C++ would take it for another one
        raise ValueError(f"there is a field {field}")
    reader = CompactReader(data)
    reader.at = at
    reader.skip(kind)
    return reader.at


def read_list_head(data: BytesLike, at: int, most: int, element: Form) -> tuple[int, int]:
    """How many elements a list has that begins at a position, and the position of the first."""
    wanted = element[0]
    head = data[at]
    count, at = head >> 4, at + 1
    if count == _MANY:
        count, at = _read_varint(data, at)
    if count and head & 0xF != wanted:
        raise ValueError(f"a list is of type {head & 0xF}, not {wanted}")
    if count > min(most, len(data) - at):
        raise ValueError(f"a list claims {count} elements")
    return count, at


def _read_list(data: BytesLike, at: int, most: int, element: Form) -> tuple[list[Any], int]:
    count, at = read_list_head(data, at, most, element)
    wanted, inner = element
    values: list[Any] = []
    if _I16 <= wanted <= _I64:
        stop = at + count
        few = data[at:stop]
        if count and max(few) < 0x80:  # each number has one byte
            return [_SMALL[byte] for byte in few], stop
        for _ in range(count):
            value, at = _read_integer(data, at, wanted)
            values.append(value)
    elif wanted == _STRUCT:
        for _ in range(count):
            fields, at = read_struct(data, at, inner)
            values.append(fields)
    else:
        for _ in range(count):
            value, at = read_value(data, at, wanted, element)
            values.append(value)
    return values, at


def _read_integer(data: BytesLike, at: int, kind: int) -> tuple[int, int]:
    number, at = _read_varint(data, at)
    if kind != _I64 and number >> _I32_BITS:
        raise ValueError("a number is too large for its type")
    return number >> 1 ^ -(number & 1), at


def _read_varint(data: BytesLike, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > _MAX_BITS:
            raise ValueError("a number is malformed")


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
        try:
            number, self.at = _read_varint(self.data, self.at)
        except IndexError:
            raise ValueError("the footer ends within a value") from None
        except ValueError:
            raise ValueError("the footer has a number that is malformed") from None
        return number


def varint(number: int) -> bytes:
    """A number that is not negative, such as a length."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def field_head(before: int, field: int, kind: int) -> bytes:
    """The head of a struct's field that follows field ``before``, which has a smaller number."""
    if field - before <= _MANY:
        return bytes([field - before << 4 | kind])
    return bytes([kind]) + varint(field << 1)
