"""How partitions are shared out among the members of a group: pure functions, like Kafka's.

Members are given in the order that breaks ties. An assignor must give each partition of a
subscribed topic to one member that has subscribed to it, or to nobody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from txnlog.errors import InvalidOption
from txnlog.groups.sticky import assign_sticky
from txnlog.names import TopicPartition

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
