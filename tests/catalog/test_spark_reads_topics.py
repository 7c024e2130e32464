"""Spark SQL with Iceberg's own jar, where there is one for this Spark, reads topics row for row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

import txnlog
from tests.catalog import keyed
from tests.catalog.served import TOKEN, Served, served
from tests.support.read.hostile_readers import spark_literal, sql
from tests.support.read.hostile_values import COLUMNS, FORMS, fill, matching, predicates
from tests.tables.published import SCHEMA, rows
from txnlog import TopicPartition
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.set_up]

ICEBERG = {"4.1": "1.12.0"}
"""The newest Iceberg for each version of Spark; for 4.2 and 4.3 there is none yet."""
_JOB = Path(__file__).with_name("iceberg_in_spark.py")
_MAVEN = "https://repo1.maven.org/maven2/org/apache/iceberg"
_TOGETHER = 40


@pytest.fixture(scope="module")
def jar() -> Path:
    """Iceberg's jar, from Maven Central, kept beside the servers of `make test-stores`."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    if spark not in ICEBERG:
        pytest.skip(f"there is no Iceberg for Spark {spark} yet")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    artifact, version = f"iceberg-spark-runtime-{spark}_2.13", ICEBERG[spark]
    path = cache / "txnlog-test-stores" / f"iceberg-{version}-spark-{spark}"
    path.mkdir(parents=True, exist_ok=True)
    found = path / f"{artifact}-{version}.jar"
    if not found.exists():
        part = path / f"{os.getpid()}.part"
        try:
            urllib.request.urlretrieve(f"{_MAVEN}/{artifact}/{version}/{found.name}", part)
        except OSError as error:
            pytest.skip(f"Iceberg's jar cannot be had: {error}")
        part.rename(found)
    return found


class Job:
    """Spark, in a process that knows nothing of txnlog."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, query: str, name: str = "") -> Any:
        """What a query finds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, query]) + "\n")
        self._process.stdin.flush()
        _, found = json.loads(self._process.stdout.readline())
        assert not isinstance(found, dict), (query, found)
        return found

    def read(self, query: str, path: Path) -> pa.Table:
        """All rows that a query finds."""
        self.ask(query, str(path))
        with pa.OSFile(str(path)) as file:
            return pa.ipc.open_file(file).read_all()


@contextmanager
def job(jar: Path, catalog: Served, errors: Path, *, extensions: str = "") -> Iterator[Job]:
    with (
        errors.open("w") as written,
        subprocess.Popen(
            [sys.executable, _JOB, jar, catalog.url, TOKEN, extensions],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            env={**os.environ, "SPARK_SUBMIT_OPTS": ""},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", errors.read_text()[-4000:]
            yield Job(process)
        finally:
            process.kill()


def check_same(store: Store, spark: Job, path: Path, topic: str = "f") -> int:
    """Assert that Spark finds the rows of the topic; returns how many. NaN equals NaN."""
    found = spark.read(f"SELECT * FROM log.topics.`{topic}`", path)
    names = ["_deleted" if name == "_tombstone" else name for name in found.column_names]
    scan = store.scan(topic, columns=names, isolation_level="snapshot")
    wanted = scan.to_arrow()
    found = found.rename_columns(names).cast(wanted.schema)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
    assert spark.ask(f"SELECT count(*) FROM log.topics.`{topic}`") == [len(wanted)]
    return len(wanted)


def test_spark_reads_a_topic_as_it_is_now(jar: Path, tmp_path: Path) -> None:
    """More rows, compaction, other columns, a default, a trim, keys and values; never stale."""
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0}
    store = txnlog.open(str(tmp_path / "st o%re #1?ü"), create=True)
    store.topics.create("f", partitions=3, schema=SCHEMA, key=["carrier"], config=config)
    store.topics.create("plain.keys-and_values", partitions=2)
    rows_of = tmp_path / "rows.arrow"

    def send(batch: pa.Table) -> int:
        with store.producer() as producer:
            producer.send_batch("f", batch)
        return check_same(store, spark, rows_of)

    with served(store) as catalog, job(jar, catalog, tmp_path / "errors") as spark:
        assert spark.ask("SHOW NAMESPACES IN log") == ["topics"]
        assert sorted(row[1] for row in spark.ask("SHOW TABLES IN log.topics")) == [
            "f",
            "plain.keys-and_values",
        ]
        assert check_same(store, spark, rows_of) == 0
        assert send(rows(0, 40)) == 40
        assert send(rows(30, 50)) == 60
        assert send(pa.table({"carrier": ["c1"], "_deleted": [True]})) == 61
        assert spark.ask("SELECT flight FROM log.topics.f WHERE carrier = 'c7'") == [7]
        store.maintenance.compact("f")
        assert check_same(store, spark, rows_of) == 50
        kept = [field for field in SCHEMA if field.name not in ("price", "flight", "local")]
        changed = pa.schema([("later", pa.timestamp("us")), *kept, ("flight", pa.int64())])
        store.topics.alter("f", schema=changed)
        assert send(pa.table({"carrier": ["new"], "flight": [1 << 40], "legs": [[]]})) == 51
        gate = pa.field("gate", pa.string(), nullable=False)
        store.topics.alter("f", schema=pa.schema([*changed, gate]), defaults={"gate": "?"})
        assert check_same(store, spark, rows_of) == 51
        assert spark.ask("SELECT count(*) FROM log.topics.f WHERE gate = '?'") == [51]
        store.topics.delete_records({TopicPartition("f", 0): 3})
        assert 40 < check_same(store, spark, rows_of) < 51
        files = spark.ask("SELECT content, record_count FROM log.topics.f.files")
        assert {content for content, _ in files} == {0, 1}
        for number in range(3):
            with store.producer() as producer:
                producer.send("plain.keys-and_values", value=f"{number}", key=b"\xff\0")
            assert check_same(store, spark, rows_of, "plain.keys-and_values") == number + 1
        with pytest.raises(AssertionError, match=r"(?i)unsupported|read-only|not support"):
            spark.ask("DELETE FROM log.topics.f")
        with pytest.raises(AssertionError, match=r"(?i)cannot be found|not found|no topic"):
            spark.ask("SELECT * FROM log.topics.none")


def test_spark_reads_a_topic_as_it_was(jar: Path, tmp_path: Path) -> None:
    """By snapshot and by time: trimmed, with other columns, a default, and without any row."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    plain = pa.schema([("id", pa.int64())])
    store.topics.create("f", schema=plain)
    query = "SELECT {} FROM log.topics.f {} AS OF {} ORDER BY id"
    seen: dict[int, tuple[str, list[Any]]] = {}
    columns = "id"

    def look(spark: Job) -> None:
        found = spark.ask(f"SELECT {columns} FROM log.topics.f ORDER BY id")
        *_, (snapshot, _) = listed(spark)
        seen[snapshot] = columns, found
        assert [one for one, _ in listed(spark)] == [*seen]

    def listed(spark: Job) -> Any:
        snapshots = "SELECT snapshot_id, unix_millis(committed_at) FROM log.topics.f.snapshots"
        return spark.ask(f"{snapshots} ORDER BY committed_at")

    def send(row: dict[str, object]) -> None:
        with store.producer() as producer:
            producer.send("f", row)

    with served(store) as catalog, job(jar, catalog, tmp_path / "errors") as spark:
        assert listed(spark) == []
        for number in range(4):
            send({"id": number})
            look(spark)
        store.topics.delete_records({TopicPartition("f", 0): 1})
        look(spark)
        gate = pa.field("gate", pa.string(), nullable=False)
        store.topics.alter("f", schema=pa.schema([*plain, gate]), defaults={"gate": "?"})
        columns = "id, gate"
        send({"id": 9, "gate": "A"})
        look(spark)
        store.topics.delete_records({TopicPartition("f", 0): 5})
        look(spark)
        assert [*seen.values()][-1] == ("id, gate", [])
        assert [*seen.values()][-2] == ("id, gate", [[1, "?"], [2, "?"], [3, "?"], [9, "A"]])
        for snapshot, time_ms in listed(spark):
            names, wanted = seen[snapshot]
            assert spark.ask(query.format(names, "VERSION", snapshot)) == wanted
            moment = f"timestamp_millis({time_ms})"
            assert spark.ask(query.format(names, "TIMESTAMP", moment)) == wanted
        with pytest.raises(AssertionError, match=r"(?i)cannot find a snapshot"):
            spark.ask(query.format("id", "TIMESTAMP", "timestamp_millis(1000)"))
        # What was added between two snapshots is not what their files tell.
        first, *_, last = seen
        with pytest.raises(AssertionError, match=r"(?i)ancestor"):
            spark.ask(f"CHANGES {first} {last}")


def test_spark_reads_the_newest_record_of_each_key(
    jar: Path, tmp_path: Path, clock: VirtualClock
) -> None:
    """By a view: of keys in several partitions, compacted, merged, trimmed, and in large files."""
    (tmp_path / "store").mkdir()
    store = attach(LocalStorage(str(tmp_path / "store")), create=True, clock=clock)
    config = {"min.compaction.lag.ms": 0, "segment.bytes": 1 << 18}
    store.topics.create("f", partitions=3, schema=keyed.SCHEMA, key=["ke`y", "part"], config=config)

    def check() -> None:
        found = spark.ask("SELECT to_json(struct(`ke``y`, part, number)) FROM log.topics.f_latest")
        rows = [{name: json.loads(row).get(name) for name in keyed.SCHEMA.names} for row in found]
        assert sorted(map(repr, rows)) == keyed.wanted(store) != []

    with (
        served(store) as catalog,
        job(jar, catalog, tmp_path / "errors", extensions="views") as spark,
    ):
        keyed.fill(store, 1)
        assert spark.ask("SHOW VIEWS IN log.topics") == [["topics", "f_latest", False]]
        check()
        store.topics.alter("f", config={"cleanup.policy": "compact"})
        store.maintenance.compact("f")
        check()
        keyed.fill(store, 2)
        store.topics.delete_records({TopicPartition("f", 0): 30, TopicPartition("f", 2): 11})
        check()
        store.topics.alter("f", config={"cleanup.policy": "delete"})
        store.maintenance.merge("f")
        check()
        many = {"ke`y": [f"{n % 997}" for n in range(200_000)], "part": [0] * 200_000}
        with store.producer() as producer:
            producer.send_batch("f", pa.table({**many, "number": range(200_000)}))
        check()
        keyed.fill(store, 3)
        check()
        with pytest.raises(AssertionError, match=r"(?i)unsupported|read-only|not support"):
            spark.ask("DROP VIEW log.topics.f_latest")


@pytest.mark.parametrize("form", FORMS)
def test_a_predicate_keeps_what_it_is_true_of(jar: Path, tmp_path: Path, form: Any) -> None:
    """Whatever bounds say, and however exact the literal is."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    fill(store, "t", form)
    wrong: list[str] = []
    with served(store) as catalog, job(jar, catalog, tmp_path / "errors") as spark:
        every = [predicate for column in COLUMNS for predicate in predicates(column)]
        for first in range(0, len(every), _TOGETHER):
            some = every[first : first + _TOGETHER]
            queries = [
                f"SELECT {number}, id FROM log.topics.t WHERE {sql(predicate, spark_literal)}"
                for number, predicate in enumerate(some)
            ]
            found: dict[int, list[int]] = {number: [] for number in range(len(some))}
            for number, identity in spark.ask(" UNION ALL ".join(queries)):
                found[number].append(identity)
            wrong += [
                f"{predicate}: {sorted(found[number])}, not {wanted}"
                for number, predicate in enumerate(some)
                if sorted(found[number]) != (wanted := matching(predicate, "largest"))
            ]
    assert len(every) > 400
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
