"""The writer: how records become batches, limits, and what it says at the end."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.support.segments.segment_layout import raw_batches
from tests.support.segments.segment_samples import (
    batch_of,
    file_of,
    numbered,
    random_records,
    segment,
)
from txnlog.segments.batch_header import Compression, SegmentIdentity
from txnlog.segments.errors import RecordTooLarge, SegmentTooLarge, UnsupportedRecordFormat
from txnlog.segments.indexes.sparse import OffsetIndex
from txnlog.segments.reader import read_segment
from txnlog.segments.records import record_sizes
from txnlog.segments.writer import SegmentWriter


def read_back(data: bytes) -> pa.Table:
    """All records of a segment."""
    batches = [b.records for b in read_segment(file_of(data))]
    return pa.Table.from_batches(batches)


def test_big_input_is_split_and_small_input_gathered() -> None:
    """Batches are as large as asked for, whatever the sizes of the inputs."""
    records = numbered(5000)
    total = int(record_sizes(records).sum())
    for step in (1, 7, 999, 5000):
        sink = io.BytesIO()
        writer = SegmentWriter(sink, batch_bytes=total // 10)
        for start in range(0, 5000, step):
            writer.append(records.slice(start, step))
            assert writer.buffered_bytes < total // 10
            assert writer.record_count == min(start + step, 5000)
            assert writer.size_bytes == len(sink.getvalue())
        summary = writer.finish()
        assert 10 <= summary.batch_count <= 11
        assert read_back(sink.getvalue()).equals(pa.Table.from_batches([records]))


def test_input_is_not_cut_to_fill_a_batch_that_is_half_full() -> None:
    """What does not fit starts the next batch if half of one waits, and is cut otherwise."""
    records = numbered(90)
    for first, batches in ((60, [60, 30]), (30, [66, 24])):
        sink = io.BytesIO()
        writer = SegmentWriter(sink, batch_bytes=int(record_sizes(records)[:66].sum()))
        writer.append(records.slice(0, first))
        writer.append(records.slice(first))
        writer.finish()
        assert [raw.record_count for raw in raw_batches(sink.getvalue())] == batches
        assert read_back(sink.getvalue()).equals(pa.Table.from_batches([records]))


def test_large_records_get_batches_of_their_own() -> None:
    """A record over the batch size goes alone and those around it stay in order."""
    sizes = [10, 5000, 10, 10, 9000, 9000, 10]
    records = batch_of([(None, bytes(size), n, []) for n, size in enumerate(sizes)])
    data, summary = segment(records, batch_bytes=1000)
    assert [raw.record_count for raw in raw_batches(data)] == [1, 1, 2, 1, 1, 1]
    assert summary.batch_count == 6
    assert read_back(data).equals(pa.Table.from_batches([records]))


def test_summary() -> None:
    """The summary says what the file holds: counts, sizes, least and most time."""
    data, summary = segment(
        batch_of([(b"", b"", 50, []), (b"", b"", 10, [])]),
        batch_of([(b"", b"", 90, []), (b"", b"", 70, [])]),
        index_interval_bytes=0,
    )
    first, second = raw_batches(data)
    assert (summary.record_count, summary.batch_count, summary.size_bytes) == (4, 2, len(data))
    assert (summary.min_timestamp_ms, summary.max_timestamp_ms) == (10, 90)
    assert summary.index == b"\0\0\0\3" + second.position.to_bytes(4, "big")
    assert summary.time_index == b"".join((time.to_bytes(8, "big") + b"\0\0\0\3") for time in (90,))
    assert first.length + 12 == second.position


def test_nothing_appended() -> None:
    """An empty segment is an empty file and a summary that says so."""
    data, summary = segment()
    assert (data, summary.record_count, summary.index, summary.time_index) == (b"", 0, b"", b"")
    assert summary.max_timestamp_ms == -1
    data, summary = segment(numbered(0))
    assert (data, summary.batch_count) == (b"", 0)


def test_record_over_the_limit() -> None:
    """The error gives row, size and limit, and nothing of that input is taken."""
    writer = SegmentWriter(io.BytesIO(), max_record_bytes=120)
    writer.append(batch_of([(b"", bytes(100), 0, [])]))
    with pytest.raises(RecordTooLarge, match=r"record 1 .*takes 121 bytes.* 120"):
        writer.append(batch_of([(b"", b"", 0, []), (b"k", bytes(100), 0, [])]))
    with pytest.raises(RecordTooLarge):
        writer.append(batch_of([(b"", b"", 0, [("header", bytes(100))])]))
    assert writer.finish().record_count == 1


def test_after_the_end() -> None:
    """Finish can be called again, append cannot."""
    writer = SegmentWriter(io.BytesIO())
    writer.append(numbered(2))
    assert writer.finish() is writer.finish()
    with pytest.raises(ValueError, match="finished"):
        writer.append(numbered(1))


def test_settings_are_checked_at_once() -> None:
    """A wrong setting fails before any record is taken."""
    with pytest.raises(UnsupportedRecordFormat, match="kafkaesque"):
        SegmentWriter(io.BytesIO(), record_format="kafkaesque")
    with pytest.raises(ValueError, match="positive"):
        SegmentWriter(io.BytesIO(), batch_bytes=0)


def test_segment_over_two_gib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is written that the index could not point to (with a limit of 1000 bytes)."""
    monkeypatch.setattr("txnlog.segments.indexes.sparse.MAX_SEGMENT_BYTES", 1000)
    sink = io.BytesIO()
    writer = SegmentWriter(sink, compression=Compression.NONE)
    writer.append(numbered(1))
    writer.flush()
    written = sink.getvalue()
    writer.append(numbered(10, value_bytes=100))
    with pytest.raises(SegmentTooLarge):
        writer.flush()
    assert sink.getvalue() == written
    assert 0 < len(written) <= 1000


def test_memory_does_not_grow_with_the_segment() -> None:
    """Tiny slices of large inputs do not pin the inputs, nor do many one-row batches."""

    class Nowhere:
        def write(self, data: bytes) -> None:
            pass

    writer = SegmentWriter(Nowhere(), batch_bytes=1 << 20)
    before = pa.total_allocated_bytes()
    for _ in range(20):
        big = pa.record_batch(numbered(20_000, value_bytes=100).columns, schema=numbered(0).schema)
        writer.append(big.slice(5, 3))
        del big
    assert pa.total_allocated_bytes() - before < 1 << 20
    for start in range(2000):
        writer.append(numbered(1, start=start))
    assert pa.total_allocated_bytes() - before < 4 << 20
    assert len(writer._pending) < 100


def test_rebuilt_state_matches_random_use() -> None:
    """Random appends and flushes give the same records and a usable index."""
    for seed in range(5):
        records = random_records(400, seed)
        sink = io.BytesIO()
        writer = SegmentWriter(sink, batch_bytes=1500, index_interval_bytes=500)
        start = 0
        for step in [3, 50, 1, 120, 26, 200]:
            writer.append(records.slice(start, step))
            start += step
            if step % 2:
                writer.flush()
        summary = writer.finish()
        data = sink.getvalue()
        assert read_back(data).equals(pa.Table.from_batches([records]))
        assert len(OffsetIndex.decode(summary.index, segment_bytes=len(data))) > 2


@pytest.mark.parametrize("record_format", ["columns", "kafka", "parquet"])
@pytest.mark.parametrize("step", [1, 7, 250, 1000])
def test_records_may_bring_offsets_with_gaps(record_format: str, step: int) -> None:
    """Each record is found at its offset; batches without gaps are written as ever."""
    records = numbered(1000)
    offsets = np.flatnonzero(np.random.default_rng(5).random(1600) < 0.7)[:1000].astype(np.int64)
    offsets[:300] = np.arange(17, 317)
    offsets[300:] += 317
    sink = io.BytesIO()
    is_parquet = record_format == "parquet"
    writer = SegmentWriter(
        sink,
        record_format=record_format,
        batch_bytes=6000,
        index_interval_bytes=0,
        tag=77,
        stores_offsets=is_parquet,
    )
    for start in range(0, 1000, step):
        writer.append(records.slice(start, step), offsets[start : start + step])
    summary = writer.finish()
    assert (summary.record_count, summary.end_offset) == (1000, int(offsets[-1]) + 1)
    assert is_parquet or summary.tag == 77
    identity = SegmentIdentity(0, summary.end_offset, summary.tag)
    file = replace(file_of(sink.getvalue()), identity=identity, is_parquet=is_parquet)
    batches = list(read_segment(file))
    assert np.array_equal(np.concatenate([batch.offsets() for batch in batches]), offsets)
    assert pa.Table.from_batches([b.records for b in batches]).equals(
        pa.Table.from_batches([records])
    )
    assert [b.offset_deltas is None for b in batches][:2] == [True, True]
    assert batches[-1].offset_deltas is not None
    if is_parquet:
        return
    index = OffsetIndex.decode(summary.index)
    assert [int(offset) for offset in index.entries["offset"]] == [
        batch.last_offset for batch in batches[1:]
    ]


def test_offsets_that_do_not_ascend_are_refused() -> None:
    """Given offsets must be one for each record, strictly ascending."""
    writer = SegmentWriter(io.BytesIO())
    writer.append(numbered(3), np.array([4, 5, 9]))
    for offsets in ([9, 10], [11, 10], [12, 12]):
        with pytest.raises(ValueError, match="ascend from 10 on"):
            writer.append(numbered(2), np.array(offsets))
    with pytest.raises(ValueError, match="3 offsets were given for 2 records"):
        writer.append(numbered(2), np.array([10, 11, 12]))
    with pytest.raises(SegmentTooLarge, match=r"2147483648 is beyond .* roll"):
        writer.append(numbered(2), np.array([10, 1 << 31]))
    writer.append(numbered(2), np.array([10, (1 << 31) - 1]))
    assert writer.finish().end_offset == 1 << 31
    assert writer.room()[1] == 0
