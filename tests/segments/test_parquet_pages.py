"""What page headers claim is added up, and checked against the footer, before a page is read."""

from __future__ import annotations

import io
import struct
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from txnlog.segments.parquet.compact_values import varint
from txnlog.segments.parquet.file_metadata import BYTE_ARRAY, ColumnChunk, Leaf
from txnlog.segments.reader import read_segment
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.untrusted import check_column_chunks
from txnlog.segments.writer import DEFAULT_ROW_GROUP_BYTES, SegmentWriter

INT64 = 2
PLAIN, RLE, NAMED, DELTA = 0, 3, 8, 7


def number(value: int) -> bytes:
    """The next field of a struct, a number of 32 bits."""
    return b"\x15" + varint(value << 1 if value >= 0 else (-value << 1) - 1)


def page(
    count: int, encoding: int = PLAIN, *, kind: int = 0, size: int = 8, stored: int = 8
) -> bytes:
    """A page of zeros that claims to be ``size`` bytes."""
    if kind == 2:
        part = b"\x4c" + number(count) + number(encoding) + b"\0"
    else:
        part = b"\x2c" + number(count) + number(encoding) + number(RLE) + number(RLE) + b"\0"
    return number(kind) + number(size) + number(stored) + part + b"\0" + bytes(max(stored, 0))


def check(data: bytes, values: int, *, leaf: int = INT64, most: int = 1000) -> None:
    """As a reader does it, for the only column of a row group."""
    width = None if leaf == BYTE_ARRAY else 8
    column = Leaf((b"x",), leaf, width, None, 1, 0)
    has_dictionary = data[1:2] == b"\x04"
    chunk = ColumnChunk(column, 0, values, 4, len(data), 0, has_dictionary, None, None)
    check_column_chunks([(chunk, lambda start, stop: data[start:stop])], most, lambda _: 5000)


def test_sound_pages_pass() -> None:
    """Several pages, with and without a dictionary."""
    check(page(60) + page(65), 125)
    dictionary = page(1, kind=2, size=4, stored=4)
    check(dictionary + page(100, NAMED) + page(10), 110, leaf=BYTE_ARRAY)


@pytest.mark.parametrize(
    ("data", "values", "reason"),
    [
        (page(1, size=(1 << 31) - 1), 1, "over the limit"),
        (page(126), 126, "over the limit"),  # 8 bytes each
        (page(1, size=600) + page(1, size=600), 2, "over the limit"),
        (page(1, size=-1), 1, "claims 1 values"),
        (page(-1) + page(2), 1, "claims -1 values"),
        (page(1, stored=-1), 1, "claims 1 values in -1 bytes"),
        (page(1)[:-1], 1, "claims 1 values in 8 bytes"),
        (page(1), 2, "ends within its header"),
        (page(3), 2, "its pages have 3 values, the footer says 2"),
        (page(1, DELTA), 1, "encoding 7, which no segment has"),
        (page(1, kind=9), 1, "type 9"),
        (page(1) + page(1, kind=2), 2, "a dictionary is not at the beginning"),
        (page(1)[:5], 1, "ends within its header"),
        (b"\0", 1, "has no field"),
        (b"\xff" * 100, 1, "of type 15"),
    ],
)
def test_claims_that_cannot_be_are_refused(data: bytes, values: int, reason: str) -> None:
    """Before anything is allocated for them."""
    with pytest.raises(ValueError, match=reason):
        check(data, values)


def test_values_that_are_named_count_each_time() -> None:
    """By the longest value of the dictionary, and exactly if that is too much: here it is, too."""
    value = b"\x64\0\0\0" + bytes(100)
    dictionary = page(1, kind=2, size=104, stored=0) + value
    dictionary = dictionary.replace(number(104) + number(0), number(104) + number(104))
    check(dictionary + page(9, NAMED), 9, leaf=BYTE_ARRAY)
    with pytest.raises(ValueError, match="over the limit"):
        check(dictionary + page(100, NAMED), 100, leaf=BYTE_ARRAY)


def dictionary_of(lengths: list[int], claimed: int | None = None) -> tuple[bytes, bytes]:
    """Values of such lengths, and the page that has them and claims to have so many."""
    values = b"".join(length.to_bytes(4, "little") + bytes(length) for length in lengths)
    count = len(lengths) if claimed is None else claimed
    made = page(count, kind=2, size=len(values), stored=len(values))
    return values, made[: len(made) - len(values)] + values


@pytest.mark.parametrize(
    ("lengths", "longest"), [([3, 3, 3], 3), ([0, 0], 0), ([7, 1, 7, 1], 7), ([3, 17], 17)]
)
def test_the_longest_value_of_a_dictionary_is_found(lengths: list[int], longest: int) -> None:
    """Where all are as long as the first, and where their sum only looks as if they were."""
    values, dictionary = dictionary_of(lengths)
    data = dictionary + page(50, NAMED)
    least = 50 * longest + 50 * 4
    with pytest.raises(ValueError, match="over the limit"):
        check(data, 50, leaf=BYTE_ARRAY, most=least - 1)
    if least >= len(values) + 8:
        check(data, 50, leaf=BYTE_ARRAY, most=least)


@pytest.mark.parametrize("claimed", [None, 1])
@pytest.mark.parametrize("more", [0, 200])
def test_dictionaries_of_very_many_values_are_not_looked_through(
    monkeypatch: pytest.MonkeyPatch, claimed: int | None, more: int
) -> None:
    """Few bytes may be very many empty values: all but those that it claims to have mean nothing.

    If they could be too much, pages tell which are named.
    """
    looked_at: list[int] = []
    unpack = struct.Struct("<I").unpack_from

    class Length:
        size = 4

        def unpack_from(self, values: memoryview, at: int = 0) -> tuple[int, ...]:
            looked_at.append(at)
            return unpack(values, at)

    monkeypatch.setattr("txnlog.segments.parquet.pages._LENGTH", Length())
    monkeypatch.setattr("txnlog.segments.parquet.pages._MOST_WALKED", 1000)
    _, dictionary = dictionary_of([1, more, *[0] * 2000], claimed)
    check(dictionary + page(50, NAMED), 50, leaf=BYTE_ARRAY, most=9000)
    assert len(looked_at) <= 2


def test_a_dictionary_claims_no_more_values_than_have_lengths() -> None:
    """Each takes four bytes at least."""
    _, dictionary = dictionary_of([0, 0], 3)
    with pytest.raises(ValueError, match="claims 3 values in 8 bytes"):
        check(dictionary + page(1, NAMED), 1, leaf=BYTE_ARRAY)


def test_columns_that_are_too_much_are_not_read_to_the_last() -> None:
    """Once they are, the rest of them is no work."""
    _, dictionary = dictionary_of([0] * 100)
    data = dictionary + page(1, NAMED)
    column = Leaf((b"x",), BYTE_ARRAY, None, None, 1, 0)
    chunk = ColumnChunk(column, 0, 1, 4, len(data), 0, True, None, None)
    asked: list[int] = []

    def read(number: int, start: int, stop: int) -> bytes:
        asked.append(number)
        return data[start:stop]

    chunks = [(chunk, partial(read, number)) for number in range(10)]
    with pytest.raises(ValueError, match="over the limit"):
        check_column_chunks(chunks, 1000, lambda _: 0)
    assert {*asked} == {0, 1, 2}


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.string()])
def test_small_values_in_lists_stay_below_a_readers_limit(kind: pa.DataType) -> None:
    """Parquet's readers keep four bytes for each value in a list, also for a bit."""
    rows, length = 100, 20_000
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * length)
    values = pa.array(np.arange(rows * length) % 2).cast(kind)
    times = pa.array(np.arange(rows), pa.timestamp("ms", "UTC"))
    records = pa.record_batch(
        {"bits": pa.ListArray.from_arrays(offsets, values), "_timestamp": times}
    )
    out, batch_bytes = io.BytesIO(), 128 << 10
    writer = SegmentWriter(out, record_format="parquet", batch_bytes=batch_bytes)
    for row in range(rows):
        writer.append(records.slice(row, 1))
    writer.finish()
    data = out.getvalue()
    file = SegmentFile(lambda start, stop: data[start:stop], len(data), "x", is_parquet=True)
    limit = (128 << 20) // DEFAULT_ROW_GROUP_BYTES * batch_bytes
    found = read_segment(file, max_uncompressed_bytes=limit)
    assert sum(batch.record_count for batch in found) == rows
