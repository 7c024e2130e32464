"""JSON Schema as columns: types, nulls, what has no one type, and what is compared."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from txnlog.errors import InvalidRecord, InvalidSchema
from txnlog.store import Store
from txnlog.values import ValueReader, ValueWriter
from txnlog.values.json_schema import JsonCodec, read_json_schema

ORDER: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "note": {"type": ["string", "null"]},
        "paid": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/definitions/place"},
        "any": {"type": ["string", "integer"]},
        "far": {"$ref": "http://127.0.0.1:9/schema.json"},
        "tree": {"$ref": "#/definitions/tree"},
    },
    "required": ["id"],
    "definitions": {
        "place": {"type": "object", "properties": {"city": {"type": "string"}}},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/definitions/tree"}}},
    },
}
ROW = {
    "id": 7,
    "price": 9.5,
    "note": None,
    "paid": True,
    "tags": ["a"],
    "where": {"city": "Rome"},
    "any": '{"x":[1]}',
    "far": None,
    "tree": {"left": '{"left":{}}'},
}


def test_values_are_columns_and_columns_values(store: Store) -> None:
    """What a schema says, and its text where it does not; nothing is fetched."""
    store.schemas.add("order", json.dumps(ORDER), "JSON")
    reader = ValueReader(store.schemas, "json", subject="order")
    types = {field.name: field.type for field in reader.schema}
    assert (types["id"], types["price"], types["paid"]) == (pa.int64(), pa.float64(), pa.bool_())
    assert (types["any"], types["far"]) == (pa.string(), pa.string())
    value = {
        "id": 7,
        "price": 9.5,
        "paid": True,
        "tags": ["a"],
        "where": {"city": "Rome"},
        "any": {"x": [1]},
        "tree": {"left": {"left": {}}},
        "unknown": 1,
    }
    head = b"\0\0\0\0\1"
    assert reader(head + json.dumps(value).encode()) == ROW
    written = ValueWriter(store.schemas, "json", subject="order")(ROW)
    del value["unknown"]
    assert json.loads(written[5:]) == value
    assert reader(written) == ROW
    assert reader(head + b'{"id": 3, "any": null}')["any"] == "null"
    assert reader(head + b'{"id": 3.0}')["id"] == 3
    for body, reason in (
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "the value is no object"),
        (b"{}", "id is missing, or null"),
        (b'{"id": "7"}', "id is no integer"),
        (b'{"id": true}', "id is no integer"),
        (b'{"id": 9223372036854775808}', "id is no integer"),
        (b'{"id": 1, "tags": [1]}', r"tags\[\] is no string"),
        (b'{"id": 1, "where": {"city": 1}}', "where.city is no string"),
    ):
        with pytest.raises(InvalidRecord, match=reason):
            reader(head + body)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("place", ["price", "list", "inner"])
def test_numbers_that_json_does_not_have_are_refused(
    store: Store, number: float, place: str
) -> None:
    """Wherever they are: msgspec would write null for them."""
    amount = {"type": "number"}
    schema = obj(price=amount, list=listed(amount), inner=obj(a=amount))
    store.schemas.add("order", json.dumps(schema), "JSON")
    write = ValueWriter(store.schemas, "json", subject="order")
    row = {"price": 1.0, "list": [2.0], "inner": {"a": 3.0}}
    assert json.loads(write(row)[5:]) == row
    wrong: dict[str, Any] = {"price": number, "list": [1.0, number], "inner": {"a": number}}
    with pytest.raises(InvalidRecord, match=f"{number} is no number in JSON"):
        write({**row, place: wrong[place]})


NULLS: dict[str, tuple[Any, bool]] = {
    "integer": ({"type": "integer"}, False),
    "or null": ({"type": ["string", "null"]}, True),
    "one of": ({"oneOf": [{"type": "null"}, {"type": "string"}]}, True),
    "one of one": ({"oneOf": [{"type": "string"}]}, False),
    "object": ({"type": "object", "properties": {"x": {"type": "integer"}}}, False),
    "array": ({"type": "array", "items": {"type": "integer"}}, False),
    "anything": ({}, True),
    "always": (True, True),
    "several": ({"type": ["string", "integer"]}, False),
    "several or null": ({"type": ["string", "integer", "null"]}, True),
    "any of several": ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, False),
    "one of some": ({"enum": ["a", 1]}, False),
    "one of some or null": ({"enum": ["a", None]}, True),
    "a string, or null, of some": ({"type": ["string", "null"], "enum": ["a"]}, False),
    "one": ({"const": "a"}, False),
    "null alone": ({"const": None}, True),
    "all of": ({"allOf": [{}, {"type": "string"}]}, False),
    "all of, and null": ({"allOf": [{}, {"type": ["string", "null"]}]}, True),
    "any of all of": ({"anyOf": [{"allOf": [{"const": 1}]}, {"enum": [2]}]}, False),
    "never": (False, False),
    "referred to": ({"$ref": "#/definitions/two"}, False),
    "referred to, or null": ({"$ref": "#/definitions/two or null"}, True),
}
"""Types of properties, and whether they take null."""
DEFINITIONS = {
    "two": {"type": ["string", "integer"]},
    "two or null": {"type": ["string", "integer", "null"]},
}


@pytest.mark.few(22)
@pytest.mark.parametrize("row", [{"id": 1}, {"id": 1, "p": None}], ids=["left out", "null"])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("name", NULLS)
def test_nulls_are_written_as_the_schema_takes_them(
    store: Store, name: str, required: bool, row: dict[str, Any]
) -> None:
    """Left out where they may be; else null, if that is of the type, or not written at all."""
    kind, takes_null = NULLS[name]
    schema = obj(id={"type": "integer"}, p=kind) | {"required": ["id"] + ["p"] * required}
    schema["definitions"] = DEFINITIONS
    store.schemas.add("s", json.dumps(schema), "JSON")
    write = ValueWriter(store.schemas, "json", subject="s")
    if required and not takes_null:
        with pytest.raises(InvalidRecord, match="requires"):
            write(row)
    else:
        assert json.loads(write(row)[5:]) == {"id": 1, **({"p": None} if required else {})}


def items_writer(store: Store, items: Any) -> ValueWriter:
    """Of arrays with such items, at the top and within another array."""
    array = {"type": "array", "items": items if isinstance(items, dict) else {"allOf": [items]}}
    schema = obj(p=array, deep={"type": "array", "items": obj(p=array)})
    schema["definitions"] = DEFINITIONS
    store.schemas.add("s", json.dumps(schema), "JSON")
    return ValueWriter(store.schemas, "json", subject="s")


@pytest.mark.parametrize("name", NULLS)
def test_nulls_in_arrays_are_written_as_the_schema_takes_them(store: Store, name: str) -> None:
    """At any depth."""
    kind, takes_null = NULLS[name]
    write = items_writer(store, kind)
    rows: list[dict[str, Any]] = [{"p": [None]}, {"deep": [{"p": [None]}]}]
    for row in rows:
        if takes_null:
            assert json.loads(write(row)[5:]) == row
        else:
            with pytest.raises(InvalidRecord, match="null"):
                write(row)


@pytest.mark.parametrize("name", ["anything", "several", "several or null", "one of some", "one"])
def test_null_as_text_is_written_as_the_schema_takes_it(store: Store, name: str) -> None:
    """What has no one type is text of JSON, which may be that of null."""
    kind, takes_null = NULLS[name]
    write = items_writer(store, kind)
    if takes_null:
        assert json.loads(write({"p": [" null"]})[5:]) == {"p": [None]}
    else:
        with pytest.raises(InvalidRecord, match="null in JSON"):
            write({"p": [" null"]})


def test_what_is_no_object_is_one_column(store: Store) -> None:
    """Called ``value``."""
    store.schemas.add("numbers", '{"type": "array", "items": {"type": "integer"}}', "JSON")
    reader = ValueReader(store.schemas, "json", subject="numbers")
    value = ValueWriter(store.schemas, "json", subject="numbers")({"value": [1, 2]})
    assert value == b"\0\0\0\0\1[1,2]"
    assert reader(value) == {"value": [1, 2]}


@pytest.mark.parametrize(
    "odd", [{"type": {}}, {"type": 7}, {"type": [{}]}, {"oneOf": [7]}, {"$ref": "#/x"}, True]
)
def test_odd_types_are_text(odd: Any) -> None:
    """Whatever stands where a type is expected."""
    codec = read_json_schema(json.dumps(obj(a=odd)))
    assert codec.columns.field("a").type == pa.string()
    assert [*codec.why_not(codec)] == []


ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}}}
STREET = pa.struct([pa.field("street", pa.string())])


@pytest.mark.parametrize(
    ("reference", "definitions", "kind"),
    [
        ("#/$defs/a", {"a": ADDRESS}, STREET),
        ("#a", {"a": {**ADDRESS, "$anchor": "a"}}, STREET),
        ("#a", {"a": {**ADDRESS, "$id": "#a"}}, STREET),
        ("#a", {"a": {**ADDRESS, "id": "#a"}}, STREET),
        ("#a", {"b": {"items": [{**ADDRESS, "$anchor": "a"}]}}, STREET),
        ("#a", {"a": {**ADDRESS, "$anchor": "a"}, "b": {"$anchor": "a"}}, pa.string()),
        ("#a", {"a": {**ADDRESS, "$id": ["#a"], "$anchor": {}}}, pa.string()),
        ("#a", {"a": ADDRESS}, pa.string()),
        ("a", {"a": {**ADDRESS, "$id": "a"}}, pa.string()),
    ],
)
def test_what_references_name(reference: str, definitions: Any, kind: pa.DataType) -> None:
    """A place or a name within the schema; what neither is, or is twice, is text."""
    schema = {**obj(home={"$ref": reference}), "$defs": definitions}
    codec = read_json_schema(json.dumps(schema))
    assert codec.columns.field("home").type == kind
    schema["$defs"] = json.loads(json.dumps(definitions).replace("string", "integer"))
    changed = [*read_json_schema(json.dumps(schema)).why_not(codec)]
    assert bool(changed) == (kind == STREET)


def test_properties_beside_all_of(store: Store) -> None:
    """What it is based on has properties of its own, and may require some."""
    base = obj(("id",), id=INT, note=TEXT)
    schema = {
        **obj(("note",), amount=NUMBER, id=NUMBER),
        "allOf": [{"$ref": "#/$defs/base"}, {"not": {}}, 7, obj(more=INT)],
        "$defs": {"base": {**obj(low=INT), "allOf": [base]}},
    }
    store.schemas.add("s", json.dumps(schema), "JSON")
    reader = ValueReader(store.schemas, "json", subject="s")
    kinds = {"id": pa.float64(), "note": pa.string(), "low": pa.int64(), "more": pa.int64()}
    assert {**dict(zip(reader.schema.names, reader.schema.types, strict=True))} == {
        **kinds,
        "amount": pa.float64(),
    }
    write = ValueWriter(store.schemas, "json", subject="s")
    row = {"id": 1.5, "note": "n", "low": 2, "more": 3, "amount": 0.5}
    assert reader(write(row)) == row
    for name in ("note", "id"):
        with pytest.raises(InvalidRecord, match="requires"):
            write({**row, name: None})


@pytest.mark.parametrize("several", ["anyOf", "oneOf", "allOf", "enum", "type", "required"])
def test_what_is_referred_to_often_is_looked_at_once(several: str) -> None:
    """A list may be as long as the whole text."""
    looks = []

    class Parts(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            looks.append(several)
            return super().__iter__()

        def __contains__(self, one: object) -> bool:
            looks.append(several)
            return super().__contains__(one)

    parts = Parts(["a", "b"] if several in ("type", "required") else [{"const": 0}] * 2)
    definition = {**ADDRESS, several: parts} if several == "required" else {several: parts}
    properties = {f"p{n}": {"$ref": "#/$defs/d"} for n in range(100)}
    JsonCodec({"type": "object", "properties": properties, "$defs": {"d": definition}})
    assert 0 < len(looks) < 9


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "7", " " * (1 << 20) + "{}"])
def test_schemas_that_are_none(text: str) -> None:
    """Whatever JSON it is."""
    with pytest.raises(InvalidSchema):
        read_json_schema(text)


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


def test_schemas_that_are_too_large() -> None:
    """By their depth, by their fields, and by definitions that are used again and again."""
    many = {"type": "object", "properties": {f"f{n}": {"type": "integer"} for n in range(5000)}}
    doubling: dict[str, Any] = {
        "$ref": "#/definitions/t14",
        "definitions": {"t0": {"type": "integer"}},
    }
    for level in range(1, 15):
        inner = {"$ref": f"#/definitions/t{level - 1}"}
        doubling["definitions"][f"t{level}"] = {
            "type": "object",
            "properties": {"a": inner, "b": inner},
        }
    for schema in (deep(30), many, doubling):
        with pytest.raises(InvalidSchema, match="4096"):
            read_json_schema(json.dumps(schema))


def obj(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required]}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


CLOSED = {"additionalProperties": False}
INT, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}


@pytest.mark.parametrize(
    ("new", "old", "reason"),
    [
        (obj(a=NUMBER), obj(a=INT), ""),
        (obj(a=INT), obj(a=NUMBER), "a: integer or number was allowed, and integer is"),
        (obj(a={"type": ["integer", "null"]}), obj(a=INT), ""),
        (obj(a=INT, b=TEXT), obj(a=INT), ""),
        (obj(a=INT), obj(a=INT, b=TEXT), ""),
        (obj(("b",), a=INT, b=TEXT), obj(a=INT, b=TEXT), "property 'b' is required, and was not"),
        (obj(a={**TEXT, "title": "x"}), obj(a=TEXT), ""),
        (obj(a={**TEXT, "maxLength": 3}), obj(a=TEXT), "a: maxLength has changed"),
        (
            {**obj(), "additionalProperties": False},
            {**obj(a=INT), "additionalProperties": False},
            "is gone",
        ),
        (
            obj(a={"type": "array", "items": TEXT}),
            obj(a={"type": "array", "items": INT}),
            r"a\[\]: integer",
        ),
    ],
)
def test_compatibility(new: dict[str, Any], old: dict[str, Any], reason: str) -> None:
    """What is understood is compared; what is not must be the same."""
    found = " ".join(read_json_schema(json.dumps(new)).why_not(read_json_schema(json.dumps(old))))
    assert bool(found) == bool(reason)
    if reason:
        assert re.search(reason, found)


def test_what_both_refer_to_is_compared() -> None:
    """Also behind another reference, and within what is not understood."""

    def order(price: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
        return {**obj(item={"$ref": "#/$defs/item"}), "$defs": {"price": price, "item": item}}

    for item, reason in (
        (obj(price={"$ref": "#/$defs/price"}), "item.price: integer was allowed, and string is"),
        (
            obj(price={"oneOf": [{"type": "null"}, {"$ref": "#/$defs/price"}]}),
            "item.price: oneOf refers to '#/$defs/price', which has changed",
        ),
    ):
        old, new = (read_json_schema(json.dumps(order(kind, item))) for kind in (INT, TEXT))
        assert [*new.why_not(old)] == [reason]
        assert [*old.why_not(old)] == []


def test_a_type_that_contains_itself_may_get_a_property() -> None:
    """It is compared once, not as deep as it could be."""
    itself = {"$ref": "#"}
    old, new = obj(child=itself), obj(child=itself, note=TEXT)
    assert [*read_json_schema(json.dumps(new)).why_not(read_json_schema(json.dumps(old)))] == []


def test_what_is_referred_to_again_and_again_is_compared_once() -> None:
    """Ten references in each of ten definitions are no ten thousand million comparisons."""

    def growing(last: dict[str, Any]) -> dict[str, Any]:
        inner = [{"$ref": f"#/$defs/t{level}"} for level in range(11)]
        defs = {
            f"t{level}": {"properties": {f"p{n}": inner[level - 1] for n in range(10)}}
            for level in range(1, 11)
        }
        return {"$ref": "#/$defs/t10", "$defs": {**defs, "t0": last}}

    old, new = (read_json_schema(json.dumps(growing(kind))) for kind in (INT, TEXT))
    assert len([*new.why_not(old)]) == 1
