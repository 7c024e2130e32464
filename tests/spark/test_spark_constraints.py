"""Constraints of typed topics: checked by the tasks of each way to write."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.stream_helpers import READS_STREAMS
from tests.support.columns import edges
from txnlog import Store
from txnlog.columns.bind import bind
from txnlog.columns.expressions import evaluate, parse
from txnlog.errors import TxnlogError
from txnlog.spark import transaction


def test_each_way_to_write_checks_them(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    config = {"constraint.positive": "amount > 0"}
    store.topics.create("pay", schema=columns, key=["id"], config=config)
    store.topics.create("from", schema=columns, key=["id"])
    good = spark.createDataFrame([(1, 2.0), (2, None)], "id bigint, amount double")
    bad = spark.createDataFrame([(3, -1.0)], "id bigint, amount double")
    refused = pytest.raises((PySparkException, TxnlogError), match="violates constraint 'positive'")
    with refused:
        bad.write.format("txnlog").options(path=store.url, topic="pay").mode("append").save()
    with refused, transaction(spark, store, transactional_id="t") as txn:
        txn.write(bad, topic="pay")
    with refused, transaction(spark, store, transactional_id="t") as txn:
        txn.merge(bad, topic="pay")
    with transaction(spark, store, transactional_id="t") as txn:
        txn.merge(good, topic="pay")
        txn.write(bad, topic="from")
    assert sorted(store.scan("pay").to_arrow()["id"].to_pylist()) == [1, 2]
    if not READS_STREAMS:
        return
    stream = spark.readStream.format("txnlog").options(path=store.url, subscribe="from")
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("txnlog")
        .options(path=store.url, topic="pay", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with refused:
        query.awaitTermination()
    assert sorted(store.scan("pay").to_arrow()["id"].to_pylist()) == [1, 2]


def _sums_of(name: str) -> list[str]:
    """Expressions over a column of a type and a double, of those that overflow in no row."""
    if name in edges.INTEGERS:
        return ["a + 1.5 > 2", "a * 1.5 <= 9007199254740993", "a - b < 1"]
    if name in (edges.FLOAT, edges.DOUBLE):
        return ["a + 1 > 2", "a * 0.1 = 0.1", "-a <= a - b", "abs(a) * a >= b", "a - a = b - b"]
    exact = ["-a < 0", "abs(a) > 0"] if edges.TYPES[name].precision < 34 else []
    return [*exact, "a * b > 0"]  # Spark rounds -a to 34 digits


@pytest.mark.more
@pytest.mark.parametrize("name", list(edges.TYPES))
def test_expressions_have_the_values_of_spark(spark: SparkSession, name: str) -> None:
    """But where Spark itself has none: for it a type in common has at most 38 digits."""
    texts = [f"a {sign} b" for sign in edges.COMPARISONS] + _sums_of(name)
    for text in edges.LITERALS:
        if not edges.is_longer(38, name, text):
            texts += [f"a {sign} {text}" for sign in edges.COMPARISONS]
        if not edges.is_longer(38, name, text, "1"):
            texts += [f"a IN ({text}, 1)", f"{text} NOT BETWEEN a AND 1"]
    pairs = list(product(edges.edges(name), edges.edges("double")))
    data = [(number, *pair) for number, pair in enumerate(pairs)]
    schema = f"number int, a {name}, b double"
    frame = spark.createDataFrame(data, schema)
    rows = pa.RecordBatch.from_arrays(
        [pa.array([a for a, _ in pairs], edges.TYPES[name]), pa.array([b for _, b in pairs])],
        ["a", "b"],
    )
    frame = frame.selectExpr("number", *(f"({text}) AS e{at}" for at, text in enumerate(texts)))
    found = frame.orderBy("number").toArrow()
    wrong = []
    for at, text in enumerate(texts):
        ours = evaluate(bind(parse(text), rows.schema), rows)
        spark_has = found[f"e{at}"].combine_chunks()
        if name in edges.INTEGERS and text.startswith(("a < ", "a <= ", "a > ", "a >= ")):
            # For Spark null is less than a constant that is greater than all of its type.
            spark_has = pc.if_else(rows["a"].is_null(), None, spark_has)
        same = pc.coalesce(pc.equal(ours, spark_has), pc.equal(ours.is_null(), spark_has.is_null()))
        differs = pc.invert(same)
        wrong += [(text, pairs[row], ours[row]) for row in pc.indices_nonzero(differs).to_pylist()]
    assert not wrong, wrong[:20]
