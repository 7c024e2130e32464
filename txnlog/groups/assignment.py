"""How partitions are shared out among the members of a group: pure functions.

The assignors are like Kafka's. Members are given in the order that breaks ties. An assignor must
give each partition of a subscribed topic to one member that has subscribed to it, or to nobody. The
next assignment follows from the group's log and its members' heartbeats.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from txnlog.config import is_whole_number
from txnlog.display import shorten
from txnlog.errors import InvalidOption
from txnlog.names import TopicPartition
from txnlog.state.membership import AssignedTopic, Held, Membership, Partitions

Subscriptions: TypeAlias = Mapping[str, Collection[str]]
"""By member, the topics that it reads."""
Owned: TypeAlias = Mapping[str, Collection[TopicPartition]]
"""By member, the partitions that it has now."""
Shares: TypeAlias = Mapping[str, Collection[TopicPartition]]
"""By member, its new partitions."""
Assign: TypeAlias = Callable[[Mapping[str, int], Subscriptions, Owned], Shares]
"""Takes the partition counts of topics, and the subscriptions and partitions of members."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """A way to share out partitions, with the name on which members must agree.

    Attributes:
        name: the same in all members whose assignor is the same.
        assign: called as ``assign(partition_counts, subscriptions, owned)``; see :data:`Assign`.
        cooperative: members keep the partitions that stay theirs during a rebalance. Worth it only
            for an assignor that leaves most partitions where they are.
    """

    name: str
    assign: Assign
    cooperative: bool = False


def assign_range(
    counts: Mapping[str, int],
    subscriptions: Subscriptions,
    owned: Owned,  # noqa: ARG001 - every assignor takes it
) -> dict[str, list[TopicPartition]]:
    """Gives each member a range of each topic's partitions, the first members one more.

    So partitions of the same number in topics of one size go to the same member.
    """
    shares: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic, count in sorted(counts.items()):
        readers = [member for member, topics in subscriptions.items() if topic in topics]
        for rank, member in enumerate(readers):
            each, more = divmod(count, len(readers))
            first = rank * each + min(rank, more)
            stop = first + each + (rank < more)
            shares[member] += [TopicPartition(topic, number) for number in range(first, stop)]
    return shares


def assign_round_robin(
    counts: Mapping[str, int],
    subscriptions: Subscriptions,
    owned: Owned,  # noqa: ARG001 - every assignor takes it
) -> dict[str, list[TopicPartition]]:
    """Gives all partitions of all topics in turn to the members that read the topic."""
    members = [*subscriptions]
    shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
    readers = {
        topic: [n for n, member in enumerate(members) if topic in subscriptions[member]]
        for topic in counts
    }
    turn = -1
    for topic, count in sorted(counts.items()):
        ranks = readers[topic]
        if not ranks:
            continue
        for number in range(count):
            turn = ranks[bisect_right(ranks, turn) % len(ranks)]
            shares[members[turn]].append(TopicPartition(topic, number))
    return shares


def assign_sticky(
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Collection[str]],
    owned: Mapping[str, Collection[TopicPartition]],
) -> dict[str, list[TopicPartition]]:
    """Leave partitions where they are, unless a member could take one from a fuller one.

    The result is even: no partition is with a member that has two more than another reader of its
    topic. A partition moves only if its member would otherwise have more than the new one.

    ``counts``: of topics, their partitions. Of members, ``subscriptions``: the topics that they
    read; ``owned``: the partitions that they have now.
    """
    sharing = _Sharing(counts, subscriptions)
    for member in subscriptions:
        for where in sorted(owned.get(member, ())):
            if sharing.may_have(member, where) and where not in sharing.owners:
                sharing.give(where, member)
                sharing.before[where] = member
    sharing.give_the_rest()
    sharing.even_out()
    while sharing.give_back():
        sharing.even_out()
    return sharing.shares()


class _InOrder:
    """Some members, the least loaded first, or with a ``sign`` of -1 the fullest; then by rank.

    A heap that is put right when it is asked. A member comes into it again when it moves to the
    front, which must be told; one that has moved back keeps its place until it is the first.
    """

    def __init__(
        self, members: Iterable[str], load: Mapping[str, int], rank: Mapping[str, int], sign: int
    ) -> None:
        self._load = load
        self._rank = rank
        self._sign = sign
        self._known = {member: sign * load[member] for member in members}
        self._heap = [(known, rank[member], member) for member, known in self._known.items()]
        heapify(self._heap)

    def moved(self, member: str) -> None:
        """The load of one of the members has changed."""
        now = self._sign * self._load[member]
        if now < self._known[member]:
            self._known[member] = now
            heappush(self._heap, (now, self._rank[member], member))

    def first(self) -> str | None:
        """The first member; None if there are no more."""
        while self._heap:
            known, rank, member = self._heap[0]
            now = self._sign * self._load[member]
            if known != self._known.get(member):
                heappop(self._heap)  # it is further to the front, or was taken
            elif known == now:
                return member
            else:
                self._known[member] = now
                heapreplace(self._heap, (now, rank, member))
        return None

    def take(self, member: str) -> None:
        """Leave a member out until it is put back."""
        del self._known[member]

    def put_back(self, member: str) -> None:
        now = self._sign * self._load[member]
        self._known[member] = now
        heappush(self._heap, (now, self._rank[member], member))


class _Sharing:
    """The members' partitions while they are being shared out."""

    def __init__(
        self, counts: Mapping[str, int], subscriptions: Mapping[str, Collection[str]]
    ) -> None:
        self._counts = counts
        self._rank = {member: rank for rank, member in enumerate(subscriptions)}
        reads = {member: frozenset(topics) for member, topics in subscriptions.items()}
        self._readers = {
            topic: dict.fromkeys(member for member, topics in reads.items() if topic in topics)
            for topic in sorted(counts)
        }
        self._load = dict.fromkeys(subscriptions, 0)
        self._least: dict[str, _InOrder] = {}
        """By topic its readers, in one order for topics with the same ones."""
        self._orders_of: dict[str, list[_InOrder]] = {member: [] for member in subscriptions}
        alike: dict[frozenset[str], _InOrder] = {}
        for topic, readers in self._readers.items():
            order = alike.get(same := frozenset(readers))
            if order is None:
                order = alike[same] = _InOrder(readers, self._load, self._rank, 1)
                for member in readers:
                    self._orders_of[member].append(order)
            self._least[topic] = order
        self._fullest = _InOrder(subscriptions, self._load, self._rank, -1)
        self._last: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        """By member and topic, once asked for: partitions that were moved there, and others."""
        self._held: dict[str, dict[str, set[int]]] = {member: {} for member in subscriptions}
        self.owners: dict[TopicPartition, str] = {}
        self.before: dict[TopicPartition, str] = {}
        """The member that had a partition at first, and may keep it."""

    def may_have(self, member: str, where: TopicPartition) -> bool:
        known = 0 <= where.partition < self._counts.get(where.topic, 0)
        return known and member in self._readers[where.topic]

    def give(self, where: TopicPartition, member: str) -> None:
        before = self.owners.get(where)
        if before is not None:
            self._held[before][where.topic].discard(where.partition)
            self._load[before] -= 1
            for order in self._orders_of[before]:
                order.moved(before)
        self.owners[where] = member
        self._held[member].setdefault(where.topic, set()).add(where.partition)
        self._load[member] += 1
        self._fullest.moved(member)
        if (last := self._last.get((member, where.topic))) is not None:
            heappush(last[self.before.get(where) == member], -where.partition)

    def _least_loaded(self, topic: str) -> str:
        member = self._least[topic].first()
        assert member is not None
        return member

    def _last_of(self, member: str, topic: str) -> TopicPartition:
        """The last partition of a topic that was moved to a member, or else the last it has."""
        held = self._held[member][topic]
        if (member, topic) not in self._last:
            moved: list[int] = []
            others: list[int] = []
            for number in held:
                is_own = self.before.get(TopicPartition(topic, number)) == member
                (others if is_own else moved).append(-number)
            heapify(moved)
            heapify(others)
            self._last[member, topic] = moved, others
        for heap in self._last[member, topic]:
            while heap:
                if -heap[0] in held:
                    return TopicPartition(topic, -heap[0])
                heappop(heap)
        raise AssertionError(f"{member} has no partition of {topic}")

    def give_the_rest(self) -> None:
        """Give unowned partitions to the member with the fewest; topics with few readers first."""
        for topic in sorted(self._readers, key=lambda topic: (len(self._readers[topic]), topic)):
            if not self._readers[topic]:
                continue
            for number in range(self._counts[topic]):
                where = TopicPartition(topic, number)
                if where not in self.owners:
                    self.give(where, self._least_loaded(topic))

    def even_out(self) -> None:
        """Move partitions from the fullest members, until no move improves the balance."""
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        passed = []
        move = None
        while move is None and (member := self._fullest.first()) is not None:
            move = self._find_move(member)
            self._fullest.take(member)
            passed.append(member)
        for member in passed:
            self._fullest.put_back(member)
        if move is not None:
            self.give(*move)
        return move is not None

    def _find_move(self, member: str) -> tuple[TopicPartition, str] | None:
        """What a member should give to which other one, if that improves the balance."""
        found = None
        for topic in sorted(topic for topic, held in self._held[member].items() if held):
            to = self._least_loaded(topic)
            if self._load[member] - self._load[to] >= 2 and (
                found is None or self._load[to] < self._load[found[1]]
            ):
                found = topic, to
        if found is None:
            return None
        topic, to = found
        return self._last_of(member, topic), to

    def give_back(self) -> bool:
        """Give back partitions that moved needlessly; returns whether there were any."""
        found = False
        for where, member in self.before.items():
            owner = self.owners[where]
            if owner != member and self._load[member] < self._load[owner]:
                self.give(where, member)
                found = True
        return found

    def shares(self) -> dict[str, list[TopicPartition]]:
        shares: dict[str, list[TopicPartition]] = {member: [] for member in self._rank}
        for where in sorted(self.owners):
            shares[self.owners[where]].append(where)
        return shares


RANGE = Assignor("range", assign_range)
ROUND_ROBIN = Assignor("roundrobin", assign_round_robin)
STICKY = Assignor("sticky", assign_sticky)
COOPERATIVE_STICKY = Assignor("cooperative-sticky", assign_sticky, cooperative=True)

BUILT_IN: Mapping[str, Assignor] = {
    assignor.name: assignor for assignor in (RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)
}
DEFAULT = (COOPERATIVE_STICKY.name,)

Assignors: TypeAlias = str | Assignor | Assign | Sequence[str | Assignor | Assign]
"""What a consumer may be given: one, or several, the best first."""


def check_assignors(given: Assignors) -> tuple[Assignor, ...]:
    """The assignors that a consumer was given, best first.

    Each is a name, an :class:`Assignor`, or a function, which is eager and known by its own name.
    Raises InvalidOption: one is neither, is unknown, or comes twice.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found = tuple(map(_check, several))
    names = [assignor.name for assignor in found]
    if not found or len({*names}) < len(names):
        raise InvalidOption(
            f"partition_assignment_strategy names {names}: name one or more, each once"
        )
    return found


def _check(given: object) -> Assignor:
    if isinstance(given, Assignor):
        if not given.name or (given.name in BUILT_IN and given != BUILT_IN[given.name]):
            raise InvalidOption(f"an assignor of your own cannot have the name {given.name!r}")
        return given
    if isinstance(given, str) and given in BUILT_IN:
        return BUILT_IN[given]
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return Assignor(name, given)
    raise InvalidOption(
        f"partition_assignment_strategy {given!r} is neither one of {', '.join(BUILT_IN)} nor a "
        "function that assigns partitions"
    )


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
    """An assignor's result. Raises InvalidOption if a user's assignor returns something else."""
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
