"""The part of maintenance that writers do: retention, now and then.

It runs when a writer has put a checkpoint, and never fails a write. It does the same as
``Store.maintain``, so any number of processes may do it at once.
"""

from __future__ import annotations

import logging
import math
from weakref import WeakKeyDictionary

from txnlog.config import TopicConfig
from txnlog.errors import TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog

CHECK_INTERVAL_MS = 300_000
"""The interval between checks of a process: Kafka's log.retention.check.interval.ms."""
_PATIENCE_MS = 1_000
"""How long it goes on while other writers are faster: the writer waits for it."""

_logger = logging.getLogger(__name__)


class Upkeep:
    """The upkeep by one process, for all topics that it writes to."""

    def __init__(self) -> None:
        self._looked_s: WeakKeyDictionary[TopicLog, float] = WeakKeyDictionary()

    def __call__(self, logs: Logs, log: TopicLog) -> None:
        """Delete segments of a topic that retention no longer keeps, if not checked just now."""
        now_s = logs.clock.monotonic_s()
        if now_s - self._looked_s.get(log, -math.inf) < CHECK_INTERVAL_MS / 1000:
            return
        self._looked_s[log] = now_s
        try:
            _retain(logs, log)
        except TxnlogError as error:
            _logger.warning("topic %r: retention was left to others: %s", log.name, error)


def _retain(logs: Logs, log: TopicLog) -> None:
    with log.lock:
        state = log.state
        config = TopicConfig.of(state.config)
        if not state.exists or max(config.retention_ms, config.retention_bytes) < 0:
            return
    from txnlog.admin.retention import retain
    from txnlog.admin.times import storage_time_ms

    # A clock that runs ahead must not delete too early: the time is taken from most of the last
    # appends, and from the storage, which is asked only if something is due.
    with log.lock:
        state = log.state
        now_ms = min(logs.clock.now_ms(), state.append_time_ms)
    if not retain(logs, log, now_ms, dry_run=True):
        return
    told_ms = storage_time_ms(logs.storage, logs.clock)
    now_ms = now_ms if told_ms is None else min(now_ms, told_ms)
    retain(logs, log, now_ms, timeout_ms=_PATIENCE_MS)
