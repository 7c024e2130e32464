"""What the streaming tests share."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark.spark_helpers import dotted
from txnlog import Store

READS_STREAMS = find_spec("pyspark.sql.streaming.datasource") is not None
reads_streams = pytest.mark.skipif(
    not READS_STREAMS, reason="reading a stream needs PySpark 4.2: 4.1 has no admission control"
)


def stream(
    spark: SparkSession, store: Store, topic: str | None = None, **options: object
) -> DataFrame:
    """Read a stream from the earliest; keyword names are option names with '_' for '.'."""
    given = {"path": store.url, "startingOffsets": "earliest"}
    given |= {"subscribe": topic} if topic else {}
    return spark.readStream.format("txnlog").options(**{**given, **dotted(options)}).load()


def sink(
    frame: DataFrame,
    store: Store,
    topic: str | None = None,
    checkpoint: str = "checkpoint",
    **options: object,
) -> DataStreamWriter:
    """A streaming write, with its checkpoint beside the store."""
    given = {"path": store.url, "checkpointLocation": str(folder(store, checkpoint))}
    given |= {"topic": topic} if topic else {}
    return frame.writeStream.format("txnlog").options(**{**given, **dotted(options)})


def folder(store: Store, checkpoint: str = "checkpoint") -> Path:
    return Path(store.url).parent / checkpoint


def run(writer: DataStreamWriter) -> StreamingQuery:
    """Read what is there now, and end."""
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


def forget_last_commit(store: Store, checkpoint: str = "checkpoint") -> int:
    """As if the driver had died between the sink's commit and Spark's note of it; its batch id."""
    commits = folder(store, checkpoint) / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    return last


def batches(store: Store, checkpoint: str = "checkpoint") -> list[int]:
    """The ids of the batches that Spark knows to be done."""
    commits = folder(store, checkpoint) / "commits"
    return sorted(int(path.name) for path in commits.iterdir() if path.name.isdigit())
