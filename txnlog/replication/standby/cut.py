"""Finds the largest consistent part of the logs that were read from a store. Pure.

The new files of a log are those read after the moment, and not before it (the *base*). Of these the
longest prefix is kept in which nothing rests on a file that is left out, by the rules of "The cut"
in docs/REPLICATION.md. So the cut begins with everything that was read, and goes back until nothing
changes. It never goes back before the moment. A file is only left out if it rests on something that
came after the moment; so the file came after the moment itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from txnlog.state.transaction import (
    EntryRef,
    Outcome,
    TransactionRef,
    TransactionState,
    decide_entry,
)

LogKey: TypeAlias = tuple[Literal["topic", "group"], str]
"""A log, as the list in a decision names it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry of a log: its number, its transaction, and its first offset by partition."""

    number: int
    transaction: TransactionRef | None
    first_offsets: Mapping[int, int] = field(default_factory=dict)


class Need(NamedTuple):
    """A group's committed offset: the records before it must be in the cut, if they exist."""

    topic: str
    partition: int
    offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class NewFile:
    """A new file of a log, with its entries; ``end`` is the number after the last one.

    In a topic's log, ``ends`` are the partitions' end offsets after the file, and ``topic_id`` is
    the topic's id then.
    """

    number: int
    end: int
    entries: tuple[Placed, ...]
    needs: tuple[Need, ...] = ()
    ends: tuple[int, ...] = ()
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class LogPart:
    """A log as it was read: before the moment, up to entry ``next_entry``, and its new files.

    ``undecided`` are entries from before the moment without an outcome. ``ends`` and ``topic_id``
    are those of the topic at the moment.
    """

    next_entry: int
    undecided: tuple[Placed, ...] = ()
    files: tuple[NewFile, ...] = ()
    ends: tuple[int, ...] = ()
    topic_id: str | None = None


_EndsById: TypeAlias = Mapping[str | None, Sequence[int]]


def _ends_by_id(part: LogPart) -> _EndsById:
    """By topic id, the end offsets of the partitions that were read; a topic may be recreated."""
    ends = {part.topic_id: part.ends}
    return ends | {file.topic_id: file.ends for file in part.files}  # each the furthest of its id


class Cut:
    """The longest consistent part of logs that were read.

    ``histories`` has, by transactional id, the states that were read, beginning with the newest one
    before the moment. An empty history: the id was begun after the histories were read. If an id is
    missing, none of its states could be read, and its transactions stay undecided.
    """

    def __init__(
        self,
        logs: Mapping[LogKey, LogPart],
        histories: Mapping[str, Sequence[TransactionState]],
    ) -> None:
        self._logs = logs
        self._histories = histories
        self.files = {key: len(part.files) for key, part in logs.items()}
        """How many new files of each log are in the cut."""
        self.states = {name: len(states) - 1 for name, states in histories.items()}
        """The index of each id's newest state in the cut; -1 if it has none."""
        reached = {key: _ends_by_id(part) for key, part in logs.items() if key[0] == "topic"}
        while self._hold_back_decisions() | self._hold_back_entries() | self._hold_back(reached):
            pass

    def end(self, key: LogKey) -> int:
        """The number of a log's first entry after the cut."""
        part, count = self._logs[key], self.files[key]
        return part.files[count - 1].end if count else part.next_entry

    def state(self, transactional_id: str) -> TransactionState | None:
        """An id's newest state in the cut; None if there is none."""
        states = self._histories.get(transactional_id)
        return states[self.states[transactional_id]] if states else None

    def history(self, transactional_id: str) -> Sequence[TransactionState]:
        """All states of an id that were read and are in the cut."""
        states = self._histories.get(transactional_id, ())
        return states[: self.states[transactional_id] + 1] if states else ()

    def outcome(
        self, key: LogKey, number: int, transaction: TransactionRef
    ) -> Outcome | Literal["past"] | None:
        """An entry's outcome by its id's newest state in the cut; see ``decide_entry``."""
        state = self.state(transaction.transactional_id)
        if state is None:
            return None
        return decide_entry(EntryRef(*key, number), transaction, state)

    def _hold_back_decisions(self) -> bool:
        changed = False
        for name, states in self._histories.items():
            # The first one existed before the moment, and so did all that it decided.
            for at in range(1, self.states[name] + 1):
                if states[at].outcome is Outcome.COMMIT and not self._holds_all(states[at].entries):
                    self.states[name] = at - 1
                    changed = True
                    break
        return changed

    def _holds_all(self, entries: Sequence[EntryRef]) -> bool:
        return all(
            (entry.log, entry.name) in self._logs
            and entry.number < self.end((entry.log, entry.name))
            for entry in entries
        )

    def _hold_back_entries(self) -> bool:
        changed = False
        for key, part in self._logs.items():
            for at, file in enumerate(part.files[: self.files[key]]):
                if not all(self._was_begun(key, entry.transaction) for entry in file.entries):
                    self.files[key] = at
                    changed = True
                    break
        return changed

    def _was_begun(self, key: LogKey, transaction: TransactionRef | None) -> bool:
        if transaction is None or transaction.transactional_id not in self._histories:
            return True
        state = self.state(transaction.transactional_id)
        if state is None or state.number < transaction.number:
            return False
        if state.open and state.number == transaction.number:
            return key[1] in (state.topics if key[0] == "topic" else state.groups)
        return True

    def _hold_back(self, reached: Mapping[LogKey, _EndsById]) -> bool:
        """Leave out group offsets whose records were read but are undecided in the cut."""
        changed = False
        stable: dict[LogKey, Sequence[int]] = {}
        for key, part in self._logs.items():
            for at, file in enumerate(part.files[: self.files[key]]):
                if any(self._is_ahead(need, stable, reached) for need in file.needs):
                    self.files[key] = at
                    changed = True
                    break
        return changed

    def _is_ahead(
        self,
        need: Need,
        stable: dict[LogKey, Sequence[int]],
        reached: Mapping[LogKey, _EndsById],
    ) -> bool:
        key: LogKey = ("topic", need.topic)
        topic_id = self._topic_id(key) if key in self._logs else None
        if key not in self._logs or (need.topic_id and need.topic_id != topic_id):
            return False
        if key not in stable:
            stable[key] = self._stable_offsets(key)
        ends = reached[key].get(topic_id, ())
        if need.partition >= len(ends) or ends[need.partition] < need.offset:
            return False  # beyond the records: it was set, not read up to
        here = stable[key]
        return need.partition >= len(here) or here[need.partition] < need.offset

    def _topic_id(self, key: LogKey) -> str | None:
        part, count = self._logs[key], self.files[key]
        return part.files[count - 1].topic_id if count else part.topic_id

    def _ends(self, key: LogKey) -> Sequence[int]:
        """By partition, the end offsets in the cut."""
        part, count = self._logs[key], self.files[key]
        return part.files[count - 1].ends if count else part.ends

    def _stable_offsets(self, key: LogKey) -> list[int]:
        """By partition, the last stable offsets in the cut."""
        part, count = self._logs[key], self.files[key]
        files = part.files[:count]
        ends = [*self._ends(key)]
        entries = [*part.undecided, *(entry for file in files for entry in file.entries)]
        for entry in entries:
            owner = entry.transaction
            if owner is not None and self.outcome(key, entry.number, owner) is None:
                for partition, offset in entry.first_offsets.items():
                    if partition < len(ends):
                        ends[partition] = min(ends[partition], offset)
        return ends
