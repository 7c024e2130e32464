"""What is compacted, and when: Kafka's LogCleanerManager, on segments that are only described."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from txnlog.admin.compaction.cleanable import (
    Cleanable,
    Group,
    SegmentFacts,
    find_cleanable,
    group_segments,
)
from txnlog.admin.compaction.tombstones import may_share
from txnlog.config import TopicConfig

NOW_MS = 1_000_000
DAY_MS = 86_400_000


def facts(
    number: int, *, clean: bool = False, size: int = 100, at_ms: int = 0, horizon_ms: int = -1
) -> SegmentFacts:
    """The segment of offsets [10 n, 10 n + 10)."""
    return SegmentFacts(10 * number, 10 * number + 10, size, at_ms, at_ms, clean, horizon_ms, size)


def find(segments: list[SegmentFacts], stable_offset: int = 1000, **config: str) -> Cleanable:
    settings = TopicConfig.of({k.replace("_", "."): v for k, v in config.items()})
    return find_cleanable(segments, settings, stable_offset=stable_offset, now_ms=NOW_MS)


def test_clean_then_dirty() -> None:
    """Bytes and ratio are of what can be cleaned, with all that is clean."""
    segments = [facts(0, clean=True, size=300), facts(1), facts(2)]
    found = find(segments)
    assert (found.clean, found.dirty) == (1, 2)
    assert (found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (300, 200, 0.4)
    assert not found.is_worth_while(0.5)
    assert not found.is_worth_while(0.4)  # as in Kafka it must be more
    assert found.is_worth_while(0.39)


def test_nothing_there_and_nothing_new() -> None:
    """Neither is worth anything, even if any ratio would do."""
    assert not find([]).is_worth_while(0)
    assert not find([facts(0, clean=True)]).is_worth_while(0)


@pytest.mark.parametrize(("stable", "dirty"), [(0, 0), (19, 0), (20, 1), (29, 1), (30, 2), (99, 2)])
def test_whole_segments_below_the_last_stable_offset(stable: int, dirty: int) -> None:
    """None that an open transaction may still reach into."""
    found = find([facts(0, clean=True), facts(1), facts(2)], stable)
    assert (found.clean, found.dirty) == (1, dirty)


def test_min_compaction_lag() -> None:
    """The first segment with a record that is younger holds all behind it."""
    times = (0, NOW_MS - 1000, NOW_MS - 999, 0)
    segments = [facts(n, at_ms=at_ms) for n, at_ms in enumerate(times)]
    assert find(segments, min_compaction_lag_ms="1000").dirty == 2
    assert find(segments, min_compaction_lag_ms="0").dirty == 4


def test_max_compaction_lag() -> None:
    """A record that waits for longer makes the partition due, whatever the ratio."""
    segments = [facts(0, clean=True, size=10**6), facts(1, at_ms=NOW_MS - 5000)]
    assert not find(segments).is_worth_while(0.5)
    assert not find(segments, max_compaction_lag_ms="5000").is_worth_while(0.5)
    assert find(segments, max_compaction_lag_ms="4999").is_worth_while(0.5)
    clean = [facts(0, clean=True, at_ms=1), facts(1, at_ms=-1)]
    assert not find(clean, max_compaction_lag_ms="1").is_overdue


def test_tombstones_that_are_due() -> None:
    """They are worth a compaction by themselves."""
    assert find([facts(0, clean=True, horizon_ms=NOW_MS)]).is_worth_while(0.5)
    assert not find([facts(0, clean=True, horizon_ms=NOW_MS + 1)]).is_worth_while(0)
    assert not find([facts(0, horizon_ms=NOW_MS)]).has_due_tombstones


def groups(
    segments: list[SegmentFacts], touched: set[int], most_bytes: int = 1 << 30, **config: str
) -> list[tuple[int, int, bool, int]]:
    settings = TopicConfig.of({k.replace("_", "."): v for k, v in config.items()})
    found = find_cleanable(segments, settings, stable_offset=10**6, now_ms=NOW_MS)
    grouped = group_segments(
        segments,
        found,
        lambda number: number in touched,
        settings,
        new_horizon_ms=NOW_MS + DAY_MS,
        now_ms=NOW_MS,
        max_input_bytes=most_bytes,
    )
    assert all(isinstance(group, Group) for group in grouped)
    return [(g.start, g.stop, g.is_dirty, g.delete_horizon_ms) for g in grouped]


def test_clean_before_dirty_and_only_what_changes() -> None:
    """A clean segment without anything superseded stays; dirty ones become clean, all of them.

    These are large: small ones are joined.
    """
    segments = [facts(n, clean=n < 5, size=1 << 29) for n in range(8)]
    new = NOW_MS + DAY_MS
    most = 3 << 29
    assert groups(segments, {0, 1, 3}, most) == [
        (0, 2, False, -1),
        (3, 4, False, -1),
        (5, 8, True, new),
    ]
    assert groups(segments, set(), most) == [(5, 8, True, new)]
    few = [*segments[:2], *(facts(n, clean=True, size=9) for n in range(2, 5)), *segments[5:]]
    assert groups(few, set(), most) == [(5, 8, True, new)]
    small = [facts(n, clean=n < 5) for n in range(8)]
    assert groups(small, {1}) == groups(small, set()) == [(0, 5, False, -1), (5, 8, True, new)]
    assert groups(small, set(), segment_bytes="400") == [(0, 4, False, -1), (5, 8, True, new)]


def test_groups_are_bounded() -> None:
    """By their input; one segment is always taken."""
    segments = [facts(n, size=size) for n, size in enumerate((50, 50, 1, 500, 1))]
    found = groups(segments, set(), 100)
    assert [(start, stop) for start, stop, *_ in found] == [(0, 2), (2, 3), (3, 4), (4, 5)]


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_retention_bounds_what_becomes_one(policy: str) -> None:
    """It deletes whole segments: an eighth of what it keeps, by bytes, or by the newest times."""
    segments = [facts(n, clean=n < 9, at_ms=100 * n) for n in range(12)]
    all_clean = set(range(9))
    by_bytes = groups(segments, all_clean, cleanup_policy=policy, retention_bytes="2500")
    by_time = groups(segments, all_clean, cleanup_policy=policy, retention_ms="1600")
    found = {0, 3, 6, 9} if policy == "compact,delete" else {0, 9}
    assert {start for start, *_ in by_bytes} == {start for start, *_ in by_time} == found


@dataclass
class Life:
    """A partition that is compacted again and again, as far as sizes tell."""

    dice: random.Random
    settings: TopicConfig
    segments: list[SegmentFacts] = field(default_factory=list)
    now_ms: int = 100 * DAY_MS
    offset: int = 0
    untouched: int = 0
    """The bytes of clean segments that were written again though they lost none."""

    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            self._add(self.offset, size, self.now_ms)
            self.offset += 1

    def _add(self, base: int, size: int, at_ms: int, horizon_ms: int | None = None) -> None:
        is_clean = horizon_ms is not None
        horizon = -1 if horizon_ms is None else horizon_ms
        self.segments.append(
            SegmentFacts(base, base + 1, size, at_ms, at_ms, is_clean, horizon, size)
        )

    def compact(self, touched_share: float, tombstones: bool) -> None:
        """Of what is touched a tenth goes."""
        found = find_cleanable(
            self.segments, self.settings, stable_offset=self.offset, now_ms=self.now_ms
        )
        touched = {n for n in range(found.clean) if self.dice.random() < touched_share}
        chosen = group_segments(
            self.segments,
            found,
            lambda number: number in touched,
            self.settings,
            new_horizon_ms=self.now_ms + self.settings.delete_retention_ms,
            now_ms=self.now_ms,
            max_input_bytes=1 << 30,
        )
        covered = [n for group in chosen for n in range(group.start, group.stop)]
        assert covered == sorted({*covered})
        assert {*range(found.clean, found.clean + found.dirty)} | touched <= {*covered}
        old, self.segments = self.segments, []
        for number, segment in enumerate(old):
            if number not in covered:
                self.segments.append(segment)
        for group in chosen:
            self._rewrite(group, old, touched, tombstones)
        self.segments.sort(key=lambda segment: segment.base_offset)

    def _rewrite(
        self, group: Group, old: list[SegmentFacts], touched: set[int], tombstones: bool
    ) -> None:
        left = 0
        for number in range(group.start, group.stop):
            size = old[number].size_bytes
            if not group.is_dirty and number not in touched:
                self.untouched += size
            left += size - size // 10 if number in touched else size
        horizon = group.delete_horizon_ms if tombstones or not group.is_dirty else -1
        base, newest = old[group.start].base_offset, old[group.stop - 1].max_timestamp_ms
        while left > 0:
            size = min(left, self.settings.segment_bytes)
            self._add(base, size, newest, horizon)
            left -= size
            base += 1


@pytest.mark.few(3)
@pytest.mark.parametrize("tombstones", [False, True])
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("touched_share", [0, 0.02, 0.3])
@pytest.mark.parametrize("sizes", ["alike", "mixed"])
def test_segments_stay_few_and_each_record_is_rewritten_a_few_times(
    sizes: str, touched_share: float, policy: str, tombstones: bool
) -> None:
    """Hundreds of compactions, each behind some appends."""
    rounds, most = 400, 50_000
    config = {"cleanup.policy": policy, "segment.bytes": str(most), "min.compaction.lag.ms": "0"}
    life = Life(random.Random(7), TopicConfig.of({**config, "retention.ms": str(20 * DAY_MS)}))
    appended = 0
    for _ in range(rounds):
        some = [life.dice.choice([10, 100, 3000]) if sizes == "mixed" else 100 for _ in range(3)]
        life.append(some)
        appended += sum(some)
        life.compact(touched_share, tombstones)
        life.now_ms += DAY_MS // 24
    # Those with tombstones come together when these may go, after a day.
    waiting = 24 if tombstones else 0
    assert len(life.segments) < 30 + waiting + 4 * (appended // most)
    # A segment doubles each time, and of the largest ones one record in 500 came with each append.
    assert life.untouched < 8 * appended


def test_horizons_of_a_group() -> None:
    """Only those of the same eighth of the retention come together; due ones are none."""
    base = 16 * DAY_MS // 8
    at = (base, base + 5, -1, base + DAY_MS // 8, NOW_MS - 1, base + DAY_MS // 8 + 9)
    segments = [facts(n, clean=True, horizon_ms=horizon_ms) for n, horizon_ms in enumerate(at)]
    assert groups(segments, set(range(6))) == [
        (0, 3, False, base + 5),
        (3, 6, False, base + DAY_MS // 8 + 9),
    ]
    # What is due is rewritten whether something of it is superseded or not.
    assert groups(segments, set()) == [(4, 5, False, -1)]


def test_no_chain_of_neighbours_puts_a_horizon_off_for_long() -> None:
    """However often segments come together, with whatever lies between."""
    horizon, start = 1_000_000_007, 1_000_000_007
    for step in range(10_000):
        other = start + step * DAY_MS // 10_000
        if may_share(horizon, other, DAY_MS):
            horizon = max(horizon, other)
    assert horizon - start < DAY_MS // 8
    assert may_share(5, -1, 0)
    assert may_share(-1, 7, 0)
    assert may_share(7, 7, 0)
    assert not may_share(6, 7, 0)
