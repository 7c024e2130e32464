"""The demo with typed topics: a job that dies in the middle, and tables that others read."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
import pytest

import txnlog
from txnlog.clock import SystemClock
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import attach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.more

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLE = 2_000


class Killed(BaseException):
    """Nothing of the process is left."""


class DyingStorage(LocalStorage):
    """Its process dies when its second transaction is about to be decided."""

    left = 2

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if b'"status":"PrepareCommit"' in data:
            self.left -= 1
        if self.left <= 0:
            raise Killed
        return super().put_if_absent(name, data)


@pytest.fixture
def demo() -> ModuleType:
    with patch.object(sys, "path", [str(EXAMPLES), *sys.path]):
        return importlib.import_module("flights_tables")


def test_tables_of_a_job_that_died(demo: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    """Committed flights are in the tables, each once; a later version has the rest."""
    flights = demo.as_table(demo.load_flights(SAMPLE))
    store = txnlog.open(str(tmp_path / "store"), create=True)
    demo.make_topics(store, flights)
    demo.fill(store, flights)
    tables = tmp_path / "tables"
    dying = attach(DyingStorage(store.url), clock=SystemClock())
    with pytest.raises(Killed):
        demo.run_job(spark, dying, SAMPLE // 2)
    demo.publish(store, tables)
    token = store.snapshot(demo.TOPICS).token()
    delayed = [row for row in flights.to_pylist() if (row["dep_delay"] or 0) > demo.LATE_MINUTES]
    before = demo.rows_of(tables, "late")
    assert 0 < len(before) < len(delayed)
    demo.run_job(spark, store, SAMPLE)
    store.maintenance.compact("latest")
    demo.publish(store, tables)
    late = demo.rows_of(tables, "late")
    assert _rows(late, demo.LATE) == sorted(tuple(map(str, _of(r, demo.LATE))) for r in delayed)
    assert demo.rows_of(tables, "late", version=0).num_rows == len(before)
    assert demo.rows_then(store, token, "late") == len(before)
    assert demo.rows_then(store, token, "flights") == len(flights)
    newest = {(r["carrier"], r["flight"]): r["time_hour"] for r in flights.to_pylist()}
    upserted = demo.rows_of(tables, "latest").to_pylist()
    assert {(r["carrier"], r["flight"]): r["time_hour"] for r in upserted} == newest
    assert len(upserted) == len(newest)
    january = [row["carrier"] for row in delayed if row["month"] == 1]
    found = dict(demo.late_in_january(tables))
    assert {*found} == {*january}
    assert sum(found.values()) == pytest.approx(len(january), abs=3)  # by UTC, and by New York
    needed, every = demo.files_of_january(tables)
    assert 0 < needed <= 4 < every


def _of(row: dict[str, object], names: list[str]) -> list[object]:
    return [row[name] for name in names]


def _rows(table: pa.Table, names: list[str]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, _of(row, names))) for row in table.to_pylist())


@pytest.mark.slow
@pytest.mark.xdist_group("flights-tables")
def test_the_whole_story(tmp_path: Path) -> None:
    """As `make demo-tables` runs it: the job dies by SIGKILL."""
    script = [sys.executable, str(EXAMPLES / "flights_tables.py"), "--flights", str(SAMPLE)]
    told = subprocess.run(
        [*script, "--folder", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "killed with SIGKILL" in told.stdout
    assert "files had to be opened" in told.stdout
    table, topic = re.findall(r"late has ([\d,]+) rows, and had ([\d,]+)", told.stdout)
    assert table == topic
    now, then = (int(count.replace(",", "")) for count in topic)
    assert 0 < then < now
    again = subprocess.run(
        [*script, "--folder", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "is not empty" in again.stderr
