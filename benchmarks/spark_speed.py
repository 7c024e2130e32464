"""Reads and writes of Spark: ours, the ceilings of Python data sources, and Parquet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from noop import NoopSource
from pyspark.sql import DataFrame, SparkSession
from rows import ROW_BYTES, write_parquet
from timing import Taken, interleaved

import txnlog
from txnlog.spark import register

CORES = 2
PARTITIONS = 8


def measure(spark: SparkSession, folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: a table of reads and one of writes."""
    register(spark)
    spark.dataSource.register(NoopSource)
    parquet = folder / "rows.parquet"
    write_parquet(parquet, count, files=4)
    root = str(folder / "store")
    store = txnlog.open(root, create=True)
    return [
        *_reads(spark, folder, store, parquet, count, repetitions),
        "",
        *_writes(spark, folder, store, parquet, count, repetitions),
    ]


def _reads(
    spark: SparkSession,
    folder: Path,
    store: txnlog.Store,
    parquet: Path,
    count: int,
    repetitions: int,
) -> list[str]:
    source = spark.read.parquet(str(parquet))
    ours: dict[str, DataFrame] = {}
    for codec in ("lz4", "zstd", "none"):
        topic = f"rows-{codec}"
        store.create_topic(topic, partitions=PARTITIONS, config={"compression.type": codec})
        _write_ours(source, store.url, topic)
        ours[f"txnlog {codec}"] = (
            spark.read.format("txnlog").option("path", store.url).option("subscribe", topic).load()
        )
        assert store.scan(topic).record_count == count
    tasks = ours["txnlog lz4"].rdd.getNumPartitions()
    rows_parquet = folder / "read.parquet"
    ours["txnlog lz4"].write.option("compression", "zstd").parquet(str(rows_parquet))
    frames = {
        f"no-op source, batches of {size:,}": spark.read.format("noop_arrow")
        .options(rows=count, batch_rows=size, tasks=tasks)
        .load()
        for size in (10_000, 100_000)
    }
    frames |= ours | {"Parquet zstd": spark.read.parquet(str(rows_parquet))}
    seconds = interleaved(
        {name: lambda frame=frame: _drain(frame) for name, frame in frames.items()}, repetitions
    )
    ceilings = [taken for name, taken in seconds.items() if name.startswith("no-op")]
    # The best of them in each respect: neither size of batches is the best in both.
    ceiling = Taken(min(c.elapsed_s for c in ceilings), min(c.cpu_s for c in ceilings))
    return _table("read", seconds, ceiling, count)


def _writes(
    spark: SparkSession,
    folder: Path,
    store: txnlog.Store,
    parquet: Path,
    count: int,
    repetitions: int,
) -> list[str]:
    source = spark.read.parquet(str(parquet))
    target = folder / "written.parquet"
    codecs = {f"txnlog {codec}": codec for codec in ("lz4", "zstd", "none")}

    def create(codec: str) -> None:
        store.create_topic(
            f"written-{codec}", partitions=PARTITIONS, config={"compression.type": codec}
        )

    def renew(codec: str) -> None:
        store.delete_topic(f"written-{codec}")
        create(codec)

    for codec in codecs.values():
        create(codec)
    runs: dict[str, Callable[[], object]] = {
        "no-op writer": lambda: source.write.format("noop_arrow").mode("append").save(),
    }
    cleanups: dict[str, Callable[[], object]] = {}
    for name, codec in codecs.items():
        runs[name] = partial(_write_ours, source, store.url, f"written-{codec}")
        cleanups[name] = partial(renew, codec)
    runs["Parquet zstd"] = lambda: source.write.option("compression", "zstd").parquet(str(target))
    cleanups["Parquet zstd"] = partial(shutil.rmtree, target)
    seconds = interleaved(runs, repetitions, cleanups)
    return _table("write", seconds, seconds["no-op writer"], count)


def _write_ours(source: DataFrame, root: str, topic: str) -> None:
    source.write.format("txnlog").option("path", root).option("topic", topic).mode("append").save()


def _drain(frame: DataFrame) -> None:
    """Bring every row into the JVM and drop it there."""
    frame.write.format("noop").mode("overwrite").save()


def _table(verb: str, taken: dict[str, Taken], ceiling: Taken, count: int) -> list[str]:
    lines = [
        f"| {verb} | seconds | M rows/s | MB/s | of the ceiling | CPU s | of the ceiling, by CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, of in taken.items():
        rate = count / of.elapsed_s
        speed = f"{rate / 1e6:.2f} | {rate * ROW_BYTES / 1e6:.0f}"
        ratio = f"{ceiling.elapsed_s / of.elapsed_s:.2f}"
        by_cpu = f"{of.cpu_s:.2f} | {ceiling.cpu_s / max(of.cpu_s, 0.01):.2f}"
        lines.append(f"| {name} | {of.elapsed_s:.2f} | {speed} | {ratio} | {by_cpu} |")
    return lines
