"""Trino reads the tables of a catalog that is served over a store in S3, row for row."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import s3fs

import txnlog
from tests.catalog.served import TOKEN, served
from tests.stores.servers import (
    CannotStart,
    building,
    cache_folder,
    free_port,
    run_tool,
    running,
)
from tests.stores.topics_of_a_catalog import check_predicates, fill_topics, nan_is_itself
from tests.support.read.hostile_readers import trino_literal
from tests.support.read.hostile_values import In, Not, Predicate
from txnlog import Store

TRINO = "476"
JAVA = 24
"""The oldest that it runs on."""
_CONFIG = """
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
"""
_JVM = """
-server
-Xmx2G
-XX:+ExitOnOutOfMemoryError
-XX:TieredStopAtLevel=1
-Djdk.attach.allowAttachSelf=true
--add-modules=jdk.incubator.vector
"""
_CATALOG = """
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={url}
iceberg.rest-catalog.security=OAUTH2
iceberg.rest-catalog.oauth2.token={token}
fs.native-s3.enabled=true
s3.endpoint={endpoint_url}
s3.region=us-east-1
s3.path-style-access=true
s3.aws-access-key={key}
s3.aws-secret-key={secret}
"""


class Trino:
    """A server, asked by its own protocol."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1"

    def is_ready(self) -> bool:
        """Whether it has a node that reads tables: itself, some time after it has started."""
        with urlopen(f"{self._url}/info", timeout=1) as answer:
            if json.loads(answer.read())["starting"]:
                return False
        try:
            return self.ask("SELECT count(*) FROM keyed") == [[4]]
        except AssertionError:
            return False

    def ask(self, query: str) -> list[list[Any]]:
        """The rows that a query finds."""
        headers = {"X-Trino-User": "test", "X-Trino-Catalog": "log", "X-Trino-Schema": "topics"}
        request = Request(f"{self._url}/statement", query.encode(), headers)
        rows: list[list[Any]] = []
        while True:
            with urlopen(request, timeout=120) as answer:
                page = json.loads(answer.read())
            assert "error" not in page, page["error"]["message"]
            rows += page.get("data", [])
            if "nextUri" not in page:
                return rows
            request = Request(page["nextUri"], headers=headers)


@pytest.fixture(scope="module")
def store(s3_options: dict[str, Any]) -> Store:
    """In S3: a topic of hostile values, and two others."""
    s3fs.S3FileSystem(**s3_options).call_s3("create_bucket", Bucket="trino")
    store = txnlog.open("s3://trino/store", create=True, storage_options=s3_options)
    fill_topics(store)
    return store


@pytest.fixture(scope="module")
def trino(
    store: Store, s3_options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trino]:
    folder = tmp_path_factory.mktemp("trino")
    etc = folder / "etc"
    (etc / "catalog").mkdir(parents=True)
    port = free_port()
    found = Trino(port)
    try:
        java, program = _find_java(), _fetch_trino()
    except CannotStart as why:
        pytest.skip(f"Trino cannot be started: {why}")
    with served(store) as catalog:
        (etc / "config.properties").write_text(_CONFIG.format(port=port))
        (etc / "jvm.config").write_text(_JVM.lstrip())
        (etc / "node.properties").write_text(f"node.environment=test\nnode.data-dir={folder}\n")
        settings = _CATALOG.format(url=catalog.url, token=TOKEN, **s3_options)
        (etc / "catalog" / "log.properties").write_text(settings)
        command = [program, "run", "--etc-dir", etc]
        path = os.pathsep.join([str(java / "bin"), os.environ["PATH"]])
        env = {"JAVA_HOME": str(java), "PATH": path}
        try:
            with running(command, folder, ready=found.is_ready, env=env, patience_s=240):
                yield found
        except CannotStart as why:
            pytest.skip(f"Trino cannot be started: {why}")


def _find_java() -> Path:
    """The home of a Java that is new enough."""
    for home in [os.environ.get("JAVA_HOME", ""), *map(str, Path("/usr/lib/jvm").glob("*"))]:
        java = Path(home) / "bin" / "java"
        if home and java.exists():
            shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
            version = re.search(r'version "(\d+)', shown.stderr)
            if version and int(version[1]) >= JAVA:
                return Path(home)
    raise CannotStart(f"there is no Java {JAVA} or newer; set JAVA_HOME to one")


def _fetch_trino() -> Path:
    """The program that starts it, from Maven Central."""
    folder = cache_folder() / f"trino-{TRINO}"
    server = folder / f"trino-server-core-{TRINO}"
    done = folder / "done"
    if not done.exists():
        with building():
            for what in (f"trino-server-core:{TRINO}:tar.gz", f"trino-iceberg:{TRINO}:zip"):
                artifact, where = f"-Dartifact=io.trino:{what}", f"-DoutputDirectory={folder}"
                run_tool(["mvn", "--quiet", "--batch-mode", "dependency:copy", artifact, where])
            with tarfile.open(folder / f"{server.name}.tar.gz") as packed:
                packed.extractall(folder, filter="data")
            with zipfile.ZipFile(folder / f"trino-iceberg-{TRINO}.zip") as plugin:
                plugin.extractall(server / "plugin")
            for archive in (f"{server.name}.tar.gz", f"trino-iceberg-{TRINO}.zip"):
                (folder / archive).unlink()
            done.touch()
    return server / "bin" / "launcher"


def test_trino_reads_a_topic_as_it_is_now(store: Store, trino: Trino) -> None:
    """With and without a key, what is new at once, and nothing is written."""
    assert {name for (name,) in trino.ask("SHOW TABLES")} == {
        "hostile",
        "keyed",
        "keyed_latest",
        "plain",
    }
    rows = trino.ask("SELECT id, name, _tombstone FROM keyed ORDER BY id, _timestamp")
    assert rows == [[1, "a", False], [2, None, False], [2, None, True], [3, "ü", False]]
    query = "SELECT from_utf8(value), to_hex(key) FROM plain ORDER BY value"
    assert trino.ask(query) == [[f"{number}", "FF00"] for number in range(3)]
    with store.producer() as producer:
        producer.send("plain", value="3", key=b"\xff\0")
    assert trino.ask("SELECT count(*) FROM plain") == [[4]]
    older = 'SELECT snapshot_id FROM "plain$snapshots" ORDER BY committed_at'
    [[first], *_] = trino.ask(older)
    assert trino.ask(f"SELECT count(*) FROM plain FOR VERSION AS OF BIGINT '{first}'") == [[3]]
    with pytest.raises(AssertionError, match="does not support endpoint"):
        trino.ask("DELETE FROM plain WHERE true")


def test_a_predicate_keeps_what_it_is_true_of(trino: Trino) -> None:
    """Whatever bounds say, and however exact the literal is; a third of what DuckDB is asked."""
    check_predicates(
        trino.ask,
        "hostile",
        trino_literal,
        knows=lambda predicate: not _is_changed(predicate),
        order_of=nan_is_itself,
        every=3,
    )


def _is_changed(predicate: Predicate) -> bool:
    """Whether Trino makes another predicate of it, before it reads anything.

    Of REAL IN infinities nothing is left in its plan, and there -0.0 is another number than 0.0.
    """
    inner = predicate.of if isinstance(predicate, Not) else predicate
    return isinstance(inner, In) and inner.column == "f32"
