"""The consistent cut at a time, against a slow and simple judge (condition 31, invariant S2)."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence

import pytest

from txnlog.names import TopicPartition
from txnlog.state.cut import Part, consistent_cut, cut_at_time

pytestmark = pytest.mark.rule("S2")

PLACES = [TopicPartition(topic, partition) for topic in "ab" for partition in range(2)]
A, B = PLACES[0], PLACES[2]


def test_a_transaction_counts_as_of_its_last_append() -> None:
    """What lies behind its first one is hidden with it, everywhere."""
    parts = [
        Part("early", {A: 0}, 1),
        Part("long", {A: 1}, 2),
        Part("behind", {A: 2, B: 0}, 3),
        Part("free", {B: 4}, 3),
        Part("long", {B: 5}, 9),
    ]
    assert cut_at_time({A: 3, B: 6}, parts, 8) == {A: 1, B: 0}
    assert cut_at_time({A: 3, B: 6}, parts, 9) == {A: 3, B: 6}
    assert cut_at_time({A: 3, B: 6}, parts, 0) == {A: 0, B: 0}


@pytest.mark.condition(31)
def test_random_histories_are_cut_at_any_time_as_they_stood_then() -> None:
    """Whole units, none that is later, as many as can be, and all that a snapshot showed then."""
    for seed in range(150):
        rng = random.Random(seed)
        parts, commits, ends = _history(rng, skew=rng.choice([0, 0, 3]))
        for now in rng.sample(range(45), 5):
            cut = cut_at_time(ends, parts, now)
            latest = {p.unit: max(o.at_ms for o in parts if o.unit == p.unit) for p in parts}
            shown = {p.unit for p in parts for w, at in p.first_offsets.items() if at < cut[w]}
            hidden = {p.unit for p in parts if p.reaches(cut)}
            assert not shown & hidden, f"seed {seed} at {now} tears {shown & hidden}"
            assert all(latest[unit] <= now for unit in shown), f"seed {seed} at {now}"
            assert cut == _judge(ends, parts, latest, now), f"seed {seed} at {now}"
            if all(part.at_ms == when for part, when in commits.placed):
                then = _snapshot(ends, commits, now)
                assert all(cut[w] >= then[w] for w in PLACES), f"seed {seed} at {now}"


class _Commits:
    """When appends were placed by the true time, and when their units were committed."""

    def __init__(self) -> None:
        self.placed: list[tuple[Part, int]] = []
        self.at: dict[Hashable, int] = {}


def _history(
    rng: random.Random, skew: int
) -> tuple[list[Part], _Commits, dict[TopicPartition, int]]:
    """Appends of transactions that overlap, by clocks that may be wrong, in the order of logs."""
    ends = dict.fromkeys(PLACES, 0)
    commits = _Commits()
    open_units: list[str] = []
    for now in range(1, 40):
        if rng.random() < 0.3:
            open_units.append(f"t{now}")
        unit: Hashable = rng.choice(open_units) if open_units and rng.random() < 0.7 else now
        chosen = rng.sample(PLACES, rng.randint(1, 2))
        part = Part(unit, {place: ends[place] for place in chosen}, now + rng.randint(0, skew))
        commits.placed.append((part, now))
        for place in chosen:
            ends[place] += rng.randint(1, 3)
        if not isinstance(unit, str):
            commits.at[unit] = now
        if open_units and rng.random() < 0.3:
            done = open_units.pop(rng.randrange(len(open_units)))
            commits.at[done] = now
    for left in open_units:
        commits.at[left] = 40
    return [part for part, _ in commits.placed], commits, ends


def _snapshot(
    ends: Mapping[TopicPartition, int], commits: _Commits, now: int
) -> dict[TopicPartition, int]:
    """What ``read_committed`` would have shown at that time."""
    then = [part for part, placed in commits.placed if placed <= now]
    stable = dict(ends)
    for part, placed in commits.placed:
        if placed > now or commits.at[part.unit] > now:
            for place, offset in part.first_offsets.items():
                stable[place] = min(stable[place], offset)
    return consistent_cut(stable, then)


def _judge(
    ends: Mapping[TopicPartition, int],
    parts: Sequence[Part],
    latest: Mapping[Hashable, int],
    now: int,
) -> dict[TopicPartition, int]:
    """Cuts one append at a time until nothing is late and nothing is torn."""
    cut = dict(ends)
    while True:
        hidden = {p.unit for p in parts if p.reaches(cut) or latest[p.unit] > now}
        wrong = [
            (place, offset)
            for part in parts
            if part.unit in hidden
            for place, offset in part.first_offsets.items()
            if offset < cut[place]
        ]
        if not wrong:
            return cut
        place, offset = wrong[0]
        cut[place] = offset
