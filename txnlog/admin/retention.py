"""Retention: which records are too old, or too many, and their deletion, as in Kafka.

Whole segments are deleted, from the log start up to the first one that may stay; the log start
offsets of all partitions of a topic move in one entry. Vacuum deletes the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txnlog.admin.times import FutureRecords, lies_ahead, newest_record_ms
from txnlog.admin.trim import trim
from txnlog.config import TopicConfig
from txnlog.log.open_logs import Logs
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS
from txnlog.log.topic_log import TopicLog
from txnlog.state.segment import Segment
from txnlog.state.topic import TopicState

_FIRST_PART = 64
"""The fraction of a partition's offsets that is checked first."""

_logger = logging.getLogger(__name__)

NewestRecord = Callable[[int, Segment], int | None]
"""The time (ms) of the newest record in a segment of a partition; None if it is not known."""


@dataclass(frozen=True, slots=True)
class RetentionDeletion:
    """The oldest segments of a partition that are too old, or too many.

    ``log_start_offset`` is where the partition began, ``new_log_start_offset`` where it begins now
    (or would). Sizes in bytes.
    """

    topic: str
    partition: int
    log_start_offset: int
    new_log_start_offset: int
    segment_count: int
    size_bytes: int


def apply_retention(
    logs: Logs, topic: str, now_ms: int, *, dry_run: bool = False
) -> list[RetentionDeletion | FutureRecords]:
    """Delete what a topic's ``retention.ms`` and ``retention.bytes`` no longer keep, in one entry.

    If clocks differ, the earliest time is the safe ``now_ms``. Returns first the segments it has
    met whose times lie in the future, then by partition what was deleted; partitions that keep
    everything are left out.

    Raises UnknownTopicOrPartition; StorageError: the outcome is unknown, and repeating it does no
    harm.
    """
    log = logs.fresh_topic(topic)
    ahead: list[FutureRecords] = []
    deleted = retain(logs, log, now_ms, dry_run=dry_run, ahead=ahead)
    return [*ahead, *deleted]


def retain(
    logs: Logs,
    log: TopicLog,
    now_ms: int,
    *,
    dry_run: bool = False,
    timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ahead: list[FutureRecords] | None = None,
) -> list[RetentionDeletion]:
    """Delete what is too old in a refreshed log; undecided appends and all after them stay.

    ``timeout_ms`` is how long it goes on while other writers are faster. Segments met whose times
    lie in the future are warned of, and added to ``ahead``.
    """
    planned: list[RetentionDeletion] = []
    met: dict[tuple[int, int], FutureRecords] = {}

    def newest(partition: int, segment: Segment) -> int | None:
        said_ms = segment.stored.max_timestamp_ms
        if lies_ahead(said_ms, now_ms):
            met[partition, segment.base_offset] = FutureRecords(
                log.name, partition, segment.base_offset, segment.end_offset, said_ms
            )
        return newest_record_ms(logs.storage, log.name, partition, segment, now_ms)

    def choose(state: TopicState) -> dict[int, int]:
        planned[:] = _Retention(log, state, now_ms, newest).plan()
        return {deletion.partition: deletion.new_log_start_offset for deletion in planned}

    with log.lock:
        state = log.state
        chosen = choose(state)
    if chosen and not dry_run:
        trim(logs, log, choose, timeout_ms=timeout_ms)
    for one in met.values():
        _logger.warning(
            "topic %r, partition %d: a record of the offsets [%d, %d) has the time %d, which lies "
            "in the future; retention goes by the time of its upload, if the storage tells it",
            one.topic,
            one.partition,
            one.base_offset,
            one.end_offset,
            one.timestamp_ms,
        )
    if ahead is not None:
        ahead += met.values()
    return planned


class _Retention:
    """Retention's findings in one state of a topic's log.

    From the log start on it checks a few segments, and more as long as all of them are to be
    deleted: so its cost depends on what is deleted, not on what stays.
    """

    def __init__(self, log: TopicLog, state: TopicState, now_ms: int, newest: NewestRecord) -> None:
        self._log = log
        self._state = state
        self._now_ms = now_ms
        self._newest = newest
        self._config = TopicConfig.of(state.config)

    def plan(self) -> list[RetentionDeletion]:
        """The segments to delete, by partition."""
        if not _has_limit(self._config):
            return []
        state = self._state
        spans = {
            number: (part.log_start_offset, part.end_offset)
            for number, part in enumerate(state.partitions)
            if part.log_start_offset < part.end_offset
        }
        excess = dict.fromkeys(spans, -1)
        if (kept_bytes := self._config.retention_bytes) >= 0:
            sums = self._log.count_bytes(state, spans)
            excess = {number: sums[number] - kept_bytes for number in spans}
        stable = state.last_stable_offsets()
        looked_at = [_Partition(n, *spans[n], stable[n], excess[n]) for n in spans]
        going = looked_at
        while going:
            found = self._log.placed(state, {one.number: one.window() for one in going})
            going = [one for one in going if self._take(one, found[one.number])]
        return [one.deletion(self._log.name) for one in looked_at if one.count]

    def _take(self, partition: _Partition, segments: Sequence[Segment]) -> bool:
        """Take the segments of a window that may be deleted; False if there is no more to do.

        Kafka looks for old ones first and then for too many; old ones after those are deleted at
        its next check, here at once.
        """
        for segment in segments:
            if segment.end_offset > partition.stable:
                partition.is_whole = False
                return False
            too_many = partition.excess_bytes >= segment.stored.size_bytes
            by_size = self._config.retention_bytes >= 0
            if not (by_size and too_many) and not self._is_old(partition.number, segment):
                partition.is_whole = False
                return False
            partition.take(segment)
        return partition.go_on()

    def _is_old(self, partition: int, segment: Segment) -> bool:
        if self._config.retention_ms < 0:
            return False
        newest_ms = self._newest(partition, segment)
        return newest_ms is not None and self._now_ms - newest_ms > self._config.retention_ms


@dataclass(slots=True)
class _Partition:
    """How far retention has come in a partition that holds the offsets [start, end).

    ``stable`` is its last stable offset, ``excess_bytes`` how much it holds above the limit.
    ``is_whole``: all segments checked so far are to be deleted.
    """

    number: int
    start: int
    end: int
    stable: int
    excess_bytes: int
    is_whole: bool = True
    count: int = 0
    size_bytes: int = 0
    taken_to: int = 0
    _from: int = -1
    _width: int = 0

    def window(self) -> tuple[int, int]:
        """The offsets to check next."""
        if self._from < 0:
            self._from, self._width = self.start, max((self.end - self.start) // _FIRST_PART, 1)
        return self._from, min(self._from + self._width, self.end)

    def take(self, segment: Segment) -> None:
        """Delete one more."""
        self.excess_bytes -= segment.stored.size_bytes
        self.count += 1
        self.size_bytes += segment.stored.size_bytes
        self.taken_to = segment.end_offset

    def go_on(self) -> bool:
        """Advance the window; False if it has reached the end."""
        self._from = max(self.window()[1], self.taken_to)
        self._width *= 2
        return self._from < self.end

    def deletion(self, topic: str) -> RetentionDeletion:
        # After all of them there may be offsets without records, from an import.
        end = self.stable if self.is_whole else self.taken_to
        return RetentionDeletion(topic, self.number, self.start, end, self.count, self.size_bytes)


def _has_limit(config: TopicConfig) -> bool:
    return config.deletes and (config.retention_ms >= 0 or config.retention_bytes >= 0)
