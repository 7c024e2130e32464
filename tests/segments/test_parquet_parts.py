"""Some pages of a row group are read by themselves: the same rows, no others, and checked."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from segment_samples import random_records

from txnlog.segments import untrusted
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.parquet import encodings, open_segment, reader
from txnlog.segments.parquet.footer import read_footer
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.reader import SegmentBatch, find_timestamp, read_segment
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.writer import SegmentWriter

COUNT = 500


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few rows."""
    monkeypatch.setattr(encodings, "_RECORD_PAGE_BYTES", 8 << 10)
    monkeypatch.setattr(open_segment, "_SMALL_BYTES", 0)


@pytest.fixture(params=["in memory", "in ranges"])
def _is_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the file is too large to be read at once."""
    if request.param == "in ranges":
        monkeypatch.setattr(open_segment, "WHOLE_BYTES", 0)
        monkeypatch.setattr(open_segment, "_RUN_BYTES", 4 << 10)


def made(
    records: pa.RecordBatch, offsets: np.ndarray | None = None, group_bytes: int = 100_000
) -> bytes:
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink, record_format="parquet", batch_bytes=group_bytes, stores_offsets=offsets is not None
    )
    writer.append(records, offsets)
    writer.finish()
    return sink.getvalue()


def opened(data: bytes, asked: list[range] | None = None) -> SegmentFile:
    def read(start: int, stop: int) -> bytes:
        if asked is not None:
            asked.append(range(start, stop))
        return data[start:stop]

    return SegmentFile(read, len(data), "a segment", is_parquet=True)


def rows(batches: list[SegmentBatch]) -> list[tuple[int, dict[str, object]]]:
    return [
        (offset, row)
        for batch in batches
        for offset, row in zip(batch.offsets().tolist(), batch.records.to_pylist(), strict=True)
    ]


def gaps(seed: int, count: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).integers(1, 5, count))


@pytest.mark.parametrize("has_gaps", [False, True])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("_is_large")
def test_any_range_has_the_rows_of_the_whole(
    seed: int, has_gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys, values and headers of all sizes, nulls, with dictionaries and without."""
    monkeypatch.setattr(encodings, "_RECORD_PAGE_BYTES", 1 << 10)
    rng = random.Random(seed)
    records = random_records(COUNT, seed=seed)
    if seed % 2:  # few kinds of keys and values, which have dictionaries
        records = records.take(pa.array(rng.choices(range(40), k=COUNT)))
    offsets = gaps(seed, COUNT) if has_gaps else None
    file = opened(made(records, offsets, 8_000))
    segment = ParquetSegment(file)
    assert len(segment.footer.groups) > 1
    pages = [
        part
        for group in segment.footer.groups
        for part in segment.parts(group, ["key", "value"], by_page=True)
    ]
    assert len(pages) > 2 * len(segment.footer.groups)
    every = rows([*read_segment(file)])
    assert [offset for offset, _ in every] == [*(range(COUNT) if offsets is None else offsets)]
    assert rows([*read_segment(file, by_page=True)]) == every
    last = every[-1][0]
    for _ in range(4):
        start, stop = sorted(rng.sample(range(last + 2), 2))
        columns = rng.choice([None, ["value"], ["headers", "key"], ["timestamp"], []])
        for by_page in (False, True):
            found = [
                *read_segment(
                    file, start_offset=start, stop_offset=stop, columns=columns, by_page=by_page
                )
            ]
            expected = [
                (at, row if columns is None else {name: row[name] for name in columns})
                for at, row in every
                if start <= at < stop
            ]
            if columns != []:
                assert rows(found) == expected
            assert sum(batch.record_count for batch in found) == len(expected)
            assert [at for batch in found for at in batch.offsets()] == [at for at, _ in expected]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were decoded by each call."""
    counts: list[int] = []
    original = untrusted.read_row_group

    def count(*args: object, **more: object) -> pa.Table:
        table: pa.Table = original(*args, **more)  # type: ignore[arg-type]
        counts.append(table.num_rows)
        return table

    monkeypatch.setattr(reader, "read_row_group", count)
    return counts


def numbered_rows(count: int) -> pa.RecordBatch:
    """Rows of 100 bytes, and times that ascend."""
    records = random_records(1, seed=1)
    values = pa.array([b"%0100d" % number for number in range(count)], pa.binary())
    times = pa.array(range(count), pa.timestamp("ms", "UTC"))
    plain = {"key": values, "value": values, "timestamp": times}
    headers = pa.array([[]] * count, records.schema.field("headers").type)
    return pa.RecordBatch.from_arrays(
        [plain.get(name, headers) for name in records.schema.names], schema=records.schema
    )


def test_a_few_rows_are_found_in_a_page(
    decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By offset and by time, from the middle of a row group; and those first asked for alone."""
    data = made(numbered_rows(400))
    file = opened(data)
    assert len(ParquetSegment(file).footer.groups) == 1
    assert rows([*read_segment(file, start_offset=301, stop_offset=303)])[0][0] == 301
    assert len(decoded) == 1
    assert decoded[0] < 50
    decoded.clear()
    found = find_timestamp(file, 250)
    assert found is not None
    assert found.offset == 250
    assert sum(decoded) < 100
    decoded.clear()
    batches = read_segment(file, by_page=True)
    assert next(iter(batches)).record_count == sum(decoded) < 50
    monkeypatch.setattr(open_segment, "WHOLE_BYTES", 0)
    monkeypatch.setattr(open_segment, "FOOTER_CHUNK_BYTES", 1)
    asked: list[range] = []
    assert len(rows([*read_segment(opened(data, asked), start_offset=301, stop_offset=303)])) == 2
    assert sum(len(piece) for piece in asked if piece.stop < len(data) // 2) < len(data) // 8


def test_a_small_row_group_is_not_cut(decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless only some of its rows are wanted."""
    file = opened(made(numbered_rows(400)))
    monkeypatch.setattr(open_segment, "_SMALL_BYTES", 2 << 20)
    assert [batch.record_count for batch in read_segment(file, by_page=True)] == [400]
    decoded.clear()
    assert rows([*read_segment(file, start_offset=399, by_page=True)])[0][0] == 399
    assert decoded[0] < 50


@pytest.mark.parametrize("seed", range(3))
def test_sound_pages_come_before_a_damaged_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the error tells the offset of the page. No flipped bit of it shows other rows."""
    monkeypatch.setattr(open_segment, "WHOLE_BYTES", 0)
    data = made(numbered_rows(400))
    segment = ParquetSegment(opened(data))
    (group,) = segment.footer.groups
    parts = [*segment.parts(group, ["value"], by_page=True)]
    part = parts[3]
    chunk = part.chunks[1]
    rng = random.Random(seed)
    every = rows([*read_segment(opened(data))])
    found = 0
    for _ in range(6):
        damaged = bytearray(data)
        damaged[chunk.position + rng.randrange(chunk.size_bytes)] ^= 1 << rng.randrange(8)
        shown, error = until_damage(opened(bytes(damaged)))
        if error is None:  # a bit of the header that says nothing, such as how levels are encoded
            assert shown == every
        else:
            assert "a segment" in error
            assert f"offset {part.header.base_offset}" in error
            assert shown == every[: part.header.base_offset]
            found += 1
    assert found > 3


def until_damage(file: SegmentFile) -> tuple[list[tuple[int, dict[str, object]]], str | None]:
    """The rows before damage, and what is said of it."""
    shown: list[SegmentBatch] = []
    try:
        shown.extend(read_segment(file, by_page=True))
    except CorruptRecord as error:
        return rows(shown), str(error)
    return rows(shown), None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("_is_large")
def test_an_index_that_lies_shows_no_other_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum may be right: whoever wrote it knew how to. Rows are right, or damaged."""
    monkeypatch.setattr("txnlog.segments.parquet.footer.Footer.check_page_index", lambda *_: None)
    rng = random.Random(seed)
    data = made(numbered_rows(400), gaps(seed, 400) if seed else None)
    footer = read_footer(opened(data))
    every = rows([*read_segment(opened(data))])
    for _ in range(6):
        lying = bytearray(data)
        for _ in range(rng.choice([1, 1, 3])):
            lying[rng.choice(footer.page_index)] ^= 1 << rng.randrange(8)
        start = rng.randrange(every[-1][0])
        file = opened(bytes(lying))
        try:
            found = rows([*read_segment(file, by_page=True)])
            later = rows([*read_segment(file, start_offset=start)])
        except CorruptRecord:
            continue
        assert found == every
        assert later == [row for row in every if row[0] >= start]


def test_bounds_of_offsets_that_lie_are_found_before_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that do not ascend, or leave no room for the rows: the row group is read whole."""
    monkeypatch.setattr("txnlog.segments.parquet.footer.Footer.check_page_index", lambda *_: None)
    data = made(numbered_rows(400), gaps(1, 400))
    segment = ParquetSegment(opened(data))
    where = segment.footer.groups[0].chunks[-1].column_index
    every = rows([*read_segment(opened(data))])
    for at in where[::9]:
        lying = bytearray(data)
        lying[at] ^= 0x40
        found, error = until_damage(opened(bytes(lying)))
        assert error is None or "offsets" in error
        assert found == every[: len(found)]
        assert error is not None or found == every


def test_an_index_that_is_damaged_is_not_used(decoded: list[int]) -> None:
    """The rows are read without it: nothing but where they lie is in it."""
    data = made(numbered_rows(400))
    footer = read_footer(opened(data))
    damaged = bytearray(data)
    damaged[footer.page_index.start + 5] ^= 1
    found = rows([*read_segment(opened(bytes(damaged)), start_offset=300)])
    assert [offset for offset, _ in found] == [*range(300, 400)]
    assert decoded == [400]


def test_files_without_checksums_are_read_whole() -> None:
    """Whoever wrote them: their index is not known to be as it was written."""
    file = opened(made(numbered_rows(400)))
    segment = ParquetSegment(file)
    segment.footer = replace(segment.footer, page_index_crc=None)
    (group,) = segment.footer.groups
    assert [*segment.parts(group, ["value"], by_page=True)] == [group]
