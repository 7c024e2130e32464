"""Making ``format("txnlog")`` known to a Spark session."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakSet

from pyspark.sql import SparkSession

from txnlog.errors import InvalidOption
from txnlog.spark.source import TxnlogDataSource

_registered: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the data source with a session; once is enough, more do no harm.

    Not needed where txnlog is installed: Spark finds its module ``pyspark_txnlog`` by itself. But a
    thread of yours that writes must call it: Spark knows Python data sources only through the
    session that is active in the thread, and a new thread has none.

    Raises:
        InvalidOption: txnlog was given to ``--py-files`` in a way that leaves the workers without.
    """
    if spark not in _registered:
        _check_reaches_workers(spark)
        spark.dataSource.register(TxnlogDataSource)
        _registered.add(spark)
    spark.createDataFrame([], "value binary")  # makes the session the active one; runs nothing


def _check_reaches_workers(spark: SparkSession) -> None:
    """``--py-files`` takes a wheel without a word, and puts it on the driver's path alone."""
    name = Path(__file__).parents[2].name  # of the folder, or zip file, that txnlog came from
    files = spark.conf.get("spark.submit.pyFiles", "") or ""
    if name.endswith(".whl") and any(Path(file).name == name for file in files.split(",")):
        raise InvalidOption(
            f"--py-files {name}: Spark's workers do not look into files that end in .whl. Give it "
            "a copy of the same file that ends in .zip, as in --py-files txnlog.zip"
        )
