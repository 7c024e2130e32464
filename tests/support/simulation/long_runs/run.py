"""One long run: who takes part in it, with which faults and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from tests.support.log.settling import settling_early
from tests.support.simulation.long_runs.readers import doze, read, settle
from tests.support.simulation.long_runs.world import MOST_SKEW_MS, TIMEOUT_MS, Body, World, prepare
from tests.support.simulation.long_runs.writers import (
    copy,
    feed,
    merge,
    overlap,
    recopy,
    reset,
    tidy,
    transfer,
)
from txnlog.storage.base import Storage
from txnlog.testing import ClockFaults, FaultRates, HeapStorage, Process, Simulation

TURNS = 60
DAY_MS = 86_400_000
LEAST_AGE_MS = TIMEOUT_MS

CALM = FaultRates(tear_listing=0.1, tear_delete=0.5, tear_ms=(0, 300))
ROUGH = replace(
    CALM,
    fail=0.004,
    lose_response=0.004,
    land_late=0.002,
    delay=0.004,
    pause=0.0005,
    stop=0.0005,
    partial=0.05,
)
STORMY = replace(
    CALM,
    fail=0.02,
    lose_response=0.02,
    land_late=0.01,
    delay=0.01,
    pause=0.002,
    stop=0.003,
    partial=0.2,
)
STALLING = replace(
    CALM,
    delay=0.01,
    pause=0.004,
    stop=0.001,
    partial=0.05,
    delay_ms=(1_000, 200_000),
)
FAILING = replace(
    CALM,
    sync_fails=0.1,
    lose_response=0.004,
    stop=0.001,
    delay=0.01,
    power_cut=0.002,
)
BROKEN = replace(
    CALM,
    sync_outage=0.002,
    outage_ms=(30_000, 60_000),
    lose_response=0.004,
    stop=0.001,
    power_cut=0.001,
)
CLOCKS = ClockFaults(most_ms=2_000, drift_ppm=200, monotonic_ppm=50, jump=0.0005, asleep=0.5)


def sharing(body: Callable[[World, Process, str], None], transactional_id: str) -> Body:
    """The same for several processes that share a transactional id."""

    def shared(world: World, process: Process) -> None:
        body(world, process, transactional_id)

    return shared


def long_run(
    seed: int,
    rates: FaultRates,
    *,
    storage: Storage | None = None,
    cleanup_ages_ms: tuple[int, ...] = (DAY_MS, 40_000, LEAST_AGE_MS),
    skew_ms: int = MOST_SKEW_MS,
    storage_ahead_ms: int | None = 0,
    turns: int = TURNS,
) -> World:
    """Eight processes and some more, each with so many turns, then the last judgement.

    The seed casts them: some share a transactional id, some clocks are wrong at the beginning, and
    all of them later; two of three settle a few entries at once, and in every other one the storage
    is asked as a disk is. A quarter of the cleaning age must be more than clocks differ.
    """
    if storage is None:
        storage = HeapStorage(like_disk=seed % 2 == 0)
    with settling_early() if seed % 3 < 2 else nullcontext():
        return _run(seed, rates, storage, cleanup_ages_ms, skew_ms, storage_ahead_ms, turns)


def _run(
    seed: int,
    rates: FaultRates,
    storage: Storage,
    cleanup_ages_ms: tuple[int, ...],
    skew_ms: int,
    storage_ahead_ms: int | None,
    turns: int,
) -> World:
    cast = random.Random(seed)
    age_ms = cast.choice(cleanup_ages_ms)
    skew_ms = min(skew_ms, age_ms // 10)
    simulation = Simulation(
        seed,
        storage=storage,
        rates=rates,
        step_ms=(0, 30),
        clocks=replace(CLOCKS, most_ms=skew_ms),
        storage_ahead_ms=storage_ahead_ms,
    )
    world = prepare(simulation, age_ms, turns, skew_ms)
    banks: list[Body] = [transfer] * 3
    copiers: list[Body] = [copy] * 2
    if cast.random() < 0.3:
        banks[:2] = [sharing(transfer, "bank")] * 2
    if cast.random() < 0.3:
        copiers = [sharing(copy, "copy")] * 2
    bodies: list[Body] = [*banks, *copiers, feed, read, read]
    bodies += cast.choice([[], [overlap, overlap], [recopy, recopy, reset]])
    bodies += cast.choice([[], [doze], [doze, tidy], [tidy]])
    bodies += cast.choice([[], [merge], [merge, merge]])
    bodies += cast.choice([[], [feed] * 4])
    for number, body in enumerate(bodies):
        ahead_ms = cast.choice([0, 0, cast.randint(-skew_ms, skew_ms)])
        world.spawn(
            f"{body.__name__}-{number}",
            body,
            writes=body not in (read, doze, tidy, reset, merge),
            skew_ms=ahead_ms,
        )
    simulation.run()
    settle(world)
    return world
