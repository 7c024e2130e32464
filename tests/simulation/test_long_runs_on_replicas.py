"""The long runs and their judge, over three roots and a controller that go down and come back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from tests.support.replication.replica_world import CONTROLLER, Roots
from tests.support.simulation.long_runs import run
from tests.support.simulation.long_runs.judge import Fate
from tests.support.simulation.long_runs.world import World, prepare
from txnlog.errors import StorageError
from txnlog.replication.roots.election import change_settings
from txnlog.replication.roots.epochs import FACTOR, root_of
from txnlog.replication.roots.placement import places
from txnlog.replication.roots.reassignment import reassign
from txnlog.replication.roots.root_join import join
from txnlog.store import Store, attach
from txnlog.testing import Process, Simulation


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Roots]]:
    """In place of the storage of a simulation: the roots that are in this list."""
    chosen: list[Roots] = []

    def of_process(process: Process, *, create: bool = False, config: Any = None) -> Store:
        storage = chosen[-1].storage(process)
        return attach(storage, create=create, config=config, clock=process.clock)

    def of_simulation(
        simulation: Simulation, *, create: bool = True, config: Mapping[str, object] | None = None
    ) -> Store:
        chosen[-1].down.clear()
        storage = chosen[-1].plain(simulation.clock)
        storage.trust(probed=True)
        return attach(storage, create=create, config=config, clock=simulation.clock)

    def with_trouble(*arguments: Any) -> World:
        world = prepare(*arguments)
        world.spawn("back", lambda _, process: bring_back(world, process, chosen[-1]), writes=False)
        world.spawn("trouble", lambda _, process: trouble(world, process, chosen[-1]), writes=False)
        return world

    monkeypatch.setattr(Process, "store", of_process)
    monkeypatch.setattr(Simulation, "store", of_simulation)
    monkeypatch.setattr(run, "prepare", with_trouble)
    logging.disable(logging.WARNING)
    yield chosen
    logging.disable(logging.NOTSET)


def bring_back(world: World, process: Process, roots: Roots) -> None:
    storage = roots.storage(process)
    while world.running > 0:
        process.clock.sleep(process.chance.uniform(1, 10))
        with suppress(StorageError):
            known = {root_of(member) for member in storage.agreement.refresh().members}
            for root in sorted(set(roots.names) - known - roots.down)[:1]:
                join(storage.agreement, root, f"heap://{root}")
            if places(storage.agreement.epoch()):
                factor = process.chance.choice(["1", "2", "2", "all"])
                change_settings(storage.agreement, {FACTOR: factor})
                reassign(storage.agreement)


def trouble(world: World, process: Process, roots: Roots) -> None:
    """One of the roots, or the controller, is down for a while."""
    while world.running > 0:
        process.clock.sleep(process.chance.uniform(2, 20))
        if roots.down:
            roots.down.clear()
        else:
            roots.down.add(process.chance.choice([*roots.names, CONTROLLER]))


def judge_run(
    roots: list[Roots], seed: int, weather: str, factor: str = "", turns: int = 25
) -> None:
    roots.append(Roots(settings={FACTOR: factor} if factor else None))
    world = run.long_run(seed, getattr(run, weather), storage=roots[-1].controller, turns=turns)
    assert world.judge.count(Fate.COMMITTED) > 10
    assert len(roots[-1].epochs()) > 2


@pytest.mark.more
@pytest.mark.parametrize("weather", ["CALM", "ROUGH"])
def test_the_judge_finds_nothing(roots: list[Roots], weather: str) -> None:
    """Bank, copies, groups, merges: whole transactions, in order, once."""
    judge_run(roots, 2, weather)


@pytest.mark.more
def test_the_judge_finds_nothing_where_data_is_at_some_roots(roots: list[Roots]) -> None:
    """Moved now and then, by settings that change, while the others merge and clean up."""
    judge_run(roots, 2, "ROUGH", "2")


@pytest.mark.slow
@pytest.mark.parametrize("weather", ["CALM", "ROUGH", "STORMY", "STALLING"])
def test_the_judge_finds_nothing_in_many_runs(roots: list[Roots], weather: str) -> None:
    for seed in range(100, 140):
        judge_run(roots, seed, weather, ("", "2")[seed % 2], run.TURNS)
