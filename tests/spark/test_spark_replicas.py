"""Spark over a store on two roots, one of which goes: tasks find the members by themselves."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txnlog
from tests.spark.stream_helpers import reads_streams
from tests.support.replication.replica_folders import lose, make, skip_probes
from txnlog.replication import Follower, Replicas, Standby, open_replicas
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.spark import read
from txnlog.spark.source import TxnlogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@reads_streams
@pytest.mark.more
def test_a_root_goes_between_two_writes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_probes(monkeypatch)
    roots = {name: str(tmp_path / name) for name in ("a", "b", "control")}
    store = open_replicas([roots["a"], roots["b"]], controller=roots["control"], create=True).store
    store.topics.create("t", partitions=2)
    rows = spark.range(100).selectExpr("cast(id as string) as value")

    def write_and_count(written: str, read: str) -> int:
        write = rows.write.format("txnlog").option("path", roots[written]).option("topic", "t")
        write.mode("append").save()
        found = spark.read.format("txnlog").option("path", roots[read]).option("subscribe", "t")
        return found.load().count()

    def stream() -> int:
        """How many rows there are, and the query has seen each once."""
        seen: list[int] = []
        read = spark.readStream.format("txnlog").option("path", roots["control"])
        read = read.option("subscribe", "t").option("startingOffsets", "earliest")
        query = read.load().writeStream.foreachBatch(lambda batch, _: seen.append(batch.count()))
        query.trigger(availableNow=True).start().awaitTermination()
        return sum(seen)

    assert write_and_count("a", "control") == 100
    assert stream() == 100
    (tmp_path / "a").rename(tmp_path / "away")
    assert write_and_count("b", "b") == 200
    assert stream() == 200
    assert Replicas(txnlog.open(roots["control"])).describe().in_sync == ("r1-0",)


@reads_streams
@pytest.mark.parametrize("named", ["control", "a"])
@pytest.mark.parametrize("feed", [False, True])
def test_a_streams_tasks_read_the_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, feed: bool
) -> None:
    """By whichever place the store is named, without one of the roots, which they put out not."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    skip_probes(monkeypatch)
    store = make(tmp_path)
    store.topics.create("t", partitions=1, config={"cleanup.policy": "compact"})
    with store.producer() as producer:
        producer.send("t", key=b"k", value=b"1")
    options = {"path": str(tmp_path / named), "subscribe": "t", "startingOffsets": "earliest"}
    if feed:
        options["preImages"] = "true"
    source = TxnlogDataSource(options)
    reader = source.streamReader(source.schema())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    tasks = reader.partitions(reader.initialOffset(), end)
    sent = pickle.dumps(source.streamReader(source.schema()))  # as Spark does: a new one
    lose(tmp_path / "a")
    in_task = pickle.loads(sent)
    assert sum(batch.num_rows for task in tasks for batch in in_task.read(task)) == 1
    roots = find_replicated(in_task._storage)
    assert roots is not None
    assert roots.agreement.observes


@pytest.mark.more
@pytest.mark.parametrize("named", ["control", "b"])
def test_jobs_read_an_open_store_without_the_controller(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """However it was opened, and whatever was read before; a feed and the newest records, too."""
    skip_probes(monkeypatch)
    written = make(tmp_path)
    written.topics.create("t", partitions=1, config={"cleanup.policy": "compact"})
    begin = written.snapshot(["t"]).token()
    with written.producer() as producer:
        producer.send("t", b"1", key=b"k")
        producer.send("t", b"2", key=b"k")
    store = txnlog.open(str(tmp_path / named))
    lose(tmp_path / "control")
    by_root = txnlog.open(str(tmp_path / "b"))
    for reached in (store, by_root, str(tmp_path / "b")):
        assert read(spark, reached, "t").count() == 2
        assert read(spark, reached, "t", latest=True).count() == 1
        assert read(spark, reached, "t", since=begin, pre_images=True).count() == 3


@reads_streams
@pytest.mark.more
def test_a_standby_is_read_and_goes_on_as_a_store(spark: SparkSession, tmp_path: Path) -> None:
    """In batches and as a stream, whose checkpoint goes on when it was promoted."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=2)
    url, seen = str(tmp_path / "standby"), str(tmp_path / "seen")
    standby = Follower(store, url)

    def send(into: txnlog.Store, value: str) -> None:
        with into.producer() as producer:
            for number in range(10):
                producer.send("t", f"{value} {number}".encode(), partition=number % 2)

    def count() -> int:
        return reader.load().count()

    def stream() -> int:
        """How many rows the stream has seen, when it has come to the end."""
        read = spark.readStream.format("txnlog").option("path", url).option("subscribe", "t")
        read = read.option("startingOffsets", "earliest")
        rows = read.load().selectExpr("cast(value as string) as value")
        write = rows.writeStream.format("parquet").option("path", seen)
        write = write.option("checkpointLocation", str(tmp_path / "checkpoint"))
        write.trigger(availableNow=True).start().awaitTermination()
        return spark.read.parquet(seen).distinct().count()

    reader = spark.read.format("txnlog").option("path", url).option("subscribe", "t")
    send(store, "one")
    standby.follow()
    send(store, "two")
    assert (count(), stream()) == (10, 10)
    standby.follow()
    assert (count(), stream()) == (20, 20)
    rows = spark.range(1).selectExpr("cast(id as string) as value")
    written = rows.write.format("txnlog").option("path", url).option("topic", "t").mode("append")
    with pytest.raises(Exception, match="a standby can be read only"):
        written.save()
    Standby(txnlog.open(url)).promote()
    written.save()
    assert (count(), stream()) == (21, 21)
