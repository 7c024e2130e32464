"""Drivers that are killed at each step of a transaction, one after another, in one store."""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path

import pytest

from tests.spark.driver_processes import HERE, driver
from tests.spark.loop_judge import check_done, check_whole, consumed, prepare
from txnlog import Store

pytestmark = pytest.mark.cluster

RECORDS = 500
BATCH = 20
KINDS = {
    "an id's state": r"transactions/etl/\d+\.json",
    "an append": r"topics/(out|sums)/log/\d+\.json",
    "offsets": r"groups/g/\d+\.json",
    "a marker": r"(topics/(out|sums)/log|groups/g)/\d+\.commit",
}


def steps_of_a_batch(folder: Path, store: Store, form: str) -> list[str]:
    """Kill drivers, each at a later step, until one commits its first batch; the steps."""
    last: list[str] = []
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(HERE / "killed_at_a_step"), *([inherited] if inherited else [])]
    for number in count(1):
        steps = folder / f"steps-{number}"
        environment = {
            "TXNLOG_TEST_STEPS": str(steps),
            "TXNLOG_TEST_LAST_STEP": f"{number}",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        with driver(
            folder / "spark",
            "spark_driver.py",
            *(form, store.url, "etl", "g", BATCH),
            environment=environment,
        ) as process:
            said = process.wait_for("committed", "done")
            if said == "committed":
                return last
            assert said == "", "there was nothing to do"
        assert steps.exists(), process.errors()
        last.append(steps.read_text().splitlines()[-1])
        assert check_whole(store) == consumed(store), last
    raise AssertionError


@pytest.mark.condition(53)
@pytest.mark.parametrize("form", ["transaction", "options"])
def test_a_driver_is_killed_at_each_step(form: str, tmp_path: Path) -> None:
    """What the last one has left open is aborted, or completed; all is there once."""
    store = prepare(str(tmp_path / "store"), RECORDS)
    steps = steps_of_a_batch(tmp_path, store, form)
    missed = {
        kind for kind, name in KINDS.items() if not any(re.fullmatch(name, step) for step in steps)
    }
    assert not missed, steps
    with driver(
        tmp_path / "spark", "spark_driver.py", form, store.url, "etl", "g", RECORDS
    ) as last:
        assert last.wait_for("done") == "done", last.errors()
    check_done(store, RECORDS)
