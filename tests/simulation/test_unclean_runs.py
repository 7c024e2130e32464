"""Unclean elections lose what they announce, and nothing else: a model, and the real code.

Each rule has a broken variant that is caught.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.replication import unclean_model, unclean_world
from tests.support.replication.replica_world import CALM, CONTROLLER, ROUGH, STORMY, Violation
from tests.support.replication.unclean_model import BROKEN, Lost, Model
from tests.support.replication.unclean_world import LOG, UncleanWorld, run_seeds
from tests.support.replication.world_entries import entry_name, entry_of
from tests.support.seeds import tried_first
from txnlog.errors import LogTruncated
from txnlog.replication.roots import election
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.election import elect
from txnlog.replication.roots.epochs import Proposer, without
from txnlog.replication.roots.losses import Losses, find_losses
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.testing import FaultRates, Process

FIRST = {"counts what is noted": 83, "counts who was out later": 262}
"""Seeds that notice what is broken; where none is named, one of the first ones does."""


pytestmark = [pytest.mark.usefixtures("unlogged"), pytest.mark.rule("R12")]


@pytest.mark.condition(60)
def test_the_rule_for_what_is_announced() -> None:
    runs = [Model(seed).run() for seed in range(40)]
    assert sum(run.elections for run in runs) > 20
    assert sum(run.kept for run in runs) > 10


@pytest.mark.more
@pytest.mark.parametrize("broken", BROKEN)
def test_a_rule_that_is_left_out_is_missed(broken: str) -> None:
    """Other seeds are tried after the first, so that the test does not depend on it."""
    for seed in tried_first(FIRST.get(broken, 0), 2000):
        try:
            Model(seed, broken).run()
        except Lost:
            break
    else:
        raise AssertionError(f"nobody loses anything where it {broken}")
    Model(seed).run()


@pytest.mark.condition(60)
def test_what_is_not_announced_is_there() -> None:
    """All roots in sync are lost, for good or for a while, under writers and readers."""
    total = run_seeds((19, 31), ROUGH)
    assert total["told"] > 0
    assert total["kept"] > 0


@pytest.mark.condition(60)
@pytest.mark.parametrize(
    "runs", [pytest.param(12, marks=pytest.mark.more), pytest.param(40, marks=pytest.mark.slow)]
)
def test_more_runs(runs: int) -> None:
    total = run_seeds(range(28, 28 + runs), ROUGH)
    assert total["told"] > runs / 3
    assert total["lost"] > runs / 3
    run_seeds(range(runs // 2), CALM, placed=False)


@pytest.mark.condition(60)
@pytest.mark.slow
@pytest.mark.parametrize("weather", [CALM, ROUGH, STORMY])
def test_many_runs(weather: FaultRates) -> None:
    run_seeds(range(1000, 1200), weather, roots=4)
    run_seeds(range(2000, 2100), weather, placed=False)


@pytest.mark.more
def test_processes_that_go_on_with_what_they_knew_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They name data, and number entries, that the new leader has never had."""
    with monkeypatch.context() as patch:
        patch.setattr(Agreement, "_check_history", lambda *_: None)
        with pytest.raises(Violation):
            run_seeds(tried_first(3, 60), ROUGH, placed=False)


@pytest.mark.more
def test_an_election_that_announces_epochs_alone_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(unclean_world, "named_segments", lambda _: iter(()))
        with pytest.raises(Violation):
            run_seeds(tried_first(19, 100), ROUGH)


@pytest.mark.more
def test_an_election_that_does_not_ask_those_in_sync_again_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They come back while it looks at others, and others write to them."""
    looked: list[None] = []
    check_gone = election._check_gone

    def find(*given: Any) -> Losses:
        found = find_losses(*given)
        looked.append(None)
        return found

    def check(*given: Any) -> None:
        if looked:
            looked.clear()
        else:
            check_gone(*given)

    with monkeypatch.context() as patch:
        patch.setattr(election, "find_losses", find)
        patch.setattr(election, "_check_gone", check)
        with pytest.raises(Violation, match="a root in sync answers"):
            run_seeds(tried_first(29, 100), ROUGH, roots=4)


@pytest.mark.more
def test_an_election_that_counts_on_disks_that_are_lost_since_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Agreement.answers
    with monkeypatch.context() as patch:
        patch.setattr(
            Agreement,
            "answers",
            lambda agreement, epoch, member: (
                member not in epoch.in_sync or answers(agreement, epoch, member)
            ),
        )
        with pytest.raises(Violation, match=r"at all in|two histories"):
            run_seeds(tried_first(811, 1000), ROUGH)


class _Meanwhile(UncleanWorld):
    """While a reader reads something is done, once."""

    then: Callable[[], None] | None = None

    def show_read(self, storage: ReplicatedStorage, name: str, data: bytes) -> None:
        super().show_read(storage, name, data)
        then, self.then = self.then, None
        if then is not None:
            then()


def _append(world: UncleanWorld, storage: ReplicatedStorage, number: int, writer: str) -> None:
    path = f"topics/t/data/0/{writer}-{number}.log"
    world.meant[path] = path.encode()
    storage.put(path, world.meant[path])
    name, entry = f"{LOG}/{entry_name(number)}", entry_of(path, writer)
    assert storage.put_if_absent(name, entry)
    world.acknowledge(storage, name, entry, world.roots.epoch().number)


@pytest.mark.parametrize(
    ("finds_kept", "caught"), [(True, "reopen the store"), (False, "two histories")]
)
def test_who_reads_alone_knows_of_an_election_when_he_lists_again(
    *, finds_kept: bool, caught: str
) -> None:
    """What he has listed before anything was put under it he may still show."""
    world = _Meanwhile(0, CALM, roots=2, placed=False)

    def run(process: Process) -> None:
        roots, clock = world.roots, process.clock
        writer, operator = roots.plain(clock), roots.plain(clock, "elect")
        reader = roots.plain(clock, "read", observes=True)
        _append(world, writer, 0, "before")
        epoch = without(roots.epoch(), "b-0", Proposer("test", 0, "b-0 fails"))
        writer.agreement.propose_alone(epoch)
        _append(world, writer, 1, "lost")
        world._read(process, reader)

        roots.cut |= {("read", CONTROLLER), ("elect", "a")}
        elect(operator.agreement, "b", unclean=True)
        if not finds_kept:
            reader.agreement.find_kept = lambda *_: [epoch]
        world.then = partial(_append, world, operator, 1, "new")
        world._read(process, reader)
        with pytest.raises((LogTruncated, Violation), match=caught):
            world._read(process, reader)

    world.simulation.spawn("read", run)
    world.simulation.run()


def test_the_model_is_the_one_that_is_meant() -> None:
    """Files that an entry has merged are not live any more."""
    placed = [unclean_model.Entry(file, frozenset({file})) for file in (1, 2)]
    merged = unclean_model.Entry(3, frozenset({1, 2}), frozenset({1, 2}))
    assert unclean_model.live([*placed, merged]) == {3: {1, 2}}
