"""DuckDB reads the tables of a catalog by ATTACH, row for row, with extensions that are on PyPI."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.catalog.served import TOKEN, Served, served
from tests.stores.servers import CannotStart, building, cache_folder, run_tool
from tests.stores.topics_of_a_catalog import check_predicates, fill_topics
from tests.support.read.hostile_readers import duckdb_literal
from txnlog import Store

VERSION = "1.5.5"
"""The newest that has these extensions there."""
_EXTENSIONS = ("avro", "httpfs", "iceberg")
_ANSWERING = """
import json, sys, duckdb
from importlib.resources import files
connection = duckdb.connect(config={"allow_unsigned_extensions": True})
connection.execute("SET enable_progress_bar = false")  # it is printed if a query takes long
for name in sys.argv[1:]:
    [found] = files(f"duckdb_extension_{name}").glob("extensions/*/*.duckdb_extension")
    connection.execute(f"LOAD '{found}'")
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    try:
        answer = connection.execute(json.loads(line)).fetchall()
    except duckdb.Error as error:
        answer = f"{error}"
    print(json.dumps(answer), flush=True)
"""


class DuckDb:
    """DuckDB in a process of its own: the tests' own is another version."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._answer() == "ready"

    def ask(self, query: str) -> list[list[Any]]:
        """The rows that a query finds. Raises AssertionError with what DuckDB says."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(query) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert isinstance(answer, list), answer
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def python() -> Path:
    """Of an environment that has DuckDB and its extensions."""
    folder = cache_folder() / f"duckdb-{VERSION}"
    found = folder / "bin" / "python"
    done = folder / "done"
    try:
        if not done.exists():
            with building():
                packages = ["duckdb", *(f"duckdb-extension-{name}" for name in _EXTENSIONS)]
                run_tool([sys.executable, "-m", "venv", "--clear", folder])
                pinned = [f"{package}=={VERSION}" for package in packages]
                run_tool([found, "-m", "pip", "install", "--quiet", *pinned])
                done.touch()
    except CannotStart as why:
        pytest.skip(f"DuckDB {VERSION} cannot be had: {why}")
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = txnlog.open(str(tmp_path_factory.mktemp("duck") / "st ore"), create=True)
    fill_topics(store)
    return store


@pytest.fixture(scope="module")
def catalog(store: Store) -> Iterator[Served]:
    with served(store) as opened:
        yield opened


@pytest.fixture
def duckdb(python: Path, catalog: Served) -> Iterator[DuckDb]:
    command: list[str | Path] = [python, "-c", _ANSWERING, *_EXTENSIONS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        found = DuckDb(process)
        found.ask(f"CREATE SECRET s (TYPE iceberg, TOKEN '{TOKEN}')")
        found.ask(f"ATTACH 'x' AS log (TYPE iceberg, ENDPOINT '{catalog.url}', SECRET s)")
        yield found
        assert process.stdin is not None
        process.stdin.close()


def test_duckdb_reads_a_topic_as_it_is_now(store: Store, duckdb: DuckDb) -> None:
    """A table that nobody has asked for before, and what came since, at the first query."""
    rows = duckdb.ask("SELECT id, name, _tombstone FROM log.topics.keyed ORDER BY id, _timestamp")
    assert rows == [[1, "a", False], [2, None, False], [2, None, True], [3, "ü", False]]
    query = "SELECT CAST(value AS VARCHAR), hex(key) FROM log.topics.plain ORDER BY value"
    assert duckdb.ask(query) == [[f"{number}", "FF00"] for number in range(3)]
    with store.producer() as producer:
        producer.send("plain", value="3", key=b"\xff\0")
    assert duckdb.ask("SELECT count(*) FROM log.topics.plain") == [[4]]
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("plain", value="4")
        producer.flush()
        assert duckdb.ask("SELECT count(*) FROM log.topics.plain") == [[4]]
        producer.commit_transaction()
    assert duckdb.ask("SELECT count(*) FROM log.topics.plain") == [[5]]
    older = "SELECT snapshot_id FROM iceberg_snapshots(log.topics.plain) ORDER BY sequence_number"
    [[first], *_] = duckdb.ask(older)
    query = f"SELECT count(*) FROM log.topics.plain AT (VERSION => {first})"
    assert duckdb.ask(query) == [[3]]


def test_a_predicate_keeps_what_it_is_true_of(duckdb: DuckDb) -> None:
    """Whatever bounds say, and however exact the literal is."""
    check_predicates(
        duckdb.ask,
        "log.topics.hostile",
        duckdb_literal,
        knows=lambda _: True,
        order_of=lambda _: "largest",
    )
