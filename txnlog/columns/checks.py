"""Valid columns: names, types, keys and defaults, checked when a user gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from txnlog.errors import InvalidSchema
from txnlog.schema import RESERVED, TopicSchema, encode_columns
from txnlog.segments.records import CONVERSION_ERRORS
from txnlog.segments.schema_columns import DEFAULT, FIELD_ID, default_as_text, default_of

_MAX_COLUMNS = 4096
_MAX_DEPTH = 16
_MAX_DEFAULT_BYTES = 256
"""The largest default: each older record gets it when it is read."""
_INSTEAD = {
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "decimal128(20, 0)",
    "halffloat": "float32",
    "date64[ms]": "date32",
}


def make_schema(
    columns: object, key: object = None, defaults: Mapping[str, object] | None = None
) -> TopicSchema:
    """Check a user's ``pyarrow.Schema``; types that only differ in layout become the usual ones.

    ``key``: the names of its columns, in the order in which they are hashed. ``defaults``: by
    column, the value of records that are sent without it.

    Raises InvalidSchema: a name, a type or a default is not allowed, or a key is not a column.
    """
    ids = Ids(0)
    checked = check_columns(columns, ids)
    names = _check_key(checked, key)
    checked = with_defaults(checked, defaults, names)
    return TopicSchema(encode_columns(_require(checked, names)), names, ids.newest)


def with_defaults(
    columns: pa.Schema, defaults: Mapping[str, object] | None, key: Sequence[str]
) -> pa.Schema:
    """Add these defaults, Python or Arrow values, to those that fields have.

    Raises InvalidSchema: one is not a value of its column, or the column cannot have one.
    """
    if defaults is not None and not isinstance(defaults, Mapping):
        raise InvalidSchema(f"defaults must be a mapping of columns to values, not {defaults!r}")
    fields = []
    for field in columns:
        if defaults and field.name in defaults:
            text = _default_text(field, defaults[field.name])
            field = field.with_metadata({**(field.metadata or {}), DEFAULT: text})
        if DEFAULT in field.metadata:
            _check_default(field, key)
        fields.append(field)
    unknown = [*{*(defaults or ())}.difference(columns.names)]
    if unknown:
        raise InvalidSchema(
            f"there is a default for {unknown[0]!r}, which is not a column; there are "
            f"{', '.join(columns.names)}"
        )

    return pa.schema(fields)


def _default_text(field: pa.Field, value: object) -> bytes:
    given: Any = value
    try:
        given = given.as_py() if isinstance(given, pa.Scalar) else given
    except CONVERSION_ERRORS as error:
        raise InvalidSchema(
            f"column {field.name!r} cannot have this default, a {given.type} that Python cannot "
            f"tell ({error}): days and times of defaults are in the years 1 to 9999"
        ) from error
    refusal = InvalidSchema(f"column {field.name!r} cannot have the default {given!r:.60}")
    if types.is_nested(field.type) or given is None:
        raise refusal
    if isinstance(given, bool) != types.is_boolean(field.type):
        raise refusal
    try:
        made = pa.scalar(given, field.type)
        if made.as_py() == given or types.is_floating(field.type):
            return default_as_text(made)
    except CONVERSION_ERRORS as error:
        raise InvalidSchema(f"{refusal}: {error}") from error
    raise refusal


def _check_default(field: pa.Field, key: Sequence[str]) -> None:
    text = field.metadata[DEFAULT]
    if field.name in key:
        raise InvalidSchema(f"column {field.name!r} is part of the key and can have no default")
    if types.is_nested(field.type):
        raise InvalidSchema(f"column {field.name!r} is {field.type}, and can have no default")
    if len(text) > _MAX_DEFAULT_BYTES:
        raise InvalidSchema(
            f"the default of column {field.name!r} has {len(text)} bytes as text; "
            f"at most {_MAX_DEFAULT_BYTES} are allowed"
        )
    try:
        value = default_of(field)
        assert value is not None
        same = default_as_text(value) == text
        shown = value.as_py()
    except CONVERSION_ERRORS as error:
        raise InvalidSchema(f"the default of column {field.name!r}: {error}") from error
    if not same or shown is None or (isinstance(shown, float) and math.isnan(shown)):
        raise InvalidSchema(f"column {field.name!r} cannot have the default {shown!r:.60}")


def check_columns(columns: object, ids: Ids) -> pa.Schema:
    """Columns with ids, and with checked names and types. Raises InvalidSchema."""
    if not isinstance(columns, pa.Schema):
        kind = type(columns).__name__
        hint = "; frame.limit(0).toArrow().schema has that of Spark's frame"
        raise InvalidSchema(
            f"a schema must be a pyarrow.Schema, not {kind}{hint if kind == 'StructType' else ''}"
        )
    if not len(columns):
        raise InvalidSchema("a schema needs at least one column")
    _check_names([field.name for field in columns], "column")
    for name in columns.names:
        if name.casefold() in RESERVED:
            raise InvalidSchema(f"no column can be called {name!r}: every record has that already")
    fields = []
    for field in columns:
        checked = _check_field(field, field.name, ids, 1)
        if DEFAULT in (field.metadata or {}):
            metadata = {**checked.metadata, DEFAULT: field.metadata[DEFAULT]}
            checked = checked.with_metadata(metadata)
        fields.append(checked)
    return pa.schema(fields)


def _require(columns: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the columns with these required."""
    for name in names:
        index = columns.get_field_index(name)
        columns = columns.set(index, columns.field(index).with_nullable(False))
    return columns


class Ids:
    """Numbers columns, from ``newest`` + 1 on."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self._most = newest + _MAX_COLUMNS

    def next(self) -> bytes:
        self.newest += 1
        if self.newest > self._most:
            raise InvalidSchema(
                f"a schema has at most {_MAX_COLUMNS} columns, nested ones included"
            )
        return b"%d" % self.newest


def _check_names(names: Sequence[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name or "\0" in name:
            raise InvalidSchema(f"{name!r} cannot be the name of a {what}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidSchema(
                f"{name!r} cannot be the name of a {what}: it is not valid text"
            ) from None
        other = seen.get(name.casefold())
        seen[name.casefold()] = name
        if other is not None:
            raise InvalidSchema(
                f"{what} {name!r} occurs twice, or differs from {other!r} only in case, which "
                "Spark and others take for the same"
            )


def _check_field(field: pa.Field, path: str, ids: Ids, depth: int) -> pa.Field:
    """The field with an id, and with types of the usual layout."""
    if depth > _MAX_DEPTH:
        raise InvalidSchema(f"column {path!r} is nested more than {_MAX_DEPTH} levels deep")

    number = ids.next()
    checked = _check_type(field.type, path, ids, depth)
    return pa.field(field.name, checked, field.nullable, {FIELD_ID: number})


def _check_type(kind: Any, path: str, ids: Ids, depth: int) -> Any:  # noqa: ANN401

    if types.is_dictionary(kind):
        return _check_type(kind.value_type, path, ids, depth)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        if kind.unit == "ns":
            zone = "" if kind.tz is None else ", tz='UTC'"
            raise _refusal(path, kind, f"timestamp('us'{zone})")
        unit = "ms" if kind.unit in ("s", "ms") else "us"
        return pa.timestamp(unit, None if kind.tz is None else "UTC")
    if types.is_decimal(kind):
        if kind.precision > 38:
            raise _refusal(path, kind, "decimal128(38, ...)")
        if not 0 <= kind.scale <= kind.precision:
            raise InvalidSchema(
                f"column {path!r} cannot be {kind}: the scale must be from 0 to the precision, "
                "as in Parquet and Spark"
            )
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_struct(kind):
        children = [kind.field(n) for n in range(kind.num_fields)]
        if not children:
            raise InvalidSchema(
                f"column {path!r} is a struct without fields, which no file can hold"
            )
        _check_names([child.name for child in children], f"field of {path!r}")
        return pa.struct(
            [_check_field(child, f"{path}.{child.name}", ids, depth + 1) for child in children]
        )
    if types.is_map(kind):
        item = _check_field(kind.item_field.with_name("value"), f"{path}.value", ids, depth + 1)
        key = _check_field(kind.key_field.with_name("key"), f"{path}.key", ids, depth + 1)
        return pa.map_(key.with_nullable(False), item)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind):
        element = kind.value_field.with_name("element")
        return pa.list_(_check_field(element, f"{path}.element", ids, depth + 1))
    plain = (
        types.is_boolean(kind)
        or types.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32())
    )
    if not plain:
        raise _refusal(path, kind, _INSTEAD.get(str(kind)))
    return kind


def _refusal(path: str, kind: object, instead: str | None) -> InvalidSchema:
    hint = f"use {instead}" if instead else "Spark, Delta and Iceberg have no such type"
    return InvalidSchema(f"column {path!r} cannot be {kind}: {hint}")


def _check_key(columns: pa.Schema, key: object) -> tuple[str, ...]:
    if key is None:
        return ()
    if isinstance(key, str) or not isinstance(key, Sequence):
        raise InvalidSchema(f"key must be a list of columns' names, not {key!r}")
    for name in key:
        if name not in columns.names:
            raise InvalidSchema(
                f"key {name!r} is not a column; there are {', '.join(columns.names)}"
            )
        kind = columns.field(name).type
        if types.is_nested(kind) or types.is_floating(kind) or types.is_decimal(kind):
            raise InvalidSchema(
                f"column {name!r} cannot be a key: {kind} has several forms of the same value; "
                "use whole numbers, strings, bytes, dates, times or booleans"
            )
    if len(set(key)) < len(key):
        raise InvalidSchema(f"key names a column twice: {', '.join(key)}")
    return tuple(key)
