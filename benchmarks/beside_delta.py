"""Typed rows written by Spark into a topic, into Spark's own Delta table, and as plain Parquet.

For a Spark that has a Delta of its own (4.1 and 4.2; for 4.3 there is none yet):

    make .venv-4.2/.installed
    .venv-4.2/bin/python benchmarks/beside_delta.py io.delta:delta-spark_4.2_2.13:4.4.0

A folder with Delta's jars will do in place of its coordinates.
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

import micro_batches
import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe_machine
from pyspark.sql import DataFrame, SparkSession
from timing import Taken, interleaved
from typed import CODEC, PARTITIONS, UNMEASURED, flights_table

import txnlog
from txnlog.spark import register, transaction

COPIES = 9
WRITES = 7
BATCHES = 30


def main() -> None:
    """Print both tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("delta", help="Maven coordinates of Delta, or a folder with its jars")
    given = Path(options.parse_args().delta)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = _session(given)
    register(spark)
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join([*describe_machine(), "", *_measure(spark, Path(folder))]))
    spark.stop()


def _session(delta: Path) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.parquet.compression.codec": "zstd",  # snappy, if not told
        # For small tables: by default Delta replays its log in 50 tasks, and Spark shuffles by 200.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        **UNMEASURED,
    }
    if delta.is_dir():
        settings["spark.jars"] = ",".join(map(str, delta.glob("*.jar")))
    else:
        settings["spark.jars.packages"] = str(delta)
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _measure(spark: SparkSession, folder: Path) -> list[str]:
    flights = flights_table()
    store = txnlog.open(str(folder / "store"), create=True)
    rows = pa.concat_tables([flights] * COPIES)
    large, small = folder / "large.parquet", folder / "small.parquet"
    large.mkdir()
    step = -(-len(rows) // PARTITIONS)
    for number in range(PARTITIONS):
        piece = rows.slice(number * step, step).combine_chunks()
        pq.write_table(piece, large / f"{number}.parquet", compression="zstd")
    pq.write_table(flights.slice(0, micro_batches.ROWS), small, compression="zstd")
    writes = _writes(store, spark.read.parquet(str(large)), flights.schema, folder)
    batches = _batches(spark, store, spark.read.parquet(str(small)), flights.schema, folder)
    head = f"Spark {spark.version}; {len(rows):,} rows of {len(rows.schema)} columns, zstd."
    return [head, "", *writes, "", *batches]


def _writes(store: txnlog.Store, frame: DataFrame, schema: pa.Schema, folder: Path) -> list[str]:
    numbers = itertools.count()
    topics: list[str] = []

    def ours() -> None:
        topics.append(f"written-{next(numbers)}")
        store.topics.create(topics[-1], partitions=PARTITIONS, schema=schema, config=CODEC)
        options = {"path": store.url, "topic": topics[-1]}
        frame.write.format("txnlog").options(**options).mode("append").save()

    runs: dict[str, Callable[[], object]] = {"a topic": ours}
    for kind in ("delta", "parquet"):
        writer = frame.write.format(kind).mode("overwrite")
        runs[kind.capitalize()] = partial(writer.save, str(folder / f"written-{kind}"))
    drop = {"a topic": lambda: store.topics.delete(topics.pop())}
    taken = interleaved(runs, WRITES, drop)
    return _table("all rows, written by", taken, "Delta")


def _batches(
    spark: SparkSession, store: txnlog.Store, frame: DataFrame, schema: pa.Schema, folder: Path
) -> list[str]:
    """Each is committed once, however often it is repeated, as ``foreachBatch`` needs it."""
    numbers = itertools.count()

    def ours(topic: str) -> None:
        version = next(numbers)
        with transaction(
            spark, store, transactional_id=topic, application_id="bench", version=version
        ) as txn:
            txn.write(frame, topic=topic)

    def delta() -> None:
        writer = frame.write.format("delta").mode("append")
        once = writer.option("txnAppId", "bench").option("txnVersion", next(numbers))
        once.save(str(folder / "batches-delta"))

    runs: dict[str, Callable[[], object]] = {"Delta": delta}
    for partitions in (1, PARTITIONS):
        topic = f"batches-{partitions}"
        store.topics.create(topic, partitions=partitions, schema=schema, config=CODEC)
        runs[f"a topic of {partitions}"] = partial(ours, topic)
    taken = interleaved(runs, BATCHES)
    return _table(f"a micro-batch of {micro_batches.ROWS:,} rows, by", taken, "Delta")


def _table(what: str, taken: dict[str, Taken], beside: str) -> list[str]:
    lines = [
        f"| {what} | elapsed, s | CPU, s | / {beside}'s | by CPU time |",
        "|---|---|---|---|---|",
    ]
    other = taken[beside]
    for kind, one in taken.items():
        ratio, by_cpu = one.elapsed_s / other.elapsed_s, one.cpu_s / other.cpu_s
        figures = f"{one.elapsed_s:.3f} | {one.cpu_s:.2f} | {ratio:.2f} | {by_cpu:.2f}"
        lines.append(f"| {kind} | {figures} |")
    return lines


if __name__ == "__main__":
    main()
