"""scripts/measure_house.py counts what there is."""

from __future__ import annotations

import re

import pytest

from tests.support.checkout import modules, script

HOUSE = script("measure_house")


def test_it_prints_plausible_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """It sees every module, and a commit goes through more of them than opening a store does."""
    HOUSE.main()
    printed = capsys.readouterr().out
    found = re.search(r"^([\d,]+) lines in (\d+) files", printed)
    assert found
    assert int(found[2]) == len(modules()) - 1  # pyspark_txnlog.py is a name for spark/
    assert int(found[1].replace(",", "")) > 100_000
    walks = re.findall(r"^(\w[\w ]+): (\d+) functions in (\d+) modules", printed, re.MULTILINE)
    assert [name for name, _, _ in walks] == ["opening", "a commit", "a poll"]
    opening, commit, poll = (int(count) for _, _, count in walks)
    assert 5 < opening < commit < 100 > poll > opening
    assert re.search(r"^manifests: \d+ functions know another mechanism", printed, re.MULTILINE)


def test_a_walk_is_what_runs() -> None:
    """Opening goes through the store and its storage, and calls nothing above."""
    HOUSE.walks()  # what is imported on the way
    opening = HOUSE.walks()["opening"]
    assert {"txnlog.store", "txnlog.storage.registry"} <= opening.modules.keys()
    assert {"state", "write", "read"}.isdisjoint(opening.rooms)
    assert "txnlog.arguments" in opening.modules  # which calls the store, for whoever opens it
    assert opening.climbs == set()
    assert ("txnlog.store", "open_store") in opening.functions


def test_a_call_upwards_is_a_climb() -> None:
    """Floors are those of docs/ARCHITECTURE.md."""
    assert HOUSE.is_climb("txnlog.state.topic", "txnlog.log.topic_log")
    assert HOUSE.is_climb("txnlog.arguments", "txnlog.store")
    assert not HOUSE.is_climb("txnlog.store", "txnlog.config")
    assert not HOUSE.is_climb("txnlog.state.topic", "txnlog.state.group")


def test_functions_that_know_two_mechanisms_are_counted() -> None:
    """By the names of the table, each of which is one of the code's."""
    text = """
class A:
    def both(self, state):
        def inner():
            return state.settled
        return inner() or Bundle()
    def one(self, state):
        return state.settled
def of_its_own():
    settled = 1
    return Bundle(settled)
"""
    found = HOUSE.known_together({"a.py": text})
    assert found == {("manifests", "bundles"): ["a.py:both"]}
    words = {word for code in HOUSE.sources().values() for word in re.findall(r"\w+", code)}
    assert {name for its in HOUSE.MECHANISMS.values() for name in its} <= words
