"""The wheel, built once, and environments to use it in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environments import build, environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from sources without the symlinks."""
    return build(tmp_path_factory.mktemp("wheel"), symlinks=False)


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, and borrows our dependencies."""
    return environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has our dependencies and no txnlog."""
    return environment(tmp_path_factory.mktemp("bare"), None)
