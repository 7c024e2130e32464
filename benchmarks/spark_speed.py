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
        "",
        *_shapes(spark, folder, store, count, repetitions),
        "",
        *_small_jobs(spark, store, repetitions),
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


def _shapes(
    spark: SparkSession, folder: Path, store: txnlog.Store, count: int, repetitions: int
) -> list[str]:
    """Writes of few and many tasks to few and many partitions, each beside its own ceiling."""
    lines = [
        "| write lz4 | seconds | M rows/s | of the no-op writer | of Parquet zstd |",
        "|---|---|---|---|---|",
    ]
    target = folder / "shape.parquet"
    for tasks in (4, 8):
        parquet = folder / f"rows-{tasks}.parquet"
        write_parquet(parquet, count, files=tasks)
        source = spark.read.parquet(str(parquet)).repartition(tasks).persist()
        source.count()
        for partitions in (2, 200):
            topic = f"shape-{tasks}-{partitions}"
            store.create_topic(topic, partitions=partitions)
            runs: dict[str, Callable[[], object]] = {
                "no-op": lambda s=source: s.write.format("noop_arrow").mode("append").save(),
                "ours": partial(_write_ours, source, store.url, topic),
                "parquet": lambda s=source: s.write.option("compression", "zstd").parquet(
                    str(target)
                ),
            }
            cleanups: dict[str, Callable[[], object]] = {
                "ours": partial(_renew, store, topic, partitions),
                "parquet": partial(shutil.rmtree, target),
            }
            taken = {k: t.elapsed_s for k, t in interleaved(runs, repetitions, cleanups).items()}
            ours = taken["ours"]
            lines.append(
                f"| {tasks} tasks, {partitions} partitions | {ours:.2f} | {count / ours / 1e6:.2f} "
                f"| {taken['no-op'] / ours:.2f} | {taken['parquet'] / ours:.2f} |"
            )
        source.unpersist()
    return lines


def _renew(store: txnlog.Store, topic: str, partitions: int) -> None:
    store.delete_topic(topic)
    store.create_topic(topic, partitions=partitions)


def _small_jobs(spark: SparkSession, store: txnlog.Store, repetitions: int) -> list[str]:
    """What a job costs that has next to nothing to do."""
    store.create_topic("small", partitions=2)
    with store.producer() as producer:
        for number in range(10):
            producer.send("small", b"%d" % number)
    row = spark.range(1).selectExpr("CAST('v' AS BINARY) AS value")

    def read_ours() -> None:
        options = {"path": store.url, "subscribe": "small"}
        _drain(spark.read.format("txnlog").options(**options).load())

    def read_noop() -> None:
        options = {"rows": 10, "batch_rows": 10, "tasks": 1}
        _drain(spark.read.format("noop_arrow").options(**options).load())

    taken = interleaved(
        {
            "read of 10 rows, no-op": read_noop,
            "read of 10 rows, txnlog": read_ours,
            "write of 1 row, no-op": lambda: row.write.format("noop_arrow").mode("append").save(),
            "write of 1 row, txnlog": lambda: _write_ours(row, store.url, "small"),
        },
        5 * repetitions,
    )
    seconds = {name: of.elapsed_s for name, of in taken.items()}
    lines = ["| small job | seconds | of the no-op's |", "|---|---|---|"]
    for name, elapsed_s in seconds.items():
        base = seconds[name.replace("txnlog", "no-op")]
        lines.append(f"| {name} | {elapsed_s:.3f} | {elapsed_s / base:.2f} |")
    return lines


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
