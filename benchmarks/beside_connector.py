"""Spark jobs on topics here, and through Spark's Kafka connector on a broker of the same machine.

    .venv-4.2/bin/python benchmarks/beside_connector.py JARS

JARS is a folder with spark-sql-kafka-0-10 for this Spark, and what it needs: its token provider,
kafka-clients and commons-pool2. The broker is Kafka's own, from Maven Central; see beside_kafka.py.
The connector writes at least once: a transaction, which here is what is measured, it has not got.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from beside_kafka import broker
from beside_parquet import CHANGE, PARTITIONS, Topics
from machine import describe_machine
from pyspark.sql import DataFrame, SparkSession
from rows import ROW_BYTES, write_parquet
from timing import interleaved

import txnlog
from txnlog.spark import register

ROWS = 1_000_000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(map(str, sorted(given.jars.glob("**/*.jar")))),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    with tempfile.TemporaryDirectory() as name, broker(Path(name)) as (servers, _):
        print("\n".join([*describe_machine(), f"- Spark {spark.version}", ""]))
        print("\n".join(_measure(spark, Path(name), servers, given.rows)))
    spark.stop()


class _Kafka:
    """Topics of a broker."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._spark = spark
        self._servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._numbers = itertools.count()
        self._made: list[str] = []

    def write(self, name: str | None, source: DataFrame) -> None:
        from confluent_kafka.cimpl import NewTopic

        if name is None:
            name = f"made-{next(self._numbers)}"
            self._made.append(name)
        config = {"compression.type": "producer"}
        topic = NewTopic(name, PARTITIONS, 1, config=config)
        self._admin.create_topics([topic])[name].result()
        options = {"kafka.bootstrap.servers": self._servers, "kafka.compression.type": "zstd"}
        source.write.format("kafka").options(**options).option("topic", name).save()

    def read(self, name: str, columns: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": self._servers, "subscribe": name}
        return self._spark.read.format("kafka").options(**options).load().select(columns.split(","))

    def transform(self, name: str) -> None:
        self.write(None, self.read(name, "key,value").selectExpr("key", CHANGE))

    def remove(self) -> None:
        while self._made:
            name = self._made.pop()
            self._admin.delete_topics([name])[name].result()


def _measure(spark: SparkSession, folder: Path, servers: str, count: int) -> list[str]:
    write_parquet(folder / "rows.parquet", count, files=4)
    source = spark.read.parquet(str(folder / "rows.parquet"))
    store = txnlog.open(str(folder / "store"), create=True)
    places: dict[str, _Kafka | Topics] = {
        "txnlog": Topics(spark, store, {}),
        "Kafka": _Kafka(spark, servers),
    }
    for place in places.values():
        place.write("rows", source)

    def drain(place: _Kafka | Topics) -> None:
        place.read("rows", "key,value").write.format("noop").mode("overwrite").save()

    cleanups = {name: place.remove for name, place in places.items()}
    lines = [
        f"{count:,} rows of {ROW_BYTES} bytes, {PARTITIONS} partitions; medians of 3 alternating",
        "runs. CPU time is that of all processes, the broker too.",
        "",
        "| job | txnlog, s | Kafka connector, s | speed / the connector's | by CPU |",
        "|---|---|---|---|---|",
    ]
    jobs: dict[str, Callable[[_Kafka | Topics], object]] = {
        "write": lambda place: place.write(None, source),
        "read": drain,
        "consume, transform, produce": lambda place: place.transform("rows"),
    }
    for job, run in jobs.items():
        runs = {name: partial(run, place) for name, place in places.items()}
        taken = interleaved(runs, 3, cleanups)
        ours, theirs = taken["txnlog"], taken["Kafka"]
        lines.append(
            f"| {job} | {ours.elapsed_s:.2f} | {theirs.elapsed_s:.2f} "
            f"| {theirs.elapsed_s / ours.elapsed_s:.2f} | {theirs.cpu_s / ours.cpu_s:.2f} |"
        )
    return lines


if __name__ == "__main__":
    main()
