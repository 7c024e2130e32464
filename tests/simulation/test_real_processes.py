"""Real processes on a real disk and a real S3 server: conditions 51, 52 and 55.

Where a process is stopped or killed depends on what it has said, in an order that a seed decides;
how far it is by then is up to the machine. The judge counts what is there in the end.
"""

from __future__ import annotations

import errno
import json
import os
import random
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.steps import values
from txnlog.clock import SystemClock
from txnlog.errors import StorageError, TxnlogError
from txnlog.store import Store, open_store
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("hazard 9")

WORKER = "tests.support.simulation.commit_worker"
SILENCE_S = 120.0


class Worker:
    """A process that commits, and the lines that it has said."""

    def __init__(
        self, url: str, options: dict[str, Any], name: str, commits: int, mode: str
    ) -> None:
        self.name = name
        command = [sys.executable, "-m", WORKER, url, json.dumps(options), name, str(commits), mode]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> list[str]:
        """The next thing it says; nothing if it is over."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Starts workers, and ends them all with the test."""
    workers: list[Worker] = []

    def started(*arguments: Any) -> Worker:
        workers.append(Worker(*arguments))
        return workers[-1]

    yield started
    for worker in workers:
        worker.end()


def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    if kind == "local":
        return str(tmp_path / "store"), {}
    return f"s3://test/{tmp_path.name}", request.getfixturevalue("s3_options")


def texts(store: Store, topic: str) -> list[str]:
    return [value.decode() for value in values(store, topic)]


def meet(
    kind: str,
    processes: int,
    commits: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    start: Callable[..., Worker],
) -> None:
    """So many processes commit to one topic; all land, none twice, dense, and nobody starves."""
    url, options = place(kind, request, tmp_path)
    store = txnlog.open(url, create=True, storage_options=options)
    store.topics.create("a")
    workers = [start(url, options, f"w{number}", commits, "plain") for number in range(processes)]
    for worker in workers:
        # A writer that was starved would have given up after the delivery timeout of two minutes.
        said = [worker.line() for _ in range(commits + 1)]
        assert [words[0] for words in said] == ["ack"] * commits + ["done"], (
            worker.name,
            said[-3:],
        )
    table = txnlog.open(url, storage_options=options).scan("a").to_arrow()
    assert table.column("offset").to_pylist() == list(range(processes * commits))
    found = [value.decode() for value in table.column("value").to_pylist()]
    for number in range(processes):
        mine = [value for value in found if value.startswith(f"w{number}/")]
        assert mine == [f"w{number}/{turn}" for turn in range(commits)]


KINDS = ["local", pytest.param("s3", marks=pytest.mark.s3)]


@pytest.mark.condition(51)
@pytest.mark.parametrize(
    ("kind", "processes"),
    [("local", 4), pytest.param("s3", 3, marks=[pytest.mark.s3, pytest.mark.more])],
)
def test_processes_commit_to_one_topic(
    kind: str,
    processes: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    start: Callable[..., Worker],
) -> None:
    """In small: 10 commits each."""
    meet(kind, processes, 10, request, tmp_path, start)


@pytest.mark.condition(51)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_32_processes_commit_to_one_topic(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, start: Callable[..., Worker]
) -> None:
    """32 processes, 50 commits each."""
    meet(kind, 32, 50, request, tmp_path, start)


def disturb(
    seed: int, processes: int, commits: int, tmp_path: Path, start: Callable[..., Worker]
) -> Counter[str]:
    """Writers of two topics are stopped, timed out, continued and killed; returns how often."""
    chance = random.Random(seed)
    url = str(tmp_path / "store")
    store = txnlog.open(url, create=True)
    for topic in ("a", "b"):
        store.topics.create(topic)
    done: Counter[str] = Counter()
    with selectors.DefaultSelector() as selector:

        def spawn(name: str) -> Worker:
            worker = start(url, {}, name, commits, "transaction")
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            return worker

        going = {f"w{number}": spawn(f"w{number}") for number in range(processes)}
        while going:
            ready = [key.data for key, _ in selector.select(timeout=SILENCE_S)]
            assert ready, f"seed {seed}: nobody says anything; {done}"
            worker = chance.choice(sorted(ready, key=lambda found: found.name))
            words = worker.line()
            if not words or words[0] == "done":
                selector.unregister(worker.process.stdout)
                del going[worker.name]
                if words != ["done"]:
                    assert worker.process.wait() == -signal.SIGKILL, f"seed {seed}: {worker.name}"
                    going[worker.name] = spawn(worker.name)
                continue
            done[words[0]] += 1
            if chance.random() < 0.1:
                worker.send(signal.SIGKILL)
                done["killed"] += 1
            elif chance.random() < 0.2:
                worker.send(signal.SIGSTOP)
                # A reader whose clock is ahead ends what the stopped one has open: it is past its
                # timeout, as if it had been stopped for so long.
                late = VirtualClock(SystemClock().now_ms() + 40_000, seed)
                reader = open_store(url, clock=late)
                snapshot = reader.snapshot(["a", "b"], isolation_level="snapshot")
                seen = [snapshot.scan(t).to_arrow().column("value").to_pylist() for t in "ab"]
                assert sorted(seen[0]) == sorted(seen[1]), f"seed {seed}: a torn snapshot"
                worker.send(signal.SIGCONT)
                done["stopped"] += 1
    final = open_store(url)
    expected = sorted(f"w{number}/{turn}" for number in range(processes) for turn in range(commits))
    for topic in ("a", "b"):
        assert sorted(texts(final, topic)) == expected, f"seed {seed}"
        everything = final.scan(topic, isolation_level="read_uncommitted").to_arrow()
        assert everything.column("offset").to_pylist() == list(range(everything.num_rows))
    return done


@pytest.mark.more
@pytest.mark.condition(52)
def test_writers_are_stopped_and_killed(tmp_path: Path, start: Callable[..., Worker]) -> None:
    """Paused and killed: no commit is lost or doubled, and the next run goes on."""
    done = disturb(5, 3, 12, tmp_path, start)
    assert done["killed"] >= 2
    assert done["stopped"] >= 2


@pytest.mark.more
@pytest.mark.condition(52)
def test_a_writer_that_was_killed_goes_on_behind_somebody_elses_transaction(
    tmp_path: Path, start: Callable[..., Worker]
) -> None:
    """Its commits lie where no reader sees them yet; it writes none of them again.

    This is a test of the worker, which once counted what a reader sees.
    """
    url = str(tmp_path / "store")
    store = txnlog.open(url, create=True)
    for topic in ("a", "b"):
        store.topics.create(topic)
    waiting = start(url, {}, "w0", 1, "transaction")
    assert waiting.line() == ["open", "0"]
    waiting.send(signal.SIGSTOP)
    first = start(url, {}, "w1", 9, "transaction")
    while first.line()[0] != "ack":
        pass
    first.send(signal.SIGKILL)
    first.process.wait()
    second = start(url, {}, "w1", 9, "transaction")
    while second.line() != ["done"]:
        pass
    waiting.send(signal.SIGCONT)
    while waiting.line() != ["done"]:
        pass
    for topic in ("a", "b"):
        assert sorted(texts(store, topic)) == ["w0/0", *(f"w1/{turn}" for turn in range(9))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_writers_are_stopped_and_killed_for_long(
    seed: int, tmp_path: Path, start: Callable[..., Worker]
) -> None:
    """The same with eight writers, and for longer."""
    done = disturb(seed, 8, 40, tmp_path, start)
    assert done["killed"] > 10
    assert done["error"] > 0


@pytest.mark.condition(55)
@pytest.mark.parametrize("transactional", [True, False])
def test_a_full_disk_at_each_write(
    transactional: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says that the disk is full, at each write in turn and ever after.

    The error names the place and the cause; with space again the next run goes on.
    """
    write, left = os.write, [0]

    def full(descriptor: int, data: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    for number in range(100):
        url = str(tmp_path / f"store-{number}")
        store = open_store(url, create=True, clock=VirtualClock())
        for topic in ("a", "b"):
            store.topics.create(topic)
        monkeypatch.setattr(os, "write", full)
        left[0] = number
        failed: TxnlogError | None = None
        try:
            commit_once(open_store(url, clock=VirtualClock(seed=2)), transactional)
        except TxnlogError as error:
            failed = error
        monkeypatch.setattr(os, "write", write)
        after = open_store(url, clock=VirtualClock(seed=3))
        begun = texts(after, "a")
        assert begun in ([], ["x"])
        if transactional:
            assert texts(after, "b") == begun
        if not begun:
            commit_once(after, transactional)
            assert texts(after, "a") == ["x"]
        if failed is None:
            break
        assert isinstance(failed, StorageError) or isinstance(failed.__cause__, StorageError)
        assert "the disk is full: free some space" in str(failed)
        assert url in str(failed)
    assert number > (5 if transactional else 1)


def commit_once(store: Store, transactional: bool) -> None:
    if not transactional:
        with store.producer() as producer:
            producer.send("a", "x")
        return
    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("a", "x")
            producer.send("b", "x")
