"""A standby that follows while writers, and those who follow, crash, stall and lose responses.

Each rule has a broken variant here that is caught by the same runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from standby_world import CALM, ROUGH, STORMY, Violation, run_seeds

from txnlog.errors import TxnlogError
from txnlog.standby.cut import Cut
from txnlog.standby.data_files import DataFiles
from txnlog.standby.source import Source
from txnlog.state.transaction import Outcome
from txnlog.testing import FaultRates

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_a_standby_shows_what_the_source_had() -> None:
    total = run_seeds([411], ROUGH)
    assert total["acknowledged"] > 10
    assert total["rounds"] > 3


@pytest.mark.more
@pytest.mark.parametrize(
    "weather", [CALM, *(pytest.param(one, marks=pytest.mark.slow) for one in (ROUGH, STORMY))]
)
def test_more_runs(weather: FaultRates) -> None:
    assert run_seeds(range(400, 410), weather)["rounds"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_runs(part: int) -> None:
    run_seeds(range(1000 * part, 1000 * part + 50), ROUGH)


# -- broken variants ---------------------------------------------------------------------------


def everything_that_was_read(patch: Patch) -> None:
    """As it was read, whatever lacks its cause."""
    for rule in ("_hold_back_decisions", "_hold_back_entries", "_hold_back"):
        patch.setattr(Cut, rule, lambda *_: False)


def no_second_reading_of_ids(patch: Patch) -> None:
    """The ids' states are those from before the logs were read."""
    patch.setattr(
        Source,
        "_histories",
        lambda _, known: {name: (head.number, [head.state]) for name, head in known.items()},
    )


def data_comes_later(patch: Patch) -> None:
    patch.setattr(DataFiles, "copy", lambda *_: None)


def no_undecided_entries(patch: Patch) -> None:
    """What is not decided in the cut shows."""
    true = Cut.outcome

    def outcome(self: Cut, *of: object) -> object:
        return true(self, *of) or Outcome.COMMIT  # type: ignore[arg-type]

    patch.setattr(Cut, "outcome", outcome)


@pytest.mark.more
@pytest.mark.parametrize(
    "breaks",
    [everything_that_was_read, no_second_reading_of_ids, data_comes_later, no_undecided_entries],
)
def test_each_rule_is_needed(breaks: Callable[[Patch], None], monkeypatch: Patch) -> None:
    breaks(monkeypatch)
    with pytest.raises((Violation, TxnlogError)):
        run_seeds(range(400, 420), CALM)
