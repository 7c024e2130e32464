"""Spark over a store on two roots, one of which goes: tasks find the members by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txnlog
from tests.support.replication.replica_folders import skip_probes
from txnlog.replication import Follower, Replicas, Standby, open_replicas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    assert write_and_count("a", "control") == 100
    (tmp_path / "a").rename(tmp_path / "away")
    assert write_and_count("b", "b") == 200
    assert Replicas(txnlog.open(roots["control"])).describe().in_sync == ("r1-0",)


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
