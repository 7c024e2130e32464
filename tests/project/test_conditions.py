"""docs/CONDITIONS.md against the tests: every condition has a row, every test in it is there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.checkout import ROOT

pytestmark = pytest.mark.xdist_group("checkout")  # each file of tests is parsed in one process

CONDITIONS = range(1, 63)
TO_COME = "(to come)"
MARK = "pytest.mark.condition"
TEXT = (ROOT / "docs" / "CONDITIONS.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", TEXT, re.MULTILINE)
NAMED = [
    (int(number), cell)
    for number, _, cells in ROWS
    for cell in cells.split("<br>")
    if cell != TO_COME
]


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


def test_every_condition_has_one_row() -> None:
    """No condition is forgotten, none has two rows, and the order is that of the numbers."""
    assert [int(number) for number, _, _ in ROWS] == list(CONDITIONS)
    assert all(words.strip() for _, words, _ in ROWS)


def test_what_is_to_come_is_said() -> None:
    """A row with the marker, and only such a one, says below what is missing."""
    marked = [number for number, _, cells in ROWS if TO_COME in cells.split("<br>")]
    _, _, missing = TEXT.partition("## What is to come\n")
    assert re.findall(r"^\* (\d+): .+\.$", missing, re.MULTILINE) == marked


def test_named_tests_are_there_and_name_their_conditions() -> None:
    """Path and name are right, and each test is marked with the number."""
    assert len(NAMED) > len(CONDITIONS)
    assert [f"{number}: {named}" for number, named in NAMED if not marks(named, number)] == []


def marks(named: str, number: int) -> bool:
    """Whether this is a test, and has the number among its conditions."""
    found = re.fullmatch(r"`(tests/\w+/test_\w+\.py)::(test_\w+)`", named)
    if found is None or not (ROOT / found[1]).is_file():
        return False
    return number in conditions_by_test(found[1]).get(found[2], set())


def test_a_marked_test_is_in_the_rows_of_its_conditions() -> None:
    """No test holds a condition in silence."""
    named = set(NAMED)
    missing = [
        f"{number}: `{where}::{name}`"
        for path in sorted((ROOT / "tests").glob("*/test_*.py"))
        for where in [path.relative_to(ROOT).as_posix()]
        for name, numbers in conditions_by_test(where).items()
        for number in sorted(numbers)
        if (number, f"`{where}::{name}`") not in named
    ]
    assert missing == []


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
