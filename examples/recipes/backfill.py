"""Backfill by timestamp: copy the flights of February 2013 to a topic of their own.

    python examples/recipes/backfill.py --store demo-store

The two times become offsets when the DataFrame is loaded: in each partition the first record at or
after a time. A start by time misses nothing. An end by time would miss records that came late, so
there is a day more; the filter then makes it exact.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from recipe import main, make_topic

FIRST = datetime(2013, 2, 1, tzinfo=UTC)
NEXT = datetime(2013, 3, 1, tzinfo=UTC)
LATE = timedelta(days=1)


def run(spark: SparkSession, root: str) -> None:
    """Copy the month in one atomic write."""
    make_topic(root, "february", partitions=4)
    around = (
        spark.read.format("txnlog")
        .option("path", root)
        .option("subscribe", "flights")
        .option("startingTimestamp", int(FIRST.timestamp() * 1000))
        .option("endingTimestamp", int((NEXT + LATE).timestamp() * 1000))
        .option("startingOffsetsByTimestampStrategy", "latest")  # partitions without a February
        .load()
    )
    month = around.where((sf.col("timestamp") >= FIRST) & (sf.col("timestamp") < NEXT))
    writer = month.select("key", "value", "timestamp").write.format("txnlog")
    writer.options(path=root, topic="february").mode("append").save()


if __name__ == "__main__":
    main(run, __doc__)
