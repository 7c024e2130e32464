"""docs/CONDITIONS.md against the tests: every condition has one, and what documents name is there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.checkout import ROOT

pytestmark = pytest.mark.xdist_group("checkout")  # each file of tests is parsed in one process

CONDITIONS = range(1, 63)
MARK = "pytest.mark.condition"
TEXT = (ROOT / "docs" / "CONDITIONS.md").read_text()


@cache
def conditions_by_test(path: str) -> dict[str, set[int]]:
    """The numbers that each test in a file is marked with."""
    tree = ast.parse((ROOT / path).read_text(), path)
    found: dict[str, set[int]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found[node.name] = set()
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
                    found[node.name].update(map(ast.literal_eval, mark.args))
    return found


def test_conditions_are_listed_in_order() -> None:
    """None is forgotten, and none has two numbers."""
    assert list(map(int, re.findall(r"^\* (\d+): \S", TEXT, re.MULTILINE))) == [*CONDITIONS]


def test_every_condition_is_held_by_a_test() -> None:
    """And every number that a test is marked with is that of a condition."""
    held = {
        number
        for path in (ROOT / "tests").glob("*/test_*.py")
        for numbers in conditions_by_test(path.relative_to(ROOT).as_posix()).values()
        for number in numbers
    }
    assert held == {*CONDITIONS}


@pytest.mark.parametrize(
    "document", ["CONTRIBUTING.md", "docs/PROTOCOL.md", "docs/REPLICATION.md", "docs/SPARK.md"]
)
def test_tests_that_a_document_names_are_there(document: str) -> None:
    """Whole files as ``test_x``, single tests as ``test_x::test_y``."""
    files = {path.stem: path.relative_to(ROOT) for path in (ROOT / "tests").glob("*/test_*.py")}
    text = (ROOT / document).read_text()
    named = re.findall(r"`(?:tests/\w+/)?(test_\w+)(?:\.py)?(?:::(test_\w+))?`", text)
    gone = {file for file, _ in named if file not in files}
    gone |= {
        test
        for file, test in named
        if test and file in files and test not in conditions_by_test(files[file].as_posix())
    }
    assert gone == set()
