"""A standby that follows while writers, and those who follow, crash, stall and lose responses.

Each rule has a broken variant here that is caught by the same runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.replication.replica_gates import Disk
from tests.support.replication.standby_world import CALM, ROUGH, STORMY, Violation, run_seeds
from tests.support.seeds import tried_first
from txnlog.errors import TxnlogError
from txnlog.replication.roots import same_bytes
from txnlog.replication.standby import follower, sweep
from txnlog.replication.standby.cut import Cut
from txnlog.replication.standby.data_files import DataFileCopier
from txnlog.replication.standby.follower import Follower
from txnlog.replication.standby.rounds import Promoted, Round, Rounds
from txnlog.replication.standby.source import FollowedSource
from txnlog.state.transaction import Outcome
from txnlog.storage.base import Storage
from txnlog.testing import FaultRates

Patch = pytest.MonkeyPatch


pytestmark = [pytest.mark.usefixtures("unlogged"), pytest.mark.rule("Y1", "Y2", "Y3")]


def test_a_standby_shows_what_the_source_had() -> None:
    total = run_seeds([411], ROUGH)
    assert total["acknowledged"] > 10
    assert total["rounds"] > 3


def test_a_source_that_is_away_for_moments() -> None:
    """A round takes nothing for lost, deleted or not begun that the disk did not show just then."""
    total = run_seeds([401, 406, 407], CALM, unmounts=True, sweeps=True)
    assert total["rounds"] > 3


@pytest.mark.parametrize(
    ("weather", "runs"),
    [
        pytest.param(CALM, 3, marks=pytest.mark.more),
        *(pytest.param(one, 10, marks=pytest.mark.slow) for one in (CALM, ROUGH, STORMY)),
    ],
)
def test_more_runs(weather: FaultRates, runs: int) -> None:
    assert run_seeds(range(400, 400 + runs), weather)["rounds"] > runs


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_runs(part: int) -> None:
    run_seeds(range(1000 * part, 1000 * part + 50), ROUGH)
    run_seeds(range(1000 * part, 1000 * part + 20), ROUGH, unmounts=True, sweeps=True)


# -- broken variants ---------------------------------------------------------------------------


def everything_that_was_read(patch: Patch) -> None:
    """As it was read, whatever lacks its cause."""
    for rule in ("_hold_back_decisions", "_hold_back_entries", "_hold_back"):
        patch.setattr(Cut, rule, lambda *_: False)


def no_second_reading_of_ids(patch: Patch) -> None:
    """The ids' states are those from before the logs were read."""
    patch.setattr(
        FollowedSource,
        "_histories",
        lambda _, ids, known: {
            name: (known[name].number, [known[name].state]) for name in ids if name in known
        },
    )


def data_comes_later(patch: Patch) -> None:
    patch.setattr(DataFileCopier, "copy", lambda *_: None)


def logs_come_later(patch: Patch) -> None:
    """The round is put before what it shows."""
    waiting: list[tuple[Storage, str, bytes]] = []
    put_round = Rounds.put

    def put_same(*of: Any) -> bool:
        waiting.append(of)
        return True

    def put(rounds: Rounds, entry: Round | Promoted) -> bool:
        done = put_round(rounds, entry)
        while waiting:
            same_bytes.put_same(*waiting.pop())
        return done

    patch.setattr(follower, "put_same", put_same)
    patch.setattr(Rounds, "put", put)


def whatever_the_source_shows(patch: Patch) -> None:
    """A disk that is not mounted has no topics."""
    patch.setattr(Disk, "check", lambda _: None)
    patch.setattr(Follower, "_check_source", lambda *_: None)


def what_the_round_lacks_goes(patch: Patch) -> None:
    """Whether the source needs it or not."""
    patch.setattr(sweep, "_unneeded_by", lambda _, files: files)
    patch.setattr(sweep, "_still_at", lambda *_: set())


def no_undecided_entries(patch: Patch) -> None:
    """What is not decided in the cut shows."""
    true = Cut.outcome

    def outcome(self: Cut, *of: object) -> object:
        return true(self, *of) or Outcome.COMMIT  # type: ignore[arg-type]

    patch.setattr(Cut, "outcome", outcome)


BROKEN: list[tuple[Callable[[Patch], None], dict[str, Any]]] = [
    (everything_that_was_read, {}),
    (no_second_reading_of_ids, {}),
    (no_undecided_entries, {}),
    (data_comes_later, {}),
    (logs_come_later, {"rates": ROUGH}),
    (whatever_the_source_shows, {"unmounts": True}),
    (what_the_round_lacks_goes, {"sweeps": True}),
]


@pytest.mark.more
@pytest.mark.parametrize(("breaks", "how"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_each_rule_is_needed(
    breaks: Callable[[Patch], None], how: dict[str, Any], monkeypatch: Patch
) -> None:
    """Other seeds are tried after the first, so that the test does not depend on it."""
    how = {"rates": CALM, **how}
    for seed in tried_first(400, 500):
        with monkeypatch.context() as patch:
            breaks(patch)
            try:
                run_seeds([seed], **how)
            except (Violation, TxnlogError):
                break
    else:
        raise AssertionError("none of the runs notices")
    run_seeds([seed], **how)
