"""Reading: rows, pins, ranges, isolation and groups, through Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.spark_helpers import fill, load, numbers, rows, save, stored, values
from txnlog import Store, TopicPartition
from txnlog.errors import InvalidOption
from txnlog.spark import read

KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int>"
)


def test_rows_are_those_of_the_kafka_source(spark: SparkSession, store: Store) -> None:
    """Schema, nulls, timestamps and headers as Spark's Kafka source gives them."""
    store.topics.create("t", partitions=2)
    with store.producer() as producer:
        producer.send("t", b"v0", b"k0", partition=0, timestamp_ms=1_500)
        producer.send(
            "t", None, None, partition=1, timestamp_ms=0, headers=[("h", b"x"), ("i", None)]
        )
    frame = load(spark, store, "t", includeHeaders=True)
    assert frame.drop("headers").schema.simpleString() == KAFKA_SCHEMA
    assert all(field.nullable for field in frame.schema)
    first, second = sorted(frame.collect(), key=lambda row: row["partition"])
    assert (bytes(first["key"]), bytes(first["value"]), first["topic"]) == (b"k0", b"v0", "t")
    assert (first["partition"], first["offset"], first["timestampType"]) == (0, 0, 0)
    assert first["timestamp"].astimezone(dt.UTC) == dt.datetime(
        1970, 1, 1, 0, 0, 1, 500_000, dt.UTC
    )
    assert first["headers"] == []
    assert (second["key"], second["value"]) == (None, None)
    headers = [
        (h["key"], None if h["value"] is None else bytes(h["value"])) for h in second["headers"]
    ]
    assert headers == [("h", b"x"), ("i", None)]


def test_columns_narrow_the_schema(spark: SparkSession, store: Store) -> None:
    """Only the columns asked for, in that order."""
    store.topics.create("t")
    fill(store, "t", 0, 3)
    frame = load(spark, store, "t", columns="offset,value")
    assert frame.columns == ["offset", "value"]
    assert [(row[0], bytes(row[1])) for row in frame.collect()] == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_a_loaded_frame_is_pinned(spark: SparkSession, store: Store) -> None:
    """An append between load and the first action, or between two actions, is not seen."""
    store.topics.create("t", partitions=2)
    fill(store, "t", 0, 10)
    frame = load(spark, store, "t")
    fill(store, "t", 10, 20)
    assert values(frame) == list(range(10))
    fill(store, "t", 20, 30)
    assert values(frame.where("offset >= 0")) == list(range(10))
    assert frame.count() == 10
    assert values(load(spark, store, "t")) == list(range(30))


def test_a_job_of_kafkas_connector_keeps_its_options(spark: SparkSession, store: Store) -> None:
    """A stream's rate has no effect in a batch, which is pinned when it is loaded as any other."""
    store.topics.create("t")
    fill(store, "t", 0, 10)
    client = {"kafka_bootstrap_servers": "b:9", "kafka_security_protocol": "SSL"}
    frame = load(spark, store, "t", maxOffsetsPerTrigger=1, ignoreKafkaClientOptions=True, **client)
    fill(store, "t", 10, 20)
    assert values(frame) == list(range(10))
    store.topics.create("copy")
    save(frame.select("value"), store, "copy", ignoreKafkaClientOptions=True, **client)
    assert stored(store, "copy") == list(range(10))


def test_an_empty_topic_is_an_empty_frame(spark: SparkSession, store: Store) -> None:
    """No records, no error."""
    store.topics.create("t")
    assert load(spark, store, "t").count() == 0


@pytest.mark.more
def test_many_tasks_read_one_segment(spark: SparkSession, store: Store) -> None:
    """Option minPartitions splits a segment; every record is read once, whatever batch it is in."""
    store.topics.create("t", config={"compression.type": "none"})
    with store.producer() as producer:
        for number in range(60_000):
            producer.send("t", value=b"%0100d" % number)
    frame = load(spark, store, "t", minPartitions=7)
    assert frame.rdd.getNumPartitions() >= 7
    assert values(frame) == list(range(60_000))
    assert rows(frame, ["offset"]) == [(number,) for number in range(60_000)]


def test_several_topics_and_offsets(spark: SparkSession, store: Store) -> None:
    """Options subscribe, assign and offsets choose exactly the records they name."""
    for topic in ("a", "b"):
        store.topics.create(topic, partitions=2)
        with store.producer() as producer:
            for number in range(6):
                producer.send(topic, value=b"%d" % number, partition=number % 2)
    both = load(
        spark,
        store,
        "a,b",
        startingOffsets='{"a":{"0":1,"1":-2},"b":{"0":-1,"1":2}}',
        endingOffsets='{"a":{"0":2,"1":-1},"b":{"0":-1,"1":-1}}',
    )
    assert rows(both, ["topic", "partition", "offset"]) == [
        ("a", 0, 1),
        ("a", 1, 0),
        ("a", 1, 1),
        ("a", 1, 2),
        ("b", 1, 2),
    ]
    assigned = load(spark, store, assign='{"b":[1]}')
    assert rows(assigned, ["topic", "partition"]) == [("b", 1)] * 3


def test_isolation_levels(spark: SparkSession, store: Store) -> None:
    """Aborted and undecided records show under read_uncommitted only."""
    store.topics.create("t")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for number, end in enumerate([producer.commit_transaction, producer.abort_transaction, None]):
        producer.begin_transaction()
        producer.send("t", value=b"%d" % number)
        producer.flush()
        if end is not None:
            end()
    assert values(load(spark, store, "t")) == [0]
    assert values(load(spark, store, "t", isolation_level="read_uncommitted")) == [0, 1, 2]
    producer.abort_transaction()


def test_a_group_says_where_to_start_and_is_not_moved(spark: SparkSession, store: Store) -> None:
    """With group.id alone a read goes on from the committed offsets and commits nothing."""
    store.topics.create("t")
    fill(store, "t", 0, 10)
    store.consumer("t", group_id="g").commit({TopicPartition("t", 0): 7})
    assert values(load(spark, store, "t", group_id="g")) == [7, 8, 9]
    assert store.groups.describe("g").lag == 3
    assert values(load(spark, store, "t", group_id="new")) == list(range(10))
    assert "new" not in store.groups.list()


def test_kafka_group_id_starts_nowhere_else(spark: SparkSession, store: Store) -> None:
    """As in Spark's Kafka source, it is not a place to start; startingOffsets=group is."""
    store.topics.create("t")
    fill(store, "t", 0, 10)
    store.consumer("t", group_id="g").commit({TopicPartition("t", 0): 7})
    kafka = {"kafka_group_id": "g"}
    assert values(load(spark, store, "t", **kafka)) == list(range(10))
    assert values(load(spark, store, "t", **kafka, startingOffsets="group")) == [7, 8, 9]
    assert values(load(spark, store, "t", group_id="g", startingOffsets="group")) == [7, 8, 9]
    assert store.groups.describe("g").lag == 3


def test_a_snapshot_shows_what_is_committed_behind_an_open_transaction(
    spark: SparkSession, store: Store
) -> None:
    """The level snapshot reaches the library; what is open or aborted never shows."""
    store.topics.create("t")
    fill(store, "t", 0, 10)
    with store.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"100", key=b"100")
        producer.flush()
        fill(store, "t", 10, 20)
        assert values(load(spark, store, "t")) == list(range(10))
        snapshot = load(spark, store, "t", isolation_level="snapshot")
        assert values(snapshot) == list(range(20))
        producer.commit_transaction()
    assert values(snapshot) == list(range(20))
    assert values(load(spark, store, "t", isolation_level="snapshot")) == [*range(20), 100]


def test_the_format_is_usable_from_sql(spark: SparkSession, store: Store) -> None:
    """A temporary view with options reads what its options say."""
    store.topics.create("t")
    fill(store, "t", 0, 3)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW t_view USING txnlog "
        f"OPTIONS (path '{store.url}', subscribe 't', columns 'value')"
    )
    counted = spark.sql("SELECT count(*) AS n FROM t_view").collect()
    assert counted[0]["n"] == 3


def test_errors_name_the_cause_and_the_remedy(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """Wrong options raise our own errors, at load, before anything runs."""
    store.topics.create("t")
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        load(spark, store, "t", startingOfsets="latest")
    with pytest.raises(PySparkException, match="topic 'nowhere' does not exist"):
        load(spark, store, "nowhere")
    with pytest.raises(PySparkException, match="there is no store at"):
        spark.read.format("txnlog").option("subscribe", "t").load(str(tmp_path / "none"))
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "file").write_text("x")
    with pytest.raises(PySparkException, match="it is not a txnlog store"):
        spark.read.format("txnlog").option("subscribe", "t").load(str(folder))
    schema = StructType([StructField("value", StringType())])
    asked = spark.read.format("txnlog").schema(schema).option("subscribe", "t").load(store.url)
    with pytest.raises(PySparkException, match=r"leave out .schema"):
        asked.count()


def test_a_damaged_segment_stops_the_read(spark: SparkSession, store: Store) -> None:
    """A flipped byte is an error that names the file, never wrong data."""
    store.topics.create("t")
    fill(store, "t", 0, 100)
    (file,) = Path(store.url).glob("topics/t/data/0/*.log")
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(PySparkException, match=f"CorruptRecord.*{file.name}"):
        load(spark, store, "t").count()


def test_batches_without_a_limit_are_refused_with_a_word(spark: SparkSession, store: Store) -> None:
    """PySpark has an assertion for it, which names no setting; writes take it."""
    store.topics.create("t")
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, 0)
    try:
        with pytest.raises(InvalidOption, match=r"maxRecordsPerBatch is 0: .*Set one above 0"):
            read(spark, store, "t")
        save(numbers(spark, 0, 5), store, "t")
    finally:
        spark.conf.set(name, before)
    assert values(read(spark, store, "t")) == [*range(5)]
