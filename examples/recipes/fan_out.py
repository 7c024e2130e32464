"""Fan-out: each flight to the topic of its airport, what has no departure to a dead-letter topic.

    python examples/recipes/fan_out.py --store demo-store

The column ``topic`` says where a row goes. All topics and the group's offsets are committed at the
same instant; run it again and it goes on where it stopped.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from recipe import main, make_topic, parsed

from txnlog.spark import SparkTransaction, catch_up

AIRPORTS = ("EWR", "JFK", "LGA")
DEAD_LETTERS = "not-departed"


def run(spark: SparkSession, root: str) -> None:
    """Route whatever is new."""
    for topic in (*(f"from-{airport}" for airport in AIRPORTS), DEAD_LETTERS):
        make_topic(root, topic)
    done = catch_up(
        spark, root, route, transactional_id="fan-out", group_id="fan-out", max_records=200_000
    )
    print(f"{done.consumed_records:,} flights in {done.transactions} transactions")


def route(txn: SparkTransaction) -> None:
    """One transaction: read what is new, give every row its topic and, if it is dead, a reason."""
    flights = parsed(txn.read("flights", columns=["key", "value", "timestamp"]))
    dead = sf.col("flight.dep_time").isNull()
    reason = sf.struct(
        sf.lit("reason").alias("key"), sf.encode(sf.lit("no departure"), "utf-8").alias("value")
    )
    routed = flights.select(
        "key",
        "value",
        "timestamp",
        sf.when(dead, DEAD_LETTERS)
        .otherwise(sf.concat(sf.lit("from-"), "flight.origin"))
        .alias("topic"),
        sf.when(dead, sf.array(reason)).alias("headers"),
    )
    txn.write(routed)


if __name__ == "__main__":
    main(run, __doc__)
