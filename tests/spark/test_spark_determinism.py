"""Frames that are computed more than once: what need not be the same each time, and its writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, StructField, StructType
from pyspark.util import PythonEvalType

from tests.spark.spark_helpers import fill, load, numbers, stored
from txnlog import Store
from txnlog.errors import InvalidOption
from txnlog.spark import SparkTransaction, foreach_batch, transaction
from txnlog.spark.batch.determinism import BY_CHANCE, Chance, chances


def drawn() -> Column:
    return sf.udf(random.random, "double").asNondeterministic()()


FRAMES: dict[str, tuple[list[str], Callable[[DataFrame], DataFrame]]] = {
    "none": ([], lambda rows: rows.groupBy("key").agg(sf.max("value"))),
    "function": (["random()"], lambda rows: rows.withColumn("r", drawn())),
    "filter": (["random()"], lambda rows: rows.where(drawn() < 0.5).select("key")),
    "sql": (["random()"], lambda rows: in_sql(rows.withColumn("r", drawn()))),
    "subquery": (["random()"], lambda rows: in_a_subquery(rows.withColumn("r", drawn()))),
    "position": ([], lambda rows: rows.withColumn("r", sf.rand() + sf.expr("length(uuid())"))),
    "of-position": (["random()"], lambda rows: rows.withColumn("r", drawn() + sf.rand())),
    "shuffled": (["rand()"], lambda rows: rows.repartition(3).withColumn("r", sf.rand())),
    "grouped": (["uuid()"], lambda rows: rows.groupBy("key").count().selectExpr("uuid() AS r")),
    "checkpoint": ([], lambda rows: rows.repartition(2).withColumn("r", drawn()).localCheckpoint()),
    "behind": ([], lambda rows: rows.repartition(2).localCheckpoint().withColumn("r", sf.rand())),
    "broadcast": ([], lambda rows: joined(rows, sf.broadcast).withColumn("r", sf.rand())),
    "sampled": (
        ["sample()"],
        lambda rows: rows.repartition(3).sample(fraction=0.5, seed=1).select("key"),
    ),
    "sampled-in-order": ([], lambda rows: rows.sample(fraction=0.5, seed=1)),
    "limited": (["limit()"], lambda rows: rows.repartition(3).where("key > ''").limit(1)),
    "limited-tasks": (["limit()"], lambda rows: rows.where("key > ''").limit(1)),
    "limited-task": (
        [],
        lambda rows: rows.coalesce(1).localCheckpoint().where("key > ''").offset(1).limit(1),
    ),
    "sorted-tasks": (["limit()"], lambda rows: rows.sortWithinPartitions("key").limit(1)),
    "sorted": ([], lambda rows: rows.repartition(3).sort("key").select("key").limit(1)),
    "joined": (["rand()"], lambda rows: joined(rows, lambda few: few).withColumn("r", sf.rand())),
}


def in_sql(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("by_chance")
    return rows.sparkSession.sql("SELECT key FROM by_chance WHERE r < 0.5")


def in_a_subquery(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("by_chance")
    return rows.sparkSession.sql(
        "SELECT id FROM range(3) WHERE id > (SELECT max(r) FROM by_chance)"
    )


def joined(rows: DataFrame, hinted: Callable[[DataFrame], DataFrame]) -> DataFrame:
    return rows.join(hinted(rows.sparkSession.range(3).selectExpr("string(id) AS key")), "key")


@pytest.mark.parametrize("name", FRAMES)
def test_what_need_not_repeat(spark: SparkSession, store: Store, name: str) -> None:
    """What Catalyst calls non-deterministic, and chance by position where the order changes."""
    expected, made = FRAMES[name]
    if name == "none":  # a read, as the others' rows might be
        store.topics.create("in")
        rows = load(spark, store, "in")
    else:
        rows = numbers(spark, 0, 3)
    found = chances(made(rows))
    assert list(dict.fromkeys(map(str, found))) == expected


def test_what_need_not_repeat_through_connect() -> None:
    """The same function in two frames is the same chance, whatever it refers to has become."""
    if find_spec("grpc") is None:
        pytest.skip("Spark Connect is not installed")
    from pyspark.sql.connect import functions as cf
    from pyspark.sql.connect.plan import Filter, Join, MapPartitions, Project, Range
    from pyspark.sql.connect.udf import UserDefinedFunction

    def chances_of(plan: object) -> list[Chance]:
        frame: Any = SimpleNamespace(_plan=plan)
        return chances(frame)

    def function(of: Callable[..., object]) -> Any:
        made: Any = cf.udf(of, DoubleType())
        return made.asNondeterministic()

    rows = Range(0, 3, 1)
    once = Project(rows, [cf.lit(1), function(random.random)().alias("r")])
    (found,) = chances_of(once)
    random.random()  # its state is in what is sent
    assert chances_of(Filter(once, cf.col("r") < 1)) == [found]
    again = Project(rows, [cf.when(function(random.random)() > 1, 2).otherwise(3)])
    assert chances_of(again) == [found]
    joined = Join(rows, once, None, "inner")
    assert chances_of(Filter(joined, function(random.random)() < 1)) == [found]
    (other,) = chances_of(Project(rows, [function(random.gauss)()]))
    assert other != found
    of_batches = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    for marks in ({}, {BY_CHANCE: "decode_values()"}):
        schema = StructType([StructField("x", DoubleType(), metadata=marks)])
        mapped: Any = UserDefinedFunction(iter, schema, evalType=of_batches)
        plan = MapPartitions(rows, mapped, ["id"], False, None)
        assert [*map(str, chances_of(Filter(plan, cf.col("x") < 1)))] == [*marks.values()]
    plain: Any = cf.udf(random.random, DoubleType())
    assert chances_of(Project(rows, [plain(), cf.rand()])) == []


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics in, one and other; 200 numbers are in ``in``."""
    for topic in ("in", "one", "other"):
        store.topics.create(topic, partitions=2)
    fill(store, "in", 0, 200)
    return store


def split(txn_rows: DataFrame, by: Column) -> tuple[DataFrame, DataFrame]:
    rows = txn_rows.drop("partition").withColumn("r", by)
    return rows.where("r < 0.5").drop("r"), rows.where("r >= 0.5").drop("r")


def test_two_writes_of_what_need_not_repeat_are_refused(spark: SparkSession, topics: Store) -> None:
    """Rows would be in neither, and others in both; nothing is committed."""

    def job() -> None:
        with transaction(spark, topics, transactional_id="etl", group_id="etl") as txn:
            first, second = split(txn.read("in"), drawn())
            txn.write(first, topic="one")
            txn.write(second, topic="other")

    with pytest.raises(InvalidOption, match=r"random\(\) need not .*topic.*localCheckpoint.*allow"):
        job()
    assert (stored(topics, "one"), stored(topics, "other"), topics.groups.list()) == ([], [], [])


def test_writes_that_share_nothing_by_chance_go_on(spark: SparkSession, topics: Store) -> None:
    """Each with a function of its own; rand(), with its seed; what was computed once."""
    with transaction(spark, topics, transactional_id="etl", group_id="etl") as txn:
        rows = txn.read("in")
        for frame in split(rows, sf.rand()):
            txn.write(frame, topic="one")
        for frame in split(rows.withColumn("r", drawn()).localCheckpoint(), sf.col("r")):
            txn.write(frame, topic="other")
        txn.write(rows.drop("partition").where(drawn() < 2), topic="one")
    assert stored(topics, "one") == sorted([*range(200), *range(200)])
    assert stored(topics, "other") == [*range(200)]


@pytest.mark.more
def test_the_same_frame_twice(spark: SparkSession, topics: Store) -> None:
    """Refused, unless it is said that each write may compute other values, or one was dropped."""
    rows = numbers(spark, 0, 5).withColumn("value", drawn().cast("string"))

    def job() -> None:
        with transaction(spark, topics, transactional_id="etl") as txn:
            txn.write(rows, topic="one")
            txn.write(rows, topic="other")

    with pytest.raises(InvalidOption, match=r"random\(\) need not"):
        job()
    with transaction(spark, topics, transactional_id="etl") as txn:
        txn.write(rows, topic="one")
        txn.write(rows, topic="other", allow_nondeterministic=True)
        txn.discard_writes()
        txn.write(rows, topic="other")
    assert (txn.result.written_records, topics.scan("one").to_arrow().num_rows) == (5, 0)


@pytest.mark.more
def test_a_streams_batch_is_computed_by_each_write(
    spark: SparkSession, topics: Store, tmp_path: Path
) -> None:
    """What the query has drawn is drawn again by the second write of foreach_batch.

    Unless the function keeps it, as the refusal says.
    """
    numbers(spark, 0, 50).write.parquet(str(tmp_path / "files"))

    def halves(txn: SparkTransaction, batch: DataFrame) -> None:
        batch = batch.localCheckpoint() if keeps else batch
        txn.write(batch.where("r < 0.5").drop("r"), topic="one")
        txn.write(batch.where("r >= 0.5").drop("r"), topic="other")

    def query(by: Column, name: str) -> None:
        files = spark.readStream.schema("key string, value string").parquet(f"{tmp_path}/files")
        writer = files.withColumn("r", by).writeStream.foreachBatch(foreach_batch(topics, halves))
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        writer.trigger(availableNow=True).start().awaitTermination()

    keeps = False
    with pytest.raises(PySparkException, match=r"random\(\) need not give the same values"):
        query(drawn(), "by-chance")
    assert (stored(topics, "one"), stored(topics, "other")) == ([], [])
    query(sf.rand(), "by-position")
    assert sorted(stored(topics, "one") + stored(topics, "other")) == [*range(50)]
    keeps = True
    query(drawn(), "kept")
    assert sorted(stored(topics, "one") + stored(topics, "other")) == sorted(2 * [*range(50)])
