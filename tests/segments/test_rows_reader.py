"""Segments of rows: the writer, the reader, how skipping is guarded, indexes, dump and verify."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.segments.message_layout import message
from tests.support.segments.rows_layout import batch, record, resealed_rows
from tests.support.segments.segment_layout import raw_batches
from tests.support.segments.segment_samples import (
    GAPS,
    RecordingFile,
    Row,
    batch_of,
    dense_segment,
    file_of,
    gapped_segment,
    numbered,
    rows_of,
    segment,
)
from txnlog.segments.batches import encode_batch, encode_marker
from txnlog.segments.compression import Compression
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.formats.message_sets import encode_message_set
from txnlog.segments.identity import SegmentIdentity
from txnlog.segments.indexes.sparse import OffsetIndex, TimeIndex
from txnlog.segments.inspect.dump import dump_segment, verify_batches
from txnlog.segments.inspect.indexes import rebuild_indexes
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


@pytest.mark.condition(39)
def test_every_range_of_a_gapped_segment() -> None:
    """From a gap or the middle of a batch come exactly the records from there on."""
    data = gapped_segment("kafka")
    for start in range(45):
        for stop in [None, *range(45)]:
            assert offsets_read(data, start_offset=start, stop_offset=stop) == [
                offset for offset in EVERY if offset >= start and (stop is None or offset < stop)
            ]


@pytest.mark.condition(39, 42)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
def test_ranges_with_and_without_an_index(indexed: bool, chunk_bytes: int) -> None:
    """Chunks of any size and an index, or none, give the same records."""
    data, index, _ = rows_segment()
    for start, stop in ((0, None), (0, 1), (49, 51), (333, 334), (999, 2000), (777, 900)):
        assert offsets_read(
            data,
            start_offset=start,
            stop_offset=stop,
            index=index if indexed else None,
            chunk_bytes=chunk_bytes,
        ) == list(range(start, min(stop or 1000, 1000)))


def test_point_read_with_an_index() -> None:
    """With an index what is skipped is a batch or two, and so is what is fetched."""
    data, index, _ = rows_segment()
    largest = max(len(raw.raw) for raw in raw_batches(data))
    file = RecordingFile(data)
    list(read_segment(file.opened(), start_offset=777, stop_offset=778, index=index))
    assert len(file.requests) == 1
    assert file.bytes_read <= 2 * largest < len(data) / 5


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


@pytest.mark.condition(41)
def test_times_against_a_plain_loop() -> None:
    """The first record at or after any time, times out of order, with any indexes."""
    rng = np.random.default_rng(7)
    times = rng.integers(-1, 200, 120).tolist()
    batches = [
        batch_of([(b"", b"", time, []) for time in times[n : n + 10]]) for n in range(0, 120, 10)
    ]
    data, summary = segment(*batches, index_interval_bytes=0, record_format="kafka")
    index, time_index = OffsetIndex.decode(summary.index), TimeIndex.decode(summary.time_index)
    for wanted in range(-3, 205, 4):
        expected = next(((n, t) for n, t in enumerate(times) if t >= wanted), None)
        given: list[dict[str, Any]] = [{}, {"index": index, "time_index": time_index}]
        for indexes in given:
            file = RecordingFile(data)
            assert find_timestamp(file.opened(), wanted, **indexes) == expected


@pytest.mark.condition(42)
def test_indexes_come_back() -> None:
    """Rebuilt indexes equal the writer's, byte for byte."""
    data, index, time_index = rows_segment()
    again = rebuild_indexes(file_of(data), interval_bytes=0)
    assert [part.encode() for part in again] == [index.encode(), time_index.encode()]


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


@pytest.mark.condition(45)
def test_a_length_that_reaches_into_the_next_batch() -> None:
    """A length that is too long or too short is corrupt, under good checksums too."""
    data = encode_batch(numbered(5), record_format="kafka") * 2
    size = len(data) // 2
    for length in (size - 13, size - 11, 2 * size - 12, 49, 10):
        wrong = resealed_rows(data[:size], {8: length.to_bytes(4, "big")}) + data[size:]
        with pytest.raises(CorruptRecord, match="at byte 0"):
            list(read_segment(file_of(wrong)))


@pytest.mark.condition(39)
def test_records_of_a_cut_batch_keep_every_column() -> None:
    """Cutting changes which rows come, not what is in them."""
    rows: list[Row] = [(b"%d" % n, b"v" * n, n, [("h", b"x")]) for n in range(20)]
    data, _ = segment(batch_of(rows), record_format="kafka")
    (part,) = read_segment(file_of(data), start_offset=7, stop_offset=12)
    assert rows_of(part.records) == rows[7:12]
