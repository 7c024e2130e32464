"""Examines the logs of topics and groups: folds them anew, and judges every entry on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec

from txnlog.doctor.finding import Finding
from txnlog.doctor.ids import KnownIds
from txnlog.doctor.rules import Reason
from txnlog.errors import CorruptEntry, ObjectNotFound, UnsupportedVersion
from txnlog.log_dump import DumpedEntry, dump_log
from txnlog.names import LogFile, parse_log_file
from txnlog.sequence_log import SequenceLog
from txnlog.state import envelope
from txnlog.state.log_state import LogState
from txnlog.state.transaction import EntryRef, Outcome, TransactionRef
from txnlog.state_log import CHECKPOINT_INTERVAL

EntryT = TypeVar("EntryT", bound=msgspec.Struct)
StateT = TypeVar("StateT", bound=LogState)  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class LogKind(Generic[EntryT, StateT]):
    """What differs between the logs of topics and of groups."""

    kind: Literal["topic", "group"]
    new_state: Callable[[], StateT]
    entries: msgspec.json.Decoder[EntryT]
    checkpoints: msgspec.json.Decoder[StateT]
    follows: Callable[[str, StateT, EntryT], Iterator[Reason]]
    agrees: Callable[[StateT, StateT], Iterator[Reason]]


@dataclass(slots=True)
class Replay(Generic[EntryT, StateT]):
    """One log, folded from its oldest entry, or its oldest checkpoint, to its end.

    ``state`` is None as long as nothing can be folded: an entry is missing or damaged, and no
    checkpoint behind it has come yet.
    """

    kind: LogKind[EntryT, StateT]
    log: SequenceLog
    name: str
    ids: KnownIds
    recent_ms: int
    state: StateT | None = None
    entry_count: int = 0

    def findings(self) -> Iterator[Finding]:
        """Fold the log; yield what is wrong. Raises StorageError."""
        files = map(parse_log_file, self.log.storage.list_names(self.log.folder))
        checkpoints = [found[0] for found in files if found and found[1] is LogFile.CHECKPOINT]
        # The oldest is where a log begins that was cleaned up, the newest is where all begin.
        compared = {*checkpoints[:1], *checkpoints[-1:]}
        self.state = self.kind.new_state()
        for found in dump_log(self.log.storage, self.log.folder, self.kind.entries):
            yield from self._damage(found)
            if found.entry is not None:
                self.entry_count += 1
                yield from self._fold(found, found.entry)
            else:
                self.state = None  # until the next checkpoint
            if found.number in compared and found.has_checkpoint:
                yield from self._compare(found.number)
        if self.state is not None:
            self.state.forget(self.state.log_time_ms - self.recent_ms)

    def _damage(self, found: DumpedEntry[EntryT]) -> Iterator[Finding]:
        if found.damage is not None:
            rule = "L3" if len(found.outcomes) > 1 else "L1" if found.entry is None else "T5"
            yield self._finding(rule, found.damage, found.path)

    def _fold(self, found: DumpedEntry[EntryT], entry: EntryT) -> Iterator[Finding]:
        number, owner = found.number, found.transaction
        if owner is not None and len(found.outcomes) < 2:
            for rule, reason in self.ids.reasons(self._ref(number), owner, found.outcomes):
                # What was listed before may have been marked since.
                if rule != "T4" or self._marker(number) is None:
                    yield self._finding(rule, f"entry {number}: {reason}", found.path)
        state = self.state
        if state is None or state.next_entry != number:
            return
        try:
            reasons = self._reasons(state, entry)
            if reasons and self.log.is_stray(number):
                # Cleaned up since the listing, and put again by a writer that was asleep: nobody
                # reads that (hazard 3).
                self.state = None
                return
            for rule, reason in reasons:
                yield self._finding(rule, f"entry {number}: {reason}", found.path)
            state.apply(number, entry)
        except (IndexError, KeyError, ValueError) as error:
            yield self._finding("L2", f"it contradicts those before it: {error!r}", found.path)
            self.state = None
            return
        if found.outcomes:
            state.decide(number, found.outcomes[0])
        elif owner is not None:
            self._decide(state, number, owner)
        if number % CHECKPOINT_INTERVAL == 0:
            state.forget(state.log_time_ms - self.recent_ms)

    def _reasons(self, state: StateT, entry: EntryT) -> list[Reason]:
        reasons = [*self.kind.follows(self.name, state, entry)]
        undecided = state.undecided_entries()
        if not reasons or not undecided:
            return reasons
        # Whoever put the entry may have known of decisions that came after we asked for them.
        for number, owner in list(undecided.items()):
            self.ids.look_again(owner.transactional_id)
            self._decide(state, number, owner)
        return [*self.kind.follows(self.name, state, entry)]

    def _decide(self, state: StateT, number: int, owner: TransactionRef) -> None:
        """Decide an entry without a marker as a reader would, but write nothing."""
        outcome = self.ids.outcome(self._ref(number), owner)
        if outcome == "past":
            # The state may also be from before the entry: only one that was read later tells.
            self.ids.look_again(owner.transactional_id)
            outcome = self.ids.outcome(self._ref(number), owner)
        if outcome == "past":
            outcome = self._marker(number) or Outcome.ABORT
        if outcome is not None:
            state.decide(number, outcome)

    def _marker(self, number: int) -> Outcome | None:
        """The marker that an entry has by now."""
        return self.log.listing(number).outcomes.get(number)

    def _ref(self, number: int) -> EntryRef:
        return EntryRef(self.kind.kind, self.name, number)

    def _compare(self, number: int) -> Iterator[Finding]:
        path = self.log.path(number, LogFile.CHECKPOINT)
        try:
            checkpoint = envelope.decode(
                self.log.read_checkpoint(number), self.kind.checkpoints, path
            )
        except ObjectNotFound:
            return
        except (CorruptEntry, UnsupportedVersion) as error:
            yield self._finding("L7", str(error), path)
            return
        state = self.state
        if state is not None and state.next_entry == number + 1:
            for rule, reason in self.kind.agrees(state, checkpoint):
                yield self._finding(rule, f"checkpoint {number}: {reason}", path)
        else:
            self.state = checkpoint

    def _finding(self, rule: str, detail: str, path: str) -> Finding:
        return Finding(self.kind.kind, self.name, "damage", detail, rule, path)
