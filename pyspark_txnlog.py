"""Lets Spark find `format("txnlog")` with no registration call.

On first use of a Python data source Spark imports every top-level module named `pyspark_*` and
takes its `DefaultSource`. A module that fails to import there hides all other Python data sources:
nothing else belongs here.
"""

from txnlog.spark.source import TxnlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
