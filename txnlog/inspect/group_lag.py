"""A consumer group as others see it: its offsets, how far they lag, its members.

Plain frozen data; ``describe`` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.display import Shown
from txnlog.names import TopicPartition
from txnlog.state.transaction import TransactionRef


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's place in one partition. ``end_offset`` is the last stable offset.

    It, ``log_start_offset``, ``lag`` and ``trimmed`` are None if the topic was deleted, also if it
    was created again since: the offset does not count there. ``pending`` is the undecided
    transaction that is about to move the offset.
    """

    topic: str
    partition: int
    offset: int | None
    metadata: str
    committed_at_ms: int | None
    end_offset: int | None
    pending: TransactionRef | None
    log_start_offset: int | None = None

    @property
    def lag(self) -> int | None:
        """Offsets that are there and that the group has yet to read, up to the last stable one."""
        if self.end_offset is None:
            return None
        return max(self.end_offset - max(self.offset or 0, self.log_start_offset or 0), 0)

    @property
    def trimmed(self) -> int | None:
        """Offsets that were trimmed, or too old, before the group had read them; not in ``lag``."""
        if self.log_start_offset is None:
            return None
        return 0 if self.offset is None else max(self.log_start_offset - self.offset, 0)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group, and the partitions that it has.

    ``revoking`` are those that it has to let go of; nobody else has them until it does.
    ``instance_id`` is that of a static member, else empty.
    """

    member_id: str
    instance_id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    revoking: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription(Shown):
    """A consumer group: its offsets, sorted by topic and partition, and its members.

    ``state`` is Kafka's: ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``, ``Stable`` or
    ``Dead``. ``assignor`` is empty without members.
    """

    group_id: str
    offsets: tuple[GroupOffset, ...]
    state: str = "Empty"
    generation: int = 0
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()

    @property
    def lag(self) -> int:
        """Records that the group has yet to read, over the partitions it has offsets for."""
        return sum(offset.lag or 0 for offset in self.offsets)

    @property
    def trimmed(self) -> int:
        """Offsets that were trimmed away before the group had read them; not in ``lag``."""
        return sum(offset.trimmed or 0 for offset in self.offsets)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where a group's offset in one partition was (None: there was none), and where it is now."""

    topic: str
    partition: int
    before: int | None
    after: int
