"""Writing: columns, partitions, topics, retries and aborts, through Spark."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.spark_helpers import data_files, fill, load, numbers, placed_files, save, stored
from tests.support.steps import sound_transactions
from txnlog import Store
from txnlog.errors import CommitStateUnknown, StorageError, UnknownTopicOrPartition
from txnlog.log.topic_log import TopicLog
from txnlog.log.uploads import UploadedSegment
from txnlog.spark.batch import rows_to_records
from txnlog.spark.batch.rows_to_records import coalesce, work_bytes
from txnlog.spark.batch.write_plan import WritePlan, plan_write
from txnlog.spark.batch.writer import TxnlogWriter
from txnlog.spark.options.write_options import parse_write
from txnlog.write.partitioner import make_partitioner


def test_records_arrive_whole(spark: SparkSession, store: Store) -> None:
    """Keys, values, nulls, headers, timestamps and explicit partitions are what was given."""
    store.topics.create("t", partitions=3)
    frame = spark.createDataFrame(
        [
            (b"k", "text", 2, dt.datetime(2024, 5, 6, 7, 8, 9, 123_456, dt.UTC), [("h", b"\0")]),
            (None, None, 0, None, None),
        ],
        "key binary, value string, partition int, timestamp timestamp,"
        "headers array<struct<key:string,value:binary>>",
    )
    save(frame, store, "t")
    table = store.scan("t").to_arrow().sort_by("partition").to_pylist()
    assert [row["partition"] for row in table] == [0, 2]
    assert (table[0]["key"], table[0]["value"], table[0]["headers"]) == (None, None, [])
    assert (table[1]["key"], table[1]["value"]) == (b"k", b"text")
    assert table[1]["headers"] == [{"key": "h", "value": b"\0"}]
    # What is finer than a millisecond is cut; the session's time zone, Berlin, changes nothing.
    assert table[1]["timestamp"] == dt.datetime(2024, 5, 6, 7, 8, 9, 123_000, dt.UTC)
    age = dt.datetime.now(dt.UTC) - table[0]["timestamp"]
    assert dt.timedelta(0) <= age < dt.timedelta(minutes=5)


def test_keys_choose_partitions_as_in_kafka(spark: SparkSession, store: Store) -> None:
    """The same partition as a producer would take; one task keeps the order of its rows."""
    store.topics.create("t", partitions=5)
    save(numbers(spark, 0, 500, tasks=1), store, "t")
    partitioner = make_partitioner("murmur2", 5)
    last = dict.fromkeys(range(5), -1)
    for row in store.scan("t", columns=["key", "value", "partition"]).to_arrow().to_pylist():
        assert row["partition"] == partitioner(pa.array([row["key"]], pa.binary()))[0]
        assert int(row["value"]) > last[row["partition"]]
        last[row["partition"]] = int(row["value"])


def test_another_partitioner_can_be_chosen(spark: SparkSession, store: Store) -> None:
    """Option partitioner: keys do not count, and partitions get the same number of rows."""
    store.topics.create("t", partitions=5)
    same = numbers(spark, 0, 100, tasks=1).selectExpr("'k' as key", "value")
    save(same, store, "t", partitioner="round_robin")
    ends = [part.end_offset for part in store.topics.describe("t").partitions]
    assert ends == [20] * 5


def by_length(records: pa.RecordBatch, partitions: int) -> list[int]:
    """A user's own partitioner."""
    values = records.column("value").to_pylist()
    assert {type(value) for value in values} == {bytes}
    return [len(value) % partitions for value in values]


def test_tasks_choose_by_a_function_or_by_a_chance_that_repeats(store: Store) -> None:
    """A function sees rows as records; a task that runs again gives each row the same partition."""
    store.topics.create("t", partitions=3)
    spec, clock = store.logs.topic_spec("t"), store.logs.clock
    rows = pa.record_batch({"value": ["", "1", "22", "333", "4444"]})
    named = rows_to_records.TopicRecords(spec, clock, f"{__name__}:by_length")
    assert named(rows)[1].tolist() == [0, 1, 2, 0, 1]
    function = f"{__name__}:by_length"
    shuffled = rows_to_records.PartitionColumn(
        store.logs.topic_spec, "t", function, seed=1, now_ms=0
    )
    assert shuffled(rows).column("partition").to_pylist() == [0, 1, 2, 0, 1]
    many = pa.record_batch({"value": ["v"] * 1000})
    for name, different in (("random", 3), ("sticky", 1)):
        first, again = (
            rows_to_records.TopicRecords(spec, clock, name)(many)[1].tolist() for _ in range(2)
        )
        assert first == again
        assert len(set(first)) == different


@pytest.mark.parametrize("partitioner", ["murmur2", "sticky", "round_robin", "random"])
def test_small_writes_do_not_all_begin_in_the_same_partition(
    store: Store, partitioner: str
) -> None:
    """Each write has a chance of its own: the batches of a stream have one row of one task each."""
    store.topics.create("t", partitions=4)
    store.topics.create("typed", partitions=4, schema=pa.schema([("n", pa.int64())]))
    clock = store.logs.clock
    row = pa.record_batch({"value": ["v"]})
    spec = store.logs.topic_spec("t")
    begun = [rows_to_records.TopicRecords(spec, clock, partitioner, n)(row)[1] for n in range(40)]
    assert {int(chosen[0]) for chosen in begun} == {0, 1, 2, 3}
    typed, row = store.logs.topic_spec("typed"), pa.record_batch({"n": [1]})
    begun = [rows_to_records.TopicRecords(typed, clock, "murmur2", n)(row)[1] for n in range(4)]
    assert {int(chosen[0]) for chosen in begun} == {0, 1, 2, 3}
    options = parse_write({"path": store.url, "topic": "t"})
    value = StructType([StructField("value", StringType())])
    assert len({plan_write(options, value).seed for _ in range(3)}) == 3


def test_small_batches_are_joined_and_large_ones_passed_on() -> None:
    """Work is done on megabytes at once; no row is lost or moved, no large batch copied."""
    column = pa.array([bytes(1000)] * 1000)
    batches = [pa.record_batch({"n": pa.array([n] * 1000), "value": column}) for n in range(5)]
    large = pa.record_batch({"n": pa.array([9] * 3000), "value": pa.array([bytes(1000)] * 3000)})
    joined = list(coalesce([*batches, large], 2 << 20))
    assert [batch.num_rows for batch in joined] == [3000, 5000]
    assert pa.Table.from_batches(joined).equals(pa.Table.from_batches([*batches, large]))
    assert next(coalesce([large], 2 << 20)) is large
    assert not list(coalesce([], 2 << 20))
    assert [work_bytes(n) >> 20 for n in (0, 32, 48, 64, 128, 10_000)] == [2, 2, 3, 4, 8, 8]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.large_string()])
def test_what_is_joined_or_came_too_large_fits_into_a_column(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's batches may pass Arrow's 2 GiB (here 10,000 bytes), together or by themselves."""
    monkeypatch.setattr(rows_to_records, "MAX_WORK_BYTES", 10_000)
    batches = [
        pa.record_batch({"value": pa.array(["x" * size] * rows).cast(kind)})
        for size, rows in ((10, 3), (900, 10), (900, 30), (20_000, 2), (10, 5))
    ]
    joined = list(coalesce(batches, 500))
    assert pa.Table.from_batches(joined).equals(pa.Table.from_batches(batches))
    assert all(batch.nbytes <= 10_000 or batch.num_rows == 1 for batch in joined)
    assert len(joined) == 7


def test_a_copy_is_equal(spark: SparkSession, store: Store) -> None:
    """The rows of a read can be written as they are; partitions and timestamps stay."""
    for topic in ("a", "b"):
        store.topics.create(topic, partitions=3)
    with store.producer() as producer:
        for number in range(50):
            producer.send("a", b"%d" % number, headers=[("n", b"%d" % number)])
    save(load(spark, store, "a", includeHeaders=True), store, "b")
    columns = ["value", "partition", "timestamp", "headers"]
    first, second = (
        store.scan(topic, columns=columns).to_arrow().to_pylist() for topic in ("a", "b")
    )
    assert first == second


def test_large_arrow_types_are_taken(spark: SparkSession, store: Store) -> None:
    """A session that uses large variable-width types writes the same."""
    store.topics.create("t")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        save(numbers(spark, 0, 100), store, "t")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert stored(store, "t") == list(range(100))


def test_the_topic_column_fans_out_in_one_transaction(spark: SparkSession, store: Store) -> None:
    """Several topics in one write become visible together, by one transaction."""
    for topic in ("even", "odd"):
        store.topics.create(topic, partitions=2)
    parity = sf.when(sf.col("value") % 2 == 0, "even").otherwise("odd").alias("topic")
    save(numbers(spark, 0, 100).select("*", parity), store)
    assert stored(store, "even") == list(range(0, 100, 2))
    assert stored(store, "odd") == list(range(1, 100, 2))
    (transaction,) = sound_transactions(store)
    assert transaction.status == "CompleteCommit"
    assert sorted(transaction.topics) == ["even", "odd"]


def test_one_topic_is_one_append(spark: SparkSession, store: Store) -> None:
    """A plain write of many tasks to many partitions is one entry and no transaction."""
    store.topics.create("t", partitions=8)
    save(numbers(spark, 0, 1_000, tasks=4), store, "t")
    log = Path(store.url, "topics", "t", "log")
    assert len(list(log.glob("*.json"))) == 2  # created, append
    assert [*store.transactions.list()] == []
    assert stored(store, "t") == list(range(1_000))


def test_nothing_to_write_writes_nothing(spark: SparkSession, store: Store) -> None:
    """An empty frame leaves no entry."""
    store.topics.create("t")
    save(numbers(spark, 0, 0), store, "t")
    assert store.topics.describe("t").entries == 1


def test_a_write_with_a_transactional_id(spark: SparkSession, store: Store) -> None:
    """A transactional.id without a read is a transaction of its own, as often as wanted."""
    store.topics.create("t")
    for start in (0, 10):
        save(numbers(spark, start, start + 10), store, "t", transactional_id="etl")
    assert stored(store, "t") == list(range(20))
    (transaction,) = sound_transactions(store)
    assert (transaction.transactional_id, transaction.status) == ("etl", "CompleteCommit")


@pytest.mark.parametrize(
    ("select", "said"),
    [
        (["key"], "column 'value' is missing"),
        (["value", "cast(value as int) as key"], "column 'key' is int"),
        (["cast(value as double) as value"], "column 'value' is double"),
        (["value", "value as colour"], "column 'colour' is not part of a record"),
        (["value", "'x' as partition"], "column 'partition' is string"),
        (["value", "array(1) as headers"], "column 'headers' is array<int>"),
        (["value", "1 as timestamp"], "column 'timestamp' is int"),
        (["value", "5 as partition"], "column 'partition' has 5, but topic 't' has 2"),
        (
            ["value", "array(struct(cast(X'FE' as string) key, X'00' value)) as headers"],
            "column 'headers' has a header in row 0 whose key is not UTF-8: b'\\xfe'",
        ),
    ],
)
def test_wrong_columns_are_named(
    spark: SparkSession, store: Store, select: list[str], said: str
) -> None:
    """The message names the column and the remedy, and nothing is written."""
    store.topics.create("t", partitions=2)
    with pytest.raises(PySparkException) as caught:
        save(numbers(spark, 0, 10).selectExpr(*select), store, "t")
    assert said in str(caught.value)
    assert stored(store, "t") == []
    assert data_files(store) == []


@pytest.mark.more
def test_other_wrong_writes_are_refused(spark: SparkSession, store: Store) -> None:
    """No topic, a null topic, an unknown topic, overwrite: each with its remedy."""
    store.topics.create("t")
    frame = numbers(spark, 0, 10)
    with pytest.raises(PySparkException, match="Give the option topic"):
        save(frame, store)
    with pytest.raises(PySparkException, match="'nowhere' does not exist"):
        save(frame, store, "nowhere")
    null = sf.lit(None).cast("string").alias("topic")
    with pytest.raises(PySparkException, match="column 'topic' is null in"):
        save(frame.select("*", null), store)
    with pytest.raises(PySparkException, match="column 'topic' has a name that is not UTF-8"):
        save(frame.selectExpr("*", "cast(X'FF' as string) as topic"), store)
    with pytest.raises(PySparkException, match="a log only grows"):
        frame.write.format("txnlog").options(path=store.url, topic="t").mode("overwrite").save()
    assert stored(store, "t") == []


# -- retries, stragglers, failures ---------------------------------------------------------------


def _failing_once(frame: DataFrame, marker: Path) -> DataFrame:
    """The same rows; the first attempt that gets to the last of them fails."""

    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if b"99" in batch.column("key").to_pylist() and not marker.exists():
                marker.touch()
                raise RuntimeError("this attempt was made to fail")

    binary = frame.select(sf.col("key").cast("binary"), sf.col("value").cast("binary"))
    return binary.mapInArrow(attempt, binary.schema)


@pytest.mark.condition(54)
def test_a_retried_task_writes_each_record_once(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """A task fails after it has handed its rows over and is run again: no doubles."""
    store.topics.create("t", partitions=2)
    marker = tmp_path / "failed"
    save(_failing_once(numbers(spark, 0, 100), marker), store, "t")
    assert marker.exists()
    assert stored(store, "t") == list(range(100))
    assert {*placed_files(store)} <= {*data_files(store)}


def test_a_failed_job_commits_nothing(spark: SparkSession, store: Store) -> None:
    """A task that fails for good aborts the write: no record and no entry.

    Files that no entry names may stay: Spark ends the input of a writer whose task fails as if it
    were complete, and it does not wait for the tasks of a job that it has given up.
    """
    store.topics.create("t")

    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if b"99" in batch.column("key").to_pylist():
                raise RuntimeError("always")

    frame = numbers(spark, 0, 100).select(
        sf.col("key").cast("binary"), sf.col("value").cast("binary")
    )
    with pytest.raises(PySparkException, match="always"):
        save(frame.mapInArrow(attempt, frame.schema), store, "t")
    assert store.topics.describe("t").entries == 1
    assert stored(store, "t") == []


@pytest.mark.condition(54)
def test_a_straggler_that_uploads_late_is_not_seen(store: Store) -> None:
    """An attempt that lost, and ends after the commit, changes nothing."""
    store.topics.create("t")
    writer = _writer(store, "t")
    batch = pa.record_batch({"value": [b"1", b"2"]})
    message = writer.write(iter([batch]))
    finish_late = _paused_write(writer.write, batch)
    writer.commit([message])
    finish_late()
    assert stored(store, "t") == [1, 2]
    assert len(data_files(store)) == 2
    assert len(placed_files(store)) == 1


def _paused_write(
    write: Callable[[Iterator[pa.RecordBatch]], object], batch: pa.RecordBatch
) -> Callable[[], None]:
    """A write that has taken its rows and waits; calling the result lets it end."""
    taken, released = threading.Event(), threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch
        taken.set()
        released.wait(60)

    thread = threading.Thread(target=lambda: write(rows()))
    thread.start()
    assert taken.wait(60)

    def finish() -> None:
        released.set()
        thread.join()

    return finish


def test_abort_deletes_only_what_cannot_be_placed(store: Store) -> None:
    """Hazard 2: a missing message proves that nothing was placed; else files stay."""
    store.topics.create("t")
    writer = _writer(store, "t")
    batch = pa.record_batch({"value": [b"1"]})
    first, second = writer.write(iter([batch])), writer.write(iter([batch]))
    writer.abort([first, None])
    assert len(data_files(store)) == 1
    writer.commit([second])
    writer.abort([second])
    assert stored(store, "t") == [1]


def test_a_commit_that_certainly_failed_deletes_its_files(store: Store) -> None:
    """The topic is deleted and recreated while a job runs: nothing lands in the new one."""
    store.topics.create("t")
    writer = _writer(store, "t")
    message = writer.write(iter([pa.record_batch({"value": [b"1"]})]))
    store.topics.delete("t")
    store.topics.create("t")
    with pytest.raises(UnknownTopicOrPartition, match="recreated"):
        writer.commit([message])
    writer.abort([message])
    assert stored(store, "t") == []
    assert data_files(store) == []


def test_an_unknown_outcome_deletes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazards 1, 2: the append lands, its response is lost: no file may be deleted."""
    store.topics.create("t")
    writer = _writer(store, "t")
    message = writer.write(iter([pa.record_batch({"value": [b"1"]})]))
    place = TopicLog.place

    def place_and_fail(log: TopicLog, segments: Sequence[UploadedSegment]) -> None:
        place(log, segments)
        raise StorageError("the response was lost")

    monkeypatch.setattr(TopicLog, "place", place_and_fail)
    with pytest.raises(CommitStateUnknown, match="may or may not have happened"):
        writer.commit([message])
    writer.abort([message])
    assert stored(store, "t") == [1]


def _writer(store: Store, topic: str) -> TxnlogWriter:
    """A writer as Spark would make it, in this process."""
    options = parse_write({"path": store.url, "topic": topic})
    plan = WritePlan(store, options, ("value",), ("value",), store.logs.topic_spec(topic))
    return TxnlogWriter(plan)


def test_appends_of_others_in_between_are_kept(store: Store) -> None:
    """A write places behind whatever was appended since it began."""
    store.topics.create("t")
    writer = _writer(store, "t")
    message = writer.write(iter([pa.record_batch({"value": [b"10"]})]))
    fill(store, "t", 0, 10)
    writer.commit([message])
    assert stored(store, "t") == list(range(11))
    assert store.topics.segments("t")[-1].base_offset == 10
