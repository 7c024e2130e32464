"""Which part of a partition to compact, and when: as Kafka's LogCleanerManager decides. Pure.

A partition begins with its clean part, in which each key occurs once, and the dirty part follows.
There is no active segment here, so the cleanable part ends at the last stable offset, or at the
first segment that is younger than ``min.compaction.lag.ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from txnlog.admin.compaction.tombstones import NO_TOMBSTONES, is_due, may_share, shared_horizon
from txnlog.admin.joinable_segments import retention_limits, worth_joining
from txnlog.config import TopicConfig


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts known of a segment without reading it; offsets are [base_offset, end_offset).

    ``is_clean``: it holds only the newest record of each key, of all before its end. Timestamps are
    -1 if not known; so is ``delete_horizon_ms`` without tombstones.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    min_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    is_clean: bool = False
    delete_horizon_ms: int = NO_TOMBSTONES
    record_count: int = 1


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The first ``clean`` segments of a partition are clean, the next ``dirty`` are to be cleaned.

    Sizes are of both parts. ``is_overdue``: a record has waited for longer than
    ``max.compaction.lag.ms``. ``has_due_tombstones``: some in the clean part may be removed.
    """

    clean: int
    dirty: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    has_due_tombstones: bool

    @property
    def dirty_ratio(self) -> float:
        """The dirty part's fraction of all bytes, from 0 to 1."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    def is_worth_while(self, min_dirty_ratio: float) -> bool:
        """Whether to compact now."""
        is_filthy = self.dirty > 0 and self.dirty_ratio > min_dirty_ratio
        return is_filthy or self.is_overdue or self.has_due_tombstones


def find_cleanable(
    segments: Sequence[SegmentFacts], config: TopicConfig, *, stable_offset: int, now_ms: int
) -> Cleanable:
    """Divide a partition into its clean part, what can be cleaned, and the rest.

    ``segments`` are all from its log start on, in the order of offsets; ``now_ms`` is by the
    earliest clock available.
    """
    clean = 0
    while clean < len(segments) and segments[clean].is_clean:
        clean += 1
    dirty = 0
    for segment in segments[clean:]:
        if segment.end_offset > stable_offset or _is_young(segment, config, now_ms):
            break
        dirty += 1
    cleaned, waiting = segments[:clean], segments[clean : clean + dirty]
    return Cleanable(
        clean=clean,
        dirty=dirty,
        clean_bytes=sum(segment.size_bytes for segment in cleaned),
        dirty_bytes=sum(segment.size_bytes for segment in waiting),
        is_overdue=any(_is_overdue(segment, config, now_ms) for segment in waiting),
        has_due_tombstones=any(is_due(segment.delete_horizon_ms, now_ms) for segment in cleaned),
    )


def _is_young(segment: SegmentFacts, config: TopicConfig, now_ms: int) -> bool:
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and segment.max_timestamp_ms > now_ms - lag_ms


def _is_overdue(segment: SegmentFacts, config: TopicConfig, now_ms: int) -> bool:
    oldest_ms = segment.min_timestamp_ms
    return oldest_ms >= 0 and now_ms - oldest_ms > config.max_compaction_lag_ms


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent segments [start, stop) of a partition, replaced by new ones in one entry.

    ``delete_horizon_ms`` is that of the tombstones that stay in them.
    """

    start: int
    stop: int
    is_dirty: bool
    delete_horizon_ms: int


def group_segments(
    segments: Sequence[SegmentFacts],
    cleanable: Cleanable,
    is_touched: Callable[[int], bool],
    config: TopicConfig,
    *,
    new_horizon_ms: int,
    now_ms: int,
    max_input_bytes: int,
) -> list[Group]:
    """The groups to rewrite, in the required order.

    All of the clean part comes before any of the dirty one, so segments called clean are clean at
    any moment: a process that stops in between has only done less. Of the clean part small segments
    are joined, too, or each compaction would leave one more; ``is_touched`` tells of one whether it
    holds a record that is superseded. ``new_horizon_ms`` is that of tombstones in the dirty part.
    One entry rewrites ``max_input_bytes``, but a segment at least.
    """
    clean, end = cleanable.clean, cleanable.clean + cleanable.dirty
    horizons = [_left_horizon(segment, now_ms) for segment in segments[:clean]]
    horizons += [new_horizon_ms] * cleanable.dirty
    kept_bytes, newest_ms = retention_limits(config)

    def adjacent(numbers: Iterable[int], most_bytes: int) -> list[Group]:
        limits = min(most_bytes, kept_bytes), newest_ms, config.delete_retention_ms
        return _adjacent(numbers, segments, horizons, clean, limits)

    chosen = {n for n in range(clean) if horizons[n] != segments[n].delete_horizon_ms}
    chosen.update(number for number in range(clean) if is_touched(number))
    for run in adjacent(range(clean), config.segment_bytes):
        counts = [segment.record_count for segment in segments[run.start : run.stop]]
        for part in worth_joining(counts):
            chosen.update(range(run.start + part.start, run.start + part.stop))
    return adjacent([*sorted(chosen), *range(clean, end)], max_input_bytes)


def _left_horizon(segment: SegmentFacts, now_ms: int) -> int:
    """The horizon of the tombstones that stay in a clean segment: none that are due."""
    horizon_ms = segment.delete_horizon_ms
    return NO_TOMBSTONES if is_due(horizon_ms, now_ms) else horizon_ms


def _adjacent(
    numbers: Iterable[int],
    segments: Sequence[SegmentFacts],
    horizons: Sequence[int],
    clean: int,
    limits: tuple[int, int, int],
) -> list[Group]:
    """Segments with these numbers in groups of adjacent ones, as many as may become one.

    ``limits`` are those of the bytes of a group, of the milliseconds between the newest records of
    its segments, and ``delete.retention.ms``.
    """
    most_bytes, most_newest_ms, delete_retention_ms = limits
    groups: list[Group] = []
    size_bytes = least_ms = newest_ms = 0  # of the last group
    for number in numbers:
        is_dirty, horizon_ms = number >= clean, horizons[number]
        joined_bytes = size_bytes + segments[number].size_bytes
        at_ms = segments[number].max_timestamp_ms
        last = groups[-1] if groups else None
        if (
            last is not None
            and (last.stop, last.is_dirty) == (number, is_dirty)
            and joined_bytes <= most_bytes
            and max(newest_ms, at_ms) - min(least_ms, at_ms) <= most_newest_ms
            and may_share(last.delete_horizon_ms, horizon_ms, delete_retention_ms)
        ):
            horizon_ms = shared_horizon(last.delete_horizon_ms, horizon_ms)
            groups[-1] = Group(last.start, number + 1, is_dirty, horizon_ms)
            size_bytes = joined_bytes
            least_ms, newest_ms = min(least_ms, at_ms), max(newest_ms, at_ms)
        else:
            groups.append(Group(number, number + 1, is_dirty, horizon_ms))
            size_bytes, least_ms, newest_ms = segments[number].size_bytes, at_ms, at_ms
    return groups
