"""Checks the logs of transactional ids, and entries of topics and groups against them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from txnlog import names
from txnlog.doctor.findings import LOG_LIMIT, Finding, ReadFailures, unexpected
from txnlog.doctor.rules import Violation, transition_violations
from txnlog.errors import CorruptEntry, StorageError, UnsupportedVersion
from txnlog.inspect.log_dump import DumpedEntry, dump_log
from txnlog.log.open_logs import Logs
from txnlog.state.transaction import (
    DECODER,
    EntryRef,
    Outcome,
    Status,
    TransactionKey,
    TransactionRef,
    TransactionState,
    decide_entry,
)
from txnlog.storage import envelope
from txnlog.storage.base import PARALLEL_REQUESTS

_MOST_COMPLETE: Final = 100_000
"""So many committed transactions are remembered, by which lost markers are told."""


@dataclass(slots=True)
class KnownIds:
    """The newest states of transactional ids at the beginning of the examination.

    ``unreadable``: ids whose newest state is damaged, or cannot be read. ``complete`` are the lists
    of committed transactions whose states are still there.
    """

    logs: Logs
    heads: dict[str, TransactionState | None] = field(default_factory=dict)
    complete: dict[TransactionKey, tuple[EntryRef, ...]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    _ended: dict[tuple[int, int], TransactionState] | None = None

    def ended(self, producer_id: int, number: int) -> TransactionState | None:
        """The state of a decided transaction, if it is the newest of its id that was found first.

        A decision is final: an older state is as good as the newest one.
        """
        if self._ended is None:
            self._ended = {
                (state.producer_id, state.number): state
                for state in self.heads.values()
                if state is not None and state.outcome is not None
            }
        return self._ended.get((producer_id, number))

    def still_counts(self, transactional_id: str) -> bool:
        """False if the state read for an id was a stray (hazard 3)."""
        self.look_again(transactional_id)
        return self._state(transactional_id) is not None or transactional_id in self.unreadable

    def outcome(
        self, entry: EntryRef, transaction: TransactionRef
    ) -> Outcome | Literal["past"] | None:
        """The outcome of an entry without a marker, by ``decide_entry``."""
        state = self._state(transaction.transactional_id)
        if state is None and transaction.transactional_id in self.unreadable:
            return None
        return decide_entry(entry, transaction, state)

    def violations(
        self, entry: EntryRef, transaction: TransactionRef, outcomes: tuple[Outcome, ...]
    ) -> list[Violation]:
        """The rules that an entry and its markers violate, by the state of its transaction."""
        name = transaction.transactional_id
        if Outcome.COMMIT not in outcomes and entry in self.complete.get(transaction.key, ()):
            return [_misjudged(transaction) if outcomes else _unmarked(transaction)]
        if not [*_marker_violations(entry, transaction, outcomes, self._state(name))]:
            return []
        self.look_again(name)
        return [*_marker_violations(entry, transaction, outcomes, self._state(name))]

    def is_newest(self, transaction: TransactionRef) -> bool:
        """Whether a transaction is the newest of its id."""
        state = self._state(transaction.transactional_id)
        return state is not None and state.ref.key == transaction.key

    def look_again(self, transactional_id: str) -> None:
        """Forget the id's state, which may have moved on since it was read."""
        self.heads.pop(transactional_id, None)

    def _state(self, transactional_id: str) -> TransactionState | None:
        if transactional_id not in self.heads:
            try:
                head = self.logs.transactions.head(transactional_id)
                self.unreadable.discard(transactional_id)
            except (CorruptEntry, UnsupportedVersion, StorageError):
                self.unreadable.add(transactional_id)
                head = None
            self.heads[transactional_id] = head.state if head else None
        return self.heads[transactional_id]


def _misjudged(transaction: TransactionRef) -> Violation:
    return "T3", f"it is marked aborted, but on the list of {transaction}"


def _unmarked(transaction: TransactionRef) -> Violation:
    why = "readers take it for aborted once the id has moved on: restore the marker from a backup"
    return "T4", f"{transaction} is complete, but this entry of its list has no marker: {why}"


def _marker_violations(
    entry: EntryRef,
    transaction: TransactionRef,
    outcomes: tuple[Outcome, ...],
    state: TransactionState | None,
) -> Iterator[Violation]:
    if state is None or state.ref.key != transaction.key or not _is_of_a_transaction(state):
        return  # it has moved on: only the marker tells the entry's outcome
    taking_part = state.topics if entry.log == "topic" else state.groups
    if entry.name not in taking_part:
        yield "T2", f"{transaction} has an entry here, but does not name {entry.log} {entry.name!r}"
    listed = entry in state.entries
    if state.outcome is Outcome.COMMIT:
        if Outcome.COMMIT in outcomes and not listed:
            yield "T3", f"it is marked committed, but not on the list of {transaction}"
        if Outcome.ABORT in outcomes and listed:
            yield _misjudged(transaction)
        if state.status is Status.COMPLETE_COMMIT and listed and not outcomes:
            yield _unmarked(transaction)
    elif Outcome.COMMIT in outcomes:
        yield "T5", f"it is marked committed, but {transaction} is {state.status.value}"
    elif state.open and outcomes:
        yield "T5", f"it is marked aborted, but {transaction} is {state.status.value}"


def _is_of_a_transaction(state: TransactionState) -> bool:
    return state.open or state.outcome is not None


@dataclass(slots=True)
class _IdExamination:
    """One id's log; ``newest`` is its newest state, None if not known."""

    state_count: int = 0
    newest: TransactionState | None = None
    complete: dict[TransactionKey, tuple[EntryRef, ...]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[tuple[str, StorageError]] = field(default_factory=list)


def examine_ids(known: KnownIds, read_failures: ReadFailures) -> Iterator[Finding]:
    """Check the log of every id, and record its newest state in ``known``."""
    logs = known.logs
    ids = logs.transactions.ids()
    states = damages = 0
    for first in range(0, len(ids), PARALLEL_REQUESTS):
        some = ids[first : first + PARALLEL_REQUESTS]
        for name, found in zip(
            some, logs.storage.gather([partial(_examine_id, logs, n) for n in some]), strict=True
        ):
            states += found.state_count
            damages += len(found.findings) + len(found.unreadable)
            if found.newest is None:
                known.unreadable.add(name)
            known.heads[name] = found.newest
            if len(known.complete) < _MOST_COMPLETE:
                known.complete.update(found.complete)
            yield from found.findings
            if not found.unreadable:
                read_failures.reset()
            for path, error in found.unreadable:
                yield read_failures.add("transactions", name, path, error)
    if not damages:
        yield Finding("transactions", "", "ok", f"ids: {len(ids)}, states: {states}")


def _examine_id(logs: Logs, transactional_id: str) -> _IdExamination:
    found = _IdExamination()
    before: TransactionState | None = None
    folder = names.transaction_log(transactional_id)
    unreadable_in_a_row = 0
    last: DumpedEntry[TransactionState] | None = None

    def damage(rule: str | None, detail: str, path: str) -> None:
        finding = Finding("transactions", transactional_id, "damage", detail, rule, path)
        found.findings.append(finding)

    try:
        for item in dump_log(logs.storage, folder, DECODER, keep_going=True):
            last = item
            if item.missing_count:
                # Old states are deleted, and an instance that slept may have used a freed name
                # again (hazard 3). Only the newest counts.
                before = None
                continue
            found.unreadable += item.failures
            unreadable_in_a_row = unreadable_in_a_row + 1 if item.failures else 0
            if unreadable_in_a_row >= LOG_LIMIT:
                before = None
                break
            state = item.entry
            if item.damage is not None:
                damage("L1", item.damage, item.path)
            if state is None:
                before = None
                continue
            found.state_count += 1
            if state.transactional_id != transactional_id:
                damage("T6", f"it is of another id, {state.transactional_id!r}", item.path)
            elif before is not None:
                wrong = [*transition_violations(before, state)]
                # The last one may have been put under a freed name, as above.
                if wrong and not _began_anew(logs, transactional_id, item.number):
                    for rule, detail in wrong:
                        damage(rule, detail, item.path)
            before = state
            if state.status is Status.COMPLETE_COMMIT:
                found.complete[state.ref.key] = state.entries
    except StorageError as error:
        found.unreadable.append((folder, error))
        before = None
    except Exception as error:  # noqa: BLE001 - it is somebody else's bytes
        found.findings.append(unexpected("transactions", transactional_id, folder, error))
        before, last = None, None
    found.newest = before
    if last is not None and last.damage and last.entry is None and not _is_newer(last):
        newest = found.findings.pop()
        detail = _DAMAGED_NEWEST.format(newest.detail, shlex.quote(transactional_id))
        damage(newest.rule, detail, last.path)
    return found


def _began_anew(logs: Logs, transactional_id: str, number: int) -> bool:
    """Whether a state is the first one after the id had been removed."""
    expired = logs.transactions.expired(transactional_id)
    return expired is not None and number == expired.number + 1


_DAMAGED_NEWEST = (
    "{}. It is the newest state of this id: nobody can tell how its transaction ended, or whether "
    "it is open, and readers wait for it until the store's longest timeout has passed. If there is "
    "no backup, `txnlog txns abort --force {}` does at once what they do then: it aborts it, "
    "unless a marker shows that it was committed"
)


def _is_newer(found: DumpedEntry[TransactionState]) -> bool:
    """True for objects of a newer txnlog, which are not damage to be repaired."""
    version = (found.content or {}).get("format")
    return isinstance(version, int) and version > envelope.FORMAT_VERSION
