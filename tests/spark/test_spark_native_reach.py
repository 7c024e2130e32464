"""Native reads of storages that Hadoop's connectors do not reach: soon given up, and said so."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import txnlog
from tests.spark.spark_helpers import numbers, save, stored, values
from txnlog import Store
from txnlog.errors import InvalidOption
from txnlog.spark import read, transaction
from txnlog.spark.batch import hadoop_files
from txnlog.time_limits import NoAnswer


class SilentServer:
    """Takes connections and never answers; ``connections`` are those that it took."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"webhdfs://127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.connections.append(self._listening.accept()[0])

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    """A server that Hadoop takes stores to be at, which is given little time."""
    monkeypatch.setattr(hadoop_files, "ANSWER_S", 0.2)
    monkeypatch.setattr(hadoop_files, "_INSISTENT_ANSWER_S", 0.3)
    server = SilentServer()
    monkeypatch.setattr(hadoop_files, "hadoop_root", lambda _: f"{server.url}/store")
    yield server
    server.close()


@pytest.fixture
def filled(store: Store) -> Store:
    """Some records in Parquet files."""
    store.topics.create("t", config={"record.format": "parquet"})
    with store.producer() as producer:
        for number in range(10):
            producer.send("t", b"%d" % number)
    return store


def test_a_store_whose_path_is_no_url(spark: SparkSession, tmp_path: Path) -> None:
    """Paths become URLs and patterns on their way to Spark's readers, and back."""
    store = txnlog.open(str(tmp_path / "st o%20re #1?ü {a,b} [c]* 'd'\\e"), create=True)
    config = {"record.format": "parquet"}
    for topic in ("in", "out"):
        store.topics.create(topic, config=config)
    save(numbers(spark, 0, 10), store, "in")
    for native in (True, False):
        assert values(read(spark, store, "in", native=native)) == [*range(10)]
        assert values(read(spark, store.url, "in", native=native)) == [*range(10)]
    with transaction(spark, store, transactional_id="copy", group_id="copy") as txn:
        txn.write(txn.read("in", native=True), "out")
    assert stored(store, "out") == [*range(10)]


def test_a_folder_with_a_colon(spark: SparkSession, tmp_path: Path) -> None:
    """Within a pattern Hadoop would take what stands before it for a protocol."""
    for name in ("a:b", "a:b?c"):
        store = txnlog.open(str(tmp_path / name), create=True)
        store.topics.create("t", config={"record.format": "parquet"})
        with store.producer() as producer:
            producer.send("t", b"1")
        assert values(read(spark, store, "t", native=True)) == [1]


def test_a_filesystem_that_does_not_answer_is_asked_once(
    spark: SparkSession, filled: Store, silent: SilentServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows come by the data source, and one line says why."""
    caplog.set_level(logging.WARNING, "txnlog")
    for _ in range(3):
        assert read(spark, filled, "t").count() == 10
    assert len(silent.connections) == 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "read by the data source" in said[0]
    assert f"{silent.url}/store: it does not answer" in said[0]


def test_who_insists_waits_longer_and_learns_why(
    spark: SparkSession, filled: Store, silent: SilentServer
) -> None:
    """What was remembered does not answer for a read that must be native."""
    assert read(spark, filled, "t").count() == 10
    with pytest.raises(InvalidOption, match=r"native=True.*does not answer"):
        read(spark, filled, "t", native=True)
    assert len(silent.connections) == 2


def test_an_answer_that_comes_late_counts_for_the_next_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connector that was slow to begin does not cost the session its native reads."""
    may_answer, forgotten = threading.Event(), threading.Event()

    class Silent(dict[tuple[str, str], None]):
        def pop(self, *args: Any) -> None:
            super().pop(*args)
            forgotten.set()

    silent = Silent()
    monkeypatch.setattr(hadoop_files, "_silent", silent)
    key = ("application", "s3a://bucket")
    with pytest.raises(NoAnswer):
        hadoop_files._ask_within(0.05, key, lambda: 7 * may_answer.wait(30))
    assert [*silent] == [key]
    may_answer.set()
    assert forgotten.wait(30)
    assert not silent


def test_a_reason_is_a_warning_once_and_needs_no_stack(
    spark: SparkSession,
    filled: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As for S3 without hadoop-aws. Where Spark reads, that is said to those who listen."""
    caplog.set_level(logging.INFO, "txnlog.spark.batch.hadoop_files")
    assert read(spark, filled, "t").count() == 10
    monkeypatch.setattr(hadoop_files, "hadoop_root", lambda _: "s3a://bucket/store")
    for _ in range(2):
        assert read(spark, filled, "t").count() == 10
    monkeypatch.setattr(hadoop_files, "hadoop_root", lambda _: None)
    assert read(spark, filled, "t").count() == 10
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "INFO", "WARNING"]
    said = [record.getMessage() for record in caplog.records]
    assert "read by Spark itself" in said[0]
    assert "S3AFileSystem not found" in said[1]
    assert not any("\n" in line for line in said)
