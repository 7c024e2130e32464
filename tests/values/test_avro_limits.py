"""What a few bytes of Avro may become, under whatever schema: bounded memory and linear work."""

from __future__ import annotations

import json
import tracemalloc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.values.avro_worlds import Kind, decoded, encoded, kinds, record
from txnlog.errors import InvalidRecord, InvalidSchema
from txnlog.values import RegisteredSchema, ValueReader, avro_resolution, rows
from txnlog.values.avro import AvroCodec, read_avro, why_not
from txnlog.values.avro_columns import Problems, decode_plain
from txnlog.values.avro_fields import _Fields, most_fields, too_many_fields
from txnlog.values.avro_resolution import field_of, resolve
from txnlog.values.avro_schema import AvroField, AvroType
from txnlog.values.json_schema import JsonCodec
from txnlog.values.reader import DecodedValues
from txnlog.values.rows import MOST_FIELDS, MOST_FIELDS_TOGETHER, TooManyFields


@dataclass
class Schemas:
    """By their numbers from 1; the last one is read."""

    found: Sequence[Any]

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(schema_id, "AVRO", json.dumps(self.found[schema_id - 1]))

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:  # noqa: ARG002
        return self.by_id(len(self.found))


def reader_of(*schemas: Any) -> ValueReader:
    return ValueReader(Schemas(schemas), "avro", subject="s")


def framed(schema: Any, rows_: Sequence[Any], schema_id: int = 1) -> list[bytes]:
    return [b"\0" + schema_id.to_bytes(4, "big") + value for value in encoded(schema, rows_)]


def items(kind: Any) -> dict[str, Any]:
    """A record of a list, whose own items are called ``I``."""
    named = {**kind, "name": "I"} if isinstance(kind, dict) else kind
    return record(a={"type": "array", "items": named})


def wide(kind: Any, count: int, **first: Any) -> dict[str, Any]:
    fields = first | {f"f{n}": kind for n in range(count)}
    return {**record(**fields), "name": "I"}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}
NULLS = wide("null", 3900, b="boolean")
TEXT = ("string", "x" * 400)
OLD = record(b="boolean")
SYMBOLS = {"type": "enum", "name": "E", "symbols": ["A", "x" * 1000]}
LONG = record(b="boolean", **{f"d{n}": TEXT for n in range(20)})
MANY = record(b="boolean", **{f"d{n}": ("int", 1) for n in range(60)})
SPARSE = record(r=["null", wide(["null", "long"], 60)])


@pytest.mark.parametrize(
    ("schema", "value", "most"),
    [
        (items(NULLS), b"\0", MOST_FIELDS),
        (items(["null", NULLS]), b"\2\0", MOST_FIELDS),
        (items(["null", wide("long", 3900)]), b"\0", MOST_FIELDS_TOGETHER),
        (record(a={"type": "map", "values": wide("null", 3900)}), b"\2k", MOST_FIELDS),
    ],
)
def test_few_bytes_are_not_many_fields(schema: Any, value: bytes, most: int) -> None:
    """An item of a byte has all fields of its schema: the value is none, those beside it are."""
    count = most // 3900 + 100
    body = encoded({"type": "array", "items": "null"}, [[None] * count])[0][:-1] + value * count
    hostile = b"\0\0\0\0\1" + body + b"\0"
    small = b"\0\0\0\0\1\2" + value + b"\0"
    found = reader_of(schema).decode(pa.array([small, hostile, small]))
    assert [reason is None for reason in found.errors.to_pylist()] == [True, False, True]
    assert f"has more than {most + len(body) + 1} fields, those" in found.errors[1].as_py()
    assert [len(row or ()) for row in found.columns.column("a").to_pylist()] == [1, 0, 1]


def test_fields_are_counted_as_they_are_read() -> None:
    """To the last byte of each value; there are never more than was thought."""

    @some(200)
    @given(kinds(with_lists=True).flatmap(lambda kind: st.tuples(st.just(kind), kind.values)))
    def check(world: tuple[Kind, tuple[Any, Any]]) -> None:
        kind = read_avro(json.dumps(world[0].schema)).type
        (value,) = encoded(world[0].schema, [world[1][0]])
        counted = _Fields(memoryview(value))
        counted.of(kind)
        assert counted._at == len(value)
        sizes = pa.array([len(value)], pa.int64()).to_numpy()
        most = int(most_fields(kind, sizes)[0])
        assert counted._most_fields - counted._fields <= most
        assert counted._most_columns - counted._columns <= most

    check()


def test_values_are_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fewer values at a time."""
    monkeypatch.setattr("txnlog.values.avro_columns.MOST_FIELDS", 5)
    schema = items(["null", "string", wide("long", 2)])
    values = [[None, ("string", "é")], [], [("I", {"f0": 1, "f1": -1})], [("string", "x" * 9)]] * 3
    rows_, problems = decoded(
        [*encoded(schema, [{"a": value} for value in values]), b"\4"], read_avro(json.dumps(schema))
    )
    assert problems == {12: "it ends too early, or is of another type"}
    members = [[one and {**one} for one in row["a"]] for row in rows_[:12]]
    text, inner = {"member0": "é", "member1": None}, {"f0": 1, "f1": -1}
    expected = [[None, text], [], [{"member0": None, "member1": inner}]]
    assert members == [*expected, [{"member0": "x" * 9, "member1": None}]] * 3


@pytest.mark.parametrize("value", [b"\2", b"\2\2\1", b"\2\3", b"\1\0\2", b"\x80" * 11, b"\2\1\0"])
def test_what_is_counted_may_be_damaged(value: bytes) -> None:
    """Each is told as fastavro would have it."""
    kind = read_avro(json.dumps({"type": "array", "items": ["null", "string"]})).type
    assert too_many_fields(kind, memoryview(value)) == "it ends too early, or is of another type"


def pieces_of(reader: ValueReader, values: Sequence[bytes]) -> list[pa.RecordBatch]:
    """Of a batch whose values are too many together, and what is in all of its pieces."""
    batch = pa.record_batch({"value": pa.array(values), "offset": pa.array(range(len(values)))})
    with pytest.raises(InvalidRecord, match="decode fewer at a time"):
        reader.decode(batch["value"])
    found = [*reader.read([batch])]
    assert len(found) > 1
    assert pa.Table.from_batches(found)["_offset"].to_pylist() == [*range(len(values))]
    return found


@pytest.mark.parametrize(
    ("old", "new", "row"),
    [
        (OLD, LONG, {"b": True}),
        (OLD, MANY, {"b": True}),
        (record(e=SYMBOLS), record(e=SYMBOLS), {"e": "A"}),
        (SPARSE, SPARSE, {"r": None}),
        (SPARSE, record(), {"r": None}),
        (items("int"), items("int"), {"a": [1] * 250}),
    ],
)
def test_what_fits_alone_is_read_in_pieces(
    monkeypatch: pytest.MonkeyPatch, old: Any, new: Any, row: Any
) -> None:
    """What values become by their schemas is bounded for all together."""
    monkeypatch.setattr(rows, "MOST_FIELDS_TOGETHER", 2000)
    reader = reader_of(old, new)
    for found in pieces_of(reader, framed(old, [row] * 40)):
        assert found["_error"].null_count == len(found)


@pytest.mark.parametrize(
    ("old", "new", "item"),
    [(OLD, LONG, {"b": True}), (OLD, MANY, {"b": True}), (SYMBOLS, SYMBOLS, "A")],
)
def test_what_does_not_fit_alone_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, old: Any, new: Any, item: Any
) -> None:
    """Whether it is alone or in a batch; those beside it are read."""
    monkeypatch.setattr(rows, "MOST_FIELDS_TOGETHER", 2000)
    monkeypatch.setattr("txnlog.values.avro.MOST_FIELDS_TOGETHER", 2000)
    reader = reader_of(items(old), items(new))
    small, hostile = framed(items(old), [{"a": [item]}, {"a": [item] * 100}])
    with pytest.raises(InvalidRecord, match="it becomes more than 2000 fields"):
        reader(hostile)
    found = pa.Table.from_batches(pieces_of(reader, [small, hostile, small]))
    assert [row is None for row in found["_error"].to_pylist()] == [True, False, True]
    assert [row is None for row in found["a"].to_pylist()] == [False, True, False]


def test_dead_letters_have_columns_of_nulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide ones, even where no value can be decoded."""
    monkeypatch.setattr(rows, "MOST_FIELDS_TOGETHER", 2000)
    pieces_of(reader_of(MANY), [b"text"] * 40)


def test_many_schemas_share_what_fits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of each are decoded alone, and are of one batch."""
    monkeypatch.setattr(rows, "MOST_FIELDS_TOGETHER", 300)
    schema = record(b="boolean", d=TEXT)
    reader = reader_of(*[OLD] * 20, schema)
    pieces_of(reader, [framed(OLD, [{"b": True}], number)[0] for number in range(1, 21)])


def test_what_was_too_much_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its halves are read: all that was made of it."""
    reader = reader_of(OLD)
    decode = reader._decode
    left: list[weakref.ref[Any]] = []

    def fail(values: pa.Array) -> DecodedValues:
        if len(values) == 1:
            return decode(values)
        made = Problems()
        left.append(weakref.ref(made))
        raise MemoryError if len(left) % 2 else TooManyFields("too many")

    monkeypatch.setattr(reader, "_decode", fail)
    batch = pa.record_batch({"value": pa.array(framed(OLD, [{"b": True}] * 8))})
    for piece, found in reader.read_pieces(batch):
        assert len(piece) == len(found) == 1
        assert [one for one in left if one() is not None] == []
    assert len(left) == 7


def test_lack_of_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a value that needs it alone, too."""
    reader = reader_of(OLD)

    def fail(*_: object) -> pa.Array:
        raise pa.ArrowMemoryError("malloc of size 8 failed")

    monkeypatch.setattr(AvroCodec, "decode", fail)
    (value,) = framed(OLD, [{"b": True}])
    with pytest.raises(InvalidRecord, match="1 values take more memory than there is"):
        [*reader.read([pa.record_batch({"value": pa.array([value])})])]


@pytest.mark.parametrize("kind", [DECIMAL, ["null", DECIMAL], items(DECIMAL)["fields"][0]["type"]])
def test_decimals_take_little_more_than_their_bytes(kind: Any) -> None:
    """While they are made: so many short ones are allowed together that it matters."""
    count = 1 << 18
    codec = read_avro(json.dumps(record(a=kind)))
    if isinstance(kind, dict) and kind["type"] == "array":
        values = encoded(kind, [[Decimal(1)] * count])
    else:
        values = encoded(kind, [Decimal(1)]) * count
    data = np.frombuffer(b"".join(values), np.uint8)
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    starts = ends - len(values[0])
    decoded(values[:1], codec)  # imports what is needed
    plain = decode_plain(codec.type, data, starts, ends, Problems())
    tracemalloc.start()
    try:
        found = resolve(plain, codec.type, codec.type, np.arange(len(values)), Problems())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.field("a").null_count == 0
    assert peak < 150 * count, peak / count


# -- work ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("default", [1, "no number"])
def test_a_default_is_made_once(monkeypatch: pytest.MonkeyPatch, default: Any) -> None:
    """For all types of a union, for all batches, and for the check of two schemas; wrong ones too.

    fastavro refuses some that are wrong, so these are put in its place.
    """
    kinds_ = [{"type": "record", "name": f"R{n}", "fields": []} for n in range(5)]
    wanted = {**record(x=("int", 1)), "name": "I", "aliases": [f"R{n}" for n in range(5)]}
    writer, reader = (read_avro(json.dumps(record(u=one))) for one in (kinds_, wanted))
    (field,) = reader.type.fields[0].type.fields
    object.__setattr__(field, "default", (default,))
    values = [bytes([2 * n]) for n in range(5)]
    asked: list[object] = []
    plain_default = avro_resolution._plain_default

    def count(kind: AvroType, default: Any, counted: Any) -> Any:
        asked.append(default)
        return plain_default(kind, default, counted)

    monkeypatch.setattr(avro_resolution, "_plain_default", count)
    for _ in range(2):
        rows_, problems = decoded(values, writer, reader)
        assert len(problems) == (0 if default == 1 else 5)
        assert [row["u"] for row in rows_] == [None if problems else {"x": 1}] * 5
        assert len([*reader.why_not(writer)]) == len(problems)
    assert asked == [default]


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
    assert avro_resolution._symbols(other, one)[0].null_count == 300
    assert avro_resolution._symbols(other, one)[0] is avro_resolution._symbols(other, one)[0]
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
