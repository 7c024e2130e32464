"""Drivers that are killed at random moments of a consume-transform-produce loop: condition 53.

A seed decides in which part of which batch a driver is killed, and after which share of the time
that this part took before. Nothing is caught, closed or cleaned up.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.spark.driver_processes import Process, driver
from tests.spark.loop_judge import check_done, check_not_blocked, check_whole, consumed, prepare
from tests.support.steps import sound_transactions
from txnlog import Store

# Without the session of the other tests, so beside them.
pytestmark = [pytest.mark.more, pytest.mark.xdist_group("spark-kills")]

PARTS = ("begin", "committing")
"""Phases of a batch: reading, transforming and uploading; committing (with options only, all)."""


class Killer:
    """Starts a loop of batches again and again, and kills it again and again."""

    def __init__(self, folder: Path, store: Store, form: str, max_records: int, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self._start = partial(
            driver, folder / "spark", "spark_driver.py", form, store.url, "etl", "g", max_records
        )
        self._store = store
        self._seed = seed
        self._chance = random.Random(seed)
        self._took_s = {(part, first): 2.0 for part in PARTS for first in (True, False)}
        self._copied = 0

    def run(self, kills: int) -> None:
        """Kill so often, then let the loop come to its end."""
        with ExitStack() as started:
            lingering: list[Process] = []
            for _ in range(kills):
                victim = started.enter_context(self._start())
                self._run_for_a_while(victim)
                for old in lingering:
                    old.kill()
                lingering = self._kill(victim)
                self._look(alone=not lingering)
            self._pass(started.enter_context(self._start()), "done")

    def _run_for_a_while(self, victim: Process) -> None:
        """Until a random moment: some batches pass, then a share of a part of the next one."""
        batches, part = self._chance.choice((0, 0, 1, 2)), self._chance.choice(PARTS)
        for number in range(batches):
            self._pass(victim, "committed")
            self._learn(victim, first=number == 0)
            if self._chance.random() < 0.3:
                check_whole(self._store)
                self.seen["read meanwhile"] += 1
        self._pass(victim, part)
        victim.listen(self._chance.random() * 1.1 * self._took_s[part, batches == 0])
        assert not victim.over, self._about(victim)

    def _kill(self, victim: Process) -> list[Process]:
        """Kill all of it; or only the user's process, and return what is left of the victim."""
        if self._chance.random() < 0.2:
            victim.kill_python_only()
            self.seen["python only"] += 1
            return [victim]
        victim.kill()
        self.seen["killed"] += 1
        return []

    def _look(self, *, alone: bool) -> None:
        """What a reader sees between two runs: whole batches, where the group's offsets are."""
        self.seen.update(found.status for found in sound_transactions(self._store))
        if self._chance.random() < 0.3:
            check_not_blocked(self._store)
            self.seen["read after the timeout"] += 1
        copied = check_whole(self._store)
        assert copied >= self._copied, f"seed {self._seed}: records have gone"
        self._copied = copied
        if alone:
            assert copied == consumed(self._store), f"seed {self._seed}: offsets without records"

    def _pass(self, victim: Process, line: str) -> None:
        assert victim.wait_for(line) == line, self._about(victim)

    def _learn(self, victim: Process, *, first: bool) -> None:
        for part in PARTS:
            self._took_s[part, first] = victim.took_s[part]

    def _about(self, victim: Process) -> str:
        return f"seed {self._seed}: a driver ended too early; {dict(self.seen)}\n{victim.errors()}"


@pytest.mark.condition(53)
@pytest.mark.parametrize(
    ("form", "kills"), [pytest.param("transaction", 2, marks=pytest.mark.slow), ("options", 1)]
)
def test_a_driver_is_killed(form: str, kills: int, tmp_path: Path) -> None:
    """In small: 2,000 records in batches of 250."""
    store = prepare(str(tmp_path / "store"), 2_000)
    killer = Killer(tmp_path, store, form, 250, seed=1)
    killer.run(kills)
    check_done(store, 2_000)


@pytest.mark.condition(53)
@pytest.mark.slow
@pytest.mark.parametrize("form", ["transaction", "options"])
def test_a_driver_is_killed_30_times(form: str, tmp_path: Path) -> None:
    """100,000 records in batches of 1,000."""
    store = prepare(str(tmp_path / "store"), 100_000)
    killer = Killer(tmp_path, store, form, 1_000, seed=53)
    killer.run(30)
    left = check_done(store, 100_000)
    assert left, "no kill has hit an upload"
    assert killer.seen["killed"] + killer.seen["python only"] == 30
