"""Lets Spark find `format("txnlog")` with no registration call.

On first use of a Python data source Spark imports every top-level module named `pyspark_*` and
takes its `DefaultSource`. A module that fails to import there hides all other Python data sources:
nothing else belongs here. A Python that sees txnlog (by its PYTHONPATH, say) and not what it needs
has no such source: Spark would fail in the midst of it, where `txnlog.spark.register` can help.
"""

from importlib.util import find_spec

from txnlog.spark.source import NEEDED, TxnlogDataSource

if all(map(find_spec, NEEDED)):
    DefaultSource = TxnlogDataSource
