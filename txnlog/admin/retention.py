"""Retention: which records are too old, or too many, and their deletion, as in Kafka.

Whole segments go, from the log start on and up to the first one that may stay; the log start
offsets of all partitions of a topic move in one entry. Files are the business of vacuum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from txnlog.admin.live_segments import segments_of
from txnlog.admin.trimming import trim
from txnlog.config import TopicConfig
from txnlog.log.open_logs import Logs
from txnlog.names import SegmentRef
from txnlog.state.placement import Segment
from txnlog.state.topic import TopicState

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
) -> list[RetentionDeletion]:
    """Delete what a topic's ``retention.ms`` and ``retention.bytes`` no longer keep, in one entry.

    Args:
        logs: of the store.
        topic: its name.
        now_ms: the time; where clocks differ the earliest one is the safe one.
        dry_run: only tell.

    Returns:
        By partition what was deleted; partitions that keep everything are left out.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
        StorageError: the outcome is unknown; repeating it does no harm.
    """
    log = logs.fresh_topic(topic)
    planned: list[RetentionDeletion] = []

    def newest(partition: int, segment: Segment) -> int | None:
        if segment.max_timestamp_ms >= 0:
            return segment.max_timestamp_ms
        # Records of Kafka's first format have no time. As there, that of the file counts then.
        ref = SegmentRef(topic, partition, segment.name, segment.position)
        return logs.storage.modified_ms(ref.paths.log)

    def choose(state: TopicState) -> dict[int, int]:
        wanted = _has_limit(TopicConfig.of(state.config))
        planned[:] = (
            plan_retention(topic, log.manifests.unfold(state), now_ms, newest) if wanted else ()
        )
        return {deletion.partition: deletion.new_log_start_offset for deletion in planned}

    with log.reading() as state:
        chosen = choose(state)
    if chosen and not dry_run:
        trim(logs, log, choose)
    return planned


def plan_retention(
    topic: str, state: TopicState, now_ms: int, newest: NewestRecord
) -> list[RetentionDeletion]:
    """What is to be deleted, by partition."""
    config = TopicConfig.of(state.config)
    if not _has_limit(config):
        return []
    planned = []
    for partition, stable in enumerate(state.last_stable_offsets()):
        segments = segments_of(state, partition)
        doomed = _choose(segments, partition, stable, config, now_ms, newest)
        if doomed:
            # Behind all of them there may be offsets without records: an import's.
            end = stable if len(doomed) == len(segments) else doomed[-1].end_offset
            planned.append(
                RetentionDeletion(
                    topic,
                    partition,
                    state.partitions[partition].log_start_offset,
                    end,
                    len(doomed),
                    sum(segment.size_bytes for segment in doomed),
                )
            )
    return planned


def _has_limit(config: TopicConfig) -> bool:
    return config.deletes and (config.retention_ms >= 0 or config.retention_bytes >= 0)


def _choose(
    segments: Sequence[Segment],
    partition: int,
    stable: int,
    config: TopicConfig,
    now_ms: int,
    newest: NewestRecord,
) -> list[Segment]:
    """The oldest segments, as far as each of them may go; none that reaches beyond ``stable``.

    Kafka looks for old ones first and then for too many; what is old behind those goes with its
    next look, here at once.
    """
    doomed = []
    excess_bytes = _sum_bytes(segments) - config.retention_bytes
    by_size = config.retention_bytes >= 0
    for segment in _decided(segments, stable):
        too_many = by_size and excess_bytes >= segment.size_bytes
        if not too_many and not _is_old(segment, partition, config.retention_ms, now_ms, newest):
            break
        excess_bytes -= segment.size_bytes
        doomed.append(segment)
    return doomed


def _decided(segments: Sequence[Segment], stable: int) -> Iterator[Segment]:
    for segment in segments:
        if segment.end_offset > stable:
            return
        yield segment


def _is_old(
    segment: Segment, partition: int, retention_ms: int, now_ms: int, newest: NewestRecord
) -> bool:
    if retention_ms < 0:
        return False
    newest_ms = newest(partition, segment)
    return newest_ms is not None and now_ms - newest_ms > retention_ms


def _sum_bytes(segments: Sequence[Segment]) -> int:
    return sum(segment.size_bytes for segment in segments)
