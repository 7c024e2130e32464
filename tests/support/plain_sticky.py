"""The sticky assignment in its plain form, in which each step looks at everything."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txnlog.names import TopicPartition


def assign_plainly(
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Collection[str]],
    owned: Mapping[str, Collection[TopicPartition]],
) -> dict[str, list[TopicPartition]]:
    """What ``assign_sticky`` must return too."""
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


class _Sharing:
    """The members' partitions while they are being shared out."""

    def __init__(
        self, counts: Mapping[str, int], subscriptions: Mapping[str, Collection[str]]
    ) -> None:
        self._counts = counts
        self._rank = {member: rank for rank, member in enumerate(subscriptions)}
        self._readers = {
            topic: [member for member, topics in subscriptions.items() if topic in topics]
            for topic in sorted(counts)
        }
        self._held: dict[str, dict[str, set[int]]] = {member: {} for member in subscriptions}
        self._load = dict.fromkeys(subscriptions, 0)
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
        self.owners[where] = member
        self._held[member].setdefault(where.topic, set()).add(where.partition)
        self._load[member] += 1

    def _least_loaded(self, topic: str) -> str:
        return min(
            self._readers[topic], key=lambda member: (self._load[member], self._rank[member])
        )

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
        for member in sorted(self._load, key=lambda m: (-self._load[m], self._rank[m])):
            found = None
            for topic in sorted(topic for topic, held in self._held[member].items() if held):
                to = self._least_loaded(topic)
                if self._load[member] - self._load[to] >= 2 and (
                    found is None or self._load[to] < self._load[found[1]]
                ):
                    found = topic, to
            if found is not None:
                topic, to = found
                wheres = [TopicPartition(topic, n) for n in sorted(self._held[member][topic])]
                # Prefer moving a partition that was moved here already.
                strange = [where for where in wheres if self.before.get(where) != member]
                self.give((strange or wheres)[-1], to)
                return True
        return False

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
