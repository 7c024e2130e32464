"""Reads and writes of Spark: ours, the ceilings of Python data sources, and Parquet."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from noop import NoopSource
from py4j.clientserver import JavaClient
from pyspark.sql import DataFrame, SparkSession
from rows import ROW_BYTES, write_parquet
from timing import Taken, interleaved

import txnlog
from txnlog.spark import read, register

CORES = 2
PARTITIONS = 8
_FRAMES_A_TURN = 4
"""They are short, and CPU time is counted in hundredths of a second."""


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


def measure_frames(spark: SparkSession, folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: frames, and counts of kept ones, beside Spark's own of the same files."""
    register(spark)
    store = txnlog.open(str(folder / "frames"), create=True)
    store.topics.create("t", partitions=PARTITIONS, config={"record.format": "parquet"})
    numbers = pa.array(range(count)).cast(pa.string()).cast(pa.binary())
    with store.producer() as producer:
        for number in range(2 * PARTITIONS):
            # The files differ in size, as they do in practice.
            rows = pa.table({"key": numbers, "value": numbers}).slice(number)
            producer.send_batch("t", rows, partition=number % PARTITIONS)
            producer.flush()
    files = [f"file:{store.url}/{part.paths.log}" for part in store.scan("t").ranges]
    middle = {"t": dict.fromkeys(range(PARTITIONS), count // 2)}
    frames: dict[str, Callable[[], DataFrame]] = {
        "Spark's own, which looks at a footer": partial(spark.read.parquet, *files),
        "Spark's own, with the schema": partial(
            spark.read.schema("key binary, value binary").parquet, *files
        ),
        "the data source": partial(read, spark, store, "t", native=False),
        "native, key and value": partial(read, spark, store, "t", columns="key,value", native=True),
        "native, all columns": partial(read, spark, store, "t", native=True),
        "native, all columns, from the middle of files": partial(
            read, spark, store, "t", starting_offsets=middle, native=True
        ),
    }
    calls = {name: _calls(make) for name, make in frames.items()}
    made = interleaved({n: partial(_often, make) for n, make in frames.items()}, repetitions)
    kept = {name: make() for name, make in frames.items()}
    counted = interleaved(
        {name: partial(_often, frame.count) for name, frame in kept.items()}, repetitions
    )
    first = next(iter(frames))
    lines = [
        f"{len(files)} files, of which half are cut where a frame begins in their middle.",
        "",
        "| frame | ms | / Spark's own | by CPU | JVM calls | count(), ms | / its own | by CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in frames:
        making = _beside(made[name], made[first])
        lines.append(
            f"| {name} | {making} | {calls[name]} | {_beside(counted[name], counted[first])} |"
        )
    return lines


def _calls(make: Callable[[], object]) -> int:
    """How many commands it sends to the JVM, when it is done once more."""
    make()
    sent = 0
    send = JavaClient.send_command

    def count(self: JavaClient, command: str, *args: object, **more: object) -> object:
        nonlocal sent
        sent += not command.startswith("m\nd\n")  # garbage is collected at any time
        return send(self, command, *args, **more)

    JavaClient.send_command = count
    try:
        make()
    finally:
        JavaClient.send_command = send
    return sent


def _often(run: Callable[[], object]) -> None:
    for _ in range(_FRAMES_A_TURN):
        run()


def _beside(taken: Taken, own: Taken) -> str:
    by_cpu = taken.cpu_s / own.cpu_s if own.cpu_s else 0.0
    ms = 1000 * taken.elapsed_s / _FRAMES_A_TURN
    return f"{ms:.0f} | {taken.elapsed_s / own.elapsed_s:.2f} | {by_cpu:.2f}"


def _reads(
    spark: SparkSession,
    folder: Path,
    store: txnlog.Store,
    parquet: Path,
    count: int,
    repetitions: int,
) -> list[str]:
    """Each codec beside the no-op source with as many tasks, which take 30 ms of CPU each."""
    source = spark.read.parquet(str(parquet))
    frames: dict[str, DataFrame] = {}
    ceilings: dict[str, list[str]] = {}
    for codec in ("lz4", "zstd", "none"):
        topic, name = f"rows-{codec}", f"txnlog {codec}"
        store.topics.create(topic, partitions=PARTITIONS, config={"compression.type": codec})
        _write_ours(source, store.url, topic)
        assert store.scan(topic).record_count == count
        ours = (
            spark.read.format("txnlog").option("path", store.url).option("subscribe", topic).load()
        )
        tasks = ours.rdd.getNumPartitions()
        for size in (10_000, 100_000):
            ceiling = f"no-op source, {tasks} tasks, batches of {size:,}"
            options = {"rows": count, "batch_rows": size, "tasks": tasks}
            frames[ceiling] = spark.read.format("noop_arrow").options(**options).load()
            ceilings.setdefault(name, []).append(ceiling)
        frames[name] = ours
    rows_parquet = folder / "read.parquet"
    frames["txnlog lz4"].write.option("compression", "zstd").parquet(str(rows_parquet))
    frames["Parquet zstd"] = spark.read.parquet(str(rows_parquet))
    taken = interleaved(
        {name: partial(_drain, frame) for name, frame in frames.items()}, repetitions
    )

    def ceiling_of(name: str) -> Taken:
        # The best of them in each respect: neither size of batches is the best in both.
        them = [taken[ceiling] for ceiling in ceilings.get(name, ceilings["txnlog lz4"])]
        return Taken(min(c.elapsed_s for c in them), min(c.cpu_s for c in them))

    return _table("read", taken, ceiling_of, count)


def _writes(
    spark: SparkSession,
    folder: Path,
    store: txnlog.Store,
    parquet: Path,
    count: int,
    repetitions: int,
) -> list[str]:
    source = spark.read.parquet(str(parquet))
    runs: dict[str, Callable[[], object]] = {
        "no-op writer": lambda: source.write.format("noop_arrow").mode("append").save(),
    }
    targets = _Targets(store, folder)
    for codec in ("lz4", "zstd", "none"):
        runs[f"txnlog {codec}"] = partial(targets.write_ours, source, PARTITIONS, codec)
    runs["Parquet zstd"] = partial(targets.write_parquet, source)
    taken = interleaved(runs, repetitions, dict.fromkeys(runs, targets.remove))
    return _table("write", taken, lambda _: taken["no-op writer"], count)


def _shapes(
    spark: SparkSession, folder: Path, store: txnlog.Store, count: int, repetitions: int
) -> list[str]:
    """Writes of few and many tasks to few and many partitions, each beside its own ceiling."""
    lines = [
        "| write lz4 | seconds | M rows/s | of the no-op writer | of Parquet zstd |",
        "|---|---|---|---|---|",
    ]
    for tasks in (4, 8):
        parquet = folder / f"rows-{tasks}.parquet"
        write_parquet(parquet, count, files=tasks)
        source = spark.read.parquet(str(parquet)).repartition(tasks).persist()
        source.count()
        for partitions in (2, 200):
            targets = _Targets(store, folder)
            runs: dict[str, Callable[[], object]] = {
                "no-op": source.write.format("noop_arrow").mode("append").save,
                "ours": partial(targets.write_ours, source, partitions, "lz4"),
                "parquet": partial(targets.write_parquet, source),
            }
            # ext4 creates files slowly for some seconds after many were deleted.
            cleanups = {} if partitions > PARTITIONS else dict.fromkeys(runs, targets.remove)
            measured = interleaved(runs, repetitions, cleanups)
            targets.remove()
            taken = {name: of.elapsed_s for name, of in measured.items()}
            ours = taken["ours"]
            lines.append(
                f"| {tasks} tasks, {partitions} partitions | {ours:.2f} | {count / ours / 1e6:.2f} "
                f"| {taken['no-op'] / ours:.2f} | {taken['parquet'] / ours:.2f} |"
            )
        source.unpersist()
    return lines


class _Targets:
    """A new place for each write."""

    def __init__(self, store: txnlog.Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._numbers = itertools.count()
        self._topics: list[str] = []
        self._parquet: list[Path] = []

    def write_ours(self, source: DataFrame, partitions: int, codec: str) -> None:
        topic = f"written-{next(self._numbers)}"
        self._store.topics.create(topic, partitions=partitions, config={"compression.type": codec})
        self._topics.append(topic)
        _write_ours(source, self._store.url, topic)

    def write_parquet(self, source: DataFrame) -> None:
        self._parquet.append(self._folder / f"written-{next(self._numbers)}.parquet")
        source.write.option("compression", "zstd").parquet(str(self._parquet[-1]))

    def remove(self) -> None:
        while self._topics:
            self._store.topics.delete(self._topics.pop())
        while self._parquet:
            shutil.rmtree(self._parquet.pop())


def _small_jobs(spark: SparkSession, store: txnlog.Store, repetitions: int) -> list[str]:
    """The cost of a job with next to nothing to do."""
    store.topics.create("small", partitions=2)
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
        settle_s=0.3,
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


def _table(
    verb: str, taken: dict[str, Taken], ceiling_of: Callable[[str], Taken], count: int
) -> list[str]:
    parquet = taken["Parquet zstd"]
    lines = [
        f"| {verb} | seconds | M rows/s | MB/s | of the ceiling | CPU s | by CPU | of Parquet |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, of in taken.items():
        rate, ceiling = count / of.elapsed_s, ceiling_of(name)
        speed = f"{rate / 1e6:.2f} | {rate * ROW_BYTES / 1e6:.0f}"
        ratio = f"{ceiling.elapsed_s / of.elapsed_s:.2f}"
        by_cpu = f"{of.cpu_s:.2f} | {ceiling.cpu_s / max(of.cpu_s, 0.01):.2f}"
        beside = f"{parquet.elapsed_s / of.elapsed_s:.2f}"
        lines.append(f"| {name} | {of.elapsed_s:.2f} | {speed} | {ratio} | {by_cpu} | {beside} |")
    return lines
