"""Tests of typed topics that hold whatever these are stored in."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def in_either_format(test: T) -> T:
    """Run a test with typed topics in Parquet files, and in batches of columns."""
    chosen: Any = pytest.mark.parametrize("record_format", ["parquet", "columns"], indirect=True)
    marked: T = pytest.mark.usefixtures("record_format")(chosen(test))
    return marked
