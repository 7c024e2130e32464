"""A driver of its own for the tests that kill it: copies topic ``in`` to ``out`` as a stream.

    python stream_job.py STORE CHECKPOINT MAX_OFFSETS forever|available

Says "started" when the query runs, and "batch" after each one. Is also imported, for its name.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from txnlog.spark import register


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Telling(StreamingQueryListener):
    """Says what happens to the query."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: ARG002, N802
        say("started")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: ARG002, N802
        say("batch")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The process ends then."""


def main(path: str, checkpoint: str, max_offsets: str, until: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    register(spark)
    spark.streams.addListener(Telling())
    source = {
        "path": path,
        "subscribe": "in",
        "startingOffsets": "earliest",
        "group.id": "g",
        "maxOffsetsPerTrigger": max_offsets,
    }
    frame = spark.readStream.format("txnlog").options(**source).load().select("key", "value")
    sink = {"path": path, "topic": "out", "checkpointLocation": checkpoint}
    writer = frame.writeStream.format("txnlog").options(**sink)
    query = (writer.trigger(availableNow=True) if until == "available" else writer).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
