"""Drivers that are killed at each step of what they do, one after another, in one store."""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path

import pytest

import txnlog
from tests.spark.driver_processes import HERE, Process, driver
from tests.spark.fault_matrix import MAINTAINED, READS, RECORDS, STEPPED, STEPS
from tests.spark.fault_table import judge

pytestmark = pytest.mark.cluster

KINDS = {
    "an entry": r"topics/{}/log/\d+\.json",
    "an id's state": r"transactions/.+/\d+\.json",
    "a marker": r"topics/{}/log/\d+\.commit",
    "offsets": r"groups/{}/\d+\.json",
    "their marker": r"groups/{}/\d+\.commit",
}


def kinds(path: str) -> list[str]:
    """What steps there must be at least."""
    return [*KINDS][: 1 if path in MAINTAINED else 5 if path in READS else 3]


def run(process: Process, folder: Path, path: str, number: int) -> bool:
    """Let a driver do a path's work; False: it was killed. What there is then is judged."""
    process.tell(f"{path} step-{number}")
    said = process.line()
    assert said is not None
    store = txnlog.open(str(folder / "store"))
    cell = judge(store, path, f"step-{number}", said)
    if said or path not in MAINTAINED:
        assert cell.rows in ((RECORDS,) if said else (0, RECORDS)), f"{cell.rows} {said}"
        assert cell.doubled <= 0
    if said:
        cell.check(store)
    return bool(said)


def steps_of(path: str, folder: Path) -> list[str]:
    """Kill drivers, each at a later step, until one is not killed; the steps up to there.

    What each leaves is finished by the next one.
    """
    steps: list[str] = []
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(HERE / "killed_at_a_step"), *([inherited] if inherited else [])]
    for number in count(1):
        counted = folder / f"steps-{number}"
        environment = {
            STEPS: str(counted),
            "TXNLOG_TEST_LAST_STEP": f"{number}",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        given = ("local[2]", folder / "store", folder, "steady")
        with driver(
            folder / "spark", "fault_matrix.py", *given, environment=environment
        ) as process:
            assert process.wait_for("ready") == "ready", process.errors()
            if number > 1:
                assert run(process, folder, path, number - 1), process.errors()
            if run(process, folder, path, number):
                return steps
        assert counted.exists(), process.errors()
        steps += counted.read_text().splitlines()
    raise AssertionError


@pytest.mark.condition(53)
@pytest.mark.parametrize("path", STEPPED)
def test_a_driver_is_killed_at_each_step(path: str, tmp_path: Path) -> None:
    """What it has left open is aborted, or completed, by the next one; all is there once."""
    steps = steps_of(path, tmp_path)
    topic = rf"{path}(\.|%2E)step-\d+"
    missed = {
        kind
        for kind in kinds(path)
        if not any(re.fullmatch(KINDS[kind].format(topic), step) for step in steps)
    }
    assert not missed, steps
