"""The examples of docs/TESTING.md run, as they stand there."""

from __future__ import annotations

from pathlib import Path

import txnlog
import txnlog.testing
from tests.support.checkout import ROOT
from tests.support.documents import Runner, blocks_of

TEXT = (ROOT / "docs" / "TESTING.md").read_text()


def test_the_examples_of_the_documentation_run(tmp_path: Path) -> None:
    """Each block of code is executed, with what it imports itself; every test in it is called."""
    runner = Runner(tmp_path)
    runner.run(blocks_of(ROOT / "docs" / "TESTING.md"))
    tests = [name for name in runner.names if name.startswith("test_")]
    assert len(tests) == 2
    for name in tests:
        runner.names[name]()


def test_the_documentation_names_everything() -> None:
    """Each fault and each of the main names is explained."""
    missing = [fault.name for fault in txnlog.testing.Fault if f"`{fault.name}`" not in TEXT]
    assert missing == []
    left_out = {"Choose", "Event", "SimulationStuck"}
    assert [n for n in txnlog.testing.__all__ if n not in TEXT and n not in left_out] == []
