"""Mutations in a child with limits: what reads a changed store must end well, whatever is in it.

``python -m tests.hostile.mutation_runs KIND SEED`` makes one again, here
in the process itself, and shows where it fails.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from tests.support.examples import tries_all
from txnlog.errors import TxnlogError

CPU_S = 10
WALL_S = 100
"""Of a child that waits for something; the machine may be busy."""
MOST_BYTES = 512 << 20
_MOST_VIRTUAL = 4 << 30
"""More than that is not given, so that a test that fails does not take the machine with it."""
_RESTART_BYTES = 64 << 20
"""A child that has taken so much makes place for another, as it might use that again."""

T = TypeVar("T")
Attempt = Callable[[int], "Outcome"]


@dataclass(slots=True)
class Outcome:
    """What came of one mutation: how large the object is, and which steps refused it."""

    size_bytes: int = 0
    random: Random = field(default_factory=Random)
    steps: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    whole: bool = tries_all()
    """Whether everything is done after each mutation."""

    def sometimes(self) -> bool:
        """For what need not be done after each mutation, as there are many."""
        return self.random.random() < 0.1 or self.whole

    def some_of(self, *ways: T) -> Sequence[T]:
        """One of several ways, or all."""
        chosen = self.random.choice(ways)
        return ways if self.whole else (chosen,)

    def step(self, do: Callable[[], object]) -> None:
        """Do one thing that a user may do: it succeeds, or raises one of the project's errors."""
        self.steps += 1
        try:
            do()
        except TxnlogError as error:
            self.refusals[type(error).__name__] += 1


@dataclass(slots=True)
class Report:
    """What came of all mutations of a kind."""

    name: str
    done: int = 0
    refused: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    most_bytes: int = 0
    most_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        errors = ", ".join(f"{count} {name}" for name, count in self.refusals.most_common(4))
        return (
            f"{self.name}: {self.done} mutations, {self.refused} refused ({errors}), "
            f"{len(self.failures)} failed; at most {self.most_s:.1f} s of CPU, "
            f"{self.most_bytes >> 20} MB"
        )


def run(name: str, seeds: Sequence[int], attempt: Attempt) -> Report:
    """Make a mutation for each seed, in as few children as do it."""
    report = Report(name)
    left = list(seeds)
    while left:
        left = _run_child(report, left, attempt)
    return report


def _run_child(report: Report, seeds: list[int], attempt: Attempt) -> list[int]:
    """The seeds that the child has not come to."""
    reading, writing = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        os.close(reading)
        status = 1
        try:
            _work(writing, seeds, attempt)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    done, timed_out = 0, False
    with os.fdopen(reading, "rb") as pipe:
        while True:
            if not select.select([pipe], [], [], WALL_S)[0]:
                timed_out = True
                os.kill(process_id, signal.SIGKILL)
            line = pipe.readline()
            if not line:
                break
            _note(report, seeds[done], json.loads(line))
            done += 1
    _, status = os.waitpid(process_id, 0)
    if status:
        how = f"hung for {WALL_S} s" if timed_out else _ending(status)
        report.failures.append(f"seed {seeds[done]}: {how}")
        report.done += 1
        done += 1
    return seeds[done:]


def _ending(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"the process ended with status {os.waitstatus_to_exitcode(status)}"
    name = signal.Signals(os.WTERMSIG(status)).name
    return f"took more than {CPU_S} s of CPU" if name == "SIGPROF" else f"ended by {name}"


def _note(report: Report, seed: int, told: dict[str, object]) -> None:
    report.done += 1
    report.most_bytes = max(report.most_bytes, int(str(told["bytes"])))
    report.most_s = max(report.most_s, float(str(told["s"])))
    if told["failure"]:
        report.failures.append(f"seed {seed}: {told['failure']}")
    refusals = told["refusals"]
    assert isinstance(refusals, dict)
    report.refusals.update(refusals)
    report.refused += bool(refusals)


def _work(writing: int, seeds: Iterable[int], attempt: Attempt) -> None:
    """In the child: attempt after attempt, each told in a line."""
    gc.freeze()  # what tests before have left may not survive to be collected behind a fork
    faulthandler.disable()  # pytest's would show where each signal came, among its own frames
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    virtual = _status("VmSize") + _MOST_VIRTUAL
    resource.setrlimit(resource.RLIMIT_AS, (virtual, virtual))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # what C++ says as it ends the process
        os.dup2(quiet, descriptor)
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, began_s = _status("VmRSS"), time.process_time()
        failure, outcome = "", Outcome()
        try:
            outcome = attempt(seed)
        except BaseException as error:  # noqa: BLE001 - what Rust's libraries panic with, too
            failure = _describe(error)
        took = max(_status("VmHWM") - before, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not failure and took > MOST_BYTES + outcome.size_bytes:
            failure = f"took {took >> 20} MB of memory"
        told = {
            "failure": failure,
            "refusals": outcome.refusals,
            "bytes": took,
            "s": round(time.process_time() - began_s, 2),
        }
        os.write(writing, json.dumps(told).encode() + b"\n")
        if took > _RESTART_BYTES:
            return


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/hostile/" not in frame.filename] or frames
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in ours[-4:]]
    return f"{type(error).__name__}: {str(error)[:200]!r} at {' '.join(places)}"


def _status(name: str) -> int:
    """Bytes of memory of this process, as Linux counts them."""
    with Path("/proc/self/status").open() as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    raise KeyError(name)


def main() -> None:
    from tests.hostile.mutated_kinds import KINDS

    kind, seed = sys.argv[1], int(sys.argv[2])
    sys.stdout.write(f"{KINDS[kind](seed)}\n")


if __name__ == "__main__":
    main()
