"""HDFS itself, on a real NameNode and DataNode: what is durable, and what a cut connection does."""

from __future__ import annotations

import json
import secrets
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.stores.servers import CannotStart, free_port
from tests.stores.servers.hdfs_cluster import HdfsCluster, run_cluster
from txnlog.errors import StorageError
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing.conformance.fault_proxy import FaultProxy, ProxyFaults
from txnlog.testing.conformance.lost_responses import create_over_cut_connections

KINDS = ["hdfs", "webhdfs"]
RECORDS = 20
_PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
_CUTS = ProxyFaults(refuse=0.05, lose=0.15, truncate=0.05)


@contextmanager
def running(folder: Path, ports: tuple[int, int] | None = None) -> Iterator[HdfsCluster]:
    """A cluster of one DataNode."""
    try:
        with run_cluster(folder, 1, ports) as made:
            yield made
    except CannotStart as why:
        pytest.skip(f"no cluster can be started: {why}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with running(tmp_path_factory.mktemp("hdfs")) as made:
        yield made


def port_of(kind: str, cluster: HdfsCluster) -> int:
    return cluster.rpc_port if kind == "hdfs" else cluster.http_port


def open_at(kind: str, cluster: HdfsCluster, folder: str, port: int = 0) -> Storage:
    options = {"user": cluster.user} if kind == "webhdfs" else {}
    url = f"{kind}://127.0.0.1:{port or port_of(kind, cluster)}/{folder}"
    storage = open_storage(url, options)
    storage.trust()
    return storage


def measured(cluster: HdfsCluster, bean: str) -> dict[str, Any]:
    """What the process tells of itself: NameNode and DataNode are one."""
    url = f"http://127.0.0.1:{cluster.http_port}/jmx?qry=Hadoop:{bean}"
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.load(answer)["beans"][0]
    return found


def last_edit(cluster: HdfsCluster) -> int:
    """The number of the newest entry in the NameNode's log."""
    journal = measured(cluster, "service=NameNode,name=NameNodeInfo")["JournalTransactionInfo"]
    return int(json.loads(journal)["LastAppliedOrWrittenTxId"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_confirmation_is_an_edit_that_changes_nothing(kind: str, cluster: HdfsCluster) -> None:
    """Behind it in the NameNode's log, which is synced in order, the rename is durable."""
    storage = open_at(kind, cluster, f"confirmed-{kind}")
    storage.put("a", b"x")
    before, modified_ms = last_edit(cluster), storage.modified_ms("a")
    storage.get("a")
    assert last_edit(cluster) == before
    storage.confirm("a")
    assert last_edit(cluster) == before + 1
    assert storage.modified_ms("a") == modified_ms


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_only_read_can_confirm(
    kind: str, cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By edits in /tmp, which is everybody's on a cluster."""
    open_at(kind, cluster, f"read-{kind}").put("a", b"x")
    everybody = f"op=SETPERMISSION&permission=1777&user.name={cluster.user}"
    for query in (f"op=MKDIRS&user.name={cluster.user}", everybody):
        url = f"http://127.0.0.1:{cluster.http_port}/webhdfs/v1/tmp?{query}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    monkeypatch.setenv("HADOOP_USER_NAME", "reader")
    reader = open_at(kind, replace(cluster, user="reader"), f"read-{kind}")
    with pytest.raises(StorageError, match="Permission denied"):
        reader.put("b", b"x")
    before = last_edit(cluster)
    reader.confirm("a")
    assert last_edit(cluster) == before + 2


@pytest.mark.parametrize("kind", KINDS)
def test_cut_connections_are_found_out(kind: str, cluster: HdfsCluster) -> None:
    """Between us and the NameNode: no create is lost, none is taken for another's."""
    folder = f"cut-{secrets.token_hex(4)}"
    port = port_of(kind, cluster)
    with FaultProxy("127.0.0.1", port, _CUTS, seed=1).running() as proxy:
        disturbed = open_at(kind, cluster, folder, proxy.port)
        create_over_cut_connections(open_at(kind, cluster, folder), disturbed, 20)
        assert proxy.counts["lost"] > 5


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """NameNode and DataNode die at once; started again they have every object, whole."""
    ports = free_port(), free_port()
    bodies = {f"a/{number}": b"%d" % number * 1000 for number in range(40)}
    with running(tmp_path, ports) as cluster:
        for kind in KINDS:
            storage = open_at(kind, cluster, f"kept-{kind}")
            storage.gather([partial(storage.put_if_absent, *item) for item in bodies.items()])
        cluster.process.kill()
    with running(tmp_path, ports) as cluster:
        for kind in KINDS:
            storage = open_at(kind, cluster, f"kept-{kind}")
            assert {name: storage.get(name) for name, _ in storage.list_all("")} == bodies


@dataclass(frozen=True)
class TwoNameNodes:
    """A cluster of which one NameNode is active and the other one stands by."""

    rpc_ports: tuple[int, int]
    http_ports: tuple[int, int]
    failover_port: int
    user: str

    def fail_over(self) -> None:
        """The other one is active when it returns."""
        with socket.create_connection(("127.0.0.1", self.failover_port), timeout=60) as asked:
            assert asked.recv(4) == b"done"

    def way(self, kind: str) -> tuple[str, dict[str, Any]]:
        """A URL that names both, and its options."""
        if kind == "webhdfs":
            named = ",".join(f"127.0.0.1:{port}" for port in self.http_ports)
            return "webhdfs://two/ha-webhdfs", {"namenodes": named, "user": self.user}
        config = {"dfs.nameservices": "two", "dfs.ha.namenodes.two": "nn1,nn2"}
        for name, port in zip(("nn1", "nn2"), self.rpc_ports, strict=True):
            config[f"dfs.namenode.rpc-address.two.{name}"] = f"127.0.0.1:{port}"
        return "hdfs://two/ha-hdfs", {"config": config}


@pytest.fixture(scope="module")
def two_namenodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNameNodes]:
    first, second = (free_port(), free_port()), (free_port(), free_port())
    failover_port = free_port()
    settings = {
        "failover.port": failover_port,
        "second.rpc.port": second[0],
        "second.http.port": second[1],
        # DataNodes are clients of NameNodes for WebHDFS.
        "dfs.client.failover.proxy.provider.two": _PROVIDER,
    }
    folder = tmp_path_factory.mktemp("two")
    try:
        given = [f"{name}={value}" for name, value in settings.items()]
        with run_cluster(folder, 1, first, *given) as made:
            rpc_ports, http_ports = zip(first, second, strict=True)
            yield TwoNameNodes(rpc_ports, http_ports, failover_port, made.user)
    except CannotStart as why:
        pytest.skip(f"no cluster can be started: {why}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_producer_goes_on_with_the_other_namenode(kind: str, two_namenodes: TwoNameNodes) -> None:
    """Each commit is made once, whichever NameNode was active before, and found by all."""
    url, options = two_namenodes.way(kind)
    storage = open_storage(url, options)
    storage.trust(probed=True)
    store = attach(storage, create=True)
    store.topics.create("t")
    with store.producer(transactional_id="job") as producer:
        producer.init_transactions()
        for number in range(RECORDS):
            if number % 10 == 5:
                two_namenodes.fail_over()
            with producer.transaction():
                producer.send("t", b"%d" % number)
    found = txnlog.open(url, storage_options=options).scan("t").to_arrow().column("value")
    assert found.to_pylist() == [b"%d" % number for number in range(RECORDS)]
