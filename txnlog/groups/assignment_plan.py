"""The next assignment of a group, from its log and its members' heartbeats: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnlog.config import is_whole_number
from txnlog.display import shorten
from txnlog.errors import InvalidOption
from txnlog.groups.assignors import Assignor, Shares
from txnlog.names import TopicPartition
from txnlog.state.membership import AssignedTopic, Held, Membership, Partitions


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """The next generation's assignment; see :class:`PartitionsAssigned`."""

    assignor: str
    topics: dict[str, AssignedTopic]
    owners: dict[str, Partitions]
    released: tuple[str, ...]


def members_that_released(group: Membership, followed: Mapping[str, int]) -> tuple[str, ...]:
    """The members that have released everything taken from them.

    ``followed``: by member, the generation that it has announced.
    """
    return tuple(
        member_id
        for member_id, held in group.members.items()
        if held.has_released(followed.get(member_id, -1))
    )


def is_all_released(group: Membership, followed: Mapping[str, int]) -> bool:
    """Whether all members have released everything."""
    released = {*members_that_released(group, followed)}
    return all(member_id in released for member_id, held in group.members.items() if held.revoking)


def may_assign(group: Membership, followed: Mapping[str, int]) -> bool:
    """Whether there is something to assign, and no member to wait for."""
    released = members_that_released(group, followed)
    if not group.changed and not released:
        return False
    return bool(group.members) and (group.cooperative or is_all_released(group, followed))


def plan_assignment(
    group: Membership,
    followed: Mapping[str, int],
    topics: Mapping[str, AssignedTopic],
    assignors: Iterable[Assignor],
) -> AssignmentPlan | None:
    """Reassign the partitions; None if there is no reason to, or a member to wait for.

    With cooperative members, a partition that moves takes two assignments: the first takes it from
    its owner, the second, when the owner has released it, gives it away. With eager members, one
    that waits for all of them.

    ``followed``: by member, the generation that it has announced. ``topics``: the existing ones, of
    all that members have subscribed to. ``assignors``: this process's.
    """
    if not may_assign(group, followed):
        return None
    chosen = group.chosen_assignor()
    assignor = next((found for found in assignors if found.name == chosen), None)
    if assignor is None:
        return None  # members that have it will assign
    released = members_that_released(group, followed)
    ordered = sorted(group.members.items(), key=_in_order)
    subscriptions = {
        member_id: [topic for topic in held.member.topics if topic in topics]
        for member_id, held in ordered
    }
    read = {topic for mine in subscriptions.values() for topic in mine}
    known = {topic: topics[topic] for topic in sorted(read)}
    # Eager members have just given up their partitions: a sticky assignor starts from these.
    owned = {
        member_id: held.owned_partitions()
        | (set() if group.cooperative else held.revoking_partitions())
        for member_id, held in ordered
    }
    counts = {topic: at.partitions for topic, at in known.items()}
    shares = _shares_of(assignor, assignor.assign(counts, subscriptions, owned))
    _check_shares(assignor, counts, subscriptions, shares)
    kept = {
        where: member_id
        for member_id, held in ordered
        for where in held.owned_partitions()
        | (set() if member_id in released else held.revoking_partitions())
    }
    owners: dict[str, Partitions] = {}
    for member_id, share in shares.items():
        mine: dict[str, list[int]] = {}
        for where in sorted(share):
            if kept.get(where, member_id) == member_id:
                mine.setdefault(where.topic, []).append(where.partition)
        if mine:
            owners[member_id] = {topic: tuple(numbers) for topic, numbers in mine.items()}
    return AssignmentPlan(chosen, known, owners, released)


def _in_order(named: tuple[str, Held]) -> tuple[bool, str]:
    """Static members first, by their instance ids, as in Kafka: so their shares stay."""
    member_id, held = named
    instance_id = held.member.instance_id
    return not instance_id, instance_id or member_id


def _shares_of(assignor: Assignor, found: Shares) -> dict[str, list[TopicPartition]]:
    """What an assignor has returned. Raises InvalidOption if a user's returns something else."""
    try:
        return {
            member_id: [TopicPartition(*where) for where in share]
            for member_id, share in found.items()
        }
    except (AttributeError, TypeError) as error:
        raise InvalidOption(
            f"assignor {assignor.name!r} returned {shorten(found)}; it must be a dict of lists of "
            "TopicPartition by member; nothing was assigned"
        ) from error


def _check_shares(
    assignor: Assignor,
    counts: Mapping[str, int],
    subscriptions: Mapping[str, list[str]],
    shares: Mapping[str, list[TopicPartition]],
) -> None:
    """Raise InvalidOption if a user's assignor breaks the rules."""
    given: set[TopicPartition] = set()
    for member_id, share in shares.items():
        for where in share:
            known = (
                isinstance(where.topic, str)
                and is_whole_number(where.partition)
                and 0 <= where.partition < counts.get(where.topic, 0)
            )
            if not known or where in given or where.topic not in subscriptions.get(member_id, ()):
                raise InvalidOption(
                    f"assignor {assignor.name!r} gave {where} to {member_id}, but it gave it to "
                    "another member too, or there is no such partition, or no such member that "
                    "has subscribed to the topic; nothing was assigned"
                )
            given.add(where)
