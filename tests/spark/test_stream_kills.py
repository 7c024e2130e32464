"""A streaming query in a process of its own that is killed again and again: nothing is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txnlog
from tests.spark import stream_job
from tests.spark.spark_helpers import fill, stored
from tests.spark.stream_helpers import reads_streams
from txnlog import Store

# Without the session of the other tests, so beside them.
pytestmark = [reads_streams, pytest.mark.more, pytest.mark.xdist_group("stream-kills")]

_TIMEOUT_S = 300


def start(store: Store, max_offsets: int, until: str) -> subprocess.Popen[str]:
    """Start the driver, with its JVM in one process group, and wait until its query runs."""
    checkpoint = Path(store.url).parent / "checkpoint"
    forget_unbegun(checkpoint)
    command = [sys.executable, stream_job.__file__, store.url, str(checkpoint)]
    with log_of(store).open("a") as log:
        process = subprocess.Popen(
            [*command, str(max_offsets), until],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    await_word(process, store, "started")
    return process


def forget_unbegun(checkpoint: Path) -> None:
    """Do what docs/SPARK.md advises where Spark was killed while it put its first offsets.

    It takes the temporary file for another query's offsets, whatever the source is.
    """
    offsets = checkpoint / "offsets"
    if offsets.exists() and not any(path.name.isdigit() for path in offsets.iterdir()):
        shutil.rmtree(checkpoint)


def await_word(process: subprocess.Popen[str], store: Store, word: str) -> None:
    """Wait until the driver says it."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != f"{word}\n":
        kill(process)
        pytest.fail(f"the driver said {line!r} instead of {word!r}: {said(store)}")


def log_of(store: Store) -> Path:
    return Path(store.url).parent / "driver.log"


def said(store: Store) -> str:
    """What the drivers have said last."""
    return log_of(store).read_text()[-3000:]


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL for the driver and its JVM; Python's workers go on until they notice."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def survive(store: Store, *, seed: int, kills: int, records: int) -> None:
    """Kill the query at random moments while records come, then let it end, and check."""
    rng = random.Random(seed)
    share = -(-records // kills)
    for number in range(kills):
        fill(store, "in", number * share, min((number + 1) * share, records))
        process = start(store, share // 4, "forever")
        for _ in range(rng.randrange(3)):
            await_word(process, store, "batch")
        try:
            process.wait(rng.uniform(0, 1.5))
        except subprocess.TimeoutExpired:
            kill(process)
        assert process.returncode == -signal.SIGKILL, said(store)
    process = start(store, share, "available")
    assert process.wait(_TIMEOUT_S) == 0, said(store)
    assert process.stdout is not None
    process.stdout.close()
    check(txnlog.open(store.url), records)


def check(store: Store, records: int) -> None:
    """Each record is there once, the offsets are at the end, nothing is undecided."""
    assert stored(store, "out") == list(range(records))
    assert store.groups.describe("g").lag == 0
    offsets = Path(store.url).parent / "checkpoint" / "offsets"
    newest = max((p for p in offsets.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    position = json.loads(newest.read_text().splitlines()[-1])
    ends = store.snapshot(["in"]).end_offsets("in")
    assert position["offsets"]["in"] == {str(p): end for p, end in ends.items()}
    assert [*store.transactions.hanging()] == []
    assert [*store.transactions.list(states=["Ongoing", "PrepareCommit", "PrepareAbort"])] == []
    described = store.topics.describe("out")
    assert described.open_transactions == ()
    assert {segment.outcome for segment in store.topics.segments("out")} <= {"committed", "aborted"}


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics in (3 partitions) and out (2)."""
    store.topics.create("in", partitions=3)
    store.topics.create("out", partitions=2)
    return store


@pytest.mark.condition(53)
def test_a_streaming_query_is_killed_and_restarted(topics: Store) -> None:
    """SIGKILL at random moments: the outputs are the inputs, each of them once."""
    survive(topics, seed=0, kills=1, records=1_000)


@pytest.mark.condition(53)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [11])
def test_a_streaming_query_is_killed_30_times(topics: Store, seed: int) -> None:
    """The same with 100,000 records and 30 kills."""
    survive(topics, seed=seed, kills=30, records=100_000)
