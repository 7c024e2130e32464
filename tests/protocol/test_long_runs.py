"""Random long runs of eight processes, with faults at several rates, judged by a plain model.

``make soak`` runs a hundred thousand transactions; the seed of what fails is printed with it.
"""

from __future__ import annotations

import pytest
from ledger import Fate
from workload import CALM, ROUGH, STALLING, STORMY, long_run

WEATHERS = {"calm": CALM, "rough": ROUGH, "stormy": STORMY, "stalling": STALLING}


def run_many(first_seed: int, runs: int, weather: str) -> int:
    """Returns how many transactions were committed."""
    committed = 0
    for seed in range(first_seed, first_seed + runs):
        world = long_run(seed, WEATHERS[weather])
        committed += world.ledger.count(Fate.COMMITTED)
        assert world.refused <= world.simulation.trace.__len__() // 100, "too few snapshots"
    return committed


@pytest.mark.parametrize("weather", WEATHERS)
def test_long_runs(weather: str) -> None:
    """Eight actors; at least 2,000 committed transactions over the four weathers."""
    assert run_many(0, 4, weather) >= 500
