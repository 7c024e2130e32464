"""A transaction of Spark in YARN's application master, whose first driver is killed in the middle.

    yarn_job.py STORE

The driver is killed once everything is uploaded and nothing committed; YARN starts another one. Its
last transaction says in the topic "checked" what `check` has found.
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import SparkSession

import txnlog
from txnlog.spark import check, transaction

RECORDS = 1000
_FIRST = "_01_"
"""In the name of a container of an application's first attempt."""


def main(url: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    store = txnlog.open(url)
    with transaction(spark, store, transactional_id="etl", group_id="g") as txn:
        txn.write(txn.read("in").select("key", "value").repartition(3), topic="out")
        if _FIRST in os.environ["CONTAINER_ID"]:
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
    with store.producer() as producer:
        producer.send("checked", str(check(spark, url)))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
