"""Spark over a store on two roots, one of which goes: tasks find the members by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from replica_folders import skip_probes

import txnlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.more
def test_a_root_goes_between_two_writes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_probes(monkeypatch)
    roots = {name: str(tmp_path / name) for name in ("a", "b", "control")}
    store = txnlog.open(roots["a"], replicas=[roots["b"]], controller=roots["control"], create=True)
    store.create_topic("t", partitions=2)
    rows = spark.range(100).selectExpr("cast(id as string) as value")

    def write_and_count(written: str, read: str) -> int:
        write = rows.write.format("txnlog").option("path", roots[written]).option("topic", "t")
        write.mode("append").save()
        found = spark.read.format("txnlog").option("path", roots[read]).option("subscribe", "t")
        return found.load().count()

    assert write_and_count("a", "control") == 100
    (tmp_path / "a").rename(tmp_path / "away")
    assert write_and_count("b", "b") == 200
    assert txnlog.open(roots["control"]).replicas().in_sync == ("r1-0",)
