"""Which cases of a test `make test` runs, and which `make test-more` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def more(cases: Iterable[object]) -> list[Any]:
    """Values of one parameter that are left to `make test-more`."""
    return [pytest.param(case, marks=pytest.mark.more) for case in cases]
