"""Which cases there are, and which of them are run: all, or those that differ, or a few of each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tests.support.simulation.pairs.meeting import HOWS, Case, Footprint, How, Ran, alone, run
from tests.support.simulation.pairs.operation import OPERATIONS

RULES = ("disk", "object store")
LAST = 1_000_000
"""A request that no operation reaches: both run one after the other."""


@dataclass
class Counts:
    """What has run."""

    pairs: set[tuple[str, str]] = field(default_factory=set)
    cases: int = 0
    reached: int = 0

    def run(self, case: Case) -> Ran:
        """Run a case, and count it."""
        ran = run(case)
        self.pairs.add((case.first, case.second))
        self.cases += 1
        self.reached += ran.reached
        return ran


@cache
def length(rules: str, first: str) -> int:
    """How many requests an operation makes."""
    return len(alone(rules, first))


def slice_of(
    rules: str, hows: Sequence[How], shifts: Sequence[int], *, stride: int = 1
) -> Iterator[Case]:
    """Each operation is suspended at one request by the one so far after it, for each shift.

    With a stride of two, each second one by the rules of a disk, and the others by the other rules.
    """
    names = [*OPERATIONS]
    chance = random.Random(rules)
    for shift in shifts:
        for number, first in list(enumerate(names))[RULES.index(rules) % stride :: stride]:
            second = names[(number + shift) % len(names)]
            most = length(rules, first)
            yield Case(
                rules,
                first,
                second,
                chance.randrange(most + 1),
                hows[(number + shift) % len(hows)],
                within=chance.random() < 0.2,
            )


def run_pair(counts: Counts, rules: str, first: str, second: str, how: How) -> None:
    """Suspend an operation wherever it makes a difference to the other one, and within listings.

    Two neighbouring requests make none if the one between them is about nothing that the other one
    looks at or changes.
    """
    whole = counts.run(Case(rules, first, second, LAST, how))
    met = whole.others
    at = 0
    while at <= len(whole.footprint):
        case = Case(rules, first, second, at, how)
        ran = counts.run(case)
        met = [*met, *ran.others]
        if at < len(whole.footprint) and is_torn(whole.footprint, at):
            counts.run(replace(case, within=True))
        while at < len(whole.footprint) and not conflicts(whole.footprint[at], met):
            at += 1
        at += 1


def is_torn(footprint: Footprint, at: int) -> bool:
    """Whether a request is about several objects."""
    return len(footprint[at]) > 1 or not any("." in name for name, _ in footprint[at])


def conflicts(request: set[tuple[str, bool]], others: Footprint) -> bool:
    """Whether one of them changes what the other one is about."""
    return any(
        (changes or changes_too)
        and (name == other or other.startswith(f"{name}/") or name.startswith(f"{other}/"))
        for name, changes in request
        for some in others
        for other, changes_too in some
    )


def random_triples(seed: int, count: int) -> Iterator[Case]:
    """Two operations that stand still while a third one runs, by a seed."""
    chance = random.Random(seed)
    names = [*OPERATIONS]
    for _ in range(count):
        rules = chance.choice(RULES)
        first, second, third = (chance.choice(names) for _ in range(3))
        at = chance.randrange(length(rules, first) + 1)
        third_at = chance.randrange(length(rules, third) + 1)
        how = chance.choice(HOWS)
        yield Case(rules, first, second, at, how, third=third, third_at=third_at)
