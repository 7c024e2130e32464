"""The reader: ranges, gaps, times, damage, and how little it asks for."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pytest

from tests.support.segments.rows_layout import resealed_rows
from tests.support.segments.segment_layout import raw_batches, resealed
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
from tests.support.tiers import more
from txnlog.segments.batches import encode_batch
from txnlog.segments.errors import CorruptRecord, UnsupportedRecordFormat
from txnlog.segments.indexes.sparse import OffsetIndex, TimeIndex
from txnlog.segments.inspect.dump import dump_segment, verify_batches
from txnlog.segments.inspect.indexes import rebuild_indexes
from txnlog.segments.reader import SegmentBatch, find_timestamp, read_segment, scan_headers
from txnlog.segments.segment_file import SegmentFile

in_both_formats = pytest.mark.parametrize("record_format", ["columns", "kafka"])


def check(batches: list[SegmentBatch], expected: list[int]) -> None:
    """The batches hold exactly the records with these offsets, and say so consistently."""
    assert [offset for batch in batches for offset in batch.offsets().tolist()] == expected
    for batch in batches:
        offsets = batch.offsets().tolist()
        assert batch.offsets().dtype == np.int64
        assert batch.record_count == batch.records.num_rows == len(offsets) > 0
        assert (batch.first_offset, batch.last_offset) == (offsets[0], offsets[-1])
        assert [int(key) for key in batch.records.column("key").to_pylist()] == offsets


@pytest.mark.condition(39)
@in_both_formats
def test_every_range_of_a_gapped_segment(record_format: str) -> None:
    """From a gap or the middle of a batch come exactly the records from there on."""
    data = gapped_segment(record_format)
    every = [offset for offsets in GAPS for offset in offsets]
    for start in range(45):
        for stop in [None, *range(45)]:
            got = list(read_segment(file_of(data), start_offset=start, stop_offset=stop))
            check(got, [o for o in every if o >= start and (stop is None or o < stop)])


@pytest.mark.condition(39, 42)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 64, 1000, 5000, 1 << 20])
@in_both_formats
def test_ranges_with_and_without_an_index(
    indexed: bool, chunk_bytes: int, record_format: str
) -> None:
    """Chunks of any size and an index, or none, give the same records."""
    data, index, _ = dense_segment(record_format=record_format)
    for start, stop in [
        (0, None),
        (0, 1),
        (49, 51),
        (50, 100),
        (333, 334),
        (999, 2000),
        (777, 900),
    ]:
        got = list(
            read_segment(
                file_of(data),
                start_offset=start,
                stop_offset=stop,
                index=index if indexed else None,
                chunk_bytes=chunk_bytes,
            )
        )
        check(got, list(range(start, min(stop or 1000, 1000))))


def test_past_the_end_and_empty_ranges() -> None:
    """Nothing is yielded, and for an empty range nothing is asked for."""
    data, index, _ = dense_segment()
    assert not list(read_segment(file_of(data), start_offset=1000, index=index))
    file = RecordingFile(data)
    assert not list(read_segment(file.opened(), start_offset=5, stop_offset=5))
    assert not list(read_segment(SegmentFile(file, 0, "x")))
    assert file.requests == []


@pytest.mark.condition(40)
def test_a_small_limit_still_gets_a_batch() -> None:
    """The first step of the iterator gives a batch however large that is."""
    data, _ = segment(numbered(5000, value_bytes=100))
    first = next(read_segment(file_of(data), chunk_bytes=1))
    assert first.record_count == 5000


def test_columns_are_projected() -> None:
    """Only the columns asked for come back; offsets and counts need none."""
    data = gapped_segment()
    got = list(read_segment(file_of(data), columns=["timestamp"]))
    assert [batch.records.schema.names for batch in got] == [["timestamp"]] * 4
    got = list(read_segment(file_of(data), columns=[], start_offset=9))
    assert [batch.offsets().tolist() for batch in got] == [[10, 13], [40, 41]]
    assert [batch.record_count for batch in got] == [2, 2]
    with pytest.raises(UnsupportedRecordFormat, match=r"x\.log at byte 0.*'price'"):
        list(read_segment(file_of(data), columns=["price"]))


def test_requests_are_bounded_chunks_in_order() -> None:
    """A scan asks for each byte once, never for more than a chunk plus a batch."""
    data, _, _ = dense_segment()
    largest = max(len(raw.raw) for raw in raw_batches(data))
    for chunk_bytes in (1, 3000, 4096, 10_000, len(raw_batches(data)[0].raw) + 30):
        file = RecordingFile(data)
        list(read_segment(file.opened(), chunk_bytes=chunk_bytes))
        assert file.bytes_read == len(data)
        assert [stop for _, stop in file.requests[:-1]] == [start for start, _ in file.requests[1:]]
        assert max(stop - start for start, stop in file.requests) <= max(chunk_bytes, largest)


@in_both_formats
def test_point_read_with_an_index(record_format: str) -> None:
    """One record of a long segment costs one request of two batches."""
    data, index, _ = dense_segment(record_format=record_format)
    largest = max(len(raw.raw) for raw in raw_batches(data))
    file = RecordingFile(data)
    got = list(read_segment(file.opened(), start_offset=777, stop_offset=778, index=index))
    check(got, [777])
    assert len(file.requests) == 1
    assert file.bytes_read <= 2 * largest < len(data) / 5


def test_point_read_without_an_index_skips_large_batches() -> None:
    """Payloads that are not wanted are not fetched, only their headers."""
    noise = np.random.default_rng(1).bytes(600_000)
    batches = [batch_of([(b"%d" % n, noise, n, [])]) for n in range(12)]
    data, _ = segment(*batches)
    file = RecordingFile(data)
    check(
        list(read_segment(file.opened(), start_offset=7, stop_offset=8, chunk_bytes=1 << 20)),
        [7],
    )
    assert file.bytes_read < len(data) / 3
    file = RecordingFile(data)
    assert len(list(scan_headers(file.opened()))) == 12
    assert file.bytes_read < 60_000


def test_headers_of_small_batches_are_read_through() -> None:
    """Small batches do not cost a request each."""
    data, _ = segment(*[numbered(5, start=start) for start in range(0, 5000, 5)])
    file = RecordingFile(data)
    found = list(scan_headers(file.opened()))
    assert [position for position, _ in found] == [raw.position for raw in raw_batches(data)]
    assert len(file.requests) < 5


def test_stopping_early_reads_nothing_more() -> None:
    """A reader that stops iterating has asked for one chunk."""
    data, _, _ = dense_segment()
    file = RecordingFile(data)
    next(read_segment(file.opened(), chunk_bytes=4096))
    assert file.requests == [(0, 4096)]


@pytest.mark.few(5)
@pytest.mark.condition(42)
@pytest.mark.parametrize("entry", range(0, 19, 6))
@pytest.mark.parametrize("field", [0, 1])
@pytest.mark.parametrize("change", [1, 8, -8, 64, -60])
def test_a_wrong_offset_index_loses_nothing(entry: int, field: int, change: int) -> None:
    """Plausible but wrong entries never hide a record or blame the segment."""
    data, index, _ = dense_segment()
    raw = bytearray(index.encode())
    at = 8 * entry + 4 * field
    (value,) = struct.unpack_from(">i", raw, at)
    struct.pack_into(">i", raw, at, value + change)
    try:
        wrong = OffsetIndex.decode(bytes(raw), segment_bytes=len(data))
    except CorruptRecord:
        return
    for start in range(0, 1000, 13):
        got = read_segment(
            file_of(data),
            start_offset=start,
            stop_offset=start + 60,
            index=wrong,
            chunk_bytes=2048,
        )
        check(list(got), list(range(start, min(start + 60, 1000))))


@pytest.mark.condition(42)
def test_indexes_of_another_segment_lose_nothing() -> None:
    """Even whole indexes of another file only cost time."""
    data, _, _ = dense_segment()
    other, _ = segment(*[numbered(33, start=s) for s in range(0, 990, 33)], index_interval_bytes=0)
    index, time_index = rebuild_indexes(file_of(other), interval_bytes=0)
    for start in range(0, 1000, 37):
        got = read_segment(file_of(data), start_offset=start, index=index)
        assert next(iter(got)).first_offset == start
        found = find_timestamp(
            file_of(data),
            1000 + 10 * start,
            time_index=time_index,
            index=index,
        )
        assert found == (start, 1000 + 10 * start)


@pytest.mark.condition(42)
@in_both_formats
def test_indexes_come_back(record_format: str) -> None:
    """Rebuilt indexes equal the writer's, byte for byte."""
    for interval_bytes in (0, 700, 4096):
        data, summary = segment(
            *[numbered(50, start=start) for start in range(0, 1000, 50)],
            index_interval_bytes=interval_bytes,
            record_format=record_format,
        )
        index, time_index = rebuild_indexes(file_of(data), interval_bytes=interval_bytes)
        assert (index.encode(), time_index.encode()) == (summary.index, summary.time_index)


@pytest.mark.condition(41)
@in_both_formats
def test_times_against_a_plain_loop(record_format: str) -> None:
    """The first record at or after any time, times out of order, with any indexes."""
    rng = np.random.default_rng(7)
    for _ in range(10):
        times = rng.integers(-1, 200, 120).tolist()
        batches = [
            batch_of([(b"", b"", time, []) for time in times[n : n + 10]])
            for n in range(0, 120, 10)
        ]
        data, summary = segment(*batches, index_interval_bytes=0, record_format=record_format)
        index, time_index = OffsetIndex.decode(summary.index), TimeIndex.decode(summary.time_index)
        for wanted in range(-3, 205, 4):
            expected = next(((n, t) for n, t in enumerate(times) if t >= wanted), None)
            for indexes in ({}, {"index": index}, {"index": index, "time_index": time_index}):
                file = RecordingFile(data)
                assert find_timestamp(file.opened(), wanted, **indexes) == expected
        for start in (0, 9, 10, 33, 119):
            expected = next(
                ((n, t) for n, t in enumerate(times) if t >= 50 and start <= n < 112), None
            )
            found = find_timestamp(file_of(data), 50, start_offset=start, stop_offset=112)
            assert found == expected


@pytest.mark.condition(41)
def test_time_lookup_reads_little() -> None:
    """With indexes a time costs a few headers and one batch."""
    data, index, time_index = dense_segment()
    file = RecordingFile(data)
    found = find_timestamp(file.opened(), 1000 + 8010, index=index, time_index=time_index)
    assert found == (801, 9010)
    assert all(start >= len(data) // 2 for start, _ in file.requests)


@pytest.mark.condition(42)
@pytest.mark.parametrize("change", [(0, 1), (0, -1), (0, 500), (8, 1), (8, 50), (8, -50)])
def test_a_wrong_time_index_loses_nothing(change: tuple[int, int]) -> None:
    """Wrong entries of the time index never change an answer."""
    data, index, time_index = dense_segment()
    at, add = change
    for entry in range(0, len(time_index), 5):
        raw = bytearray(time_index.encode())
        code = ">q" if at == 0 else ">i"
        (value,) = struct.unpack_from(code, raw, 12 * entry + at)
        struct.pack_into(code, raw, 12 * entry + at, max(value + add, 0))
        try:
            wrong = TimeIndex.decode(bytes(raw))
        except CorruptRecord:
            continue
        for offset in range(0, 1000, 17):
            found = find_timestamp(
                file_of(data),
                1000 + 10 * offset,
                index=index,
                time_index=wrong,
            )
            assert found == (offset, 1000 + 10 * offset)


@pytest.mark.condition(43)
@pytest.mark.parametrize(
    "garbage",
    [b"\0", b"\0" * 500, b"\xff" * 500, bytes(range(256)), b"\0" * 16 + b"\x64" + b"\1" * 99],
)
def test_garbage_after_the_last_batch(garbage: bytes) -> None:
    """Every good record is kept and the rest is reported with its position."""
    data, _, _ = dense_segment()
    broken = data + garbage
    got: list[SegmentBatch] = []
    with pytest.raises(CorruptRecord, match=rf"x\.log at byte {len(data)}"):
        got.extend(read_segment(file_of(broken)))
    check(got, list(range(1000)))
    report = verify_batches(dump_segment(file_of(broken)))
    assert (report.record_count, report.batch_count, report.next_offset) == (1000, 20, 1000)
    (damage,) = report.damages
    assert (damage.position, damage.size_bytes) == (len(data), len(garbage))
    assert f"x.log at byte {len(data)}" in damage.reason
    index, _ = rebuild_indexes(file_of(broken), interval_bytes=0)
    assert len(index) == 19


@pytest.mark.condition(43)
def test_truncated_anywhere() -> None:
    """A file cut at any byte keeps the batches before the cut."""
    data = gapped_segment()
    ends = [raw.position + len(raw.raw) for raw in raw_batches(data)]
    counts = np.cumsum([len(offsets) for offsets in GAPS])
    for size in range(len(data)):
        whole = sum(end <= size for end in ends)
        report = verify_batches(dump_segment(file_of(data[:size]), chunk_bytes=100))
        assert report.batch_count == whole
        assert report.record_count == (counts[whole - 1] if whole else 0)
        assert bool(report.damages) == (size not in (0, *ends))


@pytest.mark.condition(44)
def test_a_damaged_payload_does_not_hide_what_follows() -> None:
    """Verify goes on behind it; the reader stops there with position and offset."""
    data, _, _ = dense_segment()
    raw = raw_batches(data)[3]
    broken = bytearray(data)
    broken[raw.position + 300] ^= 1
    report = verify_batches(dump_segment(file_of(bytes(broken))))
    assert (report.batch_count, report.record_count, report.next_offset) == (19, 950, 1000)
    assert [(d.position, d.size_bytes) for d in report.damages] == [(raw.position, len(raw.raw))]
    got: list[SegmentBatch] = []
    where = rf"x\.log at byte {raw.position} \(relative offset 150\): CRC"
    with pytest.raises(CorruptRecord, match=where):
        got.extend(read_segment(file_of(bytes(broken))))
    check(got, list(range(150)))


@pytest.mark.condition(44)
@pytest.mark.parametrize("every", [9, *more([3]), pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_never_changes_what_a_range_holds(every: int) -> None:
    """Whatever bit flips, a read from the middle gives the truth or CorruptRecord.

    The header check is what makes this hold for batches that are skipped by their headers alone.
    All bits of headers are flipped, and one of each byte of the payloads; reads of them begin
    at each place, at every third one, or at every ninth.
    """
    data = gapped_segment()
    starts = [raw.position for raw in raw_batches(data)]
    truth = {start: [o for offsets in GAPS for o in offsets if o >= start] for start in (3, 8, 12)}
    for at in range(len(data)):
        in_header = any(start <= at < start + 64 for start in starts)
        for bit in range(8) if in_header else (at % 8,):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            for start, expected in [*truth.items()][(at + bit) % every :: every]:
                got: list[int] = []
                file = RecordingFile(bytes(broken))
                try:
                    for batch in read_segment(file.opened(), start_offset=start):
                        got += batch.offsets().tolist()
                except CorruptRecord:
                    assert got == expected[: len(got)]
                else:
                    assert got == expected
            try:
                found = find_timestamp(file_of(bytes(broken)), 95)
            except CorruptRecord:
                continue
            assert found == (10, 100)


@pytest.mark.condition(47)
def test_batches_out_of_order() -> None:
    """Offsets only grow; a batch that repeats or goes back is corrupt."""
    first, second = (encode_batch(numbered(5), base_offset=base) for base in (0, 5))
    for wrong in (second + first, first + first, first + encode_batch(numbered(5), base_offset=4)):
        with pytest.raises(CorruptRecord, match="base offset"):
            list(read_segment(file_of(wrong)))
        assert verify_batches(dump_segment(file_of(wrong))).batch_count == 1


@pytest.mark.condition(45)
@pytest.mark.parametrize(
    ("record_format", "reseal"), [("columns", resealed), ("kafka", resealed_rows)]
)
def test_length_that_reaches_into_the_next_batch(
    record_format: str, reseal: Callable[[bytes, Mapping[int, bytes]], bytes]
) -> None:
    """A length that is too long or too short is corrupt, under good checksums too."""
    data = encode_batch(numbered(5), record_format=record_format) * 2
    size = len(data) // 2
    for length in (size - 20, size - 13, size - 11, size - 4, 2 * size - 12, 49, 10):
        wrong = reseal(data[:size], {8: length.to_bytes(4, "big")}) + data[size:]
        with pytest.raises(CorruptRecord, match="at byte 0"):
            list(read_segment(file_of(wrong)))


def test_a_file_shorter_than_it_was_said_to_be() -> None:
    """A short answer of the storage is reported as such, not decoded."""
    data, _, _ = dense_segment()
    with pytest.raises(CorruptRecord, match="were asked for"):
        list(read_segment(SegmentFile(lambda a, b: data[a:b], len(data) + 64, "x")))


def test_slices_of_batches_have_their_own_offsets() -> None:
    """Batches with gaps and without."""
    dense, _, _ = dense_segment()
    for data in (gapped_segment(), dense):
        for batch in [*read_segment(file_of(data))][:9]:
            offsets = batch.offsets().tolist()
            for start in range(len(offsets)):
                for count in range(1, len(offsets) - start + 1):
                    check([batch.slice(start, count)], offsets[start : start + count])


@pytest.mark.condition(39)
@in_both_formats
def test_records_of_a_cut_batch_keep_every_column(record_format: str) -> None:
    """Cutting changes which rows come, not what is in them."""
    rows: list[Row] = [(b"%d" % n, b"v" * n, n, [("h", b"x")]) for n in range(20)]
    data, _ = segment(batch_of(rows), record_format=record_format)
    (batch,) = read_segment(file_of(data), start_offset=7, stop_offset=12)
    assert rows_of(batch.records) == rows[7:12]
    assert isinstance(batch.records, pa.RecordBatch)
