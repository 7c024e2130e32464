"""Spark's ways out of a topic against hostile values of every type.

Each file has one or two rows, so that a predicate may pass over any of them by its bounds.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

import txnlog
from tests.spark.spark_helpers import save
from tests.spark.stream_helpers import reads_streams, run, stream
from tests.support.read.hostile_readers import spark_literal, sql
from tests.support.read.hostile_values import (
    COLUMNS,
    CONFIG,
    FORMS,
    NAN,
    PARTITIONS,
    ROWS,
    SCHEMA,
    TIMESTAMP,
    Column,
    Compare,
    Predicate,
    fill,
    matching,
    predicates,
    utc,
)
from txnlog import Store
from txnlog.spark import read

pytestmark = pytest.mark.usefixtures("interpreted")

_FINE = utc(2024, 3, 31, 1, 30, 0, 5001)
FEW: dict[str, list[Any]] = {
    "f64": [NAN, 3.0, -0.0],
    "d18": [Decimal(3), Decimal("999999999999999.999")],
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


NAMES = ["id", *dict.fromkeys(column.name.split(".")[0] for column in EVERY)]
BY_SPARK = "by spark"


@pytest.fixture(scope="module")
def filled(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """A store with the topic in one of its forms, or written by Spark's tasks."""
    store = txnlog.open(str(tmp_path_factory.mktemp("paths") / "store"), create=True)
    if request.param != BY_SPARK:
        fill(store, "t", request.param)
        return store
    fill(store, "source")
    store.topics.create("t", partitions=PARTITIONS, schema=SCHEMA, config=CONFIG)
    columns = [*SCHEMA.names, "_timestamp", "_partition"]
    save(read(spark, store, "source", columns=columns, native=False), store, "t")
    return store


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


_FEW = {
    column.name: replace(column, literals=FEW[column.name])
    for column in EVERY
    if column.name in FEW
}


def _cases() -> list[object]:
    """Each column in each form; few predicates of few of them are in `make test-more`."""
    found: list[object] = []
    for form in (*FORMS, BY_SPARK):
        for native in (True, False):
            for few in (True, False):
                for column in _FEW.values() if few else EVERY:
                    is_everywhere = column.name == ("d18" if form == "widened" else "f64")
                    is_often = few and native and (form == "written" or is_everywhere)
                    marks = [] if is_often and form != BY_SPARK else [pytest.mark.slow]
                    way = "native" if native else "source"
                    name = f"{form}-{way}-{'few-' * few}{column.name}"
                    found.append(pytest.param(form, column, native, id=name, marks=marks))
    return found


@pytest.mark.more
@pytest.mark.parametrize(("filled", "column", "native"), _cases(), indirect=["filled"])
def test_a_predicate_keeps_what_it_is_true_of(
    spark: SparkSession, filled: Store, column: Column, native: bool
) -> None:
    """Whatever bounds say, and however exact the literal is."""
    frame = read(spark, filled, "t", columns=NAMES, native=native)
    every = [*predicates(column)]
    problems = wrong(frame, every)
    assert not problems, f"{len(problems)} of {len(every)}:\n" + "\n".join(problems[:20])


def streamed(frame: DataFrame, name: str, folder: Path) -> list[Row]:
    """What a streaming query returns, in memory."""
    writer = frame.writeStream.format("memory").queryName(name)
    run(writer.option("checkpointLocation", str(folder / name)))
    table = frame.sparkSession.table(name)
    try:
        return table.collect()
    finally:
        frame.sparkSession.catalog.dropTempView(name)


@pytest.mark.more
@reads_streams
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "filled",
    [*FORMS, pytest.param(BY_SPARK, marks=pytest.mark.slow)],
    indirect=True,
)
def test_a_stream_tells_what_a_predicate_is_true_of(
    spark: SparkSession, filled: Store, few: bool, tmp_path: Path
) -> None:
    """All predicates in one query: each row says which are true of it."""
    columns = _FEW.values() if few else EVERY
    every = [predicate for column in columns for predicate in predicates(column)]
    frame = stream(spark, filled, "t", columns=",".join(NAMES))
    told = [
        sf.expr(sql(predicate, spark_literal)).alias(f"p{number}")
        for number, predicate in enumerate(every)
    ]
    rows = streamed(frame.select("id", *told), "told", tmp_path)
    assert sorted(row["id"] for row in rows) == [row["id"] for row in ROWS]
    problems = [
        f"{predicate}: {found}, not {wanted}"
        for number, predicate in enumerate(every)
        if (found := sorted(row["id"] for row in rows if row[f"p{number}"]))
        != (wanted := matching(predicate, "largest"))
    ]
    assert not problems, f"{len(problems)} of {len(every)}:\n" + "\n".join(problems[:20])


@pytest.mark.more
@reads_streams
@pytest.mark.parametrize(
    ("filled", "column"),
    [
        pytest.param(
            form,
            column,
            id=f"{form}-{column.name}",
            marks=[] if (form, column.name) == ("compacted", "f64") else [pytest.mark.slow],
        )
        for form in (*FORMS, BY_SPARK)
        for column in EVERY
    ],
    indirect=["filled"],
)
def test_a_stream_keeps_what_a_filter_is_true_of(
    spark: SparkSession, filled: Store, column: Column, tmp_path: Path
) -> None:
    """A filter of the query itself, which Spark may hand on."""
    predicate = Compare(column.name, "<>", column.literals[0])
    frame = stream(spark, filled, "t", columns=",".join(NAMES))
    kept = frame.where(sql(predicate, spark_literal)).select("id")
    rows = streamed(kept, "kept", tmp_path)
    assert sorted(row["id"] for row in rows) == matching(predicate, "largest")
