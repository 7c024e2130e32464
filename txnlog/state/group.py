"""A consumer group: the entries of its log, and the committed offsets they fold into.

An entry takes effect at its place in the log. Entries of undecided transactions wait in
``pending``; while one does, nobody else may commit offsets for the same partitions (invariant G2).
A reader may learn an old decision after it has folded later entries, so each committed offset
remembers its entry, and an older one never replaces it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, NamedTuple

import msgspec

from txnlog.errors import (
    CommitFailed,
    ConcurrentTransactions,
    GroupIdNotFound,
    GroupNotEmpty,
)
from txnlog.limits import (
    AnyNumber,
    Counter,
    CounterOrNone,
    Metadata,
    Name,
    Offset,
    PartitionNumber,
    PerPartition,
    TimeMs,
)
from txnlog.names import TopicPartition
from txnlog.state.folded_state import FoldedState, Unsettled
from txnlog.state.membership import (
    Committer,
    MembersExpired,
    Membership,
    MembersJoined,
    MembersLeft,
    PartitionsAssigned,
    RebalanceBegun,
)
from txnlog.state.transaction import Outcome, TransactionRef


class OffsetCommit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The next offset that the group will read of one partition.

    ``start`` is the committed offset that the consumer began from, None if there was none; it is
    compared only if ``compare`` is set. ``start_entry`` is the entry that had last moved it there,
    -1 if none had: an offset that was moved away and back counts as changed. None: not known, then
    only the offsets are compared. ``topic_id`` is that of the topic that was read: an offset means
    nothing in a later topic of the same name. Empty: not known.
    """

    topic: Name
    partition: PartitionNumber
    offset: Offset
    metadata: Metadata = ""
    compare: bool = False
    start: Offset | None = None
    topic_id: Name = ""
    start_entry: CounterOrNone | None = None


class OffsetsCommitted(
    msgspec.Struct, frozen=True, tag_field="kind", tag="offsets", omit_defaults=True
):
    """Offsets of any number of partitions move, alone or as part of a transaction.

    ``committer`` is the member that moves them; None if it is not a member. ``force``: an operator
    moves them although the group has members.
    """

    nonce: Name
    at_ms: TimeMs
    offsets: Annotated[tuple[OffsetCommit, ...], AnyNumber]
    transaction: TransactionRef | None = None
    committer: Committer | None = None
    force: bool = False


class OffsetsDeleted(msgspec.Struct, frozen=True, tag_field="kind", tag="offsets-deleted"):
    """The group no longer has an offset in these partitions."""

    nonce: Name
    at_ms: TimeMs
    partitions: Annotated[tuple[TopicPartition, ...], AnyNumber]


class GroupDeleted(msgspec.Struct, frozen=True, tag_field="kind", tag="deleted"):
    """The group's offsets end here."""

    nonce: Name
    at_ms: TimeMs


GroupEntry = (
    OffsetsCommitted
    | GroupDeleted
    | OffsetsDeleted
    | MembersJoined
    | MembersLeft
    | MembersExpired
    | RebalanceBegun
    | PartitionsAssigned
)
ENTRY_DECODER: msgspec.json.Decoder[GroupEntry] = msgspec.json.Decoder(GroupEntry)


class CommittedOffset(msgspec.Struct, frozen=True):
    """A committed offset: the next one to read, with its metadata, time and log entry."""

    offset: Offset
    metadata: Metadata
    at_ms: TimeMs
    entry: CounterOrNone = -1
    topic_id: Name = ""


class LoggedPosition(NamedTuple):
    """A group's offset in a partition, and the entry that last moved or deleted it.

    No offset is None; the entry is -1 if there is none, and None if it is not known.
    """

    offset: int | None
    entry: int | None


class GroupState(FoldedState[GroupEntry], tag_field="kind", tag="group-checkpoint"):
    """A group by its log: committed offsets, those of undecided transactions, and members.

    ``deleted`` holds the entries that deleted the offsets of partitions which have none since, and
    ``emptied`` is the last one that deleted all; -1 for none.
    """

    committed: Annotated[
        dict[Name, Annotated[dict[PartitionNumber, CommittedOffset], PerPartition]], AnyNumber
    ] = {}
    pending: Annotated[dict[Counter, OffsetsCommitted], AnyNumber] = {}
    deleted: Annotated[
        dict[Name, Annotated[dict[PartitionNumber, Counter], PerPartition]], AnyNumber
    ] = {}
    emptied: CounterOrNone = -1
    membership: Membership = msgspec.field(default_factory=Membership)

    def undecided_entries(self) -> dict[int, TransactionRef]:
        return {
            number: entry.transaction
            for number, entry in self.pending.items()
            if entry.transaction is not None
        }

    def time_of_undecided_ms(self, number: int) -> int:
        return self.pending[number].at_ms

    def fold(self, entry: GroupEntry, number: int) -> int:
        match entry:
            case OffsetsCommitted(transaction=None):
                self._commit(entry, number)
            case OffsetsCommitted():
                self.pending[number] = entry
            case OffsetsDeleted():
                self._drop({*entry.partitions})
                for topic, partition in entry.partitions:
                    self.deleted.setdefault(topic, {})[partition] = number
            case GroupDeleted():
                self.committed = {}
                self.pending = {}
                self.deleted = {}
                self.emptied = number
                self.membership.first_assigned = {}
            case _:
                self.membership.fold(entry, number)
                if isinstance(entry, PartitionsAssigned):
                    self._forget_first_assigned()
        return entry.at_ms

    def _forget_first_assigned(self) -> None:
        """Forget the first partition counts of topics neither assigned nor with offsets."""
        used = {moved.topic for entry in self.pending.values() for moved in entry.offsets}
        used |= {*self.membership.topics, *self.committed}
        known = self.membership.first_assigned
        self.membership.first_assigned = {topic: known[topic] for topic in known if topic in used}

    def _drop(self, partitions: set[TopicPartition]) -> None:
        for topic, partition in partitions:
            offsets = self.committed.get(topic, {})
            offsets.pop(partition, None)
            if not offsets:
                self.committed.pop(topic, None)
        # The writer of this entry knew that everything before it was decided; we may learn it
        # later, and it must not bring an offset back.
        for number, entry in list(self.pending.items()):
            kept = tuple(m for m in entry.offsets if (m.topic, m.partition) not in partitions)
            if not kept:
                del self.pending[number]
            elif kept != entry.offsets:
                self.pending[number] = msgspec.structs.replace(entry, offsets=kept)

    def _commit(self, entry: OffsetsCommitted, number: int) -> None:
        for moved in entry.offsets:
            known = self.offset_of(moved.topic, moved.partition)
            # An entry counts at its place, even if its decision is learnt after later entries.
            if known is None or known.entry < number:
                self.committed.setdefault(moved.topic, {})[moved.partition] = CommittedOffset(
                    moved.offset, moved.metadata, entry.at_ms, number, moved.topic_id
                )
                gone = self.deleted.get(moved.topic, {})
                if gone.pop(moved.partition, None) is not None and not gone:
                    del self.deleted[moved.topic]

    def outcome_of(self, number: int) -> Outcome | Unsettled:
        if number in self.pending:
            return "undecided"
        moved = any(at.entry == number for by in self.committed.values() for at in by.values())
        return Outcome.COMMIT if moved else "gone"

    def decide(self, number: int, outcome: Outcome) -> None:
        entry = self.pending.pop(number, None)
        if entry is not None and outcome is Outcome.COMMIT:
            self._commit(entry, number)

    def expire(self) -> None:
        """Do nothing: a group's state keeps nothing for a limited time."""

    def offset_of(self, topic: str, partition: int, topic_id: str = "") -> CommittedOffset | None:
        """The committed offset of a partition; None if there is none.

        With a ``topic_id``, an offset of an earlier topic of that name does not count.
        """
        known = self.committed.get(topic, {}).get(partition)
        if known and topic_id and known.topic_id and known.topic_id != topic_id:
            return None
        return known

    def copy_positions(self) -> GroupState:
        """A copy of the group's offsets, which later entries do not change."""
        return GroupState(
            committed={topic: dict(at) for topic, at in self.committed.items()},
            deleted={topic: dict(at) for topic, at in self.deleted.items()},
            emptied=self.emptied,
            pending=dict(self.pending),
            membership=Membership(first_assigned=self.membership.first_assigned),
        )

    def logged_position(self, topic: str, partition: int, topic_id: str = "") -> LoggedPosition:
        """The group's offset in a partition, and its entry; see :meth:`offset_of`."""
        found = self.offset_of(topic, partition, topic_id)
        return LoggedPosition(found.offset if found else None, self._moved_by(topic, partition))

    def first_partitions(self, topic: str, topic_id: str) -> int | None:
        """How many partitions a topic had when its members first read it.

        None if that is not known, or if the group has no offsets in it: then it begins anew.
        """
        known = self.membership.first_assigned.get(topic)
        if known is None or known.topic_id != topic_id:
            return None
        begun = any(self.offset_of(topic, at, topic_id) for at in self.committed.get(topic, ()))
        return known.partitions if begun else None

    def _moved_by(self, topic: str, partition: int) -> int:
        """The entry that last moved or deleted the partition's offset, for whatever topic.

        -1 if there is none.
        """
        known = self.committed.get(topic, {}).get(partition)
        if known is not None:
            return known.entry
        return max(self.deleted.get(topic, {}).get(partition, -1), self.emptied)

    @property
    def empty(self) -> bool:
        """True if the group has no members, no offset, and no transaction that may set one."""
        return not self.committed and not self.pending and not self.membership.members

    def partitions(self) -> set[TopicPartition]:
        """The partitions that have an offset, or are about to have one."""
        committed = {TopicPartition(t, p) for t, offsets in self.committed.items() for p in offsets}
        return committed | {*self.held()}

    def held(self) -> dict[TopicPartition, TransactionRef]:
        """The partitions whose offsets an undecided transaction is about to move."""
        return {
            TopicPartition(moved.topic, moved.partition): entry.transaction
            for entry in self.pending.values()
            for moved in entry.offsets
            if entry.transaction is not None
        }

    def check_deletion(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None = None,
        dead: Collection[str] = (),
    ) -> None:
        """Raise unless the offsets of these partitions (None: all) may be deleted (invariant G2).

        The members with the ids ``dead`` do not count.

        Raises GroupIdNotFound: the group has no offsets. GroupNotEmpty: it has members, which read
        these partitions. ConcurrentTransactions: an undecided transaction is about to move one of
        them.
        """
        members = [held.member for id_, held in self.membership.members.items() if id_ not in dead]
        read = {topic for member in members for topic in member.topics}
        if members and (partitions is None or read & {where.topic for where in partitions}):
            raise GroupNotEmpty(
                f"offsets of group {group_id!r} cannot be deleted: it has {len(members)} live "
                "member(s) that read there; close its consumers, or remove those that are dead "
                "with `txnlog groups remove-members`"
            )
        if self.empty:
            raise GroupIdNotFound(f"group {group_id!r} has no offsets; there is nothing to delete")
        held = self.held()
        for where in sorted(held) if partitions is None else partitions:
            if where in held:
                raise ConcurrentTransactions(
                    f"the offset of group {group_id!r} for {where} cannot be deleted: "
                    f"{held[where]} is about to move it and is not decided yet; try again when it "
                    "has ended"
                )

    def check_commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetCommit],
        committer: Committer | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Raise unless these offsets may be committed now (invariants G1, G2 and M3).

        Raises ConcurrentTransactions: an undecided transaction holds one of the partitions.
        CommitFailed: the group has moved since the offsets were read, or the committer does not own
        a partition: the subclass tells why. GroupNotEmpty: it has members, and the committer is not
        one.
        """
        partitions = [TopicPartition(moved.topic, moved.partition) for moved in offsets]
        self.membership.check_commit(group_id, committer, partitions, force=force)
        self.check_offsets(group_id, offsets)

    def check_offsets(self, group_id: str, offsets: Sequence[OffsetCommit]) -> None:
        """Raise unless the offsets may be committed, by whomever (invariants G1 and G2)."""
        held = self.held()
        for moved in offsets:
            where = TopicPartition(moved.topic, moved.partition)
            if where in held:
                raise ConcurrentTransactions(
                    f"group {group_id!r}: {held[where]} is about to move {where} and is not "
                    "decided yet; wait for it to end, then read the group's offsets again"
                )
            if not moved.compare:
                continue
            found, entry = self.logged_position(*where, moved.topic_id)
            if found != moved.start:
                now = "has no offset now" if found is None else f"is at {found} now"
                raise CommitFailed(
                    f"group {group_id!r} has moved on {where}: these records were read "
                    f"{_describe_start(moved.start)}, but the group {now}; somebody else has "
                    "committed since. Abort, read from the group's offsets, and repeat the work"
                )
            # Entries only grow. A lower one means that it was not kept, not that nothing has moved.
            if moved.start_entry is not None and entry is not None and entry > moved.start_entry:
                raise CommitFailed(
                    f"group {group_id!r} has moved on {where}: these records were read "
                    f"{_describe_start(moved.start)}, and entry {entry} of its log has put it back "
                    "there since: it was reset, or somebody else has committed. Abort, read from "
                    "the group's offsets, and repeat the work"
                )


def _describe_start(offset: int | None) -> str:
    return "when the group had no offset" if offset is None else f"from offset {offset}"


CHECKPOINT_DECODER: msgspec.json.Decoder[GroupState] = msgspec.json.Decoder(GroupState)
