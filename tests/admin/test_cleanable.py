"""What is compacted, and when: Kafka's LogCleanerManager, on segments that are only described."""

from __future__ import annotations

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
    return SegmentFacts(10 * number, 10 * number + 10, size, at_ms, at_ms, clean, horizon_ms)


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
    """A clean segment without anything superseded stays; dirty ones become clean, all of them."""
    segments = [facts(n, clean=n < 5) for n in range(8)]
    new = NOW_MS + DAY_MS
    assert groups(segments, {0, 1, 3}) == [(0, 2, False, -1), (3, 4, False, -1), (5, 8, True, new)]
    assert groups(segments, set()) == [(5, 8, True, new)]


def test_groups_are_bounded() -> None:
    """By their input; one segment is always taken."""
    segments = [facts(n, size=size) for n, size in enumerate((50, 50, 1, 500, 1))]
    found = groups(segments, set(), 100)
    assert [(start, stop) for start, stop, *_ in found] == [(0, 2), (2, 3), (3, 4), (4, 5)]


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
