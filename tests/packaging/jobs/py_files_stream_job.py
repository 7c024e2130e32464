"""For spark-submit --py-files: a stream from topic to topic, with txnlog from the file given.

    py_files_stream_job.py STORE CHECKPOINT

Prints one line of JSON: how many records were copied, and what `check` has found.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import txnlog
from txnlog.spark import check, register


def main(root: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    store = txnlog.open(root, create=True)
    store.topics.create("in", partitions=2)
    store.topics.create("out", partitions=2)
    with store.producer() as producer:
        for number in range(100):
            producer.send("in", b"%d" % number)
    register(spark)
    rows = (
        spark.readStream.format("txnlog")
        .options(path=root, subscribe="in", startingOffsets="earliest")
        .load()
    )
    written = rows.writeStream.format("txnlog").options(path=root, topic="out")
    written = written.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    written.start().awaitTermination()
    said = {"copied": store.scan("out").record_count, "check": str(check(spark, root))}
    spark.stop()
    print(json.dumps(said))


main(*sys.argv[1:])
