"""Random long runs of eight processes, with faults at several rates, judged by a plain model.

``make soak`` runs a hundred thousand transactions; the seed of what fails is printed with it.
"""

from __future__ import annotations

import random

import pytest
from ledger import Fate
from workload import MOST_SKEW_MS, World, copy, feed, prepare, read, settle, transfer

from txnlog.testing import FaultRates, Process, Simulation

CALM = FaultRates()
ROUGH = FaultRates(
    fail=0.004, lose_response=0.004, land_late=0.002, delay=0.004, pause=0.0005, stop=0.0005
)
STORMY = FaultRates(
    fail=0.02, lose_response=0.02, land_late=0.01, delay=0.01, pause=0.002, stop=0.003
)
STALLING = FaultRates(delay=0.01, pause=0.004, delay_ms=(1_000, 200_000), stop=0.001)
WEATHERS = {"calm": CALM, "rough": ROUGH, "stormy": STORMY, "stalling": STALLING}
TURNS = 60


def long_run(seed: int, rates: FaultRates) -> World:
    """Eight processes, each with so many turns; one of several casts."""
    cast = random.Random(seed)
    simulation = Simulation(seed, rates=rates, step_ms=(0, 30))
    # A quarter of it must be more than clocks differ.
    world = prepare(simulation, cast.choice([86_400_000, 40_000]), TURNS)
    shared = cast.random() < 0.3

    def transfer_as_one(world: World, process: Process) -> None:
        transfer(world, process, "bank")

    def copy_as_one(world: World, process: Process) -> None:
        copy(world, process, "copy")

    banks = [transfer_as_one if shared else transfer] * 2 + [transfer]
    copiers = [copy_as_one if cast.random() < 0.3 else copy] * 2
    for number, body in enumerate([*banks, *copiers, feed, read, read]):
        skew_ms = cast.choice([0, 0, cast.randint(-MOST_SKEW_MS, MOST_SKEW_MS)])
        world.spawn(f"{body.__name__}{number}", body, skew_ms=skew_ms)
    simulation.run()
    settle(world)
    return world


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
