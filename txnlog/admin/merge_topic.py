"""Merging: many small adjacent segments become few large ones.

Offsets, timestamps and headers stay as they are, and records are encoded again: in large batches,
by the topic's current settings, in Parquet files if the topic may have any. Segments from Kafka
stay as they are, byte for byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter

import numpy as np

from txnlog.admin.compaction.span_writer import SpanWriter
from txnlog.admin.compaction.tombstones import NO_TOMBSTONES
from txnlog.admin.joining import joining_limits, worth_joining
from txnlog.admin.rewrite import OVERTAKEN, Replacement, Rewriting, rewriting_config
from txnlog.admin.rewrite_tasks import TaskRunner, run_here
from txnlog.clock import Clock
from txnlog.config import TopicConfig
from txnlog.errors import CorruptRecord
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import TopicSpec
from txnlog.read.pin import pin_topics
from txnlog.read.segment_ranges import SegmentRange, read_stored
from txnlog.read.topic_view import TopicView
from txnlog.segments.reader import SegmentBatch
from txnlog.state.segment import Segment
from txnlog.storage.base import Storage
from txnlog.write.segment_uploads import SegmentUploader

_BYTES_PER_ENTRY = 256 << 20
"""How many bytes, or a run more, are merged per entry: a crash loses no more."""
_RUNS_PER_ENTRY = 512
_MAX_RECORD_BYTES = str((1 << 31) - 1)


@dataclass(frozen=True, slots=True)
class Merge:
    """Segments of a partition that were merged (or would be). Sizes in bytes, before and after.

    ``merged_bytes`` is None if nothing was done yet.
    """

    topic: str
    partition: int
    segment_count: int
    size_bytes: int
    merged_count: int | None = None
    merged_bytes: int | None = None


def merge_topic(
    logs: Logs, topic: str, *, dry_run: bool = False, run_tasks: TaskRunner | None = None
) -> Iterator[Merge]:
    """Merge the small segments of a topic, as far as they are decided. Yields the results.

    Stops if another process has rewritten some of them at the same time. Runs of which the files
    are gone already are left out.

    Args:
        logs: of the store.
        topic: its name.
        dry_run: only say what would be done.
        run_tasks: runs the reads and uploads; None: in this process.

    Raises:
        UnknownTopicOrPartition: there is no such topic (any more).
        CorruptRecord: a segment is damaged; what was to be merged with it stays as it is, all else
            is merged.
        StorageError: some of it may be done; a later call goes on.
    """
    view = pin_topics(logs, [topic]).views[topic]
    try:
        tasks = _plan(view)
    except OVERTAKEN:
        return
    if dry_run:
        yield from (Merge(topic, t.partition, len(t.segments), t.size_bytes) for t in tasks)
        return
    rewriting = Rewriting(logs, logs.topic(topic), view.topic_id)
    run_tasks = run_tasks or run_here(logs.storage, logs.clock)
    done: list[Merge] = []
    damage: CorruptRecord | None = None
    try:
        for task, made in zip(tasks, run_tasks(tasks), strict=True):
            try:
                (merged,) = made
            except OVERTAKEN:
                continue
            except CorruptRecord as error:
                damage = damage or error
                continue
            rewriting.add(task.partition, task.segments, merged)
            sizes = [r.uploaded.stored.size_bytes for r in merged if r.uploaded is not None]
            count, before = len(task.segments), task.size_bytes
            done.append(Merge(topic, task.partition, count, before, len(sizes), sum(sizes)))
            if rewriting.input_bytes >= _BYTES_PER_ENTRY or len(done) >= _RUNS_PER_ENTRY:
                if not rewriting.put():
                    break
                yield from done
                done = []
        else:
            if rewriting.put():
                yield from done
    except BaseException:
        rewriting.discard()
        raise
    if damage is not None:
        raise damage


def _plan(view: TopicView) -> list[_MergeTask]:
    # Times are kept, and so are records that were within an older limit.
    config = rewriting_config(view.config)
    config.pop("message.timestamp.type", None)
    config["max.message.bytes"] = _MAX_RECORD_BYTES
    spec = TopicSpec(
        view.topic,
        view.topic_id,
        len(view.partitions),
        config,
        view.schema,
    )
    spans = {n: (p.log_start_offset, p.end_offset) for n, p in enumerate(view.partitions)}
    placed = view.placed(spans)
    limits = joining_limits(TopicConfig.of(view.config))
    return [
        _MergeTask(spec, partition, tuple(run))
        for partition, segments in placed.segments.items()
        for run in choose_runs(
            segments[: bisect_right(segments, spans[partition][1], key=attrgetter("end_offset"))],
            placed.hidden_entries,
            *limits,
            placed.emptied.get(partition, ()),
        )
    ]


def choose_runs(
    segments: Sequence[Segment],
    hidden_entries: frozenset[int],
    most_bytes: int,
    most_ms: int,
    most_newest_ms: int,
    emptied: Sequence[Segment] = (),
) -> list[list[Segment]]:
    """Which segments of a partition to merge: runs of adjacent ones.

    Args:
        segments: those that hold its records, in order.
        hidden_entries: the aborted ones.
        most_bytes: the largest size of a run.
        most_ms: the longest time between its records.
        most_newest_ms: the longest time between the newest records of its segments.
        emptied: in order, what stands for offsets without records. Those of which a purge has left
            nothing part no run; of others compaction knows more than that.
    """
    purged = (one for one in emptied if one.is_purge and not _stays(one))
    before = {one.end_offset: one.base_offset for one in purged}
    # Of a hundred thousand segments each attribute counts: one loop, without an object for a run.
    runs: list[list[Segment]] = []
    first = 0
    end = size_bytes = least_ms = newest_ms = least_newest_ms = 0
    for at, segment in enumerate(segments):
        low_ms, high_ms = segment.stored.min_timestamp_ms, segment.stored.max_timestamp_ms
        if segment.entry in hidden_entries or _stays(segment):
            runs += _worth_it(segments[first:at])
            first = at + 1
            continue
        if at > first:
            joined_bytes = size_bytes + segment.stored.size_bytes
            joined_least_ms = min(low_ms, least_ms)
            joined_newest_ms = max(high_ms, newest_ms)
            joined_least_newest_ms = min(high_ms, least_newest_ms)
            start = segment.base_offset
            while start > end and start in before:
                start = before[start]
            if (
                start == end
                and joined_bytes <= most_bytes
                and joined_newest_ms - joined_least_ms <= most_ms
                and joined_newest_ms - joined_least_newest_ms <= most_newest_ms
            ):
                size_bytes, least_ms, newest_ms = joined_bytes, joined_least_ms, joined_newest_ms
                least_newest_ms = joined_least_newest_ms
                end = segment.base_offset + segment.stored.offset_count
                continue
            runs += _worth_it(segments[first:at])
            first = at
        end = segment.base_offset + segment.stored.offset_count
        size_bytes, least_ms, newest_ms = segment.stored.size_bytes, low_ms, high_ms
        least_newest_ms = high_ms
    return runs + _worth_it(segments[first:])


def _stays(segment: Segment) -> bool:
    """Whether it is not merged.

    Compacted segments are left to compaction: their tombstones have a horizon.
    """
    rewritten = segment.stored.rewritten
    if rewritten is None:
        return segment.stored.kafka is not None
    return rewritten.is_compacted


def _worth_it(run: Sequence[Segment]) -> list[list[Segment]]:
    """The parts of a run to merge."""
    parts = worth_joining([segment.stored.record_count for segment in run])
    return [[*run[part.start : part.stop]] for part in parts]


@dataclass(frozen=True, slots=True)
class _MergeTask:
    """Adjacent segments of a partition, to be written as few large ones."""

    spec: TopicSpec
    partition: int
    segments: tuple[Segment, ...]

    @property
    def size_bytes(self) -> int:
        return sum(segment.stored.size_bytes for segment in self.segments)

    @property
    def made_type(self) -> type[list[Replacement]]:
        return list[Replacement]

    def run(self, storage: Storage, clock: Clock) -> Iterator[list[Replacement]]:
        """Read and upload, in bounded memory; yields one list."""
        is_dense = all(segment.stored.is_dense for segment in self.segments) and all(
            one.end_offset == other.base_offset for one, other in pairwise(self.segments)
        )
        yield (self._write if is_dense else self._write_with_gaps)(storage, clock)

    def _write(self, storage: Storage, clock: Clock) -> list[Replacement]:
        uploader = SegmentUploader(storage, self.spec, clock)
        try:
            for _, batch in self._batches(storage):
                to = np.full(batch.record_count, self.partition, dtype=np.int32)
                uploader.write(batch.records, to)
            uploaded = uploader.finish()
        except BaseException:
            uploader.discard()
            raise
        counts = (segment.stored.record_count for segment in uploaded)
        ends = [*accumulate(counts, initial=self.segments[0].base_offset)]
        return [
            Replacement(start, end, segment)
            for (start, end), segment in zip(pairwise(ends), uploaded, strict=True)
        ]

    def _write_with_gaps(self, storage: Storage, clock: Clock) -> list[Replacement]:
        """Where records were purged, those that stay keep their offsets."""
        first, last = self.segments[0], self.segments[-1]
        writer = SpanWriter(
            storage,
            self.spec,
            self.partition,
            clock,
            start=first.base_offset,
            delete_horizon_ms=NO_TOMBSTONES,
        )
        try:
            for part, batch in self._batches(storage):
                writer.append(batch.records, batch.offsets() + part.segment.offset_shift)
            return writer.finish(last.end_offset)
        except BaseException:
            writer.discard()
            raise

    def _batches(self, storage: Storage) -> Iterator[tuple[SegmentRange, SegmentBatch]]:
        topic, topic_id = self.spec.topic, self.spec.topic_id
        ranges = [
            SegmentRange(topic, self.partition, s, s.base_offset, s.end_offset, topic_id=topic_id)
            for s in self.segments
        ]
        schema = self.spec.schema
        columns = None if schema is None else schema.record_columns
        for part, batches in read_stored(storage, ranges, columns):
            for batch in batches:
                yield part, batch
