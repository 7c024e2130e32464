"""What engines that read a catalog's tables are asked for: three topics, and many predicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from tests.support.read.hostile_readers import Literal, sql
from tests.support.read.hostile_values import (
    COLUMNS,
    Compare,
    Form,
    Order,
    Predicate,
    fill,
    matching,
    predicates,
)
from txnlog import Store

_TOGETHER = 40
_FORM: Form = "mixed"
"""Of the files: Parquet files that a table names, and records that it has copied."""


def fill_topics(store: Store) -> None:
    """One of hostile values, one with a key, and one without columns of its own."""
    fill(store, "hostile", _FORM)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    store.topics.create("keyed", partitions=2, schema=schema, key=["id"])
    store.topics.create("plain", partitions=2)
    with store.producer() as producer:
        producer.send_batch("keyed", pa.table({"id": [1, 2, 3], "name": ["a", None, "ü"]}))
        producer.send_batch("keyed", pa.table({"id": [2], "_deleted": [True]}))
        for number in range(3):
            producer.send("plain", value=f"{number}", key=b"\xff\0")


def check_predicates(
    ask: Callable[[str], list[list[object]]],
    table: str,
    literal: Literal,
    *,
    knows: Callable[[Predicate], bool],
    order_of: Callable[[Predicate], Order],
    every: int = 1,
) -> None:
    """Assert that an engine finds the rows that each predicate is true of, as Python does.

    Args:
        ask: the rows that a query finds.
        table: what the engine calls the topic of hostile values.
        literal: a value in its SQL.
        knows: which predicates it evaluates as they are said.
        order_of: how it compares floats in one of them.
        every: the engine is asked for each of so many.
    """
    asked = [p for column in COLUMNS for p in predicates(column) if knows(p)]
    assert len(asked) > 400
    asked = asked[::every]
    wrong: list[str] = []
    for first in range(0, len(asked), _TOGETHER):
        some = asked[first : first + _TOGETHER]
        found = _ids(ask, table, [sql(predicate, literal) for predicate in some])
        wrong += [
            f"{predicate}: {ids}, not {wanted}"
            for predicate, ids in zip(some, found, strict=True)
            if ids != (wanted := matching(predicate, order_of(predicate)))
        ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])


def _ids(
    ask: Callable[[str], list[list[object]]], table: str, conditions: Iterable[str]
) -> list[list[int]]:
    """For each condition the ids of its rows, by one query."""
    queries = [
        f"SELECT {number}, id FROM {table} WHERE {condition}"
        for number, condition in enumerate(conditions)
    ]
    found: list[list[int]] = [[] for _ in queries]
    for number, identity in ask(" UNION ALL ".join(queries)):
        assert isinstance(number, int)
        assert isinstance(identity, int)
        found[number].append(identity)
    return [sorted(ids) for ids in found]


def nan_is_itself(predicate: Predicate) -> Order:
    """NaN is not distinct from NaN, and in all other comparisons differs from all."""
    is_distinct = isinstance(predicate, Compare) and predicate.operator == "<=>"
    return "largest" if is_distinct else "ieee"
