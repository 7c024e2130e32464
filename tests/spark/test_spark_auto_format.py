"""Topics that hold Parquet files and batches: Spark writes both, and reads both as one topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.spark_helpers import fill, load, numbers, rows, save
from tests.spark.stream_helpers import reads_streams, run, sink, stream
from txnlog import Store
from txnlog.segments.writer import PARQUET_FROM_BYTES
from txnlog.spark import maintain, read, transaction

COLUMNS = ["key", "value", "partition", "offset", "timestamp", "headers"]
LARGE = 5 * PARQUET_FROM_BYTES // 2
"""The bytes of the values of a write whose two partitions get enough."""


def large(spark: SparkSession, start: int, keys: int = 1 << 30) -> DataFrame:
    """Rows of one task, with headers, nulls and keys that come again."""
    ids = spark.range(start, start + LARGE // 1000, 1, 1)
    header = "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary)))"
    return ids.selectExpr(
        f"cast(if(id % 97 = 0, null, id % {keys}) as string) as key",
        "if(id % 89 = 0, null, repeat(sha2(cast(id as string), 512), 8)) as value",
        f"if(id % 3 = 0, null, {header}) as headers",
    )


def kinds(store: Store, topic: str = "t") -> list[bool]:
    """Whether each of a topic's segments is a Parquet file."""
    return [segment.paths.is_parquet for segment in store.topics.segments(topic)]


def agree(spark: SparkSession, store: Store, topic: str = "t", **options: object) -> int:
    """That Spark itself and the data source read the same; returns how many rows there are."""
    more = {"starting_offsets": options.get("starting"), "ending_offsets": options.get("ending")}
    frames = [
        read(spark, store, topic, columns=COLUMNS, native=native, **more)  # type: ignore[arg-type]
        for native in (True, False)
    ]
    found = [
        sorted((tuple(row) for row in frame.collect()), key=lambda row: row[2:4])
        for frame in frames
    ]
    assert found[0] == found[1]
    return len(found[0])


def write_and_fail(spark: SparkSession, store: Store) -> None:
    """A transaction that uploads Parquet files, and is aborted."""
    with transaction(spark, store.url, transactional_id="b", group_id="g") as txn:
        txn.write(large(spark, 20_000), topic="t")
        raise ZeroDivisionError


@pytest.mark.more
def test_every_write_chooses_by_its_size(spark: SparkSession, store: Store) -> None:
    """A batch write, a small one, a transaction, and one that is aborted; then it is merged."""
    store.topics.create("t", partitions=2, config={"record.format": "auto"})
    save(large(spark, 0), store, "t")
    assert kinds(store) == [True, True]
    save(numbers(spark, 0, 40, tasks=1), store, "t")
    assert kinds(store) == [True, False] * 2
    with transaction(spark, store.url, transactional_id="a", group_id="g") as txn:
        txn.write(large(spark, 10_000), topic="t")
        txn.write(numbers(spark, 40, 60, tasks=1), topic="t")
    with pytest.raises(ZeroDivisionError):
        write_and_fail(spark, store)
    fill(store, "t", 60, 80)
    count = 2 * (LARGE // 1000) + 80
    assert agree(spark, store) == count
    cut = {"t": {0: 100, 1: 700}}
    ends = {"t": {p: end - 5 for p, end in store.snapshot(["t"]).end_offsets("t").items()}}
    assert agree(spark, store, starting=cut, ending=ends) == count - 810
    text = "cast(key as string) like '%7' and partition = 1"
    kept = [
        read(spark, store, "t", columns=COLUMNS, native=native).where(text).count()
        for native in (True, False)
    ]
    assert kept[0] == kept[1] > 0
    for number in range(80, 90):
        fill(store, "t", number, number + 1)
    maintain(spark, store.url)
    assert kinds(store) == [True, True]
    assert agree(spark, store) == count + 10


@pytest.mark.more
@reads_streams
def test_a_stream_from_one_into_another(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """In micro-batches that are limited, and begin and end within Parquet files."""
    for topic in ("in", "out"):
        config = {"record.format": "auto"}
        store.topics.create(topic, partitions=2, config=config)
    save(large(spark, 0), store, "in")
    fill(store, "in", 0, 50)
    save(large(spark, 10_000), store, "in")
    source = stream(spark, store, "in", maxOffsetsPerTrigger=2000, includeHeaders=True)
    run(sink(source.select("key", "value", "headers"), store, "out"))
    fill(store, "in", 50, 60)
    run(sink(source.select("key", "value", "headers"), store, "out"))
    assert {*kinds(store, "out")} == {True, False}
    count = 2 * (LARGE // 1000) + 60
    assert agree(spark, store, "in") == agree(spark, store, "out") == count
    texts = [
        rows(load(spark, store, topic).selectExpr("hash(key, value) as h"), ["h"])
        for topic in ("in", "out")
    ]
    assert texts[0] == texts[1]


@pytest.mark.more
def test_a_compacted_topic(spark: SparkSession, store: Store) -> None:
    """Of each key the newest, whatever file it lies in, with gaps between offsets."""
    config = {"record.format": "auto", "cleanup.policy": "compact"}
    store.topics.create("t", partitions=2, config=config)
    for start in (0, 5_000):
        save(large(spark, start, keys=500).where("key is not null"), store, "t")
    fill(store, "t", 3, 30)
    before = rows(read(spark, store, "t", columns=["key", "value"], latest=True), ["key", "value"])
    maintain(spark, store.url)
    assert {*kinds(store)} == {True}
    fill(store, "t", 480, 510)
    agree(spark, store)
    after = read(spark, store, "t", columns=["key", "value"], latest=True)
    written = [str(number).encode() for number in range(480, 510)]
    kept = [row for row in before if bytes(row[0]) not in written]
    assert rows(after.where(~sf.col("key").isin(written)), ["key", "value"]) == kept
