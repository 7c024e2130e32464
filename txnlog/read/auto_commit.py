"""Periodic commits of the offsets that polls have returned: Kafka's ``enable.auto.commit``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from txnlog.clock import Clock
from txnlog.config import check_whole_number
from txnlog.errors import CommitFailed, InvalidOption, TxnlogError
from txnlog.names import TopicPartition

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

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these: other members may move them from now on."""
        for where in partitions:
            self._committed.pop(where, None)
