"""A small batch that is committed once, however often it is repeated: into a topic, into Delta.

For this Spark there is no Delta of its own, so deltalake writes the table on the driver, which is
what a user of such a Spark does in ``foreachBatch``; ``beside_delta.py`` has Spark's own.
deltalake syncs no file; ours are synced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from timing import Taken, interleaved

import txnlog
from txnlog.spark import SparkTransaction, transaction

PARTITIONS = 4
ROWS = 20_000
_CODEC = {"compression.type": "zstd"}
_TURNS = 5
"""Of each kind, for each repetition that is asked for: they are short."""
_KINDS: Final = {
    "a DataFrame, in Spark's tasks": "Delta of a DataFrame",
    "a DataFrame, by the driver, as deltalake": "Delta of a DataFrame",
    "a DataFrame, by the driver, into one partition": "Delta of a DataFrame",
    "a DataFrame through Python tasks, to `noop`": "Delta of a DataFrame",
    "an Arrow table without Spark, into one partition": "Delta of an Arrow table",
    f"the same, spread over {PARTITIONS} partitions": "Delta of an Arrow table",
}
"""What is measured, and beside what."""


def measure(
    spark: SparkSession, store: txnlog.Store, flights: pa.Table, folder: Path, repetitions: int
) -> list[str]:
    """Lines of Markdown."""
    rows = flights.slice(0, ROWS).combine_chunks()
    source = folder / "micro-batch.parquet"
    pq.write_table(rows, source, compression="zstd")
    frame = spark.read.parquet(str(source))
    runs = [*_in_spark(spark, store, frame, rows.schema), *_to_delta(folder, frame, rows)]
    with _by_producers(store, rows) as without_spark:
        taken = interleaved(dict([*runs, *without_spark]), _TURNS * repetitions)
    head = f"| a micro-batch of {ROWS:,} rows | ours, s | deltalake, s | ours / deltalake's |"
    lines = [f"{head} by CPU time |", "|---|---|---|---|---|"]
    return [*lines, *(_line(kind, taken[kind], taken[beside]) for kind, beside in _KINDS.items())]


_Runs = Iterator[tuple[str, Callable[[], object]]]


def _in_spark(
    spark: SparkSession, store: txnlog.Store, frame: DataFrame, schema: pa.Schema
) -> _Runs:
    numbers = itertools.count()

    def commit(topic: str, write: Callable[[SparkTransaction], None]) -> None:
        version = next(numbers)
        with transaction(
            spark, store, transactional_id=topic, application_id="bench", version=version
        ) as txn:
            write(txn)

    writes: tuple[Callable[[SparkTransaction], None], ...] = (
        lambda txn: txn.write(frame, topic="by-tasks"),
        lambda txn: txn.send_batch("by-driver", frame.toArrow()),
        lambda txn: txn.send_batch("into-one", frame.toArrow(), partition=0),
    )
    topics = ("by-tasks", "by-driver", "into-one")
    for kind, topic, write in zip(_KINDS, topics, writes, strict=False):
        store.topics.create(topic, partitions=PARTITIONS, schema=schema, config=_CODEC)
        yield kind, partial(commit, topic, write)
    through = frame.mapInArrow(lambda rows: rows, frame.schema)
    save = through.write.format("noop").mode("overwrite").save
    yield "a DataFrame through Python tasks, to `noop`", save


def _to_delta(folder: Path, frame: DataFrame, rows: pa.Table) -> _Runs:
    numbers = itertools.count()

    def write(name: str, made: Callable[[], pa.Table]) -> None:
        once = CommitProperties(app_transactions=[Transaction("bench", next(numbers))])
        write_deltalake(
            folder / name,
            made(),
            mode="append",
            writer_properties=WriterProperties(compression="ZSTD"),
            commit_properties=once,
        )

    yield "Delta of a DataFrame", partial(write, "delta-of-frames", frame.toArrow)
    yield "Delta of an Arrow table", partial(write, "delta-of-tables", lambda: rows)


@contextmanager
def _by_producers(store: txnlog.Store, rows: pa.Table) -> Iterator[_Runs]:
    """Into one partition after the other, as the sticky partitioner has it, and spread over all."""

    def commit(producer: txnlog.Producer, topic: str) -> None:
        with producer.transaction():
            producer.send_batch(topic, rows)

    for topic in ("sticky", "spread"):
        store.topics.create(topic, partitions=PARTITIONS, schema=rows.schema, config=_CODEC)
    with (
        store.producer(transactional_id="sticky", partitioner="sticky") as sticky,
        store.producer(transactional_id="spread") as spread,
    ):
        sticky.init_transactions()
        spread.init_transactions()
        *_, into_one, over_all = _KINDS
        runs = {
            into_one: partial(commit, sticky, "sticky"),
            over_all: partial(commit, spread, "spread"),
        }
        yield iter(runs.items())


def _line(kind: str, ours: Taken, other: Taken) -> str:
    by_cpu = ours.cpu_s / other.cpu_s if other.cpu_s else 0.0
    ratio = ours.elapsed_s / other.elapsed_s
    figures = f"{ours.elapsed_s:.3f} | {other.elapsed_s:.3f} | {ratio:.2f} | {by_cpu:.2f}"
    return f"| {kind} | {figures} |"
