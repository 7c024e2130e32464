"""What :class:`~txnlog.store.Store` can tell of topics in bulk, and what deleting records would do.

One topic after the other, so that memory does not grow with the number of topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from txnlog import names
from txnlog.admin.disk_usage import PartitionUsage, disk_usage
from txnlog.admin.offsets import ListedOffset, OffsetSpec, list_offsets
from txnlog.errors import InvalidOption, TxnlogError, UnknownTopicOrPartition
from txnlog.inspect.descriptions import (
    RecordDeletion,
    TopicDescription,
    describe_topic,
    or_error,
)
from txnlog.inspect.logs import DumpedEntry, dump_log
from txnlog.log.logs import Logs
from txnlog.names import TopicPartition
from txnlog.state.topic import ENTRY_DECODER, TopicEntry
from txnlog.storage.base import PARALLEL_REQUESTS


class TopicAdmin:
    """The part of a store that is about looking at topics."""

    _logs: Logs

    def each_topic(self) -> Iterator[TopicDescription | TxnlogError]:
        """Every topic, sorted by name, a few at a time; the error in place of a damaged one."""
        found = self._logs.storage.list_folders(names.TOPICS)
        for first in range(0, len(found), PARALLEL_REQUESTS):
            # Logs of their own: those of the store would keep what each topic has in segments.
            logs = Logs(self._logs.storage, self._logs.config, self._logs.clock)
            described = self._logs.storage.gather(
                [
                    partial(or_error, partial(_describe, logs), name)
                    for name in found[first : first + PARALLEL_REQUESTS]
                ]
            )
            for item in described:
                if not isinstance(item, UnknownTopicOrPartition):
                    yield item

    def dump_topic_log(self, topic: str, *, first: int = 0) -> Iterator[DumpedEntry[TopicEntry]]:
        """The topic's log from entry ``first`` on, as it lies; nothing is decided or ended.

        Raises UnknownTopicOrPartition if there is no log of this name.
        """
        folder = names.topic_log(topic)
        empty = True
        for found in dump_log(self._logs.storage, folder, ENTRY_DECODER, first=first):
            empty = False
            yield found
        if empty and (not first or not self._logs.storage.list_names(folder)):
            raise UnknownTopicOrPartition(f"topic {topic!r} does not exist and never did")

    def disk_usage(self, topic: str | None = None) -> Iterator[PartitionUsage | TxnlogError]:
        """What the files of a topic (None: of all) take, its log first, then by partition.

        Costs a listing per topic. Topics that were deleted are there with their logs. Of all
        topics a damaged one gives its error.

        Raises UnknownTopicOrPartition, and what is wrong with the one topic.
        """
        return disk_usage(self._logs, topic)

    def list_offsets(
        self,
        topics: Iterable[str | TopicPartition] | None = None,
        *,
        at: OffsetSpec | None = None,
        timestamp_ms: int | None = None,
    ) -> Iterator[ListedOffset | TxnlogError]:
        """Where partitions begin and end, or where a time begins in them; see Kafka's listOffsets.

        Costs a listing per topic; for a time also a piece of one segment per partition.

        Args:
            topics: names of topics (all their partitions) and single partitions; None for all
                topics, then with the error in place of one that is damaged.
            at: 'earliest', 'stable' (where read_committed stops) or 'latest' (the log's end).
            timestamp_ms: instead of ``at``: the first committed record at or after this time.

        Raises:
            UnknownTopicOrPartition, InvalidOption.
        """
        return list_offsets(self._logs, topics, at=at, timestamp_ms=timestamp_ms)

    def plan_delete_records(
        self,
        topics: str | Iterable[str | TopicPartition],
        *,
        before: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[RecordDeletion]:
        """What to hand to ``delete_records``: by partition, the new log start offset.

        Args:
            topics: names of topics (all their partitions) and single partitions.
            before: an offset, for single partitions only.
            timestamp_ms: instead of ``before``: what is older than the first record at or after
                this time. With neither, and where no record is as new as that, it is all up to
                the last stable offset.

        Returns:
            Sorted by topic and partition; partitions in which nothing would go are among them.

        Raises:
            OffsetOutOfRange: ``before`` lies beyond the last stable offset.
            UnknownTopicOrPartition, InvalidOption.
        """
        chosen = [topics] if isinstance(topics, str) else list(topics)
        if before is not None and timestamp_ms is not None:
            raise InvalidOption("give either before or timestamp_ms")
        if before is not None and any(isinstance(item, str) for item in chosen):
            raise InvalidOption("an offset is of one partition: name partitions, not whole topics")
        starts = _offsets(self.list_offsets(chosen, at="earliest"))
        target = _offsets(self.list_offsets(chosen, at="stable"))
        if timestamp_ms is not None:
            target |= _offsets(self.list_offsets(chosen, timestamp_ms=timestamp_ms))
        elif before is not None:
            for where in target:
                with self._logs.topic(where.topic).reading() as state:
                    state.check_trim(where.topic, {where.partition: before})
            target = dict.fromkeys(target, before)
        return [
            RecordDeletion(*where, starts[where], max(starts[where], target[where]))
            for where in sorted(starts)
        ]


def _describe(logs: Logs, topic: str) -> TopicDescription:
    return describe_topic(logs.fresh_topic(topic))


def _offsets(listed: Iterable[ListedOffset | TxnlogError]) -> dict[TopicPartition, int]:
    found = {}
    for item in listed:
        if isinstance(item, TxnlogError):
            raise item
        if item.offset is not None:
            found[TopicPartition(item.topic, item.partition)] = item.offset
    return found
