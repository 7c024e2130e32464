"""Batches that are slices of others: what is taken whole is taken in any part, empty ones too."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import combinations_with_replacement
from typing import Any

import pyarrow as pa
import pytest

from txnlog.columns.checks import make_schema
from txnlog.errors import InvalidRecord, RecordTooLarge
from txnlog.store import Store
from txnlog.write.typed_records import TypedRecords

MOMENT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
LEAVES: dict[str, tuple[pa.DataType, pa.DataType, tuple[Any, Any]]] = {
    "text": (pa.string(), pa.string(), ("a", "ä")),
    "large text": (pa.large_string(), pa.string(), ("a", "ä")),
    "text view": (pa.string_view(), pa.string(), ("a", "ä, longer than a view")),
    "bytes view": (pa.binary_view(), pa.binary(), (b"a", b"longer than a view has")),
    "wider": (pa.int8(), pa.int64(), (1, -2)),
    "narrower": (pa.float64(), pa.float32(), (0.5, -1.5)),
    "decimal": (pa.decimal128(5, 0), pa.int64(), (Decimal(1), Decimal(-2))),
    "number": (pa.int64(), pa.decimal128(5, 1), (1, -2)),
    "time": (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC"), (MOMENT, MOMENT)),
    "null": (pa.null(), pa.string(), (None, None)),
}
"""What is sent for which type of a column, and values."""

Shape = tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any, Any], list[Any]]]


def _struct(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("x", kind)])


def _required(kind: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("x", kind, nullable=kind == pa.null())])


def _map(kind: pa.DataType) -> pa.DataType:
    return pa.map_(pa.string(), kind)


SHAPES: dict[str, Shape] = {
    "plain": (lambda kind: kind, lambda a, b: [a, None, b, a, None]),
    "list": (pa.list_, lambda a, b: [[a, b], [], None, [b, None], []]),
    "large list": (pa.large_list, lambda a, b: [[a, b], [], None, [b, None], []]),
    "list of lists": (
        lambda kind: pa.list_(pa.list_(kind)),
        lambda a, b: [[[a], [], None], [], None, [[b, None]], []],
    ),
    "struct": (_struct, lambda a, b: [{"x": a}, None, {"x": None}, {"x": b}, None]),
    "required": (_required, lambda a, b: [{"x": a}, None, {"x": b}, {"x": a}, None]),
    "map": (_map, lambda a, b: [[("k", a), ("l", b)], [], None, [("m", None)], []]),
    "list of maps": (
        lambda kind: pa.list_(_map(kind)),
        lambda a, b: [[[("k", a)], [], None], [], None, [[("l", b)]], []],
    ),
    "struct of maps": (
        lambda kind: _struct(_map(kind)),
        lambda a, b: [{"x": [("k", a)]}, {"x": []}, None, {"x": [("l", b)]}, {"x": None}],
    ),
    "map of required": (
        lambda kind: _map(_required(kind)),
        lambda a, b: [[("k", {"x": a})], [], None, [("l", {"x": b})], []],
    ),
    "map of lists": (
        lambda kind: _map(pa.list_(kind)),
        lambda a, b: [[("k", [a, b])], [], None, [("l", []), ("m", None)], []],
    ),
}
"""How a type is nested in others, and five rows of two values."""


def _parts(count: int) -> Iterator[slice]:
    return (slice(*ends) for ends in combinations_with_replacement(range(count + 1), 2))


NOT_TAKEN = {
    *(("number", shape) for shape in SHAPES if shape != "plain"),
    *(("decimal", shape) for shape in SHAPES if shape not in ("plain", "list", "list of lists")),
    *(("null", shape) for shape in ("required", "map of required")),
}
"""Arrow casts no whole numbers inside of others to decimals, nor back without losing digits."""


@pytest.mark.few(11)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leaf", LEAVES)
def test_any_part_of_a_batch_has_the_values_that_it_has_in_the_whole(leaf: str, shape: str) -> None:
    found, wanted, values = LEAVES[leaf]
    nest, rows_of = SHAPES[shape]
    rows = rows_of(*values)
    column = pa.list_(wanted) if shape == "large list" else nest(wanted)
    records = TypedRecords("t", make_schema(pa.schema([("c", column)])))
    batch = pa.record_batch({"c": pa.array(rows, nest(found))})
    if (leaf, shape) in NOT_TAKEN:
        with pytest.raises(InvalidRecord):
            records.normalize(batch, 0)
        return
    for part in _parts(len(rows)):
        some = batch.slice(part.start, part.stop - part.start)
        made = records.normalize(some, 0).column("c")
        made.validate(full=True)
        assert made.to_pylist() == rows[part]


@pytest.mark.parametrize("shape", SHAPES)
def test_text_that_is_none_is_refused_in_the_parts_that_have_it(shape: str) -> None:
    """And in no others, though Arrow's slices have the values of all rows."""
    nest, rows_of = SHAPES[shape]
    column = pa.list_(pa.string()) if shape == "large list" else nest(pa.string())
    records = TypedRecords("t", make_schema(pa.schema([("c", column)])))
    rows = rows_of("a", "@@@@")
    given = pa.record_batch({"c": pa.array(rows, nest(pa.string()))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, given.schema) as writer:
        writer.write_batch(given)
    damaged = sink.getvalue().to_pybytes().replace(b"@@@@", b"\xff\xff\xff\xff")
    batch = pa.ipc.open_stream(damaged).read_next_batch()
    for part in _parts(len(rows)):
        some = batch.slice(part.start, part.stop - part.start)
        if "@" in repr(rows[part]):
            with pytest.raises(InvalidRecord, match=r"text in row \d that is not UTF-8"):
                records.normalize(some, 0)
        else:
            assert records.normalize(some, 0).column("c").to_pylist() == rows[part]


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "plain"])
@pytest.mark.store(topics={}, on="heap")
def test_rows_of_a_table_in_chunks_are_told_apart(store: Store, typed: bool) -> None:
    """An error says from where on its row is counted; nothing of the table is sent."""
    config = {"max.message.bytes": "1000"}
    schema = pa.schema([("value", pa.string())]) if typed else None
    store.topics.create("t", config=config, schema=schema)
    chunks = [["a"] * 3, ["a"] * 4, ["a", "b" * 2000]]
    with store.producer() as producer:
        for first in range(3):
            table = pa.table({"value": pa.chunked_array(chunks[first:])})
            counted = sum(map(len, chunks[first:-1]))
            told = f"^from row {counted} on, counted from 0 there: record 1 of the batch, "
            with pytest.raises(RecordTooLarge, match=told if counted else "^record 1 of the"):
                producer.send_batch("t", table)
    assert store.scan("t").count() == {0: 0}
