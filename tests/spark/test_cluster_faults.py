"""Each fault of a cluster under each way to write: every row is there once.

`make test-cluster` runs the whole table on each version of Spark, on a standalone cluster of
processes; one cell of it runs in `make test-more`, where the master and the workers are threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

import txnlog
from tests.spark.driver_processes import Process, driver
from tests.spark.fault_matrix import (
    ACCOUNTS,
    CELLS,
    FAULTS,
    KEY_SECRET,
    LEAVES,
    MAINTAINED,
    PROFILES,
    SERVER,
    target,
    times_ms,
    write_profile,
)
from tests.spark.fault_table import Judged, count_tasks, judge
from tests.spark.spark_cluster import standalone
from tests.stores.servers import CannotStart, hdfs_cluster, versitygw
from tests.stores.servers.s3_buckets import variables_for


@dataclass(frozen=True)
class Place:
    """Where the store of a table is.

    Attributes:
        options: this process's storage options; others have them from the environment.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@contextmanager
def on_disk(folder: Path) -> Iterator[Place]:
    yield Place(str(folder / "store"))


@contextmanager
def on_s3(folder: Path, users: dict[str, str] | None = None) -> Iterator[Place]:
    """An S3 server over a folder."""
    (folder / "server").mkdir()
    with ExitStack() as stack:
        try:
            run = versitygw.run(folder / "server", users=users, role="admin")
            server = stack.enter_context(run)
        except CannotStart as reason:
            pytest.skip(f"versitygw: {reason}")
        assert server.process is not None
        options = dict(server.options)
        environment = {
            **variables_for(options),
            "AWS_DEFAULT_REGION": "us-east-1",
            SERVER: f"{server.process.pid}",
        }
        yield Place(f"{server.url}/store", options, environment)


@contextmanager
def with_a_profile(folder: Path) -> Iterator[Place]:
    """An S3 server, and a profile that all processes of Spark share."""
    profiles = folder / "credentials"
    write_profile(profiles, "first")
    with on_s3(folder, {"first": KEY_SECRET}) as place:
        environment = {
            **place.environment,
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            PROFILES: f"{profiles}",
            ACCOUNTS: f"{folder / 'server'}",
        }
        yield replace(place, environment=environment)


@contextmanager
def on_hdfs(folder: Path) -> Iterator[Place]:
    """A NameNode and a DataNode, which are one process."""
    (folder / "server").mkdir()
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(hdfs_cluster.run_cluster(folder / "server", 1))
        except CannotStart as reason:
            pytest.skip(f"HDFS: {reason}")
        environment = {SERVER: f"{cluster.process.pid}"}
        yield Place(f"hdfs://127.0.0.1:{cluster.rpc_port}/store", environment=environment)


PLACES = {"s3": on_s3, "keys": with_a_profile, "hdfs": on_hdfs}
"""By mode; all others are on a disk."""


class Matrix:
    """A driver that runs cells of the table, and what has become of them."""

    def __init__(self, process: Process, folder: Path, place: Place) -> None:
        self._process = process
        self._folder = folder
        self._judged: list[Judged] = []
        assert process.wait_for("ready") == "ready", process.errors()
        self._store = txnlog.open(place.url, storage_options=place.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Add what Spark's tasks did."""
        self._process.close()
        tasks = count_tasks(self._folder)
        for cell in self._judged:
            cell.tasks = tasks.get(target(cell.path, cell.fault), Counter())

    def check(self, path: str, fault: str, table: list[Judged]) -> None:
        """Run one cell, and judge it by its rows."""
        topic = target(path, fault)
        self._process.tell(f"{path} {fault}")
        said = self._process.line() or self._process.errors()
        cell = judge(self._store, path, fault, said)
        self._judged.append(cell)
        table.append(cell)
        assert (self._folder / f"{topic}.lost").exists(), f"nothing has happened: {said}"
        cell.check(self._store)
        assert cell.left > 0 or (path, fault) not in LEAVES, "the executor had uploaded nothing"
        if fault == "clocks" and path not in MAINTAINED:
            first_ms, last_ms = times_ms(self._store, topic)
            assert last_ms - first_ms > 3_600_000, "no clock was wrong"


@contextmanager
def matrix(folder: Path, mode: str) -> Iterator[Matrix]:
    """On a master and three workers, each with executors that are processes of their own."""
    with ExitStack() as stack:
        place = stack.enter_context(PLACES.get(mode, on_disk)(folder))
        master = stack.enter_context(standalone(folder / "cluster", environment=place.environment))
        arguments = (master, place.url, folder, mode)
        process = driver(
            folder / "driver", "fault_matrix.py", *arguments, environment=place.environment
        )
        yield stack.enter_context(Matrix(stack.enter_context(process), folder, place))


@pytest.fixture(scope="module")
def cluster_matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Matrix]]:
    """By mode; a cluster ends when the next one is asked for."""
    running: dict[str, Matrix] = {}
    with ExitStack() as stack:

        def by_mode(mode: str) -> Matrix:
            if mode not in running:
                stack.close()
                running.clear()
                folder = tmp_path_factory.mktemp(mode)
                running[mode] = stack.enter_context(matrix(folder, mode))
            return running[mode]

        yield by_mode


@pytest.fixture(scope="module")
def local_matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """The same with the master and its workers in the driver's JVM."""
    folder = tmp_path_factory.mktemp("cluster")
    arguments = ("local-cluster[2,1,600]", folder / "store", folder, "steady")
    with (
        on_disk(folder) as place,
        driver(folder / "driver", "fault_matrix.py", *arguments) as process,
        Matrix(process, folder, place) as table,
    ):
        yield table


@pytest.mark.cluster
@pytest.mark.condition(54)
@pytest.mark.parametrize(("path", "fault"), CELLS)
def test_a_fault(
    cluster_matrix: Callable[[str], Matrix], table_of_faults: list[Judged], path: str, fault: str
) -> None:
    """Whatever a task had uploaded, or shuffled: all rows are there, and each once."""
    cluster_matrix(FAULTS[fault].mode).check(path, fault, table_of_faults)


@pytest.mark.more
@pytest.mark.condition(54)
@pytest.mark.xdist_group("local-cluster")
def test_an_executor_of_a_local_cluster_is_lost(
    local_matrix: Matrix, table_of_faults: list[Judged]
) -> None:
    """One cell of the table: keyless rows, which come in another order each time, are shuffled."""
    local_matrix.check("shuffled-twice", "reduce", table_of_faults)
