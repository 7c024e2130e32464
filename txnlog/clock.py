"""The only source of wall clocks, monotonic time, waiting and randomness.

Everything else is passed a :class:`Clock`, so that tests can control time and chance.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

_STALL_FRACTION = 4
_WITH_SLEEP: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_MONOTONIC_S: Callable[[], float] = (
    time.monotonic if _WITH_SLEEP is None else partial(time.clock_gettime, _WITH_SLEEP)
)
"""By a clock that goes on while the machine sleeps, if there is one (Linux)."""


class Signal:
    """An event that one thread waits for, and others set; Ctrl-C may end the wait.

    ``threading.Event`` waits in several steps in Python. An interrupt between two of them becomes
    "RuntimeError: release unlocked lock"; here waiting is a single step.
    """

    def __init__(self) -> None:
        self._told: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the wait, or the next one. From any thread."""
        if self._told.empty():
            self._told.put(None)

    def is_set(self) -> bool:
        """Whether it was set, and not cleared since."""
        return not self._told.empty()

    def clear(self) -> None:
        """Let the next wait begin."""
        with suppress(Empty):
            while True:
                self._told.get_nowait()

    def wait(self, seconds: float) -> None:
        """Wait until it is set, or for ``seconds``. It stays set."""
        with suppress(Empty):
            self._told.get(timeout=max(seconds, 0))
            self.set()


class Clock(Protocol):
    """Time and chance as the library sees them."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never runs backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; a virtual clock advances itself instead."""
        ...

    def wait(self, event: Signal, seconds: float) -> None:
        """Wait like :meth:`sleep`, but no longer than until the event is set."""
        ...

    def token(self) -> str:
        """128 random bits as 32 hex digits: a nonce, or a part of a unique file name."""
        ...

    def jitter(self) -> float:
        """A random number in [0, 1) to spread retries with."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by both clocks of this process, to tell later how much time has passed.

    Both are used: the monotonic one may stand still while a machine sleeps, the other one jumps.
    """

    monotonic_s: float
    wall_ms: int

    @classmethod
    def now(cls, clock: Clock) -> Moment:
        """This moment."""
        return cls(clock.monotonic_s(), clock.now_ms())

    def stalled_past(self, cleanup_age_ms: int, clock: Clock) -> bool:
        """Whether enough of the cleaning age has passed for a cleaning to have overtaken us.

        Then a name that was free at this moment may have been used and freed again: a writer that
        has put an object under it looks once more (hazard 3).
        """
        now = Moment.now(clock)
        elapsed_ms = max((now.monotonic_s - self.monotonic_s) * 1000, now.wall_ms - self.wall_ms)
        return elapsed_ms > cleanup_age_ms / _STALL_FRACTION


class SystemClock:
    """The machine's own clocks and its random source."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Asked for each record that is sent, so it is no function of Python's.
    monotonic_s = staticmethod(_MONOTONIC_S)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: Signal, seconds: float) -> None:
        event.wait(seconds)

    def token(self) -> str:
        return secrets.token_hex(16)

    def jitter(self) -> float:
        return random.random()
