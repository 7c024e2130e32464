"""Values of JSON Schema as columns, and columns as values.

Of a schema the types are read: what has properties is a struct, arrays are lists, and what has no
one type is its own text in JSON. Values are compared with these types and with nothing else that a
schema can demand. ``$ref`` is followed within the schema alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import InvalidSchema
from txnlog.segments.records import CONVERSION_ERRORS
from txnlog.values.avro_columns import Numbers, Problems
from txnlog.values.rows import RowColumns
from txnlog.values.schemas import MOST_DEPTH, MOST_NODES, check_text

_SCALARS: Final[Mapping[str, Any]] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}
_NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "$id", "id", "$schema", "$comment"}
    | {"definitions", "$defs"}
)
"""What says nothing of values, or is looked at where it is referred to."""
_UNDERSTOOD: Final = frozenset({"type", "properties", "required", "items"})


@dataclass(frozen=True, slots=True)
class _Node:
    """A type: a name of JSON Schema's, or ``text`` for what has no one type.

    A field that ``is_required`` cannot be left out; if it ``takes_null``, it may be null.
    """

    kind: str
    nullable: bool = True
    fields: Mapping[str, _Node] = field(default_factory=dict)
    items: _Node | None = None
    is_required: bool = False
    takes_null: bool = True

    def arrow(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        if self.kind == "object":
            return pa.struct([pa.field(name, one.arrow()) for name, one in self.fields.items()])
        if self.kind == "array":
            assert self.items is not None
            return pa.list_(pa.field("element", self.items.arrow()))
        return _SCALARS.get(self.kind, pa.string())


class JsonCodec:
    """A :class:`Codec` of an object; of anything else the column is ``value``."""

    def __init__(self, schema: Any) -> None:  # noqa: ANN401 - JSON
        self._schema = _Document(schema)
        node = _Parser(schema).node(schema, (), 1)
        self._is_object = node.kind == "object"
        whole = _Node("object", False, {"value": replace(node, is_required=True)})
        self._node = node if self._is_object else whole
        self.columns = pa.schema(
            [pa.field(name, one.arrow(), one.nullable) for name, one in self._node.fields.items()]
        )

    @property
    def defaults(self) -> Mapping[str, pa.Scalar]:
        """Empty: defaults in a JSON Schema are only notes."""
        return {}

    def decode(
        self,
        data: npt.NDArray[np.uint8],
        starts: Numbers,
        ends: Numbers,
        problems: Problems,
        reader: JsonCodec,
    ) -> pa.StructArray:
        held = memoryview(data)  # type: ignore[arg-type]  # it is one
        rows = RowColumns(reader.columns)
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            found = None
            rows.begin(end - start)
            try:
                value = msgspec.json.decode(held[start:end])
                whole = value if reader._is_object else {"value": value}
                found = _fit(whole, reader._node, "", rows)
            except (msgspec.MsgspecError, RecursionError, *CONVERSION_ERRORS) as error:
                problems.tell(row, f"it is not JSON of the schema: {error}")
            rows.add(found)
        return rows.columns()

    def encode(self, columns: pa.RecordBatch) -> list[bytes]:
        made = []
        for row in columns.to_pylist():
            value = _unfit(row, self._node)
            made.append(msgspec.json.encode(value if self._is_object else value["value"]))
        return made

    def filled(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The value as it is: nothing has a default that is written."""
        return value

    def place(self, id_bytes: int) -> bytes:  # noqa: ARG002 - it is nowhere else
        """Empty: all values of a JSON Schema are of one type."""
        return b""

    def why_not(self, writer: JsonCodec) -> Iterator[str]:
        mine, other = self._schema, writer._schema
        return _Comparison(mine, other).why_not(mine.whole, other.whole)


def read_json_schema(text: str, references: Sequence[tuple[str, str]] = ()) -> JsonCodec:  # noqa: ARG001
    """The codec of a JSON Schema. References to other schemas are not resolved.

    What they describe is read as text. Raises InvalidSchema.
    """
    try:
        found = json.loads(check_text(text))
        if not isinstance(found, dict | bool):
            raise InvalidSchema("a JSON Schema is an object")
        return JsonCodec(found)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"it is not a JSON Schema: {error}") from error


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a part of a schema says by itself: its type, or the one part that it is, or null."""

    kind: str = "text"
    nullable: bool = True
    only: Any = None
    needed: Mapping[str, None] = field(default_factory=dict)


class _Parser:
    """Makes nodes of a schema. What may be long is looked at once, however many refer to it."""

    def __init__(self, whole: Any) -> None:  # noqa: ANN401 - JSON
        self._whole = _Document(whole)
        self._nodes = 0
        self._shapes: dict[int, _Shape] = {}
        self._nulls: dict[int, bool] = {}

    def node(self, found: Any, above: tuple[str, ...], depth: int) -> _Node:  # noqa: ANN401 - JSON
        made = self._node(found, above, depth)
        takes_null = made.takes_null and made.nullable and self._may_be_null(found)
        return replace(made, takes_null=takes_null)

    def _node(self, found: Any, above: tuple[str, ...], depth: int) -> _Node:  # noqa: ANN401 - JSON
        self._nodes += 1
        if self._nodes > MOST_NODES or depth > MOST_DEPTH:
            raise InvalidSchema(
                f"a JSON Schema has more than {MOST_NODES} types, or {MOST_DEPTH} levels of them"
            )
        if not isinstance(found, dict):
            return _Node("text")
        if isinstance(reference := found.get("$ref"), str):
            target = self._whole.target(reference)
            if target is None or reference in above:
                return _Node("text")
            return self.node(target, (*above, reference), depth)
        shape = self._shapes.get(id(found))
        if shape is None:
            shape = self._shapes[id(found)] = _shape(found)
        if shape.only is not None:
            made = self.node(shape.only, above, depth)
            return _Node(made.kind, True, made.fields, made.items)
        kind, nullable = shape.kind, shape.nullable
        properties = found.get("properties")
        if kind == "object" and isinstance(properties, dict) and properties:
            bases = found.get("allOf")
            fields: dict[str, _Node] = {}
            for base in bases if isinstance(bases, list) else ():
                fields |= self.node(base, above, depth).fields
            own = {name: self.node(one, above, depth + 1) for name, one in properties.items()}
            for name, one in {**fields, **own}.items():
                is_needed = name in shape.needed or (name in fields and fields[name].is_required)
                fields[name] = replace(
                    one, nullable=one.nullable or not is_needed, is_required=is_needed
                )
            return _Node("object", nullable, fields)
        if kind == "array" and isinstance(found.get("items"), dict):
            return _Node("array", nullable, items=self.node(found["items"], above, depth + 1))
        return _Node(kind, nullable) if kind in _SCALARS else _Node("text")

    def _may_be_null(self, found: Any) -> bool:  # noqa: ANN401 - JSON
        """Whether a part of a schema may take null, as far as its types and values say."""
        if not isinstance(found, dict):
            return found is not False
        known = self._nulls.get(id(found))
        if known is None:
            known = self._nulls[id(found)] = self._takes_null(found)
        return known

    def _takes_null(self, found: Mapping[str, Any]) -> bool:
        for several, judge in (("oneOf", any), ("anyOf", any), ("allOf", all)):
            parts = found.get(several)
            if isinstance(parts, list) and not judge(map(self._may_be_null, parts)):
                return False
        values = found.get("enum")
        if isinstance(values, list) and None not in values:
            return False
        kinds = _kinds(found)
        return found.get("const") is None and (kinds is None or "null" in kinds)


def _shape(found: Mapping[str, Any]) -> _Shape:
    for several in ("oneOf", "anyOf"):
        if isinstance(parts := found.get(several), list):
            others = [part for part in parts if part != {"type": "null"}]
            return _Shape(only=others[0]) if len(others) == 1 else _Shape()
    kinds = found.get("type")
    nullable = False
    if isinstance(kinds, list):
        others = [kind for kind in kinds if kind != "null"]
        nullable = "null" in kinds
        kinds = others[0] if len(others) == 1 else None
    kind = kinds if isinstance(kinds, str) else "text"
    return _Shape(kind, nullable, needed=_names(found.get("required")))


def _names(found: Any) -> Mapping[str, None]:  # noqa: ANN401 - JSON
    """The texts of a list, in its order; of anything else none."""
    given = found if isinstance(found, list) else []
    return dict.fromkeys(one for one in given if isinstance(one, str))


class _Document:
    """A whole schema, in which references are looked up."""

    def __init__(self, whole: Any) -> None:  # noqa: ANN401 - JSON
        self.whole = whole

    def target(self, reference: str) -> Any:  # noqa: ANN401 - JSON
        """What a reference names; None: nothing, or it leads elsewhere."""
        if not reference.startswith("#"):
            return None
        if reference[1:2] not in ("", "/"):
            return self._anchors.get(reference)
        found = self.whole
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return found

    @cached_property
    def _anchors(self) -> Mapping[str, Any]:
        """The parts that have a name of their own; what two are called is none's."""
        found: dict[str, Any] = {}
        for part in _objects([self.whole]):
            for key, sign in (("$anchor", "#"), ("$id", ""), ("id", "")):
                name = part.get(key)
                if isinstance(name, str) and (sign or name.startswith("#")):
                    found[sign + name] = None if sign + name in found else part
        return found


def _objects(left: list[Any]) -> Iterator[dict[str, Any]]:
    """The JSON objects in these values, at any depth. The caller may add more values."""
    while left:
        match left.pop():
            case list() as items:
                left.extend(items)
            case dict() as part:
                left.extend(part.values())
                yield part


def _fit(value: Any, node: _Node, place: str, rows: RowColumns) -> Any:  # noqa: ANN401 - JSON
    """A value as Arrow takes it; UNSET is a property that is missing.

    Raises ValueError: it is of another type.
    """
    if node.kind == "text":
        return None if value is msgspec.UNSET else msgspec.json.encode(value).decode()
    if value is None or value is msgspec.UNSET:
        if not node.nullable:
            raise ValueError(f"{place or 'the value'} is missing, or null")
        return None
    match node.kind, value:
        case "object", dict():
            rows.spend(len(node.fields))
            return {
                name: _fit(
                    value.get(name, msgspec.UNSET), one, f"{place}.{name}" if place else name, rows
                )
                for name, one in node.fields.items()
            }
        case "array", list():
            assert node.items is not None
            return [_fit(item, node.items, f"{place}[]", rows) for item in value]
        case "string", str():
            return value
        case "boolean", bool():
            return value
        case "integer", int() if not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
            return value
        case "integer", float() if value.is_integer() and abs(value) < 1 << 53:
            return int(value)
        case "number", int() | float() if not isinstance(value, bool):
            return float(value)
    raise ValueError(f"{place or 'the value'} is no {node.kind}")


def _unfit(value: Any, node: _Node) -> Any:  # noqa: ANN401 - JSON
    """The JSON value that ``_fit`` would take; optional fields that are null are left out.

    Raises ValueError: a required field is null.
    """
    if node.kind == "text":
        return None if value is None else msgspec.Raw(_checked_json(value, node))
    if value is None:
        if not node.nullable:
            raise ValueError(f"a {node.kind} that the schema requires is null")
        return None
    if node.kind == "object":
        made = {name: _unfit(value.get(name), one) for name, one in node.fields.items()}
        for name, one in node.fields.items():
            if made[name] is None and one.is_required and not one.takes_null:
                raise ValueError(f"property {name!r:.200}, which the schema requires, is null")
        return {
            name: one
            for name, one in made.items()
            if one is not None or node.fields[name].is_required
        }
    if node.kind == "array":
        assert node.items is not None
        items = [_unfit(item, node.items) for item in value]
        if None in items and not node.items.takes_null:
            raise ValueError("an item of an array is null, which the schema does not allow")
        return items
    if node.kind == "number" and not math.isfinite(value):
        raise ValueError(f"{value} is no number in JSON")
    return value


def _checked_json(text: str, node: _Node) -> bytes:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{text!r:.60} is not JSON: {error}") from error
    if value is None and not node.takes_null:
        raise ValueError(f"{text!r:.60} is null in JSON, which the schema does not allow")
    return text.encode()


class _Comparison:
    """Compares two whole schemas. A reference that both have is compared once."""

    def __init__(self, reader: _Document, writer: _Document) -> None:
        self._reader = reader
        self._writer = writer
        self._compared: set[str] = set()
        self._must_be_same: set[str] = set()
        """The references that were looked at, in what is not understood."""

    def _targets(self, reference: str) -> tuple[Any, Any]:
        return self._reader.target(reference), self._writer.target(reference)

    def why_not(self, reader: Any, writer: Any, place: str = "", depth: int = 1) -> Iterator[str]:  # noqa: ANN401
        """Of a part of each. What is not understood must be the same."""
        shown = place or "the value"
        if depth > 2 * MOST_DEPTH:
            yield f"{shown}: it is nested too deeply to be compared"
            return
        reference = reader.get("$ref") if isinstance(reader, dict) else None
        is_same = isinstance(writer, dict) and reference == writer.get("$ref")
        if isinstance(reference, str) and is_same:
            if reference not in self._compared:
                self._compared.add(reference)
                yield from self.why_not(*self._targets(reference), place, depth + 1)
            return
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            if reader != writer and reader is not True:
                yield f"{shown}: it cannot be told whether one takes what the other does"
            return
        mine, others = _kinds(reader), _kinds(writer)
        if mine is not None and (others is None or not others <= mine):
            yield f"{shown}: {_listed(others)} was allowed, and {_listed(mine)} is"
            return
        for name in sorted((reader.keys() | writer.keys()) - _NOTES - _UNDERSTOOD):
            if reader.get(name) != writer.get(name):
                yield f"{shown}: {name} has changed, and what that means for values is not checked"
            else:
                for reference in self._changed(reader.get(name)):
                    yield f"{shown}: {name} refers to {reference!r:.200}, which has changed"
        had, have = writer.get("properties"), reader.get("properties")
        had, have = (one if isinstance(one, dict) else {} for one in (had, have))
        for name in had.keys() & have.keys():
            inside = f"{place}.{name}" if place else name
            yield from self.why_not(have[name], had[name], inside, depth + 1)
        if reader.get("additionalProperties") is False:
            for name in had.keys() - have.keys():
                yield f"{shown}: property {name!r} is gone, and no others are allowed"
        was = _names(writer.get("required"))
        for name in _names(reader.get("required")):
            if name not in was:
                yield f"{shown}: property {name!r} is required, and was not"
        if "items" in reader or "items" in writer:
            items = reader.get("items", True), writer.get("items", True)
            yield from self.why_not(*items, f"{place}[]", depth + 1)

    def _changed(self, found: Any) -> Iterator[str]:  # noqa: ANN401
        """The references in a part of both schemas that lead to something that has changed.

        Parts that are the same are searched for references in turn.
        """
        left = [found]
        for part in _objects(left):
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in self._must_be_same:
                self._must_be_same.add(reference)
                one, other = self._targets(reference)
                if one == other:
                    left.append(one)
                else:
                    yield reference


def _kinds(schema: Mapping[str, Any]) -> set[str] | None:
    """The types that it allows; None: any."""
    found = schema.get("type")
    if not isinstance(found, str | list):
        return None
    kinds = {found} if isinstance(found, str) else {one for one in found if isinstance(one, str)}
    return kinds | ({"integer"} if "number" in kinds else set())


def _listed(kinds: set[str] | None) -> str:
    return "anything" if kinds is None else " or ".join(sorted(kinds))
