"""Counts the rows of Parquet segments that are decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from txnlog.segments.parquet import reader
from txnlog.segments.untrusted import read_pieces


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, how many rows each piece has that is decoded."""
    counts: list[int] = []

    def count(*args: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        for piece in read_pieces(*args, **more):
            counts.append(piece.num_rows)
            yield piece

    monkeypatch.setattr(reader, "read_pieces", count)
    return counts
