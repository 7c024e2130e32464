"""What Spark's own read of a topic's files costs: pages, files and jobs that it leaves out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.spark_helpers import explained, save
from txnlog import Store
from txnlog.segments.writer import DEFAULT_ROW_GROUP_BYTES
from txnlog.spark import read, transaction
from txnlog.spark.batch import native_read
from txnlog.spark.batch.rows_to_records import _ByRowGroup

NUMBERED = pa.schema([("id", pa.int64()), ("name", pa.string())])


def send_numbers(store: Store, start: int, stop: int, partition: int | None = None) -> None:
    """Append rows (id, name) without Spark, at once."""
    ids = range(start, stop)
    rows = pa.table({"id": ids, "name": pa.array(ids).cast(pa.string())})
    with store.producer() as producer:
        producer.send_batch("t", rows, partition=partition)


def scan_metric(frame: DataFrame, name: str) -> int:
    """What Spark has counted in the scan of a DataFrame's files, which has run."""
    plan: Any = frame._jdf.queryExecution().executedPlan()
    return int(plan.collectLeaves().head().metrics().apply(name).value())


def test_spark_reads_only_what_it_needs(spark: SparkSession, store: Store) -> None:
    """Columns are pruned, filters reach the pages, and those on partitions the files.

    The codec is lz4, whose dictionaries a filter must not look into: parquet-java cannot.
    """
    config = {"compression.type": "lz4"}
    store.topics.create("t", partitions=3, schema=NUMBERED, config=config)
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


def test_a_key_is_looked_for_in_the_pages_that_may_have_it(
    spark: SparkSession, store: Store
) -> None:
    """Keys that rise with time, as numbers of orders do: all others' pages are passed over."""
    store.topics.create("t", partitions=1)
    keys = pa.array([b"k%06d" % number for number in range(60_000)])
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"key": keys, "value": keys}))
    records = read(spark, store, "t", native=True)
    mine = records.where("key = CAST('k000007' AS BINARY)").select("value")
    assert [bytes(row.value) for row in mine.collect()] == [b"k000007"]
    assert 1 <= scan_metric(mine, "numOutputRows") <= 20_000


def test_a_blocks_note_is_left_before_any_row(spark: SparkSession, store: Store) -> None:
    """Its task comes before those of the files, and its columns say which block they are of."""
    store.topics.create("t", partitions=2, schema=NUMBERED)
    store.topics.create("out")
    send_numbers(store, 0, 10)
    with transaction(spark, store, transactional_id="etl", group_id="g") as txn:
        rows = txn.read("t", columns=["id", "name"])
        txn.write(rows.selectExpr("CAST(id AS STRING) AS value"), topic="out")
    plan: Any = rows._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    assert [leaves.apply(n).nodeName() for n in range(leaves.size())] == ["Range", "Scan parquet "]
    assert all(field.metadata for field in rows.schema)  # of the union's first frame
    assert store.scan("out").to_arrow().num_rows == 10


PLACES = ["id", "_partition", "_offset"]


def placed(store: Store, ids: str = "id") -> list[tuple[int, ...]]:
    """The rows of the topic with their places, read without Spark."""
    found = store.scan("t", columns=[ids, *PLACES[1:]]).to_arrow().to_pydict()
    return sorted(zip(*found.values(), strict=True))


@pytest.mark.more
def test_files_of_one_size_are_told_apart(spark: SparkSession, store: Store) -> None:
    """Each file has its own place, whichever sizes they share."""
    store.topics.create("t", partitions=2, schema=NUMBERED)
    for start, partition in ((10, 0), (20, 1), (30, 0), (100, 1)):
        send_numbers(store, start, start + 10, partition)
    sizes = [segment.size_bytes for segment in store.topics.segments("t")]
    assert 1 < len({*sizes}) < len(sizes)
    frame = read(spark, store, "t", columns=PLACES, native=True)
    assert sorted(map(tuple, frame.collect())) == placed(store)


@pytest.mark.more
def test_columns_that_are_called_as_those_of_the_plan(spark: SparkSession, store: Store) -> None:
    """What tells a row's place is none of the topic's columns."""
    names = ["_metadata", "__metadata", "_base", "_file", "_First", "_stop", "a`b.c"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    store.topics.create("t", partitions=2, schema=schema)
    with store.producer() as producer:
        for partition in (0, 1, 1):
            rows = pa.table([range(partition, 10)] * len(names), schema=schema)
            producer.send_batch("t", rows, partition=partition)
    frame = read(spark, store, "t", columns=[*names, "_partition", "_offset"], native=True)
    found = frame.toDF(*(f"c{number}" for number in range(len(names))), "_partition", "_offset")
    for number, name in enumerate(names):
        rows = found.select(f"c{number}", "_partition", "_offset").collect()
        assert sorted(map(tuple, rows)) == placed(store, name)


@pytest.mark.parametrize(("most", "scans"), [(250_000, 1), (8, 2)])
def test_few_whole_files_share_a_relation_with_cut_ones(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch, most: int, scans: int
) -> None:
    """A second one costs more than a look at each of their rows' numbers; many are only counted."""
    monkeypatch.setattr(native_read, "MOST_TO_FILTER", most)
    store.topics.create("t", schema=NUMBERED)
    for start in (0, 10, 20):
        send_numbers(store, start, start + 10)
    starts, stops = {"t": {0: 3}}, {"t": {0: 27}}
    frame = read(spark, store, "t", starting_offsets=starts, ending_offsets=stops, native=True)
    assert explained(frame).count("Scan parquet") == 2 * scans  # in the tree, and its details
    assert sorted(row["id"] for row in frame.collect()) == [*range(3, 27)]
    assert frame.count() == 24


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that this process has sent to the JVM."""
    found: list[str] = []
    send = JavaClient.send_command

    def sent(self: Any, command: str, *args: Any, **more: Any) -> Any:
        # Spark's own collector sends these at any time.
        if not command.startswith("m\nd\n"):
            found.append(command)
        return send(self, command, *args, **more)

    monkeypatch.setattr(JavaClient, "send_command", sent)
    return found


def test_a_frame_takes_few_calls_to_the_jvm(
    spark: SparkSession, store: Store, calls: list[str]
) -> None:
    """As many for many files as for few: hundreds of them take longer than all else of a frame."""
    store.topics.create("t", partitions=4, config={"record.format": "parquet"})
    taken = []
    for number in range(1, 17):
        with store.producer() as producer:
            for partition in range(4):
                producer.send("t", b"%d" % number, partition=partition)
        if number in (1, 8, 16):
            starts = {"t": dict.fromkeys(range(4), number // 2)}
            read(spark, store, "t", starting_offsets=starts, native=True)
            calls.clear()
            read(spark, store, "t", starting_offsets=starts, native=True)
            taken.append(len(calls))
    few, more, many = taken
    assert few == more == many <= 90


def test_a_frame_of_a_block_takes_few_calls_to_the_jvm(
    spark: SparkSession, store: Store, calls: list[str]
) -> None:
    """Each column tells which block it was read in, without a call for each."""
    names = [f"c{number}" for number in range(30)]
    taken = []
    for topic, some in (("few", names[:2]), ("many", names)):
        schema = pa.schema([(name, pa.int64()) for name in some])
        store.topics.create(topic, schema=schema)
        with store.producer() as producer:
            producer.send_batch(topic, pa.table([[1, 2]] * len(some), schema=schema))
        for _ in range(2):
            with transaction(spark, store, transactional_id="t", group_id="g") as txn:
                calls.clear()
                frame = txn.read(topic, starting_offsets="earliest", native=True)
                taken.append(len(calls))
                assert all(field.metadata for field in frame.schema)
                assert frame.count() == 2
    assert taken[1] == taken[3] <= 120


def test_many_files_are_planned_without_a_job(spark: SparkSession, store: Store) -> None:
    """Spark lists nothing: what the files are is known from the log."""
    store.topics.create("t", partitions=8, schema=NUMBERED)
    for number in range(5):
        send_numbers(store, number * 40, (number + 1) * 40)
    limit = spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold")
    assert len(store.scan("t").ranges) > int(str(limit))
    spark.sparkContext.setJobGroup("planning", "")
    try:
        frame = read(spark, store, "t", native=True)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup("planning")
    assert frame.count() == 200


def test_a_refreshed_frame_is_never_empty(spark: SparkSession, store: Store) -> None:
    """Its files lie in no folder of that name: a listing of it finds nothing."""
    store.topics.create("t", partitions=2, schema=NUMBERED)
    send_numbers(store, 0, 5, 0)
    send_numbers(store, 5, 10, 1)
    frame = read(spark, store, "t", native=True)
    frame.createOrReplaceTempView("refreshed")
    assert spark.table("refreshed").count() == 10
    spark.sql("REFRESH TABLE refreshed")
    for again in (spark.table("refreshed"), frame.where("id >= 0")):
        with pytest.raises((PySparkException, Py4JJavaError), match="json is not a Parquet file"):
            again.collect()
    assert read(spark, store, "t", native=True).count() == 10


@pytest.mark.parametrize("ansi", [True, False])
def test_a_refreshed_frame_is_never_empty_by_its_places(
    spark: SparkSession, store: Store, ansi: bool
) -> None:
    """Spark leaves out files by what is the same in all of one, before it opens any."""
    store.topics.create("t", partitions=3, schema=NUMBERED)
    for partition in range(3):
        send_numbers(store, 0, 5, partition)
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        frame = read(spark, store, "t", columns=["id", "_partition"], native=True)
        chosen = frame.where("_partition = 1")
        assert chosen.count() == 5
        frame.createOrReplaceTempView("placed")
        spark.sql("REFRESH TABLE placed")
        for again in (chosen, spark.table("placed").where("_partition IN (0, 1)")):
            with pytest.raises((PySparkException, Py4JJavaError), match="read the topic again"):
                again.collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


def test_spark_is_told_how_much_it_is(spark: SparkSession, store: Store) -> None:
    """By the lengths of files, which bring them into order, no topic would be broadcast."""
    store.topics.create("t", partitions=4, schema=NUMBERED)
    for start in range(0, 80, 10):
        send_numbers(store, start, start + 10, start % 4)
    frame = read(spark, store, "t", columns="id", native=True)
    size = int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    stored = sum(segment.size_bytes for segment in store.topics.segments("t"))
    assert 0.9 * stored <= size <= stored


def test_rows_without_a_key_stay_together(spark: SparkSession, store: Store) -> None:
    """A small task writes one file, and the tasks of a write begin with different partitions."""
    store.topics.create("t", partitions=4, schema=NUMBERED)
    rows = spark.range(0, 1000, 1, 3).selectExpr("id", "cast(id as string) as name")
    save(rows, store, "t")
    segments = store.topics.segments("t")
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
