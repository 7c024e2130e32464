"""For spark-submit --py-files: a transaction, with txnlog taken from the file that was given.

    py_files_job.py STORE

Prints one line of JSON: where driver and workers have txnlog from, and what was committed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import txnlog
from txnlog.spark import register, shuffle_by_partition, transaction


def origin(_: Any) -> str:
    """Where the process that runs this imports txnlog from."""
    import txnlog

    return str(txnlog.__file__)


def main(root: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    store = txnlog.open(root, create=True)
    store.topics.create("in", partitions=2)
    store.topics.create("out", partitions=3)
    register(spark)
    rows = spark.range(0, 100, 1, 4).selectExpr("string(id) as key", "string(id) as value")
    rows.write.format("txnlog").options(path=root, topic="in").mode("append").save()
    with transaction(spark, store, transactional_id="job", group_id="g") as txn:
        new = txn.read("in").drop("partition")
        txn.write(shuffle_by_partition(new, store, "out"), topic="out")
    frame = spark.read.format("txnlog").options(path=root, subscribe="out").load()
    said = {
        "driver": txnlog.__file__,
        "workers": sorted(set(spark.sparkContext.range(4).map(origin).collect())),
        "committed": txn.result.written_records,
        "read": frame.count(),
    }
    spark.stop()
    print(json.dumps(said))


main(sys.argv[1])
