"""Streams from topic to topic, in real Spark: every record once, whatever is repeated."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.spark_helpers import data_files, fill, placed_files, stored
from tests.spark.stream_helpers import (
    batches,
    folder,
    forget_last_commit,
    reads_streams,
    run,
    sink,
    stream,
)
from txnlog import Store, TopicPartition

pytestmark = reads_streams


def copy(spark: SparkSession, store: Store, **options: object) -> DataFrame:
    return stream(spark, store, "in", **options).select("key", "value")


def orphans(store: Store) -> set[str]:
    return {*data_files(store)} - {*placed_files(store)}


def test_a_stream_copies_everything_once_and_goes_on(spark: SparkSession, topics: Store) -> None:
    """AvailableNow reads what is there; a restart goes on; the group's lag reaches zero."""
    for stop in (100, 150):
        writer = sink(copy(spark, topics, group_id="g", maxOffsetsPerTrigger=40), topics, "out")
        query = run(writer)
        assert stored(topics, "out") == list(range(stop))
        assert topics.groups.describe("g").lag == 0
        fill(topics, "in", stop, stop + 50)
        left = 100 if stop == 100 else 50
        for progress in query.recentProgress:
            left -= progress.numInputRows
            assert json.loads(progress.sources[0].latestOffset)["behind"] == {"in": left}
        assert left == 0
    assert max(progress.numInputRows for progress in query.recentProgress) <= 40
    [transaction] = topics.transactions.list()
    assert transaction.transactional_id == f"spark-stream-{query.id}"
    assert transaction.status == "CompleteCommit"
    assert orphans(topics) == set()


@pytest.mark.more
def test_options_are_for_a_new_query_only(spark: SparkSession, topics: Store) -> None:
    """Starting offsets that became wrong mean nothing to a query with a checkpoint."""
    run(sink(copy(spark, topics), topics, "out"))
    fill(topics, "in", 100, 130)
    topics.topics.delete_records({TopicPartition("in", 0): 5})
    topics.topics.alter("in", partitions=4)
    old = json.dumps({"in": {"0": 0, "1": 0, "2": 0}})
    run(sink(copy(spark, topics, startingOffsets=old), topics, "out"))
    assert stored(topics, "out") == list(range(130))
    with pytest.raises(PySparkException, match="must have a number for every partition"):
        run(sink(copy(spark, topics, startingOffsets=old), topics, "out", checkpoint="new"))


def test_a_replayed_batch_is_skipped(spark: SparkSession, topics: Store) -> None:
    """Killed between our commit and Spark's note of it, the batch is not there twice."""
    writer = sink(copy(spark, topics), topics, "out")
    run(writer)
    entries = topics.topics.describe("out").entries
    assert forget_last_commit(topics) == 0
    run(sink(copy(spark, topics), topics, "out"))
    assert stored(topics, "out") == list(range(100))
    assert topics.topics.describe("out").entries == entries
    assert orphans(topics) == set()
    fill(topics, "in", 100, 120)
    run(sink(copy(spark, topics), topics, "out"))
    assert stored(topics, "out") == list(range(120))
    assert batches(topics) == [0, 1]


@pytest.mark.more
def test_the_first_batch_of_a_stream_from_the_latest_is_replayed_as_it_was(
    spark: SparkSession, topics: Store
) -> None:
    """Spark does not keep where a query began; what came before the kill is not skipped."""
    frame = copy(spark, topics, startingOffsets="latest")
    query = sink(frame, topics, "nowhere-yet").trigger(processingTime="0 seconds").start()
    with pytest.raises(PySparkException, match="'nowhere-yet' does not exist"):
        query.awaitTermination()
    topics.topics.create("nowhere-yet")
    fill(topics, "in", 100, 110)
    run(sink(frame, topics, "nowhere-yet"))
    assert stored(topics, "nowhere-yet") == list(range(100, 110))


@pytest.mark.more
def test_several_topics_are_one_transaction(spark: SparkSession, topics: Store) -> None:
    """A batch goes to all of its topics at once, and a replay to none of them."""
    topic = sf.when(sf.expr("int(string(value)) % 2") == 1, "odd").otherwise("out").alias("topic")
    writer = sink(copy(spark, topics).select("*", topic), topics)
    run(writer)
    forget_last_commit(topics)
    run(writer)
    assert stored(topics, "odd") == list(range(1, 100, 2))
    assert stored(topics, "out") == list(range(0, 100, 2))
    [transaction] = topics.transactions.list()
    assert transaction.number == 1


@pytest.mark.more
def test_a_fresh_checkpoint_with_an_old_id_is_refused(spark: SparkSession, topics: Store) -> None:
    """Batch 0 of a new query is neither skipped as the old one's nor written again."""
    first = run(sink(copy(spark, topics), topics, "out", transactional_id="mine"))
    with pytest.raises(
        PySparkException, match=f"'mine' belongs to streaming query {first.id}.*another transact"
    ):
        run(sink(copy(spark, topics), topics, "out", "fresh", transactional_id="mine"))
    assert stored(topics, "out") == list(range(100))
    assert orphans(topics) == set()
    fill(topics, "in", 100, 110)
    run(sink(copy(spark, topics), topics, "out", transactional_id="mine"))
    assert stored(topics, "out") == list(range(110))
    run(sink(copy(spark, topics), topics, "odd", "fresh", transactional_id="other"))
    assert stored(topics, "odd") == list(range(110))


@pytest.mark.more
def test_a_checkpoint_that_was_set_back_is_refused(spark: SparkSession, topics: Store) -> None:
    """Batches that need not be the same again are not skipped as if they were."""
    writer = sink(copy(spark, topics, maxOffsetsPerTrigger=40), topics, "out")
    run(writer)
    for name in ("commits", "offsets"):
        for path in (folder(topics) / name).iterdir():
            if path.name.strip(".").split(".")[0] in ("1", "2"):
                path.unlink()
    with pytest.raises(PySparkException, match=r"at batch 1, but has committed batch \d.*set back"):
        run(writer)
    assert stored(topics, "out") == list(range(100))


@pytest.mark.more
def test_an_empty_batch_leaves_no_trace(spark: SparkSession, topics: Store) -> None:
    """A batch whose rows are all filtered out puts nothing, also when it is repeated."""
    nothing = copy(spark, topics).where("value is null")
    for _ in range(2):
        run(sink(nothing, topics, "out"))
        forget_last_commit(topics)
    assert [*topics.transactions.list()] == []
    assert topics.topics.describe("out").entries == 1


@pytest.mark.more
def test_a_failed_batch_leaves_nothing_and_is_done_by_the_next_run(
    spark: SparkSession, topics: Store
) -> None:
    """A task that fails for good fails the query; nothing of the batch is there."""
    good = sf.col("value")
    bad = sf.expr("if(string(value) = '57', raise_error('mine'), value)")
    frame = copy(spark, topics)
    with pytest.raises(PySparkException, match="mine"):
        run(sink(frame.select("key", bad.alias("value")), topics, "out"))
    assert stored(topics, "out") == []
    assert [*topics.transactions.list()] == []
    run(sink(frame.select("key", good), topics, "out"))
    assert stored(topics, "out") == list(range(100))


@pytest.mark.more
def test_columns_are_checked_as_in_a_batch(spark: SparkSession, topics: Store) -> None:
    """The same messages for columns of a wrong type, and a topic that nobody names."""
    frame = stream(spark, topics, "in")
    with pytest.raises(PySparkException, match="column 'value' is bigint"):
        run(sink(frame.select(sf.col("offset").alias("value")), topics, "out", "wrong"))
    with pytest.raises(PySparkException, match=r"no topic to write to\. Give the option topic"):
        run(sink(frame.select("value"), topics, checkpoint="nowhere"))


@pytest.mark.more
def test_headers_columns_and_a_minimum(spark: SparkSession, topics: Store) -> None:
    """The options of a batch read mean the same in a stream."""
    with topics.producer() as producer:
        producer.send("in", b"100", headers=[("why", b"because")])
    options = {"includeHeaders": True, "columns": "value,headers,offset", "minOffsetsPerTrigger": 9}
    frame = stream(spark, topics, "in", **options)
    assert frame.columns == ["value", "headers", "offset"]
    run(sink(frame.where("headers is not null and size(headers) > 0"), topics, "odd"))
    [record] = topics.scan("odd").to_arrow().to_pylist()
    assert (record["value"], record["headers"]) == (
        b"100",
        [{"key": "why", "value": b"because"}],
    )


@pytest.mark.more
def test_a_recreated_topic_fails_the_query(spark: SparkSession, topics: Store) -> None:
    """The error reaches the user with its remedy; with failOnDataLoss=false it goes on."""
    run(sink(copy(spark, topics), topics, "out"))
    topics.topics.delete("in")
    topics.topics.create("in")
    fill(topics, "in", 100, 110)
    with pytest.raises(PySparkException, match=r"'in' was deleted and recreated.*failOnDataLoss"):
        run(sink(copy(spark, topics), topics, "out"))
    run(sink(copy(spark, topics, failOnDataLoss=False), topics, "out"))
    assert stored(topics, "out") == list(range(110))


def test_batch_reads_and_streams_keep_their_options_apart(
    spark: SparkSession, topics: Store
) -> None:
    """An option of batches is an error of a stream; a stream's limit does nothing in a batch."""
    reader = spark.read.format("txnlog").option("path", topics.url).option("subscribe", "in")
    assert reader.option("maxOffsetsPerTrigger", 5).load().count() == 100
    with pytest.raises(PySparkException, match="endingOffsets is for a batch read"):
        run(sink(copy(spark, topics, endingOffsets="latest"), topics, "out"))


# -- stateful queries ------------------------------------------------------------------------------


def events(spark: SparkSession, store: Store, topic: str = "in") -> DataFrame:
    """Numbers, one for each second; not from second 0 on, where Spark's first watermark stands."""
    number = sf.col("value").cast("string").cast("long").alias("number")
    at = sf.timestamp_seconds(sf.col("number") + 1_000).alias("at")
    return stream(spark, store, topic).select(number, at)


def text(column: str) -> Column:
    return sf.col(column).cast("string").alias("value")


def counts(spark: SparkSession, store: Store) -> DataFrame:
    """By ten seconds: how many numbers; a window is told when the watermark has passed it."""
    windows = (
        events(spark, store).withWatermark("at", "0 seconds").groupBy(sf.window("at", "10 seconds"))
    )
    return windows.count().select(
        sf.unix_timestamp("window.start").cast("string").alias("key"), text("count")
    )


def distinct(spark: SparkSession, store: Store) -> DataFrame:
    return (
        events(spark, store)
        .withWatermark("at", "1 hour")
        .dropDuplicatesWithinWatermark(["number"])
        .select(text("number"))
    )


def joined(spark: SparkSession, store: Store) -> DataFrame:
    left = events(spark, store).withWatermark("at", "1 hour").alias("l")
    right = events(spark, store, "odd").withWatermark("at", "1 hour").alias("r")
    same = sf.expr("l.number = r.number and l.at = r.at")
    return left.join(right, same).select(sf.col("l.number").cast("string").alias("value"))


STATEFUL: dict[str, tuple[Callable[[SparkSession, Store], DataFrame], list[int]]] = {
    "aggregation": (counts, [10] * 11),
    "deduplication": (distinct, list(range(120))),
    "join": (joined, list(range(1, 120, 2))),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("aggregation", marks=pytest.mark.more),
        pytest.param("deduplication", marks=pytest.mark.slow),
        pytest.param("join", marks=pytest.mark.slow),
    ],
)
def test_stateful_queries_from_topic_to_topic(
    spark: SparkSession, topics: Store, kind: str
) -> None:
    """State goes on where it was after a restart, and the replay of a batch adds nothing."""
    query, expected = STATEFUL[kind]
    for start in (1, 101):
        with topics.producer() as producer:
            for number in range(start, min(start + 100, 120), 2):
                producer.send("odd", b"%d" % number)
    run(sink(query(spark, topics), topics, "out"))
    fill(topics, "in", 90 if kind == "deduplication" else 100, 120)
    run(sink(query(spark, topics), topics, "out"))
    forget_last_commit(topics)
    run(sink(query(spark, topics), topics, "out"))
    assert stored(topics, "out") == expected


@pytest.mark.slow
def test_output_modes(spark: SparkSession, topics: Store) -> None:
    """Complete appends the whole result each time, as to Kafka; Spark refuses update."""
    parity = sf.expr("string(int(string(value)) % 2)").alias("key")
    totals = copy(spark, topics).groupBy(parity).count().select("key", text("count"))
    for stop in (100, 120):
        run(sink(totals, topics, "out").outputMode("complete"))
        fill(topics, "in", stop, stop + 20)
    assert stored(topics, "out") == [50, 50, 60, 60]
    with pytest.raises(PySparkException, match="does not support Update mode"):
        run(sink(totals, topics, "out", "update").outputMode("update"))
