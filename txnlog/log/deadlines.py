"""Whether an open transaction has outlived its timeout, though clocks differ and jump (hazard 10).

A transaction carries times of its producer's clock, and the process that asks has another one. So a
clock is trusted only within a margin, and other evidence comes first: how long this process has
watched the transaction, the storage's own clock, and what others have witnessed before us. Knows
nothing of what a transaction has written.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from txnlog.clock import Clock
from txnlog.errors import StorageError
from txnlog.log.recent import Recent
from txnlog.log.transaction_log import Head, TransactionLog, UnreadableState

CLOCK_MARGIN_MS = 5_000
"""How much the clocks of processes that share a store may differ without any harm."""
_STORAGE_MARGIN_MS = 1_000
"""The storage's clock is a single one, but some report only whole seconds."""
_MEASURED_FOR_S = 60.0


class Deadlines:
    """What this process knows about how long transactions have been open."""

    def __init__(self, transactions: TransactionLog, clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock
        self._watched: Recent[str, tuple[Hashable, float]] = Recent(clock)
        """By transactional id, what is open, and the monotonic time at which it was first seen."""
        self._measured: tuple[int, float] | None = None
        """The storage's time in ms, and our monotonic time then."""

    def overdue(self, head: Head) -> bool:
        """True if an open transaction has outlived its timeout, by the best evidence available."""
        state = head.state
        if not state.open:
            self._watched.pop(state.transactional_id)
            return False
        if self._watched_ms(state.transactional_id, state.ref.key) > state.timeout_ms:
            return True
        started_at_ms = state.started_at_ms or 0
        age_ms = self._clock.now_ms() - started_at_ms
        if -CLOCK_MARGIN_MS <= age_ms <= state.timeout_ms:
            return False
        # Either it is overdue, or one of the two clocks is wrong.
        at_most_ms = state.timeout_ms + _STORAGE_MARGIN_MS
        stored_ms = self._stored_ms(state.transactional_id, head.number)
        if stored_ms is not None and stored_ms <= at_most_ms:
            # Its newest state is young; it may have begun with an older one.
            begun_at = self._transactions.find_beginning(head)
            if begun_at != head.number:
                stored_ms = self._stored_ms(state.transactional_id, begun_at) or stored_ms
        if stored_ms is not None:
            return stored_ms > at_most_ms
        if age_ms > 0:
            return age_ms > state.timeout_ms + CLOCK_MARGIN_MS
        return self._ask_witnesses(
            state.transactional_id, head.number, head.witnesses, state.timeout_ms
        )

    def overdue_damage(
        self, transactional_id: str, damage: UnreadableState, timeout_ms: int
    ) -> bool:
        """True if an unreadable state has existed for longer than ``timeout_ms``."""
        if self._watched_ms(transactional_id, damage.number) > timeout_ms:
            return True
        stored_ms = self._stored_ms(transactional_id, damage.number)
        if stored_ms is not None:
            return stored_ms > timeout_ms + _STORAGE_MARGIN_MS
        return self._ask_witnesses(transactional_id, damage.number, damage.witnesses, timeout_ms)

    def _watched_ms(self, transactional_id: str, what: Hashable) -> float:
        """How long this process has known that it is open."""
        now_s = self._clock.monotonic_s()
        known, since_s = self._watched.get(transactional_id) or (None, now_s)
        if known != what:
            since_s = now_s
            self._watched[transactional_id] = what, now_s
        return (now_s - since_s) * 1000

    def _stored_ms(self, transactional_id: str, number: int) -> int | None:
        """How long ago a state was put, by the storage's clock alone; None without one."""
        try:
            created_ms = self._transactions.created_ms(transactional_id, number)
            if created_ms is None:
                return None
            now_ms = self._storage_now_ms(transactional_id, number)
            if now_ms is not None and now_ms < created_ms:
                self._measured = None  # our own clock stood still
                now_ms = self._storage_now_ms(transactional_id, number)
        except StorageError:
            return None
        if now_ms is None or now_ms < created_ms - _STORAGE_MARGIN_MS:
            return None  # that clock was set back
        return now_ms - created_ms

    def _storage_now_ms(self, transactional_id: str, number: int) -> int | None:
        """The storage's time: that of an object which we put, plus the time since."""
        now_s = self._clock.monotonic_s()
        if self._measured is None or now_s - self._measured[1] > _MEASURED_FOR_S:
            stored_ms = self._transactions.witness(transactional_id, number, self._clock.now_ms())
            if stored_ms is None:
                return None
            # The end of the put: a slow put must not make anything look older than it is.
            now_s = self._clock.monotonic_s()
            self._measured = stored_ms, now_s
        then_ms, then_s = self._measured
        return then_ms + round((now_s - then_s) * 1000)

    def _ask_witnesses(
        self, transactional_id: str, number: int, witnesses: Sequence[int], timeout_ms: int
    ) -> bool:
        """True if a witness saw it that long ago; else leave a witness for later processes.

        So a process that lives only for a moment knows what others saw before it.
        """
        now_ms = self._clock.now_ms()
        if any(now_ms - seen_ms > timeout_ms + CLOCK_MARGIN_MS for seen_ms in witnesses):
            return True
        if not any(seen_ms <= now_ms + CLOCK_MARGIN_MS for seen_ms in witnesses):
            try:
                self._transactions.witness(transactional_id, number, now_ms)
            except StorageError:
                return False  # a read-only process can only wait
        return False
