"""What several places say of Spark, its versions and settings, is the same."""

from __future__ import annotations

import re

from tests.packaging.environments import OPTIONS_REDACTION, STRING_REDACTION
from tests.support.checkout import PYPROJECT, ROOT

[LISTED] = re.findall(r"^SPARK_VERSIONS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
VERSIONS = LISTED.split()


def test_the_matrix_covers_what_can_be_installed() -> None:
    """The extras allow the versions that `make test-matrix` runs, and no others."""
    first, last = VERSIONS[0], VERSIONS[-1]
    beyond = f"4.{int(last.removeprefix('4.')) + 1}"
    assert [f"4.{minor}" for minor in range(int(first[2:]), int(beyond[2:]))] == VERSIONS
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert extras["spark"] == [f"pyspark[sql]>={first},<{beyond}"]
    assert extras["connect"] == [f"pyspark[connect]>={first},<{beyond}"]


def test_documents_name_them() -> None:
    """A reader is told the same."""
    listed = f"PySpark {', '.join(VERSIONS[:-1])} and {VERSIONS[-1]};"
    assert listed in (ROOT / "docs" / "SPARK.md").read_text()
    assert f"PySpark {VERSIONS[0]} to {VERSIONS[-1]}" in (ROOT / "README.md").read_text()


def test_documents_give_the_settings_that_are_tried() -> None:
    """What the tests of secrets run with is what a reader is told to set."""
    document = (ROOT / "docs" / "SPARK.md").read_text()
    assert f"spark.sql.redaction.options.regex {OPTIONS_REDACTION}\n" in document
    assert f"spark.sql.redaction.string.regex {STRING_REDACTION}\n" in document
