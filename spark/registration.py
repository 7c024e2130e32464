"""Making ``format("txnlog")`` known to a Spark session."""

from __future__ import annotations

from weakref import WeakSet

from pyspark.sql import SparkSession

from txnlog.spark.source import TxnlogDataSource

_registered: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the data source with a session; once is enough, more do no harm.

    Not needed where txnlog is installed: Spark finds its module ``pyspark_txnlog`` by itself. But a
    thread of yours that writes must call it: Spark knows Python data sources only through the
    session that is active in the thread, and a new thread has none.
    """
    if spark not in _registered:
        spark.dataSource.register(TxnlogDataSource)
        _registered.add(spark)
    spark.createDataFrame([], "value binary")  # makes the session the active one; runs nothing
