"""Drivers that meet: with one transactional id, with one group. Drivers that are interrupted."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.spark.driver_processes import driver
from tests.spark.loop_judge import check_done, check_whole, orphans, prepare
from tests.spark.spark_faults import Straggle
from txnlog import Store

# Without the session of the other tests, so beside them.
pytestmark = [pytest.mark.more, pytest.mark.xdist_group("spark-drivers")]

FORMS = ["transaction", "options"]
MAY_STAY = ("topics/out/data/", "staging/", ".tmp/")


@pytest.mark.condition(28)
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_drivers_with_one_transactional_id(form: str, tmp_path: Path) -> None:
    """The older one is fenced when it goes on, and nothing of it is ever seen."""
    store = prepare(str(tmp_path / "store"), 2_000)
    folder, script = tmp_path / "spark", "spark_driver.py"
    arguments = (form, store.url, "etl", "g", 500, "hold")
    with driver(folder, script, *arguments) as older:
        assert older.wait_for("committing") == "committing", older.errors()
        with driver(folder, script, *arguments) as newer:
            assert newer.wait_for("committing") == "committing", newer.errors()
            older.go_on()
            assert older.line() == "fenced", older.errors()
            assert older.end() == os.EX_OK
            assert check_whole(store) == 0
            newer.go_on()
            assert newer.wait_for("done") == "done", newer.errors()
    assert check_done(store, 2_000) == []


@pytest.mark.condition(35)
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_drivers_with_one_group(form: str, tmp_path: Path) -> None:
    """Of the same records one commits; the other reads again and goes on."""
    store = prepare(str(tmp_path / "store"), 20_000)
    folder, script = tmp_path / "spark", "spark_driver.py"
    with (
        driver(folder, script, form, store.url, "one", "g", 1_000, "hold") as one,
        driver(folder, script, form, store.url, "two", "g", 1_000, "hold") as two,
    ):
        for process in (one, two):
            assert process.wait_for("committing") == "committing", process.errors()
        for process in (one, two):
            process.go_on()
        results = sorted(process.wait_for("committed", "conflict") for process in (one, two))
        assert results == ["committed", "conflict"], (one.errors(), two.errors())
        said: Counter[str] = Counter(results)
        for process in (one, two):
            while words := process.line():
                said[words] += 1
            assert process.end() == os.EX_OK, process.errors()
    assert said["done"] == 2
    check_done(store, 20_000)


def check_nothing_shows(store: Store) -> None:
    """No record and no offset; files only of the write that was hit: its job may go on a while."""
    assert check_whole(store) == 0
    assert "g" not in store.groups.list()
    assert all(name.startswith(MAY_STAY) for name in orphans(store))


@pytest.mark.slow
def test_interrupted_drivers(tmp_path: Path) -> None:
    """Ctrl-C in mid-write and a session that is stopped inside the block commit nothing.

    What earlier writes of the block have uploaded is deleted, and the next run does the work.
    """
    store = prepare(str(tmp_path / "store"), 2_000)
    straggle = Straggle(tmp_path)
    straggle.make()
    start = partial(driver, tmp_path / "spark")
    script = ("spark_interrupted_driver.py", store.url, tmp_path)
    with start(*script, "interrupted") as process:
        assert process.wait_for("begun") == "begun", process.errors()
        while (held := straggle.met()) is None:
            assert process.line(0.05) is None, process.errors()
        assert any(name.startswith("topics/sums/data/") for name in orphans(store))
        process.interrupt()
        left = process.line()
        if left != "left by KeyboardInterrupt":
            # Spark's own handler asks the JVM to cancel. If the signal comes while the JVM's answer
            # is read, Py4J refuses that, and its error comes out of the handler instead.
            assert left == "left by Py4JError", process.errors()
            assert "in signal_handler" in process.errors()
        check_nothing_shows(store)
        os.close(held)
    with start(*script, "stopped", "stopped-early") as process:
        for _ in ("after the last write", "before a write"):
            assert process.wait_for("begun") == "begun", process.errors()
            assert process.line() == "left by InvalidTxnState", process.errors()
            check_nothing_shows(store)
            process.go_on()
        assert process.wait_for("done") == "done", process.errors()
    orphaned = check_done(store, 2_000)
    assert all(name.startswith(MAY_STAY) for name in orphaned)
