"""Counts the rows of Parquet segments that are decoded."""

from __future__ import annotations

import pyarrow as pa
import pytest

from txnlog.segments.parquet import reader


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, how many rows each call has decoded."""
    counts: list[int] = []
    original = reader.read_row_group

    def count(*args: object, **more: object) -> pa.Table:
        table: pa.Table = original(*args, **more)  # type: ignore[arg-type]
        counts.append(table.num_rows)
        return table

    monkeypatch.setattr(reader, "read_row_group", count)
    return counts
