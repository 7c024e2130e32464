"""A consumer's offsets in its group: those committed, and those from which it began to read.

Offsets that are committed in a transaction are compared with where their reader began, so two
readers of the same records cannot both commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from txnlog.log.group_metadata import GroupMetadata, OffsetAndMetadata, check_offset
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.state.group import CommittedOffset, GroupState, OffsetCommit, Standing
from txnlog.state.membership import Committer


class GroupStanding:
    """The starting offsets of one consumer, by partition, shared with its group metadata.

    ``topic_ids`` are those of the topics as the consumer has read them.
    """

    def __init__(self, logs: Logs, group_id: str, topic_ids: dict[str, str]) -> None:
        self._logs = logs
        self._group_id = group_id
        self._topic_ids = topic_ids
        self._starts: dict[TopicPartition, int | None] = {}
        self._start_entries: dict[TopicPartition, int] = {}
        self._looked_up: dict[TopicPartition, tuple[Standing, Standing]] = {}
        """The group's offset when it was asked for, and the start known then."""

    def read(self) -> GroupState:
        """A copy of the group's committed offsets as they are now."""
        log = self._logs.fresh_group(self._group_id)
        with log.lock:
            state = log.state
            return state.copy_standing()

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Forget where it began in all other partitions."""
        for where in self._starts.keys() - {*partitions}:
            self.forget(where)

    def forget(self, where: TopicPartition) -> None:
        """Forget where it began in a partition."""
        self._starts.pop(where, None)
        self._start_entries.pop(where, None)
        self._looked_up.pop(where, None)

    def start_from(self, where: TopicPartition, found: Standing) -> None:
        """Begin at the group's offsets; metadata handed out before follows."""
        self._starts[where] = found.offset
        self._start_entries.pop(where, None)
        if found.entry is not None:
            self._start_entries[where] = found.entry

    def begin_anew(self, where: TopicPartition, offset: int) -> None:
        """Begin at the offset that :meth:`committed` returned, if it is the one sought."""
        if where not in self._starts:
            self._note_start(where)
        if where not in self._looked_up:
            return
        found, known = self._looked_up.pop(where)
        # Not if a transaction of ours has moved the group since.
        if found.offset in (None, offset) and self._start(where) == known:
            self.start_from(where, found)

    def committed(self, where: TopicPartition) -> CommittedOffset | None:
        """See :meth:`txnlog.Consumer.committed`."""
        topic_id = self._topic_id(where.topic)
        log = self._logs.fresh_group(self._group_id)
        with log.lock:
            state = log.state
            found = state.offset_of(*where, topic_id)
            standing = state.standing(*where, topic_id)
        self._looked_up[where] = (standing, self._start(where))
        return found

    def commit(
        self,
        given: Mapping[TopicPartition, int | OffsetAndMetadata],
        metadata: str,
        committer: Committer | None,
    ) -> None:
        """Commit these offsets, and go on from them. See :meth:`txnlog.Consumer.commit`."""
        offsets = {where: check_offset(where, at, metadata) for where, at in given.items()}
        commits = [
            OffsetCommit(*where, at.offset, at.metadata, topic_id=self._topic_id(where.topic))
            for where, at in sorted(offsets.items())
        ]
        if not commits:
            return
        log = self._logs.fresh_group(self._group_id)
        number = log.commit(commits, committer=committer, refreshed=True)
        self._logs.tidy([log])
        if number is None:
            return
        for where, at in offsets.items():
            self.start_from(where, Standing(at.offset, number))

    def metadata(
        self, partitions: Iterable[TopicPartition], committer: Committer | None
    ) -> GroupMetadata:
        """Where it began in these partitions; if not known yet, the current offsets."""
        for where in partitions:
            if where not in self._starts:
                self._note_start(where)
        return GroupMetadata(
            self._group_id, self._starts, self._topic_ids, self._start_entries, committer
        )

    def _note_start(self, where: TopicPartition) -> None:
        self.committed(where)
        self.start_from(where, self._looked_up[where][0])

    def _start(self, where: TopicPartition) -> Standing:
        return Standing(self._starts.get(where), self._start_entries.get(where))

    def _topic_id(self, topic: str) -> str:
        """The id of the topic as this consumer has read it; otherwise its current id."""
        return self._topic_ids.get(topic) or self._logs.topic_spec(topic).topic_id
