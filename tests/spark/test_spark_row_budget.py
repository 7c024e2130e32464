"""Batches for Python whose bytes Spark does not add up: what bounds them, and which may not be so.

Reads by Spark itself stand for a user's frame: frames of Python's lists are RDDs of unknown making.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as sf

from tests.spark.spark_helpers import fill
from tests.spark.stream_helpers import reads_streams, stream
from txnlog import Store
from txnlog.spark import transaction
from txnlog.spark.transactions import row_budget
from txnlog.spark.transactions.row_budget import BATCH_BYTES, UNBOUNDED, unmeasured


@pytest.fixture(autouse=True)
def nothing_is_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_budget, "_SMALL_BYTES", 0)
    monkeypatch.setattr(row_budget, "_LEAST_COLUMNS", 1)


SIZES = "rows long, bytes long"


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows and the bytes of each batch, in its place."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [batch.nbytes]})


def of_parquet(spark: SparkSession, folder: Path, rows: dict[str, object] | pa.Table) -> DataFrame:
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    pq.write_table(table, folder / "rows.parquet")
    return spark.read.parquet(str(folder / "rows.parquet")).coalesce(1)


def values_of(store: Store, topic: str) -> list[bytes]:
    column = store.scan(topic, columns=["value"]).to_arrow().column("value")
    return column.to_pylist()  # type: ignore[no-any-return]


def set_property(spark: SparkSession) -> str | None:
    return spark.sparkContext.getLocalProperty(BATCH_BYTES)


def test_fillers_bound_what_spark_does_not_add_up(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of 100 kB: 64 MiB and a row at most, where 700 of them come at once without fillers."""
    frame = of_parquet(spark, tmp_path, {"value": [b"v" * 100_000] * 700, "n": range(700)})
    with unmeasured(frame) as (rows, filler):
        assert filler is not None
        whole = frame.mapInArrow(sizes, SIZES).collect()
        bounded = rows.mapInArrow(sizes, SIZES).collect()
        own = rows.where(rows["value"] != sf.lit(filler).cast("binary")).select("n").collect()
    assert [row.rows for row in whole] == [700]
    assert whole[0].bytes > 64 << 20
    assert max(row.bytes for row in bounded) <= (64 << 20) + 200_000
    assert [row.n for row in own] == [*range(700)]
    assert set_property(spark) is None


@pytest.mark.few(3)
@pytest.mark.parametrize("length", [0, 103, 104, 105, 208, 3_000])
def test_a_row_takes_its_share_of_fillers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """At each length beside a multiple of the share, two texts and the fixed widths counted."""
    monkeypatch.setattr(row_budget, "_MOST_BYTES", 10_000 * 160)
    monkeypatch.setattr(row_budget, "_LEAST_SHARE_BYTES", 0)
    rows = {"a": ["x" * (length // 2), None] * 2_000, "b": [b"y" * (length - length // 2)] * 4_000}
    frame = of_parquet(spark, tmp_path, {**rows, "n": range(4_000)})
    with unmeasured(frame) as (filled, _):
        found = filled.mapInArrow(sizes, SIZES).collect()
    share = 160 - 32 - 8 - 8 - 8
    half = length - length // 2
    taken = [1 + (size // share if half > share // 2 else 0) for size in (length, half)]
    assert sum(row.rows for row in found) == 2_000 * sum(taken)
    assert max(row.bytes for row in found) <= 10_000 * (160 + 8) + length


HOSTILE = ["a.b", "`", "``x", "#", "##", "Ä ö", "select", "$1"]


def test_all_types_arrive_as_they_are(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """Columns of each type, with names that need quotes, between rows that need many fillers."""
    large = "L" * 50_000
    texts = ["", "a", None, large, "ü" * 20_000, large, None, "z"]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    columns: dict[str, pa.Array] = {
        "n": pa.array(range(8), pa.int64()),
        "bool": pa.array([True, None] * 4),
        "byte": pa.array([1, None] * 4, pa.int8()),
        "short": pa.array([2, None] * 4, pa.int16()),
        "int": pa.array([None, 3] * 4, pa.int32()),
        "float": pa.array([0.5, None] * 4, pa.float32()),
        "double": pa.array([None, -0.25] * 4, pa.float64()),
        "date": pa.array([date(1, 1, 1), None] * 4),
        "time": pa.array([noon, None] * 4, pa.timestamp("us", "UTC")),
        "local": pa.array([noon.replace(tzinfo=None), None] * 4, pa.timestamp("us")),
        "decimal": pa.array([Decimal("1.25"), None] * 4, pa.decimal128(38, 2)),
        "bytes": pa.array([None if t is None else t.encode() for t in reversed(texts)]),
        **{name: pa.array(texts) for name in HOSTILE},
    }
    table = pa.table(columns)
    store.topics.create("typed", schema=table.schema)
    frame = of_parquet(spark, tmp_path, table)
    assert not left_alone(frame)
    with transaction(spark, store, transactional_id="etl") as txn:
        txn.write(frame, topic="typed")
    assert store.scan("typed", columns=table.schema.names).to_arrow().equals(table)
    assert txn.result.written_records == 8


class Saves:
    """What is saved, by what property: of the writes of a transaction, as they call Spark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.properties: list[str | None] = []
        self.plans: list[str] = []
        original = DataFrameWriter.save

        def save(writer: DataFrameWriter) -> None:
            frame: Any = writer._df
            self.properties.append(set_property(frame.sparkSession))
            self.plans.append(frame._jdf.queryExecution().analyzed().toString())
            original(writer)

        monkeypatch.setattr(DataFrameWriter, "save", save)


def test_write_merge_and_delete_keys_do_without_the_sum(
    spark: SparkSession, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"n": range(4), "text": ["a", "L" * 100_000, None, "d"], "more": range(4)})
    store.topics.create("typed", schema=rows.schema, key=["n"])
    saves = Saves(monkeypatch)
    frame = of_parquet(spark, tmp_path, rows)
    with transaction(spark, store, transactional_id="etl") as txn:
        txn.write(frame, topic="typed")
        txn.merge(frame, topic="typed")
        txn.delete_keys(frame.where("n = 1"), topic="typed")
    assert saves.properties == [UNBOUNDED] * 3
    assert ["Generate" in plan for plan in saves.plans] == [True, True, False]  # keys have no text
    found = store.scan("typed", latest=True, columns=["n", "text", "more"]).to_arrow()
    assert found.sort_by("n").to_pydict() == rows.filter(pc.field("n") != 1).to_pydict()


def test_keys_and_values_by_a_column_topic(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """The topics of fillers are nothing's: rows of 900 kB between small ones, to two topics."""
    for topic in ("a", "b"):
        store.topics.create(topic)
    values = [bytes([n]) * (900_000 if n % 5 == 3 else 3) for n in range(20)]
    rows = {"topic": ["a", "b"] * 10, "key": [None, "k"] * 10, "value": values}
    frame = of_parquet(spark, tmp_path, rows)
    with transaction(spark, store, transactional_id="etl") as txn:
        txn.write(frame)
    assert values_of(store, "a") == values[::2]
    assert values_of(store, "b") == values[1::2]


def test_a_table_of_fixed_widths_needs_none(spark: SparkSession) -> None:
    frame = spark.range(10).select("id", sf.current_date().alias("d"))
    with unmeasured(frame) as (rows, filler):
        assert (rows, filler) == (frame, None)
        assert set_property(spark) == UNBOUNDED
    assert set_property(spark) is None


def with_udf(frame: DataFrame) -> DataFrame:
    return frame.withColumn("value", sf.udf(lambda value: value, "binary")("value"))


def with_map(frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(lambda batches: batches, frame.schema)


def with_groups(frame: DataFrame) -> DataFrame:
    return frame.groupBy("n").applyInPandas(lambda rows: rows, frame.schema)


def with_table_function(frame: DataFrame) -> DataFrame:
    class Twice:
        def eval(self, value: bytes) -> Iterator[tuple[bytes]]:
            yield (value,)

    rows: Any = sf.udtf(Twice, returnType="twice binary")
    return frame.lateralJoin(rows(sf.col("value").outer())).select("n", "value")


def with_subquery(frame: DataFrame) -> DataFrame:
    most = with_udf(frame).select(sf.max("value"))
    return frame.where(sf.col("value") <= most.scalar())


def with_subquery_of_one_row(frame: DataFrame) -> DataFrame:
    most = with_udf(frame).select(sf.max("value"))
    return frame.crossJoin(frame.sparkSession.range(1).select(most.scalar().alias("most")))


def of_rdd(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame(with_map(frame).rdd, frame.schema)


def with_array(frame: DataFrame) -> DataFrame:
    return frame.withColumn("many", sf.array("value"))


def with_twins(frame: DataFrame) -> DataFrame:
    return frame.select("n", sf.col("value").alias("v"), sf.col("value").alias("V"))


def cached(frame: DataFrame) -> DataFrame:
    return with_udf(frame).cache()


def left_alone(frame: DataFrame) -> bool:
    with unmeasured(frame) as (rows, filler):
        return rows is frame and filler is None and set_property(frame.sparkSession) is None


@pytest.mark.parametrize(
    "change",
    [
        with_udf,
        with_map,
        with_groups,
        with_table_function,
        with_subquery,
        with_subquery_of_one_row,
        of_rdd,
        with_array,
        with_twins,
        cached,
    ],
)
def test_frames_that_are_measured(
    spark: SparkSession, tmp_path: Path, change: Callable[[DataFrame], DataFrame]
) -> None:
    """Functions in Python would get the larger batches, and some columns have no bound."""
    frame = change(of_parquet(spark, tmp_path, {"value": [b"v"] * 3, "n": range(3)}))
    assert left_alone(frame)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (BATCH_BYTES, "1m"),
        (BATCH_BYTES, UNBOUNDED),
        ("spark.sql.parser.quotedRegexColumnNames", "true"),
        ("spark.sql.codegen.wholeStage", "false"),
        ("spark.sql.codegen.maxFields", "1"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "0"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "20000"),
    ],
)
def test_what_the_session_says_holds(spark: SparkSession, name: str, value: str) -> None:
    frame = spark.range(3).select(sf.lit("v").alias("value"))
    spark.conf.set(name, value)
    try:
        assert left_alone(frame)
    finally:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.localCheckpoint(),
        lambda frame: frame.groupBy("value").agg(sf.max("n").alias("n")),
        lambda frame: frame.withColumn("n", sf.explode(sf.array("n", "n"))),
        lambda frame: frame.join(frame.select("n"), "n").orderBy("n"),
        lambda frame: with_udf(frame).localCheckpoint(),
    ],
    ids=["checkpoint", "aggregate", "explode", "join", "checkpoint of a function's"],
)
def test_frames_that_are_not_measured(
    spark: SparkSession, tmp_path: Path, change: Callable[[DataFrame], DataFrame]
) -> None:
    frame = change(of_parquet(spark, tmp_path, {"value": [b"v"] * 3, "n": range(3)}))
    assert not left_alone(frame)


def test_the_property_goes_with_a_failure(spark: SparkSession, store: Store) -> None:
    store.topics.create("out")
    bad = spark.range(3).select(sf.raise_error(sf.lit("no")).cast("string").alias("value"))
    with (
        pytest.raises(Exception, match="no"),
        transaction(spark, store, transactional_id="etl") as txn,
    ):
        txn.write(bad, topic="out")
    assert set_property(spark) is None


@reads_streams
def test_batches_of_streams_are_measured(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """A batch is an RDD, of whose making nothing is known."""
    store.topics.create("in")
    fill(store, "in", 0, 10)
    alone: list[bool] = []
    writer = stream(spark, store, "in").writeStream.foreachBatch(
        lambda batch, _: alone.append(left_alone(batch))
    )
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert alone == [True]


def test_frames_of_little_are_measured(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of all that a frame is made of count: two files of 3 MiB are 6."""
    monkeypatch.setattr(row_budget, "_SMALL_BYTES", 4 << 20)
    frame = of_parquet(spark, tmp_path, {"value": [os.urandom(3 << 20)]})
    assert left_alone(frame)
    assert not left_alone(frame.union(frame))


def test_what_was_repartitioned_stays_so(spark: SparkSession, tmp_path: Path) -> None:
    """Behind fillers adaptive execution would read a key's rows in several tasks."""
    frame = of_parquet(spark, tmp_path, {"key": ["k"], "value": ["v"]})
    assert not left_alone(frame.coalesce(1))
    again = frame.repartition("key").sortWithinPartitions("value").where("key > ''")
    assert left_alone(again)
    again.createOrReplaceTempView("again")
    assert left_alone(spark.table("again").select("value", "key"))
    assert left_alone(frame.repartitionByRange(2, "key"))


def test_frames_of_two_columns_of_one_type_are_measured(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_budget, "_LEAST_COLUMNS", 3)
    frame = spark.range(3).select(sf.lit("k").alias("key"), sf.lit("v").alias("value"))
    assert left_alone(frame)
    assert left_alone(frame.select("value"))
    assert not left_alone(frame.withColumn("key", sf.lit("k").cast("binary")))
    assert not left_alone(frame.withColumn("topic", sf.lit("t")))
