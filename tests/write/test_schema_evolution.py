"""Any changes of any schema: written under one, read under another, against plain Python.

The model knows columns by identity, and rows by what each column had when they were written. What a
reader sees follows from it alone: the names, types and defaults are those of the schema it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txnlog.producer import Producer
from txnlog.snapshot import Snapshot
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("L16")

NAMES = ("a", "b", "c", "d.e", "F f")
WIDER: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int32(),
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.decimal128(5, 1): pa.decimal128(20, 1),
}
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-100, 100),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 60), 1 << 60),
    pa.float32(): st.sampled_from([0.0, -0.5, 1.25, np.float32(0.1).item()]),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(5, 1): st.sampled_from([Decimal("1.5"), Decimal("-999.9")]),
    pa.decimal128(20, 1): st.sampled_from([Decimal("123456789012.5"), Decimal("0.1")]),
    pa.string(): st.text("xyä ", max_size=3),
    pa.binary(): st.binary(max_size=3),
}
LEAVES = st.sampled_from([*VALUES])


@dataclass
class Leaf:
    """A type that consists of no others."""

    kind: pa.DataType


@dataclass
class ListOf:
    """Lists of a type."""

    inner: Kind


@dataclass
class MapOf:
    """Maps from text to a type."""

    inner: Kind


@dataclass
class Struct:
    """Fields, each a column by itself."""

    columns: list[Column]


Kind = Leaf | ListOf | MapOf | Struct


@dataclass
class Column:
    """A column, or a field of a struct; ``number`` is who it is."""

    number: int
    name: str
    kind: Kind
    required: bool = False
    default: Any = None


@dataclass
class World:
    """What is known of a topic: its columns, and rows as columns' values by their numbers."""

    columns: list[Column]
    rows: list[dict[int, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))


def type_of(kind: Kind) -> pa.DataType:
    match kind:
        case Leaf(of):
            return of
        case ListOf(inner):
            return pa.list_(type_of(inner))
        case MapOf(inner):
            return pa.map_(pa.string(), type_of(inner))
        case Struct(columns):
            return pa.struct([(one.name, type_of(one.kind)) for one in columns])


def schema_of(columns: list[Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(one.name, type_of(one.kind), nullable=not one.required) for one in columns]
    )


def copy_of(kind: Kind) -> Kind:
    """Another that changes by itself."""
    match kind:
        case Leaf():
            return replace(kind)
        case ListOf(inner) | MapOf(inner):
            return type(kind)(copy_of(inner))
        case Struct(columns):
            return Struct(copies(columns))


def copies(columns: list[Column]) -> list[Column]:
    return [replace(one, kind=copy_of(one.kind)) for one in columns]


def seen(value: Any, kind: Kind) -> Any:
    """A value that was written as a reader with this type of its column sees it."""
    if value is None:
        return None
    match kind:
        case Leaf():
            return value
        case ListOf(inner):
            return [seen(item, inner) for item in value]
        case MapOf(inner):
            return [(key, seen(item, inner)) for key, item in value]
        case Struct(columns):
            return {one.name: seen(value.get(one.number), one.kind) for one in columns}


def expected(rows: list[dict[int, Any]], columns: list[Column]) -> list[dict[str, Any]]:
    return [
        {one.name: seen(row.get(one.number, one.default), one.kind) for one in columns}
        for row in rows
    ]


class Draws:
    """What Hypothesis decides."""

    def __init__(self, data: st.DataObject, numbers: Iterator[int]) -> None:
        self._data = data
        self._numbers = numbers

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self._data.draw(strategy)

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def kind(self, depth: int = 0) -> Kind:
        which = self.draw(st.integers(0, 5 if depth < 2 else 2))
        if which <= 2:
            return Leaf(self.draw(LEAVES))
        if which == 5:
            return Struct(self.columns(depth + 1))
        return (ListOf if which == 3 else MapOf)(self.kind(depth + 1))

    def columns(self, depth: int = 0) -> list[Column]:
        names = self.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        return [Column(next(self._numbers), name, self.kind(depth)) for name in names]

    def value(self, kind: Kind) -> Any:
        """One that is written: structs by the numbers of their fields."""
        if self.draw(st.integers(0, 4)) == 0:
            return None
        match kind:
            case Leaf(of):
                return self.draw(VALUES[of])
            case ListOf(inner):
                return [self.value(inner) for _ in range(self.draw(st.integers(0, 2)))]
            case MapOf(inner):
                keys = self.draw(st.lists(st.sampled_from("kl"), max_size=2, unique=True))
                return [(key, self.value(inner)) for key in keys]
            case Struct(columns):
                return {one.number: self.value(one.kind) for one in columns}

    def rows(self, columns: list[Column]) -> list[dict[int, Any]]:
        made = []
        for _ in range(self.draw(st.integers(1, 3))):
            row = {one.number: self.value(one.kind) for one in columns}
            for one in columns:
                if one.required and row[one.number] is None:
                    row[one.number] = one.default
            made.append(row)
        return made

    # -- changes -------------------------------------------------------------------------------

    def change(self, columns: list[Column], *, is_top: bool) -> dict[str, str]:
        """Change the columns, or fields of a struct; the new names by the old ones."""
        before = {one.name for one in columns}
        renamed = {}
        for one in columns:
            one.kind = self.changed(one.kind)
            if one.required and self.chance():
                one.required = False
        if len(columns) > 1 and self.chance():
            columns.remove(self.draw(st.sampled_from(columns)))
        if is_top and self.chance():
            free = [name for name in NAMES if name not in before]
            names = self.draw(st.permutations([*(one.name for one in columns), *free]))
            for one, name in zip(columns, names, strict=False):
                if one.name != name:
                    renamed[one.name] = name
                    one.name = name
        free = [name for name in NAMES if name not in before | {one.name for one in columns}]
        if free and self.chance():
            columns.append(self.new(self.draw(st.sampled_from(free)), is_top=is_top))
        columns[:] = self.draw(st.permutations(columns))
        return renamed

    def new(self, name: str, *, is_top: bool) -> Column:
        column = Column(next(self._numbers), name, self.kind(0 if is_top else 1))
        if is_top and isinstance(column.kind, Leaf) and self.chance():
            column.default = self.draw(VALUES[column.kind.kind])
            column.required = self.chance()
        return column

    def changed(self, kind: Kind) -> Kind:
        match kind:
            case Leaf(of) if of in WIDER and self.chance():
                return Leaf(WIDER[of])
            case ListOf(inner) | MapOf(inner):
                return type(kind)(self.changed(inner))
            case Struct(columns):
                self.change(columns, is_top=False)
        return kind


def send(producer: Producer, rows: list[dict[int, Any]], columns: list[Column]) -> None:
    table = pa.Table.from_pylist(expected(rows, columns), schema_of(columns))
    producer.send_batch("t", table)


def check(snapshot: Snapshot, rows: list[dict[str, Any]], columns: list[Column]) -> None:
    assert snapshot.scan("t").to_arrow().to_pylist() == rows
    for one in columns:
        alone = snapshot.scan("t", columns=[one.name]).to_arrow().to_pylist()
        assert alone == [{one.name: row[one.name]} for row in rows]
    found = snapshot.dataset("t")
    assert found.to_table().to_pylist() == rows
    for one in columns:
        if isinstance(one.kind, Leaf) and rows:
            wanted = rows[0][one.name]
            scalar = pa.scalar(wanted, one.kind.kind)
            chosen = pc.field(one.name) == scalar
            if wanted is None:
                chosen = pc.field(one.name).is_null()
            kept = [row for row in rows if row[one.name] == wanted]
            assert found.to_table(filter=chosen).to_pylist() == kept
            assert snapshot.scan("t", filter=chosen).to_arrow().to_pylist() == kept
            some = snapshot.scan("t", columns=["_offset"], filter=chosen)
            assert some.to_arrow().num_rows == len(kept)
    as_json: dict[str, Any] = {"columns": ["offset", "value"], "as_json": True}
    values = snapshot.scan("t", **as_json).to_arrow()
    for n, value in zip(*values.to_pydict().values(), strict=True):
        chosen = (pc.field("offset") == n) & (pc.field("value") == value)
        assert snapshot.scan("t", **as_json, filter=chosen).to_arrow().num_rows == 1


def any_changes(data: st.DataObject) -> None:
    """Also where columns that are not stored are made for a row at a time, or a few."""
    with pytest.MonkeyPatch.context() as patched:
        most_bytes = data.draw(st.sampled_from([1, 60, 1 << 26]))
        patched.setattr("txnlog.segments.schema_columns._MOST_MADE_BYTES", most_bytes)
        patched.setattr("txnlog.read.json_records._MOST_BYTES", 8 * most_bytes)
        change_and_check(data)


def change_and_check(data: st.DataObject) -> None:
    storage, clock = HeapStorage(), VirtualClock()
    store: Store = attach(storage, create=True, clock=clock)
    world = World([])
    draws = Draws(data, world.numbers)
    world.columns = draws.columns()
    config = {"schema.compatibility": "NONE", "compression.type": "none"}
    formats = st.sampled_from(["parquet", "columns", "auto"])
    config["record.format"] = draws.draw(formats)
    store.topics.create("t", schema=schema_of(world.columns), config=config)
    pinned: list[tuple[Snapshot, list[dict[str, Any]], list[Column]]] = []
    for _ in range(draws.draw(st.integers(1, 4))):
        if draws.chance():
            rows = draws.rows(world.columns)
            with store.producer() as producer:
                send(producer, rows, world.columns)
            world.rows += rows
        late = store.producer()
        late_rows = draws.rows(world.columns) if draws.chance() else []
        if late_rows:
            send(late, late_rows, world.columns)
        before = copies(world.columns)
        pinned.append((store.snapshot(["t"]), expected(world.rows, before), before))
        renamed = draws.change(world.columns, is_top=True)
        defaults = {
            one.name: one.default
            for one in world.columns
            if one.default is not None and one.number not in {old.number for old in before}
        }
        store.topics.alter(
            "t",
            schema=schema_of(world.columns),
            rename=renamed,
            defaults=defaults,
            config={"record.format": draws.draw(formats)},
        )
        late.close()
        world.rows += late_rows
        if draws.chance():
            store.maintenance.merge("t")
        shown = expected(world.rows, world.columns)
        check(attach(storage, clock=clock).snapshot(["t"]), shown, world.columns)
    for snapshot, shown, columns in pinned:
        check(snapshot, shown, columns)


@pytest.mark.parametrize(
    "examples",
    [10, pytest.param(40, marks=pytest.mark.more), pytest.param(1500, marks=pytest.mark.slow)],
)
def test_any_changes_of_any_schema(examples: int) -> None:
    """Scans and datasets, of all columns and of one, with filters; snapshots show what they did."""
    checked = settings(
        derandomize=examples < 20,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    checked(given(st.data())(any_changes))()
