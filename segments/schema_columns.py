"""The columns of a schema, made of stored ones: by ids, whatever they are called there.

A Parquet file, or a batch, was written under a schema of its time. Columns may have been added
since, dropped, renamed, put in another order or made wider, those inside of structs too. What is
not stored has its default.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyarrow import types

from txnlog.segments.errors import RecordTooLarge
from txnlog.segments.records import CONVERSION_ERRORS
from txnlog.segments.untrusted import MAX_DECODED_BYTES

FIELD_ID: Final = b"PARQUET:field_id"
"""Arrow's metadata key of a field's id, which Parquet files have for each column."""
DEFAULT: Final = b"txnlog.default"
"""The metadata key of a field's default, as text, for records written without it."""

_OFFSET_BYTES: Final = 4
_MOST_MADE_BYTES: Final = MAX_DECODED_BYTES // 2
"""How much may be made at a time of what is not stored, but is null, a default, or wider."""
_MOST_RECORD_BYTES: Final = 2 * MAX_DECODED_BYTES
"""How much of a single record may be made of what is not stored."""

Columns: TypeAlias = Sequence[str] | pa.Schema | None
"""Which columns are read: by name, or those of a typed topic's schema, or all."""


class _TooMuchMade(Exception):
    """Rows would take too much memory if they were made at once."""


class _Room:
    """How many bytes may be made at once."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def take(self, size_bytes: int) -> None:
        """Raises _TooMuchMade."""
        self._left -= size_bytes
        if self._left < 0:
            raise _TooMuchMade


_Convert: TypeAlias = Callable[[pa.Array, _Room], pa.Array]
_Source: TypeAlias = tuple[str, _Convert | None] | pa.Scalar | None
"""The source of one column: a stored one and its conversion, or its default, or nothing."""


def id_of(field: pa.Field) -> int | None:
    """The id of a field; None if it has none."""
    number = (field.metadata or {}).get(FIELD_ID)
    return None if number is None else int(number)


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields that a type consists of: of a struct, of a list its element, key and value."""
    if types.is_struct(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if types.is_list(kind) else []


def with_children(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """Return a type of this kind (struct, list, map) that consists of these fields."""
    if types.is_struct(kind):
        return pa.struct(fields)
    if types.is_map(kind):
        return pa.map_(*fields)
    return pa.list_(*fields) if types.is_list(kind) else kind


def default_as_text(value: pa.Scalar) -> bytes:
    """A default as a schema has it: as Arrow writes the value; of binary it is base64."""
    if types.is_binary(value.type):
        return base64.b64encode(value.as_py())
    text: str = value.cast(pa.string()).as_py()
    return text.encode()


def default_of(field: pa.Field) -> pa.Scalar | None:
    """The value of a field in records written without it; None: null.

    Raises ValueError: it is not a value of its type.
    """
    text = (field.metadata or {}).get(DEFAULT)
    if text is None:
        return None
    if types.is_binary(field.type):
        try:
            return pa.scalar(base64.b64decode(text, validate=True), field.type)
        except binascii.Error as error:
            raise ValueError(str(error)) from None
    return pa.scalar(text.decode()).cast(field.type)


class SchemaColumns:
    """Builds the columns of one schema from a file's; ``stored`` are the file's columns it needs.

    Raises ValueError: a column's default is not valid.
    """

    def __init__(self, file_schema: pa.Schema, wanted: pa.Schema) -> None:
        self._wanted = wanted
        self.stored: list[str] = []
        self._sources: list[_Source] = []
        fields = [*file_schema]
        for field, at in zip(wanted, match_fields(fields, [*wanted]), strict=True):
            if at is None:
                self._sources.append(default_of(field))
            else:
                self.stored.append(fields[at].name)
                self._sources.append((fields[at].name, _converter(fields[at], field)))
        self._row_bytes = sum(
            _least_of(source, field)
            for field, source in zip(wanted, self._sources, strict=True)
            if not isinstance(source, tuple)
        )
        """What a row takes of the columns that are not stored."""

    def make(
        self, records: pa.RecordBatch, count: int, first: int = 0
    ) -> Iterator[tuple[range, pa.RecordBatch]]:
        """``count`` rows of the schema, of those that were read, in pieces that fit into memory.

        A few bytes of a file may become very many, so there may be several pieces: each with its
        places among the rows, of which the first is ``first``.

        Raises ValueError, NotImplementedError: a column has other values; Arrow's own, too.
        RecordTooLarge: a single row would take too much memory.
        """
        try:
            made = self._make(records, count)
        except _TooMuchMade as error:
            if count == 1:
                raise RecordTooLarge(
                    f"a record would take more than {_MOST_RECORD_BYTES} bytes with the columns "
                    "that it was written without: ask for fewer columns"
                ) from error
        else:
            yield range(first, first + count), made
            return
        half = count // 2
        for start, some in ((0, half), (half, count - half)):
            part = records.slice(start, some) if records.num_columns else records
            yield from self.make(part, some, first + start)

    def _make(self, records: pa.RecordBatch, count: int) -> pa.RecordBatch:
        if not len(self._wanted):
            return records
        room = _Room(_MOST_MADE_BYTES if count > 1 else _MOST_RECORD_BYTES)
        room.take(count * self._row_bytes)
        arrays = [
            self._make_column(records, count, field, source, room)
            for field, source in zip(self._wanted, self._sources, strict=True)
        ]
        for field, source, array in zip(self._wanted, self._sources, arrays, strict=True):
            # A column has an id, and may have been dropped since the schema that is wanted.
            is_dropped = source is None and id_of(field) is not None
            if not field.nullable and array.null_count and not is_dropped:
                raise ValueError(f"column {field.name!r} has nulls")
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted)

    def _make_column(
        self, records: pa.RecordBatch, count: int, field: pa.Field, source: _Source, room: _Room
    ) -> pa.Array:
        if source is None:
            return pa.nulls(count, field.type)
        if isinstance(source, pa.Scalar):
            return pa.repeat(source, count)
        name, convert = source
        column = records.column(name)
        try:
            return _fit(column, field, convert, room)
        except CONVERSION_ERRORS as error:
            raise ValueError(
                f"column {name!r} is {column.type}, not {field.type}: {error}"
            ) from error


def _least_of(source: pa.Scalar | None, field: pa.Field) -> int:
    """The memory for one of many equal values: a default, or null."""
    text = source.as_buffer() if isinstance(source, pa.BinaryScalar) else None
    return least_bytes(field.type) + (0 if text is None else int(text.size))


def least_bytes(kind: pa.DataType) -> int:
    """The least memory per value, nulls included."""
    if types.is_struct(kind):
        return sum(least_bytes(kind.field(number).type) for number in range(kind.num_fields))
    has_width = types.is_primitive(kind) or types.is_decimal(kind)
    return kind.bit_width // 8 if has_width else _OFFSET_BYTES


def match_fields(found: Sequence[pa.Field], wanted: Sequence[pa.Field]) -> list[int | None]:
    """The index of each field among the existing ones, by id or else by name."""
    by_name = {field.name: at for at, field in enumerate(found)}
    by_id = {id_of(field): at for at, field in enumerate(found)}
    return [
        by_name.get(field.name) if id_of(field) is None else by_id.get(id_of(field))
        for field in wanted
    ]


def _converter(found: pa.Field, wanted: pa.Field) -> _Convert | None:
    """The conversion from one field's values to another's; None: the same, or a cast."""
    if found.type.id != wanted.type.id:
        return None
    if types.is_struct(wanted.type):
        return _struct_converter(found, wanted)
    parts = [
        _converter(one, other)
        for one, other in zip(children(found.type), children(wanted.type), strict=True)
    ]
    if not any(parts):
        return None
    return partial(_convert_map if types.is_map(wanted.type) else _convert_list, wanted, parts)


def _struct_converter(found: pa.Field, wanted: pa.Field) -> _Convert | None:
    there, fields = children(found.type), children(wanted.type)
    places = match_fields(there, fields)
    parts = [
        None if at is None else _converter(there[at], field)
        for at, field in zip(places, fields, strict=True)
    ]
    same = [field.name for field in there] == [field.name for field in fields]
    if same and places == [*range(len(fields))] and not any(parts):
        return None
    return partial(_convert_struct, wanted, places, parts)


def _convert_struct(
    wanted: pa.Field,
    places: Sequence[int | None],
    parts: Sequence[_Convert | None],
    array: pa.Array,
    room: _Room,
) -> pa.Array:
    fields = children(wanted.type)
    missing = [field for field, at in zip(fields, places, strict=True) if at is None]
    room.take(len(array) * sum(least_bytes(field.type) for field in missing))
    made = []
    for field, at, part in zip(fields, places, parts, strict=True):
        if at is None:
            made.append(pa.nulls(len(array), field.type))
        else:
            made.append(_fit(array.field(at), field, part, room))
    return pa.StructArray.from_arrays(made, fields=fields, mask=_mask(array))


def _convert_list(
    wanted: pa.Field, parts: Sequence[_Convert | None], array: pa.Array, room: _Room
) -> pa.Array:
    offsets, (values,) = elements(array, array.values)
    values = _fit(values, wanted.type.value_field, parts[0], room)
    return pa.ListArray.from_arrays(offsets, values, type=wanted.type, mask=_mask(array))


def _convert_map(
    wanted: pa.Field, parts: Sequence[_Convert | None], array: pa.Array, room: _Room
) -> pa.Array:
    offsets, (keys, items) = elements(array, array.keys, array.items)
    keys = _fit(keys, wanted.type.key_field, parts[0], room)
    items = _fit(items, wanted.type.item_field, parts[1], room)
    return pa.MapArray.from_arrays(offsets, keys, items, type=wanted.type, mask=_mask(array))


def _fit(array: pa.Array, field: pa.Field, convert: _Convert | None, room: _Room) -> pa.Array:
    if convert is not None:
        array = convert(array, room)
    if array.type == field.type:
        return array
    room.take(len(array) * least_bytes(field.type))
    return array.cast(field.type)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def elements(array: pa.Array, *values: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
    """The offsets of a list or map array, and the parts of ``values`` that its elements lie in.

    The offsets begin at 0, and are not a slice: Arrow needs that with a mask.
    """
    offsets = array.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    return pa.array(offsets - offsets[0]), [part.slice(first, count) for part in values]
