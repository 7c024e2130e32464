"""``txnlog.spark.maintain``: tasks of Spark merge and compact, the driver puts it into the logs."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import txnlog
from tests.spark.spark_helpers import load
from txnlog import Store
from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.results import Compaction, MaintenanceFailure, Merge
from txnlog.spark import maintain


def append(store: Store, topic: str, *rows: tuple[bytes | None, bytes]) -> None:
    """Each row in a commit of its own."""
    for key, value in rows:
        with store.producer() as producer:
            producer.send(topic, value, key=key)


def test_tasks_merge_and_compact(spark: SparkSession, store: Store) -> None:
    """Reads afterwards give the same records, and the newest of each key."""
    store.topics.create("small", partitions=3)
    store.topics.create("keys", config={"cleanup.policy": "compact"})
    for number in range(18):
        with store.producer() as producer:
            producer.send("small", b"%d" % number, partition=number % 3)
    append(store, "keys", *((b"k%d" % (n % 3), b"%d" % n) for n in range(8)))
    before = store.scan("small").to_arrow()
    told = maintain(spark, store.url, dry_run=True)
    assert {type(step) for step in told} == {Merge, Compaction}
    assert store.scan("small").to_arrow() == before
    done = maintain(spark, store.url)
    merges = [step for step in done if isinstance(step, Merge)]
    assert [(m.topic, m.partition, m.segment_count, m.merged_count) for m in merges] == [
        ("small", number, 6, 1) for number in range(3)
    ]
    (compaction,) = (step for step in done if isinstance(step, Compaction))
    assert (compaction.record_count, compaction.compacted_record_count) == (8, 3)
    fresh = txnlog.open(store.url)
    assert fresh.scan("small").to_arrow() == before
    assert fresh.scan("keys").to_arrow()["value"].to_pylist() == [b"5", b"6", b"7"]
    assert load(spark, store, "keys").count() == 3
    assert [step for step in maintain(spark, store) if isinstance(step, Merge | Compaction)] == []


def test_what_fails_in_a_task_stops_nothing_else(spark: SparkSession, store: Store) -> None:
    """A damaged segment is told, as without Spark."""
    for topic in ("bad", "good"):
        store.topics.create(topic)
        append(store, topic, *((None, b"%d" % number) for number in range(5)))
    path = store.topics.segments("bad")[2].paths.log
    data = store.storage.get(path)
    store.storage.delete([path])
    store.storage.put(path, data[:-1] + bytes([data[-1] ^ 1]))
    done = maintain(spark, store, ["bad", "good"])
    (failure,) = (step for step in done if isinstance(step, MaintenanceFailure))
    assert (failure.part, failure.topic) == ("merging", "bad")
    assert isinstance(failure.error, CorruptRecord)
    assert path in str(failure.error)
    assert [step.topic for step in done if isinstance(step, Merge)] == ["good"]


def test_a_store_in_memory_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidOption, match="in this process only"):
        maintain(spark, txnlog.open("memory://maintain", create=True))
