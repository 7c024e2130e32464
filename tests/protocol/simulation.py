"""Interleaves several actors, one storage request at a time, in an order that a seed decides.

Each actor runs the real code in a thread of its own, and waits before every request until the
scheduler lets it go on; only one runs at any time. A choice function picks who is next, so an
order can be random by seed or walked through exhaustively.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

Choose = Callable[[Sequence[int]], int]
"""From the numbers of the actors that can go on, picks one."""


class _Actor:
    def __init__(self, number: int, body: Callable[[Callable[[str], None]], None]) -> None:
        self.number = number
        self.turn = threading.Semaphore(0)
        self.paused = threading.Semaphore(0)
        self.done = False
        self.error: BaseException | None = None
        self._body = body
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self._body(self._wait)
        except BaseException as error:  # noqa: BLE001 - the scheduler raises it
            self.error = error
        finally:
            self.done = True
            self.paused.release()

    def _wait(self, _request: str) -> None:
        self.paused.release()
        self.turn.acquire()

    def step(self) -> None:
        self.turn.release()
        self.paused.acquire()


def interleave(
    bodies: Sequence[Callable[[Callable[[str], None]], None]], choose: Choose
) -> list[int]:
    """Run the actors to their ends; returns who went on at each step.

    A body is handed the function to call before each request (``FaultyStorage`` does that).
    The first error that an actor raises is raised here.
    """
    actors = [_Actor(number, body) for number, body in enumerate(bodies)]
    trace = []
    for actor in actors:
        actor.thread.start()
    while running := [actor.number for actor in actors if not actor.done]:
        number = choose(running)
        trace.append(number)
        actors[number].step()
    for actor in actors:
        actor.thread.join()
        if actor.error is not None:
            raise actor.error
    return trace


def random_choice(seed: int) -> Choose:
    """Any order, decided by a seed."""
    return random.Random(seed).choice


def preemptions(switches: Sequence[int]) -> Choose:
    """Run the first actor that can, but pass on to the next one at these steps.

    Walking through all small sets of switches visits every interleaving with as many
    preemptions: the bound that finds most races (after Musuvathi and Qadeer's CHESS).
    """
    step = -1
    current = 0

    def choose(running: Sequence[int]) -> int:
        nonlocal step, current
        step += 1
        if step in switches or current not in running:
            later = [number for number in running if number > current]
            current = later[0] if later else running[0]
        return current

    return choose
