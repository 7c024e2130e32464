"""One Spark session for all tests, and stores that its worker processes can reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txnlog
from tests.spark.plain_disk import write_entry_point
from tests.spark.spark_helpers import fill
from txnlog import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.fault_table import Judged

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that may share a session run in one process; long ones begin early."""
    leaves_sockets = version("pyspark").startswith("4.1.")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group("spark"))
            # Spark's word about a newer pandas, which the data source does not use.
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support"))
            # PySpark 4.1 leaves its sockets to the garbage collector.
            if leaves_sockets:
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket"))
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


_TABLE: list[Judged] = []


@pytest.fixture(scope="session")
def table_of_faults() -> list[Judged]:
    """The cells that are shown at the end."""
    return _TABLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of faults, if there is one."""
    if _TABLE:
        from tests.spark.fault_table import HEADING, table

        terminalreporter.section(f"faults of a cluster, Spark {version('pyspark')}")
        for line in (HEADING, *map(str, _TABLE), "", *table(_TABLE)):
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, in which a task may fail three times."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Of the workers too fsspec finds a filesystem of these tests.
    plugin = tmp_path_factory.mktemp("plugin")
    write_entry_point(plugin)
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(plugin), *([inherited] if inherited else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    from pyspark.sql import SparkSession

    from txnlog.spark import register

    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("txnlog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        # Of a worker that starts on a busy machine.
        .config("spark.python.authenticate.socketTimeout", "5m")
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Compiling a plan takes longer than to read a few rows."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")
    spark.conf.unset("spark.sql.codegen.factoryMode")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store on the local filesystem."""
    return txnlog.open(str(tmp_path / "store"), create=True)


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics in (3 partitions), out (2), odd (1); 100 numbers are in ``in``."""
    for topic, partitions in (("in", 3), ("out", 2), ("odd", 1)):
        store.topics.create(topic, partitions=partitions)
    fill(store, "in", 0, 100)
    return store
