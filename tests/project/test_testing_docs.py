"""The examples of docs/TESTING.md run, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import txnlog
import txnlog.testing

TEXT = (Path(__file__).parents[2] / "docs" / "TESTING.md").read_text()


def test_the_examples_of_the_documentation_run() -> None:
    """Each block of code is executed; every test in it is called."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {"txnlog": txnlog}
    names |= {name: getattr(txnlog.testing, name) for name in txnlog.testing.__all__}
    for block in blocks:
        exec(compile(block, "docs/TESTING.md", "exec"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == len(blocks) == 2
    for name in tests:
        names[name]()


def test_the_documentation_names_everything() -> None:
    """Each fault and each of the main names is explained."""
    missing = [fault.name for fault in txnlog.testing.Fault if f"`{fault.name}`" not in TEXT]
    assert missing == []
    left_out = {"Choose", "Event", "SimulationStuck"}
    assert [n for n in txnlog.testing.__all__ if n not in TEXT and n not in left_out] == []
