"""Compaction of a topic: what is due is cleaned, and new segments are put into its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from txnlog.admin.compaction.cleanable import find_cleanable
from txnlog.admin.compaction.cleaner import DEFAULT_GROUP_BYTES, Cleaner, CompactedGroup
from txnlog.admin.compaction.sources import sources_of
from txnlog.admin.compaction.survivors import DEFAULT_MEMORY_BYTES
from txnlog.admin.rewriting import Replacement, Rewriting
from txnlog.config import TopicConfig
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import TopicSpec
from txnlog.read.pinning import pin_topics
from txnlog.read.topic_view import TopicView
from txnlog.state.placement import Segment


@dataclass(frozen=True, slots=True)
class Compaction:
    """Segments of a partition of which, of each key, the newest record has stayed (or would stay).

    Sizes in bytes, before and after; ``dirty_ratio`` is the part of the partition's bytes that was
    new when it began. ``compacted_...`` are None where nothing was done yet.
    """

    topic: str
    partition: int
    segment_count: int
    size_bytes: int
    dirty_ratio: float
    record_count: int | None = None
    compacted_count: int | None = None
    compacted_bytes: int | None = None
    compacted_record_count: int | None = None


def compact_topic(
    logs: Logs,
    topic: str,
    now_ms: int,
    latest_ms: int,
    *,
    even_clean: bool = False,
    dry_run: bool = False,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Iterator[Compaction]:
    """Compact the partitions of a topic that its settings say are dirty enough.

    Yields what was done, after each entry of the log. A partition that somebody else has rewritten
    at the same time is left to the next call.

    Args:
        logs: of the store.
        topic: its name; one whose ``cleanup.policy`` does not say compact is left alone.
        now_ms: the time, by the earliest clock there is.
        latest_ms: the time, by the latest clock there is.
        even_clean: compact whatever has something new, however small a part of it that is.
        dry_run: only tell.
        memory_bytes: what the keys that are looked at together may take.

    Raises:
        UnknownTopicOrPartition: there is no such topic (any more).
        CorruptRecord: a segment is damaged; its partition stays as it is.
        StorageError: some of it may be done; a later call goes on.
    """
    view = pin_topics(logs, [topic]).views[topic]
    config = TopicConfig.of(view.config)
    if not config.compacts:
        return
    least_ratio = 0.0 if even_clean else config.min_cleanable_dirty_ratio
    spec = TopicSpec(topic, view.topic_id, len(view.partitions), dict(view.config))
    for partition, pinned in enumerate(view.partitions):
        spans = {partition: (pinned.log_start_offset, pinned.end_offset)}
        placed = view.placed(spans)
        segments = placed.segments[partition]
        sources = sources_of(view, partition, segments, placed.hidden_entries)
        cleanable = find_cleanable(
            [source.facts for source in sources],
            config,
            stable_offset=pinned.end_offset,
            now_ms=now_ms,
        )
        if not cleanable.is_worth_while(least_ratio):
            continue
        if dry_run:
            chosen = segments[: cleanable.clean + cleanable.dirty]
            size_bytes = sum(segment.size_bytes for segment in chosen)
            yield Compaction(topic, partition, len(chosen), size_bytes, cleanable.dirty_ratio)
            continue
        cleaner = Cleaner(
            logs.storage,
            logs.clock,
            spec,
            partition,
            now_ms=now_ms,
            latest_ms=latest_ms,
            memory_bytes=memory_bytes,
            group_bytes=DEFAULT_GROUP_BYTES,
        )
        cleaned = segments[: cleanable.clean + cleanable.dirty]
        # Of what compaction has left out before, the newer records may lie further on.
        judged_end = max(
            cleaned[-1].end_offset, *(s.rewritten.judged_end for s in cleaned if s.rewritten), 0
        )
        for group in cleaner.clean(sources, cleanable):
            if not _put(logs, view, partition, segments, group, judged_end):
                break
            yield Compaction(
                topic,
                partition,
                group.stop - group.start,
                group.bytes_before,
                cleanable.dirty_ratio,
                group.records_before,
                sum(span.segment is not None for span in group.spans),
                group.bytes_after,
                group.records_after,
            )


def _put(
    logs: Logs,
    view: TopicView,
    partition: int,
    segments: Sequence[Segment],
    group: CompactedGroup,
    judged_end: int,
) -> bool:
    """Let the new segments hold the records; False if the old ones do not any more."""
    rewriting = Rewriting(logs, logs.topic(view.topic), view.topic_id)
    replacements = [
        Replacement(
            span.start,
            span.end,
            span.segment,
            is_compacted=True,
            delete_horizon_ms=span.delete_horizon_ms,
            judged_end=judged_end,
        )
        for span in group.spans
    ]
    rewriting.add(partition, segments[group.start : group.stop], replacements)
    return rewriting.put()
