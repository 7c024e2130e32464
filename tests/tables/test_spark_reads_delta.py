"""Spark's own Delta, where there is one for this Spark, reads a published topic row for row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import txnlog
from tests.tables.published import SCHEMA, DeltaPublished, rows
from txnlog import TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.set_up]

DELTA = {"4.1": "4.4.0", "4.2": "4.4.0"}
"""The newest Delta for each version of Spark; for Spark 4.3 there is none yet."""
_JOB = Path(__file__).with_name("delta_in_spark.py")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>txnlog</groupId><artifactId>test-tables</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>io.delta</groupId>
    <artifactId>delta-spark_{spark}_2.13</artifactId><version>{delta}</version>
  </dependency></dependencies>
</project>
"""


@pytest.fixture(scope="module")
def jars() -> str:
    """Delta's jars, from Maven Central, kept beside the servers of `make test-stores`."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    if spark not in DELTA:
        pytest.skip(f"there is no Delta for Spark {spark} yet")
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed, which Delta's jars come by")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "txnlog-test-stores" / f"delta-{DELTA[spark]}-spark-{spark}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(_POM.format(spark=spark, delta=DELTA[spark]))
        # Everything else that it needs is in Spark.
        only = "-DincludeGroupIds=io.delta,io.unitycatalog"
        command = ["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", only]
        command += ["-DoutputDirectory=jars", "-DincludeScope=runtime"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            last = " / ".join(done.stdout.strip().splitlines()[-3:])
            pytest.skip(f"Delta's jars cannot be had: {last}")
        (folder / "done").touch()
    return ",".join(sorted(map(str, (folder / "jars").glob("*.jar"))))


def test_spark_reads_every_version_row_for_row(jars: str, tmp_path: Path) -> None:
    """More rows, compaction, other columns, a default, a trim: and VACUUM deletes no segment."""
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0}
    store = txnlog.open(str(tmp_path / "st o%re #1?ü"), create=True)
    store.topics.create("f", partitions=3, schema=SCHEMA, key=["carrier"], config=config)
    table = DeltaPublished(store, tmp_path)
    wanted: dict[int, pa.Table] = {}

    def publish() -> None:
        table.publish()
        names = store.scan("f").schema.names
        columns = [*names, "_timestamp", "_headers", "_deleted", "_partition"]
        scan = store.scan("f", columns=columns, isolation_level="snapshot")
        wanted[table.table.version()] = scan.to_arrow()

    def send(batch: pa.Table) -> None:
        with store.producer() as producer:
            producer.send_batch("f", batch)
        publish()

    send(rows(0, 40))
    send(rows(30, 50))
    send(pa.table({"carrier": ["c1"], "_deleted": [True]}))
    store.maintenance.compact("f")
    publish()
    kept = [field for field in SCHEMA if field.name not in ("price", "flight", "local")]
    changed = pa.schema([("later", pa.timestamp("us")), *kept, ("flight", pa.int64())])
    store.topics.alter("f", schema=changed)
    send(pa.table({"carrier": ["new"], "flight": [1 << 40], "legs": [[]]}))
    gate = pa.field("gate", pa.string(), nullable=False)
    store.topics.alter("f", schema=pa.schema([*changed, gate]), defaults={"gate": "?"})
    publish()
    store.topics.delete_records({TopicPartition("f", 0): 3})
    publish()
    assert len(wanted) == 7

    segments = sorted((tmp_path / "st o%re #1?ü").rglob("*.parquet"))
    found = tmp_path / "found"
    found.mkdir()
    done = subprocess.run(
        [sys.executable, _JOB, jars, table.folder, found],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SPARK_SUBMIT_OPTS": ""},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    # A change of columns is a version of its own, between those of publications.
    assert said["versions"] == [*range(max(wanted) + 1)]
    for version, expected in wanted.items():
        with pa.OSFile(str(found / f"{version}.arrow")) as file:
            read = pa.ipc.open_file(file).read_all()
        read = read.select(expected.column_names).cast(expected.schema)
        assert _rows(read) == _rows(expected), version
    assert said["rows_of_one"] == 1
    assert 0 < said["files_of_one"] < said["files"]
    assert said["rows_after_vacuum"] == len(wanted[max(wanted)]) > 40
    assert sorted((tmp_path / "st o%re #1?ü").rglob("*.parquet")) == segments


def _rows(table: pa.Table) -> list[str]:
    """NaN is equal to NaN here."""
    return sorted(map(repr, table.to_pylist()))
