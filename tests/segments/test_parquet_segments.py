"""Segments that are Parquet files: what other engines see, damage, and what is read of them."""

from __future__ import annotations

import gc
import io
import random
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.support.examples import share_of
from tests.support.segments.segment_samples import Row, batch_of, file_of, numbered, random_records
from txnlog.segments import untrusted
from txnlog.segments.batch_header import Compression, SegmentIdentity
from txnlog.segments.errors import CorruptRecord, UnsupportedRecordFormat
from txnlog.segments.inspect.dump import dump_segment
from txnlog.segments.parquet.footer import footer_tag, read_footer
from txnlog.segments.parquet.open_segment import WHOLE_BYTES, ParquetSegment
from txnlog.segments.parquet.reader import read_row_groups, repeating_columns
from txnlog.segments.reader import find_timestamp, read_segment
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.writer import SegmentSummary, SegmentWriter


def write(
    records: pa.RecordBatch,
    offsets: np.ndarray | None = None,
    *,
    group_bytes: int | None = None,
    codec: Compression = Compression.ZSTD,
    level: int | None = None,
) -> tuple[bytes, SegmentSummary]:
    """A segment of these records, and what its writer says of it."""
    sink = io.BytesIO()
    writer = SegmentWriter(
        sink,
        record_format="parquet",
        compression=codec,
        level=level,
        batch_bytes=group_bytes,
        stores_offsets=offsets is not None,
        origin={"txnlog.segment": "some-0.parquet"},
    )
    writer.append(records, offsets)
    summary = writer.finish()
    return sink.getvalue(), summary


def placed(data: bytes, summary: SegmentSummary) -> SegmentFile:
    """The file as the log that has placed the segment knows it."""
    identity = SegmentIdentity(0, summary.end_offset, summary.tag)

    def read(start: int, stop: int) -> bytes:
        return data[start:stop]

    return SegmentFile(read, len(data), "a segment", identity=identity, is_parquet=True)


def rows(file: SegmentFile, **arguments: object) -> pa.Table:
    batches = [batch.records for batch in read_segment(file, **arguments)]  # type: ignore[arg-type]
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("codec", Compression)
def test_any_engine_reads_the_file(codec: Compression) -> None:
    """A file with the records' columns, times in microseconds, and whose it is in the footer."""
    records = random_records(5000, seed=3)
    data, summary = write(records, group_bytes=100_000, codec=codec)
    file = parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    found, sent = file.read(), pa.Table.from_batches([records])
    assert found.select(["key", "value"]).equals(sent.select(["key", "value"]))
    times = found.column("timestamp")
    assert times.type == pa.timestamp("us", tz="UTC")
    assert times.cast(records.column("timestamp").type).equals(sent.column("timestamp"))
    assert file.metadata.metadata[b"txnlog.segment"] == b"some-0.parquet"
    assert file.metadata.num_row_groups == summary.batch_count > 3
    assert summary.size_bytes == len(data)
    assert rows(placed(data, summary)).equals(pa.Table.from_batches([records]))


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Compression.GZIP, (1, 9)), (Compression.LZ4, (1, 12)), (Compression.ZSTD, (-7, 1, 22))],
)
def test_levels_of_codecs_are_pyarrows(codec: Compression, levels: tuple[int, ...]) -> None:
    """A file is as small as pyarrow makes one at the level, and says the codec, which is read."""
    rng = random.Random(8)
    words = [rng.randbytes(6).hex().encode() for _ in range(500)]
    values = [b" ".join(rng.choices(words, k=40)) for _ in range(300)]
    records = batch_of([(None, value, 0, []) for value in values])
    sizes = []
    for level in levels:
        data, summary = write(records, codec=codec, level=level)
        column = read_footer(placed(data, summary)).metadata.row_group(0).column(1)
        assert column.compression == codec.name
        sink = io.BytesIO()
        parquet.write_table(
            pa.table({"value": values}),
            sink,
            compression=codec.kafka_name,
            compression_level=level,
            write_statistics=False,
            write_page_checksum=True,
            use_dictionary=False,  # the texts all differ
        )
        expected = parquet.read_metadata(sink).row_group(0).column(0).total_compressed_size
        assert column.total_compressed_size == pytest.approx(expected, abs=8)  # of page headers
        assert rows(placed(data, summary)).column("value").to_pylist() == values
        sizes.append(len(data))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.95 * sizes[0]


def test_the_tag_is_the_footers_checksum() -> None:
    """So the log, which has the tag, vouches for the footer, and the footer for all else."""
    data, summary = write(numbered(10))
    length = int.from_bytes(data[-8:-4], "little") + 8
    assert summary.tag == footer_tag(data[-length:])
    footer = read_footer(placed(data, summary))
    (group,) = footer.groups
    assert (group.position, group.position + group.size_bytes) == (4, footer.page_index.start)
    assert footer.page_index.stop == len(data) - length


def test_little_is_written_at_a_time_and_nothing_behind_a_failure() -> None:
    """Pages go to the sink together; what waits is not written when the writer is collected."""

    class Full(io.BytesIO):
        writes = 0

        def write(self, data: Any) -> int:
            self.writes += 1
            if self.writes > 2:
                raise OSError("no space left")
            return super().write(data)

    sink = Full()
    writer = SegmentWriter(sink, record_format="parquet", compression=Compression.NONE)
    writer.append(numbered(300))
    writer.flush()
    assert sink.writes == 2  # the magic, and a row group of a dozen headers and pages
    writer.append(numbered(300, start=300))
    with pytest.raises(OSError, match="no space left"):
        writer.flush()
    del writer
    gc.collect()
    assert sink.writes == 3


def test_pages_have_an_index() -> None:
    """So that engines leave out pages by their least and largest values, and its checksum holds."""
    data, summary = write(numbered(50_000))
    footer = read_footer(placed(data, summary))
    chunks = [footer.metadata.row_group(0).column(n) for n in range(4)]
    bounded = {chunk.path_in_schema for chunk in chunks if chunk.has_column_index}
    assert bounded == {"key", "timestamp"}
    assert all(chunk.has_offset_index for chunk in chunks)
    assert footer.page_index_crc == crc32c.crc32c(data[footer.page_index.start : footer.position])


def test_long_keys_have_no_bounds() -> None:
    """A footer grows by what helps a reader, not by kilobytes for each row group and page."""
    records = pa.record_batch(
        [[b"k" * size for size in (1, 1 << 20)], [0, 1]],
        schema=pa.schema([("key", pa.binary()), pa.field("timestamp", pa.timestamp("ms", "UTC"))]),
    )
    data, summary = write(records)
    footer = read_footer(placed(data, summary))
    chunk = footer.metadata.row_group(0).column(0)
    assert (chunk.path_in_schema, chunk.has_column_index) == ("key", False)
    assert not chunk.statistics.has_min_max
    assert len(data) - footer.page_index.start < 8 << 10
    assert rows(placed(data, summary))["key"].to_pylist() == records["key"].to_pylist()


def test_a_value_that_looks_like_a_checksum_stays() -> None:
    """Statistics of columns have users' values in the footer too."""
    name = b"txnlog.page_index_crc32c\x18\x0800000000"
    schema = pa.schema([("text", pa.binary()), pa.field("_timestamp", pa.timestamp("ms", "UTC"))])
    records = pa.record_batch([[name], [0]], schema=schema)
    data, summary = write(records)
    file = placed(data, summary)
    statistics = read_footer(file).metadata.row_group(0).column(0).statistics
    assert rows(file)["text"].to_pylist() == [statistics.min] == [name]
    assert [batch.damage for batch in dump_segment(file)] == [None]


def test_files_without_a_page_index_are_read() -> None:
    """As they were written once, with a tag that is that of the footer as well."""
    records = numbered(60)
    sink = pa.BufferOutputStream()
    table = pa.Table.from_batches([records])
    parquet.write_table(table, sink, write_page_checksum=True, store_schema=False)
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    identity = SegmentIdentity(0, 60, footer_tag(data[-length:]))
    file = SegmentFile(
        lambda *p: data[slice(*p)], len(data), "old", identity=identity, is_parquet=True
    )
    assert rows(file).equals(table)
    assert len(read_footer(file).page_index) == 0


def test_a_damaged_page_index_is_shown_apart() -> None:
    """By tools that look at the whole file; the row groups are as good as ever."""
    data, summary = write(numbered(60), group_bytes=1500)
    index = read_footer(placed(data, summary)).page_index
    damaged = bytearray(data)
    damaged[index.start + 3] ^= 1
    file = placed(bytes(damaged), summary)
    assert rows(file) == rows(placed(data, summary))
    *groups, last = dump_segment(file)
    assert [group.damage for group in groups] == [None] * summary.batch_count
    assert (last.position, last.position + last.size_bytes) == (index.start, len(data))
    assert "page index" in str(last.damage)


@pytest.mark.parametrize(
    ("known", "every"),
    [
        (True, 2),
        (False, 5),
        *(pytest.param(known, 1, marks=pytest.mark.slow) for known in (True, False)),
    ],
)
def test_no_flipped_bit_goes_unnoticed(known: bool, every: int) -> None:
    """Of a file that a log has placed each bit is covered; of a loose one all but the footer's.

    The file is named, and the row group, where the bit is of one.

    What lies in the page index, which no record is read by, is for those to find who look at the
    whole file.
    """
    data, summary = write(numbered(60), np.arange(0, 120, 2), group_bytes=1500)
    assert summary.batch_count > 1
    footer = read_footer(placed(data, summary))
    rng = random.Random(5)
    for position in range(0, len(data) if known else footer.position, every):
        damaged = bytearray(data)
        damaged[position] ^= 1 << rng.randrange(8)
        file = placed(bytes(damaged), summary)
        if not known:
            file = replace(file, identity=None)
        if position in footer.page_index:
            index = damaged[footer.page_index.start : footer.page_index.stop]
            with pytest.raises(CorruptRecord, match="page index: CRC-32C"):
                footer.check_page_index(index, "a segment")
            continue
        hit = [g for g in footer.groups if 0 <= position - g.position < g.size_bytes]
        where = f".*: row group {hit[0].number}: CRC-32C" if hit else ""
        with pytest.raises(CorruptRecord, match=f"^a segment at byte \\d+{where}"):
            rows(file)


def test_a_file_that_ends_early_is_damaged() -> None:
    """Wherever it ends."""
    data, summary = write(numbered(30), group_bytes=1000)
    for size in (0, 3, 11, 12, 100, len(data) // 2, len(data) - 1):
        for said in (size, len(data)):
            file = replace(placed(data[:size], summary), size_bytes=said)
            with pytest.raises(CorruptRecord):
                rows(file)


def large() -> tuple[pa.RecordBatch, bytes, SegmentSummary]:
    """A file that is not read whole, of several row groups."""
    rng = np.random.default_rng(4)
    count = 3000
    values = [rng.bytes(3000) for _ in range(count)]
    records = batch_of([(b"%d" % n, values[n], 1000 * n, []) for n in range(count)])
    data, summary = write(records, group_bytes=1 << 20, codec=Compression.NONE)
    assert len(data) > WHOLE_BYTES
    return records, data, summary


def test_of_a_large_file_only_what_is_needed_is_read() -> None:
    """The footer, and of the row groups that hold the offsets the columns that are asked for."""
    records, data, summary = large()
    reads: list[range] = []

    def read(start: int, stop: int) -> bytes:
        reads.append(range(start, stop))
        return data[start:stop]

    file = replace(placed(data, summary), read=read)
    assert rows(file, columns=["key"]).column("key").to_pylist() == [b"%d" % n for n in range(3000)]
    assert sum(map(len, reads)) < len(data) // 20
    reads.clear()
    found = rows(file, start_offset=1500, stop_offset=1501)
    assert found.equals(pa.Table.from_batches([records.slice(1500, 1)]))
    assert sum(map(len, reads)) < 3 << 20
    reads.clear()
    assert find_timestamp(file, 2_000_500) == (2001, 2_001_000)
    assert sum(map(len, reads)) < 1 << 20
    assert sum(b.record_count for b in read_segment(file, columns=[])) == 3000


@pytest.mark.parametrize("gaps", [False, True])
def test_some_rows_are_those_of_all(gaps: bool) -> None:
    """Text that repeats is decoded otherwise then, text that does not is not; nulls stay nulls."""
    count = 4000
    given_rows: list[Row] = [
        (b"k%d" % (n % 7) if n % 5 else None, b"v%d" % n, 1000 * n, [("h", b"x")] if n % 3 else [])
        for n in range(count)
    ]
    offsets = np.arange(count, dtype=np.int64) * 2 if gaps else None
    file = placed(*write(batch_of(given_rows), offsets, group_bytes=40_000))
    segment = ParquetSegment(file)
    groups = [*segment.groups(0, None)]
    assert len(groups) > 3
    assert repeating_columns(segment, groups, ["key", "value"]) == ["key"]
    for names in (None, ["value", "key"], ["timestamp"], []):
        whole = [*read_row_groups(segment, groups, names, 1 << 30)]
        masks = [pa.array(np.arange(g.header.record_count) % (g.number + 2) == 1) for g in groups]
        some = read_row_groups(segment, groups, names, 1 << 30, masks)
        for one, other, mask in zip(whole, some, masks, strict=True):
            assert other.offset_deltas is None
            expected = one.records.filter(mask) if one.records.num_columns else one.records
            assert other.records.equals(expected)
            assert other.records.schema.equals(one.records.schema)


def test_damage_of_a_large_file_is_found_where_it_is_read() -> None:
    """Row groups that are read whole by their checksums, columns by those of their pages."""
    _, data, summary = large()
    groups = read_footer(placed(data, summary)).groups
    middle = groups[2].position + groups[2].size_bytes // 2
    damaged = bytearray(data)
    damaged[middle] ^= 4
    file = placed(bytes(damaged), summary)
    for columns in (None, ["value"]):
        with pytest.raises(CorruptRecord, match=r"^a segment at byte \d+ .*: row group 2: "):
            rows(file, columns=columns)
    before = rows(file, stop_offset=groups[2].header.base_offset)
    assert before.num_rows == groups[2].header.base_offset
    assert rows(file, columns=["key"]).num_rows == 3000

    def cut(start: int, stop: int) -> bytes:
        return data[start:stop] if start > middle else data[start : min(stop, middle)]

    ended = r"^a segment at byte \d+ .*: row group 2: the file has ended"
    with pytest.raises(CorruptRecord, match=ended):
        rows(replace(file, read=cut))


def test_files_of_others_are_read_as_far_as_they_are_records() -> None:
    """Without checksums of ours, times, or the columns that are asked for."""
    sink = io.BytesIO()
    parquet.write_table(pa.table({"value": pa.array([b"x", b"y"])}), sink)
    file = replace(file_of(sink.getvalue()), is_parquet=True)
    assert rows(file).column("value").to_pylist() == [b"x", b"y"]
    with pytest.raises(UnsupportedRecordFormat, match="no column 'key'"):
        rows(file, columns=["key"])
    with pytest.raises(CorruptRecord, match="no column is called timestamp"):
        find_timestamp(file, 0)


@pytest.mark.parametrize("own", ["timestamp", "_timestamp"])
def test_a_time_that_is_null_is_damage(own: str) -> None:
    """What reads times takes their numbers; a user's column of the other name may have nulls."""
    times = pa.array([1000, None], pa.timestamp("us", "UTC"))
    sink = io.BytesIO()
    parquet.write_table(pa.table({own: times, "value": pa.array([b"x", b"y"])}), sink)
    file = replace(file_of(sink.getvalue()), is_parquet=True)
    with pytest.raises(CorruptRecord, match="a timestamp is null"):
        rows(file)
    assert rows(file, columns=["value"]).num_rows == 2
    if own == "timestamp":
        both = pa.table({"_timestamp": times.fill_null(times[0]), own: times})
        parquet.write_table(both, sink := io.BytesIO())
        file = replace(file_of(sink.getvalue()), is_parquet=True)
        assert rows(file).column(own).null_count == 1


@settings(max_examples=share_of(100), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=9),
            st.none() | st.binary(max_size=30),
            st.integers(-(1 << 50), 1 << 50),
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 400),
    st.data(),
)
def test_any_records_come_back(
    given_rows: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]],
    group_bytes: int,
    data: st.DataObject,
) -> None:
    """Nulls, empty values, headers, any times; with gaps too; from any offset to any other."""
    records = batch_of(given_rows)
    steps = data.draw(st.lists(st.integers(1, 5), min_size=len(records), max_size=len(records)))
    offsets = np.cumsum(steps).astype(np.int64) if data.draw(st.booleans()) else None
    file = placed(*write(records, offsets, group_bytes=group_bytes))
    known = np.arange(len(records)) if offsets is None else offsets
    start = data.draw(st.integers(0, int(known[-1]) + 1))
    stop = data.draw(st.integers(start, int(known[-1]) + 1))
    batches = list(read_segment(file, start_offset=start, stop_offset=stop))
    wanted = np.flatnonzero((known >= start) & (known < stop))
    found = [int(offset) for batch in batches for offset in batch.offsets()]
    assert found == known[wanted].tolist()
    expected = pa.Table.from_batches([records.take(pa.array(wanted))])
    assert pa.Table.from_batches([b.records for b in batches], records.schema).equals(expected)


def test_rows_that_are_all_alike_do_not_fill_the_memory() -> None:
    """A few bytes in a file may stand for any number of nulls, of which the pages say nothing."""
    count = 400_000
    times = pa.array(np.zeros(count, dtype=np.int64)).cast(pa.timestamp("ms", tz="UTC"))
    sink = io.BytesIO()
    parquet.write_table(pa.table({"value": pa.nulls(count, pa.binary()), "timestamp": times}), sink)
    data = sink.getvalue()
    assert len(data) < 10_000
    file = SegmentFile(lambda start, stop: data[start:stop], len(data), "x", is_parquet=True)
    read = partial(read_segment, file, columns=["timestamp"])
    assert sum(batch.record_count for batch in read(max_uncompressed_bytes=8 * count)) == count
    with pytest.raises(CorruptRecord, match="3200000 bytes uncompressed are over"):
        next(read(max_uncompressed_bytes=8 * count - 1))


@pytest.mark.parametrize("call", ["ParquetFile.iter_batches", "read_metadata"])
def test_memory_that_is_short_is_no_damage(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With replicas another copy would be read instead, and this one reported as damaged."""
    file = placed(*write(numbered(10)))
    monkeypatch.setattr(untrusted, "_KEPT_BYTES", 0)  # others have read the same footer
    monkeypatch.setattr(f"pyarrow.parquet.{call}", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        list(read_segment(file))
