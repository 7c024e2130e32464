"""How undecided entries are decided, by any process that meets them, and transactions ended.

An entry without a marker is decided from the newest state of its transactional id (rules b to d
of docs/PROTOCOL.md). A transaction past its timeout is aborted by the first process that reads of
it, as Kafka's coordinator would do. Any process may write the markers and the completion.

Whether a transaction has outlived its timeout is told though clocks differ and jump (hazard 10). It
carries times of its producer's clock, and the process that asks has another one. So a clock is
trusted only within a margin, and other evidence comes first: how long this process has watched the
transaction, the storage's own clock, and what others have witnessed before us.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from txnlog.clock import Clock, Moment
from txnlog.errors import (
    CorruptEntry,
    CorruptTransactionState,
    NotEnoughReplicas,
    StorageError,
    TxnlogError,
    UnsupportedVersion,
)
from txnlog.log.sequence_log import Recent
from txnlog.log.state_log import StateLog
from txnlog.log.transaction_log import Head, TransactionLog, UnreadableState
from txnlog.state import transaction as transitions
from txnlog.state.transaction import (
    HELP_AFTER_MS,
    EntryRef,
    Outcome,
    Status,
    TransactionKey,
    TransactionRef,
    TransactionState,
)
from txnlog.storage.base import Storage, lasts

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


AnyLog = StateLog[Any, Any]

_MOST_REMEMBERED = 10_000

_logger = logging.getLogger(__name__)


class LogSource(Protocol):
    """Finds the log that an entry reference names."""

    def log(self, kind: Literal["topic", "group"], name: str) -> AnyLog: ...


class Settlement:
    """Decides undecided entries, and ends transactions that have timed out or are half-ended."""

    def __init__(
        self,
        storage: Storage,
        transactions: TransactionLog,
        clock: Clock,
        logs: LogSource,
        max_timeout_ms: int,
    ) -> None:
        self._storage = storage
        self._transactions = transactions
        self._clock = clock
        self._logs = logs
        self._max_timeout_ms = max_timeout_ms
        self._deadlines = Deadlines(transactions, clock)
        self._timeouts_ms: dict[TransactionKey, int] = {}
        self._refused: Recent[str, tuple[float, StorageError]] = Recent(clock)

    def timeout_ms(self, key: TransactionKey) -> int | None:
        """The timeout of a transaction that was found open; None for any other."""
        return self._timeouts_ms.get(key)

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
        known: dict[str, dict[EntryRef, TransactionRef]] = {}
        for entry, (_, ref) in undecided.items():
            known.setdefault(ref.transactional_id, {})[entry] = ref
        found = self._storage.gather([partial(self._current_head, *item) for item in known.items()])
        heads = dict(zip(known, found, strict=True))
        if len(self._timeouts_ms) > _MOST_REMEMBERED:
            self._timeouts_ms = {}
        for head in heads.values():
            if isinstance(head, Head) and head.state.open:
                self._timeouts_ms[head.state.ref.key] = head.state.timeout_ms
        past = []
        for entry, (log, transaction) in undecided.items():
            head = heads[transaction.transactional_id]
            if isinstance(head, TxnlogError):
                _logger.warning("%s of %s stays undecided: %s", transaction, log.name, head)
                continue
            outcome = transitions.decide_entry(entry, transaction, head.state)
            if outcome == "past":
                past.append((entry, log, transaction))
            elif outcome is not None:
                log.decide(entry.number, outcome)
        self._settle_past(past)

    def settle_stuck(self, logs: Sequence[AnyLog]) -> None:
        """For writers: settle the logs in which an entry has been undecided for long.

        Otherwise a transaction that nobody ends would block all read-only readers, and the cleaning
        of the log. Usually it makes no request. Failures are left to the next writer.
        """
        stuck = [log for log in logs if log.looks_stuck()]
        if not stuck:
            return
        try:
            self.settle(stuck)
        except TxnlogError as error:
            _logger.warning("%s: could not be settled: %s", stuck[0].name, error)

    def _current_head(
        self, transactional_id: str, undecided: Mapping[EntryRef, TransactionRef]
    ) -> Head | TxnlogError:
        """The newest state, after enforcing a timeout and finishing a stuck end."""
        while True:
            since = self._transactions.now()
            try:
                # A missing log proves nothing: an id that expired has left a copy.
                head = self._transactions.head(transactional_id) or self._transactions.expired(
                    transactional_id
                )
            except CorruptTransactionState:
                head = None
            except CorruptEntry as error:
                return error
            except StorageError as error:
                # A moment's failure hides nothing that is committed, nor do credentials that are
                # refused. A file that is listed, and that nobody may or can read, stops no reader:
                # but it decides nothing, as it may be read some day.
                if not lasts(error) or not self._transactions.damage(transactional_id, force=True):
                    raise
                return error
            ended = head is None
            if head is None:
                try:
                    head = self.end_damaged(transactional_id, undecided)
                except TxnlogError as error:
                    return error
            if self._deadlines.overdue(head):
                refused = self._refused.get(transactional_id)
                if refused and self._clock.monotonic_s() - refused[0] < HELP_AFTER_MS / 1000:
                    return refused[1]
                try:
                    aborted = self.abort_for_another(head, since, _past_timeout(head))
                except StorageError as error:
                    # A read-only reader cannot end it: it must wait.
                    if not error.retriable:
                        self._refused[transactional_id] = self._clock.monotonic_s(), error
                    return error
                self._refused.pop(transactional_id)
                if aborted is None:
                    continue
                head = aborted
            elif not head.state.prepared:
                return head
            else:
                # Conclusions from it may be written elsewhere, and outlive it.
                try:
                    self._transactions.confirm(head)
                except NotEnoughReplicas as error:
                    # Everything can be read, and nothing be put that would outlive the decision.
                    return head if self._needs_help(head) or ended else error
                except StorageError as error:
                    return error
                if not self._needs_help(head) and not ended:
                    return head
            try:
                self.finish(head, since)
            except TxnlogError as error:
                _logger.warning("%s is decided but not finished: %s", head.state.ref, error)
            return head

    def _settle_past(self, past: Iterable[tuple[EntryRef, AnyLog, TransactionRef]]) -> None:
        """Rule c: the id has moved on, so there is a marker, or the entry is a zombie's."""
        by_log: dict[int, list[tuple[EntryRef, AnyLog, TransactionRef]]] = {}
        for item in past:
            by_log.setdefault(id(item[1]), []).append(item)
        for items in by_log.values():
            self._settle_log(items[0][1], {entry.number: ref for entry, _, ref in items})

    def _settle_log(self, log: AnyLog, past: Mapping[int, TransactionRef]) -> None:
        # Listed again, because the marker may have come after the first listing.
        files = {number: log.file_of(number) for number in past}
        listing = log.log.listing(min(files.values()))
        unmarked = [n for n in past if files[n] in listing.entries and n not in listing.outcomes]
        for number in past:
            if number in listing.outcomes:
                log.decide(number, listing.outcomes[number])
        # At or below a checkpoint the absence of a marker says nothing: the checkpoint does.
        found = log.outcomes_in_checkpoints(unmarked, listing)
        if "gone" in found.values():
            log.reload()
            return
        for number in unmarked:
            outcome = found.get(number, "undecided")
            if isinstance(outcome, Outcome):
                log.decide(number, outcome)
            elif log.is_entry_of(number, files[number], past[number]):
                # It still exists, and cleaning deletes an entry before its marker: so there was no
                # marker while we listed.
                log.decide(number, Outcome.ABORT)
                self._mark_zombie(log, log.ref(number), past[number])
        # Entries no longer listed were cleaned away; the next refresh takes a checkpoint.

    def _mark_zombie(self, log: AnyLog, entry: EntryRef, transaction: TransactionRef) -> None:
        """Put an abort marker beside a zombie's entry, so that later readers need not look for one.

        Best effort: without it they find the same outcome.
        """
        try:
            log.mark(entry.number, Outcome.ABORT, transaction)
        except StorageError as error:
            _logger.info("zombie entry %s got no abort marker: %s", entry, error)

    # -- ending transactions ---------------------------------------------------------------------

    def is_left(self, head: Head) -> bool:
        """Whether a transaction's producer has left it to others; see :meth:`end_left`."""
        return self._deadlines.overdue(head) or (head.state.prepared and self._needs_help(head))

    def end_left(self, head: Head, since: Moment) -> Head | None:
        """End a transaction that its producer does not end, though no entry leads to it.

        Nothing was placed, say, or all markers are there: readers find nothing to do. Returns the
        completed head, None if the id has moved on meanwhile. Raises TxnlogError: it may be
        decided, and is not completed.
        """
        if head.state.open:
            aborted = self.abort_for_another(head, since, _past_timeout(head))
            if aborted is None:
                return None
            head = aborted
        return self.finish(head, since)

    def _needs_help(self, head: Head) -> bool:
        """Whether a decided transaction is not completed for long, or at a time to come."""
        return abs(self._clock.now_ms() - head.state.updated_at_ms) >= HELP_AFTER_MS

    def abort_for_another(self, head: Head, since: Moment, reason: str = "") -> Head | None:
        """Decide to abort another process's open transaction, and fence it.

        ``since``: from before ``head`` was read, see ``TransactionLog.put``. ``reason``: for
        people. Returns the new head, or None if the id has moved on meanwhile.
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

    def end_damaged(
        self,
        transactional_id: str,
        undecided: Mapping[EntryRef, TransactionRef],
        *,
        force: bool = False,
        dry_run: bool = False,
    ) -> Head:
        """Put a state after an unreadable newest one, so that the id can go on.

        If the state before it was a decision, it was the completion. Otherwise the transaction may
        have been open: it counts as committed if a marker says so, else as aborted. This loses a
        commit that only the damaged state recorded.

        ``undecided``: entries of the id that are known to be undecided, in any log. ``force``: now,
        not only once the store's longest timeout has passed. Returns the state that was put, or
        would be in a dry run, or the newest one now.

        Raises CorruptTransactionState: it is too early, or the transaction is not known.
        StorageError: the outcome is unknown.
        """
        since = self._transactions.now()
        damage = self._transactions.damage(transactional_id, force=force)
        if damage is None:
            return self._transactions.describe(transactional_id)
        before = damage.before.state if damage.before is not None else None
        if before is not None and before.prepared:
            state = transitions.complete(before)
        else:
            if not force and not self._deadlines.overdue_damage(
                transactional_id, damage, self._max_timeout_ms
            ):
                raise CorruptTransactionState(
                    f"the newest state of transactional id {transactional_id!r} cannot be read: "
                    f"{damage.reason}. What it left open is treated as aborted when the store's "
                    f"longest timeout ({self._max_timeout_ms} ms) has passed; "
                    f"`txnlog txns abort --force {shlex.quote(transactional_id)}` does so at once"
                )
            state = self._presume(transactional_id, damage, undecided)
        if dry_run:
            return Head(damage.number + 1, state)
        _logger.warning("%s; going on with %s", damage.reason, state.status.value)
        if not self._transactions.put(damage.number + 1, state, since):
            return self._transactions.describe(transactional_id)
        return Head(damage.number + 1, state)

    def _presume(
        self,
        transactional_id: str,
        damage: UnreadableState,
        undecided: Mapping[EntryRef, TransactionRef],
    ) -> TransactionState:
        """The outcome of a transaction whose newest state cannot be read."""
        before = damage.before.state if damage.before is not None else None
        if before is not None and before.status is Status.DEAD:
            before = None
        if before is None and not undecided:
            raise CorruptTransactionState(
                f"the newest state of transactional id {transactional_id!r} cannot be read, nor "
                f"the one before it: {damage.reason}. Nothing tells which transaction it was: use "
                "another transactional id, or restore the file from a backup"
            )
        if before is None:
            ref = max(undecided.values(), key=lambda ref: (ref.number, ref.producer_epoch))
            before = transitions.presume_open(
                ref, self._max_timeout_ms, now_ms=self._clock.now_ms()
            )
        elif not before.open:
            before = transitions.participate(
                before, topics=(), groups=(), now_ms=self._clock.now_ms(), nonce=""
            )
        before = transitions.participate(
            before,
            topics=(entry.name for entry in undecided if entry.log == "topic"),
            groups=(entry.name for entry in undecided if entry.log == "group"),
            now_ms=self._clock.now_ms(),
            nonce="",
        )
        entries = self._committed_entries(before)
        if entries:
            return transitions.prepare_commit(
                before, entries, now_ms=self._clock.now_ms(), nonce=self._clock.token()
            )
        # The writer of the damaged state may own the next epoch, so this takes the one after it.
        return transitions.prepare_abort(
            transitions.fence(before),
            now_ms=self._clock.now_ms(),
            nonce=self._clock.token(),
            fence=True,
            reason=f"its state could not be read (entry {damage.number} of its log is damaged)",
        )

    def _committed_entries(self, state: TransactionState) -> list[EntryRef]:
        """All entries of a transaction, if a marker shows that one of them was committed."""
        logs = self._logs_of(state)
        self._storage.gather([log.refresh for log in logs])
        found, marked = [], False
        for log in logs:
            listing = log.log.listing()
            for number in sorted({*listing.outcomes, *log.undecided()}):
                if log.is_entry_of(number, listing.file_of(number), state.ref):
                    found.append(log.ref(number))
                    marked = marked or listing.outcomes.get(number) is Outcome.COMMIT
        return found if marked else []

    def finish(
        self, head: Head, since: Moment, own: Iterable[EntryRef] | None = None
    ) -> Head | None:
        """Steps 5 and 6: write the markers of a prepared transaction and complete it.

        A commit is completed only when all its markers exist (invariant T4). On an abort they only
        save readers a search: entries without a marker are aborted once the id has moved on.

        ``since``: from before ``head`` was read or put, see ``TransactionLog.put``. ``own``: the
        entries to mark on an abort, as far as the caller knows them; otherwise they are looked for
        in the logs that the transaction names. Returns the completed head, or None if the id has
        another owner by now.
        """
        outcome = head.state.outcome
        assert outcome is not None
        if own is None:
            # A power cut must not leave markers in some logs and remove the decision.
            self._transactions.confirm(head)
        entries: Collection[EntryRef]
        if outcome is Outcome.COMMIT:
            entries = head.state.entries
        else:
            entries = self._entries_of(head.state) if own is None else [*own]
        ref = head.state.ref
        # A marker repeats a decision: it may be trusted before its folder is synced.
        self._storage.put_round(
            partial(self._logs.log(entry.log, entry.name).mark, entry.number, outcome, ref)
            for entry in entries
        )
        done = transitions.complete(head.state)
        if self._transactions.put(head.number + 1, done, since, decided=True):
            if own is None:  # where producers die again and again, nobody else does
                for name in sorted({(entry.log, entry.name) for entry in entries}):
                    self._logs.log(*name).checkpoint_if_due()
            return Head(head.number + 1, done)
        newest = self._transactions.head(ref.transactional_id)
        if (
            newest is not None
            and newest.state.ref == done.ref
            and newest.state.status is done.status
        ):
            return newest
        return None

    def _entries_of(self, state: TransactionState) -> list[EntryRef]:
        """The entries of an aborted transaction that carry no marker yet.

        Logs that cannot be read are passed over: the id may move on without these markers.
        """
        logs = self._logs_of(state)
        read = self._storage.gather([partial(_try_to_read, log) for log in logs])
        return [
            log.ref(number)
            for log, error in zip(logs, read, strict=True)
            if error is None
            for number, ref in log.undecided().items()
            if ref.key == state.ref.key
        ]

    def _logs_of(self, state: TransactionState) -> list[AnyLog]:
        """The logs that a transaction names."""
        logs = [self._logs.log("topic", name) for name in state.topics]
        return logs + [self._logs.log("group", name) for name in state.groups]


def _try_to_read(log: AnyLog) -> TxnlogError | None:
    """Refresh a log; what is wrong with it if it cannot be read. Raises StorageError."""
    try:
        log.refresh()
    except (CorruptEntry, UnsupportedVersion) as error:
        _logger.warning("%s: aborted entries get no marker: %s", log.name, error)
        return error
    return None


def _past_timeout(head: Head) -> str:
    return f"it was open for longer than {head.state.timeout_ms} ms"
