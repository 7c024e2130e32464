"""What a consumer tells a transaction about itself: its group, and where it began to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txnlog.errors import InvalidOption
from txnlog.names import TopicPartition
from txnlog.state.group import GroupState


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer group and the committed offsets that a consumer started from.

    An offset commit within a transaction is refused if the group is not there any more. None
    stands for a partition that had no committed offset. ``topic_ids`` tell the topics that were
    read from others of their names.
    """

    group_id: str
    starting_offsets: dict[TopicPartition, int | None]
    topic_ids: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        state: GroupState,
        group_id: str,
        partitions: Iterable[TopicPartition],
        topic_ids: dict[str, str],
    ) -> GroupMetadata:
        """Where the group stands in ``state``."""
        found = {w: state.offset_of(*w, topic_ids.get(w.topic, "")) for w in partitions}
        starts = {where: at.offset if at else None for where, at in found.items()}
        return cls(group_id, starts, topic_ids)

    def moved(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A transaction has committed these offsets: the next one starts from them."""
        self.starting_offsets.update(offsets)

    def start_of(self, where: TopicPartition) -> int | None:
        """The committed offset that was started from in one partition."""
        if where not in self.starting_offsets:
            raise InvalidOption(
                f"offsets of {where} cannot be committed: the consumer of group "
                f"{self.group_id!r} was not reading it"
            )
        return self.starting_offsets[where]
