"""Offsets of consumer groups that a transaction commits: what waits, for whom, and what moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txnlog.errors import CommitFailed
from txnlog.log.group_metadata import GroupMetadata, OffsetAndMetadata
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition, check_group_id
from txnlog.state.group import OffsetCommit
from txnlog.state.membership import Committer


class SentOffsets:
    """The offsets of one transaction at a time.

    ``committers`` has, by group, the member whose offsets are committed, in the oldest generation
    it told.
    """

    def __init__(self) -> None:
        self.committers: dict[str, Committer] = {}
        self._waiting: dict[str, dict[TopicPartition, OffsetCommit]] = {}
        self._moves: list[tuple[GroupMetadata, dict[TopicPartition, int]]] = []

    def add(
        self, metadata: GroupMetadata, chosen: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Add offsets of a group, or none of them. Raises CommitFailed."""
        waiting = dict(self._waiting.get(metadata.group_id, {}))
        for where, at in chosen.items():
            start, entry = metadata.start_of(where)
            if before := waiting.get(where):
                start, entry = before.start, before.start_entry
            waiting[where] = OffsetCommit(
                topic=where.topic,
                partition=where.partition,
                offset=at.offset,
                metadata=at.metadata,
                compare=True,
                start=start,
                topic_id=metadata.topic_ids.get(where.topic, ""),
                start_entry=entry,
            )
        # All at once, or an interrupt leaves some of them to be committed.
        self._waiting[metadata.group_id] = waiting
        self._note_committer(metadata)
        self._moves.append((metadata, {where: at.offset for where, at in chosen.items()}))

    def _note_committer(self, metadata: GroupMetadata) -> None:
        known, found = self.committers.get(metadata.group_id), metadata.committer
        if found is None or (known is not None and known.member_id != found.member_id):
            if known is not None:
                raise CommitFailed(
                    f"offsets of group {metadata.group_id!r} were read by several consumers: "
                    "commit those of each in a transaction of its own"
                )
        elif known is None or found.generation < known.generation:
            self.committers[metadata.group_id] = found

    def take(self) -> dict[str, list[OffsetCommit]]:
        """What waits, by group; nothing does any more."""
        taken = {group: list(waiting.values()) for group, waiting in self._waiting.items()}
        self._waiting = {}
        return {group: offsets for group, offsets in taken.items() if offsets}

    def note_commit(self, entries: Mapping[str, int]) -> None:
        """The transaction is committed: consumers learn of it. ``entries``: by group."""
        for metadata, offsets in self._moves:
            metadata.moved(offsets, entries.get(metadata.group_id))
        self.end()

    def end(self) -> None:
        """The transaction has ended."""
        self._moves = []
        self.committers = {}

    def drop(self) -> None:
        """Nothing waits any more."""
        self._waiting = {}


def group_now(
    logs: Logs, partitions: Collection[TopicPartition], group: str | GroupMetadata
) -> GroupMetadata:
    """The group and where it stands; now, if only its id is known.

    Raises UnknownTopicOrPartition if a topic or partition does not exist; a consumer's metadata has
    only what it has read.
    """
    if isinstance(group, GroupMetadata):
        return group
    topics = sorted({where.topic for where in partitions})
    topic_ids = {topic: logs.topic_spec(topic).topic_id for topic in topics}
    logs.check_partitions(partitions, topic_ids)
    log = logs.fresh_group(check_group_id(group))
    with log.lock:
        return GroupMetadata.of(log.state, group, partitions, topic_ids)
