"""Ctrl-C while something is waited for: it comes out as itself, and nothing goes on unseen."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import pytest

from tests.support.runtime.interrupts import Point, Tracer
from txnlog.clock import Signal
from txnlog.storage.threads import THREADS, Waits, run_ahead, run_together, work_ahead

STANDARD = (
    *(str(module.__file__) for module in (threading, queue)),
    futures.__path__[0] + "/_base.py",
)
"""Where the standard library waits in several steps."""
WATCHED = ("clock.py", "storage/threads.py", *STANDARD)


def wait_for_a_signal() -> None:
    signal = Signal()
    signal.wait(0.001)
    signal.set()
    signal.wait(60)
    signal.clear()


class Calls:
    """Calls of which some run in other threads; ``running`` ones are not over."""

    def __init__(self) -> None:
        self.running = 0
        self._mutex = threading.Lock()

    def each(self) -> Iterator[Callable[[], int]]:
        for number in range(6):
            yield lambda number=number: self._call(number)  # type: ignore[misc]

    def sized(self) -> Iterator[tuple[int, Callable[[], int]]]:
        return ((1, call) for call in self.each())

    def _call(self, number: int) -> int:
        with self._mutex:
            self.running += 1
        time.sleep(0.001)
        with self._mutex:
            self.running -= 1
        return number


def together(calls: Calls) -> None:
    assert run_together(calls.each(), 3) == [*range(6)]


def in_order(calls: Calls) -> None:
    assert [*run_ahead(calls.sized(), Waits(1.0), 3, 100)] == [*range(6)]


def worked(calls: Calls) -> None:
    assert [*work_ahead(calls.sized())] == [*range(6)]


def points_of(call: Callable[[], object]) -> list[Point]:
    tracer = Tracer(WATCHED)
    tracer.run(call)
    return tracer.points()


def test_a_wait_for_a_signal_ends_with_the_interrupt_itself() -> None:
    """At each line that it passes, the standard library's included."""
    points = points_of(wait_for_a_signal)
    assert len(points) > 5
    for at in points:
        with pytest.raises(KeyboardInterrupt):
            Tracer(WATCHED, at, KeyboardInterrupt).run(wait_for_a_signal)


@pytest.mark.parametrize("run", [together, in_order, worked])
def test_no_call_goes_on_after_the_interrupt(run: Callable[[Calls], None]) -> None:
    """Running calls are waited for, and no other begins.

    At lines of the library alone: handing a call to a thread is the standard library's.
    """
    for _ in range(3):
        run(Calls())
    points = [at for _ in range(3) for at in points_of(lambda: run(Calls()))]
    waiting = {at for at in points if at.file not in STANDARD}
    assert len(waiting) > 20
    came = 0
    for at in sorted(waiting):
        calls = Calls()
        tracer = Tracer(WATCHED, at, KeyboardInterrupt)
        try:
            tracer.run(lambda calls=calls: run(calls))  # type: ignore[misc]
        except KeyboardInterrupt:
            came += 1
            before = calls.running
            assert before == 0, f"{before} calls run on after an interrupt at {at}"
        else:
            assert not tracer.raised, f"an interrupt at {at} was lost"
    assert came > len(waiting) // 3
    pool = THREADS._pool
    assert (pool is not None) or run is in_order, "what runs in order has threads of its own"
    assert pool is None or not pool.uses
