"""Data files on some of the roots: a model of how they are moved, and what it is without a rule."""

from __future__ import annotations

import pytest

from tests.support.replication.placement_model import BROKEN, Lost, Model
from tests.support.seeds import tried_first

pytestmark = pytest.mark.rule("R11")

FIRST = {"notes nothing": 157, "forgets the last copy": 134}
"""Seeds that notice what is broken; where none is named, one of the first ones does."""


@pytest.mark.condition(62)
def test_the_last_copy_is_never_deleted() -> None:
    runs = [Model(seed).run() for seed in range(60)]
    assert sum(run.trimmed for run in runs) > 100
    assert sum(run.forgotten for run in runs) > 10


@pytest.mark.more
@pytest.mark.parametrize("broken", BROKEN)
def test_a_rule_that_is_left_out_is_missed(broken: str) -> None:
    """Other seeds are tried after the first, so that the test does not depend on it."""
    for seed in tried_first(FIRST.get(broken, 0), 3000):
        try:
            Model(seed, broken).run()
        except Lost:
            break
    else:
        raise AssertionError(f"nobody loses anything where somebody {broken}")
    Model(seed).run()
