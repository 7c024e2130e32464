"""Topics' sizes on the storage, by partition: a listing each, and only logs are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from txnlog import names
from txnlog.admin.live_segments import placed_refs
from txnlog.errors import TxnlogError, UnknownTopicOrPartition
from txnlog.inspect.describe import describe_or_error
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.names import SHARED, FileKey
from txnlog.storage.base import for_each


@dataclass(slots=True)
class PartitionUsage:
    """The files of a partition; of a topic's log if ``partition`` is None. Bytes.

    ``unreferenced_bytes`` are those that no entry places: uploads in progress, trimmed segments,
    and orphans. A file that several partitions share counts as one of the log's, as do unreferenced
    bytes in it; the bytes of a segment count for its partition.
    """

    topic: str
    partition: int | None
    file_count: int = 0
    segment_bytes: int = 0
    index_bytes: int = 0
    log_bytes: int = 0
    unreferenced_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes."""
        return self.segment_bytes + self.index_bytes + self.log_bytes + self.unreferenced_bytes


@dataclass(slots=True)
class _Topic:
    """One topic: the segments that its log places, and the counts so far."""

    name: str
    placed: dict[FileKey, list[tuple[int, int]]]
    """By file, its segments: each a partition and a size in bytes."""
    log: PartitionUsage
    partitions: dict[int, PartitionUsage] = field(default_factory=dict)

    def add(self, path: str, size_bytes: int) -> None:
        parsed = names.parse_data_file(path)
        if parsed is None:
            self.log.file_count += 1
            self.log.log_bytes += size_bytes
            return
        number, stem, ending = parsed
        if number == SHARED:
            self.log.file_count += 1
            for partition, segment_bytes in self.placed.get((number, stem), ()):
                self._usage(partition).segment_bytes += segment_bytes
                size_bytes -= segment_bytes
            self.log.unreferenced_bytes += max(size_bytes, 0)
            return
        usage = self._usage(number)
        usage.file_count += 1
        if (number, stem) not in self.placed:
            usage.unreferenced_bytes += size_bytes
        elif ending == "log":
            usage.segment_bytes += size_bytes
        else:
            usage.index_bytes += size_bytes

    def _usage(self, partition: int) -> PartitionUsage:
        return self.partitions.setdefault(partition, PartitionUsage(self.name, partition))


def disk_usage(logs: Logs, topic: str | None) -> Iterator[PartitionUsage | TxnlogError]:
    """The usage of one topic or of all, by partition, the topic's log first.

    Deleted topics are included, whose logs stay. Raises UnknownTopicOrPartition if the one topic
    never existed; among all topics a damaged one gives its error.
    """
    found = [topic] if topic is not None else list_topics(logs.storage)
    for counted in for_each(logs.storage, partial(_count, logs), found):
        if not isinstance(counted, TxnlogError):
            if topic is not None and not counted.log.file_count:
                raise UnknownTopicOrPartition(f"topic {topic!r} does not exist and never existed")
            yield counted.log
            yield from (counted.partitions[number] for number in sorted(counted.partitions))
        elif topic is not None:
            raise counted
        else:
            yield counted


def _count(logs: Logs, topic: str) -> _Topic | TxnlogError:
    own = Logs(logs.storage, logs.config, logs.clock)
    placed = describe_or_error(partial(_list_placed, own), topic)
    if isinstance(placed, TxnlogError):
        return placed
    counted = _Topic(topic, placed, PartitionUsage(topic, None))
    for path, size_bytes in logs.storage.list_all(names.topic_folder(topic)):
        counted.add(path, size_bytes)
    counted.placed = {}
    return counted


def _list_placed(logs: Logs, topic: str) -> dict[FileKey, list[tuple[int, int]]]:
    log = logs.topic(topic)
    log.refresh()
    found: dict[FileKey, list[tuple[int, int]]] = {}
    for ref, segment in placed_refs(topic, log.whole_segments()):
        found.setdefault(ref.file_key, []).append((ref.partition, segment.stored.size_bytes))
    return found
