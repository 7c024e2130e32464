"""Enrichment: flights get their airline's name; those of an unknown one are dead letters.

    python examples/recipes/enrich.py --store demo-store

The flights are consumed, the airlines are looked up: `txn.read_whole` reads all of them each time.
With `txn.read` the second run would find no airline any more, and every flight would be dead.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from recipe import main, make_topic, parsed

import txnlog
from txnlog.spark import SparkTransaction, catch_up

AIRLINES, NAMED, DEAD_LETTERS = "airlines", "named-flights", "unknown-airline"
NAMES = {"AA": "American", "B6": "JetBlue", "DL": "Delta", "EV": "ExpressJet", "UA": "United"}


def run(spark: SparkSession, root: str) -> None:
    """Name whatever is new."""
    for topic in (AIRLINES, NAMED, DEAD_LETTERS):
        make_topic(root, topic)
    store = txnlog.open(root)
    if not store.scan(AIRLINES).record_count:
        with store.producer() as producer:
            for carrier, airline in NAMES.items():
                producer.send(AIRLINES, airline, carrier)
    done = catch_up(spark, root, add_names, transactional_id="naming", group_id="naming")
    print(f"{done.consumed_records:,} flights in {done.transactions} transactions")


def add_names(txn: SparkTransaction) -> None:
    """One transaction: what is new, joined with the newest name of each airline."""
    flights = parsed(txn.read("flights", columns="key,value,timestamp"))
    names = txn.read_whole(AIRLINES, columns="key,value", latest=True)  # after txn.read
    airlines = names.select(
        sf.decode("key", "utf-8").alias("carrier"), sf.col("value").alias("airline")
    )
    joined = flights.join(
        sf.broadcast(airlines), flights["flight.carrier"] == airlines["carrier"], "left"
    )
    name = sf.struct(sf.lit("airline").alias("key"), sf.col("airline").alias("value"))
    known = sf.col("airline").isNotNull()
    txn.write(
        joined.select(
            "key",
            "value",
            "timestamp",
            sf.when(known, NAMED).otherwise(DEAD_LETTERS).alias("topic"),
            sf.when(known, sf.array(name)).alias("headers"),
        )
    )


if __name__ == "__main__":
    main(run, __doc__)
