"""Compaction of a topic: cleans the partitions that are due, and puts new segments into its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from txnlog.admin.compaction.cleanable import Cleanable, SegmentFacts, find_cleanable
from txnlog.admin.compaction.cleaner import (
    DEFAULT_GROUP_BYTES,
    Cleaner,
    CompactedGroup,
    SourceSegment,
)
from txnlog.admin.compaction.survivors import DEFAULT_MEMORY_BYTES
from txnlog.admin.compaction.tombstones import NO_TOMBSTONES
from txnlog.admin.rewrite import OVERTAKEN, Rewriting, TaskRunner, rewriting_config, run_here
from txnlog.admin.times import Times, lies_ahead, newest_record_ms
from txnlog.clock import Clock
from txnlog.config import TopicConfig
from txnlog.errors import CorruptRecord
from txnlog.log.open_logs import Logs
from txnlog.log.rewriting import TombstoneStay
from txnlog.log.uploads import TopicSpec
from txnlog.read.pin import pin_topics
from txnlog.read.plan import SegmentRange
from txnlog.read.topic_view import PlacedSegments, TopicView
from txnlog.state.segment import Segment
from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True)
class Compaction:
    """Segments of a partition that were compacted (or would be).

    Sizes in bytes, before and after; ``dirty_ratio`` is the fraction of the partition's bytes that
    was new when it began. ``compacted_...`` are None if nothing was done yet.
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
    times: Times,
    *,
    even_clean: bool = False,
    dry_run: bool = False,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    run_tasks: TaskRunner | None = None,
) -> Iterator[Compaction]:
    """Compact the partitions of a topic that its settings say are dirty enough.

    A topic whose ``cleanup.policy`` does not say compact is left alone. With ``even_clean`` every
    partition with new records is compacted, however few. The keys processed together take
    ``memory_bytes`` at most. ``run_tasks`` runs the reads and uploads; None: in this process.

    Yields each result after its entry in the log. A partition that another process has rewritten at
    the same time is left to the next call.

    Raises UnknownTopicOrPartition; CorruptRecord: a segment is damaged, and its partition stays as
    it is, the others are compacted; StorageError: a later call goes on.
    """
    log = logs.topic(topic)
    with log.lock:
        state = log.state
        if state.exists and not TopicConfig.of(state.config).compacts:
            return  # by what is known already: most topics cost nothing
    view = pin_topics(logs, [topic]).views[topic]
    config = TopicConfig.of(view.config)
    if not config.compacts:
        return
    least_ratio = 0.0 if even_clean else config.min_cleanable_dirty_ratio
    rewritten = rewriting_config(view.config)
    spec = TopicSpec(topic, view.topic_id, len(view.partitions), rewritten, view.schema)
    spans = {n: (part.log_start_offset, part.end_offset) for n, part in enumerate(view.partitions)}
    try:
        placed = view.placed(spans)
    except OVERTAKEN:
        return
    tasks = []
    now_ms = times.earliest_ms
    for partition, segments in placed.segments.items():
        sources = _sources_of(view, partition, placed)
        stable_offset = view.partitions[partition].end_offset
        facts = [source.facts for source in sources]
        if config.min_compaction_lag_ms:
            facts = [
                _with_newest(logs.storage, view.topic, partition, segment, one, now_ms)
                for segment, one in zip(segments, facts, strict=True)
            ]
        cleanable = find_cleanable(facts, config, stable_offset=stable_offset, now_ms=now_ms)
        if cleanable.is_worth_while(least_ratio):
            chosen = tuple(segments[: cleanable.clean + cleanable.dirty])
            judged_end = _judged_end(chosen, placed.emptied.get(partition, ()))
            tasks.append(
                _CleanTask(
                    spec,
                    partition,
                    chosen,
                    tuple(sources),
                    cleanable,
                    judged_end,
                    now_ms,
                    memory_bytes,
                )
            )
    if dry_run:
        yield from (task.describe() for task in tasks)
        return
    run_tasks = run_tasks or run_here(logs.storage, logs.clock)
    damage: CorruptRecord | None = None
    for task, groups in zip(tasks, run_tasks(tasks), strict=True):
        try:
            for group in groups:
                if not _put(logs, task, group, times):
                    break
                yield task.describe(group)
        except OVERTAKEN:
            continue
        except CorruptRecord as error:
            damage = damage or error
    if damage is not None:
        raise damage


def _with_newest(
    storage: Storage, topic: str, partition: int, segment: Segment, facts: SegmentFacts, now_ms: int
) -> SegmentFacts:
    """Replace a time that is not known, or lies in the future and keeps all from being compacted.

    Only where it matters: not if the segment was compacted before.
    """
    said_ms = facts.max_timestamp_ms
    if facts.is_clean or (said_ms >= 0 and not lies_ahead(said_ms, now_ms)):
        return facts
    newest_ms = newest_record_ms(storage, topic, partition, segment, now_ms)
    return facts if newest_ms is None else replace(facts, max_timestamp_ms=newest_ms)


def _judged_end(segments: Sequence[Segment], emptied: Iterable[Segment]) -> int:
    """The offset after all records that were considered for these segments, now or before."""
    end = segments[-1].end_offset
    before = (*segments, *(one for one in emptied if one.end_offset <= end))
    return max([end, *(r.judged_end for one in before if (r := one.stored.rewritten))])


@dataclass(frozen=True, slots=True)
class _CleanTask:
    """A partition to compact: ``segments`` are its clean and its dirty part.

    ``judged_end`` is the offset after all records that are considered; those that superseded
    earlier removed ones may lie beyond the segments. ``now_ms`` is the time by the earliest clock.
    """

    spec: TopicSpec
    partition: int
    segments: tuple[Segment, ...]
    sources: tuple[SourceSegment, ...]
    cleanable: Cleanable
    judged_end: int
    now_ms: int
    memory_bytes: int

    @property
    def made_type(self) -> type[CompactedGroup]:
        return CompactedGroup

    def run(self, storage: Storage, clock: Clock) -> Iterator[CompactedGroup]:
        """Read and upload, in bounded memory; yields group by group."""
        cleaner = Cleaner(
            storage,
            clock,
            self.spec,
            self.partition,
            now_ms=self.now_ms,
            memory_bytes=self.memory_bytes,
            group_bytes=DEFAULT_GROUP_BYTES,
        )
        return cleaner.clean(self.sources, self.cleanable)

    def describe(self, group: CompactedGroup | None = None) -> Compaction:
        """The compaction that is planned (None), or that ``group`` has done."""
        topic, ratio = self.spec.topic, self.cleanable.dirty_ratio
        if group is None:
            size_bytes = sum(segment.stored.size_bytes for segment in self.segments)
            return Compaction(topic, self.partition, len(self.segments), size_bytes, ratio)
        return Compaction(
            topic,
            self.partition,
            group.stop - group.start,
            group.bytes_before,
            ratio,
            group.records_before,
            sum(span.uploaded is not None for span in group.spans),
            group.bytes_after,
            group.records_after,
        )


def _put(logs: Logs, task: _CleanTask, group: CompactedGroup, times: Times) -> bool:
    """Replace the old segments by the new ones; False if the old ones were replaced meanwhile."""
    stay = None
    if group.start >= task.cleanable.clean:
        # They become clean now, however long ago the compaction began.
        config = TopicConfig.of(task.spec.config)
        stay = TombstoneStay(lambda: times.latest_ms, config.delete_retention_ms)
    rewriting = Rewriting(logs, logs.topic(task.spec.topic), task.spec.topic_id)
    replacements = [
        replace(span, is_compacted=True, judged_end=task.judged_end) for span in group.spans
    ]
    rewriting.add(task.partition, task.segments[group.start : group.stop], replacements)
    return rewriting.put(stay)


def _sources_of(view: TopicView, partition: int, placed: PlacedSegments) -> list[SourceSegment]:
    """The segments that hold a partition's records, from its log start on, with their facts.

    Those of hidden entries were aborted: they have no records to read.
    """
    log_start = view.partitions[partition].log_start_offset
    emptied = {one.end_offset: one.base_offset for one in placed.emptied.get(partition, ())}

    def start_of(offset: int) -> int:
        """The beginning of the emptied offsets that end at ``offset``; itself if none do."""
        while offset in emptied:
            offset = emptied[offset]
        return offset

    return [
        SourceSegment(
            _facts_of(segment),
            None
            if segment.entry in placed.hidden_entries
            else SegmentRange(
                view.topic,
                partition,
                segment,
                max(segment.base_offset, log_start),
                segment.end_offset,
                topic_id=view.topic_id,
                hides_aborted=segment.stored.has_aborted,
            ),
            start_of(segment.base_offset),
        )
        for segment in placed.segments[partition]
    ]


def _facts_of(segment: Segment) -> SegmentFacts:
    rewritten = segment.stored.rewritten
    return SegmentFacts(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.stored.size_bytes,
        min_timestamp_ms=segment.stored.min_timestamp_ms,
        max_timestamp_ms=segment.stored.max_timestamp_ms,
        is_clean=rewritten is not None and rewritten.is_compacted,
        delete_horizon_ms=NO_TOMBSTONES if rewritten is None else rewritten.delete_horizon_ms,
        record_count=segment.stored.record_count,
    )
