"""A stream from topic to topic: long flights, each of them once, whatever dies and when.

    python examples/recipes/streaming.py --store demo-store

Reads what is there and ends; without the trigger it would wait for more. Kill it and run it again:
it goes on from its checkpoint, and a batch that had been committed is not committed twice.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from recipe import main, make_topic, parsed

LONG_HAUL = "long-haul"
MILES = 2_000


def run(spark: SparkSession, root: str) -> None:
    """Copy whatever is new."""
    make_topic(root, LONG_HAUL, partitions=2)
    source = {
        "path": root,
        "subscribe": "flights",
        "startingOffsets": "earliest",  # of a new query; one with a checkpoint goes on from there
        "maxOffsetsPerTrigger": "100000",
        "group.id": LONG_HAUL,  # so that `txnlog groups describe long-haul` shows its lag
    }
    sink = {"path": root, "topic": LONG_HAUL, "checkpointLocation": f"{root}-checkpoints/long-haul"}
    flights = parsed(spark.readStream.format("txnlog").options(**source).load())
    long = flights.where(f"flight.distance > {MILES}").select("key", "value", "timestamp")
    query = long.writeStream.format("txnlog").options(**sink).trigger(availableNow=True).start()
    query.awaitTermination()
    read = sum(progress.numInputRows for progress in query.recentProgress)
    print(f"{read:,} flights read in {len(query.recentProgress)} triggers")


if __name__ == "__main__":
    main(run, __doc__)
