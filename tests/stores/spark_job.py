"""A transaction of Spark on a store of its own, in a process of its own, which ends with the job.

Nothing but the options of the open store, which come through stdin, tells the job's tasks who they
are. Kerberos needs a file of settings besides: the JVM and its workers have the environment of this
process, which names it.
"""

from __future__ import annotations

import json
import os
import sys
import time

RECORDS = 1000


def main(url: str) -> None:
    """Copy one topic to another; tells how many seconds the transaction took."""
    options = json.loads(sys.stdin.read())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        os.environ.pop(name, None)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import txnlog
    from txnlog.spark import transaction

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    store = txnlog.open(url, create=True, storage_options=options)
    for topic in ("in", "out"):
        store.topics.create(topic, partitions=2)
    with store.producer() as producer:
        for number in range(RECORDS):
            producer.send("in", b"%d" % number)
    begun_s = time.perf_counter()
    with transaction(spark, store, transactional_id="etl", group_id="g") as txn:
        new = txn.read("in")
        txn.write(new.drop("partition").repartition(3), topic="out")
    sys.stdout.write(f"{time.perf_counter() - begun_s}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
