"""Avro as columns: the same as fastavro reads value by value, of random schemas and values."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.values.avro_worlds import Kind, decoded, encoded, kinds, record
from txnlog.errors import InvalidSchema
from txnlog.values.avro import read_avro


def worlds(*, with_lists: bool) -> st.SearchStrategy[tuple[Kind, list[tuple[Any, Any]]]]:
    return kinds(with_lists=with_lists).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(kind.values, max_size=6))
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("with_lists", [False, True])
def test_any_values_of_any_schema(*, with_lists: bool) -> None:
    """Field by field without arrays and maps, else by fastavro: the same values either way."""

    @some(300)
    @given(worlds(with_lists=with_lists))
    def check(world: tuple[Kind, list[tuple[Any, Any]]]) -> None:
        kind, pairs = world
        codec = read_avro(json.dumps(kind.schema))
        values = encoded(kind.schema, [given for given, _ in pairs])
        rows, problems = decoded(values, codec)
        assert problems == {}
        assert rows == [expected for _, expected in pairs]
        batch = pa.RecordBatch.from_pylist(rows, codec.columns)
        assert decoded(codec.encode(batch), codec) == (rows, {})

    check()


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
LESS = {"type": "enum", "name": "E", "symbols": ["B", "A"], "default": "A"}
INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
WIDER = {
    "type": "record",
    "name": "I",
    "fields": [{"name": "y", "type": "string", "default": "?"}, {"name": "x", "type": "double"}],
}
EVOLUTIONS: dict[str, tuple[Any, Any, Any]] = {
    "int to long": (record(a="int"), record(a="long"), {"a": 7}),
    "int to float": (record(a="int"), record(a="float"), {"a": 7}),
    "int to double": (record(a="int"), record(a="double"), {"a": 7}),
    "long to double": (record(a="long"), record(a="double"), {"a": 1 << 40}),
    "long to float": (record(a="long"), record(a="float"), {"a": 3}),
    "float to double": (record(a="float"), record(a="double"), {"a": 0.5}),
    "text to bytes": (record(a="string"), record(a="bytes"), {"a": "é"}),
    "bytes to text": (record(a="bytes"), record(a="string"), {"a": b"abc"}),
    "a field more": (record(a="int"), record(b=("string", "new"), a="int"), {"a": 7}),
    "a field less": (record(a="int", b="string"), record(a="int"), {"a": 7, "b": "x"}),
    "null by default": (record(a="int"), record(a="int", b=(["null", "int"], None)), {"a": 7}),
    "a union's first type by default": (
        record(a="int"),
        record(a="int", b=(["string", "null"], "text")),
        {"a": 7},
    ),
    "a list by default": (
        record(a="int"),
        record(a="int", b=({"type": "array", "items": "long"}, [1, 2])),
        {"a": 7},
    ),
    "a record by default": (record(a="int"), record(a="int", b=(INNER, {"x": 3})), {"a": 7}),
    "may be null now": (record(a="int"), record(a=["null", "long"]), {"a": 7}),
    "null first or last": (record(a=["null", "int"]), record(a=["int", "null"]), {"a": None}),
    "an enum with fewer symbols": (record(a=ENUM), record(a=LESS), {"a": "C"}),
    "an enum in another order": (record(a=ENUM), record(a=LESS), {"a": "B"}),
    "a record in it": (record(a=INNER), record(a=WIDER), {"a": {"x": 2}}),
    "records in a list": (
        record(a={"type": "array", "items": INNER}),
        record(a={"type": "array", "items": WIDER}),
        {"a": [{"x": 2}, {"x": 3}]},
    ),
    "another order": (record(a="int", b="string"), record(b="string", a="int"), {"a": 1, "b": "x"}),
}


@pytest.mark.parametrize("name", EVOLUTIONS)
def test_a_schema_that_has_changed(name: str) -> None:
    """What was written under one schema is under the next one as fastavro reads it."""
    old, new, value = EVOLUTIONS[name]
    (written,) = encoded(old, [value])
    judged = fastavro.schemaless_reader(
        BytesIO(written),
        fastavro.parse_schema(old, _force=True),
        fastavro.parse_schema(new, _force=True),
    )
    writer, reader = read_avro(json.dumps(old)), read_avro(json.dumps(new))
    assert decoded([written], writer, reader) == ([judged], {})
    assert [*reader.why_not(writer)] == []


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 18, 33])
@pytest.mark.parametrize("kind", ["bytes", "fixed"])
@pytest.mark.parametrize("at_once", [1, 5, 1 << 16])
def test_decimals_of_any_size(
    monkeypatch: pytest.MonkeyPatch, kind: str, size: int, at_once: int
) -> None:
    """More bytes than a number needs repeat its sign; what needs more than 16 has no column."""
    monkeypatch.setattr("txnlog.values.avro_resolution._DECIMALS_AT_ONCE", at_once)
    most = 10**38 - 1
    numbers = [0, 1, -1, 127, -128, 12_345, -12_345, most, -most, most + 1, 1 << 127, -(1 << 128)]
    fitting = [n for n in numbers if -(1 << 8 * size - 1) <= n < 1 << 8 * size - 1]
    values = [number.to_bytes(size, "big", signed=True) for number in fitting]
    digits = 38 if kind == "bytes" else min(38, len(str((1 << 8 * size - 1) - 1)) - 1)
    decimal = {"logicalType": "decimal", "precision": digits, "scale": 0}
    named = {"name": "F", "size": size} if kind == "fixed" else {}
    codec = read_avro(json.dumps(record(a={"type": kind, **decimal, **named})))
    head = bytes([2 * size]) if kind == "bytes" else b""
    rows, problems = decoded([head + value for value in values], codec)
    assert [row["a"] for row in rows] == [n if abs(n) < 10**digits else None for n in fitting]
    assert [*problems] == [at for at, n in enumerate(fitting) if abs(n) >= 10**digits]


def test_bytes_by_default_and_what_was_never_null() -> None:
    """A default's characters are its bytes, by the specification; fastavro leaves them text."""
    old = record(a=["null", "int"])
    new = record(a="long", b=("bytes", "\u00ff\u0001"))
    values = encoded(old, [{"a": 7}, {"a": None}])
    writer, reader = read_avro(json.dumps(old)), read_avro(json.dumps(new))
    rows, problems = decoded(values, writer, reader)
    assert rows[0] == {"a": 7, "b": b"\xff\x01"}
    assert problems == {1: "a null was written, and long is read"}
    assert [*reader.why_not(writer)] == ["a: null cannot be read as long"]


@pytest.mark.parametrize(
    ("logical", "kind", "value"),
    [
        ("timestamp-millis", "long", 1 << 60),
        ("local-timestamp-millis", "long", -(1 << 60)),
        ("time-millis", "int", 86_400_000),
        ("time-micros", "long", -1),
    ],
)
def test_times_that_no_column_can_have(logical: str, kind: str, value: int) -> None:
    """Problems of their values: engines whose times are microseconds would fail on them."""
    values = encoded(record(a=kind), [{"a": value}, {"a": 7}])
    codec = read_avro(json.dumps(record(a={"type": kind, "logicalType": logical})))
    rows, problems = decoded(values, codec)
    assert problems.keys() == {0}
    assert rows[0] == {"a": None}
    assert rows[1]["a"] is not None


def test_names_that_have_changed_are_found_by_aliases() -> None:
    """Of fields, and of types in a union."""
    old = record(a="int", u=["null", INNER, "string"])
    renamed = {**INNER, "name": "J", "aliases": ["I"]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "b", "type": "int", "aliases": ["a"]},
            {"name": "u", "type": ["null", "string", renamed]},
        ],
    }
    values = encoded(old, [{"a": 7, "u": ("I", {"x": 2})}, {"a": 8, "u": "t"}])
    rows, problems = decoded(values, read_avro(json.dumps(old)), read_avro(json.dumps(new)))
    assert problems == {}
    assert rows == [
        {"b": 7, "u": {"member0": None, "member1": {"x": 2}}},
        {"b": 8, "u": {"member0": "t", "member1": None}},
    ]


UNION_TYPES: dict[str, tuple[dict[str, Any], Any]] = {
    "record": ({"type": "record", "fields": [{"name": "x", "type": "int"}]}, {"x": 2}),
    "enum": ({"type": "enum", "symbols": ["A"]}, "A"),
    "fixed": ({"type": "fixed", "size": 1}, b"a"),
}


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
@pytest.mark.parametrize("name", UNION_TYPES)
def test_a_name_in_a_union_comes_before_an_alias(name: str, order: list[int]) -> None:
    """With its namespace before one of another: what a type is called now is meant first."""
    kind, value = UNION_TYPES[name]
    named = [
        {**kind, "name": "n.I"},
        {**kind, "name": "m.I"},
        {**kind, "name": "J", "aliases": ["n.I"]},
    ]
    written = encoded(record(u=["null", named[0]]), [{"u": ("n.I", value)}])
    writer = read_avro(json.dumps(record(u=["null", named[0]])))
    for known in (order, [n for n in order if n > 0], [2]):
        reader = read_avro(json.dumps(record(u=["null", "string", *(named[n] for n in known)])))
        rows, problems = decoded(written, writer, reader)
        assert problems == {}
        assert [*reader.why_not(writer)] == []
        chosen = f"member{1 + known.index(min(known))}"
        assert {k: v for k, v in rows[0]["u"].items() if v is not None} == {chosen: value}


REFUSED: dict[str, tuple[Any, Any]] = {
    "no default": (record(a="int"), record(a="int", b="string")),
    "narrower": (record(a="long"), record(a="int")),
    "of another kind": (record(a="string"), record(a="int")),
    "of another size": (
        record(a={"type": "fixed", "name": "F", "size": 2}),
        record(a={"type": "fixed", "name": "F", "size": 3}),
    ),
    "of another unit": (
        record(a={"type": "long", "logicalType": "timestamp-millis"}),
        record(a={"type": "long", "logicalType": "timestamp-micros"}),
    ),
    "a symbol less": (record(a=ENUM), record(a={**ENUM, "symbols": ["A", "B"]})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_reader_can_make_of_it_is_told(name: str) -> None:
    """By the check of two schemas, and of each value or of all when they are read."""
    old, new = (read_avro(json.dumps(one)) for one in REFUSED[name])
    assert [*new.why_not(old)] != []
    (written,) = encoded(
        REFUSED[name][0],
        [{"a": {"string": "x", "long": 1}.get(str(REFUSED[name][0]["fields"][0]["type"]), 1)}]
        if name not in ("of another size", "a symbol less", "of another unit")
        else [{"a": {"of another size": b"ab", "a symbol less": "C"}.get(name, 5)}],
    )
    try:
        _, problems = decoded([written], old, new)
    except InvalidSchema:
        return
    assert problems.keys() == {0}


@pytest.mark.parametrize("with_lists", [False, True])
def test_bytes_that_are_no_values(*, with_lists: bool) -> None:
    """Damaged and random ones: those that pass are what fastavro reads; none harms another."""
    good = record(a="long", b=["null", "string"], c="double", d="boolean", e=ENUM)
    if with_lists:
        good["fields"].append({"name": "f", "type": {"type": "map", "values": "int"}})
    codec = read_avro(json.dumps(good))
    sound: dict[str, Any] = {
        "a": 1 << 40,
        "b": "text",
        "c": 0.5,
        "d": True,
        "e": "B",
        "f": {"k": 1},
    }
    (value,) = encoded(good, [sound])
    parsed = fastavro.parse_schema(good, _force=True)
    expected, _ = decoded([value], codec)

    @some(300)
    @given(
        st.integers(0, len(value) - 1),
        st.integers(0, 255),
        st.integers(0, len(value)),
        st.binary(max_size=30),
    )
    def check(at: int, byte: int, end: int, noise: bytes) -> None:
        changed = value[:at] + bytes([byte]) + value[at + 1 :]
        values = [value, changed, value, value[:end], value, noise, value, value + b"\0", b""]
        rows, problems = decoded(values, codec)
        assert {0, 2, 4, 6}.isdisjoint(problems)
        assert {7, 8} <= problems.keys()
        for row, given_bytes in enumerate(values):
            if row in (0, 2, 4, 6):
                assert rows[row] == expected[0]
            elif row not in problems:
                judged: Any = fastavro.schemaless_reader(BytesIO(given_bytes), parsed, None)
                if "f" in judged:
                    judged["f"] = [*judged["f"].items()]
                assert repr(rows[row]) == repr(judged)  # NaN is not itself

    check()


BOOLEANS: dict[str, tuple[Any, bytes]] = {
    "alone": ("boolean", b"\2"),
    "or null": (["null", "boolean"], b"\2\2"),
    "one of several": (["int", "boolean"], b"\2\2"),
    "in a record": ({**record(y="boolean"), "name": "I"}, b"\2"),
    "in a list": ({"type": "array", "items": "boolean"}, b"\2\2\0"),
    "in a map": ({"type": "map", "values": "boolean"}, b"\2\2k\2\0"),
}


@pytest.mark.parametrize("beside", ["int", {"type": "array", "items": "int"}], ids=["int", "list"])
@pytest.mark.parametrize("name", BOOLEANS)
def test_bytes_that_are_no_booleans(name: str, beside: Any) -> None:
    """Neither true nor false, whichever way they are read: those beside them are."""
    kind, value = BOOLEANS[name]
    codec = read_avro(json.dumps(record(x=kind, beside=beside)))
    wrong = value.index(b"\2", -1 if value[-1] else -2)
    values = [value[:wrong] + bytes([byte]) + value[wrong + 1 :] + b"\0" for byte in range(4)]
    rows, problems = decoded(values, codec)
    assert problems == dict.fromkeys((2, 3), "a boolean is neither 0 nor 1")
    for row, expected in zip(rows, ("False", "True"), strict=False):
        assert expected in str(row["x"])


LONG_NUMBERS: dict[str, tuple[Any, bytes, bytes]] = {
    "a long": (record(x="long"), b"", b""),
    "an int behind others": (record(a="string", b="double", x="int"), b"\2k" + bytes(8), b""),
    "the length of a text": (record(x="string"), b"", b""),
    "the type in a union": (record(x=["null", "int"]), b"", b""),
    "the count of a list": (record(x={"type": "array", "items": "int"}), b"", b""),
    "an item": (record(x={"type": "array", "items": "long"}), b"\2", b"\0"),
}


@pytest.mark.parametrize("beside", ["int", {"type": "array", "items": "int"}], ids=["int", "list"])
@pytest.mark.parametrize("name", LONG_NUMBERS)
def test_numbers_of_more_than_64_bits(name: str, beside: Any) -> None:
    """Zeros in too many bytes are none, whichever way they are read: those beside them are."""
    schema, before, behind = LONG_NUMBERS[name]
    fields = [*schema["fields"], {"name": "beside", "type": beside}]
    codec = read_avro(json.dumps({**schema, "fields": fields}))
    lengths = [*range(1, 14)] * 2
    numbers = [b"\x80" * (length - 1) + b"\0" for length in lengths]
    values = [before + number + behind + b"\0" for number in numbers]
    rows, problems = decoded(values, codec)
    assert [*problems] == [n for n, length in enumerate(lengths) if length > 10]
    assert all(rows[n] == rows[0] for n, length in enumerate(lengths) if length <= 10)


def test_texts_that_look_like_long_numbers() -> None:
    """Their bytes are as high: they are texts all the same, in values of any length."""
    schema = record(x="string", y={"type": "array", "items": "string"})
    given = [{"x": "顧" * n, "y": ["ж" * m, "住所" * n]} for n in range(5) for m in range(8)]
    codec = read_avro(json.dumps(schema))
    assert decoded(encoded(schema, given), codec) == (given, {})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "is not a schema of Avro"),
        ("[" * 100_000, "is not a schema of Avro"),
        ('"unheard"', "no type 'unheard'"),
        (json.dumps(record(a="R")), "contains itself"),
        (json.dumps(record(a=["null", "R"])), "contains itself"),
        (json.dumps(record(a={"type": "array", "items": "null"})), "without bytes"),
        (json.dumps(record(a=["int", "int"])), "union"),
        (json.dumps(record(a={"type": "fixed", "name": "F", "size": -1})), "cannot have"),
        (json.dumps(record(a=("long", "text"))), "Default value"),
        pytest.param(json.dumps(record(a=("double", 10**400))), "too large", id="a large default"),
        (json.dumps(record(**{"\ud800": "int"})), "not a field"),
        (json.dumps(record(a=("string", "x" * 5000))), "more than 4096 bytes"),
        (json.dumps(record(**{f"f{n}": "int" for n in range(5000)})), "more than 4096"),
        (" " * (1 << 20) + '"int"', "characters"),
    ],
)
def test_schemas_that_are_refused(schema: str, reason: str) -> None:
    """Before anything is made of them."""
    with pytest.raises(InvalidSchema, match=reason):
        read_avro(schema)


def test_types_that_grow_with_each_name() -> None:
    """A name may stand for a type twice as large as the last one's: a billion columns are none."""
    kind: Any = {"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, 15):
        kind = {
            "type": "record",
            "name": f"T{level}",
            "fields": [{"name": "a", "type": kind}, {"name": "b", "type": f"T{level - 1}"}],
        }
    with pytest.raises(InvalidSchema, match="4096"):
        read_avro(json.dumps(kind))


@pytest.mark.parametrize("logical", [[], {}, 7, None, "unheard"])
def test_logical_types_that_are_none(logical: Any) -> None:
    """Are as if they were not there, as Avro has it."""
    codec = read_avro(json.dumps({"type": "long", "logicalType": logical}))
    assert codec.columns.types == [pa.int64()]


def test_defaults_that_grow_with_each_level() -> None:
    """A list of records whose own default is such a list: a thousand million values are none."""
    kind: Any = {"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}
    kind["fields"][0]["default"] = 1
    for level in range(1, 4):
        items = {"type": "array", "items": kind}
        fields = [{"name": "a", "type": items, "default": [{}] * 1000}]
        kind = {"type": "record", "name": f"T{level}", "fields": fields}
    codec = read_avro(json.dumps(kind))
    with pytest.raises(InvalidSchema, match="more than 4096 values"):
        _ = codec.defaults
    empty = read_avro(json.dumps({"type": "record", "name": "T3", "fields": []}))
    assert "more than 4096 values" in " ".join(codec.why_not(empty))
