"""Numbers for monitoring: one of them, and those of a producer or consumer since it was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from txnlog.clock import Clock


@dataclass(frozen=True, slots=True)
class Metric:
    """One number, with its name and labels in Prometheus' form."""

    name: str
    labels: Mapping[str, str]
    value: float


class Meter:
    """Counts what a client does, in names that begin with ``prefix``. For one thread at a time."""

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._totals: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count something."""
        self._totals[what] += count

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count a call, how long it takes, and whether it fails."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        except BaseException:
            self._totals[f"{what}_error"] += 1
            raise
        finally:
            self._totals[what] += 1
            took_s = self._clock.monotonic_s() - began_s
            self._seconds[what] = self._seconds.get(what, 0.0) + took_s

    def metrics(self) -> list[Metric]:
        """All that was counted, for any thread: totals, and seconds."""
        totals, seconds = [*self._totals.items()], [*self._seconds.items()]  # each in one step
        return [
            *(Metric(f"{self._prefix}_{what}_total", {}, n) for what, n in totals),
            *(Metric(f"{self._prefix}_{what}_seconds_total", {}, s) for what, s in seconds),
        ]
