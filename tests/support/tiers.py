"""Which cases of a test `make test` runs, and which `make test-more` alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def more(cases: Iterable[object]) -> list[Any]:
    """Values of one parameter that are left to `make test-more`."""
    return [pytest.param(case, marks=pytest.mark.more) for case in cases]


def leave_to_more(items: Iterable[pytest.Item]) -> None:
    """Mark all cases of tests marked ``few(n)`` as ``more``, but for those that are chosen."""
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        is_left = any(item.get_closest_marker(name) for name in ("more", "slow"))
        if isinstance(item, pytest.Function) and item.get_closest_marker("few") and not is_left:
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_one in cases.values():
        marker = of_one[0].get_closest_marker("few")
        assert marker
        kept = choose([item.callspec.params for item in of_one], *marker.args)
        for number, item in enumerate(of_one):
            if number not in kept:
                item.add_marker(pytest.mark.more)


def choose(cases: Sequence[dict[str, object]], most: int) -> set[int]:
    """Numbers of cases, at most so many, in which as many values of parameters stand as can."""
    values = [{(name, id(value)) for name, value in case.items()} for case in cases]
    kept: set[int] = set()
    seen: set[tuple[str, int]] = set()
    while len(kept) < min(most, len(cases)):
        left = [number for number in range(len(cases)) if number not in kept]
        best = max(left, key=lambda number: len(values[number] - seen))
        if not values[best] - seen:
            break
        kept.add(best)
        seen |= values[best]
    return kept
