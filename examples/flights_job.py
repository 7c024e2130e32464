"""The Spark job of the demo, made to be copied: consume, transform, produce, exactly once.

Each batch is one transaction. It reads new flights from where the consumer group stands, writes to
three topics and moves the group's offsets. Readers see all of that at the same instant or never,
wherever the job is killed; started again, it goes on where the last committed batch ended.

    python examples/flights_job.py --store demo-store
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from txnlog import Store
from txnlog.spark import TransactionResult, transaction

JOB = "flights-etl"  # names the transactional id and the consumer group
LATE_MINUTES = 15

FLIGHT = "year int, month int, day int, carrier string, dep_time int, dep_delay int"
"""What the job needs of a flight's JSON."""


def run_batch(spark: SparkSession, store: str | Store, batch_size: int) -> TransactionResult | None:
    """Process at most ``batch_size`` new flights in one transaction; None if there are none."""
    with transaction(
        spark, store, transactional_id=JOB, group_id=JOB, max_records=batch_size
    ) as txn:
        records = txn.read("flights", columns=["key", "value", "timestamp"])
        if txn.consumed_records == 0:
            return None
        flights = records.withColumn("flight", sf.from_json(sf.decode("value", "utf-8"), FLIGHT))
        txn.write(delayed(flights), topic="delayed")
        txn.write(daily_totals(flights), topic="totals")
        txn.write(dead_letters(flights), topic="dead-letters")
    return txn.result  # leaving the block has committed everything


def delayed(flights: DataFrame) -> DataFrame:
    """The flights that left late, as they came."""
    late = flights.where(sf.col("flight.dep_delay") > LATE_MINUTES)
    return late.select("key", "value", "timestamp")


def daily_totals(flights: DataFrame) -> DataFrame:
    """What this batch adds to each carrier's day; a reader sums it over the batches."""
    departed = flights.where("flight.dep_time is not null").select("flight.*")
    totals = departed.groupBy("carrier", sf.make_date("year", "month", "day").alias("date")).agg(
        sf.count("*").alias("flights"),
        sf.count_if(sf.col("dep_delay") > LATE_MINUTES).alias("delayed"),
        sf.sum("dep_delay").alias("delay_minutes"),
    )
    return totals.select(
        sf.concat_ws(" ", "carrier", "date").alias("key"),
        sf.to_json(sf.struct("*")).alias("value"),
    )


def dead_letters(flights: DataFrame) -> DataFrame:
    """What cannot be processed, as it came, with a header that says why."""
    reason = sf.struct(
        sf.lit("reason").alias("key"),
        sf.encode(sf.lit("no departure time"), "utf-8").alias("value"),
    )
    malformed = flights.where("flight.dep_time is null")
    return malformed.select("key", "value", "timestamp", sf.array(reason).alias("headers"))


def run(store: str | Store, batch_size: int) -> None:
    """Run batches until the group has read everything."""
    began = time.perf_counter()
    spark = start_spark()
    print(f"   Spark is up after {time.perf_counter() - began:.1f} s", flush=True)
    batch = 0
    began = time.perf_counter()
    while result := run_batch(spark, store, batch_size):
        batch += 1
        print(f"   batch {batch}: {told(result)}  {time.perf_counter() - began:.1f} s", flush=True)
        began = time.perf_counter()
    spark.stop()
    print("   no flights are left", flush=True)


def told(result: TransactionResult) -> str:
    """One line about a batch."""
    consumed = sum(len(offsets) for offsets in result.consumed.values())
    written = Counter[str]()
    for where, places in result.written.items():
        written[where.topic] += sum(len(offsets) for offsets in places)
    outputs = ", ".join(f"{count:,} {topic}" for topic, count in written.items())
    return f"{consumed:,} flights -> {outputs}"


def start_spark() -> SparkSession:
    """A quiet Spark on two cores of this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark would take python3 from PATH
    return (
        SparkSession.builder.master("local[2]")
        .appName(JOB)
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.execution.arrow.maxBytesPerBatch", (1 << 31) - 1)  # rows are small
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .getOrCreate()
    )


def arguments() -> argparse.ArgumentParser:
    """The command line, without what flights_crash.py adds to it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", required=True, help="path or URL of the store")
    parser.add_argument("--batch-size", type=int, default=100_000, help="flights a transaction")
    return parser


if __name__ == "__main__":
    given = arguments().parse_args()
    run(given.store, given.batch_size)
