"""A driver on a standalone cluster: writes with a fault in a transaction, once for each topic.

Run as ``python spark_cluster_driver.py MASTER URL FOLDER``, with the named pipes of ``Straggle`` in
FOLDER. Says when each is committed; ends with a line on stdin, so that stragglers can end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.spark_driver import say, session
from tests.spark.spark_faults import Fault, Kill, Straggle, faulty, wide_numbers
from txnlog.spark import register, transaction

RECORDS = 32_000


def write(spark: SparkSession, url: str, topic: str, fault: Fault) -> None:
    register(spark)
    spark.dataSource.register(faulty(fault))
    with transaction(spark, url, transactional_id=topic) as txn:
        txn.write(wide_numbers(spark, RECORDS), topic=topic)
    say("committed", topic)


def run(master: str, url: str, folder: str) -> None:
    given = {"spark_executor_memory": "512m", "spark_sql_execution_arrow_maxRecordsPerBatch": 1000}
    # Without copies, which could outrun an attempt before it is killed.
    spark = session(master, **given)
    for topic, executor in (("worker", False), ("executor", True)):
        marker = Path(folder, f"{topic}-killed")
        write(spark, url, topic, Kill(marker, executor=executor, batches=6))
    spark.stop()
    # As fast as it can be told, so that a task that waits is soon run a second time.
    spark = session(
        master,
        **given,
        spark_speculation="true",
        spark_speculation_interval="100ms",
        spark_speculation_quantile="0.5",
        spark_speculation_multiplier="1.1",
        spark_python_task_killTimeout="1h",  # a worker that has lost may end what it does
    )
    write(spark, url, "straggler", Straggle(Path(folder), outrun=True))
    sys.stdin.readline()


if __name__ == "__main__":
    run(*sys.argv[1:])
