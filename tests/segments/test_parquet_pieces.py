"""Row groups are decoded in pieces: any range in pieces of any size, and damage between them."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.segments.decoded_rows import count_decoded
from tests.support.segments.segment_samples import batch_of, numbered
from txnlog.segments.batch_header import SegmentIdentity
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.parquet import reader
from txnlog.segments.parquet.footer import read_footer
from txnlog.segments.reader import SegmentBatch, read_segment
from txnlog.segments.records import constant_timestamps, empty_headers
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.untrusted import open_parquet
from txnlog.segments.writer import SegmentWriter

COUNT = 36


def written(records: pa.RecordBatch, offsets: np.ndarray | None, group_bytes: int) -> SegmentFile:
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink, record_format="parquet", batch_bytes=group_bytes, stores_offsets=offsets is not None
    )
    writer.append(records, offsets)
    summary = writer.finish()
    data = sink.getvalue()
    identity = SegmentIdentity(0, summary.end_offset, summary.tag)

    def read(start: int, stop: int) -> bytes:
        return data[start:stop]

    return SegmentFile(read, len(data), "a segment", identity=identity, is_parquet=True)


def texts(count: int) -> pa.RecordBatch:
    """Records whose values have 100 random bytes."""
    rng = random.Random(5)
    return batch_of([(b"k%d" % n, rng.randbytes(100), n, []) for n in range(count)])


@pytest.mark.few(1)
@pytest.mark.parametrize("piece_rows", [1, 3, 7])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("columns", [None, ["value"], []])
def test_any_range_in_pieces_of_any_size(
    piece_rows: int, gaps: bool, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record once, at its offset, and in no larger pieces."""
    monkeypatch.setattr(reader, "_PIECE_ROWS", piece_rows)
    offsets = np.flatnonzero(np.arange(2 * COUNT) % 5 < 3)[:COUNT].astype(np.int64)
    file = written(numbered(COUNT), offsets if gaps else None, group_bytes=400)
    assert len(read_footer(file).groups) > 2
    numbers = offsets if gaps else np.arange(COUNT)
    values = numbered(COUNT).column("value").to_pylist()
    end = int(numbers[-1]) + 2
    for start in range(end):
        for stop in range(start, end):
            found = [*read_segment(file, start_offset=start, stop_offset=stop, columns=columns)]
            expected = [n for n in numbers.tolist() if start <= n < stop]
            assert [n for batch in found for n in batch.offsets().tolist()] == expected
            for batch in found:
                assert batch.offsets()[[0, -1]].tolist() == [batch.first_offset, batch.last_offset]
            if columns != []:
                read = [v for b in found for v in b.records.column("value").to_pylist()]
                assert read == [values[n] for n in np.searchsorted(numbers, expected)]
                assert all(batch.record_count <= piece_rows for batch in found)


def test_what_is_large_is_decoded_when_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece; what is small at once, so that several threads can."""
    decoded = count_decoded(monkeypatch)
    small, large = (written(texts(count), None, 1 << 30) for count in (40_000, 120_000))
    for file, at_once in ((small, 40_000), (large, 20_000)):
        decoded.clear()
        batches = read_segment(file)
        next(batches)
        assert len(read_footer(file).groups) == 1
        assert at_once / 2 < sum(decoded) <= at_once
        assert 1 < len([*batches]) < 10


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [None, ["value"]])
def test_what_is_before_damage_comes_first(
    columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of columns that are read apart; a row group that is read whole is checked as a whole."""
    monkeypatch.setattr("txnlog.segments.parquet.open_segment.WHOLE_BYTES", 0)
    file = written(texts(120_000), None, 1 << 30)
    (group,) = read_footer(file).groups
    (chunk,) = (c for c in group.chunks if c.leaf.path == (b"value",))
    damaged = bytearray(file.read(0, file.size_bytes))
    damaged[chunk.position + chunk.size_bytes // 2] ^= 1

    def read(start: int, stop: int) -> bytes:
        return bytes(damaged[start:stop])

    batches: list[SegmentBatch] = []
    with pytest.raises(CorruptRecord, match="row group 0"):
        batches.extend(read_segment(replace(file, read=read), columns=columns))
    offsets = [n for batch in batches for n in batch.offsets().tolist()]
    assert offsets == [*range(len(offsets))]
    assert (30_000 < len(offsets) < 60_000) if columns else not offsets


@pytest.mark.parametrize("claimed", [2_999, 3_001])
def test_rows_that_the_footer_does_not_count(claimed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never handed out, and fewer than it counts are damage."""
    monkeypatch.setattr(reader, "_PIECE_ROWS", 100)
    monkeypatch.setattr(reader, "_WORK_AHEAD_BYTES", 0)
    file = written(numbered(3_000), None, 1 << 30)
    original = reader.RowGroupReading._read

    def lies(self, group, *args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
        header = replace(group.header, record_count=claimed, last_offset_delta=claimed - 1)
        return original(self, replace(group, header=header), *args)

    monkeypatch.setattr(reader.RowGroupReading, "_read", lies)
    batches: list[SegmentBatch] = []
    with pytest.raises(CorruptRecord, match="rows"):
        batches.extend(read_segment(file))
    assert sum(b.record_count for b in batches) == (2_900 if claimed < 3_000 else 3_000)


@pytest.mark.parametrize("columns", [None, ["value"], []])
@pytest.mark.parametrize("piece_rows", [4, 100])
def test_the_last_offset_is_the_footers(
    columns: list[str] | None, piece_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece or several."""
    monkeypatch.setattr(reader, "_PIECE_ROWS", piece_rows)
    file = written(numbered(10), np.arange(10, dtype=np.int64) * 3, 1 << 30)
    original = reader.RowGroupReading._read

    def lies(self, group, *args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
        header = replace(group.header, last_offset_delta=40)
        return original(self, replace(group, header=header), *args)

    monkeypatch.setattr(reader.RowGroupReading, "_read", lies)
    with pytest.raises(CorruptRecord, match="its last offset is 27"):
        [*read_segment(file, columns=columns)]


def test_a_file_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many row groups of one piece it has."""
    opened: list[object] = []

    def opening(*args: Any, **more: Any) -> Any:
        opened.append(args)
        return open_parquet(*args, **more)

    monkeypatch.setattr(reader, "open_parquet", opening)
    file = written(numbered(400), None, group_bytes=400)
    assert len(read_footer(file).groups) > 20
    assert sum(batch.record_count for batch in read_segment(file)) == 400
    assert len(opened) == 1


def test_many_columns_are_decoded_in_larger_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginning with a column takes as long as a thousand of its values."""
    decoded = count_decoded(monkeypatch)
    values = pa.array(np.random.default_rng(1).random(30_000))
    wide = {f"c{number}": values for number in range(100)}
    times = {"_timestamp": constant_timestamps(5, len(values))}
    rows = pa.record_batch({**wide, **times, "_headers": empty_headers(len(values))})
    sink = io.BytesIO()
    writer = SegmentWriter(sink, record_format="parquet", batch_bytes=1 << 30)
    writer.append(rows)
    writer.finish()
    data = sink.getvalue()
    file = SegmentFile(lambda start, stop: data[start:stop], len(data), "wide", is_parquet=True)
    assert sum(batch.record_count for batch in read_segment(file)) == len(values)
    assert min(decoded[:-1]) >= 10_000
