"""What a poll does while it waits: it looks for records now and then, and commits offsets.

It looks at once when it is woken. The periodic commits are Kafka's ``enable.auto.commit``: they are
of the offsets that polls have returned.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

from txnlog.clock import Clock, Signal
from txnlog.config import check_whole_number
from txnlog.errors import CommitFailed, InvalidOption, TxnlogError, Wakeup
from txnlog.log.open_logs import listen
from txnlog.names import TopicPartition

T = TypeVar("T")

_FIRST_PAUSE_MS: Final = 10


class PollWait:
    """When a consumer that has returned everything looks for more.

    Each look is a listing per topic. The pauses between looks double up to ``max_wait_ms``, also
    across polls; a writer of the same process ends one early.
    """

    def __init__(self, clock: Clock, url: str, max_wait_ms: int) -> None:
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._event = Signal()
        self._told = False
        self._pause_ms = 0
        self._next_ms = 0
        listen(url, self._event)

    def wake(self) -> None:
        """End the current or the next wait, from any thread: it raises Wakeup."""
        self._told = True
        self._event.set()

    def check(self) -> None:
        """Raise Wakeup if :meth:`wake` was called since."""
        if self._told:
            self._told = False
            raise Wakeup("wakeup() was called; nothing is lost: poll again to go on, or close")

    def look_soon(self) -> None:
        """There may be new records: look again at once."""
        self._pause_ms = self._next_ms = 0

    def look_now(self) -> None:
        """End the current or the next wait by a look, from any thread."""
        self._event.set()

    def until_found(
        self,
        look: Callable[[], T],
        nothing: T,
        timeout_ms: int | None,
        attend: Callable[[], float],
    ) -> T:
        """The result of ``look`` as soon as it finds something, ``nothing`` after the timeout.

        ``nothing``: what ``look`` returns if there is nothing. ``timeout_ms``: with 0 it looks
        once, however recent the last look; None: for ever. ``attend`` does before each wait what
        else is due, and returns when it is to be called again, in s. Raises Wakeup: :meth:`wake`
        was called.
        """
        until_ms = None if timeout_ms is None else self._now_ms() + timeout_ms
        while True:
            if timeout_ms == 0 or self._event.is_set() or self._now_ms() >= self._next_ms:
                self._event.clear()  # cleared before the look: later arrivals cause another one
                self.check()
                found = look()
                if found:
                    self.look_soon()
                    return found
                self._pause_ms = min(2 * self._pause_ms or _FIRST_PAUSE_MS, self._max_wait_ms)
                self._next_ms = self._now_ms() + self._pause_ms
            now_ms = self._now_ms()
            if until_ms is not None and now_ms >= until_ms:
                return nothing
            pause_s = attend()
            next_ms = self._next_ms if until_ms is None else min(self._next_ms, until_ms)
            self._clock.wait(self._event, max(min((next_ms - now_ms) / 1000, pause_s), 0))

    def _now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)


Offsets: TypeAlias = Mapping[TopicPartition, int]

_LONGEST_S: Final = 86_400.0
"""After this time at the latest offsets that have not changed are committed again."""

_logger = logging.getLogger(__name__)


class AutoCommit:
    """When a consumer commits automatically, and what was last committed.

    In a poll, also while it waits: records of earlier polls have been processed by then. With a
    ``retention_ms`` of the group (-1: it is kept for ever) offsets are committed again before that
    is over, if nothing else shows that the group is in use.
    """

    def __init__(self, clock: Clock, interval_ms: int, retention_ms: int) -> None:
        name = "auto_commit_interval_ms"
        self._interval_s = check_whole_number(interval_ms, name, InvalidOption, least=1) / 1000
        self._clock = clock
        self._next_s = clock.monotonic_s() + self._interval_s
        self._again_s = math.inf if retention_ms < 0 else min(retention_ms / 4000, _LONGEST_S)
        self._idle_since_s = clock.monotonic_s()
        self._committed: dict[TopicPartition, int] = {}

    def due_in_s(self) -> float:
        """The time until the interval is over, in s."""
        return self._next_s - self._clock.monotonic_s()

    def commit_if_due(
        self, commit: Callable[[Offsets], object], positions: Offsets, *, is_member: bool
    ) -> bool:
        """Commit changed offsets, if the interval is over; False if the group refuses it.

        Failures that may pass are logged, and the commit is tried again after the next interval.
        Who ``is_member`` of the group keeps it by that.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return True
        self._next_s = now_s + self._interval_s
        if not is_member and now_s >= self._idle_since_s + self._again_s:
            self._committed = {}
        try:
            self.commit_at_end(commit, positions)
        except CommitFailed as error:
            _logger.warning("offsets were not committed: %s", error)
            return False
        except TxnlogError as error:
            if not error.retriable:
                raise
            _logger.warning("offsets were not committed, which is tried again: %s", error)
        return True

    def commit_at_end(self, commit: Callable[[Offsets], object], positions: Offsets) -> None:
        """Commit the offsets changed since the last time, if any."""
        moved = {w: at for w, at in positions.items() if self._committed.get(w) != at}
        if moved:
            commit(moved)
            self._committed.update(moved)
            self._idle_since_s = self._clock.monotonic_s()

    def commit_before(self, commit: Callable[[Offsets], object], positions: Offsets) -> None:
        """Commit the changed offsets of partitions that are about to be taken away.

        Failures are logged: the next owner reads on from the previous commit.
        """
        try:
            self.commit_at_end(commit, positions)
        except TxnlogError as error:
            _logger.warning("offsets were not committed before a rebalance: %s", error)

    def leave(self, positions: Offsets) -> None:
        """Leave these to whoever has read up to there: only others are committed here."""
        self._committed.update(positions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions whose offsets other members may move from now on."""
        for where in partitions:
            self._committed.pop(where, None)
