"""Offset and time indexes: lookups, bytes, and damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from txnlog.segments.errors import CorruptRecord, SegmentTooLarge
from txnlog.segments.indexes.sparse import SEGMENT_START, IndexBuilder, OffsetIndex, TimeIndex


def offset_bytes(*entries: tuple[int, int]) -> bytes:
    """An offset index packed by hand."""
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def time_bytes(*entries: tuple[int, int]) -> bytes:
    """A time index packed by hand."""
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


@pytest.mark.condition(41)
def test_offset_lookup() -> None:
    """The greatest entry at or below the target, else the segment's start."""
    index = OffsetIndex.decode(offset_bytes((9, 100), (19, 200), (39, 300)))
    for target, expected in [
        (0, SEGMENT_START),
        (8, SEGMENT_START),
        (9, (9, 100)),
        (10, (9, 100)),
        (18, (9, 100)),
        (38, (19, 200)),
        (39, (39, 300)),
        (1 << 31, (39, 300)),
    ]:
        assert index.lookup(target) == expected
    assert OffsetIndex.decode(b"").lookup(5) == SEGMENT_START == (-1, 0)


def test_stop_position() -> None:
    """The position is where the batch with the last wanted offset has surely ended."""
    index = OffsetIndex.decode(offset_bytes((9, 100), (19, 200), (39, 300)))
    assert [index.stop_position(stop) for stop in (1, 10, 11, 20, 21, 40, 41)] == [
        200,
        200,
        300,
        300,
        None,
        None,
        None,
    ]


@pytest.mark.condition(41)
def test_time_lookup() -> None:
    """The greatest entry at or below the time, None below the first."""
    index = TimeIndex.decode(time_bytes((-1, 4), (50, 9), (60, 19)))
    assert [index.lookup(time) for time in (-2, -1, 49, 50, 61)] == [
        None,
        (-1, 4),
        (-1, 4),
        (50, 9),
        (60, 19),
    ]


@pytest.mark.condition(41)
@some(100)
@given(offsets=st.sets(st.integers(0, 1000)), target=st.integers(0, 1100))
def test_lookup_against_a_plain_loop(offsets: set[int], target: int) -> None:
    """The same answer as looking at every entry in turn."""
    entries = [(offset, 7 * offset + 1) for offset in sorted(offsets)]
    found = OffsetIndex.decode(offset_bytes(*entries)).lookup(target)
    expected = (-1, 0)
    for entry in entries:
        if entry[0] <= target:
            expected = entry
    assert found == expected


@pytest.mark.condition(42)
@pytest.mark.parametrize(
    "data",
    [
        offset_bytes((9, 100))[:-1],
        offset_bytes((9, 100), (9, 200)),
        offset_bytes((9, 100), (8, 200)),
        offset_bytes((9, 100), (10, 100)),
        offset_bytes((-1, 100)),
        offset_bytes((9, -1)),
        offset_bytes((9, 100), (10, 1000)),
    ],
)
def test_damaged_offset_index(data: bytes) -> None:
    """Sizes and orders that no writer makes are CorruptRecord naming the file."""
    with pytest.raises(CorruptRecord, match=r"x\.index"):
        OffsetIndex.decode(data, name="x.index", segment_bytes=1000)


@pytest.mark.condition(42)
@pytest.mark.parametrize(
    "data",
    [
        time_bytes((9, 100)) + b"\0",
        time_bytes((9, 100), (9, 200)),
        time_bytes((9, 100), (10, 100)),
        time_bytes((9, -1)),
    ],
)
def test_damaged_time_index(data: bytes) -> None:
    """The same for time indexes."""
    with pytest.raises(CorruptRecord, match=r"x\.timeindex"):
        TimeIndex.decode(data, name="x.timeindex")


def build(interval_bytes: int, *batches: tuple[int, int, int]) -> tuple[bytes, bytes]:
    """Indexes of batches given as (size, last offset, max timestamp)."""
    builder, position = IndexBuilder(interval_bytes), 0
    for size, last_offset, max_timestamp in batches:
        builder.add(
            position=position,
            size_bytes=size,
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp,
        )
        position += size
    index, time_index = builder.finish()
    return index.encode(), time_index.encode()


def test_entries_are_those_of_kafka() -> None:
    """An entry where the interval has been passed; times only when they have grown."""
    index, time_index = build(
        100, (60, 4, 50), (60, 9, 70), (60, 14, 60), (150, 19, 65), (60, 24, 80), (10, 29, 90)
    )
    assert index == offset_bytes((14, 120), (24, 330))
    assert time_index == time_bytes((70, 9), (80, 24), (90, 29))


def test_time_entry_names_the_first_batch_with_its_time() -> None:
    """Among batches with the same largest time the first counts: it may have the record."""
    assert build(0, (60, 4, 50), (60, 9, 50), (60, 14, 50))[1] == time_bytes((50, 4))


def test_small_segments_need_no_index() -> None:
    """One batch, or less than an interval, gives two empty files."""
    assert build(100, (5000, 4, 50)) == (b"", b"")
    assert build(100, (50, 4, 50), (50, 9, 60)) == (b"", b"")
    assert build(0) == (b"", b"")


def test_interval_zero_indexes_every_batch() -> None:
    """With an interval of 0 bytes only the first batch, the segment's start, has no entry."""
    assert build(0, (64, 0, 1), (64, 1, 1), (64, 2, 1))[0] == offset_bytes((1, 64), (2, 128))


def test_positions_above_31_bits_are_refused() -> None:
    """Nothing is indexed that the fields cannot hold."""
    builder = IndexBuilder()
    top = (1 << 31) - 1
    builder.add(position=top - 100, size_bytes=100, last_offset=top, max_timestamp_ms=0)
    with pytest.raises(SegmentTooLarge, match=r"segment\.bytes"):
        builder.add(position=top - 99, size_bytes=100, last_offset=5, max_timestamp_ms=0)
    with pytest.raises(SegmentTooLarge):
        builder.add(position=0, size_bytes=100, last_offset=top + 1, max_timestamp_ms=0)
