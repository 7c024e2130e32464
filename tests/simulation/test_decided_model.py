"""Names whose bytes are decided before they are put, data without a look: a model of the rules."""

from __future__ import annotations

import pytest

from tests.support.replication.decided_model import BROKEN, OLDER, Model, Violation
from tests.support.seeds import tried_first

pytestmark = pytest.mark.rule("R13", "T10")

MORE = pytest.param(60, marks=pytest.mark.more)
MANY = pytest.param(300, marks=pytest.mark.slow)
FIRST = {"believes a listing of states": 566, "leaves the look for data to the appends": 34}
"""Seeds that notice what is broken; where none is named, one of the first ones does."""


@pytest.mark.few(1)
@pytest.mark.parametrize("older", [False, True])
def test_nothing_is_lost_and_nobody_is_put_out_for_nothing(*, older: bool) -> None:
    """Also where others complete with bytes of their own."""
    check(range(50), older=older)


@pytest.mark.parametrize("runs", [MORE, MANY])
@pytest.mark.parametrize("older", [False, True])
def test_more_runs(runs: int, *, older: bool) -> None:
    check(range(1000, 1000 + runs), older=older)


def check(seeds: range, *, older: bool) -> None:
    runs = [Model(seed, older=older).run() for seed in seeds]
    assert sum(run.commits for run in runs) > len(seeds)
    assert sum(run.elections for run in runs) > len(seeds) / 2
    assert sum(run.joined for run in runs) > len(seeds)
    assert sum(run.unclean for run in runs) > len(seeds) / 5
    assert sum(run.data_again for run in runs) > len(seeds) / 5
    assert sum(run.taken for run in runs) > (len(seeds) / 5 if older else -1)


@pytest.mark.more
@pytest.mark.parametrize("broken", BROKEN)
def test_a_rule_that_is_left_out_is_missed(broken: str) -> None:
    """Other seeds are tried after the first, so that the test does not depend on it."""
    for seed in tried_first(FIRST.get(broken, 0), 3000):
        try:
            Model(seed, broken, older=broken in OLDER).run()
        except Violation:
            break
    else:
        raise AssertionError(f"nobody misses anything where somebody {broken}")
    Model(seed, older=broken in OLDER).run()
