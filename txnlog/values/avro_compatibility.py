"""Whether a schema of Avro can read what another one has written: by the rules of resolution."""

from __future__ import annotations

from collections.abc import Iterator

from txnlog.errors import InvalidSchema
from txnlog.values.avro_resolution import (
    default_column,
    field_of,
    may_read,
    part_for,
    short_name,
)
from txnlog.values.avro_schema import AvroType


def why_not(reader: AvroType, writer: AvroType, where: str = "") -> Iterator[str]:
    """What stands against it, each with the field it is about; nothing if it can."""
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
        lost = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        if lost and reader.default_symbol is None:
            yield f"{place}: enum {reader.name!r} lacks {', '.join(lost[:5])}, and has no default"
    elif reader.kind == writer.kind == "record":
        yield from _fields(reader, writer, where)
    else:
        for one, other in zip(reader.parts, writer.parts, strict=True):
            yield from why_not(one, other, f"{where}[]")


def _fields(reader: AvroType, writer: AvroType, where: str) -> Iterator[str]:
    for one in reader.fields:
        place = f"{where}.{one.name}" if where else one.name
        number = field_of(writer, one)
        if number is not None:
            yield from why_not(one.type, writer.fields[number].type, place)
        elif not one.default:
            yield f"{place}: the reader's field has no default, and the writer does not have it"
        else:
            try:
                default_column(one.type, one.default[0])
            except InvalidSchema as error:
                yield f"{place}: {error}"


def _shown(kind: AvroType) -> str:
    if not kind.name:
        return kind.kind
    size = f" of {kind.size} bytes" if kind.kind == "fixed" else ""
    return f"{kind.kind} {short_name(kind.name)!r}{size}"
