"""Repeats and medians, of time and of CPU time; how much memory grows."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Taken:
    """Medians of one kind of run. ``cpu_s`` is 0 if the system does not report it.

    CPU time is that of this process and all below it: unlike elapsed time it hardly changes when
    the machine is busy.
    """

    elapsed_s: float
    cpu_s: float


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    repetitions: int,
    cleanups: Mapping[str, Callable[[], object]] | None = None,
    settle_s: float = 0.0,
) -> dict[str, Taken]:
    """Measure each in turn, so that a disturbance hits all of them.

    One turn before the first is not counted: JVM and worker processes warm up. Nor are
    ``cleanups``, which follow the run of their name, nor ``settle_s``, a pause before each run: a
    Spark worker collects garbage for some 20 ms after its task has ended.
    """
    elapsed: dict[str, list[float]] = {name: [] for name in runs}
    used: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repetitions + 1):
        for name, run in runs.items():
            time.sleep(settle_s)
            start, cpu = time.perf_counter(), _cpu_s()
            run()
            if turn:
                elapsed[name].append(time.perf_counter() - start)
                used[name].append(_cpu_s() - cpu)
            if cleanups and name in cleanups:
                cleanups[name]()
    return {
        name: Taken(statistics.median(elapsed[name]), statistics.median(used[name]))
        for name in runs
    }


def descendants() -> dict[int, list[str]]:
    """This process and all below it: by pid, the fields of /proc/PID/stat after the name."""
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    ours = {os.getpid()}
    grown = True
    while grown:
        below = {pid for pid, fields in found.items() if int(fields[1]) in ours}
        grown = not below <= ours
        ours |= below
    return {pid: found[pid] for pid in ours if pid in found}


def cpu_of_each() -> dict[int, float]:
    """CPU seconds of this process and its descendants, by pid."""
    return {pid: sum(map(int, f[11:13])) / _TICKS for pid, f in descendants().items()}


def _cpu_s() -> float:
    """CPU seconds of this process and its descendants, also of those that have ended."""
    ticks = (sum(map(int, fields[11:15])) for fields in descendants().values())
    return sum(ticks) / _TICKS


@contextmanager
def growth() -> Iterator[list[float]]:
    """The largest growth of the resident size (MB), sampled 100 times a second."""
    pa.default_memory_pool().release_unused()
    before = _resident_mb()
    grown, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            grown[0] = max(grown[0], _resident_mb() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        ended.set()
        watcher.join()


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
