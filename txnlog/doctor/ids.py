"""Examines the logs of transactional ids, and judges entries of topics and groups by them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from txnlog import names
from txnlog.doctor.finding import Finding
from txnlog.doctor.rules import Reason, transition_reasons
from txnlog.errors import CorruptEntry
from txnlog.log_dump import dump_log
from txnlog.logs import Logs
from txnlog.state.transaction import (
    DECODER,
    EntryRef,
    Outcome,
    Status,
    TransactionRef,
    TransactionState,
    decide_entry,
)
from txnlog.storage.base import PARALLEL_REQUESTS


@dataclass(slots=True)
class KnownIds:
    """The newest states of transactional ids, as they were when the examination began.

    ``unreadable`` are those whose newest state is damaged: of these nothing is known.
    """

    logs: Logs
    heads: dict[str, TransactionState | None] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)

    def outcome(
        self, entry: EntryRef, transaction: TransactionRef
    ) -> Outcome | Literal["past"] | None:
        """What an entry without a marker is, as ``decide_entry`` says."""
        state = self._state(transaction.transactional_id)
        if state is None and transaction.transactional_id in self.unreadable:
            return None
        return decide_entry(entry, transaction, state)

    def reasons(
        self, entry: EntryRef, transaction: TransactionRef, outcomes: tuple[Outcome, ...]
    ) -> list[Reason]:
        """What is wrong with an entry and its markers, by the state of its transaction."""
        name = transaction.transactional_id
        if not [*_reasons(entry, transaction, outcomes, self._state(name))]:
            return []
        self.look_again(name)
        return [*_reasons(entry, transaction, outcomes, self._state(name))]

    def look_again(self, transactional_id: str) -> None:
        """The id may have moved on since its state was read."""
        self.heads.pop(transactional_id, None)

    def _state(self, transactional_id: str) -> TransactionState | None:
        if transactional_id not in self.heads:
            try:
                head = self.logs.transactions.head(transactional_id)
            except CorruptEntry:
                self.unreadable.add(transactional_id)
                head = None
            self.heads[transactional_id] = head.state if head else None
        return self.heads[transactional_id]


def _reasons(
    entry: EntryRef,
    transaction: TransactionRef,
    outcomes: tuple[Outcome, ...],
    state: TransactionState | None,
) -> Iterator[Reason]:
    if state is None or state.ref.key != transaction.key or not _is_about_a_transaction(state):
        return  # it has moved on: the marker alone says what became of the entry
    taking_part = state.topics if entry.log == "topic" else state.groups
    if entry.name not in taking_part:
        yield "T2", f"{transaction} has an entry here, but does not name {entry.log} {entry.name!r}"
    listed = entry in state.entries
    if state.outcome is Outcome.COMMIT:
        if Outcome.COMMIT in outcomes and not listed:
            yield "T3", f"it is marked committed, but not on the list of {transaction}"
        if Outcome.ABORT in outcomes and listed:
            yield "T3", f"it is marked aborted, but on the list of {transaction}"
        if state.status is Status.COMPLETE_COMMIT and listed and not outcomes:
            yield "T4", f"{transaction} is complete, but this entry of its list has no marker"
    elif Outcome.COMMIT in outcomes:
        yield "T5", f"it is marked committed, but {transaction} is {state.status.value}"
    elif state.open and outcomes:
        yield "T5", f"it is marked aborted, but {transaction} is {state.status.value}"


def _is_about_a_transaction(state: TransactionState) -> bool:
    return state.open or state.outcome is not None


def examine_ids(logs: Logs) -> Iterator[Finding | KnownIds]:
    """Check every id's log; the last item is what is known of them."""
    known = KnownIds(logs)
    ids = logs.transactions.ids()
    states = damages = 0
    for first in range(0, len(ids), PARALLEL_REQUESTS):
        some = ids[first : first + PARALLEL_REQUESTS]
        for name, (count, newest, found) in zip(
            some, logs.storage.gather([partial(_examine_id, logs, n) for n in some]), strict=True
        ):
            states += count
            damages += len(found)
            if newest is None:
                known.unreadable.add(name)
            known.heads[name] = newest
            yield from found
    if not damages:
        yield Finding("transactions", "", "ok", f"ids: {len(ids)}, states: {states}")
    yield known


def _examine_id(
    logs: Logs, transactional_id: str
) -> tuple[int, TransactionState | None, list[Finding]]:
    found: list[Finding] = []
    before: TransactionState | None = None
    count = 0
    folder = names.transaction_log(transactional_id)

    def damage(rule: str | None, detail: str, path: str) -> None:
        found.append(Finding("transactions", transactional_id, "damage", detail, rule, path))

    for item in dump_log(logs.storage, folder, DECODER):
        if item.missing_count:
            # Old states are deleted, and a name that was freed may have been used again by an
            # instance that was asleep (hazard 3). Only the newest counts.
            before = None
            continue
        if item.damage is not None:
            damage("L1", item.damage, item.path)
        state = item.entry
        if state is None:
            before = None
            continue
        count += 1
        if state.transactional_id != transactional_id:
            damage("T6", f"it is of another id, {state.transactional_id!r}", item.path)
        elif before is not None:
            for rule, detail in transition_reasons(before, state):
                damage(rule, detail, item.path)
        before = state
    return count, before, found
