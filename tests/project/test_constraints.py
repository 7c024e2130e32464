"""What a fresh clone installs is what was tested, and what pyproject.toml allows."""

from __future__ import annotations

import re
import subprocess

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.checkout import PYPROJECT, ROOT

LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINS = {
    canonicalize_name(name): Version(version)
    for name, _, version in (line.partition("==") for line in LINES if not line.startswith("#"))
}


def requirements() -> list[Requirement]:
    """All that the package and its extras ask for, but for the package itself."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(text for extra in extras for text in extra)]
    return [found for text in texts if (found := Requirement(text)).name != "txnlog"]


def test_every_dependency_has_a_version_that_is_allowed() -> None:
    """A new one, or a new bound, is followed by `make constraints`."""
    asked = [found for found in requirements() if found.name != "requests-kerberos"]
    assert len(asked) > 40
    missing = [str(found) for found in asked if canonicalize_name(found.name) not in PINS]
    wrong = [
        f"{found}, not {PINS[canonicalize_name(found.name)]}"
        for found in asked
        if canonicalize_name(found.name) in PINS
        and PINS[canonicalize_name(found.name)] not in found.specifier
    ]
    assert (missing, wrong) == ([], [])


def test_each_line_is_one_exact_version() -> None:
    """So nobody gets another one; a path on the machine that wrote it is no version."""
    pins = [line for line in LINES if not line.startswith("#")]
    assert [
        line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)
    ] == []
    assert len(PINS) == len(pins)


def test_environments_are_made_of_these_versions() -> None:
    """Each call of pip that installs by names has them."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    installs = [line for line in makefile.splitlines() if re.search(r"\binstall --quiet\b", line)]
    by_name = [line for line in installs if "--no-deps" not in line]
    assert len(by_name) == 6
    assert [line for line in by_name if "--constraint" not in line] == []


def test_the_wheel_is_built_without_what_the_tests_need() -> None:
    """Who only wants to install it waits for a megabyte; `make venv` installs the rest first."""
    ends = ("[dev]'", "--wheel-dir dist .")

    def steps(goal: str) -> list[str]:
        command = ["make", "--dry-run", "--always-make", goal]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [end for line in done.stdout.splitlines() for end in ends if line.endswith(end)]

    assert (steps("wheel"), steps("venv")) == ([ends[1]], [*ends])
