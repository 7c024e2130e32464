"""Maintenance in tasks, as the first thing that a session does.

    maintain_job.py STORE

Prints one line of JSON: what was done.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import txnlog
from txnlog.spark import maintain


def main(root: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    store = txnlog.open(root, create=True)
    store.topics.create("t")
    for _ in range(40):
        with store.producer() as producer:
            producer.send("t", b"1")
    done = [type(step).__name__ for step in maintain(spark, store, ["t"])]
    spark.stop()
    print(json.dumps(done))


main(sys.argv[1])
