"""Cleaning up behind a producer that lives: superseded states of its transactional id go.

Logs of topics and groups are cleaned by ``StateLog``, behind a checkpoint.
"""

from __future__ import annotations

from collections import deque

from txnlog.clock import Clock
from txnlog.log.sequence_log import SequenceLog

_CLEAN_INTERVAL = 96
"""A living producer deletes so many entries at a time: those of 32 transactions."""


class Cleaner:
    """Keeps the log of one transactional id short while its producer lives.

    Remembers when some entries were the newest, one in every few dozen; what lies before one that
    was so long enough ago is deleted, witnesses too. Ages are measured here, so no wall clock can
    make them wrong (hazard 3).
    """

    def __init__(
        self, log: SequenceLog, clock: Clock, age_ms: int, oldest: int, newest: int
    ) -> None:
        self._log = log
        self._clock = clock
        self._age_s = age_ms / 1000
        self._oldest = oldest
        self._marked = newest
        self._marks = deque([(newest, clock.monotonic_s())])

    def advance(self, number: int) -> None:
        """Entry ``number`` is the newest now: delete what is old, once in a while.

        Raises:
            StorageError: nothing is lost; the next time does it.
        """
        now_s = self._clock.monotonic_s()
        if number - self._marked >= _CLEAN_INTERVAL:
            self._marked = number
            self._marks.append((number, now_s))
        end = self._oldest
        while self._marks and now_s - self._marks[0][1] > self._age_s:
            end, _ = self._marks.popleft()
        if end > self._oldest:
            self._log.delete_below(end)
            self._oldest = end
