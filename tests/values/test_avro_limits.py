"""Work on schemas of Avro and JSON that somebody made large."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.values.avro_worlds import decoded, encoded, record
from txnlog.errors import InvalidSchema
from txnlog.values import avro_resolution
from txnlog.values.avro import read_avro, why_not
from txnlog.values.avro_resolution import field_of
from txnlog.values.avro_schema import AvroField, AvroType
from txnlog.values.json_schema import JsonCodec


def fixed(count: int) -> list[Any]:
    return [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(count)]


def test_a_union_has_so_many_types() -> None:
    """A value has a column for each of them."""
    assert len(read_avro(json.dumps(fixed(256))).type.others) == 256
    with pytest.raises(InvalidSchema, match="a union has more than 256 types"):
        read_avro(json.dumps(fixed(257)))


def test_the_types_of_a_union_that_no_value_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no work for each other."""
    schema = record(u=["null", *fixed(100)])
    values = encoded(schema, [{"u": one} for one in (("F7", b"a"), None, ("F3", b"b"))] * 2)
    made: list[str] = []
    in_union = avro_resolution._in_union

    def count(column: pa.Array, part: AvroType, reader: AvroType) -> pa.Array:
        made.append(part.name)
        return in_union(column, part, reader)

    monkeypatch.setattr(avro_resolution, "_in_union", count)
    found, problems = decoded(values, read_avro(json.dumps(schema)))
    assert problems == {}
    assert made == ["F3", "F7"]
    assert [
        None if row["u"] is None else {name: one for name, one in row["u"].items() if one}
        for row in found
    ] == [{"member7": b"a"}, None, {"member3": b"b"}] * 2


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def names(prefix: str) -> tuple[str, ...]:
    return tuple(Name(f"{prefix}{n}") for n in range(300))


def test_names_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symbols, fields, aliases, and properties that JSON Schema requires."""
    monkeypatch.setattr(Name, "compared", 0)
    one, other = (AvroType("enum", "E", symbols=names(prefix)) for prefix in "ab")
    assert len([*why_not(one, other)]) == 1
    assert avro_resolution._symbols(other, one).null_count == 300
    assert avro_resolution._symbols(other, one) is avro_resolution._symbols(other, one)
    null = AvroType("null")
    fields = tuple(AvroField(name, null) for name in names("a"))
    assert (
        field_of(AvroType("record", "R", fields=fields), AvroField("x", null, names("b"))) is None
    )
    asked = [
        JsonCodec(
            {"type": "object", "properties": {name: {} for name in names("c")}, "required": had}
        )
        for had in ([*names("a")], [*names("b")])
    ]
    assert len([*asked[0].why_not(asked[1])]) == 300
    assert Name.compared < 10 * 300
