"""Moving a job over from Spark's Kafka connector: three lines change.

    python examples/recipes/from_kafka.py --store demo-store

``before`` is the job as it was, and needs a broker; ``after`` is the job here.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from recipe import main, make_topic


def before(spark: SparkSession, servers: str) -> None:
    """Kafka: at least once."""
    where = {"kafka.bootstrap.servers": servers}
    reader = spark.read.format("kafka")
    flights = reader.options(**where, subscribe="flights", startingOffsets="earliest").load()
    carrier = sf.get_json_object(sf.decode("value", "utf-8"), "$.carrier")
    counts = flights.groupBy(carrier.alias("key")).agg(sf.count("*").cast("string").alias("value"))
    writer = counts.write.format("kafka")
    writer.options(**where, topic="carriers").save()


def after(spark: SparkSession, root: str) -> None:
    """txnlog: all rows or none."""
    where = {"path": root}
    reader = spark.read.format("txnlog")
    flights = reader.options(**where, subscribe="flights", startingOffsets="earliest").load()
    carrier = sf.get_json_object(sf.decode("value", "utf-8"), "$.carrier")
    counts = flights.groupBy(carrier.alias("key")).agg(sf.count("*").cast("string").alias("value"))
    writer = counts.write.format("txnlog").mode("append")
    writer.options(**where, topic="carriers").save()


def run(spark: SparkSession, root: str) -> None:
    """Run the job as it is here."""
    make_topic(root, "carriers")
    after(spark, root)


if __name__ == "__main__":
    main(run, __doc__)
