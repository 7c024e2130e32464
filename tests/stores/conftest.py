"""Tests on real servers are for `make test-stores` alone."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder has the mark, whoever wrote it."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.stores)
