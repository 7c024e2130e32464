"""Compacted topics in Spark: gaps in what is read, keys for what is written."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.spark_helpers import load, rows, save
from tests.support.admin.compacted_topics import compact, newest, read
from txnlog import Store


@pytest.mark.few(1)
@pytest.mark.parametrize("record_format", ["columns", "kafka"])
def test_a_compacted_topic_is_read(spark: SparkSession, store: Store, record_format: str) -> None:
    """Each record once, at its offset, however the read is divided into tasks."""
    config = {"cleanup.policy": "compact", "record.format": record_format}
    store.topics.create("t", config=config)
    with store.producer() as producer:
        for number in range(4000):
            producer.send("t", b"v%d" % number, b"%d" % (number % 900 if number % 3 else 7))
    expected = [(r.offset, r.value) for r in newest(read(store))]
    compact(store)
    assert 500 < len(expected) < 1000
    frame = load(spark, store, "t")
    assert sorted(rows(frame, ["offset", "value"])) == expected
    assert frame.count() == len(expected)
    divided = load(spark, store, "t", minPartitions=7)
    assert sorted(rows(divided, ["offset", "value"])) == expected
    pieces = load(spark, store, "t", maxRecordsPerPartition=501)
    assert sorted(rows(pieces, ["offset", "value"])) == expected


@pytest.mark.more
def test_rows_of_a_compacted_topic_need_keys(spark: SparkSession, store: Store) -> None:
    """A write that has one without fails, and nothing of it is written."""
    store.topics.create("t", config={"cleanup.policy": "compact"})
    rows_ = [(b"a", b"1"), (None, b"2"), (b"", b"3")]
    frame = spark.createDataFrame(rows_, "key binary, value binary").repartition(3)
    with pytest.raises(PySparkException, match="topic 't' is compacted by key"):
        save(frame, store, "t")
    assert store.scan("t").count() == {0: 0}
    save(frame.dropna(subset=["key"]), store, "t")
    assert store.scan("t").count() == {0: 2}
