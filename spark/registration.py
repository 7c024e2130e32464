"""Making ``format("txnlog")`` known to a Spark session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from txnlog.errors import InvalidOption
from txnlog.spark.source import NEEDED, TxnlogDataSource

_registered: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the data source with a session; calling it again does no harm.

    Usually not needed: where txnlog is installed, Spark finds its module ``pyspark_txnlog``. But a
    thread of yours that writes must call it: Spark knows Python data sources only through the
    thread's active session, and a new thread has none. And a program that its environment's
    Python runs, without ``PYSPARK_PYTHON`` and not activated, calls it before its first query: on
    a local master Spark's workers are then that Python's, from here on.

    Raises:
        InvalidOption: Spark's workers run a Python without txnlog.
    """
    if spark not in _registered:
        _check_reaches_workers(spark)
        found = _is_found(spark)
        if not found:
            _take_this_python(spark)
        if not found or _has_other_workers(spark):
            _check_workers_have_it(spark)
        if not found:  # Spark warns of a second registration
            with _archive_on_path(spark), _unless_it_is_found():
                spark.dataSource.register(TxnlogDataSource)
        _registered.add(spark)
    if not _is_active(spark):
        spark.createDataFrame([], "value binary")  # makes it so, in 15 ms; runs nothing


def _is_active(spark: SparkSession) -> bool:
    """True if it is known to be the session that is active in this thread."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False
    active = session.getActiveSession()
    return bool(active.isDefined() and active.get().equals(session))


def _check_reaches_workers(spark: SparkSession) -> None:
    """``--py-files`` takes a wheel without a word, and puts it on the driver's path alone."""
    name = Path(__file__).parents[2].name  # of the folder, or zip file, that txnlog came from
    files = spark.conf.get("spark.submit.pyFiles", "") or ""
    if name.endswith(".whl") and any(Path(file).name == name for file in files.split(",")):
        raise InvalidOption(
            f"--py-files {name}: Spark's workers do not look into files that end in .whl. Give it "
            "a copy of the same file that ends in .zip, as in --py-files txnlog.zip"
        )


@contextmanager
def _archive_on_path(spark: SparkSession) -> Iterator[None]:
    """Give the file that txnlog came from (``--py-files txnlog.zip``) to what is registered.

    Spark passes such files to its workers, but not to the process beside the driver that plans a
    stream. That one gets the variables which the session had when the source was registered.
    """
    context, archive = _context(spark), Path(__file__).parents[2]
    if context is None or not archive.is_file():
        yield
        return
    before = dict(context.environment)
    said = before.get("PYTHONPATH")
    path = str(archive.absolute())
    context.environment["PYTHONPATH"] = os.pathsep.join([path, said]) if said else path
    try:
        yield
    finally:
        context.environment.clear()
        context.environment.update(before)


@contextmanager
def _unless_it_is_found() -> Iterator[None]:
    """Ignore the error that a data source exists already: Spark may have found it by itself.

    From Python 3.13 on its first look may fail: pkgutil loses a zip file whose caches were
    invalidated.
    """
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _is_found(spark: SparkSession) -> bool:
    """True if Spark finds the format by itself: it looks in the driver's Python."""
    session = getattr(spark, "_jsparkSession", None)  # Spark Connect has none: its server knows
    if session is None:
        return False
    return bool(session.sessionState().dataSourceManager().dataSourceExists("txnlog"))


def _has_other_workers(spark: SparkSession) -> bool:
    """True if what was found says nothing of the workers.

    They are on other machines, or run another Python than the one in which Spark has looked.
    """
    context = _context(spark)
    if context is None:
        return False
    if os.environ.get("PYSPARK_DRIVER_PYTHON", context.pythonExec) != context.pythonExec:
        return True
    return not _is_local(context)


def _is_local(context: SparkContext) -> bool:
    """True if tasks run beside this process; ``local-cluster`` has executors, as others have."""
    master = context.master or ""
    return master == "local" or master.startswith("local[")


def _take_this_python(spark: SparkSession) -> None:
    """Let the workers of this machine be this Python, where nobody has said which they shall be.

    As ``venv/bin/python job.py`` runs: Spark would take the python3 on PATH. It cannot be done by
    setting PYSPARK_PYTHON when txnlog.spark is imported, since no master is known then: what this
    Python is called here need not exist on the machines of a cluster, where python3 may be right.
    """
    context = _context(spark)
    if context is None or not _is_local(context) or not sys.executable:
        return
    said = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None)
    if not said:
        context.pythonExec = sys.executable  # read by each function that is sent from now on


def _context(spark: SparkSession) -> SparkContext | None:
    """The session's context; None with Spark Connect, whose workers this process cannot ask."""
    return spark.sparkContext if hasattr(spark, "_jsparkSession") else None


def _check_workers_have_it(spark: SparkSession) -> None:
    """Ask a worker, before a job of the user's fails in one with a page of tracebacks.

    One task, with functions that every Python has. Raises InvalidOption.
    """
    context = _context(spark)
    if context is None:
        return
    there = context.parallelize(NEEDED, 1).map(find_spec).map(bool).collect()
    if missing := [name for name, found in zip(NEEDED, there, strict=True) if not found]:
        raise InvalidOption(
            f"Spark's workers run {context.pythonExec!r}, which has no {', '.join(missing)}: set "
            f"PYSPARK_PYTHON to a Python that has, before the session is made (this process runs "
            f"{sys.executable})"
        )
