"""Run by every Python of the tests before anything else: what Spark forks has its modules already.

Spark forks a process for each step of planning and for tasks, and each would import all of these.
It also collects garbage after each task: what is loaded here is not looked through.
"""

import sys

LIBRARIES = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
)


def load() -> None:
    """Import them, and all of the data source."""
    import gc
    import importlib
    import pkgutil

    for name in LIBRARIES:
        importlib.import_module(name)
    import txnlog.spark

    for found in pkgutil.walk_packages(txnlog.spark.__path__, "txnlog.spark."):
        importlib.import_module(found.name)
    gc.freeze()


if "pyspark.daemon" in sys.orig_argv:
    load()
