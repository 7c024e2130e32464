"""What the recipes share: their command line, a quiet Spark, topics that may be there already."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import txnlog

FLIGHT = "year int, month int, day int, carrier string, origin string, dep_time int, distance int"


def main(run: Callable[[SparkSession, str], None], what: str | None) -> None:
    """Run a recipe on the store that the command line names; `make demo` makes one."""
    parser = argparse.ArgumentParser(description=(what or "").partition("\n")[0])
    parser.add_argument("--store", default="demo-store", help="path or URL of the store")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark would take python3 from PATH
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .getOrCreate()
    )
    run(spark, given.store)
    spark.stop()


def make_topic(root: str, topic: str, partitions: int = 1) -> None:
    """Create a topic unless it is there."""
    store = txnlog.open(root)
    if topic not in store.topics.list():
        store.topics.create(topic, partitions=partitions)


def parsed(records: DataFrame) -> DataFrame:
    """Records with the column ``flight``: what the recipes need of the JSON in their values."""
    return records.withColumn("flight", sf.from_json(sf.decode("value", "utf-8"), FLIGHT))
