"""Shuffling by partition before a write: few segments, every row where it belongs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.spark_helpers import numbers, save, stored
from txnlog import Store
from txnlog.errors import InvalidOption, InvalidRecord, UnknownTopicOrPartition
from txnlog.names import topic_log
from txnlog.spark import shuffle_by_partition
from txnlog.spark.batch.typed_rows import TypedRows


def _where(store: Store, topic: str) -> dict[int, int]:
    """The partition of each number in a topic."""
    table = store.scan(topic, columns=["value", "partition"]).to_arrow()
    values = [int(value) for value in table.column("value").to_pylist()]
    return dict(zip(values, table.column("partition").to_pylist(), strict=True))


def in_another_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a task as a shuffle may fetch them: in an order, and batches, of each attempt."""
    rows = pa.Table.from_batches(list(batches))
    order = random.sample(range(rows.num_rows), rows.num_rows)
    yield from rows.take(order).to_batches(max_chunksize=random.randint(1, rows.num_rows))


def disturbed(frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(in_another_order, frame.schema)


def by_millisecond(records: pa.RecordBatch, partitions: int) -> list[int]:
    """A user's partitioner that looks at the time."""
    return [
        int(at.timestamp() * 1000) % partitions for at in records.column("timestamp").to_pylist()
    ]


TYPES = {"key": "string", "partition": "int"}
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "by-turns": ("murmur2", {"key": "null"}),
    "partly-keyed": ("murmur2", {"key": "if(value % 3 = 0, value, null)"}),
    "crc32": ("crc32", {"key": "if(value % 2 = 0, '', value)"}),
    "sticky": ("sticky", {"key": "null"}),
    "random": ("random", {}),
    "round-robin": ("round_robin", {}),
    "explicit": ("murmur2", {"key": "null", "partition": "if(value % 2 = 0, 1, null)"}),
    "function": (f"{__name__}:by_millisecond", {}),
}


@pytest.mark.condition(54)
@pytest.mark.parametrize(
    "way",
    [
        name if name in ("by-turns", "function") else pytest.param(name, marks=pytest.mark.more)
        for name in WAYS
    ],
)
def test_a_task_that_runs_again_sends_each_row_to_the_same_partition(
    spark: SparkSession, store: Store, way: str
) -> None:
    """Whatever the order of its rows, and the time; other partitions are added meanwhile."""
    store.topics.create("t", partitions=7)
    partitioner, columns = WAYS[way]
    rows = numbers(spark, 0, 300, tasks=3)
    for name, text in columns.items():
        rows = rows.withColumn(name, sf.expr(f"cast({text} as {TYPES[name]})"))
    shuffled = shuffle_by_partition(disturbed(rows), store, "t", partitioner=partitioner)
    assert "content" not in shuffled.columns
    runs = []
    for _ in range(2):
        again = shuffled.select("value", "partition")  # a plan of its own, and its own shuffle
        runs.append({row["value"]: row["partition"] for row in again.collect()})
        store.topics.alter("t", partitions=11 + len(runs))
    assert runs[0] == runs[1]
    assert len(runs[0]) == 300


def test_typed_rows_without_a_key_go_by_what_is_exact(spark: SparkSession, store: Store) -> None:
    """A sum of floating-point numbers is another one in another order: it does not count."""
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("content", pa.list_(pa.string()))])
    store.topics.create("t", partitions=5, schema=schema)
    rows = spark.range(0, 300, 1, 2).selectExpr(
        "id AS n", "rand(1) AS x", "array(string(id)) AS content"
    )
    first = shuffle_by_partition(disturbed(rows), store, "t")
    assert first.columns == ["n", "x", "content", "_partition"]
    runs = [{row["n"]: row["_partition"] for row in first.select("*").collect()} for _ in range(2)]
    assert runs[0] == runs[1]
    counts = [list(runs[0].values()).count(partition) for partition in range(5)]
    assert min(counts) > 30, "rows are spread"


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param(pa.int32(), pa.array([1 << 40]), id="too-large"),
        pytest.param(pa.int32(), pa.array([None], pa.int32()), id="null"),
        pytest.param(pa.string(), pa.array([b"\xff"]).cast(pa.string(), False), id="no-text"),
        pytest.param(pa.timestamp("s", "UTC"), pa.array([1 << 62]), id="no-time"),
    ],
)
def test_a_wrong_key_is_refused_as_by_a_write(
    store: Store, kind: pa.DataType, key: pa.Array
) -> None:
    store.topics.create("t", schema=pa.schema([("id", kind)]), key=["id"])
    typed = TypedRows(store.logs.topic_spec("t"))
    rows = pa.record_batch({"id": key})
    with pytest.raises(InvalidRecord) as by_write:
        typed(rows, 0)
    with pytest.raises(InvalidRecord) as by_shuffle:
        typed.keys(rows)
    assert str(by_shuffle.value) == str(by_write.value)


@pytest.mark.more
def test_keyless_rows_of_two_shuffles_begin_elsewhere(spark: SparkSession, store: Store) -> None:
    """Many shuffles of one row each do not all fill one partition; nor do equal rows of tasks."""
    store.topics.create("t", partitions=4)
    same = spark.range(0, 32, 1, 32).selectExpr("'v' AS value")
    spread = {row["partition"] for row in shuffle_by_partition(same, store, "t").collect()}
    assert spread == {0, 1, 2, 3}
    one = spark.range(1).selectExpr("'v' AS value")
    begun = {shuffle_by_partition(one, store, "t").collect()[0]["partition"] for _ in range(12)}
    assert len(begun) > 1


@pytest.mark.more
def test_a_partition_comes_from_one_task(spark: SparkSession, store: Store) -> None:
    """One segment for each partition instead of one for each task and partition."""
    for topic in ("plain", "shuffled"):
        store.topics.create(topic, partitions=4)
    rows = numbers(spark, 0, 400, tasks=6)
    save(rows, store, "plain")
    save(shuffle_by_partition(rows, store, "shuffled"), store, "shuffled")
    assert len(store.topics.segments("plain")) == 24
    assert len(store.topics.segments("shuffled")) == 4
    assert stored(store, "shuffled") == list(range(400))
    assert _where(store, "shuffled") == _where(store, "plain")


def test_topics_by_column_and_explicit_partitions(spark: SparkSession, store: Store) -> None:
    """Each topic has its own partitions; those that rows name already are obeyed."""
    store.topics.create("few", partitions=2)
    store.topics.create("many", partitions=9)
    rows = numbers(spark, 0, 200, tasks=5).withColumns(
        {
            "topic": sf.when(sf.col("value") % 2 == 0, "few").otherwise("many"),
            "partition": sf.when(sf.col("value") < 100, 1),
        }
    )
    shuffled = shuffle_by_partition(rows, store.url, tasks=3)
    assert shuffled.columns[-1] == "partition"
    save(shuffled, store)
    few, many = _where(store, "few"), _where(store, "many")
    assert sorted(few) == list(range(0, 200, 2))
    assert sorted(many) == list(range(1, 200, 2))
    assert {few[n] for n in range(0, 100, 2)} == {many[n] for n in range(1, 100, 2)} == {1}
    assert len(store.topics.segments("few")) == 2
    assert len(store.topics.segments("many")) == 9


def test_a_damaged_topic_matters_to_its_own_rows(spark: SparkSession, store: Store) -> None:
    """Others are shuffled whatever else lies in the store."""
    for name in ("sound", "damaged"):
        store.topics.create(name, partitions=2)
    (created,) = (Path(store.url) / topic_log("damaged")).iterdir()
    created.write_text("{")
    rows = numbers(spark, 0, 20, tasks=2).withColumn("topic", sf.lit("sound"))
    save(shuffle_by_partition(rows, store.url, tasks=2), store)
    assert stored(store, "sound") == list(range(20))
    wrong = shuffle_by_partition(rows.withColumn("topic", sf.lit("damaged")), store.url)
    with pytest.raises(Exception, match=r"CorruptEntry.*damaged"):
        wrong.collect()


def test_what_cannot_be_written_is_refused_before_the_shuffle(
    spark: SparkSession, store: Store
) -> None:
    """The checks of a write, where the function is called."""
    rows = numbers(spark, 0, 1)
    with pytest.raises(UnknownTopicOrPartition):
        shuffle_by_partition(rows, store, "nowhere")
    with pytest.raises(InvalidOption, match=r"no topic to write to\. Give the option topic"):
        shuffle_by_partition(rows, store)
    store.topics.create("t")
    with pytest.raises(InvalidRecord, match="'colour' is not part of a record"):
        shuffle_by_partition(rows.withColumn("colour", sf.lit("red")), store, "t")
    with pytest.raises(InvalidOption, match="tasks must be"):
        shuffle_by_partition(rows, store, "t", tasks=0)
    with pytest.raises(InvalidOption, match="not one of murmur2"):
        shuffle_by_partition(rows, store, "t", partitioner="x")
    drawn = sf.udf(random.random, "double").asNondeterministic()
    by_chance = rows.withColumn("value", drawn().cast("string"))
    with pytest.raises(InvalidOption, match=r"random\(\) may give other values .*localCheckpoint"):
        shuffle_by_partition(by_chance, store, "t")
    assert shuffle_by_partition(by_chance, store, "t", allow_nondeterministic=True).count() == 1
    assert shuffle_by_partition(by_chance.localCheckpoint(), store, "t").count() == 1
