"""The demo proves what it claims, and its proof can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import txnlog

DEMO = Path(__file__).parents[2] / "examples" / "flights_etl.py"
SAMPLE = 3_000

# One process for all, because they share the store of one run.
pytestmark = [pytest.mark.spark, pytest.mark.more, pytest.mark.xdist_group("flights-demo")]


def run_demo(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    """Run the demo on a sample of the flights."""
    command = [sys.executable, str(DEMO), "--store", str(store), "--flights", str(SAMPLE)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store that the demo has made, and what the demo said."""
    store = tmp_path_factory.mktemp("demo") / "store"
    done = run_demo(store=store)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return store, done.stdout


def test_every_flight_is_accounted_for_after_two_kills(demo: tuple[Path, str]) -> None:
    """The job dies twice at its worst moments and the demo still proves exactly once."""
    _, said = demo
    assert said.count("killed with SIGKILL") == 2
    assert said.count("   ok  ") == 9
    assert "FAILED" not in said
    assert f"flights: {SAMPLE:,} records" in said
    assert f"group flights-etl: {SAMPLE:,} flights read, lag 0" in said
    assert "Traceback" not in said
    assert "WARN" not in said


def test_the_proof_fails_where_one_record_is_doubled_or_lost(demo: tuple[Path, str]) -> None:
    """The proof is not a formality: each way to break the store is named."""
    store, _ = demo
    opened = txnlog.open(str(store))
    assert run_demo("--prove", store=store).returncode == 0

    first = opened.scan("delayed").to_arrow().slice(0, 1)
    with opened.producer() as producer:
        producer.send_batch("delayed", first.select(["key", "value", "timestamp"]))
    failed = run_demo("--prove", store=store)
    assert failed.returncode == 1
    assert "FAILED  delayed: " in failed.stdout
    assert "The proof failed: delayed" in failed.stderr
    assert failed.stdout.count("FAILED") == 1

    opened.topics.delete_records({txnlog.TopicPartition("dead-letters", 0): 1})
    broken = run_demo("--prove", store=store)
    assert broken.returncode == 1
    assert "FAILED  dead-letters: " in broken.stdout
    assert "FAILED  totals and dead-letters together" in broken.stdout


@pytest.mark.parametrize("content", ["somebody.txt", "txnlog.json"])
def test_a_folder_that_is_not_the_demos_own_is_left_alone(tmp_path: Path, content: str) -> None:
    """Nothing is deleted but what the demo has made."""
    precious = tmp_path / content
    precious.write_text("precious")
    refused = run_demo(store=tmp_path)
    assert refused.returncode == 1
    assert "is not a store that this demo has made" in refused.stderr
    assert precious.read_text() == "precious"
