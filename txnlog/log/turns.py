"""Whose turn it is, of many processes that want to put the next entry of a log at the same time.

There is no leader, and no process depends on another: if nothing comes for a while, more and more
of those that wait may put the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnlog.clock import Clock
from txnlog.errors import StorageError

_TURNS = (1, 1, 1, 4, 16)
"""How many waiting processes may put the next entry after 0, 1, ... looks without news; then all
may.
"""
_MOST_LOST = 3
"""After losing this many numbers, to whatever entries, a process leaves a request."""
_LEAST_PAUSE_S = 0.001
_MOST_PAUSE_S = 0.25


class Turns:
    """What one process knows of the others: the numbers lost to them, and whether they go on.

    ``timeout_ms``: how long it goes on while others are faster.
    """

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self.lost: list[int] = []
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._deadline_s = clock.monotonic_s() + timeout_ms / 1000
        self._quiet = 0
        self._round_s = 0.0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Measure how long a look takes: pauses are as long."""
        begun_s = self._clock.monotonic_s()
        yield
        self._round_s = self._clock.monotonic_s() - begun_s

    def looked(self, *, has_gone_on: bool) -> None:
        """Record whether an entry of the kind has come since the previous look."""
        # Commits do not count as a turn: the process whose turn it is may be dead.
        self._quiet = 0 if has_gone_on else self._quiet + 1

    def lose(self, number: int) -> None:
        """Record that another process has put the entry of this number."""
        self.lost.append(number)

    def is_crowd(self, newest: int) -> bool:
        """Whether the numbers were lost to entries of this kind; ``newest`` is their last one."""
        return bool(self.lost) and (len(self.lost) >= _MOST_LOST or newest >= self.lost[0])

    def may_put(self, before: int) -> bool:
        """Whether it is the turn of a process with this many others before it."""
        return self._quiet >= len(_TURNS) or before < _TURNS[self._quiet]

    def check_in_time(self, who: str, outcome: str) -> None:
        """Raise StorageError if it has taken too long. ``outcome`` is for the message."""
        if self._clock.monotonic_s() > self._deadline_s:
            raise StorageError(
                f"{who}: other writers were faster {len(self.lost)} times in "
                f"{self._timeout_ms} ms; {outcome}: try again later"
            )

    def pause(self, *, asked: bool, at_once: bool = False) -> None:
        """Wait until the next look; ``at_once``: its turn is the next but one.

        ``asked``: whether this process has left a request that others may carry out.
        """
        if asked:
            share = 0.0 if at_once else 0.5 + self._clock.jitter()
            pause_s = self._round_s * share * max(self._quiet, 1)
            self._clock.sleep(min(max(pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S))
        else:
            most_s = min(0.002 * 2 ** len(self.lost), _MOST_PAUSE_S)
            self._clock.sleep(self._clock.jitter() * most_s)
