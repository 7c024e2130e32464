"""Merging: many small adjacent segments become few large ones.

Offsets, timestamps and headers stay as they are, and records are encoded again: in large batches,
by the topic's current settings, in Parquet files if the topic may have any. Segments from Kafka
stay as they are, byte for byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import attrgetter

import numpy as np

from txnlog.admin.compaction.span_writer import SpanWriter
from txnlog.admin.compaction.tombstones import NO_TOMBSTONES
from txnlog.admin.joinable_segments import joining_limits, worth_joining
from txnlog.admin.rewrite import (
    OVERTAKEN,
    Replacement,
    Rewriting,
    TaskRunner,
    rewriting_config,
    run_here,
)
from txnlog.clock import Clock
from txnlog.config import TopicConfig
from txnlog.errors import CorruptRecord
from txnlog.limits import NEVER_MS
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import TopicSpec
from txnlog.read.pin import pin_topics
from txnlog.read.plan import SegmentRange
from txnlog.read.stored_reader import read_stored
from txnlog.read.topic_view import TopicView
from txnlog.segments.reader import SegmentBatch
from txnlog.state.segment import Segment
from txnlog.storage.base import Storage
from txnlog.write.segment_uploads import SegmentUploader

_BYTES_PER_ENTRY = 256 << 20
"""How many bytes, or a run more, are merged per entry: a crash loses no more."""
_RUNS_PER_ENTRY = 512
_PER_LAG = 8
"""By what fraction of ``min.compaction.lag.ms`` merging may put compaction off."""
_NO_TIME_MS = -2
"""Before all times of records, which are -1 if they are not known."""
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
    are gone already are left out. ``run_tasks`` runs the reads and uploads; None: in this process.

    Raises UnknownTopicOrPartition; CorruptRecord: a segment is damaged, and what was to be merged
    with it stays as it is, all else is merged; StorageError: a later call goes on.
    """
    view = pin_topics(logs, [topic]).views[topic]
    try:
        tasks = _plan(view, logs.clock.now_ms())
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


def _plan(view: TopicView, now_ms: int) -> list[_MergeTask]:
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
    settings = TopicConfig.of(view.config)
    most_bytes, most_ms, newest_ms = joining_limits(settings)
    tasks = []
    for partition, segments in placed.segments.items():
        stop = bisect_right(segments, spans[partition][1], key=attrgetter("end_offset"))
        for some, apart_ms in _by_lag(segments[:stop], settings, now_ms):
            for run in choose_runs(
                some,
                placed.hidden_entries,
                most_bytes,
                min(most_ms, apart_ms),
                newest_ms,
                placed.emptied.get(partition, ()),
                takes_compacted=not settings.compacts,
                aborted_until_ms=now_ms - settings.file_delete_delay_ms,
            ):
                hidden = placed.hidden_entries.intersection(segment.entry for segment in run)
                tasks.append(_MergeTask(spec, partition, tuple(run), hidden))
    return tasks


def _by_lag(
    segments: Sequence[Segment], config: TopicConfig, now_ms: int
) -> list[tuple[Sequence[Segment], int]]:
    """The parts of a partition that are merged apart, with the longest time between their records.

    Compaction waits before the first segment with a record younger than ``min.compaction.lag.ms``:
    older records that are merged with it wait, too, but not for much longer, nor for more than
    ``max.compaction.lag.ms`` in all.
    """
    lag_ms = config.min_compaction_lag_ms
    if not config.compacts or lag_ms <= 0:
        return [(segments, NEVER_MS)]
    waiting = (
        number
        for number, segment in enumerate(segments)
        if not _is_compacted(segment) and segment.stored.max_timestamp_ms > now_ms - lag_ms
    )
    first = next(waiting, len(segments))
    apart_ms = max(min(lag_ms // _PER_LAG, config.max_compaction_lag_ms - lag_ms), 0)
    return [(segments[:first], NEVER_MS), (segments[first:], apart_ms)]


def choose_runs(
    segments: Sequence[Segment],
    hidden_entries: frozenset[int],
    most_bytes: int,
    most_ms: int,
    most_newest_ms: int,
    emptied: Sequence[Segment] = (),
    *,
    takes_compacted: bool = False,
    aborted_until_ms: int = _NO_TIME_MS,
) -> list[list[Segment]]:
    """Which segments of a partition to merge: runs of adjacent ones, in order.

    A run has ``most_bytes``, ``most_ms`` between its records, and ``most_newest_ms`` between the
    newest records of its segments at most. ``emptied`` stand, in order, for offsets without
    records: those of which a purge has left nothing part no run; of others compaction knows more
    than that. With ``takes_compacted`` compacted segments are merged too, with others of the kind.
    So are aborted ones without records newer than ``aborted_until_ms``, with those around them:
    nothing of them is written again.
    """
    purged = (one for one in emptied if one.is_purge and not _is_compacted(one))
    before = {one.end_offset: one.base_offset for one in purged}
    # Of a hundred thousand segments each attribute counts: one loop, without an object for a run.
    runs: list[list[Segment]] = []
    first = stop = 0  # the run so far; what follows it up to its end was aborted
    end = size_bytes = least_ms = newest_ms = least_newest_ms = 0
    is_compacted = False
    for at, segment in enumerate(segments):
        stored, start = segment.stored, segment.base_offset
        rewritten = stored.rewritten
        while start > end and start in before:
            start = before[start]
        low_ms, high_ms = stored.min_timestamp_ms, stored.max_timestamp_ms
        is_hidden = segment.entry in hidden_entries
        if is_hidden and high_ms <= aborted_until_ms and first < stop and start == end:
            end = segment.base_offset + stored.offset_count
            continue
        kind = rewritten is not None and rewritten.is_compacted
        is_kafkas = rewritten is None and stored.kafka is not None
        if is_hidden or is_kafkas or (kind and not takes_compacted):
            runs += _worth_it(segments[first:stop], hidden_entries)
            first = stop = at + 1
            continue
        if first < stop:
            joined_bytes = size_bytes + stored.size_bytes
            joined_least_ms = min(low_ms, least_ms)
            joined_newest_ms = max(high_ms, newest_ms)
            joined_least_newest_ms = min(high_ms, least_newest_ms)
            if (
                start == end
                and kind == is_compacted
                and joined_bytes <= most_bytes
                and joined_newest_ms - joined_least_ms <= most_ms
                and joined_newest_ms - joined_least_newest_ms <= most_newest_ms
            ):
                size_bytes, least_ms, newest_ms = joined_bytes, joined_least_ms, joined_newest_ms
                least_newest_ms = joined_least_newest_ms
                end, stop = segment.base_offset + stored.offset_count, at + 1
                continue
            runs += _worth_it(segments[first:stop], hidden_entries)
            first = at
        end, stop = segment.base_offset + stored.offset_count, at + 1
        size_bytes, least_ms, newest_ms = stored.size_bytes, low_ms, high_ms
        least_newest_ms, is_compacted = high_ms, kind
    return runs + _worth_it(segments[first:stop], hidden_entries)


def _is_compacted(segment: Segment) -> bool:
    return segment.stored.rewritten is not None and segment.stored.rewritten.is_compacted


def _worth_it(run: Sequence[Segment], hidden_entries: frozenset[int]) -> list[list[Segment]]:
    """The parts of a run to merge."""
    counts = [
        0 if segment.entry in hidden_entries else segment.stored.record_count for segment in run
    ]
    return [[*run[part.start : part.stop]] for part in worth_joining(counts)]


@dataclass(frozen=True, slots=True)
class _MergeTask:
    """Adjacent segments of a partition, to be written as few large ones.

    Those of ``hidden_entries`` were aborted: they go.
    """

    spec: TopicSpec
    partition: int
    segments: tuple[Segment, ...]
    hidden_entries: frozenset[int]

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
        is_plain = is_dense and not self.hidden_entries and not _is_compacted(self.segments[0])
        yield (self._write if is_plain else self._write_with_gaps)(storage, clock)

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
        """Where records were purged, aborted or compacted away, the others keep their offsets.

        What is compacted stays so, as after a purge.
        """
        first, last = self.segments[0], self.segments[-1]
        known = [r for segment in self.segments if (r := segment.stored.rewritten)]
        writer = SpanWriter(
            storage,
            self.spec,
            self.partition,
            clock,
            start=first.base_offset,
            delete_horizon_ms=max((r.delete_horizon_ms for r in known), default=NO_TOMBSTONES),
        )
        try:
            for part, batch in self._batches(storage):
                writer.append(batch.records, batch.offsets() + part.segment.offset_shift)
            spans = writer.finish(last.end_offset)
        except BaseException:
            writer.discard()
            raise
        if not _is_compacted(first):
            return spans
        judged_end = max(r.judged_end for r in known)
        source = max(segment.source_entry for segment in self.segments)
        return [
            replace(span, is_compacted=True, judged_end=judged_end, purged_from=source)
            for span in spans
        ]

    def _batches(self, storage: Storage) -> Iterator[tuple[SegmentRange, SegmentBatch]]:
        topic, topic_id = self.spec.topic, self.spec.topic_id
        ranges = [
            SegmentRange(topic, self.partition, s, s.base_offset, s.end_offset, topic_id=topic_id)
            for s in self.segments
            if s.entry not in self.hidden_entries
        ]
        schema = self.spec.schema
        columns = None if schema is None else schema.record_columns
        for part, batches in read_stored(storage, ranges, columns):
            for batch in batches:
                yield part, batch
