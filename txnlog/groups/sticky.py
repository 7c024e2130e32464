"""The sticky assignment: as even as it can be, with as little moved as that takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from txnlog.names import TopicPartition


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
