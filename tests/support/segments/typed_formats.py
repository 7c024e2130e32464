"""Tests of typed topics that hold whatever these are stored in."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def in_either_format(test: T) -> T:
    """Run a test with typed topics in Parquet files, in batches of columns, and in both."""
    both = pytest.param("auto", marks=pytest.mark.more)
    formats = ["parquet", "columns", both]
    chosen: Any = pytest.mark.parametrize("record_format", formats, indirect=True)
    marked: T = pytest.mark.usefixtures("record_format")(chosen(test))
    return marked
