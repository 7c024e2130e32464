"""A consumer's offsets, its group, and where it began to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from txnlog.config import check_whole_number
from txnlog.errors import IllegalGeneration, InvalidOption, OffsetMetadataTooLarge
from txnlog.names import TopicPartition
from txnlog.state.group import GroupState, LoggedPosition
from txnlog.state.membership import Committer

MAX_METADATA_BYTES = 4096
"""The largest metadata of an offset: Kafka's offset.metadata.max.bytes."""


class OffsetAndMetadata(NamedTuple):
    """The next offset to read, and metadata of the application's own that is kept with it."""

    offset: int
    metadata: str = ""


def check_offset(
    where: TopicPartition, given: int | OffsetAndMetadata, metadata: str = ""
) -> OffsetAndMetadata:
    """The offset to commit for a partition; a bare offset takes ``metadata``.

    Raises InvalidOption: it is not an offset or not a partition, or the metadata is not a string.
    OffsetMetadataTooLarge: the metadata takes more than 4096 bytes.
    """
    if not (hasattr(where, "topic") and hasattr(where, "partition")):
        raise InvalidOption(
            "offsets to commit are by txnlog.TopicPartition(topic, partition), not by "
            f"{where!r:.200}"
        )
    partition = where.partition
    check_whole_number(partition, "a partition to commit an offset for", InvalidOption, least=0)
    wanted = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given, metadata)
    what = f"the offset to commit for {where}"
    check_whole_number(wanted.offset, what, InvalidOption, least=0, most=(1 << 63) - 1)
    if not isinstance(wanted.metadata, str):
        raise InvalidOption(f"the metadata of {where} must be a string, not {wanted.metadata!r}")
    size_bytes = len(wanted.metadata.encode(errors="surrogatepass"))
    if size_bytes > MAX_METADATA_BYTES:
        raise OffsetMetadataTooLarge(
            f"the metadata of {where} takes {size_bytes} bytes; at most {MAX_METADATA_BYTES} are "
            "kept with an offset: put it into a topic"
        )
    return wanted


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer group and the committed offsets that a consumer started from.

    An offset commit within a transaction is refused if the group's offsets have moved since, even
    if they have come back to where they were. None means that a partition has no committed offset.
    ``topic_ids`` distinguish the topics that were read from others of the same names.
    ``starting_entries`` are the entries of the group's log that had moved the offsets last; where
    one is not known, offsets are compared. ``committer`` is the member that has read, and in which
    generation; None if the consumer is not a member of the group.
    """

    group_id: str
    starting_offsets: dict[TopicPartition, int | None]
    topic_ids: dict[str, str] = field(default_factory=dict)
    starting_entries: dict[TopicPartition, int] = field(default_factory=dict)
    committer: Committer | None = None

    def __repr__(self) -> str:
        where = f"{len(self.starting_offsets)} partitions"
        return f"GroupMetadata({self.group_id!r}, {where}, committer={self.committer!r})"

    @classmethod
    def of(
        cls,
        state: GroupState,
        group_id: str,
        partitions: Iterable[TopicPartition],
        topic_ids: dict[str, str],
    ) -> GroupMetadata:
        """The group's offsets in ``state``."""
        found = {w: state.logged_position(*w, topic_ids.get(w.topic, "")) for w in partitions}
        starts = {where: at.offset for where, at in found.items()}
        entries = {where: at.entry for where, at in found.items() if at.entry is not None}
        return cls(group_id, starts, topic_ids, entries)

    def moved(self, offsets: Mapping[TopicPartition, int], entry: int | None = None) -> None:
        """Note that entry ``entry`` has committed offsets: the next transaction starts there."""
        for where in offsets:
            self.starting_entries.pop(where, None)
        self.starting_offsets.update(offsets)
        if entry is not None:
            self.starting_entries.update(dict.fromkeys(offsets, entry))

    def start_of(self, where: TopicPartition) -> LoggedPosition:
        """The committed offset that a partition started from, and the entry that set it."""
        if where not in self.starting_offsets:
            if self.committer is not None:
                raise IllegalGeneration(
                    f"offsets of {where} cannot be committed: it does not, or no longer, belong "
                    f"to this member of group {self.group_id!r}; abort and poll"
                )
            raise InvalidOption(
                f"offsets of {where} cannot be committed: the consumer of group "
                f"{self.group_id!r} was not reading it"
            )
        return LoggedPosition(self.starting_offsets[where], self.starting_entries.get(where))
