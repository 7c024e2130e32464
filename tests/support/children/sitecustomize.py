"""Run by every Python that tests start, before anything else: its folder is on their path.

They find the package ``tests`` of this work tree, and not by a path on which its ``txnlog`` would
be found as well: what is installed is tested, in children and in Spark's workers too.

What Spark forks has its modules already. Spark forks a process for each step of planning and for
tasks, and each would import all of these. It also collects garbage after each task: what is loaded
here is not looked through.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

TESTS = Path(__file__).parents[2]
LIBRARIES = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
)


class FindsTests:
    """Finds ``tests``, here and nowhere else; the modules in it are found by its path."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, TESTS / "__init__.py") if name == "tests" else None


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


sys.meta_path.insert(0, FindsTests)
if "pyspark.daemon" in sys.orig_argv:
    load()
