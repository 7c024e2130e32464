"""Values of Avro as columns, and columns as values of Avro; which schemas can read which."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.columns.python_values import is_list
from txnlog.errors import InvalidSchema
from txnlog.values.avro_columns import Numbers, Problems, decode_plain
from txnlog.values.avro_resolution import (
    default_column,
    field_of,
    is_default,
    may_read,
    part_for,
    resolve,
)
from txnlog.values.avro_schema import AvroField, AvroType, parse_avro, short_name
from txnlog.values.rows import MOST_FIELDS_TOGETHER, TooManyFields, check_together

_NESTED: Final = frozenset({"record", "array", "map", "union"})


class AvroCodec:
    """A :class:`Codec` of Avro. ``columns`` are its fields; of what is no record, ``value``."""

    def __init__(self, kind: AvroType, parsed: Any) -> None:  # noqa: ANN401 - fastavro's form
        self.type = kind
        self._parsed = parsed
        self.is_record = self.type.kind == "record"
        whole = AvroType("record", fields=(AvroField("value", kind),))
        self._row = kind if self.is_record else whole
        self.columns = pa.schema(self._row.arrow_fields())

    @property
    def defaults(self) -> Mapping[str, pa.Scalar]:
        found = {one.name: default_column(one)[0] for one in self.type.fields if one.default}
        return {
            name: value
            for name, value in found.items()
            if value.is_valid and not pa.types.is_nested(value.type)
        }

    def decode(
        self,
        data: npt.NDArray[np.uint8],
        starts: Numbers,
        ends: Numbers,
        problems: Problems,
        reader: AvroCodec,
    ) -> pa.StructArray:
        count = len(starts)
        try:
            check_together(count, max(self.type.width, reader.type.width))
            plain = decode_plain(self.type, data, starts, ends, problems)
            found = resolve(plain, self.type, reader.type, np.arange(count), problems)
        except TooManyFields:
            if count > 1:
                raise
            problems.tell(
                0, f"it becomes more than {MOST_FIELDS_TOGETHER} fields, long ones as several"
            )
            found = pa.nulls(count, reader.type.arrow())
        if reader.is_record:
            return found
        return pa.StructArray.from_arrays([found], fields=[reader.columns.field(0)])

    def filled(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        fields = {one.name: one.type for one in self._row.fields}
        return {name: _filled(item, fields[name]) for name, item in value.items()}

    def place(self, id_bytes: int) -> bytes:  # noqa: ARG002 - it is nowhere else
        """Empty: all values of an Avro schema are of one type."""
        return b""

    def why_not(self, writer: AvroCodec) -> Iterator[str]:
        return why_not(self.type, writer.type)

    def encode(self, columns: pa.RecordBatch) -> list[bytes]:
        from fastavro import schemaless_writer

        made = []
        for row in columns.to_pylist():
            given = _for_fastavro(row, self._row)
            stream = BytesIO()
            schemaless_writer(stream, self._parsed, given if self.is_record else given["value"])
            made.append(stream.getvalue())
        return made


def _default_of(field: AvroField) -> Any:  # noqa: ANN401 - any value of Avro
    """A left-out field's value: its default, or null without one.

    Raises ValueError: the default is not valid, or is a time that Python cannot represent.
    """
    if not field.default:
        return None
    if not field.written_default:
        try:
            field.written_default.append(default_column(field)[0].as_py())
        except (InvalidSchema, OverflowError) as error:
            raise ValueError(f"field {field.name!r:.200}: {error}") from error
    return field.written_default[0]


def _is_left_to_fastavro(field: AvroField) -> bool:
    """Whether fastavro may fill in a field's default.

    It takes a default of bytes for text, and does not check that a default has the field's type.
    """
    if not field.left_to_fastavro:
        made = not field.default or field.type.has_bytes or not is_default(field)
        field.left_to_fastavro.append(not made)
    return field.left_to_fastavro[0]


def _filled(value: Any, kind: AvroType) -> Any:  # noqa: ANN401 - any value of Avro
    """A value with the defaults of the fields that it leaves out, at any depth.

    Arrow would make nulls of them. Raises ValueError: a default is not valid.
    """
    match kind.kind, value:
        case "record", Mapping():
            fields = {one.name: one for one in kind.fields}
            left_out = {
                name: _default_of(one)
                for name, one in fields.items()
                if one.default and name not in value
            }
            return left_out | {
                name: _filled(item, fields[name].type) if name in fields else item
                for name, item in value.items()
            }
        case "array" | "map", _ if kind.parts[0].kind not in _NESTED:
            return value
        case "array", _ if is_list(value):
            return [_filled(item, kind.parts[0]) for item in value]
        case "map", Mapping():
            return {key: _filled(item, kind.parts[0]) for key, item in value.items()}
        case "map", _ if is_list(value):
            return [(key, _filled(item, kind.parts[0])) for key, item in value]
        case "union", _ if len(kind.others) == 1:
            return _filled(value, kind.others[0])
        case "union", Mapping():
            members = {f"member{n}": one for n, one in enumerate(kind.others)}
            return {
                name: _filled(item, members[name]) if name in members else item
                for name, item in value.items()
            }
    return value


def _for_fastavro(value: Any, kind: AvroType) -> Any:  # noqa: ANN401 - any value of Avro
    """A value of Arrow's as fastavro takes it: maps as dicts, a union's with the type's name.

    Raises ValueError: it is null, and may not be, which fastavro would write as false.
    """
    if value is None:
        return _null_of(kind)
    match kind.kind:
        case "record":
            return {
                one.name: _field_for_fastavro(value, one)
                for one in kind.fields
                if one.name in value or not _is_left_to_fastavro(one)
            }
        case "array":
            return [_for_fastavro(item, kind.parts[0]) for item in value]
        case "map":
            pairs = value.items() if isinstance(value, dict) else value
            return {key: _for_fastavro(item, kind.parts[0]) for key, item in pairs}
        case "union" if len(kind.others) == 1:
            part = kind.others[0]
            return part.name or part.kind, _for_fastavro(value, part)
        case "union":
            chosen = [n for n in range(len(kind.others)) if value.get(f"member{n}") is not None]
            if not chosen:
                return _null_of(kind)
            if len(chosen) > 1:
                raise ValueError(f"a union has one member, not {len(chosen)}")
            part = kind.others[chosen[0]]
            return part.name or part.kind, _for_fastavro(value[f"member{chosen[0]}"], part)
    return value


def _field_for_fastavro(row: Mapping[str, Any], field: AvroField) -> Any:  # noqa: ANN401
    """Of a row its field, or the default."""
    value = row[field.name] if field.name in row else _default_of(field)
    try:
        return _for_fastavro(value, field.type)
    except ValueError as error:
        raise ValueError(f"field {field.name!r:.200}: {error}") from error


def _null_of(kind: AvroType) -> None:
    if not kind.is_nullable:
        raise ValueError(f"a null is no {_shown(kind)}")


def read_avro(text: str, references: Sequence[tuple[str, str]] = ()) -> AvroCodec:
    """The codec of a schema that fastavro takes too. Raises InvalidSchema."""
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    kind = parse_avro(text, references)
    named: dict[str, Any] = {}
    parsed: Any = None
    try:
        for one in (*(used for _, used in references), text):
            parsed = parse_schema(json.loads(one), named)
    except (
        SchemaParseException,
        UnknownType,
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
    ) as error:
        raise InvalidSchema(f"it is not a schema of Avro: {error}") from error
    except RecursionError as error:
        raise InvalidSchema("it is nested too deeply for a schema of Avro") from error
    return AvroCodec(kind, parsed)


def why_not(reader: AvroType, writer: AvroType, where: str = "") -> Iterator[str]:
    """What stands against reading a writer's values, each with its field; nothing if they can be.

    By Avro's rules of resolution.
    """
    place = where or "the value"
    if writer.kind == "union":
        for part in writer.parts:
            yield from why_not(reader, part, where)
    elif reader.kind == "union":
        chosen = part_for(writer, reader)
        if chosen is None:
            yield f"{place}: {writer.name or writer.kind} is none of the types of the union"
        else:
            yield from why_not(chosen, writer, where)
    elif not may_read(writer, reader):
        yield f"{place}: {_shown(writer)} cannot be read as {_shown(reader)}"
    elif reader.logical != writer.logical and reader.logical and writer.logical:
        yield f"{place}: {writer.logical} cannot be read as {reader.logical}"
    elif reader.is_decimal and writer.is_decimal:
        if reader.scale != writer.scale or reader.precision < writer.precision:
            yield f"{place}: a decimal's scale has changed, or its precision is less"
    elif reader.kind == "enum":
        lost = [symbol for symbol in writer.symbols if symbol not in reader.numbers]
        if lost and reader.default_symbol is None:
            yield f"{place}: enum {reader.name!r} lacks {', '.join(lost[:5])}, and has no default"
    elif reader.kind == writer.kind == "record":
        yield from _fields_of(reader, writer, where)
    else:
        for one, other in zip(reader.parts, writer.parts, strict=True):
            yield from why_not(one, other, f"{where}[]")


def _fields_of(reader: AvroType, writer: AvroType, where: str) -> Iterator[str]:
    for one in reader.fields:
        place = f"{where}.{one.name}" if where else one.name
        number = field_of(writer, one)
        if number is not None:
            yield from why_not(one.type, writer.fields[number].type, place)
        elif not one.default:
            yield f"{place}: the reader's field has no default, and the writer does not have it"
        else:
            try:
                default_column(one)
            except InvalidSchema as error:
                yield f"{place}: {error}"


def _shown(kind: AvroType) -> str:
    if not kind.name:
        return kind.kind
    size = f" of {kind.size} bytes" if kind.kind == "fixed" else ""
    return f"{kind.kind} {short_name(kind.name)!r}{size}"
