"""The schema of a typed topic: which columns its records have, and which of them are the key.

Knows Arrow's types, and nothing of files. Every column, nested ones too, has an id of its own for
as long as the topic lives: it is written into the files, as engines that read tables expect.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from txnlog.errors import CorruptEntry, InvalidSchema

if TYPE_CHECKING:
    import pyarrow as pa

TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
DELETED: Final = "_deleted"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TOPIC: Final = "_topic"
RESERVED: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP, HEADERS, DELETED)
"""What a record has besides its columns. No column is called so."""

_MAX_COLUMNS = 4096
_MAX_DEPTH = 16
_FIELD_ID = b"PARQUET:field_id"
_INSTEAD = {
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "decimal128(20, 0)",
    "halffloat": "float32",
    "date64[ms]": "date32",
}


class TopicSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of a typed topic, and by which of them records are told apart.

    ``arrow`` is the Arrow schema as Arrow's IPC format has it, in base64. ``newest_id`` is the
    largest id that any column has had, ``dropped`` the names of those that are gone: no other gets
    them, since many engines find columns by their names.
    """

    arrow: str
    key: tuple[str, ...] = ()
    newest_id: int = 0
    dropped: tuple[str, ...] = ()

    @property
    def columns(self) -> pa.Schema:
        """The columns, as they were asked for. Raises CorruptEntry: the log has no such schema."""
        return _decode(self)

    @property
    def record_columns(self) -> pa.Schema:
        """What is stored of each record: its columns, its time and headers, whether it deletes.

        What is no key may be null there: a record that deletes has its key alone. So may what is
        nested; that is checked when it is written.
        """
        return _record_columns(self)

    @property
    def scan_columns(self) -> pa.Schema:
        """What readers get: the columns that are stored, without the ids of files."""
        return _scan_columns(self)


def make_schema(columns: object, key: object = None) -> TopicSchema:
    """Check a schema that a user asks for; types that only differ in layout become the usual ones.

    Args:
        columns: a ``pyarrow.Schema``.
        key: the names of the columns that are the key, in the order in which they are hashed.

    Raises:
        InvalidSchema: a name or a type cannot be, or a key is no column.
    """
    ids = _Ids(0)
    checked = _check_columns(columns, ids)
    names = _check_key(checked, key)
    return TopicSchema(_encode(_require(checked, names)), names, ids.newest)


def evolve(known: TopicSchema, columns: object) -> TopicSchema:
    """The schema that a topic has from now on; what was written before is read under it.

    Columns may be added, if they can be null; dropped, if they are no key, and their names are not
    used again; put in another order; made wider (integers, floats, decimals of the same scale); and
    those that may not be null may come to be.

    Raises InvalidSchema: of anything else.
    """
    import pyarrow as pa

    ids = _Ids(known.newest_id)
    wanted = _check_columns(columns, ids)
    before = known.columns
    names = frozenset(before.names)
    taken = {name.casefold() for name in (*names, *known.dropped)}
    fields = []
    for field in wanted:
        if field.name in names:
            fields.append(_change(before.field(field.name), field, known))
        elif field.name.casefold() in taken:
            raise InvalidSchema(
                f"there was a column {field.name!r}, whose values would show in it: choose another "
                "name"
            )
        elif not field.nullable:
            raise InvalidSchema(
                f"column {field.name!r} is new, so older records have none: it must be nullable"
            )
        else:
            fields.append(field)
    stays = frozenset(wanted.names)
    gone = tuple(name for name in before.names if name not in stays)
    for name in gone:
        if name in known.key:
            raise InvalidSchema(f"column {name!r} is of the key, and cannot be dropped")
    dropped = (*known.dropped, *gone)
    return TopicSchema(_encode(pa.schema(fields)), known.key, ids.newest, dropped)


def _change(before: pa.Field, after: pa.Field, known: TopicSchema) -> pa.Field:
    """A column that stays, with its id, as it is to be."""
    if before.nullable and not after.nullable and after.name not in known.key:
        raise InvalidSchema(f"column {after.name!r} may be null in older records, so it stays so")
    nullable = after.nullable and after.name not in known.key
    if _without_ids(before).type == _without_ids(after).type:
        return before.with_nullable(nullable)
    if not _is_wider(before.type, after.type):
        raise InvalidSchema(
            f"column {after.name!r} is {_without_ids(before).type}, and cannot become "
            f"{_without_ids(after).type}: only wider integers, floats, and decimals of the same "
            "scale; add another column"
        )
    return before.with_type(after.type).with_nullable(nullable)


def _is_wider(before: Any, after: Any) -> bool:  # noqa: ANN401
    from pyarrow import types

    if types.is_decimal(before) and types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision <= after.precision)
    integers = types.is_integer(before) and types.is_integer(after)
    floats = types.is_floating(before) and types.is_floating(after)
    return bool((integers or floats) and before.bit_width <= after.bit_width)


def _check_columns(columns: object, ids: _Ids) -> pa.Schema:
    """Columns with ids, of names and types that can be."""
    import pyarrow as pa

    if not isinstance(columns, pa.Schema):
        raise InvalidSchema(f"a schema must be a pyarrow.Schema, not {type(columns).__name__}")
    if not len(columns):
        raise InvalidSchema("a schema needs at least one column")
    _check_names([field.name for field in columns], "column")
    for name in columns.names:
        if name in RESERVED:
            raise InvalidSchema(f"no column can be called {name!r}: every record has that already")
    return pa.schema([_check_field(field, field.name, ids, 1) for field in columns])


def _require(columns: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The same, where these may not be null."""
    for name in names:
        index = columns.get_field_index(name)
        columns = columns.set(index, columns.field(index).with_nullable(False))
    return columns


def _encode(columns: pa.Schema) -> str:
    return base64.b64encode(columns.serialize().to_pybytes()).decode("ascii")


@lru_cache(maxsize=64)
def _decode(schema: TopicSchema) -> pa.Schema:
    import pyarrow as pa

    try:
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema.arrow, validate=True)))
        names = columns.names
    except Exception as error:  # Arrow raises a dozen classes for bytes that it cannot read
        raise CorruptEntry(f"the schema in a topic's log does not decode: {error}") from error
    missing = [name for name in schema.key if name not in names]
    if missing:
        raise CorruptEntry(f"the schema in a topic's log has no column {missing[0]!r}, its key")
    return columns


@lru_cache(maxsize=64)
def _record_columns(schema: TopicSchema) -> pa.Schema:
    import pyarrow as pa

    from txnlog.segments.records import HEADERS_TYPE, TIMESTAMP_TYPE

    fields = [_relax(field) for field in schema.columns]
    fields = [
        field.with_nullable(field.name not in schema.key if schema.key else declared.nullable)
        for field, declared in zip(fields, schema.columns, strict=True)
    ]
    fields += [
        pa.field(TIMESTAMP, TIMESTAMP_TYPE, nullable=False),
        pa.field(HEADERS, HEADERS_TYPE),
    ]
    if schema.key:
        fields.append(pa.field(DELETED, pa.bool_(), nullable=False))
    return pa.schema(fields)


@lru_cache(maxsize=64)
def _scan_columns(schema: TopicSchema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([_without_ids(field) for field in _record_columns(schema)])


def _without_ids(field: pa.Field) -> pa.Field:
    import pyarrow as pa
    from pyarrow import types

    kind = field.type
    if types.is_struct(kind):
        kind = pa.struct([_without_ids(kind.field(n)) for n in range(kind.num_fields)])
    elif types.is_map(kind):
        kind = pa.map_(_without_ids(kind.key_field), _without_ids(kind.item_field))
    elif types.is_list(kind):
        kind = pa.list_(_without_ids(kind.value_field))
    return field.with_type(kind).remove_metadata()


def _relax(field: pa.Field) -> pa.Field:
    """The field with nested ones that may be null: below a null in Arrow there is another."""
    import pyarrow as pa
    from pyarrow import types

    kind = field.type
    if types.is_struct(kind):
        kind = pa.struct(
            [_relax(kind.field(n)).with_nullable(True) for n in range(kind.num_fields)]
        )
    elif types.is_map(kind):
        key = _relax(kind.key_field).with_nullable(False)
        kind = pa.map_(key, _relax(kind.item_field).with_nullable(True))
    elif types.is_list(kind):
        kind = pa.list_(_relax(kind.value_field).with_nullable(True))
    return field.with_type(kind)


class _Ids:
    """Numbers columns, from the one behind ``newest`` on."""

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
            raise InvalidSchema(f"{name!r} cannot be the name of a {what}: it is no text") from None
        other = seen.setdefault(name.casefold(), name)
        if other is not name:
            raise InvalidSchema(
                f"{what} {name!r} is there twice, or differs from {other!r} in case alone, which "
                "Spark and others take for the same"
            )


def _check_field(field: pa.Field, path: str, ids: _Ids, depth: int) -> pa.Field:
    """The field with an id, and with types of the usual layout."""
    import pyarrow as pa

    if depth > _MAX_DEPTH:
        raise InvalidSchema(f"column {path!r} is nested more than {_MAX_DEPTH} levels deep")
    number = ids.next()
    checked = _check_type(field.type, path, ids, depth)
    return pa.field(field.name, checked, field.nullable, {_FIELD_ID: number})


def _check_type(kind: Any, path: str, ids: _Ids, depth: int) -> Any:  # noqa: ANN401
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return _check_type(kind.value_type, path, ids, depth)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        if kind.unit == "ns":
            raise _refusal(path, kind, "timestamp('us')")
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
    from pyarrow import types

    if key is None:
        return ()
    if isinstance(key, str) or not isinstance(key, Sequence):
        raise InvalidSchema(f"key must be a list of columns' names, not {key!r}")
    for name in key:
        if name not in columns.names:
            raise InvalidSchema(f"key {name!r} is no column; there are {', '.join(columns.names)}")
        kind = columns.field(name).type
        if types.is_nested(kind) or types.is_floating(kind) or types.is_decimal(kind):
            raise InvalidSchema(
                f"column {name!r} cannot be a key: {kind} has several forms of the same value; "
                "use whole numbers, strings, bytes, dates, times or booleans"
            )
    if len(set(key)) < len(key):
        raise InvalidSchema(f"key names a column twice: {', '.join(key)}")
    return tuple(key)
