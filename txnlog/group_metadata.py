"""What a consumer tells a transaction about itself: its group, and where it began to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnlog.errors import InvalidOption
from txnlog.names import TopicPartition
from txnlog.state.group import GroupState


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer group and the committed offsets that a consumer started from.

    An offset commit within a transaction is refused if the group is not there any more. None
    stands for a partition that had no committed offset.
    """

    group_id: str
    starting_offsets: dict[TopicPartition, int | None]

    @classmethod
    def of(
        cls, state: GroupState, group_id: str, partitions: Iterable[TopicPartition]
    ) -> GroupMetadata:
        """Where the group stands in ``state``."""
        found = {where: state.offset_of(*where) for where in partitions}
        return cls(group_id, {where: at.offset if at else None for where, at in found.items()})

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
