"""Spark's ways out of a topic against hostile values of every type: see TESTING.md.

Each file has one or two rows, so that a predicate may pass over any of them by its bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hostile_readers import spark_literal, sql
from hostile_values import (
    COLUMNS,
    CONFIG,
    NAN,
    PARTITIONS,
    SCHEMA,
    TIMESTAMP,
    Column,
    Predicate,
    fill,
    matching,
    predicates,
    utc,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from spark_helpers import save

import txnlog
from txnlog import Store
from txnlog.spark import read

_FINE = utc(2024, 3, 31, 1, 30, 0, 5001)
FEW: dict[str, list[Any]] = {
    "f64": [NAN, 3.0, -0.0],
    "at_ms": [_FINE],
    "_timestamp": [_FINE],
    "pair.f": [NAN, 3.0],
}
"""The columns, and their literals, of which `make test-more` runs everything."""
_TOGETHER = 40
"""How many predicates are one job: as many reads of the files, united."""
_NESTED = [
    Column("pair.f", pa.float64(), [], [NAN, 3.0, 0.0, -0.0], NAN),
    Column("pair.at", pa.timestamp("ms", "UTC"), [], TIMESTAMP.literals),
]
EVERY = [*COLUMNS, TIMESTAMP, *_NESTED]


@pytest.fixture(
    scope="module", params=["written", pytest.param("by spark", marks=pytest.mark.slow)]
)
def filled(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """A store with the topic, written by a producer or by Spark's tasks."""
    store = txnlog.open(str(tmp_path_factory.mktemp("paths") / "store"), create=True)
    if request.param == "written":
        fill(store, "t")
        return store
    fill(store, "source")
    store.create_topic("t", partitions=PARTITIONS, schema=SCHEMA, config=CONFIG)
    columns = [*SCHEMA.names, "_timestamp", "_partition"]
    save(read(spark, store, "source", columns=columns, native=False), store, "t")
    return store


@pytest.fixture(autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Compiling a plan takes longer than to read a few rows."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")
    spark.conf.unset("spark.sql.codegen.factoryMode")


def wrong(frame: DataFrame, some: list[Predicate]) -> list[str]:
    """Which predicates keep other rows than they are true of."""
    found: dict[int, list[int]] = {number: [] for number in range(len(some))}
    for start in range(0, len(some), _TOGETHER):
        kept = [
            frame.where(sql(predicate, spark_literal)).select("id", sf.lit(number))
            for number, predicate in enumerate(some[start : start + _TOGETHER], start)
        ]
        for identity, number in reduce(DataFrame.union, kept).collect():
            found[number].append(identity)
    return [
        f"{predicate}: {sorted(found[number])}, not {wanted}"
        for number, predicate in enumerate(some)
        if sorted(found[number]) != (wanted := matching(predicate, "largest"))
    ]


_COLUMNS = [
    *(
        pytest.param(replace(column, literals=FEW[column.name]), id=f"few-{column.name}")
        for column in EVERY
        if column.name in FEW
    ),
    *(pytest.param(column, id=column.name, marks=pytest.mark.slow) for column in EVERY),
]


@pytest.mark.more
@pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("column", _COLUMNS)
def test_a_predicate_keeps_what_it_is_true_of(
    spark: SparkSession, filled: Store, column: Column, native: bool
) -> None:
    """Whatever bounds say, and however exact the literal is."""
    names = ["id", *dict.fromkeys(column.name.split(".")[0] for column in EVERY)]
    frame = read(spark, filled, "t", columns=names, native=native)
    every = [*predicates(column)]
    problems = wrong(frame, every)
    assert not problems, f"{len(problems)} of {len(every)}:\n" + "\n".join(problems[:20])
