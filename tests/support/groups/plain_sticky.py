"""The sticky assignment in its plain form, in which each step looks at everything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from unittest.mock import patch

from txnlog.groups import assignment
from txnlog.names import TopicPartition


def assign_plainly(
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Collection[str]],
    owned: Mapping[str, Collection[TopicPartition]],
) -> dict[str, list[TopicPartition]]:
    """What ``assign_sticky`` must return too."""
    with patch.object(assignment, "_Sharing", _PlainSharing):
        return assignment.assign_sticky(counts, subscriptions, owned)


class _PlainSharing(assignment._Sharing):
    """It asks no order that was kept who is least loaded, who is fullest, and what moved last."""

    def _least_loaded(self, topic: str) -> str:
        return min(
            self._readers[topic], key=lambda member: (self._load[member], self._rank[member])
        )

    def _move_one(self) -> bool:
        for member in sorted(self._load, key=lambda m: (-self._load[m], self._rank[m])):
            if (move := self._find_move(member)) is not None:
                self.give(*move)
                return True
        return False

    def _last_of(self, member: str, topic: str) -> TopicPartition:
        wheres = [TopicPartition(topic, n) for n in sorted(self._held[member][topic])]
        # Prefer moving a partition that was moved here already.
        strange = [where for where in wheres if self.before.get(where) != member]
        return (strange or wheres)[-1]
