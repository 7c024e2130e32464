"""A topic's checkpoints with their manifests' content, to be compared with the entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from txnlog.doctor.rules import Violation, topic_checkpoint_violations
from txnlog.errors import UnknownTopicOrPartition
from txnlog.log.manifests import Manifests
from txnlog.state.topic import TopicState


@dataclass(frozen=True, slots=True)
class TopicCheckpoints:
    """The checkpoints of one topic."""

    manifests: Manifests

    def unfold(self, checkpoint: TopicState) -> TopicState | None:
        """The whole state; None if it is of a topic that was deleted, whose manifests are gone.

        Raises CorruptEntry, StorageError.
        """
        try:
            return self.manifests.unfold(checkpoint)
        except UnknownTopicOrPartition:
            return None

    def violations(self, replayed: TopicState, checkpoint: TopicState) -> Iterator[Violation]:
        """See :func:`topic_checkpoint_violations`."""
        return topic_checkpoint_violations(replayed, checkpoint, self.manifests.log_start_offsets())
