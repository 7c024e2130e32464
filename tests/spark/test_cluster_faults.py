"""An executor is lost in each stage of each way to write: every row is there once.

`make test-cluster` runs the whole table on each version of Spark, on a standalone cluster of
processes; one cell of it runs in `make test-more`, where the master and the workers are threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from driver_processes import Process, driver
from fault_matrix import FAULTS, LEAVES, PATHS, READS, RECORDS, target, written
from spark_cluster import standalone

import txnlog


class Matrix:
    """A driver that runs cells of the table, and what has become of them."""

    def __init__(self, process: Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        assert process.wait_for("ready") == "ready", process.errors()
        self.store = txnlog.open(str(folder / "store"))

    def check(self, path: str, fault: str, lines: list[str]) -> None:
        """Run one cell, and judge it by its rows."""
        topic = target(path, fault)
        self._process.tell(f"{path} {fault}")
        said = self._process.line()
        numbers = Counter(written(self.store, topic))
        missing = RECORDS - len(numbers)
        doubled = sum(numbers.values()) - len(numbers)
        left = self._left(topic)
        version = pyspark.__version__
        cell = f"{version:7} {path:17} {fault:10}"
        counts = f"{sum(numbers.values()):7,} {missing:7,} {doubled:7,} {left:5}"
        lines.append(f"{cell} {counts}  {(said or 'over')[:60]}")
        assert (self._folder / f"{topic}.lost").exists(), f"no executor was lost: {said}"
        assert said == "done", said or self._process.errors()
        assert left > 0 or fault not in LEAVES, "the executor had uploaded nothing"
        assert (missing, doubled) == (0, 0)
        assert set(numbers) == set(range(RECORDS))
        assert self.store.describe_topic(topic).open_transactions == ()
        if path in READS:
            assert self.store.describe_group(topic).lag == 0

    def _left(self, topic: str) -> int:
        """How many segments were uploaded and not placed."""
        folder = Path(self.store.url)
        placed = {folder / segment.paths.log for segment in self.store.segments(topic)}
        found = {
            *folder.glob(f"topics/{topic}/data/*/*.log"),
            *folder.glob(f"topics/{topic}/data/*/*.parquet"),
        }
        return len(found - placed)


@pytest.fixture(scope="module")
def cluster_matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """On a master and two workers, each with executors that are processes of their own."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        standalone(folder / "cluster") as master,
        driver(folder / "driver", "fault_matrix.py", master, folder / "store", folder) as process,
    ):
        yield Matrix(process, folder)


@pytest.fixture(scope="module")
def local_matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """The same with the master and its workers in the driver's JVM."""
    folder = tmp_path_factory.mktemp("cluster")
    master = "local-cluster[2,1,600]"
    with driver(folder / "driver", "fault_matrix.py", master, folder / "store", folder) as process:
        yield Matrix(process, folder)


@pytest.mark.cluster
@pytest.mark.condition(54)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", PATHS)
def test_an_executor_is_lost(
    cluster_matrix: Matrix, table_of_faults: list[str], path: str, fault: str
) -> None:
    """Whatever it had uploaded, or shuffled: all rows are there, and each once."""
    cluster_matrix.check(path, fault, table_of_faults)


@pytest.mark.more
@pytest.mark.condition(54)
@pytest.mark.xdist_group("local-cluster")
def test_an_executor_of_a_local_cluster_is_lost(
    local_matrix: Matrix, table_of_faults: list[str]
) -> None:
    """One cell of the table: keyless rows, which come in another order each time, are shuffled."""
    local_matrix.check("shuffled-twice", "reduce", table_of_faults)
