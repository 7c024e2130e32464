"""HDFS that lets nobody in without a ticket of Kerberos, and the KDC beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stores.servers import StoreServer, free_port
from tests.stores.servers.hdfs_cluster import VERSION, run_cluster

_CONFIG_VARIABLE = "KRB5_CONFIG"


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run a cluster and a KDC over a folder below ``folder``."""
    config = {
        "hadoop.security.authentication": "kerberos",
        "dfs.data.transfer.protection": "authentication",
    }
    with run_cluster(folder, 3, None, f"kdc.port={free_port()}") as cluster:
        made = folder / "cluster"
        before = os.environ.get(_CONFIG_VARIABLE)
        os.environ[_CONFIG_VARIABLE] = str(made / "krb5.conf")
        options = {
            "config": json.dumps(config),
            "kerberos_principal": "me",
            "kerberos_keytab": str(made / "me.keytab"),
            "kerberos_cache": f"FILE:{folder / 'tickets'}",
        }
        try:
            # The name that the NameNode's own principal has.
            url = f"hdfs://localhost:{cluster.rpc_port}/test"
            # A login that is cut lasts until it is given up.
            yield StoreServer(
                "hdfs-kerberos", VERSION, url, options, slow=True, cuts=False, races=50
            )
        finally:
            os.environ.pop(_CONFIG_VARIABLE)
            if before is not None:
                os.environ[_CONFIG_VARIABLE] = before
