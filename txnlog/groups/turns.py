"""Whose turn it is, of many processes that want to put an entry of one kind at the same time.

There is no leader, and no process depends on another: if nothing comes for a while, more and more
of those that wait may put the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnlog.clock import Clock
from txnlog.errors import StorageError
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS

_TURNS = (1, 1, 1, 4, 16)
"""How many waiting processes may put the next entry after 0, 1, ... looks without news; then all
may.
"""
_MOST_LOST = 3
"""After losing this many numbers, to whatever entries, a process leaves a request."""
_LEAST_PAUSE_S = 0.001
_MOST_PAUSE_S = 0.25


class Turns:
    """What one process knows of the others: the numbers lost to them, and whether they go on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + DELIVERY_TIMEOUT_MS / 1000
        self._lost: list[int] = []
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
        self._lost.append(number)

    def is_crowd(self, newest: int) -> bool:
        """Whether the numbers were lost to entries of this kind; ``newest`` is their last one."""
        return bool(self._lost) and (len(self._lost) >= _MOST_LOST or newest >= self._lost[0])

    def may_put(self, before: int) -> bool:
        """Whether it is the turn of a process with this many others before it."""
        return self._quiet >= len(_TURNS) or before < _TURNS[self._quiet]

    def wait(self, group_id: str, what: str, *, asked: bool) -> None:
        """Pause until the next look. Raises StorageError when it has taken too long.

        ``asked`` is whether it has left a request. ``what`` names what it has not done, for the
        message.
        """
        if self._clock.monotonic_s() > self._deadline_s:
            raise StorageError(
                f"group {group_id!r}: others were faster {len(self._lost)} times in "
                f"{DELIVERY_TIMEOUT_MS} ms, so it has not {what}: try again later"
            )
        if asked:
            pause_s = self._round_s * (0.5 + self._clock.jitter()) * max(self._quiet, 1)
            self._clock.sleep(min(max(pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S))
        else:
            most_s = min(0.002 * 2 ** len(self._lost), _MOST_PAUSE_S)
            self._clock.sleep(self._clock.jitter() * most_s)
