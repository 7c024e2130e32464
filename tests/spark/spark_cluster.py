"""A standalone cluster of processes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.spark.driver_processes import Process

_SMALL = {"SPARK_DAEMON_MEMORY": "256m"}


@contextmanager
def standalone(
    folder: Path,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "127.0.0.2"),
    environment: dict[str, str] | None = None,
) -> Iterator[str]:
    """The URL of a master, with a worker of one core for each of these names of this host.

    Spark runs a copy of a task on another host only; each name counts as one. The environment is
    that of its executors, too.
    """
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    # An application may lose as many executors as tests kill.
    options = "-Dspark.ui.enabled=false -Dspark.deploy.maxExecutorRetries=-1"
    with ExitStack() as running:
        master = running.enter_context(
            Process(
                folder,
                [spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0"],
                logs_to_stdout=True,
                environment={**_SMALL, "SPARK_MASTER_OPTS": options},
            )
        )
        while "Starting Spark master at " not in (line := master.line() or ""):
            assert not master.over, "the master has ended"
        url = line.rpartition(" ")[2]
        for number, host in enumerate(hosts):
            worker = Process(
                folder,
                [
                    *(spark_class, f"{deploy}.worker.Worker", "--host", host),
                    *("--cores", "1", "--memory", "600m"),
                    *("--work-dir", str(folder / f"{number}-{host}"), url),
                ],
                environment={**_SMALL, **(environment or {})},
            )
            running.enter_context(worker)
        yield url
