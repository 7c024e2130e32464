"""Segments of rows: the writer, the reader, how skipping is guarded, indexes, dump and verify."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.segments.message_layout import message
from tests.support.segments.rows_layout import batch, record
from tests.support.segments.segment_layout import raw_batches
from tests.support.segments.segment_samples import (
    GAPS,
    RecordingFile,
    dense_segment,
    file_of,
    gapped_segment,
    numbered,
    segment,
)
from txnlog.segments.batch_header import Compression, SegmentIdentity
from txnlog.segments.batches import encode_batch, encode_marker
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.formats.message_sets import encode_message_set
from txnlog.segments.inspect.dump import dump_segment, verify_batches
from txnlog.segments.reader import find_timestamp, read_segment, scan_headers

EVERY = [offset for offsets in GAPS for offset in offsets]

rows_segment = partial(dense_segment, record_format="kafka")


def offsets_read(data: bytes, **named: object) -> list[int]:
    found: list[int] = []
    for part in read_segment(file_of(data), **named):  # type: ignore[arg-type]
        found += part.offsets().tolist()
        assert [int(key) for key in part.records.column("key").to_pylist()] == (
            part.offsets().tolist()
        )
    return found


@pytest.mark.parametrize("codec", list(Compression))
def test_what_the_writer_writes(codec: Compression) -> None:
    """A segment of rows has Kafka's magic, offsets from 0, and the guard of its offsets."""
    data, _, _ = rows_segment(compression=codec)
    first, second = raw_batches(data)[:2]
    assert (first.magic, first.attributes & 0xFF) == (2, int(codec))
    assert (first.base_offset, second.base_offset) == (0, 50)
    assert (first.base_sequence, second.base_sequence) == (0, 50)
    assert (second.leader_epoch, second.producer_id, second.producer_epoch) == (-1, -1, -1)
    assert offsets_read(data) == list(range(1000))


@pytest.mark.more
@pytest.mark.condition(44)
@pytest.mark.parametrize(
    "make", [partial(gapped_segment, "kafka"), lambda: rows_segment()[0][:4000]]
)
def test_a_flipped_bit_never_changes_what_a_range_holds(make: object) -> None:
    """Whatever bit flips, a read from the middle gives the truth or CorruptRecord.

    A header of rows cannot be trusted by itself: what is skipped is read for its checksum.
    """
    data: bytes = make()  # type: ignore[operator]
    data = data[: sum(len(raw.raw) for raw in raw_batches(data) if raw.length + 12 == len(raw.raw))]
    everything = offsets_read(data)
    last = everything[-1]
    time_of = {offset: (1000 if last > 41 else 0) + 10 * offset for offset in everything}
    starts = [raw.position for raw in raw_batches(data)]
    for at in range(len(data)):
        in_header = any(start <= at < start + 61 for start in starts)
        for bit in range(8) if in_header else (at % 8,):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            for start, stop in ((3, None), (8, 9), (12, last + 1), (last, last + 1)):
                _truth_or_corrupt(
                    bytes(broken),
                    start,
                    stop,
                    [o for o in everything if o >= start and (stop is None or o < stop)],
                )
            try:
                found = find_timestamp(file_of(bytes(broken)), 95)
            except CorruptRecord:
                continue
            expected = next(o for o in everything if time_of[o] >= 95)
            assert found == (expected, time_of[expected])


def _truth_or_corrupt(data: bytes, start: int, stop: int | None, expected: list[int]) -> None:
    got: list[int] = []
    file = RecordingFile(data)
    try:
        for part in read_segment(file.opened(), start_offset=start, stop_offset=stop):
            got += part.offsets().tolist()
    except CorruptRecord:
        assert got == expected[: len(got)]
    else:
        assert got == expected


def test_markers_take_offsets_and_are_no_records() -> None:
    """Control batches are passed by: in ranges, times and counts."""
    marker = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp_ms": 99999}
    data = b"".join(
        [
            encode_batch(numbered(3), record_format="kafka", producer_id=1, transactional=True),
            encode_marker(commit=True, offset=3, **marker),
            encode_batch(numbered(2, start=4), record_format="kafka", base_offset=4),
            encode_marker(commit=False, offset=6, **marker),
        ]
    )
    assert offsets_read(data) == [0, 1, 2, 4, 5]
    assert offsets_read(data, start_offset=3) == [4, 5]
    assert offsets_read(data, start_offset=2, stop_offset=4) == [2]
    assert offsets_read(data, start_offset=6) == []
    assert find_timestamp(file_of(data), 1035) == (4, 1040)
    assert find_timestamp(file_of(data), 5000) is None
    report = verify_batches(dump_segment(file_of(data)))
    assert (report.batch_count, report.record_count, report.next_offset) == (4, 5, 7)
    dumped = list(dump_segment(file_of(data)))
    assert [len(one.decoded.markers) for one in dumped if one.decoded] == [0, 1, 0, 1]
    broken = bytearray(data)
    broken[len(data) - 1] ^= 1
    with pytest.raises(CorruptRecord, match="CRC"):
        offsets_read(bytes(broken))


def test_formats_may_follow_each_other() -> None:
    """A partition's file that lived through Kafka's versions, and ours, is read through."""
    data = b"".join(
        [
            encode_message_set(numbered(2), 0),
            encode_message_set(
                numbered(3, start=2), 0, compression=Compression.GZIP, base_offset=2
            ),
            encode_message_set(numbered(2, start=5), 1, base_offset=5),
            encode_message_set(numbered(3, start=7), 1, compression=Compression.LZ4, base_offset=7),
            encode_batch(numbered(3, start=10), record_format="kafka", base_offset=10),
            encode_batch(numbered(3, start=13), base_offset=13),
        ]
    )
    for start in range(17):
        for stop in [None, *range(17)]:
            expected = range(start, 16 if stop is None else min(stop, 16))
            assert offsets_read(data, start_offset=start, stop_offset=stop) == list(expected)
    # Messages of v0 have no time, so the first record that has one is that of offset 5.
    assert find_timestamp(file_of(data), 0) == (5, 1050)
    assert find_timestamp(file_of(data), 1075) == (8, 1080)
    report = verify_batches(dump_segment(file_of(data)))
    assert (report.batch_count, report.record_count, report.next_offset) == (7 + 1, 16, 16)
    assert [header.magic for _, header in scan_headers(file_of(data))] == (
        [0, 0, 0, 1, 1, 1, 2, 100]
    )


def test_dump_finds_batches_behind_damage() -> None:
    """Behind a damaged header batches of every format are found again, and only those."""
    good = b"".join(
        [
            encode_batch(numbered(3, start=10), record_format="kafka", base_offset=10),
            message(1, 13, b"k", b"v", timestamp=5),
            encode_batch(numbered(3, start=14), base_offset=14),
        ]
    )
    for rubbish in (bytes(3000), b"\x02" * 3000, bytes(range(256)) * 12, b"\xff" * 5):
        data = encode_batch(numbered(10), record_format="kafka") + rubbish + good
        dumped = list(dump_segment(file_of(data)))
        assert [one.header.base_offset if one.header else None for one in dumped] == (
            [0, None, 10, 13, 14]
        )
        assert dumped[1].size_bytes == len(rubbish)
        assert [one.decoded is not None for one in dumped] == [True, False, True, True, True]


def test_dump_finds_batches_across_the_pieces_of_its_search() -> None:
    """A batch that starts in one MiB of rubbish and ends in the next one is found."""
    good = encode_batch(numbered(3), record_format="kafka")
    for size in ((1 << 20) + more for more in (-100, -64, -63, -30, -16, -1, 0, 1, 64)):
        data = bytes(size) + good
        dumped = list(dump_segment(file_of(data)))
        assert [(one.position, one.header is not None) for one in dumped] == [
            (0, False),
            (size, True),
        ]


def test_dump_does_not_believe_a_damaged_header() -> None:
    """A flipped last offset of rows is damage of that batch, not of those behind it."""
    data = bytearray(rows_segment()[0])
    data[23] ^= 0x40
    dumped = list(dump_segment(file_of(bytes(data))))
    assert [one.crc_ok for one in dumped] == [False] + [True] * 19
    assert [one.damage is None for one in dumped] == [False] + [True] * 19


@pytest.mark.parametrize("record_format", ["kafka", "columns"])
def test_dump_shows_the_batches_of_another_segment(record_format: str) -> None:
    """In an exchanged file each batch is damage, and is shown with its header all the same."""
    data, _ = segment(numbered(10), numbered(10), record_format=record_format)
    dumped = list(dump_segment(file_of(data, identity=SegmentIdentity(0, 20, tag=7))))
    assert [(one.header is not None, one.crc_ok, one.decoded) for one in dumped] == (
        [(True, True, None)] * 2
    )
    assert all("not of this segment" in str(one.damage) for one in dumped)
    assert sum(one.size_bytes for one in dumped) == len(data)


@pytest.mark.condition(47)
def test_batches_out_of_order() -> None:
    """Offsets only grow, of records inside wrappers too."""
    later = batch(record(), 1, base_offset=5)
    inner = encode_message_set(numbered(8), 0, compression=Compression.GZIP, base_offset=3)
    for wrong in (later + later, later + inner, inner + later):
        with pytest.raises(CorruptRecord, match="base offset"):
            list(read_segment(file_of(wrong)))
