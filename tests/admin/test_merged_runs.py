"""Which segments are merged: runs of small ones, each record a few times in all."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from txnlog.admin.merge_topic import choose_runs
from txnlog.state.segment import KafkaFile, RewrittenFile, Segment, SegmentEntry, StoredSegment


def segment(
    base: int,
    count: int,
    size: int = 100,
    entry: int = 1,
    at_ms: int = 0,
    kafka: KafkaFile | None = None,
    late_ms: int = 0,
) -> Segment:
    """A segment of so many records, the oldest of which came so late."""
    stored = StoredSegment(f"s{base}", count, size, at_ms - late_ms, at_ms, kafka=kafka)
    return Segment.of(entry, SegmentEntry(0, base, stored))


FOR_EVER_MS = (1 << 63) - 1


def chosen(
    segments: list[Segment],
    most_bytes: int = 10_000,
    most_ms: int = FOR_EVER_MS,
    most_newest_ms: int = FOR_EVER_MS,
    hidden: frozenset[int] = frozenset(),
) -> list[tuple[int, int]]:
    """The runs, each as the first offset and the number of segments."""
    runs = choose_runs(segments, hidden, most_bytes, most_ms, most_newest_ms)
    return [(run[0].base_offset, len(run)) for run in runs]


def side_by_side(*counts: int, size: int = 100) -> list[Segment]:
    ends = [*itertools.accumulate(counts)]
    return [segment(end - n, n, size=size) for n, end in zip(counts, ends, strict=True)]


def test_a_run_is_bounded_in_bytes() -> None:
    assert chosen(side_by_side(*[1] * 10), most_bytes=500) == [(0, 5), (5, 5)]


def test_few_segments_are_left_alone() -> None:
    assert chosen(side_by_side(1, 1, 1)) == []
    assert chosen(side_by_side(1, 1, 1, 1)) == [(0, 4)]


def test_a_large_segment_is_not_rewritten_for_small_ones() -> None:
    """Else a record would be rewritten with each run; large ones wait for others of their size."""
    assert chosen(side_by_side(100, 1, 1, 1, 1)) == [(100, 4)]
    assert chosen(side_by_side(1, 1, 1, 1, 100, 1, 1)) == [(0, 4)]
    assert chosen(side_by_side(100, 90, 80, 70, 1)) == [(0, 5)]


def test_a_record_is_rewritten_a_few_times_in_all() -> None:
    """1,000 runs, each behind an append of one record."""
    segments: list[Segment] = []
    rewritten = 0
    for offset in range(1000):
        segments.append(segment(offset, 1))
        for run in choose_runs(segments, frozenset(), 1 << 40, FOR_EVER_MS, FOR_EVER_MS):
            count = sum(one.stored.record_count for one in run)
            rewritten += count
            at = segments.index(run[0])
            segments[at : at + len(run)] = [segment(run[0].base_offset, count)]
    assert rewritten < 12 * 1000
    assert len(segments) < 40


def test_records_lie_no_further_apart_than_retention_needs() -> None:
    """That goes by the newest of each segment: a record that came late keeps nothing apart."""
    for late_ms in (0, 10, 1000):
        for step_ms in (10, -10):
            segments = [segment(n, 1, at_ms=n * step_ms, late_ms=late_ms) for n in range(12)]
            assert chosen(segments, most_newest_ms=50) == [(0, 6), (6, 6)]


def test_records_lie_no_further_apart_than_the_topic_allows() -> None:
    segments = [segment(n, 1, at_ms=n * 10) for n in range(12)]
    assert chosen(segments, most_ms=50) == [(0, 6), (6, 6)]
    late = [segment(n, 1, at_ms=n * 10, late_ms=30) for n in range(12)]
    assert chosen(late, most_ms=60) == [(0, 4), (4, 4), (8, 4)]


def test_what_is_not_merged_parts_runs() -> None:
    """Kafka's own segments, aborted ones, gaps."""
    plain = side_by_side(*[1] * 9)
    kafka = segment(4, 1, kafka=KafkaFile(1))
    assert chosen([*plain[:4], kafka, *plain[5:]]) == [(0, 4), (5, 4)]
    aborted = segment(4, 1, entry=7)
    assert chosen([*plain[:4], aborted, *plain[5:]], hidden=frozenset({7})) == [(0, 4), (5, 4)]
    assert chosen([*plain[:4], *plain[5:]]) == [(0, 4), (5, 4)]


def test_old_aborted_ones_part_no_run() -> None:
    """They go with what is around them; nor do they begin or end a run, or are worth one."""
    shown = [1, 1, 0, 1, 1, 0]

    def runs(shown: list[int], until_ms: int = 0) -> list[tuple[int, int]]:
        segments = [segment(n, 1, entry=1 if one else 7) for n, one in enumerate(shown)]
        found = choose_runs(
            segments,
            frozenset({7}),
            10_000,
            FOR_EVER_MS,
            FOR_EVER_MS,
            aborted_until_ms=until_ms,
        )
        return [(run[0].base_offset, len(run)) for run in found]

    assert runs(shown, until_ms=-1) == []
    assert runs(shown) == [(0, 5)]
    assert runs([0, 0, *shown]) == [(2, 5)]
    assert runs([0] * 9) == runs([0, 0, 0, 1, 0, 0, 0]) == []
    assert runs([1, 0, 0, 1]) == [(0, 4)]


def test_what_compaction_has_left_is_merged_with_the_like_alone() -> None:
    """Where compaction does it no more."""
    plain = side_by_side(*[1] * 12)
    special = RewrittenFile(1, is_compacted=True)
    left = [replace(one, stored=replace(one.stored, rewritten=special)) for one in plain[:6]]
    assert chosen([*left, *plain[6:]]) == [(6, 6)]
    found = choose_runs(
        [*left, *plain[6:]], frozenset(), 10_000, FOR_EVER_MS, FOR_EVER_MS, takes_compacted=True
    )
    assert [(run[0].base_offset, len(run)) for run in found] == [(0, 6), (6, 6)]


def test_what_a_purge_has_emptied_parts_no_run() -> None:
    """Only that: of what compaction has emptied it knows up to where it has judged."""
    plain = side_by_side(*[1] * 9)
    for special, runs in (
        (RewrittenFile(1, purged_from=0), [(0, 7)]),
        (RewrittenFile(1, purged_from=0, is_compacted=True), [(0, 4)]),
        (RewrittenFile(1), [(0, 4)]),
    ):
        emptied = [
            Segment.of(9, SegmentEntry(0, base, StoredSegment.emptied(special))) for base in (4, 5)
        ]
        left = [*plain[:4], *plain[6:]]
        found = choose_runs(left, frozenset(), 10_000, FOR_EVER_MS, FOR_EVER_MS, emptied)
        assert [(run[0].base_offset, len(run)) for run in found] == runs
