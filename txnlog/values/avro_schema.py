"""Schemas of Avro: parsed with limits, and their form in Arrow.

Types that have a name may be used again by it. One that contains itself has no columns and is
refused. A union of null and one other type is that type, and may be null; any other one is a struct
with a field for each of its types but null, ``member0`` and so on, as Spark's from_avro has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from txnlog.errors import InvalidSchema
from txnlog.values.schemas import MOST_DEPTH, MOST_NODES, check_text

MOST_DEFAULT_BYTES: Final = 4096
"""Of a field's default, as JSON: each record that lacks the field gets it."""
MOST_DEFAULT_VALUES: Final = 4096
"""Of a field's default, with those of the defaults of the fields in it."""
MOST_MEMBERS: Final = 256
"""Of a union: each value has a column for each of its types."""
_MOST_SYMBOLS: Final = 1 << 16
_PRIMITIVES: Final[Mapping[str, Any]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LEAST_BYTES: Final = {"null": 0, "float": 4, "double": 8}
_TIMES: Final[Mapping[tuple[str, str], Any]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_MOST_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record. ``default`` is its JSON, in a list of one; empty: there is none."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: tuple[Any, ...] = ()
    made_default: list[Any] = field(default_factory=list, repr=False, compare=False)
    """What ``default_column`` has made of it, once it was asked for; or why it could not."""
    written_default: list[Any] = field(default_factory=list, repr=False, compare=False)
    """The default as a value of Python's, once a value was written without the field."""
    left_to_fastavro: list[bool] = field(default_factory=list, repr=False, compare=False)
    """Whether fastavro writes the default as it is in JSON, once that was asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroType:
    """A type. ``parts`` are a union's types, an array's items, a map's values."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    parts: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    nodes: int = field(default=1, repr=False)
    depth: int = field(default=1, repr=False)
    least_bytes: int = field(default=1, repr=False)
    width: int = field(init=False, repr=False)
    """Columns of a value, nested ones included, but for those within lists."""
    numbers: Mapping[str, int] = field(init=False, repr=False)
    """Of a record's fields, and of an enum's symbols."""
    has_bytes: bool = field(init=False, repr=False)
    """Whether bytes are among its values, at any depth: in JSON they are text."""
    known_as: frozenset[str] = field(init=False, repr=False)
    """The name and the aliases, without namespaces."""
    read_as: dict[AvroType, Any] = field(default_factory=dict, repr=False)
    """An enum's symbols under the schemas of readers, as far as they were asked for."""

    def __post_init__(self) -> None:
        inner = [one.type for one in self.fields]
        inner += self.others if self.kind == "union" else []
        own = self.kind != "union" or len(inner) != 1
        names = self.symbols or [one.name for one in self.fields]
        known = frozenset(map(short_name, (self.name, *self.aliases)))
        object.__setattr__(self, "width", own + sum(one.width for one in inner))
        object.__setattr__(self, "numbers", {name: n for n, name in enumerate(names)})
        object.__setattr__(self, "known_as", known)
        within = any(one.has_bytes for one in (*self.parts, *(one.type for one in self.fields)))
        object.__setattr__(self, "has_bytes", self.kind in ("bytes", "fixed") or within)

    @property
    def others(self) -> tuple[AvroType, ...]:
        """A union's types but null."""
        return tuple(part for part in self.parts if part.kind != "null")

    @property
    def is_nullable(self) -> bool:
        """Whether a value may be null."""
        return self.kind == "null" or (self.kind == "union" and len(self.others) < len(self.parts))

    @property
    def is_decimal(self) -> bool:
        """Whether its values are Arrow's decimals."""
        return self.logical == "decimal"

    def arrow(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The Arrow type of its values. Nested fields may be null, because their parents may be."""
        match self.kind:
            case "union" if len(self.others) <= 1:
                return self.others[0].arrow() if self.others else pa.null()
            case "union":
                members = enumerate(self.others)
                return pa.struct([pa.field(f"member{n}", part.arrow()) for n, part in members])
            case "record":
                return pa.struct([pa.field(one.name, one.type.arrow()) for one in self.fields])
            case "array":
                return pa.list_(pa.field("element", self.parts[0].arrow()))
            case "map":
                return pa.map_(pa.string(), self.parts[0].arrow())
            case "enum":
                return pa.string()
        if self.is_decimal:
            return pa.decimal128(self.precision, self.scale)
        if self.kind == "fixed":
            return pa.binary()
        return _TIMES.get((self.kind, self.logical or ""), _PRIMITIVES[self.kind])

    def arrow_fields(self) -> list[pa.Field]:
        """A record's fields in Arrow, as columns."""
        return [pa.field(one.name, one.type.arrow(), one.type.is_nullable) for one in self.fields]


def short_name(name: str) -> str:
    """A name without its namespace: by it types of two schemas are told to be the same."""
    return name.rpartition(".")[2]


def parse_avro(text: str, references: Sequence[tuple[str, str]] = ()) -> AvroType:
    """The type that a schema's JSON describes.

    ``references`` are names and texts of others, whose names it uses, each behind those it needs.
    Raises InvalidSchema: it is none, or larger or deeper than is allowed.
    """
    parser = _Parser()
    for _, used in references:
        parser.parse(used)
    return parser.parse(text)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._open: set[str] = set()

    def parse(self, text: str) -> AvroType:
        try:
            found = json.loads(check_text(text))
            return self._type(found, "", 1)
        except (ValueError, RecursionError) as error:
            raise InvalidSchema(f"it is not a schema of Avro: {error}") from error

    def _type(self, found: Any, space: str, depth: int) -> AvroType:  # noqa: ANN401 - JSON
        if depth > MOST_DEPTH:
            raise InvalidSchema(f"types of Avro are nested more than {MOST_DEPTH} levels deep")
        match found:
            case str() if found in _PRIMITIVES:
                return AvroType(found, least_bytes=_LEAST_BYTES.get(found, 1))
            case str():
                return self._known(found, space)
            case list():
                parts = tuple(self._type(part, space, depth + 1) for part in found)
                kinds = [part.name or part.kind for part in parts]
                if not parts or "union" in kinds or len(set(kinds)) < len(kinds):
                    raise InvalidSchema(f"a union of {kinds!r:.200} is none of Avro")
                if len(parts) > MOST_MEMBERS:
                    raise InvalidSchema(f"a union has more than {MOST_MEMBERS} types")
                return _made("union", parts)
            case {"type": "record" | "error", "fields": list() as fields}:
                return self._record(found, fields, space, depth)
            case {"type": "enum", "symbols": list() as symbols}:
                return self._enum(found, symbols, space)
            case {"type": "fixed", "size": int() as size} if not isinstance(size, bool):
                name, _ = self._name(found, space)
                if not 0 <= size < 1 << 31:
                    raise InvalidSchema(f"fixed {name!r:.200} cannot have {size} bytes")
                made = AvroType(
                    "fixed",
                    name,
                    _aliases(found),
                    size=size,
                    least_bytes=size,
                    **_decimal(found, size),
                )
                return self._keep(made)
            case {"type": "array", "items": items}:
                part = self._type(items, space, depth + 1)
                if not part.least_bytes:
                    raise InvalidSchema(
                        "an array of items without bytes can have any number of them"
                    )
                return _made("array", (part,))
            case {"type": "map", "values": values}:
                return _made("map", (self._type(values, space, depth + 1),))
            case {"type": str() as kind} if kind in _PRIMITIVES:
                named = found.get("logicalType")
                logical = named if isinstance(named, str) else None
                least = _LEAST_BYTES.get(kind, 1)
                if logical == "decimal" and kind == "bytes":
                    return AvroType(kind, least_bytes=least, **_decimal(found, _MOST_DIGITS))
                known = (kind, logical) in _TIMES or (kind, logical) == ("string", "uuid")
                return AvroType(kind, least_bytes=least, logical=logical if known else None)
            case {"type": str() | dict() | list() as inner} if inner not in _COMPLEX:
                return self._type(inner, space, depth + 1)
        raise InvalidSchema(f"{json.dumps(found):.200} is not a type of Avro")

    def _record(
        self, found: Mapping[str, Any], fields: Sequence[Any], space: str, depth: int
    ) -> AvroType:
        name, space = self._name(found, space)
        if name in self._open:
            raise _recursive(name)
        self._open.add(name)
        made = tuple(self._field(one, space, depth) for one in fields)
        self._open.discard(name)
        names = [one.name for one in made]
        if len(set(names)) < len(names):
            raise InvalidSchema(f"record {name!r:.200} has two fields of one name")
        nodes = 1 + sum(one.type.nodes for one in made)
        below = max((one.type.depth for one in made), default=0)
        least = sum(one.type.least_bytes for one in made)
        return self._keep(
            _checked(
                AvroType(
                    "record",
                    name,
                    _aliases(found),
                    made,
                    nodes=nodes,
                    depth=below + 1,
                    least_bytes=least,
                )
            )
        )

    def _field(self, found: Any, space: str, depth: int) -> AvroField:  # noqa: ANN401 - JSON
        match found:
            case {"name": str() as name, "type": kind} if name and name.isprintable():
                default = (found["default"],) if "default" in found else ()
                if default and len(json.dumps(default)) > MOST_DEFAULT_BYTES:
                    raise InvalidSchema(
                        f"the default of {name!r:.200} has more than {MOST_DEFAULT_BYTES} bytes"
                    )
                return AvroField(name, self._type(kind, space, depth + 1), _aliases(found), default)
        raise InvalidSchema(f"{json.dumps(found):.200} is not a field of Avro")

    def _enum(self, found: Mapping[str, Any], symbols: Sequence[Any], space: str) -> AvroType:
        name, _ = self._name(found, space)
        if not all(isinstance(symbol, str) for symbol in symbols) or len(symbols) > _MOST_SYMBOLS:
            raise InvalidSchema(f"the symbols of enum {name!r:.200} are no names, or too many")
        default = found.get("default")
        if len(set(symbols)) < len(symbols) or (default is not None and default not in symbols):
            raise InvalidSchema(f"enum {name!r:.200} has a symbol twice, or its default is none")
        return self._keep(
            AvroType("enum", name, _aliases(found), symbols=tuple(symbols), default_symbol=default)
        )

    def _name(self, found: Mapping[str, Any], space: str) -> tuple[str, str]:
        """The full name of a definition, and the namespace for names inside it.

        Raises InvalidSchema: it has no name.
        """
        match found:
            case {"name": str() as name} if name:
                if "." not in name:
                    given = found.get("namespace", space)
                    space = given if isinstance(given, str) else space
                    return (f"{space}.{name}" if space else name), space
                return name, name.rpartition(".")[0]
        raise InvalidSchema(f"{json.dumps(found):.200} has no name")

    def _known(self, name: str, space: str) -> AvroType:
        for whole in (name,) if "." in name else (f"{space}.{name}", name):
            if whole in self._open:
                raise _recursive(whole)
            if whole in self._named:
                return self._named[whole]
        raise InvalidSchema(f"there is no type {name!r:.200}: not in the schema nor its references")

    def _keep(self, made: AvroType) -> AvroType:
        if made.name in self._named:
            raise InvalidSchema(f"type {made.name!r:.200} is defined twice")
        self._named[made.name] = made
        return made


_COMPLEX: Final = ("record", "error", "enum", "fixed", "array", "map")


def _recursive(name: str) -> InvalidSchema:
    return InvalidSchema(
        f"type {name!r:.200} contains itself, and so can have no columns: read the values as bytes"
    )


def _aliases(found: Mapping[str, Any]) -> tuple[str, ...]:
    given = found.get("aliases")
    return tuple(one for one in given if isinstance(one, str)) if isinstance(given, list) else ()


def _decimal(found: Mapping[str, Any], most_bytes: int) -> dict[str, Any]:
    """What a decimal's type has besides; nothing if it is none that Arrow and Spark have."""
    if found.get("logicalType") != "decimal":
        return {}
    match found.get("precision"), found.get("scale", 0):
        case int() as precision, int() as scale if (
            0 < precision <= _MOST_DIGITS and 0 <= scale <= precision and most_bytes > 0
        ):
            return {"logical": "decimal", "precision": precision, "scale": scale}
    return {}  # as Avro has it: what is not valid is as if it was not there


def _made(kind: str, parts: tuple[AvroType, ...]) -> AvroType:
    nodes = 1 + sum(part.nodes for part in parts)
    below = max(part.depth for part in parts)
    return _checked(AvroType(kind, parts=parts, nodes=nodes, depth=below + 1))


def _checked(made: AvroType) -> AvroType:
    if made.nodes > MOST_NODES or made.depth > MOST_DEPTH:
        raise InvalidSchema(
            f"a schema of Avro has more than {MOST_NODES} types, or {MOST_DEPTH} levels of them"
        )
    return made


def named_types(found: AvroType) -> Iterator[AvroType]:
    """A type and all types within it. A type that is used several times comes several times."""
    yield found
    for part in (*found.parts, *(one.type for one in found.fields)):
        yield from named_types(part)
