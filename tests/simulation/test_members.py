"""Members that join, stall, crash, come back and leave, at random; and a judge that can see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.groups.group_runs import GroupRun, Violation
from tests.support.seeds import tried_first
from tests.support.simulation.long_runs.run import CALM, ROUGH, STALLING, STORMY
from txnlog.groups import assignment, member, presence, rebalance
from txnlog.groups.member import Member
from txnlog.groups.presence import Observer
from txnlog.state.membership import Held, Membership

pytestmark = pytest.mark.rule("M1", "M2", "M3", "M4", "hazard 12")

WEATHERS = {"calm": CALM, "rough": ROUGH, "stormy": STORMY, "stalling": STALLING}
SHORT = {"calm_ms": 120_000}
"""What they have time for when faults have stopped: enough, and half of what soaks give."""
COOPERATIVE = (("cooperative-sticky",),)
EAGER = (("sticky",),)
MIXED = (("cooperative-sticky", "range"), ("range",), ("range", "cooperative-sticky"))

Patch = pytest.MonkeyPatch


def group_run(seed: int, weather: str, **options: Any) -> GroupRun:
    """A run whose members are as the seed says."""
    run = GroupRun(
        seed,
        WEATHERS[weather],
        **{
            "transactional": seed % 2 == 0,
            "assignors": [COOPERATIVE, EAGER, MIXED][seed % 3],
            "static": seed % 5 == 0,
            **options,
        },
    )
    run.run()
    return run


@pytest.mark.condition(57)
@pytest.mark.parametrize("weather", ["rough", "stormy"])
def test_nothing_is_missed_and_nothing_is_committed_twice(weather: str) -> None:
    """One run of each kind: its members commit, or copy in transactions."""
    for seed in range(2):
        run = group_run(seed, weather, **SHORT)
        assert run.rebalances >= 3


CROWD = {**SHORT, "members": 8, "rough_ms": 40_000}
LEAVERS = {**CROWD, "together_ms": 10_000}


def test_many_join_at_one_instant() -> None:
    """More members than partitions, which begin together: some are joined by others."""
    run = group_run(2, "rough", **CROWD)
    joined = [len(e["members"]) for e in run.entries() if e["kind"] == "members-joined"]
    assert max(joined) >= 3


def test_many_leave_at_one_instant() -> None:
    run = group_run(9, "rough", **LEAVERS)
    left = [len(e["member_ids"]) for e in run.entries() if e["kind"] == "members-left"]
    assert max(left) >= 3


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(10, 11), marks=pytest.mark.more),
        pytest.param(range(10, 18), marks=pytest.mark.slow),
        pytest.param(range(1000, 1100), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("weather", WEATHERS)
def test_many_runs_of_many_members(weather: str, seeds: range) -> None:
    for seed in seeds:
        group_run(seed, weather, **(CROWD if seed % 4 < 2 else LEAVERS))


def test_topics_are_made_and_deleted_meanwhile() -> None:
    """Members that subscribe by a pattern: of the topics that are there nothing is missed."""
    run = group_run(1, "rough", pattern=True, **SHORT)
    assert run.rebalances >= 3


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(4, 7), marks=pytest.mark.more),
        pytest.param(range(2, 32), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("weather", WEATHERS)
def test_many_runs(weather: str, seeds: range) -> None:
    """Both protocols and members that have several; static ones; with and without transactions."""
    refused = sum(group_run(seed, weather).refused for seed in seeds)
    assert refused > 0, "no run in which a commit was fenced shows that fencing works"


@pytest.mark.slow
@pytest.mark.parametrize("weather", WEATHERS)
def test_soak(weather: str) -> None:
    for seed in range(1000, 1300):
        group_run(seed, weather)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(3, 4), marks=pytest.mark.more),
        pytest.param(range(3, 7), marks=pytest.mark.slow),
        pytest.param(range(1000, 1100), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("weather", WEATHERS)
def test_many_runs_in_which_topics_come_and_go(weather: str, seeds: range) -> None:
    for seed in seeds:
        group_run(seed, weather, pattern=True)


# -- what the judge would notice -------------------------------------------------------------------


def check_caught(
    monkeypatch: Patch,
    mutate: Callable[[Patch], None],
    *checks: str,
    first: int = 0,
    most: int = 40,
    **options: Any,
) -> None:
    """One of a few runs fails by one of these checks, and none without the mutation."""
    for seed in tried_first(first, most):
        with monkeypatch.context() as patch:
            mutate(patch)
            try:
                group_run(seed, "stormy", **options)
            except (Violation, AssertionError) as violation:
                found = str(violation)
                break
    else:
        raise AssertionError(f"none of {most} runs notices")
    assert found.partition(":")[0] in checks, f"seed {seed}: {found}"
    group_run(seed, "stormy", **options)


@pytest.mark.more
def test_commits_that_nobody_judges(monkeypatch: Patch) -> None:
    """A member that was taken for dead moves the group back over what others have read."""

    def mutate(patch: Patch) -> None:
        patch.setattr(Membership, "check_commit", lambda *_, **__: None)

    check_caught(monkeypatch, mutate, "fenced", "backwards", transactional=False)


@pytest.mark.more
def test_partitions_that_are_given_away_before_they_are_let_go_of(monkeypatch: Patch) -> None:
    """The holder was not asked yet: two members believe that a partition is their own."""

    def mutate(patch: Patch) -> None:
        patch.setattr(assignment, "members_that_released", lambda group, _: (*group.members,))
        patch.setattr(Held, "owned_partitions", lambda _: set())
        patch.setattr(Membership, "assignment_violations", lambda *_: [])

    check_caught(monkeypatch, mutate, "held twice", "taken", "fenced")


@pytest.mark.more
def test_a_member_that_tells_too_early_that_it_has_let_go(monkeypatch: Patch) -> None:
    """It says so when it is asked, not when its application was told."""
    look = Member._look

    def hasty(self: Member, *, at_once: bool) -> None:
        self._followed = 1 << 40
        look(self, at_once=at_once)

    check_caught(
        monkeypatch, lambda patch: patch.setattr(Member, "_look", hasty), "held twice", "fenced"
    )


@pytest.mark.more
def test_nobody_expels_the_dead(monkeypatch: Patch) -> None:
    """Their partitions are read by nobody."""

    def mutate(patch: Patch) -> None:
        patch.setattr(Observer, "look", lambda *_: None)

    check_caught(monkeypatch, mutate, "progress", static=False)


@pytest.mark.more
def test_nobody_assigns_what_the_dead_had(monkeypatch: Patch) -> None:
    """An expired member's partitions must be reassigned by whoever is left."""

    def mutate(patch: Patch) -> None:
        patch.setattr(member, "may_assign", lambda group, _: group.generation == 0)

    check_caught(monkeypatch, mutate, "progress")


@pytest.mark.more
def test_a_consumer_reads_on_what_was_taken_from_it(monkeypatch: Patch) -> None:
    """It lets go in the log, and not of its positions."""

    def let_go(self: rebalance.Rebalancer, reader: object, partitions: Any) -> None:
        for where in partitions:
            del self._owned[where]

    def mutate(patch: Patch) -> None:
        patch.setattr(rebalance.Rebalancer, "_let_go", let_go)
        patch.setattr(Membership, "check_commit", lambda *_, **__: None)

    check_caught(monkeypatch, mutate, "fenced", "backwards", transactional=False)


@pytest.mark.more
def test_requests_that_nobody_deletes(monkeypatch: Patch) -> None:
    """They are left when all members have left."""

    def mutate(patch: Patch) -> None:
        for room in (presence, member):
            patch.setattr(room, "delete_requests", lambda *_: None)

    check_caught(monkeypatch, mutate, "left behind", **LEAVERS)
