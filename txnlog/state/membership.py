"""The members of a consumer group, and the owners of its partitions: entries and their fold.

Everything follows from the group's log: members, the generation, owners. So there is no
coordinator, and a commit is judged at its place in the log, against the owners at that point. A
partition has at most one holder at any time. Its owner may read and commit it. When it is taken
from an owner it is *revoking*: its holder may still commit what it has read, and no other member is
given the partition before the holder was seen to have released it, or has left (invariant M2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Literal, NoReturn, TypeAlias

import msgspec

from txnlog.errors import (
    CommitFailed,
    FencedInstanceId,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from txnlog.limits import (
    AnyNumber,
    Counter,
    CounterOrNone,
    LongName,
    Name,
    Names,
    PartitionCount,
    PartitionNumber,
    PerPartition,
    Text,
    TimeMs,
    TimeoutMs,
)
from txnlog.names import TopicPartition

GroupStatus = Literal["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"]
"""Kafka's names for the states of a group."""

MOST_BEHIND = 128
"""After this many entries a request to join is no longer fulfilled."""

Partitions: TypeAlias = Annotated[
    dict[Name, Annotated[tuple[PartitionNumber, ...], PerPartition]], AnyNumber
]
"""Numbers of partitions, by topic."""


class GroupMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member says about itself when it joins. A member's id is used only once, ever.

    ``cooperative`` are those of its ``assignors`` under which partitions that stay with a member
    are never revoked. Times in ms. ``instance_id`` is that of a static member; empty: none.
    """

    member_id: Name
    topics: Names
    assignors: Names
    session_timeout_ms: TimeoutMs
    rebalance_timeout_ms: TimeoutMs
    cooperative: Names = ()
    instance_id: Name = ""
    client_id: Name = ""
    host: LongName = ""


class JoinAsked(msgspec.Struct, frozen=True, tag_field="kind", tag="join-asked"):
    """A member's request to join, for others to put. Not an entry; its file's name has the time."""

    at_ms: TimeMs
    member: GroupMember


class ToldAt(msgspec.Struct, frozen=True, tag_field="kind", tag="told"):
    """The content of a heartbeat, or a request to leave, for people: its name alone counts."""

    at_ms: TimeMs


class MembersJoined(msgspec.Struct, frozen=True, tag_field="kind", tag="members-joined"):
    """Members join, or existing ones subscribe to something else."""

    nonce: Name
    at_ms: TimeMs
    members: Annotated[tuple[GroupMember, ...], AnyNumber]


class MembersLeft(msgspec.Struct, frozen=True, tag_field="kind", tag="members-left"):
    """Members have left by themselves, or an operator has removed them."""

    nonce: Name
    at_ms: TimeMs
    member_ids: Names
    reason: Text


class Silence(msgspec.Struct, frozen=True):
    """Why a member was taken for dead: no heartbeat followed this one (-1: none)."""

    member_id: Name
    heartbeat: CounterOrNone
    reason: Text


class MembersExpired(msgspec.Struct, frozen=True, tag_field="kind", tag="members-expired"):
    """These members' heartbeats have stopped for too long. If that is wrong, they join again."""

    nonce: Name
    at_ms: TimeMs
    by: LongName
    expired: Annotated[tuple[Silence, ...], AnyNumber]


class RebalanceBegun(msgspec.Struct, frozen=True, tag_field="kind", tag="rebalance-begun"):
    """Partitions must be reassigned, though the members are the same: topics have changed."""

    nonce: Name
    at_ms: TimeMs
    by: LongName
    reason: Text


class AssignedTopic(msgspec.Struct, frozen=True):
    """A topic as it was when its partitions were assigned."""

    topic_id: Name
    partitions: PartitionCount


AssignedTopics: TypeAlias = Annotated[dict[Name, AssignedTopic], AnyNumber]


class PartitionsAssigned(msgspec.Struct, frozen=True, tag_field="kind", tag="partitions-assigned"):
    """From here on, in a new generation, these members own these partitions.

    ``released`` are members that were seen to have released everything taken from them.
    """

    nonce: Name
    at_ms: TimeMs
    by: LongName
    generation: Counter
    assignor: Name
    topics: AssignedTopics
    owners: Annotated[dict[Name, Partitions], AnyNumber]
    released: Names = ()


MembershipEntry = MembersJoined | MembersLeft | MembersExpired | RebalanceBegun | PartitionsAssigned


class Committer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member that commits offsets, and the generation in which it has read."""

    member_id: Name
    generation: Counter
    instance_id: Name = ""


Since: TypeAlias = Annotated[
    dict[Name, Annotated[dict[PartitionNumber, Counter], PerPartition]], AnyNumber
]
"""By topic and partition, a generation."""


class Held(msgspec.Struct, omit_defaults=True):
    """A member according to the log, with the partitions that it holds.

    For each partition that it owns or is revoking: the generation since which it holds it. It has
    released those it is revoking once it has announced that it follows generation ``revoked_in``.
    """

    member: GroupMember
    joined_entry: CounterOrNone = -1
    owned: Since = {}
    revoking: Since = {}
    revoked_in: Counter = 0

    def since(self, where: TopicPartition) -> int | None:
        """The generation since which it holds a partition; None if it does not."""
        for held in (self.owned, self.revoking):
            found = held.get(where.topic, {}).get(where.partition)
            if found is not None:
                return found
        return None

    def has_released(self, followed: int) -> bool:
        """Whether a member that follows generation ``followed`` has released what was revoked."""
        return bool(self.revoking) and followed >= self.revoked_in

    def owned_partitions(self) -> set[TopicPartition]:
        """The partitions that it may read."""
        return {*partitions_in(self.owned)}

    def revoking_partitions(self) -> set[TopicPartition]:
        """The partitions that it must release."""
        return {*partitions_in(self.revoking)}


def partitions_in(held: Mapping[str, Iterable[int]]) -> Iterator[TopicPartition]:
    """The partitions in a mapping by topic."""
    for topic, numbers in held.items():
        for number in numbers:
            yield TopicPartition(topic, number)


class Membership(msgspec.Struct, omit_defaults=True):
    """The members of a group, in the order in which they joined, and what they hold.

    ``changed`` is whether a new assignment is needed since the last one. ``topics`` are those that
    were assigned, ``first_assigned`` these and earlier ones, as they were at first; the group
    forgets those without offsets. ``gone`` are former members, with the entry that removed them,
    for as long as a request of theirs to join could be fulfilled.
    """

    generation: Counter = 0
    changed: bool = False
    assignor: Name = ""
    members: Annotated[dict[Name, Held], AnyNumber] = {}
    topics: AssignedTopics = {}
    first_assigned: AssignedTopics = {}
    gone: Annotated[dict[Name, Counter], AnyNumber] = {}

    # -- reading ---------------------------------------------------------------------------------

    def status(self, *, has_offsets: bool) -> GroupStatus:
        """The group's state, in Kafka's terms."""
        if not self.members:
            return "Empty" if has_offsets else "Dead"
        if self.changed:
            return "PreparingRebalance"
        if any(held.revoking for held in self.members.values()):
            return "CompletingRebalance"
        return "Stable"

    def instance(self, instance_id: str) -> Held | None:
        """The static member with an instance id; None if there is none."""
        if not instance_id:
            return None
        members = self.members.values()
        return next((held for held in members if held.member.instance_id == instance_id), None)

    def common_assignors(self) -> set[str]:
        """The assignors that all members have."""
        offered = [{*held.member.assignors} for held in self.members.values()]
        return set.intersection(*offered) if offered else set()

    def chosen_assignor(self) -> str:
        """The assignor that most members prefer among those that all have; "" without members."""
        common = self.common_assignors()
        votes: dict[str, int] = {}
        for held in self.members.values():
            best = next((name for name in held.member.assignors if name in common), None)
            if best is not None:
                votes[best] = votes.get(best, 0) + 1
        # On a tie, the one named first by the member that joined first.
        return max(votes, key=votes.__getitem__, default="")

    @property
    def cooperative(self) -> bool:
        """Whether members keep, in a rebalance, the partitions that stay theirs."""
        chosen = self.chosen_assignor()
        return all(chosen in held.member.cooperative for held in self.members.values())

    def holder(self, where: TopicPartition) -> str | None:
        """The member that holds a partition; None if there is none."""
        for member_id, held in self.members.items():
            if held.since(where) is not None:
                return member_id
        return None

    # -- folding ---------------------------------------------------------------------------------

    def fold(self, entry: MembershipEntry, number: int) -> None:
        """Fold an entry in."""
        match entry:
            case MembersJoined():
                for member in entry.members:
                    self._join(member, number)
            case MembersLeft():
                self._remove(entry.member_ids, number)
            case MembersExpired():
                self._remove([silence.member_id for silence in entry.expired], number)
            case RebalanceBegun():
                self._begin()
            case PartitionsAssigned():
                self._assign(entry)

    def _join(self, member: GroupMember, number: int) -> None:
        before = self.members.get(member.member_id)
        is_left_over = False
        if before is None and (older := self.instance(member.instance_id)) is not None:
            # The newer instance takes over what the older one owns: nobody else need notice. The
            # older one is fenced, so what it has not released yet has no owner, and must be
            # assigned.
            before = Held(older.member, owned=older.owned)
            is_left_over = bool(older.revoking)
            del self.members[older.member.member_id]
            self._note_gone([older.member.member_id], number)
        held = before or Held(member)
        known, held.member, held.joined_entry = held.member, member, number
        self.members[member.member_id] = held
        if before is None or is_left_over or _asks_differently(known, member):
            self._begin()

    def _remove(self, member_ids: Iterable[str], number: int) -> None:
        gone = [member_id for member_id in member_ids if self.members.pop(member_id, None)]
        if gone:
            self._note_gone(gone, number)
            self._begin()
        if not self.members:
            self.changed, self.assignor, self.topics = False, "", {}

    def _note_gone(self, member_ids: Iterable[str], number: int) -> None:
        kept = {m: at for m, at in self.gone.items() if at >= number - MOST_BEHIND}
        self.gone = kept | dict.fromkeys(member_ids, number)

    def _begin(self) -> None:
        """Partitions must be reassigned; if members are eager, all give up theirs now."""
        self.changed = True
        owners = [held for held in self.members.values() if held.owned]
        if self.cooperative or not owners:
            return
        self.generation += 1
        for held in owners:
            for topic, numbers in held.owned.items():
                held.revoking.setdefault(topic, {}).update(numbers)
            held.owned, held.revoked_in = {}, self.generation

    def _assign(self, entry: PartitionsAssigned) -> None:
        self.generation, self.changed = entry.generation, False
        self.assignor, self.topics = entry.assignor, entry.topics
        known = self.first_assigned
        come = {
            topic: at
            for topic, at in entry.topics.items()
            if topic not in known or known[topic].topic_id != at.topic_id
        }
        self.first_assigned = {**known, **come}
        for member_id, held in self.members.items():
            if member_id in entry.released:
                held.revoking = {}
            before = [*_held_with_since(held.revoking), *_held_with_since(held.owned)]
            since = dict(before)
            owned: dict[str, dict[int, int]] = {}
            for where in partitions_in(entry.owners.get(member_id, {})):
                owned.setdefault(where.topic, {})[where.partition] = since.pop(
                    where, entry.generation
                )
            taken = any(where in since for where in held.owned_partitions())
            held.owned, held.revoking = owned, {}
            for where, generation in since.items():
                held.revoking.setdefault(where.topic, {})[where.partition] = generation
            if taken:
                held.revoked_in = entry.generation

    # -- what may be put -------------------------------------------------------------------------

    def check_join(self, group_id: str, member: GroupMember) -> None:
        """Raise InconsistentGroupProtocol if a member has no assignor in common with the others."""
        others = {
            member_id: held
            for member_id, held in self.members.items()
            if member_id != member.member_id
            and not (member.instance_id and held.member.instance_id == member.instance_id)
        }
        common = Membership(members=others).common_assignors()
        if others and not common & {*member.assignors}:
            raise InconsistentGroupProtocol(
                f"group {group_id!r}: its members assign partitions by "
                f"{' or '.join(sorted(common))}, this consumer only by "
                f"{' or '.join(member.assignors)}; give it one of theirs as an assignor"
            )

    def may_join(self, member: GroupMember, asked: int, next_entry: int) -> bool:
        """Whether others may put that a member joins, as entry ``next_entry`` (invariant M4).

        Not if it may have joined since it asked, when the log had ``asked`` entries: it may have
        left again, or have subscribed to something else. Nor if its instance id was taken since.
        """
        if next_entry < asked or self.is_overtaken(member.member_id, asked, next_entry):
            return False
        # A static member that has joined since may be the same one, restarted.
        holder = self.instance(member.instance_id)
        return holder is None or holder.joined_entry < asked

    def is_overtaken(self, member_id: str, asked: int, next_entry: int) -> bool:
        """Whether a request can no longer be fulfilled, whatever it says; see :meth:`may_join`."""
        if next_entry > asked + MOST_BEHIND or member_id in self.gone:
            return True
        held = self.members.get(member_id)
        return held is not None and held.joined_entry >= asked

    def joinable(
        self, group_id: str, first: GroupMember, others: Iterable[GroupMember]
    ) -> tuple[GroupMember, ...]:
        """``first``, which may join, and the others that can join in the same entry."""
        joined = [first]
        trial = Membership(members={**self.members, first.member_id: Held(first)})
        for member in others:
            instance_ids = {known.instance_id for known in joined} - {""}
            ids = {known.member_id for known in joined}
            if member.member_id in ids or member.instance_id in instance_ids:
                continue
            try:
                trial.check_join(group_id, member)
            except InconsistentGroupProtocol:
                continue  # it gets the error when it looks itself
            joined.append(member)
            trial.members[member.member_id] = Held(member)
        return tuple(joined)

    def join_violations(self, entry: MembersJoined) -> Iterator[tuple[str, str]]:
        """What is wrong with joining members, each with the violated invariant: M4 or M5."""
        ids, instance_ids = set[str](), set[str]()
        for member in entry.members:
            if member.member_id in ids:
                yield "M4", f"{member.member_id} joins twice"
            if member.member_id in self.gone:
                left = self.gone[member.member_id]
                yield "M4", f"{member.member_id} joins, and is gone since entry {left}"
            if member.instance_id and member.instance_id in instance_ids:
                yield "M4", f"two members join as instance {member.instance_id}"
            ids.add(member.member_id)
            instance_ids.add(member.instance_id)
        stay = [
            held.member
            for member_id, held in self.members.items()
            if member_id not in ids and held.member.instance_id not in instance_ids - {""}
        ]
        offered = [{*member.assignors} for member in [*stay, *entry.members]]
        if offered and not set.intersection(*offered):
            yield "M5", f"no assignor is common to {', '.join(sorted(ids))} and the other members"

    def assignment_violations(self, entry: PartitionsAssigned) -> Iterator[tuple[str, str]]:
        """What is wrong with an assignment, each with the violated invariant: M1 or M2."""
        if entry.generation != self.generation + 1:
            yield "M1", f"generation {entry.generation} follows {self.generation}"
        owners: dict[TopicPartition, str] = {}
        for member_id, partitions in entry.owners.items():
            if member_id not in self.members:
                yield "M1", f"{member_id} is given partitions and is no member"
            for where in partitions_in(partitions):
                if where in owners:
                    yield "M1", f"{where} is given to {owners[where]} and to {member_id}"
                owners[where] = member_id
        for member_id, held in self.members.items():
            kept = held.owned_partitions()
            if member_id not in entry.released:
                kept |= held.revoking_partitions()
            for where in sorted(kept & owners.keys()):
                if owners[where] != member_id:
                    yield "M2", f"{where} is given to {owners[where]} while {member_id} holds it"

    def check_commit(
        self,
        group_id: str,
        committer: Committer | None,
        partitions: Collection[TopicPartition],
        *,
        force: bool = False,
    ) -> None:
        """Raise unless the offsets of these partitions may be moved (invariant M3).

        Raises GroupNotEmpty: there are members, ``committer`` is not one, and it is not forced.
        UnknownMemberId, FencedInstanceId: the committer is no longer a member. IllegalGeneration: a
        partition was given to another member, or again, since. RebalanceInProgress: the partitions
        are about to be assigned. CommitFailed: a partition is not the committer's.
        """
        if committer is None:
            if self.members and not force:
                raise GroupNotEmpty(
                    f"group {group_id!r} has {len(self.members)} live member(s), and these offsets "
                    "are committed by somebody who is not one. A member's transaction sends them "
                    "with consumer.group_metadata(), not with the group's name. Others close its "
                    "consumers first, or use another group; `txnlog groups seek --force` moves it "
                    "all the same, `txnlog groups remove-members` removes members that are dead"
                )
            return
        held = self.members.get(committer.member_id)
        if held is None:
            self._refuse_stranger(group_id, committer)
        for where in partitions:
            since = held.since(where)
            if since is None:
                self._refuse_partition(group_id, committer, where)
            elif since > committer.generation:
                raise IllegalGeneration(
                    f"group {group_id!r}: {where} was given to this member again in generation "
                    f"{since}, and this was read in generation {committer.generation}; abort, "
                    "poll, and read on from the group's offset"
                )

    def _refuse_stranger(self, group_id: str, committer: Committer) -> NoReturn:
        if self.instance(committer.instance_id) is not None:
            raise FencedInstanceId(
                f"group {group_id!r}: a newer consumer has joined with group_instance_id "
                f"{committer.instance_id!r}; close this one"
            )
        raise UnknownMemberId(
            f"group {group_id!r} does not know member {committer.member_id} any more: it has left, "
            "was silent for longer than session_timeout_ms, did not poll for max_poll_interval_ms, "
            "or was removed; abort and poll, which joins again"
        )

    def _refuse_partition(
        self, group_id: str, committer: Committer, where: TopicPartition
    ) -> NoReturn:
        what = f"group {group_id!r}: {where} cannot be committed by {committer.member_id}"
        if committer.generation < self.generation:
            raise IllegalGeneration(
                f"{what} in generation {committer.generation}: the group is in generation "
                f"{self.generation}, in which {self.holder(where) or 'nobody'} holds it; abort "
                "and poll"
            )
        if self.changed:
            raise RebalanceInProgress(f"{what}: a rebalance is under way; abort, poll, redo")
        raise CommitFailed(f"{what}: it is assigned to {self.holder(where) or 'nobody'}")


def _held_with_since(held: dict[str, dict[int, int]]) -> Iterator[tuple[TopicPartition, int]]:
    for topic, numbers in held.items():
        for number, since in numbers.items():
            yield TopicPartition(topic, number), since


def _asks_differently(before: GroupMember, after: GroupMember) -> bool:
    return (before.topics, before.assignors, before.cooperative) != (
        after.topics,
        after.assignors,
        after.cooperative,
    )
