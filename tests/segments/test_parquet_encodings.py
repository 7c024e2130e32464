"""How columns are stored in Parquet segments: dictionaries where they pay, pages side by side."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.segments.segment_samples import batch_of, numbered
from txnlog.segments.parquet.writer import dictionary_leaves, page_rows
from txnlog.segments.writer import SegmentWriter


def written(records: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    writer = SegmentWriter(sink, record_format="parquet")
    writer.append(records)
    writer.finish()
    return sink.getvalue()


@pytest.mark.parametrize(
    ("kinds", "count", "pays"),
    [
        (5, 10, True),
        (10, 10, False),
        (100, 100_000, True),
        (6000, 100_000, True),
        (30_000, 100_000, False),  # too large, though a few thousand values hardly show it
        (70_000, 100_000, False),
        (4000, 4096, False),
    ],
)
def test_a_column_has_a_dictionary_if_its_values_repeat(kinds: int, count: int, pays: bool) -> None:
    """Judged by the first rows: how many different ones all will have follows from repetitions."""
    rng = random.Random(kinds)
    values = [*range(kinds)] if kinds == count else rng.choices(range(kinds), k=count)
    for kind in (pa.int64(), pa.string(), pa.binary()):
        column = pa.array(values).cast(pa.string()).cast(kind)
        assert dictionary_leaves(pa.table({"a": column})) == (["a"] if pays else [])


def test_paths_of_nested_columns_are_arrows() -> None:
    """A writer that is given other paths has no dictionary for these columns."""
    nested = pa.table({
        "list": [[1]] * 9, "plain": [*range(9)], "struct": [{"a": {"b": 1}, "c": "x"}] * 9,
        "map": pa.array([[("k", [1])]] * 9, pa.map_(pa.string(), pa.list_(pa.int64()))),
    })  # fmt: skip
    sink = io.BytesIO()
    leaves = dictionary_leaves(nested)
    parquet.write_table(nested, sink, use_dictionary=leaves)
    group = parquet.read_metadata(sink).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    with_one = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    assert with_one == {*leaves}
    assert {chunk.path_in_schema for chunk in chunks} - with_one == {"plain"}


def test_a_segments_keys_have_no_dictionary_if_all_differ() -> None:
    """Of a whole segment: the keys differ, the times do not."""
    data = written(numbered(20_000, value_bytes=20))
    group = parquet.read_metadata(pa.BufferReader(data)).row_group(0)
    found = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert not found["value"].has_dictionary_page
    assert found["headers.list.element.key"].has_dictionary_page


def test_a_dictionary_that_grows_too_large_ends() -> None:
    """The first rows tell nothing of those that come: what does not fit is stored as it is."""
    keys = [b"%03d" % (number % 9) for number in range(5000)]
    rng = random.Random(0)
    keys += [rng.randbytes(16) for _ in range(50_000)]
    data = written(batch_of([(key, b"", 0, []) for key in keys]))
    group = parquet.read_metadata(pa.BufferReader(data)).row_group(0)
    chunk = next(
        c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "key"
    )
    assert 64 << 10 < chunk.data_page_offset - chunk.dictionary_page_offset < 256 << 10
    table = parquet.read_table(pa.BufferReader(data), columns=["key"])
    assert table["key"].to_pylist() == keys


def test_pages_are_as_long_as_the_first_rows_say() -> None:
    """A megabyte of records, and no more rows than Arrow puts into a page."""
    long, short = (
        pa.Table.from_batches([batch_of([(None, bytes(size), 0, [])] * 4)]) for size in (100_000, 1)
    )
    assert page_rows(long) == 10
    assert page_rows(short) == 20_000
    assert page_rows(short.slice(0, 0)) == 20_000
    assert page_rows(pa.table({"wide": [bytes(1 << 20)] * 2})) == 3
