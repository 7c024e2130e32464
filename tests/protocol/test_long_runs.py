"""Random long runs of eight processes, with faults at several rates, judged by a plain model.

The seed of a run that fails stands in its error; ``long_run(seed, weather)`` repeats it.
"""

from __future__ import annotations

import pytest
from ledger import Fate
from workload import CALM, FAILING, ROUGH, STALLING, STORMY, long_run

from txnlog.testing import FaultRates

WEATHERS = {"calm": CALM, "rough": ROUGH, "stormy": STORMY, "stalling": STALLING}
SOAK_PARTS = 20
SOAK_TRANSACTIONS = 100_000


def run_many(seed: int, rates: FaultRates, transactions: int) -> None:
    """Runs with one seed after the other, until so many transactions are committed."""
    committed = 0
    while committed < transactions:
        world = long_run(seed, rates)
        committed += world.ledger.count(Fate.COMMITTED)
        # A refused snapshot is right now and then; if most were, this would judge nothing.
        assert world.refused < len(world.simulation.trace) / 100
        seed += 1


@pytest.mark.parametrize("weather", WEATHERS)
def test_long_runs(weather: str) -> None:
    """At least 2,000 committed transactions over the four weathers."""
    run_many(0, WEATHERS[weather], 500)


# Until whoever acts on a put that failed, or on somebody else's decision, confirms it, this fails.
def test_long_runs_with_power_cuts() -> None:
    """Syncs fail, and so does the power now and then: what was acknowledged is there after it."""
    run_many(0, FAILING, 500)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_soak(part: int) -> None:
    """100,000 committed transactions in all, in parts that can be run at the same time."""
    weather = [CALM, ROUGH, STORMY, STALLING, FAILING][part % 5]
    run_many(part * 1_000_000, weather, SOAK_TRANSACTIONS // SOAK_PARTS)
