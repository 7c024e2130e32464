"""How many fields the items in some bytes of Avro have, before fastavro and Arrow make room."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from txnlog.values.avro_schema import AvroType, named_types
from txnlog.values.rows import MOST_FIELDS, MOST_FIELDS_TOGETHER

TOO_SHORT: Final = "it ends too early, or is of another type"
_NUMBER_BITS: Final = 64
_PAIR: Final = 2
"""Fields of an item of a map besides what is in its value."""
_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}


def most_fields(kind: AvroType, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The most fields that values of these sizes in bytes can have."""
    each = 0.0
    for one in named_types(kind):
        if one.kind in ("array", "map"):
            is_map = one.kind == "map"
            item = one.parts[0]
            each = max(each, (item.width + _PAIR * is_map) / (item.least_bytes + is_map))
    return kind.width + (sizes * each).astype(np.int64)


def too_many_fields(kind: AvroType, value: memoryview) -> str | None:
    """Why a value is not read, if it is not."""
    try:
        _Fields(value).of(kind)
    except IndexError:
        return TOO_SHORT
    except _TooManyError as error:
        return f"it has more than {error} fields, those that are null included"
    return None


class _TooManyError(Exception):
    """A value has too many fields; has the number that is allowed."""


class _Fields:
    """Counts the fields in one value, and the columns of its items, whatever members of unions."""

    def __init__(self, value: memoryview) -> None:
        self._value = value
        self._at = 0
        self._fields = self._most_fields = MOST_FIELDS + len(value)
        self._columns = self._most_columns = MOST_FIELDS_TOGETHER + len(value)

    def of(self, kind: AvroType) -> None:
        """Skip a value and count it. Raises IndexError: its bytes are malformed; _TooManyError."""
        match kind.kind:
            case "null":
                pass
            case "int" | "long" | "enum":
                self._number()
            case "bytes" | "string":
                self._skip(self._number())
            case "record":
                self._spend(len(kind.fields))
                for one in kind.fields:
                    if one.type.least_bytes:
                        self.of(one.type)
                    else:
                        self._spend(one.type.width - 1)
            case "union":
                self._spend(len(kind.others) > 1)
                branch = self._number()
                if branch < 0:
                    raise IndexError(branch)
                self.of(kind.parts[branch])
            case "array" | "map":
                self._items(kind.parts[0], is_map=kind.kind == "map")
            case _:
                self._skip(_SIZES.get(kind.kind, kind.size))

    def _items(self, item: AvroType, *, is_map: bool) -> None:
        pair = _PAIR * is_map
        while count := self._number():
            if count < 0:
                count = -count
                self._number()
            self._columns -= count * (item.width + pair)
            if self._columns < 0:
                raise _TooManyError(self._most_columns)
            for _ in range(count):
                if is_map:
                    self._spend(pair)
                    self._skip(self._number())
                self.of(item)

    def _spend(self, count: int) -> None:
        self._fields -= count
        if self._fields < 0:
            raise _TooManyError(self._most_fields)

    def _skip(self, size: int) -> None:
        self._at += size
        if size < 0 or self._at > len(self._value):
            raise IndexError(size)

    def _number(self) -> int:
        found = shift = 0
        while shift < _NUMBER_BITS:
            byte = self._value[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
        raise IndexError(shift)
