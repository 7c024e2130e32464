"""Columns that a file describes: a Parquet or Arrow file's own, or JSON of Avro, Arrow or Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from txnlog.columns.schema_words import WrittenColumns, parse_columns
from txnlog.config import is_whole_number
from txnlog.errors import InvalidSchema
from txnlog.schema import RESERVED
from txnlog.segments.records import CONVERSION_ERRORS
from txnlog.segments.schema_columns import children, with_children

_MAX_BYTES: Final = 16 << 20
"""The largest description that is read."""
_MAX_DEPTH: Final = 16
_BINARY: Final = (".parquet", ".pq", ".arrow", ".feather", ".ipc")
_AVRO: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_AVRO_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    **{f"time-{unit}": pa.time64("us") for unit in ("millis", "micros")},
}
_UNITS: Final = {"SECOND": "s", "MILLISECOND": "ms", "MICROSECOND": "us", "NANOSECOND": "ns"}
_FLOATS: Final = {"HALF": pa.float16(), "SINGLE": pa.float32(), "DOUBLE": pa.float64()}


def read_columns(path: Path) -> WrittenColumns:
    """The columns that a file has, or that it describes.

    Raises InvalidSchema: it cannot be read, or describes none.
    """
    try:
        if path.suffix.lower() in _BINARY:
            return WrittenColumns(_own_columns(path), {})
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode()
    except UnicodeDecodeError as error:
        raise InvalidSchema(
            f"{path} is neither text nor named as a Parquet or Arrow file: {error}"
        ) from error
    except OSError as error:
        raise InvalidSchema(f"{path} cannot be read: {error.strerror or error}") from error
    if len(text) > _MAX_BYTES:
        raise InvalidSchema(f"{path} has more than {_MAX_BYTES} bytes: that is no schema")
    try:
        return parse_description(text)
    except InvalidSchema as error:
        raise InvalidSchema(f"{path}: {error}") from error


def parse_description(text: str) -> WrittenColumns:
    """The columns that are described there, in words or in JSON. Raises InvalidSchema."""
    if not text.lstrip().startswith("{"):
        return parse_columns(text.strip().removesuffix(";"))
    try:
        return _of_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"it is not JSON of a schema: {error}") from error


def _own_columns(path: Path) -> pa.Schema:
    """The columns of a data file, without those that every record has besides."""
    from pyarrow import parquet

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            found = parquet.read_schema(path)
        else:
            with path.open("rb") as file:
                found = _ipc_schema(file)
    except (*CONVERSION_ERRORS, pa.ArrowException) as error:
        raise InvalidSchema(f"{path} is not a file that it is called: {error}") from error
    fields = [field for field in found if field.name.casefold() not in RESERVED]
    if not fields:
        raise InvalidSchema(f"{path} has no columns")
    return pa.schema([_in_microseconds(field).remove_metadata() for field in fields])


def _ipc_schema(file: IO[bytes]) -> pa.Schema:
    try:
        return pa.ipc.open_file(file).schema
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file).schema


def _in_microseconds(field: pa.Field) -> pa.Field:
    """Nanoseconds, as pandas writes them: values that are none are refused when they are sent."""
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return field.with_type(pa.timestamp("us", kind.tz))
    return field.with_type(with_children(kind, [_in_microseconds(f) for f in children(kind)]))


def _of_json(found: dict[str, Any]) -> WrittenColumns:
    """The columns of a JSON object: Avro's ``record``, Spark's ``struct``, or Arrow's."""
    fields = found.get("schema", found)
    fields = fields.get("fields") if isinstance(fields, dict) else None
    if not isinstance(fields, list) or not fields:
        raise InvalidSchema(
            'JSON of a schema has "fields": of Avro ("type": "record"), of Spark ("type": '
            '"struct") or of Arrow'
        )
    try:
        if found.get("type") == "record":
            return _Avro().columns(found)
        make = _spark_field if found.get("type") == "struct" else _arrow_field
        return WrittenColumns(pa.schema([make(field, 1) for field in fields]), {})
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidSchema(
            f"the description of a column lacks something, or has too much: {error!r}"
        ) from error


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise InvalidSchema(f"types are nested more than {_MAX_DEPTH} levels deep")


class _Avro:
    """One schema of Avro's; types that have a name may be used again by it."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType] = {}

    def columns(self, record: Mapping[str, Any]) -> WrittenColumns:
        fields, defaults = [], {}
        for found in record["fields"]:
            field = self._field(found["name"], found["type"], 1)
            fields.append(field)
            default = found.get("default")
            if default is not None and not pa.types.is_nested(field.type):
                defaults[field.name] = _avro_default(default, field)
        return WrittenColumns(pa.schema(fields), defaults)

    def _field(self, name: str, kind: Any, depth: int) -> pa.Field:  # noqa: ANN401 - JSON
        if not isinstance(kind, list):
            return pa.field(name, self._type(kind, depth), nullable=kind == "null")
        others = [one for one in kind if one != "null"]
        if len(others) != 1:
            raise InvalidSchema(f"column {name!r} is a union of types: a column has one, or null")
        return pa.field(name, self._type(others[0], depth), nullable="null" in kind)

    def _type(self, kind: Any, depth: int) -> pa.DataType:  # noqa: ANN401 - JSON
        _check_depth(depth)
        if isinstance(kind, str):
            known = {**_AVRO, **self._named}.get(kind)
            if known is None:
                raise InvalidSchema(f"there is no type {kind!r}, or it contains itself")
            return known
        plain, logical = kind["type"], kind.get("logicalType")
        made = self._complex(plain, kind, depth)
        if logical == "decimal":
            made = _decimal(kind["precision"], kind.get("scale", 0))
        made = _AVRO_LOGICAL.get(logical or "", made)
        if "name" in kind:
            self._named[kind["name"]] = made
            self._named[".".join(filter(None, [kind.get("namespace"), kind["name"]]))] = made
        return made

    def _complex(self, plain: Any, kind: Mapping[str, Any], depth: int) -> pa.DataType:  # noqa: ANN401 - JSON
        if plain == "record":
            fields = kind["fields"]
            return pa.struct([self._field(f["name"], f["type"], depth + 1) for f in fields])
        if plain == "array":
            return pa.list_(self._field("element", kind["items"], depth + 1))
        if plain == "map":
            return pa.map_(pa.string(), self._field("value", kind["values"], depth + 1))
        return self._type(plain, depth + 1)


def _decimal(precision: object, scale: object) -> pa.DataType:
    if not (is_whole_number(precision) and is_whole_number(scale)):
        raise InvalidSchema(f"decimal({precision!r:.20}, {scale!r:.20}) is no type")
    return pa.decimal128(precision, scale)


def _avro_default(default: object, field: pa.Field) -> pa.Scalar:
    if isinstance(default, str) and pa.types.is_binary(field.type):
        default = default.encode("latin-1")
    try:
        number = isinstance(default, int) and not isinstance(default, bool)
        if number and pa.types.is_temporal(field.type):
            return pa.scalar(default, pa.int64()).cast(field.type)
        return pa.scalar(default, field.type)
    except CONVERSION_ERRORS as error:
        raise InvalidSchema(
            f"column {field.name!r} cannot have the default {default!r:.60}: {error}"
        ) from error


def _spark_field(field: Mapping[str, Any], depth: int) -> pa.Field:
    return pa.field(field["name"], _spark_type(field["type"], depth), field.get("nullable", True))


def _spark_type(kind: Any, depth: int) -> pa.DataType:  # noqa: ANN401 - JSON
    _check_depth(depth)
    if isinstance(kind, str):
        words = "timestamptz" if kind == "timestamp" else kind
        return parse_columns(f"of_spark {words}").columns.field(0).type
    if kind["type"] == "struct":
        return pa.struct([_spark_field(field, depth + 1) for field in kind["fields"]])
    if kind["type"] == "array":
        inner = _spark_type(kind["elementType"], depth + 1)
        return pa.list_(pa.field("element", inner, kind.get("containsNull", True)))
    if kind["type"] == "map":
        item = _spark_type(kind["valueType"], depth + 1)
        value = pa.field("value", item, kind.get("valueContainsNull", True))
        return pa.map_(_spark_type(kind["keyType"], depth + 1), value)
    raise InvalidSchema(f"there is no type {kind['type']!r:.60}")


def _arrow_field(field: Mapping[str, Any], depth: int) -> pa.Field:
    _check_depth(depth)
    inner = [_arrow_field(child, depth + 1) for child in field.get("children", ())]
    return pa.field(field["name"], _arrow_type(field["type"], inner), field.get("nullable", True))


def _arrow_type(kind: Mapping[str, Any], inner: list[pa.Field]) -> pa.DataType:
    match kind["name"]:
        case "int":
            sign = "" if kind["isSigned"] else "u"
            return pa.type_for_alias(f"{sign}int{kind['bitWidth']}")
        case "floatingpoint":
            return _FLOATS[kind["precision"]]
        case "bool":
            return pa.bool_()
        case "utf8" | "largeutf8":
            return pa.string()
        case "binary" | "largebinary" | "fixedsizebinary":
            return pa.binary()
        case "decimal":
            return _decimal(kind["precision"], kind["scale"])
        case "date":
            return pa.date32()
        case "timestamp":
            return pa.timestamp(_UNITS[kind["unit"]], kind.get("timezone") or None)
        case "list" | "largelist" | "fixedsizelist":
            return pa.list_(inner[0])
        case "struct":
            return pa.struct(inner)
        case "map":
            key, value = (inner[0].type.field(number) for number in (0, 1))
            return pa.map_(key.type, value)
    raise InvalidSchema(f"there is no type {kind['name']!r:.60}")
