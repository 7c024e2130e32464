"""Every operation on a store, suspended at its requests while every other one runs whole.

``make test`` runs a slice in which each operation is suspended once and runs once, ``make
test-more`` such a slice for each way that time can pass, ``make soak`` all that differ, and random
triples. A case that fails is its own reproduction: the note of the error is what
``pairs.meeting.run`` takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.simulation.pairs.meeting import HOWS, Case, How, run
from tests.support.simulation.pairs.operation import OPERATIONS
from tests.support.simulation.pairs.slices import RULES, Counts, random_triples, run_pair, slice_of
from tests.support.simulation.pairs.world import small_numbers


@pytest.fixture(autouse=True)
def _small_numbers() -> Iterator[None]:
    with small_numbers():
        yield


@pytest.mark.few(1)
@pytest.mark.parametrize("rules", RULES)
def test_a_slice(rules: str) -> None:
    """Each operation is suspended once, and runs once: half of them by each rules."""
    counts = Counts()
    for case in slice_of(rules, HOWS, [7], stride=2):
        counts.run(case)
    assert len(counts.pairs) >= len(OPERATIONS) // 2
    assert counts.reached > len(OPERATIONS) // 4


@pytest.mark.more
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("rules", RULES)
def test_a_larger_slice(rules: str, how: How) -> None:
    """The same with a partner of each, another one in each way that time can pass."""
    counts = Counts()
    first = RULES.index(rules) + 2 * HOWS.index(how)
    for case in slice_of(rules, [how], [first]):
        counts.run(case)
    assert len(counts.pairs) == len(OPERATIONS)


def test_an_instance_that_sleeps_until_its_successor_is_settled() -> None:
    """It appends after its successor: that is aborted, and no damage."""
    run(Case("object store", "commit", "work on", 14, "later"))


@pytest.mark.parametrize("at", [17, 19])
def test_an_instance_that_sleeps_until_its_id_is_removed(at: int) -> None:
    """It puts its decision under the number that was the newest when others have looked."""
    assert run(Case("object store", "commit", "remove ids", at)).reached


@pytest.mark.slow
@pytest.mark.parametrize("first", OPERATIONS)
def test_all_pairs(first: str) -> None:
    """Wherever it makes a difference, in each way that time can pass, under both rules."""
    counts = Counts()
    for rules in RULES:
        for second in OPERATIONS:
            for how in HOWS:
                run_pair(counts, rules, first, second, how)
    assert len(counts.pairs) == len(OPERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_random_triples(seed: int) -> None:
    """Two stand still while a third one runs."""
    counts = Counts()
    for case in random_triples(seed, 250):
        counts.run(case)
    assert counts.cases >= 250
