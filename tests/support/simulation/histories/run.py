"""Processes that make a history, while a seed stops, kills and doubles them.

How far they are by then is up to the machine, so no two runs are the same; the history tells.
"""

from __future__ import annotations

import random
import selectors
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import txnlog
from tests.support.simulation.histories.history import Notebook, Operation, read_notebooks
from tests.support.simulation.histories.worker import (
    COPIES,
    LEVELS,
    MEMBERS,
    SOURCE,
    STOP,
    TOPICS,
    Job,
    look,
)
from txnlog.clock import SystemClock
from txnlog.names import TopicPartition
from txnlog.store import Store, open_store
from txnlog.testing import VirtualClock

TIMEOUT_MS = 2_000
LEAST_AGE = {"transaction.max.timeout.ms": TIMEOUT_MS, "log.cleanup.age.ms": TIMEOUT_MS}
SILENCE_S = 60
"""How long nobody may say anything, on a machine that does nothing else."""
TICK_S = 1.0
_WORK_S = 0.02
STAFF = (
    *("transact", "transact", "transact", "append", "append", "copy", "copy"),
    *("read", "read", "read-anew", "poll", "belong", "belong", "maintain"),
)


@dataclass
class Run:
    """Some processes over one store, until they have said so many lines."""

    folder: Path
    url: str
    options: dict[str, Any]
    seed: int
    kill: float = 0.01
    stop: float = 0.02
    double: float = 0.25
    """Of those that are stopped, how many get a second instance meanwhile."""
    staff: Sequence[str] = STAFF
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._selector = selectors.DefaultSelector()
        self._going: dict[subprocess.Popen[str], Job] = {}
        self._stopped: dict[subprocess.Popen[str], int] = {}
        self._incarnations: Counter[str] = Counter()

    def make(self, lines: int) -> list[Operation]:
        """Start all, disturb them, end all; what the history is."""
        store = txnlog.open(self.url, create=True, storage_options=self.options, config=LEAST_AGE)
        for topic, count in TOPICS.items():
            store.topics.create(topic, partitions=count)
        for number, role in enumerate(self.staff):
            name = f"{role.partition('-')[0]}{number}{role.partition('-')[2]}"
            self._start(
                Job(
                    self.url,
                    str(self.folder),
                    role.partition("-")[0],
                    name,
                    self.seed,
                    self.options,
                    timeout_ms=TIMEOUT_MS,
                )
            )
        try:
            while self._going:
                self._listen(is_over=self.done["lines"] >= lines)
        finally:
            self.end()
        self._look_at_the_end()
        return read_notebooks(sorted(self.folder.glob("*.history")))

    def end(self) -> None:
        """Leave no process behind."""
        for process in self._going:
            process.kill()
            _close(process)
        self._selector.close()

    def _start(self, job: Job) -> None:
        given = replace(job, incarnation=self._incarnations[job.name])
        self._incarnations[job.name] += 1
        process = subprocess.Popen(given.command(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, process)
        self._going[process] = given

    def _listen(self, *, is_over: bool) -> None:
        """Hear one line, and let the seed decide what becomes of who has said it."""
        if is_over:
            (self.folder / STOP).touch()
            for process in [*self._stopped]:
                self._continue(process)
        patience_s = float(SILENCE_S)
        while not (ready := self._selector.select(timeout=TICK_S)):
            patience_s -= TICK_S * share_of_time()
            assert patience_s > 0, f"seed {self.seed}: nobody says anything; {dict(self.done)}"
        process = self._chance.choice(ready)[0].data
        if not process.stdout.readline():
            self._has_ended(process, is_over=is_over)
            return
        self.done["lines"] += 1
        for other in [*self._stopped]:
            self._stopped[other] -= 1
            if not self._stopped[other]:
                self._continue(other)
        lot = self._chance.random()
        if process in self._stopped:
            return
        if lot < self.kill:
            process.kill()
            self.done["killed"] += 1
        elif lot < self.kill + self.stop and not is_over:
            process.send_signal(signal.SIGSTOP)
            # The longest is beyond the timeout of what it has open.
            self._stopped[process] = self._chance.choice([10, 100, 600])
            self.done["stopped"] += 1
            if self._chance.random() < self.double:
                self._start(self._going[process])
                self.done["doubled"] += 1

    def _continue(self, process: subprocess.Popen[str]) -> None:
        del self._stopped[process]
        process.send_signal(signal.SIGCONT)

    def _has_ended(self, process: subprocess.Popen[str], *, is_over: bool) -> None:
        self._stopped.pop(process, None)
        self._selector.unregister(process.stdout)  # type: ignore[arg-type]
        job = self._going.pop(process)
        code = _close(process)
        assert code in (0, -signal.SIGKILL), f"seed {self.seed}: {job.name} ended with {code}"
        # Another instance of it may have its place by now: it ended when it was fenced.
        if not is_over and job.name not in {other.name for other in self._going.values()}:
            self._start(job)

    def _look_at_the_end(self) -> None:
        """Nothing is open any more: what each level shows, and where groups are."""
        clock = VirtualClock(SystemClock().now_ms(), self.seed)
        store = open_store(self.url, storage_options=self.options, clock=clock)
        store.snapshot(sorted(TOPICS))
        # What is open now, it has watched for longer than the timeout when it looks again.
        clock.sleep(2 * TIMEOUT_MS / 1000)
        notebook = Notebook(self.folder / "end.history")
        for level in LEVELS:
            look(store, notebook, level, is_final=True)
        for group, topics in ((COPIES, [SOURCE]), (MEMBERS, sorted(TOPICS))):
            number = notebook.invoke("offsets", group=group, is_final=True)
            notebook.result(number, "ok", ends=_committed(store, group, topics))


def share_of_time() -> float:
    """What part of the time this thread computes while it wants to: 1 if nothing else does.

    The run's processes have about as much, and the S3 server, whose threads are of this process.
    """
    began, began_work = time.monotonic(), time.thread_time()
    while (worked := time.thread_time() - began_work) < _WORK_S:
        pass
    return min(1.0, worked / (time.monotonic() - began))


def _close(process: subprocess.Popen[str]) -> int:
    """Wait for its end; its exit status."""
    assert process.stdout is not None
    process.stdout.close()
    return process.wait()


def _committed(store: Store, group: str, topics: Sequence[str]) -> dict[str, int]:
    found = {}
    with store.consumer(group_id=group) as consumer:
        for topic in topics:
            for number in store.snapshot([topic]).partitions(topic):
                committed = consumer.committed(TopicPartition(topic, number))
                if committed is not None:
                    found[f"{topic}:{number}"] = committed.offset
    return found


def summary(run: Run, operations: Sequence[Operation]) -> dict[str, int]:
    """What there was, for people."""
    kinds = Counter(
        f"{'copy' if op.kind == 'transaction' and op.group else op.kind} {op.outcome}"
        for op in operations
        if op.kind != "offsets"
    )
    return {**kinds, **run.done}
