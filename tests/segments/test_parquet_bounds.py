"""The least and largest values that files claim for columns: whoever goes by them loses no row."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset, parquet

from txnlog.segments.batch_header import Compression
from txnlog.segments.parquet.writer import RowGroupEncoder

NAN = math.nan
FLOATS = pa.schema(
    [
        ("number", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.struct([("f", pa.float32()), ("n", pa.int32())])),
        ("l", pa.list_(pa.list_(pa.float64()))),
        ("m", pa.map_(pa.string(), pa.float64())),
    ]
)
LEAVES = ["number", "f", "s.f", "s.n", "l", "m.key", "m.value"]


def rows(*floats: float | None) -> pa.Table:
    """A row for each number, which is in every float column."""
    return pa.Table.from_pylist(
        [
            {
                "number": 1,
                "f": one,
                "s": {"f": one, "n": 2},
                "l": [[], [one]],
                "m": [("k", one)],
            }
            for one in floats
        ],
        FLOATS,
    )


def bytes_of(groups: Sequence[pa.Table]) -> bytes:
    """A segment with these row groups."""
    sink = io.BytesIO()
    encoder = RowGroupEncoder(
        sink, compression=Compression.ZSTD, level=None, stores_offsets=False, origin={"a": "b"}
    )
    first = 0
    for group in groups:
        encoder.write(group.to_batches(), first, None)
        first += group.num_rows
    encoder.finish()
    return sink.getvalue()


def file_of(groups: Sequence[pa.Table]) -> parquet.ParquetFile:
    """The same as a file to read."""
    return parquet.ParquetFile(io.BytesIO(bytes_of(groups)), page_checksum_verification=True)


def chunks(file: parquet.ParquetFile, group: int) -> dict[str, parquet.ColumnChunkMetaData]:
    described = file.metadata.row_group(group)
    return {name: described.column(at) for at, name in enumerate(LEAVES)}


@pytest.mark.parametrize("at", range(3))
def test_floats_with_nan_have_no_bounds(at: int) -> None:
    """In the row group that has it, nested ones too, neither of the chunk nor of its pages."""
    groups = [rows(1.0, None, 2.0), rows(3.0), rows(-1.0, 4.0)]
    groups[at] = rows(5.0, NAN, None)
    file = file_of(groups)
    sent = pa.concat_tables(groups).cast(file.schema_arrow)
    assert str(file.read().combine_chunks()) == str(sent.combine_chunks())
    for number in range(3):
        for name, chunk in chunks(file, number).items():
            has = number != at or name in ("number", "s.n", "m.key")
            assert chunk.statistics.has_min_max == chunk.has_column_index == has, (number, name)
            assert chunk.statistics.has_null_count
            assert chunk.has_offset_index


def test_a_row_group_of_slices_has_the_bounds_of_its_own_rows() -> None:
    """A NaN beside the slice does not count."""
    table = rows(NAN, 1.0, 2.0, NAN)
    file = file_of([table.slice(1, 2), table.slice(2, 2)])
    floats = [
        [c.statistics.has_min_max for n, c in chunks(file, g).items() if n != "number"]
        for g in (0, 1)
    ]
    assert floats == [[True] * 6, [False, False, True, False, True, False]]


def test_zeros_are_both_within_bounds() -> None:
    """As Parquet says: the least is -0.0 and the largest 0.0, whichever there is."""
    for zero in (0.0, -0.0):
        for name in ("f", "s.f", "l", "m.value"):
            least = chunks(file_of([rows(zero, 1.0)]), 0)[name].statistics.min
            most = chunks(file_of([rows(zero, -1.0)]), 0)[name].statistics.max
            assert [math.copysign(1, end) for end in (least, most)] == [-1, 1]


@pytest.mark.parametrize("zeros", [[0.0], [-0.0, 0.0], [None, 0.0]])
def test_floats_that_are_all_zero_have_no_bounds(zeros: list[float | None]) -> None:
    """Arrow would take each for the least, which is -0.0, and its sets for another value."""
    groups = [rows(*zeros), rows(*zeros, 1.0), rows(None)]
    file = file_of(groups)
    for number in range(3):
        for name, chunk in chunks(file, number).items():
            is_float = name not in ("number", "s.n", "m.key")
            has = number == 1 or not is_float
            assert chunk.statistics.has_min_max == has, (number, name)
            assert chunk.has_column_index == (has or number == 2), (number, name)


def test_a_set_of_zero_finds_rows_that_are_all_zero(tmp_path: Path) -> None:
    """Whatever else is in the set."""
    path = tmp_path / "f.parquet"
    path.write_bytes(bytes_of([rows(0.0, 0.0), rows(1.0)]))
    found = dataset.dataset(path).to_table(filter=pc.field("f").isin([0.0, 3.0]))
    assert found["f"].to_pylist() == [0.0, 0.0]


def test_times_are_in_microseconds() -> None:
    """Spark cuts a literal to the unit of the file, and then compares the bounds with it."""
    ms = pa.timestamp("ms", tz="UTC")
    table = pa.table(
        {
            "t": pa.array([-1, 5], ms),
            "s": pa.array([[{"t": 5}], None], pa.list_(pa.struct([("t", ms)]))),
        }
    )
    found = file_of([table])
    us = pa.timestamp("us", tz="UTC")
    assert found.schema_arrow.field("t").type == us
    assert found.schema_arrow.field("s").type.value_type.field("t").type == us
    assert found.metadata.row_group(0).column(0).statistics.min_raw == -1000
