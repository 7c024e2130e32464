"""What Spark's own read of a topic's files costs: pages, files and jobs that it leaves out."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from spark_helpers import save

from txnlog import Store
from txnlog.segments.writer import DEFAULT_ROW_GROUP_BYTES
from txnlog.spark import read
from txnlog.spark.batch import native_read
from txnlog.spark.batch.rows_to_records import _ByRowGroup

NUMBERED = pa.schema([("id", pa.int64()), ("name", pa.string())])


def send_numbers(store: Store, start: int, stop: int, partition: int | None = None) -> None:
    """Append rows (id, name) without Spark, at once."""
    ids = range(start, stop)
    rows = pa.table({"id": ids, "name": pa.array(ids).cast(pa.string())})
    with store.producer() as producer:
        producer.send_batch("t", rows, partition=partition)


def explained(frame: DataFrame) -> str:
    """The plan, in full."""
    with redirect_stdout(StringIO()) as plan:
        frame.explain("formatted")
    return plan.getvalue()


def scan_metric(frame: DataFrame, name: str) -> int:
    """What Spark has counted in the scan of a DataFrame's files, which has run."""
    plan: Any = frame._jdf.queryExecution().executedPlan()
    return int(plan.collectLeaves().head().metrics().apply(name).value())


def test_spark_reads_only_what_it_needs(spark: SparkSession, store: Store) -> None:
    """Columns are pruned, filters reach the pages, and those on partitions the files.

    The codec is lz4, whose dictionaries a filter must not look into: parquet-java cannot.
    """
    config = {"compression.type": "lz4"}
    store.create_topic("t", partitions=3, schema=NUMBERED, config=config)
    for number in range(3):
        send_numbers(store, number * 60_000, (number + 1) * 60_000, number)
    few = read(spark, store, "t", native=True).where("id between 130000 and 130010").select("id")
    plan = explained(few)
    assert "ReadSchema: struct<id:bigint>" in plan
    assert "GreaterThanOrEqual(id,130000)" in plan
    assert len(few.collect()) == 11
    assert 11 <= scan_metric(few, "numOutputRows") <= 20_000
    placed = read(spark, store, "t", columns=["id", "_partition", "_offset"], native=True)
    mine = placed.where("_partition = 1").select("_offset")
    assert len(mine.collect()) == 60_000
    assert scan_metric(mine, "numFiles") == 1


@pytest.mark.more
def test_files_of_one_size_are_told_apart_by_name(spark: SparkSession) -> None:
    """Each file has its own place, whichever sizes they share."""
    keys = sorted((size, f"s-{number}") for number, size in enumerate([7, 3, 7, 7, 9, 3, 5, 9, 9]))
    rows = [(*key, number) for number, key in enumerate(keys)]
    files = spark.createDataFrame(rows, "size long, name string, number int")
    found = native_read._search((files["size"], files["name"]), keys, range(len(keys)))
    assert files.where(found == files["number"]).count() == len(keys)


def test_many_files_are_planned_without_a_job(spark: SparkSession, store: Store) -> None:
    """A task for each file takes ten times longer than to ask the disk here."""
    store.create_topic("t", partitions=8, schema=NUMBERED)
    for number in range(5):
        send_numbers(store, number * 40, (number + 1) * 40)
    limit = str(spark.conf.get(native_read._LISTING))
    assert len(store.scan("t").ranges) > int(limit)
    spark.sparkContext.setJobGroup("planning", "")
    try:
        frame = read(spark, store, "t", native=True)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup("planning")
    assert spark.conf.get(native_read._LISTING) == limit
    assert frame.count() == 200


def test_rows_without_a_key_stay_together(spark: SparkSession, store: Store) -> None:
    """A small task writes one file, and the tasks of a write begin with different partitions."""
    store.create_topic("t", partitions=4, schema=NUMBERED)
    rows = spark.range(0, 1000, 1, 3).selectExpr("id", "cast(id as string) as name")
    save(rows, store, "t")
    segments = store.segments("t")
    assert len(segments) == len({segment.partition for segment in segments}) == 3
    found = store.scan("t", columns=["id", "_partition"]).to_arrow()
    for segment in segments:
        ids = found.filter(pc.field("_partition") == segment.partition)["id"].to_pylist()
        assert ids == [*range(ids[0], ids[-1] + 1)]


def test_a_large_task_fills_all_partitions() -> None:
    """In turn, about a row group each time."""
    sticky = _ByRowGroup(3)
    chosen = []
    for _ in range(7):
        chosen += sticky(pa.nulls(5, pa.binary())).tolist()[:1]
        sticky.add(DEFAULT_ROW_GROUP_BYTES // 2)
    assert chosen == [0, 0, 1, 1, 2, 2, 0]
