"""Assignors: those of Kafka's Python client judge ours on random groups."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.groups.plain_sticky import assign_plainly
from tests.support.runtime.call_counts import lines_of
from txnlog.errors import InvalidOption
from txnlog.groups import assignment
from txnlog.groups.assignment import (
    Assignor,
    Owned,
    Subscriptions,
    assign_range,
    assign_round_robin,
    assign_sticky,
    check_assignors,
)
from txnlog.names import TopicPartition

pytestmark = pytest.mark.rule("M1")

with warnings.catch_warnings():  # kafka-python loads its messages in a way that 3.11 warns of
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import (
        StickyAssignmentExecutor,
        StickyAssignorMemberMetadataV1,
    )
    from kafka.structs import TopicPartition as KafkaPartition

Counts = dict[str, int]


def random_group(chance: random.Random, *, alike: bool) -> tuple[Counts, dict[str, list[str]]]:
    counts = {f"t{n}": chance.randint(0, 9) for n in range(chance.randint(1, 6))}
    members = sorted(f"m{chance.randrange(10_000):04d}" for _ in range(chance.randint(1, 8)))
    subscriptions = {
        member: sorted(counts)
        if alike
        else sorted(chance.sample(sorted(counts), chance.randint(1, len(counts))))
        for member in members
    }
    read = {topic for topics in subscriptions.values() for topic in topics}
    return {topic: count for topic, count in counts.items() if topic in read}, subscriptions


class Cluster:
    """The part of kafka-python's cluster metadata that its assignors ask for."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {*range(self._counts[topic])}

    def topics(self) -> set[str]:
        return {*self._counts}


def members_of(subscriptions: Subscriptions) -> list[Any]:
    return [
        SimpleNamespace(
            member_id=member, group_instance_id=None, metadata=SimpleNamespace(topics=[*topics])
        )
        for member, topics in subscriptions.items()
    ]


def kafkas_sticky(
    counts: Counts, subscriptions: Subscriptions, owned: Owned
) -> dict[str, set[TopicPartition]]:
    metadata = {
        member: StickyAssignorMemberMetadataV1(
            partitions=[KafkaPartition(*where) for where in sorted(owned.get(member, ()))],
            generation=1 if owned else -1,
            subscription=[*topics],
        )
        for member, topics in subscriptions.items()
    }
    executor = StickyAssignmentExecutor(Cluster(counts), metadata)
    executor.perform_initial_assignment()
    executor.balance()
    return {
        member: {
            TopicPartition(topic, number)
            for topic, numbers in executor.get_final_assignment(member)
            for number in numbers
        }
        for member in subscriptions
    }


def check_judged(ours: Any, theirs: Any, *, seed: int, alike: bool) -> None:
    counts, subscriptions = random_group(random.Random(seed), alike=alike)
    judged = theirs.assign(Cluster(counts), members_of(subscriptions))
    expected = {
        member: {
            TopicPartition(topic, number)
            for topic, numbers in found.assigned_partitions
            for number in numbers
        }
        for member, found in judged.items()
    }
    found = ours(counts, subscriptions, {})
    assert {member: {*share} for member, share in found.items()} == expected, seed


def test_range_is_kafkas() -> None:
    for seed in range(300):
        check_judged(assign_range, RangePartitionAssignor, seed=seed, alike=seed % 2 == 0)


def test_round_robin_is_kafkas() -> None:
    # Where members differ kafka-python's raises KeyError; Kafka's own documentation has an example.
    for seed in range(150):
        check_judged(assign_round_robin, RoundRobinPartitionAssignor, seed=seed, alike=True)
    found = assign_round_robin(
        {"t0": 1, "t1": 2, "t2": 3},
        {"c0": ["t0"], "c1": ["t0", "t1"], "c2": ["t0", "t1", "t2"]},
        {},
    )
    assert {member: [f"{t}p{n}" for t, n in share] for member, share in found.items()} == {
        "c0": ["t0p0"],
        "c1": ["t1p0"],
        "c2": ["t1p1", "t2p0", "t2p1", "t2p2"],
    }


def is_even(subscriptions: Subscriptions, shares: dict[str, set[TopicPartition]]) -> bool:
    return not any(
        len(share) - len(shares[other]) >= 2
        for share in shares.values()
        for where in share
        for other, topics in subscriptions.items()
        if where.topic in topics
    )


def changed(
    chance: random.Random, counts: Counts, subscriptions: dict[str, list[str]], *, alike: bool
) -> tuple[Counts, dict[str, list[str]]]:
    """The group a while later: members come and go, topics grow and go."""
    after = {m: topics for m, topics in subscriptions.items() if chance.random() < 0.8}
    for _ in range(chance.randint(0 if after else 1, 2)):
        known = sorted(counts)
        topics = known if alike else sorted(chance.sample(known, chance.randint(1, len(known))))
        after[f"n{chance.randrange(10_000):04d}"] = topics
    read = {topic for topics in after.values() for topic in topics}
    grown = {t: c + chance.choice([0, 0, 0, 1, 3]) for t, c in counts.items() if t in read}
    return grown, after


@pytest.mark.parametrize("alike", [True, False])
def test_sticky_is_even_and_moves_nothing_that_need_not_move(alike: bool) -> None:
    # The last ones are those in which partitions have to be given back.
    for seed in [*range(150), 1515, 1953, 1975, 3022]:
        chance = random.Random(seed)
        counts, subscriptions = random_group(chance, alike=alike)
        first = {
            member: {*share} for member, share in assign_sticky(counts, subscriptions, {}).items()
        }
        counts, subscriptions = changed(chance, counts, subscriptions, alike=alike)
        found = assign_sticky(counts, subscriptions, first)
        shares = {member: {*share} for member, share in found.items()}
        given = Counter(where for share in found.values() for where in share)
        everything = {TopicPartition(t, n) for t, count in counts.items() for n in range(count)}
        assert given == dict.fromkeys(everything, 1), seed
        assert all(w.topic in subscriptions[m] for m, share in shares.items() for w in share), seed
        assert is_even(subscriptions, shares), seed
        owner = {where: member for member, share in shares.items() for where in share}
        moved = 0
        for member, had in first.items():
            for where in had & everything:
                if where.topic in subscriptions.get(member, ()) and owner[where] != member:
                    moved += 1
                    assert len(shares[member]) >= len(shares[owner[where]]), seed
        judged = kafkas_sticky(counts, subscriptions, first)
        theirs = sum(
            where not in judged[member]
            for member, had in first.items()
            if member in subscriptions
            for where in had & everything
            if where.topic in subscriptions[member]
        )
        if alike:
            assert moved <= theirs, seed
            assert sorted(map(len, shares.values())) == sorted(map(len, judged.values())), seed
            assert moved == _fewest_moves(first, counts, subscriptions, len(everything)), seed
        else:
            squares = [sum(len(s) ** 2 for s in each.values()) for each in (shares, judged)]
            assert squares[0] <= squares[1] or is_even(subscriptions, shares), seed


def _fewest_moves(
    first: Owned, counts: Counts, subscriptions: Subscriptions, everything: int
) -> int:
    """Of members that read the same: what those have too much that can keep at most a fair share.

    As many as there are partitions over may keep one more.
    """
    each, more = divmod(everything, len(subscriptions))
    known = {TopicPartition(t, n) for t, count in counts.items() for n in range(count)}
    kept = sorted((len(known & {*first.get(m, ())}) for m in subscriptions), reverse=True)
    return sum(max(0, had - each - (rank < more)) for rank, had in enumerate(kept))


def test_a_large_group_is_assigned_in_no_time() -> None:
    counts = {f"t{n}": 10 for n in range(100)}
    subscriptions = {f"m{n:03d}": sorted(counts) for n in range(100)}
    first = assign_sticky(counts, subscriptions, {})
    del subscriptions["m007"]
    again = assign_sticky(counts, subscriptions, first)
    assert {len(share) for share in again.values()} == {10, 11}
    assert all({*first[member]} <= {*share} for member, share in again.items())


def change(
    chance: random.Random, counts: Counts, subscriptions: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Some members leave, others come, and a topic gets more partitions."""
    kept = {member: topics for member, topics in subscriptions.items() if chance.random() < 0.7}
    for _ in range(chance.randint(0 if kept else 1, 3)):
        topics = chance.sample(sorted(counts), chance.randint(1, len(counts)))
        kept[f"n{chance.randrange(10_000):04d}"] = sorted(topics)
    grown = chance.choice(sorted(counts))
    counts[grown] += chance.randint(0, 5)
    return dict(sorted(kept.items()))


@pytest.mark.parametrize("alike", [True, False])
def test_sticky_is_what_its_plain_form_is(alike: bool) -> None:
    """Whoever comes and goes: to the partition, and in its order."""
    for seed in range(100):
        chance = random.Random(seed)
        counts, subscriptions = random_group(chance, alike=alike)
        if not counts:
            continue
        counts = {topic: count * chance.choice((1, 5)) for topic, count in counts.items()}
        owned: Owned = {}
        for _ in range(4):
            found = assign_sticky(counts, subscriptions, owned)
            assert found == assign_plainly(counts, subscriptions, owned), seed
            assert [*found] == [*subscriptions]
            if chance.random() < 0.2:  # members that claim what others have
                found[chance.choice([*found])] += chance.choice([*found.values()])
            owned, subscriptions = found, change(chance, counts, subscriptions)


@pytest.mark.parametrize("case", ["first", "left", "joined", "one had all"])
def test_a_group_of_twice_the_size_takes_twice_the_steps(case: str) -> None:
    """Of members and of partitions: 1,000 members share 100,000 partitions within seconds."""
    steps = [steps_of_sharing(case, scale) for scale in (1, 4)]
    assert steps[1] < 6 * steps[0]


def steps_of_sharing(case: str, scale: int) -> int:
    """Lines of the assignor that run; ``scale`` is of members and partitions."""
    counts = {f"t{n}": 20 * scale for n in range(4)}
    members = {f"m{n:03d}": sorted(counts) for n in range(8 * scale)}
    half = dict([*members.items()][: 4 * scale])
    before = {"left": members, "joined": half, "one had all": dict([*members.items()][:1])}
    owned = assign_sticky(counts, before[case], {}) if case in before else {}
    return lines_of(
        lambda: assign_sticky(counts, half if case == "left" else members, owned), assignment
    )


def _mine(counts: object, subscriptions: Subscriptions, owned: Owned) -> Any:
    return {member: [] for member in subscriptions}


def test_what_may_be_an_assignor() -> None:
    (mine,) = check_assignors(_mine)
    assert mine == Assignor("_mine", _mine)
    assert [a.name for a in check_assignors(["cooperative-sticky", mine])][1] == "_mine"
    assert check_assignors("range") == (assignment.RANGE,)
    for wrong in ["rang", [], ["range", "range"], 7, Assignor("range", _mine)]:
        with pytest.raises(InvalidOption):
            check_assignors(wrong)  # type: ignore[arg-type]
