"""docs/CONDITIONS.md against the tests: every condition has a row, every test in it is there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from checkout import ROOT

CONDITIONS = range(1, 56)
TO_COME = "(to come)"
TEXT = (ROOT / "docs" / "CONDITIONS.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", TEXT, re.MULTILINE)
NAMED = [
    (int(number), cell)
    for number, _, cells in ROWS
    for cell in cells.split("<br>")
    if cell != TO_COME
]


@cache
def goals(path: str) -> dict[str, str]:
    """The docstring of each test in a file."""
    tree = ast.parse((ROOT / path).read_text(), path)
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_condition_has_one_row() -> None:
    """Goal: no condition is forgotten, none has two rows, and the order is that of the numbers."""
    assert [int(number) for number, _, _ in ROWS] == list(CONDITIONS)
    assert all(words.strip() for _, words, _ in ROWS)


def test_what_is_to_come_is_said() -> None:
    """Goal: a row with the marker, and only such a one, says below what is missing."""
    marked = [number for number, _, cells in ROWS if TO_COME in cells.split("<br>")]
    _, _, missing = TEXT.partition("## What is to come\n")
    assert re.findall(r"^\* (\d+): .+\.$", missing, re.MULTILINE) == marked


@pytest.mark.parametrize(("number", "named"), NAMED)
def test_a_named_test_is_there_and_names_its_condition(number: int, named: str) -> None:
    """Goal: path and name are right, and the docstring gives the number behind "Goal"."""
    found = re.fullmatch(r"`(tests/\w+/test_\w+\.py)::(test_\w+)`", named)
    assert found, f"{named} is neither a test nor {TO_COME}"
    path, name = found.groups()
    assert (ROOT / path).is_file()
    assert name in goals(path)
    goal = re.match(r"Goal \((\d+(?:, \d+)*)\): ", goals(path)[name])
    assert goal, f"{named} does not begin with Goal and its numbers"
    assert number in map(int, goal[1].split(", "))
