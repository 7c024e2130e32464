"""The newest record of each key in Spark: beside a scan, and a window over Spark's own Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from timing import interleaved

import txnlog
from txnlog.admin.compaction.compact import compact_topic
from txnlog.admin.times import Times
from txnlog.spark import read, register

_NUMBERS = [f"n{number}" for number in range(8)]
_TYPED = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), *((n, pa.int64()) for n in _NUMBERS)]
)
_BATCH_ROWS = 100_000
_COLUMNS = (
    "topic",
    "records",
    "scan",
    "latest=True",
    "window over Parquet",
    "window / latest=True",
)


def measure(spark: SparkSession, folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: topics that have each of ``count`` keys twice, and compacted ones."""
    register(spark)
    store = txnlog.open(str(folder / "spark-latest"), create=True)
    lines = [
        (
            f"In Spark, {count:,} keys in 4 partitions, median of {repetitions} alternating runs, "
            "CPU seconds: keys of 16 bytes with values of 100, or 10 columns with the key in one; "
            "twice each, or compacted and then 1 % of them again. The window is Spark's own, "
            "`row_number() = 1` by offset, over the same rows in Spark's own Parquet files."
        ),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for is_typed in (False, True):
        for is_compacted in (False, True):
            kind = "10 columns" if is_typed else "keys and values"
            topic = f"{kind[0]}{is_compacted:d}"
            records = _fill(store, topic, count, is_typed=is_typed, is_compacted=is_compacted)
            scan, latest, window = _compare(spark, store, topic, folder / topic, repetitions)
            lines.append(
                f"| {kind}{', compacted' * is_compacted} | {records:,} | {scan:.2f} | {latest:.2f} "
                f"| {window:.2f} | {window / latest:.2f} |"
            )
    return lines


def _compare(
    spark: SparkSession, store: txnlog.Store, topic: str, target: Path, repetitions: int
) -> Iterator[float]:
    typed = "_" * (store.topics.describe(topic).schema is not None)
    key, offset = "id" if typed else "key", f"{typed}offset"
    everything = read(spark, store, topic)
    places = [name for name in everything.columns if name != offset]
    read(spark, store, topic, columns=[*places, offset]).write.parquet(str(target))
    by_offset = Window.partitionBy(key).orderBy(sf.desc(offset))
    rows = spark.read.parquet(str(target))
    window = rows.withColumn("n", sf.row_number().over(by_offset)).where("n = 1").drop("n", offset)
    runs: dict[str, Callable[[], object]] = {
        "scan": partial(_run, everything),
        "latest": lambda: _run(read(spark, store, topic, latest=True)),
        "window": partial(_run, window),
    }
    found = interleaved(runs, repetitions)
    return (found[name].cpu_s for name in runs)


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _fill(
    store: txnlog.Store, topic: str, count: int, *, is_typed: bool, is_compacted: bool
) -> int:
    """The number of records that are there."""
    if is_typed:
        store.topics.create(topic, partitions=4, schema=_TYPED, key=["id"])
    else:
        store.topics.create(topic, partitions=4)
    random = np.random.default_rng(3)
    _write(store, topic, random.permutation(count), is_typed=is_typed)
    if not is_compacted:
        _write(store, topic, random.permutation(count), is_typed=is_typed)
        return 2 * count
    store.topics.alter(topic, config={"cleanup.policy": "compact"})
    if not [*compact_topic(store.logs, topic, Times(store.logs.clock, None), even_clean=True)]:
        raise AssertionError(f"{topic} was not compacted")
    again = random.permutation(count)[: count // 100]
    _write(store, topic, again, is_typed=is_typed)
    return count + len(again)


def _write(store: txnlog.Store, topic: str, numbers: np.ndarray, *, is_typed: bool) -> None:
    with store.producer() as producer:
        for start in range(0, len(numbers), _BATCH_ROWS):
            some = numbers[start : start + _BATCH_ROWS]
            names = pa.array(np.char.zfill(some.astype("S16"), 16).tolist())
            if is_typed:
                rows = {
                    "id": some,
                    "name": names.cast(pa.string()),
                    **dict.fromkeys(_NUMBERS, some),
                }
                producer.send_batch(topic, pa.table(rows, schema=_TYPED))
            else:
                values = pa.array([b"." * 100] * len(some))
                producer.send_batch(topic, pa.table({"key": names, "value": values}))
