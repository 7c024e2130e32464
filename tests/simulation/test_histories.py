"""Histories of real processes, checked by published definitions.

The checker is in ``tests/support/simulation/histories``: it shares no code with txnlog, and each
anomaly that it looks for is planted into a clean history here.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.simulation.histories.checker import CHECKS, check
from tests.support.simulation.histories.linearizability import build_judge, verdicts
from tests.support.simulation.histories.planted import (
    PLANTS,
    Plant,
    clean_history,
    exchange,
    planted,
)
from tests.support.simulation.histories.run import Run, summary

PATIENCE_NS = 60 * 10**9
"""So long a transaction of unknown outcome may hold back others: its timeout, the margin of clocks,
and a busy machine."""
needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="porcupine is built with Go")


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_found_in_a_clean_history(seed: int) -> None:
    """Overlapping operations, aborts and open transactions are nothing wrong."""
    assert check(clean_history(seed)) == []


@pytest.mark.parametrize(
    ("kind", "plant"), [(kind, plant) for kind, plants in PLANTS.items() for plant in plants]
)
def test_each_anomaly_is_found(kind: str, plant: Plant) -> None:
    """In several histories each, by its name."""
    for seed in range(3):
        found = {anomaly.kind for anomaly in check(planted(clean_history(seed), plant))}
        assert kind in found, f"seed {seed}: only {found}"


def test_each_check_has_something_planted() -> None:
    """No check that nobody has seen find anything."""
    assert PLANTS.keys() == CHECKS.keys()


@pytest.fixture(scope="module")
def porcupine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The judge of single partitions."""
    return build_judge(tmp_path_factory.mktemp("porcupine"))


@needs_go
@pytest.mark.slow
def test_porcupine_sees_what_is_not_linearizable(porcupine: Path) -> None:
    """A list in which two appends stand in the wrong order, and nothing else."""
    for seed in range(10):
        clean = clean_history(seed)
        assert {*verdicts(porcupine, clean).values()} == {"Ok"}
        wrong = verdicts(porcupine, planted(clean, exchange))
        assert [where for where, verdict in wrong.items() if verdict != "Ok"] == ["a:0"]


@pytest.mark.parametrize(("share", "ticks"), [(1.0, 4), (0.5, 8)])
def test_silence_ends_a_run_later_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, ticks: int
) -> None:
    """Processes that get half of the time have twice as long to say something."""
    measured: list[float] = []

    def measure() -> float:
        measured.append(share)
        return share

    monkeypatch.setattr("tests.support.simulation.histories.run.SILENCE_S", 2**-6)
    monkeypatch.setattr("tests.support.simulation.histories.run.TICK_S", 2**-8)
    monkeypatch.setattr("tests.support.simulation.histories.run.share_of_time", measure)
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr("tests.support.simulation.histories.run.Job.command", lambda _: silent)
    run = Run(tmp_path, str(tmp_path / "store"), {}, seed=7, staff=("append",))
    with pytest.raises(AssertionError, match="seed 7: nobody says anything"):
        run.make(10)
    assert len(measured) == ticks


def _judge(run: Run, lines: int, porcupine: Path | None) -> None:
    operations = run.make(lines)
    print(f"seed {run.seed}: {summary(run, operations)}")  # noqa: T201 - figures for `pytest -s`
    assert check(operations, PATIENCE_NS) == [], f"seed {run.seed}, {run.folder}"
    if porcupine is not None:
        found = verdicts(porcupine, operations)
        assert {*found.values()} == {"Ok"}, f"seed {run.seed}, {run.folder}: {found}"


@pytest.mark.more
def test_processes_on_a_disk(tmp_path: Path) -> None:
    """Writers, readers, copies, members and maintenance, some of them killed and stopped."""
    _judge(Run(tmp_path, str(tmp_path / "store"), {}, seed=1), 400, None)


@needs_go
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_processes_on_a_disk(seed: int, tmp_path: Path, porcupine: Path) -> None:
    """The same for longer, and each partition judged by porcupine, too."""
    _judge(Run(tmp_path, str(tmp_path / "store"), {}, seed), 4_000, porcupine)


@needs_go
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_processes_on_s3(
    seed: int, tmp_path: Path, s3_options: dict[str, Any], porcupine: Path
) -> None:
    """On an object store, whose listings and requests are others."""
    _judge(Run(tmp_path, f"s3://test/{tmp_path.name}", s3_options, seed), 2_000, porcupine)
