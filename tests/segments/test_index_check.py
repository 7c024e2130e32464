"""Indexes against their segments: what a writer makes is right, and a wrong entry is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.segments.segment_samples import file_of, numbered, segment
from txnlog.segments.indexes.sparse import OffsetIndex, TimeIndex
from txnlog.segments.inspect.indexes import IndexProblems, check_indexes, rebuild_indexes

BROKER = Path(__file__).parents[1] / "kafka" / "broker"
SOUND = IndexProblems((), (), None)


def checked(
    data: bytes,
    index: OffsetIndex | None,
    times: TimeIndex | None,
    *,
    base_offset: int = 0,
    exact: bool = True,
) -> IndexProblems:
    return check_indexes(file_of(data, base_offset=base_offset), index, times, exact=exact)


@pytest.mark.parametrize("count", [80, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("record_format", ["columns", "kafka"])
def test_a_changed_entry_is_noticed(record_format: str, count: int) -> None:
    """Every single field of every entry, moved by a little, is a problem; as it was, none."""
    data, summary = segment(
        *[numbered(20, start=start) for start in range(0, count, 20)],
        index_interval_bytes=0,
        record_format=record_format,
        batch_bytes=1,
    )
    index, times = OffsetIndex.decode(summary.index), TimeIndex.decode(summary.time_index)
    assert len(index) > 5
    assert checked(data, index, times) == SOUND
    for field in ("offset", "position"):
        for number in range(len(index)):
            entries = index.entries.copy()
            entries[field][number] += 1
            assert checked(data, OffsetIndex(entries), None).index, (field, number)
    for field in ("offset", "timestamp"):
        for number in range(len(times)):
            entries = times.entries.copy()
            entries[field][number] += 1
            assert checked(data, None, TimeIndex(entries)).time_index, (field, number)


def test_an_index_of_a_longer_segment_and_a_damaged_segment_are_told_apart() -> None:
    """Entries behind the end are wrong; those behind damage are not called anything."""
    data, summary = segment(
        *[numbered(50, start=start) for start in range(0, 500, 50)],
        index_interval_bytes=0,
        batch_bytes=1000,
    )
    index, times = OffsetIndex.decode(summary.index), TimeIndex.decode(summary.time_index)
    half = int(index.entries["position"][len(index) // 2])
    short = checked(data[:half], index, times)
    assert short.segment is None
    assert short.index
    assert short.time_index
    broken = bytearray(data)
    broken[half + 9] ^= 1
    found = checked(bytes(broken), index, times)
    assert (found.index, found.time_index) == ((), ())
    assert found.segment is not None


def test_kafkas_own_indexes_pass_and_are_made_anew() -> None:
    """A broker's indexes agree with its segments, in all formats; so do those rebuilt."""
    entries = 0
    for path in sorted(BROKER.rglob("*.log")):
        data, base = path.read_bytes(), int(path.stem)
        index = OffsetIndex.decode(path.with_suffix(".index").read_bytes())
        times = TimeIndex.decode(path.with_suffix(".timeindex").read_bytes())
        entries += len(index) + len(times)
        assert checked(data, index, times, base_offset=base, exact=False) == SOUND, path
        anew = rebuild_indexes(file_of(data, base_offset=base), interval_bytes=0)
        assert checked(data, *anew, base_offset=base, exact=True) == SOUND, path
        wrong = times.entries.copy()
        wrong["timestamp"] -= np.int64(1)
        if len(times):
            found = checked(data, None, TimeIndex(wrong), base_offset=base, exact=False)
            assert found.time_index, path
    assert entries > 100
