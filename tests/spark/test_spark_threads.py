"""Writes of one transaction that run at once, in threads of the user's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.spark_helpers import data_files, numbers, placed_files, save, stored
from txnlog import Store
from txnlog.errors import InvalidTxnState, TxnlogError
from txnlog.spark import SparkTransaction, register, transaction


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics out (2 partitions) and other."""
    store.topics.create("out", partitions=2)
    store.topics.create("other")
    return store


@pytest.mark.more
def test_writes_in_threads_are_one_transaction(spark: SparkSession, topics: Store) -> None:
    """Eight writes, four at a time: all of their records are committed, each once."""
    with transaction(spark, topics, transactional_id="etl") as txn:
        with ThreadPoolExecutor(4) as threads:
            writes = [
                threads.submit(txn.write, numbers(spark, at, at + 10), topic="out")
                for at in range(0, 80, 10)
            ]
            for write in writes:
                write.result()
        assert stored(topics, "out") == []
    assert stored(topics, "out") == list(range(80))
    assert txn.result.written_records == 80
    assert data_files(topics) == placed_files(topics)


def test_a_plain_write_in_a_thread(spark: SparkSession, topics: Store) -> None:
    """Calling register() is all that a thread needs."""

    def write() -> None:
        register(spark)
        save(numbers(spark, 0, 10), topics, "out")

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert stored(topics, "out") == list(range(10))


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="Spark does not find it at each look: pkgutil loses a zip"
)
def test_a_format_that_spark_finds_is_not_registered_again(
    spark: SparkSession, topics: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark warns of a data source that replaces one it has found; there is none, and all works."""

    def refuse(*_: object) -> None:
        raise AssertionError("registered again")

    monkeypatch.setattr(type(spark.dataSource), "register", refuse)
    other = spark.newSession()
    register(other)
    save(numbers(other, 0, 10), topics, "out")
    assert stored(topics, "out") == list(range(10))
    register(spark)


def test_an_active_session_is_not_made_so_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction registers: what makes a session active costs as much as a small commit."""
    other = spark.newSession()
    made: list[SparkSession] = []
    make = type(spark).createDataFrame

    def noted(session: SparkSession, *arguments: Any, **named: Any) -> DataFrame:
        made.append(session)
        return make(session, *arguments, **named)

    monkeypatch.setattr(type(spark), "createDataFrame", noted)
    register(spark)
    made.clear()
    register(spark)
    assert made == []
    register(other)
    register(spark)
    assert made == [other, spark]


def held_up(frame: DataFrame, gate: Path) -> DataFrame:
    """The same rows, once somebody has read the FIFO ``gate`` and written to ``gate``-open."""
    opened = Path(f"{gate}-open")

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gate.write_text("here")
        opened.read_text()
        yield from batches

    return frame.coalesce(1).mapInArrow(wait, frame.schema)


def test_a_block_that_ends_before_its_writes_commits_nothing(
    spark: SparkSession, topics: Store, tmp_path: Path
) -> None:
    """A write that nobody waited for is not lost in silence, neither here nor there."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    os.mkfifo(f"{gate}-open")
    errors: list[TxnlogError] = []

    def write(txn: SparkTransaction) -> None:
        try:
            txn.write(held_up(numbers(spark, 0, 10), gate), topic="out")
        except TxnlogError as error:
            errors.append(error)

    def leave_it_running() -> None:
        with transaction(spark, topics, transactional_id="etl") as txn:
            txn.write(numbers(spark, 10, 20), topic="other")
            threads.append(Thread(target=partial(write, txn)))
            threads[0].start()
            gate.read_text()

    threads: list[Thread] = []
    with pytest.raises(InvalidTxnState, match="still runs in another thread"):
        leave_it_running()
    Path(f"{gate}-open").write_text("go")
    threads[0].join()
    assert [type(error) for error in errors] == [InvalidTxnState]
    assert "had ended before this write" in str(errors[0])
    assert stored(topics, "out") == stored(topics, "other") == []
    assert data_files(topics) == []
