"""What the Spark tests share. Also imported by Spark's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from txnlog import Store


def load(
    spark: SparkSession, store: Store, topic: str | None = None, **options: object
) -> DataFrame:
    """Read; keyword names are option names with '_' for '.'."""
    given = {"path": store.url, **({"subscribe": topic} if topic else {}), **dotted(options)}
    return spark.read.format("txnlog").options(**given).load()


def save(frame: DataFrame, store: Store, topic: str | None = None, **options: object) -> None:
    """Append; keyword names are option names with '_' for '.'."""
    given = {"path": store.url, **({"topic": topic} if topic else {}), **dotted(options)}
    frame.write.format("txnlog").options(**given).mode("append").save()


def dotted(options: Mapping[str, object]) -> dict[str, str]:
    """Options by keyword names, in which '_' stands for '.'."""
    return {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def numbers(spark: SparkSession, start: int, stop: int, tasks: int = 2) -> DataFrame:
    """Rows (key, value), both the number as text."""
    text = sf.col("id").cast("string")
    return spark.range(start, stop, 1, tasks).select(text.alias("key"), text.alias("value"))


def fill(store: Store, topic: str, start: int, stop: int) -> None:
    """Append numbers without Spark, in one atomic append; keys and values are their text."""
    with store.producer() as producer:
        for number in range(start, stop):
            producer.send(topic, value=b"%d" % number, key=b"%d" % number)


def values(frame: DataFrame) -> list[int]:
    """The values of a DataFrame as sorted numbers."""
    return sorted(int(row["value"]) for row in frame.select("value").collect())


def stored(store: Store, topic: str) -> list[int]:
    """The values of a topic as sorted numbers, read without Spark."""
    column = store.scan(topic, columns=["value"]).to_arrow().column("value")
    return sorted(int(value) for value in column.to_pylist())


def data_files(store: Store) -> list[str]:
    """The names of all segment files in the store, placed or not."""
    return sorted(path.name for path in Path(store.url).glob("topics/*/data/*/*.log"))


def placed_files(store: Store) -> list[str]:
    """The names of the segment files that log entries name."""
    paths = {s.paths.log for topic in store.topics.list() for s in store.topics.segments(topic)}
    return sorted(Path(path).name for path in paths)


def rows(frame: DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows as sorted tuples."""
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def explained(frame: DataFrame) -> str:
    """The plan, in full."""
    with redirect_stdout(StringIO()) as plan:
        frame.explain("formatted")
    return plan.getvalue()
