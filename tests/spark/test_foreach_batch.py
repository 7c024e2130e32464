"""foreach_batch, and transaction(...) with a version: what was committed is not done again."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark.spark_helpers import data_files, numbers, placed_files, save, stored
from tests.spark.stream_helpers import folder, forget_last_commit, reads_streams, run, stream
from txnlog import Store
from txnlog.errors import InvalidOption, InvalidTxnState
from txnlog.spark import SparkTransaction, foreach_batch, transaction


class FanOut:
    """Writes odd numbers to one topic and even ones to another, and notes when it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = False

    def __call__(self, txn: SparkTransaction, batch: DataFrame) -> None:
        self.calls += 1
        parity = "int(string(value)) % 2"
        txn.write(batch.where(f"{parity} = 1").select("value"), topic="odd")
        if self.fails:
            raise ValueError("mine")
        txn.write(batch.where(f"{parity} = 0").select("key", "value"), topic="out")


def each_batch(
    spark: SparkSession, store: Store, function: FanOut, checkpoint: str = "c", **options: Any
) -> DataStreamWriter:
    process = foreach_batch(store.url, function, **options)
    writer = stream(spark, store, "in").writeStream.foreachBatch(process)
    return writer.option("checkpointLocation", str(folder(store, checkpoint)))


@pytest.mark.more
@reads_streams
def test_a_function_writes_several_topics_in_one_transaction(
    spark: SparkSession, topics: Store
) -> None:
    """All of it is there, or nothing after a failure; a batch that comes again is skipped."""
    fan_out = FanOut()
    fan_out.fails = True
    with pytest.raises(PySparkException, match="mine"):
        run(each_batch(spark, topics, fan_out))
    assert (stored(topics, "odd"), stored(topics, "out")) == ([], [])
    assert {*data_files(topics)} == {*placed_files(topics)}
    fan_out.fails = False
    query = run(each_batch(spark, topics, fan_out))
    assert fan_out.calls == 2
    forget_last_commit(topics, "c")
    run(each_batch(spark, topics, fan_out))
    assert fan_out.calls == 2
    assert stored(topics, "odd") == list(range(1, 100, 2))
    assert stored(topics, "out") == list(range(0, 100, 2))
    found = topics.transactions.describe(f"spark-stream-{query.id}")
    assert found.number == 1
    with pytest.raises(PySparkException, match="belongs to streaming query"):
        run(each_batch(spark, topics, fan_out, "d", transactional_id=f"spark-stream-{query.id}"))
    assert fan_out.calls == 2
    assert topics.transactions.describe(f"spark-stream-{query.id}") == found


@pytest.mark.more
@reads_streams
def test_a_plain_write_in_a_function_is_not_taken_for_a_table(
    spark: SparkSession, topics: Store
) -> None:
    """It is an execution within another one, as those with which Spark makes a table are."""

    def copy(batch: DataFrame, _: int) -> None:
        save(batch.select("value"), topics, "out")

    writer = stream(spark, topics, "in").writeStream.foreachBatch(copy)
    run(writer.option("checkpointLocation", str(folder(topics, "c"))))
    assert stored(topics, "out") == list(range(100))


def test_it_is_for_streams_only(spark: SparkSession, topics: Store) -> None:
    """Called by hand there is no query whose batches could be told apart."""
    with pytest.raises(InvalidOption, match="outside of a streaming query"):
        foreach_batch(topics, FanOut())(numbers(spark, 0, 5), 0)


def versioned(spark: SparkSession, store: Store, version: int) -> SparkTransaction:
    return transaction(
        spark, store, transactional_id="daily", application_id="etl", version=version
    )


@pytest.mark.more
def test_a_version_is_committed_once(spark: SparkSession, topics: Store) -> None:
    """A block with a version that was committed says so, and can do nothing."""
    for version in (1, 1, 3, 2):
        with versioned(spark, topics, version) as txn:
            if not txn.already_committed:
                txn.write(numbers(spark, version, version + 1), topic="out")
    assert stored(topics, "out") == [1, 3]

    def forget_to_look() -> None:
        with versioned(spark, topics, 3) as txn:
            txn.write(numbers(spark, 0, 5), topic="out")

    with pytest.raises(InvalidTxnState, match=r"version 3 of .*already_committed first"):
        forget_to_look()
    assert stored(topics, "out") == [1, 3]
    with pytest.raises(InvalidOption, match="application_id"):
        transaction(spark, topics, transactional_id="daily", version=1)


def test_a_version_counts_only_if_its_block_ended_well(spark: SparkSession, topics: Store) -> None:
    """After an exception the version can come again; one that wrote nothing is known too."""

    def fail() -> None:
        with versioned(spark, topics, 5) as txn:
            txn.write(numbers(spark, 0, 5), topic="out")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    with versioned(spark, topics, 5) as txn:
        assert not txn.already_committed
    with versioned(spark, topics, 5) as txn:
        assert txn.already_committed
    assert stored(topics, "out") == []
