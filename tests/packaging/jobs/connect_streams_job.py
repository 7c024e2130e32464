"""For a client of Spark Connect whose server has txnlog: streams.

    connect_streams_job.py FOLDER

Copies the topic ``in`` of the store ``FOLDER/store`` to ``out``, and tries foreach_batch. Prints
what became of that.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

from txnlog.spark import SparkTransaction, foreach_batch


def copy(txn: SparkTransaction, batch: DataFrame) -> None:
    txn.write(batch, topic="out")


def main(folder: str) -> None:
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    # Of a worker that starts on a busy machine.
    spark = builder.config("spark.python.authenticate.socketTimeout", "5m").getOrCreate()
    root = f"{folder}/store"
    new = spark.readStream.format("txnlog").options(
        path=root, subscribe="in", startingOffsets="earliest"
    )
    writer = new.load().writeStream.format("txnlog").options(path=root, topic="out")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()

    writer = new.load().writeStream.foreachBatch(foreach_batch(root, copy))
    writer = writer.option("checkpointLocation", f"{folder}/other-checkpoint")
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:  # noqa: BLE001 - whatever it says is wanted
        print(error)
    spark.stop()


main(sys.argv[1])
