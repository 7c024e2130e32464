"""Committing from time to time what polls have returned: Kafka's ``enable.auto.commit``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from txnlog.clock import Clock
from txnlog.config import check_whole_number
from txnlog.errors import CommitFailed, InvalidOption, TxnlogError
from txnlog.names import TopicPartition

Offsets: TypeAlias = Mapping[TopicPartition, int]

_logger = logging.getLogger(__name__)


class AutoCommit:
    """When a consumer commits by itself, and what was committed last.

    At the begin of a poll: what those before it have returned is worked on by then.
    """

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        name = "auto_commit_interval_ms"
        self._interval_s = check_whole_number(interval_ms, name, InvalidOption, least=1) / 1000
        self._clock = clock
        self._next_s = clock.monotonic_s() + self._interval_s
        self._committed: dict[TopicPartition, int] = {}

    def commit_if_due(self, commit: Callable[[Offsets], object], positions: Offsets) -> bool:
        """Commit what has moved, if the interval is over; False if the group refuses it.

        What may succeed later is logged, and tried again after the next interval.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return True
        self._next_s = now_s + self._interval_s
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
        """Commit what has moved since the last time; nothing if nothing has."""
        moved = {w: at for w, at in positions.items() if self._committed.get(w) != at}
        if moved:
            commit(moved)
            self._committed.update(moved)

    def commit_before(self, commit: Callable[[Offsets], object], positions: Offsets) -> None:
        """Commit what has moved of partitions that are about to be taken away.

        What fails is logged: whoever is given them reads on from where was committed before.
        """
        try:
            self.commit_at_end(commit, positions)
        except TxnlogError as error:
            _logger.warning("offsets were not committed before a rebalance: %s", error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Others may move these from now on."""
        for where in partitions:
            self._committed.pop(where, None)
