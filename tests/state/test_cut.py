"""The consistent cut, against a slow and simple judge: condition 31 in its pure form."""

from __future__ import annotations

import random

import pytest

from txnlog.names import TopicPartition
from txnlog.state.cut import Part, consistent_cut

pytestmark = pytest.mark.rule("L6", "S1", "hazard 5")

PLACES = [TopicPartition(topic, partition) for topic in "ab" for partition in range(2)]


def test_what_lies_behind_an_open_transaction_is_hidden_everywhere() -> None:
    """A commit visible in one topic must not hide in another: the plain stable offsets tear."""
    a, b = PLACES[0], PLACES[2]
    parts = [Part("open", {b: 0}), Part("committed", {b: 5}), Part("committed", {a: 3})]
    assert consistent_cut({a: 9, b: 0}, parts) == {a: 3, b: 0}


def test_hiding_spreads() -> None:
    """What a cut hides joins the hidden ones, until nothing changes."""
    a, b, c = PLACES[:3]
    parts = [
        Part("x", {a: 5, b: 5}),
        Part("y", {b: 6, c: 2}),
        Part("z", {c: 1}),
        Part("last", {c: 3}),
    ]
    assert consistent_cut({a: 5, b: 9, c: 9}, parts) == {a: 5, b: 5, c: 2}


def test_what_lies_in_an_added_partition_is_hidden_everywhere() -> None:
    """A partition without an end was added since: all in it lies beyond the cut."""
    a, added, b = PLACES[:3]
    parts = [Part("t", {added: 0}), Part("t", {b: 3}), Part("behind", {b: 4, a: 1})]
    assert consistent_cut({a: 2, b: 9}, parts) == {a: 1, b: 3}
    assert parts[0].reaches({a: 2, b: 9})


def test_what_was_made_of_records_needs_the_last_of_them() -> None:
    """It shows if the partition's end is just behind what it has consumed."""
    a, b = PLACES[0], PLACES[2]
    parts = [Part("effect", {b: 2}), Part("effect", {}, needs={a: 4})]
    assert consistent_cut({a: 4, b: 3}, parts) == {a: 4, b: 3}
    assert consistent_cut({a: 3, b: 3}, parts) == {a: 3, b: 2}


@pytest.mark.condition(31)
def test_random_histories_are_never_torn_and_never_cut_too_far() -> None:
    """Each unit is whole or absent, and no greater cut would do, checked one by one."""
    for seed in range(500):
        rng = random.Random(seed)
        ends = dict.fromkeys(PLACES, 0)
        parts = []
        for _ in range(rng.randint(1, 12)):
            chosen = rng.sample(PLACES, rng.randint(1, len(PLACES)))
            parts.append(Part(rng.randint(0, 6), {p: ends[p] for p in chosen}))
            for place in chosen:
                ends[place] += rng.randint(1, 3)
        known = PLACES[: rng.choice([2, 3, 4, 4])]
        asked = {place: rng.randint(0, ends[place]) for place in known}
        cut = consistent_cut(asked, parts)
        assert cut.keys() == asked.keys()
        places = [(part.unit, p, at) for part in parts for p, at in part.first_offsets.items()]
        hidden = {unit for unit, p, at in places if at >= cut.get(p, 0)}
        shown = {unit for unit, p, at in places if at < cut.get(p, 0)}
        assert not hidden & shown, f"seed {seed} tears {hidden & shown}"
        assert cut == _judge(asked, parts), f"seed {seed}"


def _judge(asked: dict[TopicPartition, int], parts: list[Part]) -> dict[TopicPartition, int]:
    """Cuts one unit at a time until none is torn."""
    cut = dict(asked)
    changed = True
    while changed:
        changed = False
        for unit in {part.unit for part in parts}:
            mine = [(p, at) for q in parts if q.unit == unit for p, at in q.first_offsets.items()]
            if any(at >= cut.get(p, 0) for p, at in mine):
                for place, at in mine:
                    if at < cut.get(place, 0):
                        cut[place] = at
                        changed = True
    return cut
