"""Random long runs of eight processes, with faults at several rates, judged by a plain model.

The seed of a run that fails stands in its error; ``long_run(seed, weather)`` repeats it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.simulation.long_runs.judge import Fate
from tests.support.simulation.long_runs.run import (
    BROKEN,
    CALM,
    FAILING,
    ROUGH,
    STALLING,
    STORMY,
    TURNS,
    long_run,
)
from txnlog.testing import FaultRates

pytestmark = pytest.mark.rule("L11", "L12", "L13", "L14", "L17")

WEATHERS = {"calm": CALM, "rough": ROUGH, "stormy": STORMY, "stalling": STALLING}
SYNCS = {"failing": FAILING, "broken": BROKEN}
"""Single syncs fail, or for a while all those of some folders."""
SOAK_PARTS = 20
SOAK_TRANSACTIONS = 100_000


def run_many(seed: int, rates: FaultRates, transactions: int, **options: Any) -> None:
    """Runs with one seed after the other, until so many transactions are committed."""
    committed = 0
    while committed < transactions:
        world = long_run(seed, rates, **options)
        committed += world.judge.count(Fate.COMMITTED)
        # A refused snapshot is right now and then; if most were, this would judge nothing.
        assert world.refused < len(world.simulation.trace) / 100
        seed += 1


def test_a_long_run() -> None:
    """A short run alone, with some faults: about 50 committed transactions."""
    run_many(0, ROUGH, 1, turns=20)


@pytest.mark.parametrize(
    ("weather", "transactions"),
    [
        *(pytest.param(name, 1, marks=pytest.mark.more) for name in WEATHERS if name != "rough"),
        *(pytest.param(name, 500, marks=pytest.mark.slow) for name in WEATHERS),
    ],
)
def test_long_runs(weather: str, transactions: int) -> None:
    """A run in each weather, or as many as it takes to commit so many transactions."""
    run_many(1, WEATHERS[weather], transactions, turns=30 if transactions == 1 else TURNS)


@pytest.mark.slow
@pytest.mark.parametrize("ahead_ms", [None, -86_400_000])
def test_long_runs_without_evidence_of_the_storages_clock(ahead_ms: int | None) -> None:
    """It tells no time, or one that has nothing to do with anybody's: witnesses and a margin."""
    run_many(0, ROUGH, 200, storage_ahead_ms=ahead_ms)


@pytest.mark.parametrize("weather", ["failing", "broken"])
@pytest.mark.more
@pytest.mark.parametrize("transactions", [1, pytest.param(500, marks=pytest.mark.slow)])
def test_long_runs_with_power_cuts(weather: str, transactions: int) -> None:
    """Syncs fail, and so does the power now and then: what was acknowledged is there after it."""
    run_many(0, SYNCS[weather], transactions, turns=30 if transactions == 1 else TURNS)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_soak(part: int) -> None:
    """100,000 committed transactions in all, in parts that can be run at the same time."""
    weather = [CALM, ROUGH, STORMY, STALLING, FAILING, BROKEN][part % 6]
    run_many(part * 1_000_000, weather, SOAK_TRANSACTIONS // SOAK_PARTS)
