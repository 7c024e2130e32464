"""HDFS by its own protocols: three DataNodes, each of which keeps every block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stores.servers import StoreServer
from tests.stores.servers.hdfs_cluster import VERSION, run_cluster


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run a cluster over a folder below ``folder``."""
    with run_cluster(folder, 3) as cluster:
        url = f"hdfs://127.0.0.1:{cluster.rpc_port}/test"
        yield StoreServer("hdfs", VERSION, url, slow=True, races=100)
