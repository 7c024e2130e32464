"""A Spark driver of its own, for tests that kill, race and interrupt drivers.

Run as ``python spark_driver.py FORM URL TRANSACTIONAL_ID GROUP MAX_RECORDS [hold]``. It consumes
``in``, writes three times each number to ``out`` and each batch's sum to ``sums``, batch after
batch until the group has caught up, and says line by line how far it is. FORM ``transaction`` uses
``txnlog.spark.transaction``, ``options`` the options of one read and one write. With ``hold`` the
first batch waits for a line on stdin before it commits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import txnlog
from txnlog.errors import TxnlogError
from txnlog.spark import transaction

NUMBER = "cast(cast(value as string) as long)"


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def session(master: str = "local[2]", **more: object) -> SparkSession:
    """A session that starts as fast as it can: the first compiler's code will do."""
    builder = (
        SparkSession.builder.master(master)
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.log.level", "OFF")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
    )
    for name, value in more.items():
        builder = builder.config(name.replace("_", "."), str(value))
    return builder.getOrCreate()


def tripled(new: DataFrame) -> DataFrame:
    return new.selectExpr("key", f"cast(3 * {NUMBER} as string) as value")


def summed(new: DataFrame) -> DataFrame:
    return new.selectExpr(f"cast(sum({NUMBER}) as string) as value")


def with_transaction(
    spark: SparkSession,
    url: str,
    name: str,
    group: str,
    max_records: int,
    committing: Callable[[], None],
) -> bool:
    """One batch; False if there was nothing to do."""
    with transaction(
        spark, url, transactional_id=name, group_id=group, max_records=max_records
    ) as txn:
        new = txn.read("in", columns=["key", "value"])
        if not txn.consumed_records:
            return False
        txn.write(tripled(new), topic="out")
        txn.write(summed(new), topic="sums")
        committing()
    return True


def with_options(
    spark: SparkSession,
    url: str,
    name: str,
    group: str,
    max_records: int,
    committing: Callable[[], None],
) -> bool:
    """The same as one read and one write, whose rows say where they go."""
    given = {"path": url, "transactional.id": name}
    new = (
        spark.read.format("txnlog")
        .options(**given, subscribe="in", maxRecords=max_records, columns="key,value")
        .option("group.id", group)
        .load()
    )
    out = tripled(new).withColumn("topic", sf.lit("out"))
    sums = summed(new).where("value is not null").withColumn("topic", sf.lit("sums"))
    both = out.unionByName(sums, allowMissingColumns=True)
    committing()
    both.write.format("txnlog").options(**given).mode("append").save()
    return bool(txnlog.open(url).groups.describe(group).lag)


FORMS = {"transaction": with_transaction, "options": with_options}


def run(form: str, url: str, name: str, group: str, max_records: str, *hold: str) -> None:
    spark = session()
    waiting = bool(hold)

    def committing() -> None:
        nonlocal waiting
        say("committing")
        if waiting:
            waiting = False
            sys.stdin.readline()

    going = True
    while going:
        say("begin")
        try:
            going = FORMS[form](spark, url, name, group, int(max_records), committing)
            say("committed")
        except (TxnlogError, PySparkException) as error:
            # Of an error in a process of Spark's own only the text arrives.
            told = f"{type(error).__name__}: {error}"
            if "CommitFailed" in told or "ConcurrentTransactions" in told:
                say("conflict")
            elif "ProducerFenced" in told:
                say("fenced")
                return
            else:
                raise
    say("done")


if __name__ == "__main__":
    run(*sys.argv[1:])
