"""A clock that tests control: the same seed, the same times and tokens."""

from __future__ import annotations

import math
import random

from txnlog.clock import Signal


class VirtualClock:
    """Time stands still unless it is moved; waiting moves it. Tokens come from a seed.

    A :class:`~txnlog.clock.Clock`. ``time_ms`` is the wall clock and may be set. The monotonic
    clock goes with it, so it should only be set forwards; :meth:`set_wall` and
    :meth:`sleep_machine` move the wall clock alone.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self.time_ms = now_ms
        self._apart_ms = 0
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_s(self) -> float:
        return (self.time_ms - self._apart_ms) / 1000

    def sleep(self, seconds: float) -> None:
        self.time_ms += int(seconds * 1000)

    def wait(self, event: Signal, seconds: float) -> None:
        """Time moves on by all of it, unless the event is set already."""
        if not event.is_set():
            self.time_ms += math.ceil(seconds * 1000)

    def sleep_machine(self, for_ms: int) -> None:
        """The machine sleeps: time goes on, and the monotonic clock stands still."""
        self.set_wall(self.time_ms + for_ms)

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock, forwards or back; the monotonic clock is not affected."""
        self._apart_ms += now_ms - self.time_ms
        self.time_ms = now_ms

    def token(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def jitter(self) -> float:
        return self._random.random()
