"""Conditions, rules and hazards of the documents against the marks of the tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

pytestmark = pytest.mark.xdist_group("checkout")  # each file of tests is parsed in one process

CONDITIONS = range(1, 63)
TEXT = (ROOT / "docs" / "CONDITIONS.md").read_text()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def marked(mark: str) -> set[object]:
    """What tests are marked with, each by itself or all of a module."""
    return {
        ast.literal_eval(argument)
        for path in (ROOT / "tests").glob("*/test_*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == mark
        and ast.unparse(node.func) == f"pytest.mark.{mark}"
        for argument in node.args
    }


def test_conditions_are_listed_in_order() -> None:
    """None is forgotten, and none has two numbers."""
    assert list(map(int, re.findall(r"^\* (\d+): \S", TEXT, re.MULTILINE))) == [*CONDITIONS]


def test_every_condition_is_held_by_a_test() -> None:
    """And every number that a test is marked with is that of a condition."""
    assert marked("condition") == {*CONDITIONS}


def test_every_rule_and_hazard_is_shown_by_a_test() -> None:
    """And every name that tests are marked with is one of the protocol's, or of replication's."""
    text = "".join((ROOT / "docs" / f"{n}.md").read_text() for n in ("PROTOCOL", "REPLICATION"))
    rules = re.findall(r"^\* \*\*([A-Z]\d+)\*\* ", text, re.MULTILINE)
    hazards = re.findall(r"^\* \*\*(\d+)\*\* ", text, re.MULTILINE)
    assert len(rules) > 60
    assert marked("rule") == {*rules, *(f"hazard {number}" for number in hazards)}


@pytest.mark.parametrize(
    "document", ["CONTRIBUTING.md", "docs/PROTOCOL.md", "docs/REPLICATION.md", "docs/SPARK.md"]
)
def test_tests_that_a_document_names_are_there(document: str) -> None:
    """Whole files as ``test_x``, single tests as ``test_x::test_y``."""
    files = {path.stem: path for path in (ROOT / "tests").glob("*/test_*.py")}
    text = (ROOT / document).read_text()
    named = re.findall(r"`(?:tests/\w+/)?(test_\w+)(?:\.py)?(?:::(test_\w+))?`", text)
    gone = {file for file, _ in named if file not in files}
    gone |= {
        test
        for file, test in named
        if test
        and file in files
        and test not in {n.name for n in parsed(files[file]).body if isinstance(n, ast.FunctionDef)}
    }
    assert gone == set()
