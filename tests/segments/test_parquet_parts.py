"""Some pages of a row group are read by themselves: the same rows, no others, and checked."""

from __future__ import annotations

import io
import random
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.segments.decoded_rows import count_decoded
from tests.support.segments.segment_samples import random_records
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.parquet import footer, open_segment, writer
from txnlog.segments.parquet.compact_values import field_head, varint
from txnlog.segments.parquet.file_metadata import ColumnChunk
from txnlog.segments.parquet.footer import PAGE_INDEX_KEY, RowGroup, read_footer
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.parquet.page_index import DataPage, PageIndex
from txnlog.segments.reader import SegmentBatch, find_timestamp, read_segment
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.writer import SegmentWriter

COUNT = 500


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few rows."""
    monkeypatch.setattr(writer, "_RECORD_PAGE_BYTES", 8 << 10)
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
    output = SegmentWriter(
        sink, record_format="parquet", batch_bytes=group_bytes, stores_offsets=offsets is not None
    )
    output.append(records, offsets)
    output.finish()
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
    monkeypatch.setattr(writer, "_RECORD_PAGE_BYTES", 1 << 10)
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
    return count_decoded(monkeypatch)


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


def test_a_few_rows_are_found_in_a_page(decoded: list[int]) -> None:
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


def test_of_a_large_file_the_pages_with_the_rows_are_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end once, with the page index; then pages, neighbours of a few megabytes together."""
    monkeypatch.setattr(open_segment, "WHOLE_BYTES", 0)
    monkeypatch.setattr(open_segment, "_MERGE_BYTES", 0)
    data = made(different_rows(400), group_bytes=100 << 20)
    segment = ParquetSegment(opened(data))
    (group,) = segment.footer.groups
    end = len(data) - segment.footer.page_index.start
    monkeypatch.setattr(footer, "FOOTER_CHUNK_BYTES", end)
    parts = [*segment.parts(group, ["value"], by_page=True)]
    last = [*segment.parts(group, ["value"], 390)]

    def requested(start_offset: int, *, by_page: bool) -> list[range]:
        asked: list[range] = []
        read = read_segment(
            opened(data, asked), start_offset=start_offset, columns=["value"], by_page=by_page
        )
        assert [at for at, _ in rows([*read])] == [*range(start_offset, 400)]
        assert asked[0] == range(len(data) - end, len(data))
        return asked[1:]

    assert requested(390, by_page=False) == pages_of(last)
    assert requested(0, by_page=True) == pages_of(parts[:1]) + joined(pages_of(parts[1:]))
    monkeypatch.setattr(open_segment, "_RUN_BYTES", 0)
    assert requested(0, by_page=True) == pages_of(parts)


def test_no_file_waits_for_the_page_index_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """While that of one is asked for, another thread reads that of a second one."""
    monkeypatch.setattr(open_segment, "WHOLE_BYTES", 0)
    monkeypatch.setattr(footer, "FOOTER_CHUNK_BYTES", 8)
    data = made(numbered_rows(COUNT))
    second = ParquetSegment(opened(data))
    first = ParquetSegment(opened(data))
    done: list[PageIndex | None] = []

    def read(start: int, stop: int) -> bytes:
        thread = threading.Thread(target=lambda: done.append(second._page_index()), daemon=True)
        thread.start()
        thread.join(20)
        assert done, "the second waits for the first"
        return data[start:stop]

    first.file = replace(first.file, read=read)
    assert first._page_index() is not None
    assert done[0] is not None


def different_rows(count: int) -> pa.RecordBatch:
    """Rows whose values hardly compress, so that pages are as long as their rows."""
    records = numbered_rows(count)
    rng = random.Random(count)
    values = pa.array([rng.randbytes(100) for _ in range(count)], pa.binary())
    at = records.schema.get_field_index("value")
    return records.set_column(at, records.schema.field(at), values)


def pages_of(parts: list[RowGroup]) -> list[range]:
    """Where the values of some parts lie."""
    chunks = [part.chunks[1] for part in parts]
    return [range(chunk.position, chunk.position + chunk.size_bytes) for chunk in chunks]


def joined(ranges: list[range]) -> list[range]:
    """Adjacent ranges as one."""
    return [range(ranges[0].start, ranges[-1].stop)]


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
    index = read_footer(opened(data)).page_index
    every = rows([*read_segment(opened(data))])
    for _ in range(6):
        lying = bytearray(data)
        for _ in range(rng.choice([1, 1, 3])):
            lying[rng.choice(index)] ^= 1 << rng.randrange(8)
        start = rng.randrange(every[-1][0])
        file = opened(bytes(lying))
        try:
            found = rows([*read_segment(file, by_page=True)])
            later = rows([*read_segment(file, start_offset=start)])
        except CorruptRecord:
            continue
        assert found == every
        assert later == [row for row in every if row[0] >= start]


@pytest.mark.parametrize("lie", ["do not ascend", "leave no room"])
def test_bounds_of_offsets_that_lie_are_found_before_they_are_used(
    lie: str, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they do not ascend, or leave no room for the rows, the row group is read whole."""
    data = made(numbered_rows(400), gaps(1, 400))
    every = rows([*read_segment(opened(data))])
    found = PageIndex.bounds

    def bounds(index: PageIndex, chunk: ColumnChunk, count: int) -> list[tuple[int, int]]:
        told = found(index, chunk, count)
        if chunk.leaf.path == (b"_offset",):
            least, largest = told[3]
            told[3] = (told[2][1], largest) if lie == "do not ascend" else (least, least + 1)
        return told

    monkeypatch.setattr(PageIndex, "bounds", bounds)
    decoded.clear()
    assert rows([*read_segment(opened(data), by_page=True)]) == every
    assert decoded == [400]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((-1, 0, 0), (0, 0, 0)),  # not where the chunk begins
        ((0, 0, 1), (0, 0, 1)),  # not with the first row
        ((0, 0, 0), (1, 0, 0)),  # a gap
        ((0, 1, 0), (0, 0, 0)),  # one page in another
        ((0, 0, 0), (0, 0, -200)),  # rows twice
        ((0, 0, 0), (0, 1 << 30, 0)),  # more than the chunk
        ((0, 0, 0), (0, -1, 0)),  # less
        ((0, 0, 0), (0, 0, 200)),  # no rows
    ],
)
def test_pages_that_contradict_the_footer_are_refused(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    """Before anything of their size is read: where two pages lie, moved by position, size, row."""
    chunk = ParquetSegment(opened(made(numbered_rows(400)))).footer.groups[0].chunks[1]
    half = chunk.size_bytes // 2
    true = (
        (chunk.position, half, 0),
        (chunk.position + half, chunk.size_bytes - half, 200),
    )

    def pages(*moves: tuple[int, int, int]) -> list[DataPage]:
        places = [
            [sum(pair) for pair in zip(*both, strict=True)]
            for both in zip(true, moves, strict=True)
        ]
        index = offset_index(places)
        described = replace(chunk, offset_index=range(100, 100 + len(index)))
        return PageIndex(index, 100).pages(described, 400)

    assert pages((0, 0, 0), (0, 0, 0)) == [*true]
    with pytest.raises(ValueError, match="page"):
        pages(first, second)


def offset_index(pages: list[list[int]]) -> bytes:
    """As Parquet has it: a list of structs of a position, a size and a first row."""
    described = b"".join(
        b"".join(
            field_head(field - 1, field, kind) + varint(value << 1)
            for field, kind, value in zip((1, 2, 3), (6, 5, 6), page, strict=True)
        )
        + b"\0"
        for page in pages
    )
    return field_head(0, 1, 9) + bytes([len(pages) << 4 | 12]) + described + b"\0"


@pytest.mark.usefixtures("_is_large")
def test_pages_that_begin_at_different_rows_are_read_from_common_ones(
    decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each entry for the values is of two pages: a part has an even number of the others."""
    data = made(numbered_rows(400))
    every = rows([*read_segment(opened(data))])
    found = PageIndex.pages

    def pages(index: PageIndex, chunk: ColumnChunk, row_count: int) -> list[DataPage]:
        told = found(index, chunk, row_count)
        if chunk.leaf.path != (b"value",):
            return told
        pairs = (told[at : at + 2] for at in range(0, len(told), 2))
        return [
            DataPage(pair[0].position, sum(page.size_bytes for page in pair), pair[0].first_row)
            for pair in pairs
        ]

    decoded.clear()
    assert rows([*read_segment(opened(data), by_page=True)]) == every
    page_rows = decoded[0]
    monkeypatch.setattr(PageIndex, "pages", pages)
    decoded.clear()
    assert rows([*read_segment(opened(data), by_page=True)]) == every
    assert decoded[0] == 2 * page_rows


def test_a_pyarrow_that_cannot_be_told_the_rows_of_a_page_writes_the_same_rows(
    decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are larger: here the row group is one."""
    records = numbered_rows(400)
    every = rows([*read_segment(opened(made(records)))])
    monkeypatch.setattr(writer, "has_page_rows", lambda: False)
    decoded.clear()
    assert rows([*read_segment(opened(made(records)), by_page=True)]) == every
    assert decoded == [400]


@pytest.mark.parametrize(
    ("header_count", "reason"), [(1, "values are claimed for"), (2, "rows, not")]
)
def test_rows_of_nested_pages_are_counted(
    header_count: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index says that a page has a row more than it has; values say little of rows there."""
    records = numbered_rows(400)
    headers = [[{"key": "a", "value": b"b"}] * header_count] * 400
    at = records.schema.get_field_index("headers")
    kind = records.schema.field(at)
    data = made(records.set_column(at, kind, pa.array(headers, kind.type)))
    found = PageIndex.pages

    def pages(index: PageIndex, chunk: ColumnChunk, row_count: int) -> list[DataPage]:
        told = found(index, chunk, row_count)
        told[1] = told[1]._replace(first_row=told[1].first_row + 1)
        return told

    monkeypatch.setattr(PageIndex, "pages", pages)
    with pytest.raises(CorruptRecord, match=reason):
        [*read_segment(opened(data), columns=["headers"], by_page=True)]


def test_values_that_a_part_names_take_no_more_memory_than_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long one in the dictionary, which a page of a few bytes has in each row."""
    monkeypatch.setattr(writer, "_RECORD_PAGE_BYTES", 1 << 20)
    records = numbered_rows(400)
    at = records.schema.get_field_index("value")
    values = pa.array([bytes(10_000)] * 400, pa.binary())
    data = made(records.set_column(at, records.schema.field(at), values), group_bytes=100 << 20)
    (found,) = read_segment(opened(data), start_offset=390, max_uncompressed_bytes=2 << 20)
    assert found.record_count == 10
    with pytest.raises(CorruptRecord, match="over the limit"):
        [*read_segment(opened(data), start_offset=390, max_uncompressed_bytes=1 << 19)]


@pytest.mark.parametrize("times", [[*range(2000)], ["x"] * 2000, [{"a": 1}] * 2000])
def test_times_of_another_type_are_an_error_of_our_own(
    times: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file that somebody made, with an index; its other columns can be read."""
    monkeypatch.setattr("txnlog.segments.parquet.footer.Footer.check_page_index", lambda *_: None)
    values = pa.array([b"%0100d" % number for number in range(2000)])
    table = pa.table({"value": values, "timestamp": pa.array(times)})
    named = table.replace_schema_metadata({PAGE_INDEX_KEY.decode(): "0" * 8})
    sink = io.BytesIO()
    parquet.write_table(
        named,
        sink,
        use_dictionary=False,
        write_page_index=True,
        data_page_size=1000,
        write_batch_size=100,
    )
    file = opened(sink.getvalue())
    (found,) = read_segment(file, start_offset=1990, columns=["value"])
    assert found.records.column(0).to_pylist() == values[1990:].to_pylist()
    with pytest.raises(CorruptRecord, match="timestamp"):
        [*read_segment(file, start_offset=1990)]


def test_bounds_that_are_not_those_of_the_page_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """They could be right by all that is known before the page is read."""
    data = made(numbered_rows(400), gaps(1, 400))
    found = PageIndex.bounds

    def bounds(index: PageIndex, chunk: ColumnChunk, count: int) -> list[tuple[int, int]]:
        told = found(index, chunk, count)
        if chunk.leaf.path == (b"_offset",):
            told[3] = (told[3][0] + 1, told[3][1])
        return told

    monkeypatch.setattr(PageIndex, "bounds", bounds)
    with pytest.raises(CorruptRecord, match="its offsets are"):
        [*read_segment(opened(data), by_page=True)]


def test_of_a_part_in_memory_the_whole_row_group_is_compared() -> None:
    """Its pages' own checksums are not, then."""
    data = made(numbered_rows(400))
    damaged = bytearray(data)
    damaged[read_footer(opened(data)).groups[0].position + 200] ^= 1
    with pytest.raises(CorruptRecord, match="row group 0: CRC-32C"):
        [*read_segment(opened(bytes(damaged)), start_offset=390)]


def test_a_file_that_has_ended_before_a_part_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since its end was read."""
    data = made(numbered_rows(400))
    end = len(data) - read_footer(opened(data)).page_index.start
    monkeypatch.setattr(open_segment, "WHOLE_BYTES", 0)
    monkeypatch.setattr(footer, "FOOTER_CHUNK_BYTES", end)

    def read(start: int, stop: int) -> bytes:
        return data[start:stop] if stop == len(data) else data[start : stop - 1]

    with pytest.raises(CorruptRecord, match="the file has ended"):
        [*read_segment(replace(opened(data), read=read), start_offset=390)]


def test_an_index_that_is_damaged_is_not_used(decoded: list[int]) -> None:
    """The rows are read without it: nothing but where they lie is in it."""
    data = made(numbered_rows(400))
    index = read_footer(opened(data)).page_index
    damaged = bytearray(data)
    damaged[index.start + 5] ^= 1
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
