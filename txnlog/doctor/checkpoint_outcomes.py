"""Outcomes in checkpoints agree with markers, states of ids and each other: rule L10.

An outcome is final, so a source that says that an entry was committed and one that says that it was
aborted cannot both be right; one may call undecided what another has decided. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from txnlog.names import TopicPartition
from txnlog.state.group import (
    GroupDeleted,
    GroupEntry,
    GroupState,
    OffsetsCommitted,
    OffsetsDeleted,
)
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import TopicEntry
from txnlog.state.transaction import Outcome, TransactionRef

EntryT_contra = TypeVar("EntryT_contra", contravariant=True)
StateT_contra = TypeVar("StateT_contra", contravariant=True)

Owner = tuple[int, int]
"""A producer's id, and the number of one of its transactions."""


@dataclass(frozen=True, slots=True)
class Claims:
    """A checkpoint's claims about the outcomes of the entries before it.

    ``owners`` are their transactions, as far as the checkpoint knows them; ``files`` the files of
    undecided entries that are in a bundle.
    """

    committed: AbstractSet[int]
    aborted: AbstractSet[int]
    undecided: Mapping[int, TransactionRef]
    owners: Mapping[int, Owner]
    files: Mapping[int, int] = field(default_factory=dict)


class ClaimsReader(Protocol[EntryT_contra, StateT_contra]):
    """Finds the claims of a log's checkpoints, in the order of the log."""

    def see(self, number: int, entry: EntryT_contra | None) -> None:
        """Add the next entry; None if its content is not known."""

    def claims(self, checkpoint: StateT_contra) -> Claims:
        """A checkpoint's claims about all entries so far."""


class TopicClaims:
    """An entry with segments in the checkpoint is committed, unless it says otherwise."""

    def see(self, number: int, entry: TopicEntry | None) -> None:
        """Nothing to do: a topic's checkpoint is complete by itself."""

    def claims(self, checkpoint: TopicState) -> Claims:
        owners = {
            segment.entry: (segment.producer_id, segment.transaction)
            for partition in checkpoint.partitions
            for segment in partition.segments
        }
        # Nothing of trimmed entries shows, whatever their outcome.
        aborted = owners.keys() & set(checkpoint.aborted)
        undecided = checkpoint.undecided
        files = {number: checkpoint.file_of(number) for number in undecided}
        committed = owners.keys() - aborted - undecided.keys()
        return Claims(committed, aborted, undecided, owners, files)


@dataclass(slots=True)
class GroupClaims:
    """An entry whose offset neither counts nor was followed by another is aborted.

    ``moved`` has, by entry, the offsets that it moves if committed, and up to which entry they are
    known not to have been deleted since.
    """

    moved: dict[int, tuple[tuple[TopicPartition, ...], int]] = field(default_factory=dict)
    deleted: dict[TopicPartition, int] = field(default_factory=dict)
    wiped: int = -1

    def see(self, number: int, entry: GroupEntry | None) -> None:
        match entry:
            case OffsetsCommitted(transaction=None):
                pass
            case OffsetsCommitted():
                self.moved[number] = _partitions(entry), number
            case OffsetsDeleted(partitions=partitions):
                self.deleted.update(dict.fromkeys(partitions, number))
            case GroupDeleted() | None:
                self.wiped = number

    def claims(self, checkpoint: GroupState) -> Claims:
        for number, entry in checkpoint.pending.items():
            # A deletion before the checkpoint has removed these offsets from it.
            self.moved[number] = _partitions(entry), checkpoint.next_entry - 1
        at = {
            TopicPartition(topic, partition): known.entry
            for topic, offsets in checkpoint.committed.items()
            for partition, known in offsets.items()
        }
        committed = {*at.values()} - {-1}  # meaning that it is not known
        undecided = checkpoint.undecided_entries()
        aborted = {
            number
            for number, (partitions, since) in self.moved.items()
            if number not in committed
            and number not in undecided
            and any(
                max(self.wiped, self.deleted.get(where, -1)) <= since
                and self._is_older(at.get(where), number)
                for where in partitions
            )
        }
        owners = {number: (ref.producer_id, ref.number) for number, ref in undecided.items()}
        return Claims(committed, aborted, undecided, owners)

    @staticmethod
    def _is_older(counts: int | None, number: int) -> bool:
        """True if a partition's offset is older than the one that entry ``number`` sets."""
        return counts is None or -1 < counts < number


def _partitions(entry: OffsetsCommitted) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(moved.topic, moved.partition) for moved in entry.offsets)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Other evidence of how an entry was decided: ``source`` is a sentence, for people.

    ``by_state``: from the state of its transactional id, not its marker. It is ``doubtful`` if the
    entry could be a stray (hazard 3): then it counts only where a checkpoint says that the entry is
    of this transaction.
    """

    outcome: Outcome
    transaction: TransactionRef
    source: str
    doubtful: bool = False
    by_state: bool = False


@dataclass(slots=True)
class Contradiction:
    """Checkpoints, by number, that are wrong about an entry; or one that may be.

    ``evidence`` is None if another checkpoint, ``other``, says otherwise: then it is not known
    which of them is right.
    """

    entry: int
    said: Outcome
    checkpoints: list[int]
    evidence: Evidence | None
    other: int


@dataclass(slots=True)
class OutcomeJudge:
    """Compares checkpoints, in order, with other evidence of outcomes (rule L10)."""

    evidence: dict[int, Evidence] = field(default_factory=dict)
    found: dict[tuple[int, Outcome], Contradiction] = field(default_factory=dict)
    first_said: dict[Outcome, dict[int, int]] = field(
        default_factory=lambda: {outcome: {} for outcome in Outcome}
    )
    owners: dict[int, Owner] = field(default_factory=dict)

    def compare(self, checkpoint: int, claims: Claims) -> None:
        """Compare what a checkpoint claims with the evidence so far, and with those before it."""
        self.owners.update(claims.owners)
        said = {Outcome.COMMIT: claims.committed, Outcome.ABORT: claims.aborted}
        for outcome, entries in said.items():
            other = Outcome.ABORT if outcome is Outcome.COMMIT else Outcome.COMMIT
            against = {
                number
                for number in self.evidence.keys() & entries
                if self.evidence[number].outcome is other and self._counts(number)
            }
            earlier = self.first_said[other].keys() & entries - self.evidence.keys()
            for number in against | earlier:
                key = number, outcome
                known = self.found.get(key)
                if known is None:
                    before = self.first_said[other].get(number, -1)
                    evidence = self.evidence.get(number)
                    known = Contradiction(number, outcome, [], evidence, before)
                    self.found[key] = known
                known.checkpoints.append(checkpoint)
        for outcome, entries in said.items():
            first = self.first_said[outcome]
            first.update(dict.fromkeys(entries - first.keys(), checkpoint))

    def decided(self, number: int) -> bool:
        """Whether any checkpoint so far knows an entry's outcome."""
        return any(number in first for first in self.first_said.values())

    def _counts(self, number: int) -> bool:
        evidence = self.evidence[number]
        owner = self.owners.get(number)
        if owner is None:
            return not evidence.doubtful
        ref = evidence.transaction
        # Segments of old stores do not name their producer's transaction.
        return owner in ((ref.producer_id, ref.number), (ref.producer_id, -1))
