"""Replays the logs of topics and groups: folds them again, and judges every entry on the way."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import msgspec

from txnlog.doctor.checkpoint_outcomes import (
    Claims,
    ClaimsReader,
    Contradiction,
    Evidence,
    OutcomeJudge,
)
from txnlog.doctor.findings import LOG_LIMIT, Finding, ReadFailures
from txnlog.doctor.rules import Violation
from txnlog.doctor.transactional_ids import KnownIds
from txnlog.errors import CorruptEntry, ObjectNotFound, StorageError, UnsupportedVersion
from txnlog.inspect.log_dump import DumpedEntry, dump_log
from txnlog.log.chapters import closed_end
from txnlog.log.sequence_log import SequenceLog
from txnlog.names import LogFile, parse_log_file
from txnlog.state.folded_state import FoldedState
from txnlog.state.transaction import (
    EntryRef,
    Outcome,
    TransactionRef,
    TransactionState,
    decide_entry,
)
from txnlog.storage import envelope

EntryT = TypeVar("EntryT", bound=msgspec.Struct)
StateT = TypeVar("StateT", bound=FoldedState)  # type: ignore[type-arg]

_BY_OUTCOMES = frozenset({"L4", "G1", "G2"})
"""Rules that cannot be judged while the outcome of an entry is unknown."""
_SHOWN_CHECKPOINTS = 3


@dataclass(frozen=True, slots=True)
class LogKind(Generic[EntryT, StateT]):
    """The differences between logs of topics and of groups."""

    kind: Literal["topic", "group"]
    new_state: Callable[[], StateT]
    entries: msgspec.json.Decoder[EntryT]
    checkpoints: msgspec.json.Decoder[StateT]
    unfold: Callable[[StateT], StateT | None]
    entry_violations: Callable[[str, StateT, EntryT], Iterator[Violation]]
    checkpoint_violations: Callable[[StateT, StateT], Iterator[Violation]]
    new_claims: Callable[[], ClaimsReader[EntryT, StateT]]


@dataclass(slots=True)
class Replay(Generic[EntryT, StateT]):
    """One log, folded from its oldest entry, or its oldest checkpoint, to its end.

    ``state`` is None as long as nothing can be folded: an entry is missing or damaged, and no later
    checkpoint was reached yet.
    """

    kind: LogKind[EntryT, StateT]
    log: SequenceLog
    name: str
    ids: KnownIds
    read_failures: ReadFailures
    state: StateT | None = None
    entry_count: int = 0
    _files: list[int] = field(default_factory=list)
    _judge: OutcomeJudge = field(default_factory=OutcomeJudge)
    _good_checkpoints: list[int] = field(default_factory=list)
    _newest: tuple[int, Claims] | None = None

    def findings(self) -> Iterator[Finding]:
        """Fold the log; yield violations. Raises StorageError only if nothing can be read."""
        try:
            yield from self._findings()
        except StorageError as error:
            self.state = None
            yield self.read_failures.add(self.kind.kind, self.name, self.log.folder, error)

    def _findings(self) -> Iterator[Finding]:
        listed = self.log.storage.list_names(self.log.folder)
        files = [*map(parse_log_file, listed)]
        entries = {found[0] for found in files if found and found[1] is LogFile.ENTRY}
        checkpoints = {found[0] for found in files if found and found[1] is LogFile.CHECKPOINT}
        self._files = sorted(entries)
        self.state = self.kind.new_state()
        claims = self.kind.new_claims()
        unreadable_in_a_row = 0
        for found in dump_log(
            self.log.storage, self.log.folder, self.kind.entries, keep_going=True
        ):
            yield from self._damage(found)
            for path, error in found.failures:
                yield self.read_failures.add(self.kind.kind, self.name, path, error)
            unreadable_in_a_row = unreadable_in_a_row + 1 if found.failures else 0
            if unreadable_in_a_row >= LOG_LIMIT:
                self.state = None
                yield self._report_rest(found.number)
                return
            # The first remaining entry may be a stray (hazard 3), unless a checkpoint is beside it.
            known = {found.number, found.number - 1} & checkpoints
            if found.entry is not None:
                entries.add(found.number)  # it may be in a bundle
            is_first = found.number > 0 and not known and found.number - 1 not in entries
            last = found.number + max(found.missing_count - 1, 0)
            claims.see(last, None if is_first else found.entry)
            if found.entry is not None:
                self.read_failures.reset()
                self.entry_count += 1
                self._note_evidence(found, doubtful=is_first)
                yield from self._fold(found, found.entry)
            else:
                self.state = None  # until the next checkpoint
            if found.has_checkpoint:
                yield from self._check_checkpoint(found.number, claims)
        yield from self._check_undecided_entries(checkpoints)
        yield from self._check_chapters(listed, max(checkpoints, default=0))
        for wrong in self._judge.found.values():
            yield from self._report_contradiction(wrong, from_entry_0=0 in entries)

    def _check_chapters(self, listed: list[str], newest: int) -> Iterator[Finding]:
        """Rule L17: chapters are closed behind a checkpoint. Nobody can append to one."""
        end = closed_end(listed)
        if end > newest:
            # A listing is not a snapshot; a chapter is closed only after its checkpoint was put.
            newest = max(self.log.listing().checkpoints, default=0)
        if end > newest:
            detail = (
                f"its entries below {end} are closed, and its newest checkpoint is after entry "
                f"{newest}: what writers put in between is lost. Delete the marks from "
                f"{newest} on by hand (`.closed-`) when nobody writes"
            )
            yield self._finding("L17", detail, self.log.folder)

    def _report_rest(self, number: int) -> Finding:
        detail = (
            f"{LOG_LIMIT} entries in a row could not be read; what comes after entry {number} was "
            "not looked at"
        )
        return Finding(self.kind.kind, self.name, "unreadable", detail, path=self.log.path(number))

    def _damage(self, found: DumpedEntry[EntryT]) -> Iterator[Finding]:
        if found.damage is not None:
            rule = "L3" if len(found.outcomes) > 1 else "L1" if found.entry is None else "T5"
            yield self._finding(rule, found.damage, found.path)

    def _fold(self, found: DumpedEntry[EntryT], entry: EntryT) -> Iterator[Finding]:
        number, owner = found.number, found.transaction
        if owner is not None and len(found.outcomes) < 2:
            for rule, detail in self.ids.violations(self._ref(number), owner, found.outcomes):
                if rule != "T4" or self._lacks_marker(number, found.file, owner):
                    yield self._finding(rule, f"entry {number}: {detail}", found.path)
        state = self.state
        if state is None or state.next_entry != number:
            return
        try:
            violations = self._entry_violations(state, entry)
            if violations and self._is_stray(found.file):
                # Cleaned up since the listing, and put again by a writer that slept: nobody reads
                # that (hazard 3).
                self.state = None
                return
            for rule, detail in violations:
                yield self._finding(rule, f"entry {number}: {detail}", found.path)
            state.apply(number, entry)
        except (IndexError, KeyError, ValueError) as error:
            yield self._finding("L2", f"it contradicts those before it: {error!r}", found.path)
            self.state = None
            return
        if found.outcomes:
            state.decide(number, found.outcomes[0])
        elif owner is not None:
            self._decide(state, number, owner)

    def _is_stray(self, file: int) -> bool:
        """Whether a file has a freed name, judged by its neighbours."""
        at = bisect_left(self._files, file)
        before = self._files[at - 1] if at else file - 1
        behind = self._files[at + 1] if at + 1 < len(self._files) else file + 1
        return self.log.is_stray(file, before, behind)

    def _entry_violations(self, state: StateT, entry: EntryT) -> list[Violation]:
        violations = [*self.kind.entry_violations(self.name, state, entry)]
        undecided = state.undecided_entries()
        if not violations or not undecided:
            return violations
        # The entry's writer may have known decisions made after we read them.
        for number, owner in list(undecided.items()):
            self.ids.look_again(owner.transactional_id)
            self._decide(state, number, owner)
        violations = [*self.kind.entry_violations(self.name, state, entry)]
        unknown = {owner.transactional_id for owner in state.undecided_entries().values()}
        if unknown & self.ids.unreadable:
            return [found for found in violations if found[0] not in _BY_OUTCOMES]
        return violations

    def _decide(self, state: StateT, number: int, owner: TransactionRef) -> None:
        """Decide an entry without a marker as a reader would, but write nothing."""
        outcome = self.ids.outcome(self._ref(number), owner)
        if outcome == "past":
            # The state may also be from before the entry: only one read later decides.
            self.ids.look_again(owner.transactional_id)
            outcome = self.ids.outcome(self._ref(number), owner)
        if outcome == "past":
            outcome = self.log.listing(number).outcomes.get(number, Outcome.ABORT)
        if outcome is not None:
            state.decide(number, outcome)

    def _lacks_marker(self, number: int, file: int, owner: TransactionRef) -> bool:
        """Whether an entry still has no marker, though it needs one. It is listed again.

        A marker may have been put since, or the entry been cleaned up. Below a checkpoint, entries
        of an id's earlier transactions need none: a standby does not copy them.
        """
        listing = self.log.listing(file)
        is_known = any(checkpoint >= number for checkpoint in listing.checkpoints)
        is_known = is_known and not self.ids.is_newest(owner)
        return file in listing.entries and number not in listing.outcomes and not is_known

    def _ref(self, number: int) -> EntryRef:
        return EntryRef(self.kind.kind, self.name, number)

    # -- checkpoints -----------------------------------------------------------------------------

    def _check_checkpoint(
        self, number: int, claims: ClaimsReader[EntryT, StateT]
    ) -> Iterator[Finding]:
        """Check a checkpoint against the folded state (L7) and known outcomes (L10)."""
        path = self.log.path(number, LogFile.CHECKPOINT)
        self._newest = None
        try:
            checkpoint = self.kind.unfold(
                envelope.decode(self.log.read_checkpoint(number), self.kind.checkpoints, path)
            )
        except ObjectNotFound:
            return
        except StorageError as error:
            yield self.read_failures.add(self.kind.kind, self.name, path, error)
            return
        except (CorruptEntry, UnsupportedVersion) as error:
            yield self._finding("L7", str(error), path)
            return
        self.read_failures.reset()
        if checkpoint is None:
            return
        said = claims.claims(checkpoint)
        self._newest = number, said
        self._good_checkpoints.append(number)
        for entry, (producer_id, transaction) in said.owners.items():
            owner = self.ids.ended(producer_id, transaction)
            if owner is not None and entry not in self._judge.evidence:
                outcome = decide_entry(self._ref(entry), owner.ref, owner)
                if isinstance(outcome, Outcome):
                    self._judge.evidence[entry] = _state_evidence(owner, outcome)
        self._judge.compare(number, said)
        state = self.state
        if state is not None and state.next_entry == number + 1:
            for rule, detail in self.kind.checkpoint_violations(state, checkpoint):
                yield self._finding(rule, f"checkpoint {number}: {detail}", path)
        else:
            self.state = checkpoint

    def _note_evidence(self, found: DumpedEntry[EntryT], *, doubtful: bool) -> None:
        """Record an entry's outcome by its marker, or the state of its transaction."""
        number, owner = found.number, found.transaction
        if owner is None or len(found.outcomes) > 1:
            return
        if found.outcomes:
            marker = self.log.path(number, LogFile(found.outcomes[0].value))
            source = f"its marker is {marker}"
            self._judge.evidence[number] = Evidence(found.outcomes[0], owner, source, doubtful)
            return
        state = self.ids.ended(owner.producer_id, owner.number)
        outcome = decide_entry(self._ref(number), owner, state)
        if state is not None and isinstance(outcome, Outcome):
            self._judge.evidence[number] = _state_evidence(state, outcome, doubtful=doubtful)

    def _report_contradiction(
        self, wrong: Contradiction, *, from_entry_0: bool
    ) -> Iterator[Finding]:
        """L10, for one entry; nothing if the evidence against the checkpoints was a stray."""
        evidence = wrong.evidence
        owner = evidence.transaction.transactional_id if evidence and evidence.by_state else None
        if owner is not None and not self.ids.still_counts(owner):
            return
        paths = [self.log.path(number, LogFile.CHECKPOINT) for number in wrong.checkpoints]
        shown = ", ".join(paths[-_SHOWN_CHECKPOINTS:])
        if len(paths) > _SHOWN_CHECKPOINTS:
            shown += f" and {len(paths) - _SHOWN_CHECKPOINTS} older ones"
        said = {Outcome.COMMIT: "committed", Outcome.ABORT: "aborted"}[wrong.said]
        entry = self.log.path(wrong.entry)
        if evidence is None:
            other = self.log.path(wrong.other, LogFile.CHECKPOINT)
            detail = (
                f"{entry} is {said} by {shown}, which {other} contradicts; no marker and no state "
                "tells which is right. Ask its producer, or a backup of this folder; then move the "
                "checkpoints that are wrong out of the store while nobody writes"
            )
        else:
            doomed = {n for item in self._judge.found.values() for n in item.checkpoints}
            sound = [number for number in self._good_checkpoints if number not in doomed]
            mend = (
                "restore this folder from a backup, or write the records or offsets again: some "
                "of the entries that tell it were cleaned up"
            )
            if sound or from_entry_0:
                mend = (
                    "move what is wrong out of the store while nobody writes; readers then fold "
                    "the entries that are still here"
                )
            detail = f"{entry} is {said} by {shown}, but {evidence.source}; {mend}"
        yield self._finding("L10", detail, paths[-1])

    def _check_undecided_entries(self, checkpoints: set[int]) -> Iterator[Finding]:
        """L10: entries that the newest checkpoint calls undecided still exist."""
        if self._newest is None or max(checkpoints) > self._newest[0]:
            return  # it cannot be read, or was deleted: there is a newer one
        newest, claims = self._newest
        gone = [number for number in sorted(claims.undecided) if not self._judge.decided(number)]
        if not gone:
            return
        listing = self.log.listing()
        if listing.checkpoints[-1:] != (newest,):
            return  # cleaned up since behind a newer one, which knows their outcomes
        for number in gone:
            file = claims.files.get(number, number)
            if file in listing.entries:
                continue
            detail = (
                f"{self.log.path(file)} is gone, though the newest checkpoint calls its entry "
                f"{number} undecided ({claims.undecided[number]}): nobody can decide it any more. "
                "Restore it, and the entry's marker if it had one, from a backup"
            )
            path = self.log.path(newest, LogFile.CHECKPOINT)
            yield self._finding("L10", detail, path)

    def _finding(self, rule: str, detail: str, path: str) -> Finding:
        return Finding(self.kind.kind, self.name, "damage", detail, rule, path)


def _state_evidence(
    state: TransactionState, outcome: Outcome, *, doubtful: bool = False
) -> Evidence:
    listed = "on" if outcome is Outcome.COMMIT else "not on"
    detail = f" and it is {listed} its list" if state.outcome is Outcome.COMMIT else ""
    source = f"{state.ref} is {state.status.value}{detail}"
    return Evidence(outcome, state.ref, source, doubtful, by_state=True)
