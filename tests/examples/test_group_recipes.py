"""The recipes for consumer groups do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import txnlog

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"

pytestmark = pytest.mark.more


def run_recipe(name: str, store: Path, *arguments: str) -> dict[str, int]:
    """What a recipe prints: counts by name."""
    done = subprocess.run(
        [sys.executable, str(RECIPES / f"{name}.py"), "--store", str(store), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if "starts over" not in line]
    told = dict(line.split(": ") for line in lines)
    return {who: int(count.split()[0].replace(",", "")) for who, count in told.items()}


def test_six_workers_share_a_queue_and_one_is_killed(tmp_path: Path) -> None:
    told = run_recipe("workers", tmp_path / "store", "--jobs", "6000")
    assert sum(told.values()) == 6_000
    done = txnlog.open(str(tmp_path / "store")).scan("done").to_arrow()["value"].to_pylist()
    jobs = [value.decode().rpartition(" by ")[0] for value in done]
    assert sorted(jobs) == sorted(f"job {number}" for number in range(6_000))


def test_two_services_get_every_order(tmp_path: Path) -> None:
    told = run_recipe("pubsub", tmp_path / "store")
    assert told["billing 1"] + told["billing 2"] == told["shipping"] == 1_000
    assert min(told.values()) > 0
