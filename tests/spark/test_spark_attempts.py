"""Attempts of tasks that are killed or run twice in the middle of a write: condition 54."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.driver_processes import SILENCE_S, driver
from tests.spark.loop_judge import orphans
from tests.spark.spark_cluster import standalone
from tests.spark.spark_cluster_driver import RECORDS
from tests.spark.spark_faults import Kill, Straggle, faulty, wide_numbers
from tests.spark.spark_helpers import stored
from txnlog import Store
from txnlog.spark import TxnlogDataSource, transaction

SMALL_SEGMENTS = {"segment.bytes": str(256 << 10)}
"""Half a task has finished some of them."""


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with small batches; afterwards with the real data source again."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, 500)
    yield spark
    assert before is not None
    spark.conf.set(name, before)
    spark.dataSource.register(TxnlogDataSource)


@pytest.mark.more
@pytest.mark.condition(54)
def test_a_worker_is_killed_in_mid_write(
    small_batches: SparkSession, store: Store, tmp_path: Path
) -> None:
    """SIGKILL to a Python worker that has uploaded half; the task is run again."""
    store.topics.create("t", partitions=2, config=SMALL_SEGMENTS)
    marker = tmp_path / "killed"
    small_batches.dataSource.register(faulty(Kill(marker, executor=False, batches=6)))
    with transaction(small_batches, store, transactional_id="etl") as txn:
        txn.write(wide_numbers(small_batches, 16_000), topic="t")
        assert stored(store, "t") == []
    assert marker.exists()
    assert stored(store, "t") == list(range(16_000))
    assert txn.result.written_records == 16_000
    assert any(name.endswith(".log") for name in orphans(store)), "it had uploaded nothing"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a standalone master with three workers of one core."""
    with standalone(tmp_path / "cluster") as url:
        yield url


@pytest.mark.condition(54)
@pytest.mark.slow
def test_a_cluster_with_losses_and_stragglers(cluster: str, store: Store, tmp_path: Path) -> None:
    """A worker and an executor are killed in mid-write; a copy outruns a straggler.

    The straggler, which Spark has given up, uploads everything after the commit: nobody sees it.
    """
    topics = ("worker", "executor", "straggler")
    for topic in topics:
        store.topics.create(topic, partitions=2, config=SMALL_SEGMENTS)
    straggle = Straggle(tmp_path)
    straggle.make()

    def left_in(topic: str) -> list[str]:
        """Segments that were uploaded and not placed."""
        return [n for n in orphans(store) if n.startswith(f"topics/{topic}/") and n[-4:] == ".log"]

    with driver(
        tmp_path / "driver", "spark_cluster_driver.py", cluster, store.url, tmp_path
    ) as process:
        for topic in topics:
            line = f"committed {topic}"
            assert process.wait_for(line) == line, process.errors()
            assert stored(store, topic) == list(range(RECORDS))
            if topic == "worker":  # the worker of a killed executor may live on, and clean up
                assert left_in(topic), "the attempt that was killed had uploaded nothing"
        # A copy that Spark has made of another task may have left files as well.
        before = left_in("straggler")
        while (held := straggle.met()) is None:
            assert process.line(0.05) is None, process.errors()
        assert straggle.release(held, SILENCE_S) == b"uploaded"
        late = set(left_in("straggler")) - set(before)
        assert late, "the straggler has uploaded nothing"
        for topic in topics:
            assert stored(store, topic) == list(range(RECORDS))
            assert store.topics.describe(topic).open_transactions == ()
        process.go_on()
        assert process.end() == os.EX_OK, process.errors()
    assert {path.name for path in tmp_path.glob("*-killed")} == {"worker-killed", "executor-killed"}
