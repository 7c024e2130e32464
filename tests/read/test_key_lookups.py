"""Keys are looked up for many rows at a time, and each batch gets its own answers."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from txnlog.read import latest
from txnlog.read.latest import look_up


@pytest.mark.parametrize(
    ("among", "most_bytes", "calls"), [(0, 1 << 30, 40), (25, 1 << 30, 10), (10_000, 400, 20)]
)
def test_batches_wait_for_each_other(
    among: int, most_bytes: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until they have four rows for each key that is looked among, or take too much memory."""
    monkeypatch.setattr(latest, "_MOST_WAITING_BYTES", most_bytes)
    batches = [pa.record_batch({"k": pa.array([*range(n, n + 25)], pa.int64())}) for n in range(40)]
    known = pa.array([random.Random(1).randrange(60) for _ in range(30)], pa.int64())
    lookups: list[int] = []

    def find(keys: pa.ChunkedArray) -> pa.ChunkedArray:
        lookups.append(len(keys))
        return pc.index_in(keys, value_set=known)

    found = [*look_up(batches, lambda batch: batch.column("k"), find, among)]
    assert [batch for batch, _ in found] == batches
    for batch, answers in found:
        assert answers.equals(pc.index_in(batch.column("k"), value_set=known))
    assert sum(lookups) == 1000
    assert len(lookups) == calls
    assert [*look_up(iter([]), lambda batch: batch.column("k"), find, among)] == []
