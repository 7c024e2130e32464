"""Which cases of a test are left to `make test-more`."""

from itertools import product

from tests.support.tiers import choose

_CASES = [
    {"storage": storage, "seed": seed, "typed": typed}
    for storage, seed, typed in product(["disk", "s3", "memory"], range(2), [False, True])
]


def test_each_value_stands_in_a_case_that_is_kept() -> None:
    kept = [_CASES[number] for number in choose(_CASES, 10)]
    assert len(kept) == 3
    for name in ("storage", "seed", "typed"):
        assert {case[name] for case in kept} == {case[name] for case in _CASES}


def test_no_more_are_kept_than_said() -> None:
    assert len(choose(_CASES, 2)) == 2
    assert choose(_CASES[:1], 2) == {0}
