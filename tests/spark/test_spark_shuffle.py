"""Shuffling by partition before a write: few segments, every row where it belongs."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from spark_helpers import numbers, save, stored

from txnlog import Store
from txnlog.errors import InvalidOption, InvalidRecord, UnknownTopicOrPartition
from txnlog.spark import shuffle_by_partition


def _where(store: Store, topic: str) -> dict[int, int]:
    """The partition of each number in a topic."""
    table = store.scan(topic, columns=["value", "partition"]).to_arrow()
    values = [int(value) for value in table.column("value").to_pylist()]
    return dict(zip(values, table.column("partition").to_pylist(), strict=True))


@pytest.mark.more
def test_a_partition_comes_from_one_task(spark: SparkSession, store: Store) -> None:
    """One segment for each partition instead of one for each task and partition."""
    for topic in ("plain", "shuffled"):
        store.create_topic(topic, partitions=4)
    rows = numbers(spark, 0, 400, tasks=6)
    save(rows, store, "plain")
    save(shuffle_by_partition(rows, store, "shuffled"), store, "shuffled")
    assert len(store.segments("plain")) == 24
    assert len(store.segments("shuffled")) == 4
    assert stored(store, "shuffled") == list(range(400))
    assert _where(store, "shuffled") == _where(store, "plain")


def test_topics_by_column_and_explicit_partitions(spark: SparkSession, store: Store) -> None:
    """Each topic has its own partitions; those that rows name already are obeyed."""
    store.create_topic("few", partitions=2)
    store.create_topic("many", partitions=9)
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
    assert len(store.segments("few")) == 2
    assert len(store.segments("many")) == 9


def test_what_cannot_be_written_is_refused_before_the_shuffle(
    spark: SparkSession, store: Store
) -> None:
    """The checks of a write, where the function is called."""
    rows = numbers(spark, 0, 1)
    with pytest.raises(UnknownTopicOrPartition):
        shuffle_by_partition(rows, store, "nowhere")
    with pytest.raises(InvalidOption, match=r"no topic to write to\. Give the option topic"):
        shuffle_by_partition(rows, store)
    store.create_topic("t")
    with pytest.raises(InvalidRecord, match="'colour' is not part of a record"):
        shuffle_by_partition(rows.withColumn("colour", sf.lit("red")), store, "t")
    with pytest.raises(InvalidOption, match="tasks must be"):
        shuffle_by_partition(rows, store, "t", tasks=0)
    with pytest.raises(InvalidOption, match="not one of murmur2"):
        shuffle_by_partition(rows, store, "t", partitioner="x")
