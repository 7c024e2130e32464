"""The one place where wall clocks, monotonic time, waiting and randomness come from.

Everything else is handed a :class:`Clock`, so that tests can own time and chance.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """Time and chance as the library sees them."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never runs backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; a virtual clock moves itself on instead."""
        ...

    def token(self) -> str:
        """128 random bits as 32 hex digits: a nonce, or a part of a unique file name."""
        ...

    def jitter(self) -> float:
        """A random number in [0, 1) to spread retries with."""
        ...


class SystemClock:
    """The machine's own clocks and its random source."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def token(self) -> str:
        return secrets.token_hex(16)

    def jitter(self) -> float:
        return random.random()
