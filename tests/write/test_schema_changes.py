"""Changes of a topic's schema: what may change, what is refused and why, and what is read then."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import txnlog
from tests.support.segments.typed_formats import in_either_format
from txnlog.admin import topics
from txnlog.columns.changes import evolve
from txnlog.columns.checks import make_schema
from txnlog.columns.layouts import file_layout, has_become
from txnlog.errors import (
    CorruptEntry,
    InvalidConfig,
    InvalidOption,
    InvalidRecord,
    InvalidSchema,
    RecordTooLarge,
)
from txnlog.names import schema_version, segment_order
from txnlog.read.dataset import make_dataset
from txnlog.read.plan import scan_columns
from txnlog.read.scan_reader import read_ranges
from txnlog.schema import encode_columns
from txnlog.segments.schema_columns import DEFAULT
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

pytestmark = [pytest.mark.store(topics={}, on="heap"), pytest.mark.rule("L16")]


def send(store: Store, rows: list[dict[str, Any]] | pa.Table, topic: str = "t") -> None:
    table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
    with store.producer() as producer:
        producer.send_batch(topic, table)


def read(store: Store) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.scan("t").to_arrow().to_pylist()
    assert store.snapshot(["t"]).dataset("t").to_table().to_pylist() == rows
    return rows


OLD = pa.schema(
    [
        pa.field("k", pa.int32(), nullable=False),
        pa.field("small", pa.int16()),
        pa.field("must", pa.string(), nullable=False),
        pa.field("gone", pa.binary()),
        pa.field("sum", pa.decimal128(5, 2)),
        pa.field("in", pa.struct([("a", pa.int8())])),
        pa.field("map", pa.map_(pa.int8(), pa.int8())),
        pa.field("list", pa.list_(pa.int8())),
    ]
)
NOT_NULL = pa.field("new", pa.int8(), nullable=False)
NEW = pa.schema(
    [
        pa.field("added", pa.list_(pa.string())),
        pa.field("must", pa.string()),
        pa.field("k", pa.int64(), nullable=False),
        pa.field("small", pa.int32()),
        pa.field("sum", pa.decimal128(9, 2)),
        pa.field("in", pa.struct([("a", pa.int8())])),
        pa.field("map", pa.map_(pa.int8(), pa.int16())),
        pa.field("list", pa.list_(pa.int64())),
    ]
)


@in_either_format
def test_a_schema_changes_and_old_records_are_read_under_it(store: Store) -> None:
    """Columns added, dropped, wider, in another order; whoever began before; merged."""
    store.topics.create("t", partitions=4, schema=OLD, key=["k"])
    old: dict[str, Any] = {
        "k": 1,
        "small": 2,
        "must": "m",
        "gone": b"g",
        "sum": Decimal("1.25"),
        "in": {"a": 1},
        "map": [(1, 2)],
        "list": [1, None],
    }
    send(store, pa.Table.from_pylist([old], schema=OLD), "t")
    before = store.snapshot(["t"])
    late = store.producer()
    late.send_batch("t", pa.Table.from_pylist([old | {"small": 3}], schema=OLD))
    described = store.topics.alter("t", schema=NEW)
    assert described.schema is not None
    assert described.schema.columns.names == NEW.names
    late.close()
    new: dict[str, Any] = {
        "added": ["x"],
        "must": None,
        "k": 1,
        "small": 1 << 20,
        "sum": None,
        "in": None,
    }
    new |= {"map": None, "list": [1 << 40]}
    for _ in range(3):
        send(store, pa.Table.from_pylist([new], schema=NEW), "t")
    read = {name: old.get(name) for name in NEW.names}
    expected = [read, read | {"small": 3}, new, new, new]
    for handle in (store, attach(store.storage)):
        assert handle.scan("t").to_arrow().to_pylist() == expected
        assert handle.scan("t", columns=["added"]).to_arrow().column(0).to_pylist() == [
            row["added"] for row in expected
        ]
        assert handle.snapshot(["t"]).dataset("t").to_table().to_pylist() == expected
    assert before.scan("t").to_arrow().to_pylist() == [old]
    # The key is hashed alike, however wide it is.
    assert len({segment.partition for segment in store.topics.segments("t")}) == 1
    store.maintenance.merge("t")
    assert len(store.topics.segments("t")) == 1
    assert store.scan("t").to_arrow().to_pylist() == expected
    with store.consumer("t", auto_offset_reset="earliest") as consumer:
        assert consumer.poll()[0].value["small"] == 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (OLD.append(pa.field("new", pa.int8(), nullable=False)), "'new' is new, so older records"),
        (OLD.remove(0), "'k' is part of the key and cannot be dropped"),
        (OLD.set(1, pa.field("small", pa.int8())), "'small' is int16, and cannot become int8"),
        (OLD.set(1, pa.field("small", pa.string())), "cannot become string"),
        (OLD.set(1, pa.field("small", pa.int16(), nullable=False)), "may be null in older records"),
        (OLD.set(4, pa.field("sum", pa.decimal128(9, 3))), r"cannot become decimal128\(9, 3\)"),
        (OLD.set(5, pa.field("in", pa.struct([("a", pa.string())]))), "'in.a' is int8, and cannot"),
        (OLD.set(5, pa.field("in", pa.list_(pa.int8()))), "'in' is struct<a: int8>, and cannot"),
        (
            OLD.set(5, pa.field("in", pa.struct([("a", pa.int8()), NOT_NULL]))),
            "'in.new' is new, so older records have none: it must be nullable",
        ),
        (
            OLD.set(5, pa.field("in", pa.struct([pa.field("a", pa.int8(), nullable=False)]))),
            "'in.a' may be null in older records",
        ),
        (OLD.set(6, pa.field("map", pa.map_(pa.string(), pa.int8()))), "'map' is map<"),
        (
            OLD.set(7, pa.field("list", pa.list_(pa.field("element", pa.int8(), nullable=False)))),
            "'list.element' may be null",
        ),
        (OLD.append(pa.field("_Offset", pa.int8())), "every record has that already"),
        (OLD.set(3, pa.field("GONE", pa.binary())), "there was a column 'GONE'"),
    ],
)
def test_changes_that_would_misread_old_records_are_refused(
    store: Store, changed: pa.Schema, reason: str
) -> None:
    """Nothing changes then."""
    before = store.topics.create("t", schema=OLD, key=["k"])
    with pytest.raises(InvalidSchema, match=reason):
        store.topics.alter("t", schema=changed)
    assert store.topics.describe("t") == before
    store.topics.create("plain")
    with pytest.raises(InvalidSchema, match="without a schema"):
        store.topics.alter("plain", schema=OLD)


def test_a_name_that_was_dropped_is_not_used_again(store: Store) -> None:
    """Its values would show in the new column, for engines that go by names."""
    store.topics.create("t", schema=OLD)
    store.topics.alter("t", schema=OLD.remove(3))
    store.topics.alter("t", schema=OLD.remove(3).append(pa.field("more", pa.int8())))
    with pytest.raises(InvalidSchema, match="there was a column 'gone'"):
        store.topics.alter("t", schema=OLD)


# -- names ---------------------------------------------------------------------------------------


def test_columns_are_renamed(tmp_path: Path) -> None:
    """Old records have the new names, in every way they are read; a key hashes as before."""
    store = txnlog.open(str(tmp_path), create=True)
    schema = pa.schema([("k", pa.string()), ("a", pa.int64()), ("b", pa.int64())])
    store.topics.create("t", partitions=5, schema=schema, key=["k"])
    send(store, [{"k": "x", "a": n, "b": -n} for n in range(5)])
    before = store.snapshot(["t"])
    described = store.topics.alter("t", rename={"k": "key", "a": "first"})
    assert described.schema is not None
    assert (described.schema.columns.names, described.schema.key) == (
        ["key", "first", "b"],
        ("key",),
    )
    send(store, [{"key": "x", "first": 5, "b": -5}])
    rows = [{"key": "x", "first": n, "b": -n} for n in range(6)]
    assert read(store) == rows
    assert store.scan("t", columns=["first"]).to_arrow().column(0).to_pylist() == [*range(6)]
    assert len({segment.partition for segment in store.topics.segments("t")}) == 1
    assert [schema_version(segment.name) for segment in store.topics.segments("t")] == [0, 1]
    assert [
        *before.dataset("t").to_table().to_pylist(),
        *before.scan("t").to_arrow().to_pylist(),
    ] == [{"k": "x", "a": n, "b": -n} for n in range(5)] * 2
    with store.consumer("t", auto_offset_reset="earliest") as consumer:
        assert consumer.poll()[0].value == rows[0]
    flights = store.snapshot(["t"]).dataset("t")
    total = duckdb.sql("select sum(b) from flights where first >= 3")
    assert total is not None
    assert total.fetchall() == [(-12,)]
    chosen = pl.scan_pyarrow_dataset(flights).filter(pl.col("first") < 2).collect()
    assert chosen["key"].to_list() == ["x", "x"]
    with pytest.raises(InvalidRecord, match=r"'k' is not in its schema any more: .* 'key'"):
        send(store, [{"k": "x", "a": 1}])


def test_filters_go_down_into_files_of_earlier_schemas(store: Store) -> None:
    """Row groups are passed over by their statistics, under the names of today."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    store.topics.create("t", schema=schema, config={"schema.compatibility": "NONE"})
    send(store, [{"a": n, "b": 100 + n} for n in range(10)])
    store.topics.alter("t", rename={"a": "b", "b": "a"})
    (fragment,) = store.snapshot(["t"]).dataset("t").get_fragments()
    for name, value, matching in (("a", 105, 1), ("a", 5, 0), ("b", 5, 1), ("b", 105, 0)):
        assert len(fragment.split_by_row_group(pc.field(name) == value)) == matching
    fragments = [*store.snapshot(["t"]).dataset("t").get_fragments(pc.field("a") == 105)]
    assert len(fragments) == 1


@in_either_format
def test_names_are_used_again_only_if_that_was_asked_for(store: Store) -> None:
    """A dropped or former name, also in other case; with NONE for other values, even swapped."""
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8()), ("s", pa.struct([("x", pa.int8())]))])
    store.topics.create("t", schema=schema)
    send(store, [{"a": 1, "b": 2, "s": {"x": 3}}])
    store.topics.alter("t", rename={"a": "c"})
    again = pa.schema([("c", pa.int8()), ("b", pa.int8()), ("A", pa.string())])
    other = pa.schema([("c", pa.int8()), ("b", pa.int8()), ("s", pa.struct([("y", pa.int8())]))])
    store.topics.alter("t", schema=other)
    for changed, renamed in (
        (again, {}),
        (pa.schema([("c", pa.int8()), ("b", pa.string())]), {}),
        (pa.schema([("b", pa.int8()), ("c", pa.int8())]), {"c": "b", "b": "c"}),
        (pa.schema([("c", pa.int8()), ("s", pa.struct([("y", pa.int8()), ("X", pa.int8())]))]), {}),
    ):
        with pytest.raises(InvalidSchema, match=r"there was a column|cannot become string"):
            store.topics.alter("t", schema=changed, rename=renamed)
    store.topics.alter("t", rename={"c": "a"})  # its own name
    assert read(store) == [{"a": 1, "b": 2, "s": {"y": None}}]
    store.topics.alter("t", config={"schema.compatibility": "NONE"}, rename={"a": "b", "b": "a"})
    changed = pa.schema([("a", pa.string()), ("b", pa.int8()), ("s", schema.field("s").type)])
    store.topics.alter("t", schema=changed)
    assert read(store) == [{"a": None, "b": 1, "s": {"x": None}}]
    send(store, [{"a": "new", "b": 7, "s": {"x": 8}}])
    assert read(store)[1:] == [{"a": "new", "b": 7, "s": {"x": 8}}]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"rename": {"no": "x"}}, "no column 'no' to rename; there are a, b"),
        ({"rename": {"a.c": "x"}}, "no column 'a.c' to .* fields of structs keep their names"),
        ({"rename": {"a": 1}}, "1 cannot be the name"),
        ({"rename": {"a": ""}}, "'' cannot be the name"),
        ({"rename": {"a": "n\0"}}, "cannot be the name"),
        ({"rename": {"a": "b"}}, "'b' occurs twice"),
        ({"rename": {"a": "x", "b": "x"}}, "two columns cannot be given the same name"),
        ({"rename": {"a": "_TIMESTAMP"}}, "every record has that already"),
        ({"rename": ["a"]}, "must be a mapping"),
        ({"rename": {"a": "x"}, "schema": pa.schema([("a", pa.int8())])}, "has no such column"),
        ({"defaults": {"a": 1}}, "'a' exists already"),
        ({"defaults": {"no": 1}}, "default for 'no', which is not a column"),
        ({"defaults": [1]}, "must be a mapping"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    store: Store, arguments: dict[str, Any], reason: str
) -> None:
    store.topics.create("t", schema=pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    before = store.topics.describe("t")
    with pytest.raises(InvalidSchema, match=reason):
        store.topics.alter("t", **arguments)
    assert store.topics.describe("t") == before


def test_ids_are_never_given_twice(store: Store) -> None:
    """A column with the id of a dropped one would show its values in older records."""
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8()), ("c", pa.int8())])
    store.topics.create("t", schema=schema)
    send(store, [{"a": 1, "b": 2, "c": 3}])
    store.topics.alter("t", schema=pa.schema([("a", pa.int8())]))
    store.topics.alter("t", schema=pa.schema([("a", pa.int8()), ("d", pa.int8())]))
    assert read(store) == [{"a": 1, "d": None}]


def test_what_stays_as_it_is_makes_no_new_schema(store: Store) -> None:
    schema = pa.schema([("a", pa.int8()), ("in", pa.struct([("x", pa.list_(pa.int8()))]))])
    store.topics.create("t", schema=schema, defaults={"a": 3})
    known = store.topics.describe("t").schema
    assert known is not None
    for same in (schema, known.columns):
        store.topics.alter("t", schema=same, rename={"a": "a"})
        assert store.topics.describe("t").schema == known


# -- defaults ------------------------------------------------------------------------------------

MOMENT = dt.datetime(2024, 3, 1, 12, 30, 0, 123456, tzinfo=dt.UTC)
DEFAULTS: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), False),
    "tiny": (pa.int8(), -1),
    "large": (pa.int64(), (1 << 63) - 1),
    "float": (pa.float64(), 0.1),
    "infinite": (pa.float32(), float("-inf")),
    "price": (pa.decimal128(9, 3), Decimal("-1.250")),
    "text": (pa.string(), "ä 'x' \n"),
    "none": (pa.string(), ""),
    "raw": (pa.binary(), b"\x00\xff"),
    "day": (pa.date32(), dt.date(1, 1, 1)),
    "at": (pa.timestamp("us", "UTC"), MOMENT),
    "wall": (pa.timestamp("ms"), dt.datetime(9999, 12, 31)),  # noqa: DTZ001 - a wall clock
}


def test_records_without_a_column_have_its_default(store: Store) -> None:
    """Old ones, those of writers that do not know it, and those that are sent without it."""
    store.topics.create("t", schema=pa.schema([("id", pa.int64())]), config={"segment.ms": 1000})
    send(store, [{"id": 1}])
    late = store.producer()
    late.send_batch("t", pa.table({"id": [2]}))
    fields = [pa.field(name, kind, nullable=False) for name, (kind, _) in DEFAULTS.items()]
    values = {name: value for name, (_, value) in DEFAULTS.items()}
    schema = pa.schema([("id", pa.int64()), *fields, ("maybe", pa.int8())])
    store.topics.alter("t", schema=schema, defaults={**values, "maybe": pa.scalar(4)})
    late.close()
    send(store, [{"id": 3}])
    send(store, pa.table({"id": [4], "tiny": [5], "maybe": pa.array([None], pa.int8())}))
    rows = [{"id": n, **values, "maybe": 4} for n in (1, 2, 3)]
    rows.append({"id": 4, **values, "tiny": 5, "maybe": None})
    assert read(store) == rows
    found = store.snapshot(["t"]).dataset("t")
    assert [f.path for f in found.get_fragments(pc.field("tiny") == 5)] == [
        f.path for f in found.get_fragments()
    ][2:]
    store.topics.alter("t", schema=schema.remove(1))
    store.maintenance.merge("t")
    for row in rows:
        del row["bool"]
    assert read(store) == rows
    with pytest.raises(InvalidRecord, match="column 'tiny' is null in row 0"):
        send(store, pa.table({"id": [5], "tiny": pa.array([None], pa.int8())}))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), 128),
        (pa.int8(), 1.5),
        (pa.int8(), True),
        (pa.int8(), "1"),
        (pa.int8(), None),
        (pa.bool_(), 1),
        (pa.float64(), float("nan")),
        (pa.decimal128(3, 1), Decimal("1.25")),
        (pa.string(), b"x"),
        (pa.string(), "x" * 257),
        (pa.string(), "\ud800"),
        (pa.binary(), "x"),
        (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=None)),
        (pa.timestamp("us"), MOMENT),
        (pa.timestamp("ms", "UTC"), MOMENT),
        (pa.date32(), MOMENT),
        (pa.list_(pa.int8()), [1]),
        (pa.date32(), pa.scalar(None, pa.date32())),
        *(
            (kind, pa.scalar(sign * far, kind))
            for kind, far in (
                (pa.date32(), 5_000_000),
                (pa.timestamp("us"), 400_000_000_000_000_000),
                (pa.timestamp("us", "UTC"), 1 << 62),
                (pa.timestamp("ms", "UTC"), 400_000_000_000_000),
            )
            for sign in (-1, 1)
        ),
    ],
)
def test_a_default_is_a_value_of_its_column(store: Store, kind: pa.DataType, value: Any) -> None:
    store.topics.create("t", schema=pa.schema([("id", pa.int8())]), key=["id"])
    schema = pa.schema([("id", pa.int8()), ("new", kind)])
    with pytest.raises(InvalidSchema, match="default"):
        store.topics.alter("t", schema=schema, defaults={"new": value})
    with pytest.raises(InvalidSchema, match="is part of the key and can have no default"):
        store.topics.create("u", schema=schema, key=["id"], defaults={"id": 1})


def test_a_default_is_carried_by_the_schema_and_stays(store: Store) -> None:
    """What ``topics.describe`` shows makes a topic like it; forged ones are checked as well."""
    store.topics.create("t", schema=pa.schema([("a", pa.int8())]), defaults={"a": 3})
    known = store.topics.describe("t").schema
    assert known is not None
    store.topics.create("u", schema=known.columns)
    send(store, pa.table({"a": pa.array([None], pa.int8())}), "u")
    store.topics.alter("u", schema=known.columns.append(pa.field("b", pa.int8())))
    send(store, [{"b": 1}], "u")
    assert store.scan("u").to_arrow().to_pylist() == [{"a": None, "b": None}, {"a": 3, "b": 1}]
    with pytest.raises(InvalidSchema, match=r"'a' exists already, .* cannot change"):
        store.topics.alter("t", schema=pa.schema([("a", pa.int8())]), defaults={"a": 4})
    for text in (b"x", b"03", b"300", b"\xff"):
        forged = pa.schema([pa.field("a", pa.int8(), metadata={DEFAULT: text})])
        with pytest.raises(InvalidSchema, match="default"):
            store.topics.create("v", schema=forged)


def test_a_forged_default_is_a_damaged_log(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_schema(pa.schema([("a", pa.int8())]))
    field = made.columns.field(0)
    field = field.with_metadata({**field.metadata, DEFAULT: b"x"})
    forged = msgspec.structs.replace(made, arrow=encode_columns(pa.schema([field])))
    monkeypatch.setattr(topics, "make_schema", lambda *_: forged)
    store.topics.create("t", schema=pa.schema([("a", pa.int8())]))
    with pytest.raises(CorruptEntry, match="does not decode"):
        store.scan("t")


# -- what is inside of columns -------------------------------------------------------------------


@in_either_format
def test_what_is_nested_changes_like_columns(store: Store) -> None:
    """Fields of structs, also in lists and maps' values: added, dropped, in other order, wider."""
    inner = pa.struct([("x", pa.int8()), ("gone", pa.string()), ("deep", pa.list_(pa.float32()))])
    kinds = [inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.struct([("in", inner)])]
    names = ["s", "l", "m", "d"]
    store.topics.create("t", schema=pa.schema([*zip(names, kinds, strict=True)]))
    one = {"x": 1, "gone": "g", "deep": [0.5, None]}
    some = [None, one, {"x": None, "gone": None, "deep": None}]
    rows = [
        {"s": one, "l": some, "m": [("k", one), ("n", None)], "d": {"in": one}},
        {"s": some[2], "l": [], "m": [], "d": {"in": None}},
        dict.fromkeys(names),
    ]
    send(store, pa.Table.from_pylist(rows, pa.schema([*zip(names, kinds, strict=True)])))
    wide = pa.struct([("new", pa.int8()), ("deep", pa.list_(pa.float64())), ("x", pa.int64())])
    kinds = [wide, pa.list_(wide), pa.map_(pa.string(), wide), pa.struct([("in", wide)])]
    store.topics.alter("t", schema=pa.schema([*zip(names, kinds, strict=True)]))

    def now(value: Any) -> Any:
        if isinstance(value, dict) and "gone" in value:
            return {"new": None, "deep": value["deep"], "x": value["x"]}
        if isinstance(value, dict):
            return {key: now(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(now, value))
        return value

    assert read(store) == [now(row) for row in rows]
    store.maintenance.merge("t")
    assert read(store) == [now(row) for row in rows]
    assert store.scan("t", columns=["m"]).to_arrow().slice(1).to_pylist()[0] == {"m": []}


# -- modes ---------------------------------------------------------------------------------------

MODES = ("BACKWARD", "FORWARD", "FULL", "NONE")
START = pa.schema(
    [
        pa.field("must", pa.int32(), nullable=False),
        ("may", pa.int32()),
        ("in", pa.struct([pa.field("must", pa.int8(), nullable=False), ("may", pa.int8())])),
    ]
)
INSIDE = [*START.field("in").type]


@pytest.mark.parametrize(
    ("change", "allowed_by"),
    [
        ({"schema": START.append(pa.field("new", pa.int8()))}, MODES),
        ({"schema": START.append(NOT_NULL), "defaults": {"new": 1}}, MODES),
        ({"schema": START.append(NOT_NULL)}, ()),
        ({"schema": pa.schema([*START][::-1])}, MODES),
        ({"schema": START.remove(1)}, MODES),
        ({"schema": START.remove(0)}, ("BACKWARD", "NONE")),
        ({"rename": {"may": "might"}}, ("BACKWARD", "NONE")),
        ({"schema": START.set(1, pa.field("may", pa.int64()))}, ("BACKWARD", "NONE")),
        ({"schema": START.set(0, pa.field("must", pa.int32()))}, ("BACKWARD", "NONE")),
        ({"schema": START.set(1, pa.field("may", pa.string()))}, ("NONE",)),
        ({"schema": START.set(1, pa.field("may", pa.int32(), nullable=False))}, ()),
        ({"schema": START.set(2, pa.field("in", pa.struct(INSIDE[:1])))}, MODES),
        ({"schema": START.set(2, pa.field("in", pa.struct(INSIDE[1:])))}, ("BACKWARD", "NONE")),
        (
            {"schema": START.set(2, pa.field("in", pa.struct([INSIDE[0], ("may", pa.int64())])))},
            ("BACKWARD", "NONE"),
        ),
        (
            {"schema": START.set(2, pa.field("in", pa.struct([INSIDE[0], ("may", pa.date32())])))},
            ("NONE",),
        ),
    ],
)
def test_modes_refuse_what_they_are_there_for(
    store: Store, change: dict[str, Any], allowed_by: tuple[str, ...]
) -> None:
    """Kafka's names. Whatever is allowed, older records are read under it."""
    for mode in MODES:
        config = {"schema.compatibility": mode}
        store.topics.create(mode, schema=START, config=config)
        send(store, pa.table({"must": pa.array([1], pa.int32())}), mode)
        if mode in allowed_by:
            store.topics.alter(mode, **change)
        else:
            with pytest.raises(InvalidSchema):
                store.topics.alter(mode, **change)
        (row,) = store.scan(mode).to_arrow().to_pylist()
        assert row.get("must", 1) == 1
        assert row == store.snapshot([mode]).dataset(mode).to_table().to_pylist()[0]


def test_modes_are_settings_of_typed_topics(store: Store) -> None:
    config = {"schema.compatibility": "FULL"}
    with pytest.raises(InvalidConfig, match="the topic has no schema"):
        store.topics.create("plain", config=config)
    store.topics.create("plain")
    with pytest.raises(InvalidConfig, match="the topic has no schema"):
        store.topics.alter("plain", config=config)
    with pytest.raises(InvalidConfig, match="BACKWARD_TRANSITIVE"):
        store.topics.create(
            "t", schema=START, config={"schema.compatibility": "BACKWARD_TRANSITIVE"}
        )
    store.topics.create("t", schema=START, config=config)
    with pytest.raises(
        InvalidSchema, match=r"under schema\.compatibility=FULL: programs that know"
    ):
        store.topics.alter("t", rename={"may": "might"})
    # A change of both is judged by what holds from then on.
    store.topics.alter("t", rename={"may": "might"}, config={"schema.compatibility": None})


# -- writers, and files --------------------------------------------------------------------------


def test_a_producer_learns_of_a_new_schema_when_it_needs_it(store: Store) -> None:
    """A batch that its own schema does not know is tried by that which the topic has."""
    store.topics.create("t", schema=pa.schema([("a", pa.int8())]))
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"a": pa.array([1], pa.int8())}))
        store.topics.alter("t", schema=pa.schema([("a", pa.int8()), ("b", pa.int8())]))
        with pytest.raises(InvalidRecord, match="'c' is not in its schema; the columns are a, b"):
            producer.send_batch("t", pa.table({"c": [1]}))
        producer.send_batch("t", pa.table({"b": [2]}))
        producer.send_batch("t", pa.table({"a": [3]}))
    rows = [{"a": 1, "b": None}, {"a": None, "b": 2}, {"a": 3, "b": None}]
    assert read(store) == rows
    assert [schema_version(segment.name) for segment in store.topics.segments("t")] == [0, 1]


@in_either_format
def test_of_each_key_the_newest_record_stays_across_schemas(
    store: Store, clock: VirtualClock, record_format: str
) -> None:
    """Compaction finds the key under both of its names, and writes files of today's schema."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
    store.topics.create("t", schema=schema, key=["k"], config=config)
    send(store, [{"k": n % 3, "v": f"old {n}", "_deleted": n == 2} for n in range(3)])
    after = pa.schema([("v", pa.string()), ("key", pa.int64()), NOT_NULL])
    store.topics.alter("t", schema=after, rename={"k": "key"}, defaults={"new": 9})
    send(store, [{"key": 0, "v": "new", "new": 1}])
    clock.time_ms += 1000
    store.maintenance.compact("t")
    columns = ["key", "v", "new", "_deleted"]
    assert store.scan("t", columns=columns).to_arrow().to_pylist() == [
        {"key": 1, "v": "old 1", "new": 9, "_deleted": False},
        {"key": 2, "v": None, "new": 9, "_deleted": True},
        {"key": 0, "v": "new", "new": 1, "_deleted": False},
    ]
    names = [segment.name for segment in store.topics.segments("t")]
    assert all("-v1-" in name for name in names)
    if record_format == "parquet":
        assert {schema_version(name) for name in names} == {1}
    assert {finding.state for finding in store.examine(with_contents=True)} <= {"ok", "note"}


@pytest.mark.parametrize(
    ("stem", "version"),
    [
        ("abc-7.parquet", 0),
        ("abc-v12-7.parquet", 12),
        ("abc-v0-7.parquet", 0),
        ("abc-v1-7", 0),
        ("v1-7.parquet", 0),
    ],
)
def test_names_of_files_tell_the_schema(stem: str, version: int) -> None:
    assert schema_version(stem) == version
    assert segment_order(3, stem) == (3, 7)


def test_a_topic_that_was_made_anew_has_another_schema() -> None:
    """Even if its columns have the same ids and types."""
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    first = make_schema(schema)
    renamed = evolve(first, rename={"a": "c"})
    later = evolve(renamed, pa.schema([("c", pa.int16())]))
    assert has_become(first, first)
    assert has_become(first, renamed)
    assert has_become(first, later)
    assert has_become(renamed, later)
    assert not has_become(later, renamed)
    other = evolve(make_schema(pa.schema([("x", pa.int8()), ("b", pa.int8())])), rename={"x": "a"})
    assert not has_become(first, other)
    assert not has_become(
        first, evolve(make_schema(pa.schema([("a", pa.int8())])), rename={"a": "b"})
    )
    assert file_layout(first, 1) is None


def test_files_of_a_newer_schema_are_read_under_an_older_one(store: Store) -> None:
    """By their ids: nobody who has the older schema knows what they call the columns."""
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    store.topics.create("t", schema=schema)
    older = store.topics.describe("t").schema
    store.topics.alter(
        "t", schema=pa.schema([("b", pa.int8()), ("c", pa.int8())]), rename={"a": "c"}
    )
    send(store, [{"b": 2, "c": 1}])
    ranges = store.scan("t").ranges
    columns = scan_columns(None, older)
    rows = pa.Table.from_batches(read_ranges(store.storage, ranges, columns)).to_pylist()
    assert rows == [{"a": 1, "b": 2}]
    assert make_dataset(store.storage, ranges, columns).to_table().to_pylist() == rows


# -- hostile schemas -----------------------------------------------------------------------------


def test_many_columns_change_at_the_cost_of_many_columns(store: Store) -> None:
    """4,096, all of them renamed, widened and put in another order, with one more refused."""
    before = pa.schema([(f"c{n}", pa.int8()) for n in range(4096)])
    known = make_schema(before)
    for turn in range(2):
        names = {f.name: f"{f.name}_{turn}" for f in known.columns}
        fields = [pa.field(names[f.name], pa.int64()) for f in known.columns]
        known = evolve(known, pa.schema(fields[::-1]), names)
    layout = file_layout(known, 0)
    assert layout is not None
    assert not layout.is_plain
    assert [f.name for f in layout.columns if f is not None] == before.names
    with pytest.raises(InvalidSchema, match="at most 4096 columns"):
        evolve(known, known.columns.append(pa.field("more", pa.int8())))
    with pytest.raises(InvalidSchema, match="at most 4096 columns"):
        evolve(known, pa.schema([(f"d{n}", pa.int8()) for n in range(10_000)]))


def test_deep_columns_change_at_their_bottom(store: Store) -> None:
    """As deep as they may be; deeper is refused, and what is there stays."""

    def nest(kind: pa.DataType, levels: int) -> pa.DataType:
        for level in range(levels):
            kind = pa.struct([("in", kind)]) if level % 2 else pa.list_(kind)
        return kind

    store.topics.create("t", schema=pa.schema([("a", nest(pa.int8(), 15))]))
    value: Any = 5
    for level in range(15):
        value = {"in": value} if level % 2 else [value]
    table = pa.table({"a": pa.array([value], nest(pa.int8(), 15))})
    send(store, table)
    store.topics.alter("t", schema=pa.schema([("a", nest(pa.int32(), 15))]))
    assert read(store) == [{"a": value}]
    with pytest.raises(InvalidSchema, match="more than 16 levels"):
        store.topics.alter("t", schema=pa.schema([("a", nest(pa.int32(), 16))]))


@pytest.mark.parametrize("record_format", ["columns", "parquet"])
def test_a_record_that_new_fields_make_too_large_is_not_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch, record_format: str
) -> None:
    """Many are made a few at a time; nobody passes over one that takes too much alone."""
    monkeypatch.setattr("txnlog.segments.schema_columns._MOST_MADE_BYTES", 1000)
    monkeypatch.setattr("txnlog.segments.schema_columns._MOST_RECORD_BYTES", 2000)

    def columns(*more: str) -> pa.Schema:
        fields = [("x", pa.int8()), *((name, pa.decimal128(20)) for name in more)]
        return pa.schema([("id", pa.int32()), ("points", pa.list_(pa.struct(fields)))])

    def consume(topic: str) -> list[Any]:
        with store.consumer(
            topic, auto_offset_reset="earliest", stop_at_end=True, on_corrupt="skip"
        ) as consumer:
            return [one.value for one in consumer]

    counts = {"fits": [1, 2, 100, 0, 3] * 20, "large": [1, 2, 130, 0, 3]}
    for topic, sizes in counts.items():
        store.topics.create(topic, schema=columns(), config={"record.format": record_format})
        rows = [{"id": n, "points": [{"x": n}] * size} for n, size in enumerate(sizes)]
        for _ in range(4):
            send(store, pa.Table.from_pylist(rows, columns()), topic)
        store.topics.alter(topic, schema=columns("y"))
    wanted = [
        {"id": n, "points": [{"x": n, "y": None}] * size} for n, size in enumerate(counts["fits"])
    ] * 4
    some = pc.field("id") != 7
    assert store.scan("fits").to_arrow().to_pylist() == consume("fits") == wanted
    kept = store.scan("fits", filter=some).to_arrow().to_pylist()
    assert kept == [row for row in wanted if row["id"] != 7]
    assert store.maintenance.merge("fits")
    assert store.scan("fits").to_arrow().to_pylist() == wanted
    for fails in (
        store.scan("large").to_arrow,
        store.scan("large", filter=some).to_arrow,
        partial(consume, "large"),
        partial(store.maintenance.merge, "large"),
    ):
        with pytest.raises(RecordTooLarge, match="ask for fewer columns"):
            fails()
    assert store.scan("large", columns=["id"]).to_arrow().num_rows == 20


@pytest.mark.parametrize("default", [0.1, -0.0, 1e-40, 3e38, 16777217.0, float("inf")])
def test_a_default_stays_the_same_number_when_its_column_is_wider(
    store: Store, default: float
) -> None:
    """Of rows that were written without it, merged or not before, and of those sent with it."""
    columns = pa.schema([("id", pa.int32())])
    store.topics.create("t", schema=columns)
    for number in range(4):
        send(store, pa.table({"id": pa.array([number], pa.int32())}))
    for name in "ab":
        columns = columns.append(pa.field(name, pa.float32()))
        store.topics.alter("t", schema=columns, defaults={name: default})
        send(store, pa.table({"id": pa.array([4], pa.int32())}))
        assert store.maintenance.merge("t") or name == "b"
    known = store.scan("t", columns=["a", "b"]).to_arrow().to_pylist()
    assert len({repr(row) for row in known}) == 1
    wider = pa.schema([("id", pa.int32()), ("a", pa.float64()), ("b", pa.float64())])
    store.topics.alter("t", schema=wider)
    send(store, pa.table({"id": pa.array([5], pa.int32())}))
    found = store.scan("t", columns=["a", "b"]).to_arrow().to_pylist()
    assert [repr(row) for row in found] == [repr(known[0])] * 7
    assert repr(store.snapshot(["t"]).dataset("t").to_table(["a", "b"]).to_pylist()) == repr(found)


@pytest.mark.parametrize(
    "name", ["__fragment_index", "__batch_index", "__last_in_fragment", "__filename"]
)
def test_a_column_called_as_one_of_arrows_is_in_scans_alone(store: Store, name: str) -> None:
    """Arrow's datasets cannot have it; renamed it is in them."""
    columns = pa.schema([("id", pa.int32()), (name, pa.int32())])
    store.topics.create("t", schema=columns, config={"record.format": "parquet"})
    rows = [{"id": n, name: n} for n in range(9)]
    send(store, pa.Table.from_pylist(rows, columns))
    scan = store.scan("t", filter=pc.field(name) > 6)
    assert scan.to_arrow().to_pylist() == scan.to_duckdb().to_arrow_table().to_pylist() == rows[7:]
    with pytest.raises(InvalidOption, match=rf"column '{name}' of their own.*rename"):
        store.snapshot("t").dataset("t")
    renamed = pa.schema([("id", pa.int32()), ("own", pa.int32())])
    store.topics.alter("t", schema=renamed, rename={name: "own"})
    assert [row["own"] for row in read(store)] == [*range(9)]
