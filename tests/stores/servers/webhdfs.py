"""HDFS over HTTP: a NameNode and one DataNode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stores.servers import StoreServer
from tests.stores.servers.hdfs_cluster import VERSION, run_cluster

_ONE_DATANODE = "dfs.client.block.write.locateFollowingBlock.initial.delay.ms=20"
"""With one DataNode a file is often closed before the NameNode knows of its block, and Hadoop asks
again after 400 ms: see docs/STORAGE.md."""


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run a cluster over a folder below ``folder``."""
    with run_cluster(folder, 1, None, _ONE_DATANODE) as cluster:
        url = f"webhdfs://127.0.0.1:{cluster.http_port}/test"
        yield StoreServer("webhdfs", VERSION, url, {"user": cluster.user}, slow=True, races=50)
