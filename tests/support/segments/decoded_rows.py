"""Counts the rows of Parquet segments that are decoded."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from txnlog.segments.parquet import reader
from txnlog.segments.untrusted import read_row_group


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, how many rows each call has decoded."""
    counts: list[int] = []

    def count(*args: Any, **more: Any) -> pa.Table:
        table = read_row_group(*args, **more)
        counts.append(table.num_rows)
        return table

    monkeypatch.setattr(reader, "read_row_group", count)
    return counts
