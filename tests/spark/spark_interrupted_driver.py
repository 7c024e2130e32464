"""A driver whose blocks are interrupted: by SIGINT, by a session that is stopped.

Run as ``python spark_interrupted_driver.py URL FOLDER HOW...``, with the named pipes of
``Straggle`` in FOLDER. Says what came out of each block and waits for a line; after the last one
it does the work as ``spark_driver`` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.spark_driver import run as run_loop
from tests.spark.spark_driver import say, session, summed, tripled
from tests.spark.spark_faults import Straggle, faulty
from txnlog.spark import SparkTransaction, register, transaction


def interrupted(spark: SparkSession, txn: SparkTransaction, folder: str) -> None:
    """SIGINT comes while the write hangs."""
    spark.dataSource.register(faulty(Straggle(Path(folder))))
    txn.write(tripled(txn.read("in", columns=["key", "value"])), topic="out")


def stopped(spark: SparkSession, txn: SparkTransaction, _: str) -> None:
    """The last thing that the block does is to stop the session."""
    txn.write(tripled(txn.read("in", columns=["key", "value"])), topic="out")
    spark.stop()


def stopped_early(spark: SparkSession, txn: SparkTransaction, _: str) -> None:
    """A write finds the session stopped."""
    new = tripled(txn.read("in", columns=["key", "value"]))
    spark.stop()
    txn.write(new, topic="out")


HOW = {"interrupted": interrupted, "stopped": stopped, "stopped-early": stopped_early}


def run(url: str, folder: str, *names: str) -> None:
    for name in names:
        spark = session()
        register(spark)
        try:
            with transaction(spark, url, transactional_id="etl", group_id="g") as txn:
                txn.write(summed(spark.range(5).selectExpr("string(id) as value")), topic="sums")
                say("begun")
                HOW[name](spark, txn, folder)
        except BaseException as error:  # noqa: BLE001 - the test judges it, whatever it is
            say("left by", type(error).__name__)
        if not sys.stdin.readline():
            return
    run_loop("transaction", url, "etl", "g", "1000")


if __name__ == "__main__":
    run(*sys.argv[1:])
