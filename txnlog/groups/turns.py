"""Whose turn it is, of many who want to put an entry of one kind at one instant.

Nobody leads, and nobody depends on anybody: if nothing comes for a while, more and more of those
who wait may put the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnlog.clock import Clock
from txnlog.errors import StorageError
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS

_TURNS = (1, 1, 1, 4, 16)
"""How many of those who wait may put the next entry when nothing has come so many times; then all
may."""
_MOST_LOST = 3
"""Who has lost so many numbers asks others, whatever it was that took them."""
_LEAST_PAUSE_S = 0.001
_MOST_PAUSE_S = 0.25


class Turns:
    """What one of them knows of the others: the numbers that it has lost, and if others go on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + DELIVERY_TIMEOUT_MS / 1000
        self._lost: list[int] = []
        self._quiet = 0
        self._round_s = 0.0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Measure how long it takes to look what others have done: pauses are as long."""
        begun_s = self._clock.monotonic_s()
        yield
        self._round_s = self._clock.monotonic_s() - begun_s

    def looked(self, *, has_gone_on: bool) -> None:
        """Take note whether an entry of the kind has come since the look before."""
        # Commits are no turn that somebody has taken: he may be dead.
        self._quiet = 0 if has_gone_on else self._quiet + 1

    def lose(self, number: int) -> None:
        """Take note that somebody else has put the entry of this number."""
        self._lost.append(number)

    def is_crowd(self, newest: int) -> bool:
        """Whether it was others like itself who took numbers; ``newest`` is their last entry."""
        return bool(self._lost) and (len(self._lost) >= _MOST_LOST or newest >= self._lost[0])

    def may_put(self, before: int) -> bool:
        """Whether it is the turn of one behind so many others."""
        return self._quiet >= len(_TURNS) or before < _TURNS[self._quiet]

    def wait(self, group_id: str, what: str, *, asked: bool) -> None:
        """Pause until the next look. Raises StorageError when it has taken too long.

        ``asked`` is whether others do it for this one, too. ``what`` it has not done, for people.
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
