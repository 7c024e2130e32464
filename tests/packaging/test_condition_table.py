"""docs/CONDITIONS.md says which tests hold which condition: they exist, and none is left out."""

from __future__ import annotations

import ast
import re

from checkout import ROOT

TABLE = (ROOT / "docs" / "CONDITIONS.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    """Goal: renaming a test does not leave the table pointing nowhere."""
    known = {
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    named = re.findall(r"`(test_\w+::\w+)`", TABLE)
    assert len(named) > 38
    assert [name for name in named if name not in known] == []


def test_no_condition_is_left_out() -> None:
    """Goal: each has a row, and each row a test."""
    rows = re.findall(r"^\| (\d+) \|.*\|([^|]*)\|$", TABLE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 38
    assert [number for number, tests in rows if "::" not in tests] == []
