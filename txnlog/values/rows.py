"""Rows as columns, for formats that are decoded value by value, within limits of what they become.

A few bytes may be an item with all fields of a schema: a value of a megabyte could have thousands
of millions of them.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from txnlog.errors import InvalidRecord

MOST_FIELDS: Final = 1 << 20
"""Of one value, and one more for each of its bytes."""
MOST_FIELDS_TOGETHER: Final = 1 << 24
"""Of values that are decoded together, unless it is one alone."""
BYTES_OF_FIELD: Final = 16
"""Longer ones count as several, where their bytes are the schema's and not the value's."""


class TooManyFields(InvalidRecord):
    """Values that are decoded together have more fields than fit; fewer at a time do."""


class Budget:
    """Limits how many fields values that are decoded together may become."""

    def __init__(self) -> None:
        self._left = MOST_FIELDS_TOGETHER

    def spend(self, fields: int) -> None:
        """Count more fields. Raises TooManyFields."""
        self._left -= fields
        if self._left < 0:
            raise _too_many()


def width_of(kind: Any) -> int:  # noqa: ANN401 - pyarrow has no types
    """Columns of a type, nested ones included, but for those within lists."""
    inner = [field.type for field in kind] if pa.types.is_struct(kind) else []
    return 1 + sum(map(width_of, inner))


def check_together(rows: int, fields: int) -> None:
    """Raises TooManyFields: so many rows are too many for columns with so many fields."""
    if rows > 1 and rows * fields > MOST_FIELDS_TOGETHER:
        raise _too_many()


def _too_many() -> TooManyFields:
    return TooManyFields(
        f"values together have more than {MOST_FIELDS_TOGETHER} fields, those that are "
        "null included: decode fewer at a time"
    )


class RowColumns:
    """Rows of values, which become columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._type = pa.struct([*schema])
        self._rows: list[dict[str, Any] | None] = []
        self._done: list[pa.Array] = []
        self._most = self._left = 0
        self._in_rows = self._together = 0

    def begin(self, size: int) -> None:
        """Count the fields of the next value, of so many bytes."""
        self._most = self._left = MOST_FIELDS + size

    def spend(self, count: int) -> None:
        """Count more fields of the current value. Raises ValueError: it has too many."""
        self._left -= count
        if self._left < 0:
            raise ValueError(f"it has more than {self._most} fields, those that are null included")

    def add(self, row: dict[str, Any] | None) -> None:
        """The row of the value. Raises TooManyFields: all together have too many."""
        spent = self._most - self._left
        self._in_rows += spent
        self._together += spent
        if self._together > MOST_FIELDS_TOGETHER and (self._rows or self._done):
            raise _too_many()
        self._rows.append(row)
        if self._in_rows > MOST_FIELDS:
            self._turn()

    def columns(self) -> pa.StructArray:
        """All rows, as one array."""
        self._turn()
        return self._done[0] if len(self._done) == 1 else pa.concat_arrays(self._done)

    def _turn(self) -> None:
        self._done.append(pa.array(self._rows, self._type))
        self._rows = []
        self._in_rows = 0
