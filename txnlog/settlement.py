"""How undecided entries are decided, by whoever comes across them, and how transactions are ended.

An entry without a marker is decided from the newest state of its transactional id (rules a to c
of docs/PROTOCOL.md). A transaction past its timeout is aborted by the first one who minds, as
Kafka's coordinator would. Anybody may write the markers and the completion for anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, StorageError, TxnlogError
from txnlog.state import transaction as transitions
from txnlog.state.transaction import (
    HELP_AFTER_MS,
    EntryRef,
    Outcome,
    TransactionKey,
    TransactionRef,
    TransactionState,
)
from txnlog.state_log import StateLog
from txnlog.storage.base import Storage
from txnlog.transaction_log import Head, TransactionLog

AnyLog = StateLog[Any, Any]

_logger = logging.getLogger(__name__)


class LogSource(Protocol):
    """Finds the log that an entry reference names."""

    def log(self, kind: Literal["topic", "group"], name: str) -> AnyLog: ...


class Settlement:
    """Decides undecided entries, and ends transactions that are timed out or stuck half-ended."""

    def __init__(
        self, storage: Storage, transactions: TransactionLog, clock: Clock, logs: LogSource
    ) -> None:
        self._storage = storage
        self._transactions = transactions
        self._clock = clock
        self._logs = logs
        self._first_seen: dict[str, tuple[TransactionKey, float]] = {}
        """By transactional id, the open transaction, and the monotonic time it was first seen."""

    def settle(self, logs: Sequence[AnyLog]) -> None:
        """Decide every entry of these (freshly refreshed) logs that can be decided now.

        Costs nothing if nothing is undecided; else one listing and one read per transactional
        id, and one more listing per log where an id has moved on. What stays undecided belongs
        to open transactions within their timeout.
        """
        undecided = {
            log.ref(number): (log, transaction)
            for log in logs
            for number, transaction in log.undecided().items()
        }
        if not undecided:
            return
        ids = sorted({ref.transactional_id for _, ref in undecided.values()})
        heads = dict(zip(ids, self._heads(ids), strict=True))
        past = []
        for entry, (log, transaction) in undecided.items():
            head = heads[transaction.transactional_id]
            if isinstance(head, TxnlogError):
                _logger.warning("%s of %s stays undecided: %s", transaction, log.name, head)
                continue
            outcome = transitions.decide_entry(entry, transaction, head.state if head else None)
            if outcome == "past":
                past.append((entry, log, transaction))
            elif outcome is not None:
                log.decide(entry.number, outcome)
        self._settle_past(past)

    def _heads(self, ids: Sequence[str]) -> list[Head | TxnlogError | None]:
        return self._storage.gather([partial(self._current_head, i) for i in ids])

    def _current_head(self, transactional_id: str) -> Head | TxnlogError | None:
        """The newest state after a timeout was enforced and a stuck end was helped along."""
        while True:
            since = self._transactions.now()
            try:
                head = self._transactions.head(transactional_id)
            except CorruptEntry as error:
                return error
            if head is None:
                return None
            now_ms = self._clock.now_ms()
            if self._is_overdue(head.state):
                try:
                    aborted = self.abort_for_another(
                        head, since, f"it was open for longer than {head.state.timeout_ms} ms"
                    )
                except StorageError as error:
                    # A reader without the right to write cannot end it: it must wait.
                    return error
                if aborted is None:
                    continue
                head = aborted
            elif not head.state.prepared or now_ms - head.state.updated_at_ms < HELP_AFTER_MS:
                return head
            try:
                self.finish(head)
            except TxnlogError as error:
                _logger.warning("%s is decided but not finished: %s", head.state.ref, error)
            return head

    def _is_overdue(self, state: TransactionState) -> bool:
        """True if an open transaction has outlived its timeout.

        By the times that it carries; or by our own clock, from when we saw it first, so that a
        producer whose clock ran far ahead does not block us for so long (hazard 10).
        """
        if not state.open:
            self._first_seen.pop(state.transactional_id, None)
            return False
        now_s, key = self._clock.monotonic_s(), state.ref.key
        known, since_s = self._first_seen.get(state.transactional_id, (None, now_s))
        if known != key:
            self._first_seen[state.transactional_id] = key, now_s
            since_s = now_s
        overdue = (now_s - since_s) * 1000 > state.timeout_ms
        return overdue or state.expired(self._clock.now_ms())

    def _settle_past(self, past: Iterable[tuple[EntryRef, AnyLog, TransactionRef]]) -> None:
        """Rule c: the id has moved on, so there is a marker, or the entry is a zombie's."""
        by_log: dict[int, list[tuple[EntryRef, AnyLog, TransactionRef]]] = {}
        for item in past:
            by_log.setdefault(id(item[1]), []).append(item)
        for items in by_log.values():
            log = items[0][1]
            # Listed again, because the marker may have come after the first listing.
            listing = log.log.listing(min(entry.number for entry, _, _ in items))
            for entry, _, transaction in items:
                if entry.number not in listing.entries:
                    continue  # cleaned away meanwhile; the next refresh takes a checkpoint
                outcome = listing.outcomes.get(entry.number)
                if outcome is None:
                    outcome = Outcome.ABORT
                    self._mark_zombie(log, entry, transaction)
                log.decide(entry.number, outcome)

    def _mark_zombie(self, log: AnyLog, entry: EntryRef, transaction: TransactionRef) -> None:
        """Spare the next reader the search. It is only a help: failing does no harm."""
        try:
            log.mark(entry.number, Outcome.ABORT, transaction)
        except StorageError as error:
            _logger.info("zombie entry %s got no abort marker: %s", entry, error)

    # -- ending transactions ---------------------------------------------------------------------

    def abort_for_another(
        self, head: Head, since: tuple[float, int], reason: str = ""
    ) -> Head | None:
        """Decide to abort an open transaction of somebody else, and fence it.

        Args:
            head: its state.
            since: from before that was read, see ``TransactionLog.put``.
            reason: why, for people.

        Returns:
            The new head, or None if the id has moved on meanwhile.
        """
        state = transitions.prepare_abort(
            head.state,
            now_ms=self._clock.now_ms(),
            nonce=self._clock.token(),
            fence=True,
            reason=reason,
        )
        if not self._transactions.put(head.number + 1, state, since):
            return None
        return Head(head.number + 1, state)

    def finish(self, head: Head, own: Iterable[EntryRef] | None = None) -> Head | None:
        """Steps 5 and 6: write the markers of a prepared transaction and complete it.

        A commit is completed only when all its markers are there (invariant T4). On an abort they
        only spare readers a search: entries without a marker are aborted when the id has moved on.

        Args:
            head: the prepared state.
            own: the entries to mark on an abort, as far as the caller knows them; otherwise they
                are looked for in the logs that the transaction names.

        Returns:
            The completed head, or None if the id is somebody else's by now.
        """
        since = self._transactions.now()
        outcome = head.state.outcome
        assert outcome is not None
        if own is None:
            # A power cut must not leave markers in some logs and take the decision away.
            self._transactions.confirm(head)
        if outcome is Outcome.COMMIT:
            entries: Iterable[EntryRef] = head.state.entries
        else:
            entries = self._entries_of(head.state) if own is None else own
        ref = head.state.ref
        self._storage.gather(
            [
                partial(self._logs.log(entry.log, entry.name).mark, entry.number, outcome, ref)
                for entry in entries
            ]
        )
        done = transitions.complete(
            head.state, now_ms=self._clock.now_ms(), nonce=self._clock.token()
        )
        if self._transactions.put(head.number + 1, done, since):
            return Head(head.number + 1, done)
        newest = self._transactions.head(ref.transactional_id, head.number)
        if (
            newest is not None
            and newest.state.ref == done.ref
            and newest.state.status is done.status
        ):
            return newest
        return None

    def _entries_of(self, state: TransactionState) -> list[EntryRef]:
        """The entries of an aborted transaction that carry no marker yet."""
        logs = [self._logs.log("topic", name) for name in state.topics]
        logs += [self._logs.log("group", name) for name in state.groups]
        self._storage.gather([log.refresh for log in logs])
        return [
            log.ref(number)
            for log in logs
            for number, ref in log.undecided().items()
            if ref.key == state.ref.key
        ]
