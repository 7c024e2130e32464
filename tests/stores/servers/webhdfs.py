"""HDFS over HTTP: a NameNode and one DataNode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers import StoreServer
from servers.hdfs_cluster import VERSION, run_cluster


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run a cluster over a folder below ``folder``."""
    with run_cluster(folder, 1) as cluster:
        url = f"webhdfs://127.0.0.1:{cluster.http_port}/test"
        yield StoreServer("webhdfs", VERSION, url, {"user": cluster.user})
