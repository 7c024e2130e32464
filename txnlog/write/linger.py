"""Kafka's ``linger.ms``: what was sent and not flushed goes out by itself, from a thread.

And what never does is told: records that a producer still holds when it is dropped, or when the
process ends.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from txnlog.clock import Signal, SystemClock
from txnlog.config import check_whole_number
from txnlog.errors import InvalidConfig
from txnlog.log.open_logs import Logs
from txnlog.write.plain_writer import PlainWriter
from txnlog.write.record_buffers import ProducerLock, RecordBuffers

_MAX_MS = (1 << 31) - 1
_LONG_S = 86_400.0
"""A thread that has nothing to do looks so often whether it has."""
_END_S = 5.0
"""How long the end of a process waits for a flush that is under way."""

_logger = logging.getLogger(__name__)


class Linger:
    """Calls ``flush`` so long after the first record that was sent since the last time.

    The thread holds its producer weakly, and begins with the first record.
    """

    def __init__(self, linger_ms: int, flush: Callable[[], None]) -> None:
        self._linger_s = linger_ms / 1000
        self._flush = weakref.WeakMethod(flush)
        self._armed = Signal()
        self._ended = Signal()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, linger_ms: int | None, logs: Logs, flush: Callable[[], None]) -> Linger | None:
        """None without ``linger_ms``, and with a clock other than the machine's.

        Raises InvalidConfig.
        """
        if linger_ms is None:
            return None
        check_whole_number(linger_ms, "linger.ms", InvalidConfig, least=0, most=_MAX_MS)
        if not isinstance(logs.clock, SystemClock):
            return None
        return cls(linger_ms, flush)

    def arm(self) -> None:
        """A record was sent. For the thread that has the producer's lock."""
        if self._armed.is_set():
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="txnlog-linger", daemon=True)
            thread.start()
            self._thread = thread
        self._armed.set()

    def end(self) -> None:
        """Flush no more."""
        self._ended.set()
        self._armed.set()

    def _run(self) -> None:
        while True:
            while not self._armed.is_set():
                self._armed.wait(_LONG_S)
            self._ended.wait(self._linger_s)
            if self._ended.is_set():
                return
            self._armed.clear()  # before the flush: what is sent from now on is for the next one
            flush = self._flush()
            if flush is None:
                return
            flush()
            del flush


def tell_unsent(
    records: RecordBuffers, lock: ProducerLock, linger: Linger | None, plain: PlainWriter | None
) -> None:
    """Log how many records are lost with their producer, which was collected, or is at its exit.

    Who waits for them is told; and for those that are in doubt in ``plain``, if it has no thread.
    """
    if lock.inherited:
        return  # the parent's
    if linger is not None:
        linger.end()
    has_lock = lock.mutex.acquire(timeout=_END_S)
    try:
        unsent = records.unsent()
        records.refuse_batches()
        if plain is not None:
            plain.close()
    finally:
        if has_lock:
            lock.mutex.release()
    if unsent:
        counts = ", ".join(f"{count} for topic {topic!r}" for topic, count in unsent.items())
        _logger.warning(
            "records are lost: %s: they were sent, and neither flushed nor committed when their "
            "producer ended. Call flush() or commit_transaction(), or use the producer in a with "
            "block",
            counts,
        )
