"""Spark with topics of keys and values, beside its own Parquet: jobs as users write them.

Nothing is set but what a row names, so these are the defaults: of topics, and of reads.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rows import ROW_BYTES, write_parquet
from timing import Taken, interleaved

import txnlog
from txnlog.spark import maintain, read, register, transaction

PARTITIONS = 8
_TOPICS: Mapping[str, Mapping[str, str]] = {
    "by default": {},
    "`record.format=columns`": {"record.format": "columns"},
}
CHANGE = "upper(CAST(value AS STRING)) AS value"


def measure(spark: SparkSession, folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: seconds, and how many times as fast as Spark's own Parquet each is."""
    register(spark)
    spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    write_parquet(folder / "rows.parquet", count, files=4)
    source = spark.read.parquet(str(folder / "rows.parquet"))
    beside = _Parquet(spark, folder)
    ours = {
        name: Topics(spark, txnlog.open(str(folder / f"store-{number}"), create=True), config)
        for number, (name, config) in enumerate(_TOPICS.items())
    }
    places: dict[str, _Parquet | Topics] = {"Parquet": beside, **ours}
    for place in places.values():
        place.write("rows", source)
    found: list[tuple[str, dict[str, Taken]]] = []
    for job, run in _jobs().items():
        runs: dict[str, Callable[[], object]] = {
            name: partial(run, place) for name, place in places.items()
        }
        if job.startswith("write"):
            runs = {name: partial(place.write, None, source) for name, place in places.items()}
        cleanups = {name: place.remove for name, place in places.items()}
        found.append((job, interleaved(runs, repetitions, cleanups)))
    head = "".join(f" {name} | / Parquet's | by CPU |" for name in ours)
    lines = [
        "Speed: above 1 is faster than Parquet.",
        "",
        f"| job | Parquet, s |{head}",
        f"|---|---|{'---|' * 3 * len(ours)}",
    ]
    for job, taken in found:
        own = taken["Parquet"]
        cells = [
            f" {taken[name].elapsed_s:.2f} | {own.elapsed_s / taken[name].elapsed_s:.2f} "
            f"| {own.cpu_s / max(taken[name].cpu_s, 0.01):.2f} |"
            for name in ours
        ]
        lines.append(f"| {job} | {own.elapsed_s:.2f} |{''.join(cells)}")
    return [*lines, "", *_bytes(spark, beside, ours, count)]


def _jobs() -> dict[str, Callable[[_Parquet | Topics], object]]:
    def drain(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    return {
        "write": lambda _: None,
        "read, values": lambda at: (
            at.read("rows", "value").selectExpr("sum(length(value))").first()
        ),
        "read, keys": lambda at: at.read("rows", "key").selectExpr("sum(length(key))").first(),
        "`count()`": lambda at: at.read("rows", "key,value").count(),
        "keys and values to `noop`": lambda at: drain(at.read("rows", "key,value")),
        "one key of 200,000": lambda at: (
            at.read("rows", "key,value").where(f"key = CAST('{0:016}' AS BINARY)").count()
        ),
        "consume, transform, produce": lambda at: at.transform("rows"),
    }


class _Parquet:
    """Spark's own files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._numbers = itertools.count()
        self._made: list[Path] = []

    def path(self, name: str) -> Path:
        return self._folder / f"{name}-beside.parquet"

    def write(self, name: str | None, source: DataFrame) -> None:
        if name is None:
            name = f"made-{next(self._numbers)}"
            self._made.append(self.path(name))
        source.write.parquet(str(self.path(name)))

    def read(self, name: str, columns: str) -> DataFrame:
        return self._spark.read.parquet(str(self.path(name))).select(columns.split(","))

    def transform(self, name: str) -> None:
        self.write(None, self.read(name, "key,value").selectExpr("key", CHANGE))

    def remove(self) -> None:
        while self._made:
            shutil.rmtree(self._made.pop())


class Topics:
    """Topics of one store."""

    def __init__(self, spark: SparkSession, store: txnlog.Store, config: Mapping[str, str]) -> None:
        self._spark = spark
        self._config = config
        self._numbers = itertools.count()
        self._made: list[str] = []
        self.store = store

    def _create(self, name: str | None) -> str:
        if name is None:
            name = f"made-{next(self._numbers)}"
            self._made.append(name)
        self.store.topics.create(name, partitions=PARTITIONS, config=self._config)
        return name

    def write(self, name: str | None, source: DataFrame) -> None:
        options = {"path": self.store.url, "topic": self._create(name)}
        source.write.format("txnlog").options(**options).mode("append").save()

    def read(self, name: str, columns: str) -> DataFrame:
        return read(self._spark, self.store, name, columns=columns)

    def transform(self, name: str) -> None:
        target = self._create(None)
        group = f"g-{next(self._numbers)}"
        with transaction(self._spark, self.store, transactional_id=group, group_id=group) as txn:
            consumed = txn.read(name, columns="key,value")
            txn.write(consumed.selectExpr("key", CHANGE), topic=target)

    def remove(self) -> None:
        while self._made:
            self.store.topics.delete(self._made.pop())

    def stored_bytes(self, name: str) -> int:
        return sum(segment.size_bytes for segment in self.store.topics.segments(name))


def _bytes(
    spark: SparkSession, beside: _Parquet, ours: Mapping[str, Topics], count: int
) -> list[str]:
    own = sum(file.stat().st_size for file in beside.path("rows").glob("*.parquet"))
    lines = [
        "| stored bytes / Parquet zstd's | after the write | after `maintain` |",
        "|---|---|---|",
    ]
    for name, topics in ours.items():
        before = topics.stored_bytes("rows")
        maintain(spark, topics.store.url, topics=["rows"])
        lines.append(f"| {name} | {before / own:.2f} | {topics.stored_bytes('rows') / own:.2f} |")
    return [*lines, "", f"Parquet takes {own / count:.0f} bytes for a row of {ROW_BYTES}."]
