"""Which Arrow input becomes records, and how large records are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.support.segments.segment_samples import Row, batch_of, random_records, rows_of
from txnlog.segments.errors import UnsupportedRecordFormat
from txnlog.segments.records import (
    RECORD_SCHEMA,
    _normalize_binary,
    normalize,
    record_size,
    record_sizes,
    split_large,
    take_groups,
)
from txnlog.segments.schema_columns import SchemaColumns


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(1),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
)
def test_keys_and_values_of_every_text_and_bytes_type(kind: pa.DataType) -> None:
    """Whatever holds text or bytes becomes binary, nulls staying nulls; slices too."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    array = pa.array([b"q", b"x", None, b"z"], pa.binary())
    array = pa.array(array.to_pylist(), plain) if plain != pa.string() else array.cast(plain)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_encode().cast(kind)
    result = normalize(pa.record_batch({"key": array, "value": array}).slice(1), now_ms=3)
    assert result.schema == RECORD_SCHEMA
    assert rows_of(result) == [
        (b"x", b"x", 3, []),
        (None, None, 3, []),
        (b"z", b"z", 3, []),
    ]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None, -1], pa.int64()), [1, 42, -1]),
        (pa.array([1, None, -1], pa.timestamp("s")), [1000, 42, -1000]),
        (pa.array([1, None, -1], pa.timestamp("ms", "UTC")), [1, 42, -1]),
        (pa.array([1999, None, 0], pa.timestamp("us", "Europe/Zurich")), [1, 42, 0]),
        (pa.array([1_999_999, None, 0], pa.timestamp("ns")), [1, 42, 0]),
        (pa.nulls(3), [42, 42, 42]),
    ],
)
def test_timestamps_of_every_unit(array: pa.Array, expected: list[int]) -> None:
    """Any unit and zone, int64 ms, and nulls filled with the time given."""
    result = normalize(pa.record_batch({"value": pa.nulls(3), "timestamp": array}), now_ms=42)
    assert [row[2] for row in rows_of(result)] == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
)
def test_headers_of_every_list_type(kind: pa.DataType) -> None:
    """Lists of structs and maps become headers; null lists are empty ones, as in Kafka."""
    pairs: list[object] = [[("a", b"1"), ("a", None)], None, []]
    structs: list[object] = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, []]
    headers = pa.array(pairs if pa.types.is_map(kind) else structs, kind)
    batch = pa.record_batch({"value": pa.nulls(3), "headers": headers})
    result = normalize(batch, now_ms=0)
    assert [row[3] for row in rows_of(result)] == [[("a", b"1"), ("a", None)], [], []]
    assert result.column("headers").null_count == 0


def test_columns_in_any_order_and_missing() -> None:
    """Only the value is needed; the result has all columns in the schema's order."""
    batch = pa.record_batch({"timestamp": [5], "value": ["v"], "key": ["k"]})
    assert rows_of(normalize(batch, now_ms=1)) == [(b"k", b"v", 5, [])]
    assert rows_of(normalize(pa.record_batch({"value": ["v"]}), now_ms=1)) == [(None, b"v", 1, [])]
    exact = random_records(20, seed=2)
    assert normalize(exact, now_ms=1).equals(exact)
    assert normalize(exact.slice(0, 0), now_ms=1).num_rows == 0


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"key": ["k"]}, "'value' is missing"),
        ({"value": ["v"], "partition": [1]}, "'partition'"),
        ({"value": [1]}, "'value' is int64"),
        ({"value": ["v"], "key": [[1]]}, "'key' is list"),
        ({"value": ["v"], "timestamp": ["2024-01-01"]}, "'timestamp' is string"),
        ({"value": ["v"], "timestamp": pa.array([1 << 60], pa.timestamp("s"))}, "'timestamp'"),
        ({"value": ["v"], "headers": [["h"]]}, "'headers' is list"),
        ({"value": ["v"], "headers": [[{"name": "a", "value": b"b"}]]}, "'headers'"),
        ({"value": ["v"], "headers": [[{"key": None, "value": b"b"}]]}, "key is null"),
        ({"value": ["v"], "headers": [[None, {"key": "k", "value": b"b"}]]}, "key is null"),
        (
            {"value": ["v"], "headers": [[{"key": b"\xff", "value": b"b"}]]},
            "'headers'.*cannot be made",
        ),
    ],
)
def test_what_does_not_fit_is_named(columns: dict[str, object], word: str) -> None:
    """The error says which column is wrong and why."""
    with pytest.raises(UnsupportedRecordFormat, match=word):
        normalize(pa.record_batch(columns), now_ms=0)


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("as_map", [False, True], ids=["structs", "map"])
@pytest.mark.parametrize("start", [0, 2])
def test_header_keys_are_texts(text: pa.DataType, as_map: bool, start: int) -> None:
    """Arrow takes any bytes as text, and readers then refuse the batch: the first row is named."""
    keys = pa.array([b"a", b"b", b"c", b"d", b"\xfe", b"\xff"]).view(pa.string()).cast(text)
    offsets, values = pa.array([0, 2, 2, 3, 5, 6], pa.int32()), pa.array([b""] * 6)
    pairs = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    headers = (
        pa.MapArray.from_arrays(offsets, keys, values)
        if as_map
        else pa.ListArray.from_arrays(offsets, pairs)
    )
    batch = pa.record_batch({"value": ["v"] * 5, "headers": headers})
    reason = rf"a header in row {3 - start} whose key is not UTF-8: b'\\xfe'"
    with pytest.raises(UnsupportedRecordFormat, match=reason):
        normalize(batch.slice(start), now_ms=0)
    assert normalize(batch.slice(start, 3 - start), now_ms=0).num_rows == 3 - start


def test_repeated_column_is_named() -> None:
    """Two columns of one name are refused."""
    twice = pa.RecordBatch.from_arrays([pa.array(["v"])] * 2, names=["value", "value"])
    with pytest.raises(UnsupportedRecordFormat, match="'value' is there 2 times"):
        normalize(twice, now_ms=0)


def test_record_sizes_against_a_plain_loop() -> None:
    """Sizes are those a loop over Python values computes, for slices too."""
    records = random_records(300, seed=9)
    expected = [
        20
        + len(key or b"")
        + len(value or b"")
        + sum(8 + len(name.encode()) + len(item or b"") for name, item in headers)
        for key, value, _, headers in rows_of(records)
    ]
    assert record_sizes(records).tolist() == expected
    assert record_sizes(records).dtype == np.int64
    assert record_sizes(records.slice(37, 100)).tolist() == expected[37:137]
    assert record_sizes(batch_of([]).slice(0, 0)).tolist() == []


def test_record_sizes_of_other_types() -> None:
    """Columns of any type count; their sum bounds the memory that they take."""
    batch = pa.record_batch(
        {
            "number": pa.array([1, 2], pa.int64()),
            "text": pa.array(["a", "bcd"]),
            "struct": pa.array([{"x": 1.0}, None]),
            "map": pa.array([[("k", b"vv")], []], pa.map_(pa.string(), pa.binary())),
            "fixed": pa.array([b"xy", None], pa.binary(2)),
        }
    )
    first, second = record_sizes(batch.select(["text", "map"])).tolist()
    assert (first, second) == (4 + 1 + 4 + 4 + 1 + 4 + 2, 4 + 3 + 4)
    assert all(size >= 16 for size in record_sizes(batch).tolist())


def test_the_size_of_one_record_is_that_of_its_row() -> None:
    """record_size and record_sizes agree, so that a producer refuses what a segment would."""
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (None, None, []),
        (b"key", b"", [("h", None)]),
        (b"", b"value", [("hé", b"12"), ("i", b"")]),
    ]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _, _ in rows], pa.binary()),
            pa.array([value for _, value, _ in rows], pa.binary()),
            pa.array([0, 0, 0], RECORD_SCHEMA.field("timestamp").type),
            pa.array(
                [[{"key": k, "value": v} for k, v in headers] for _, _, headers in rows],
                RECORD_SCHEMA.field("headers").type,
            ),
        ],
        schema=RECORD_SCHEMA,
    )
    assert record_sizes(batch).tolist() == [record_size(*row) for row in rows]


@pytest.mark.parametrize("same_time", [True, False])
@pytest.mark.parametrize("headers", [[], [("h", None)]])
def test_groups_are_what_take_returns(
    same_time: bool, headers: list[tuple[str, bytes | None]]
) -> None:
    """Columns that are not gathered, because all rows are alike, end up as if they were."""
    rows: list[Row] = [
        (b"%d" % n, None, 7 if same_time else n, headers if n == 9 else []) for n in range(12)
    ]
    records = batch_of(rows).slice(2)
    groups = [np.array(group, np.int32) for group in ([9], [0, 3, 7], [1, 2, 4, 5, 6, 8])]
    parts = list(take_groups(records, groups))
    assert parts == [records.take(pa.array(group)) for group in groups]
    for part in parts:
        part.validate(full=True)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(10),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.uint32(), pa.large_binary()),
    ],
)
def test_large_batches_are_cut_by_what_they_stand_for(kind: pa.DataType) -> None:
    """No piece is larger, as records, than it may be; a dictionary's values count each time."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = ["0123456789", None] * 50
    array = pa.array([v and v.encode() for v in values], plain) if plain != pa.string() else None
    array = pa.array(values, plain) if array is None else array
    if pa.types.is_dictionary(kind):
        array = array.dictionary_encode().cast(kind)
    batch = pa.record_batch({"value": array}).slice(1)
    pieces = split_large(batch, 95)
    assert [piece.num_rows for piece in pieces] == [11, *[10] * 8, 8]
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    assert split_large(batch, 10_000) in ([batch], [batch.slice(0)])
    assert [piece.num_rows for piece in split_large(batch, 1)] == [1] * 99
    assert split_large(batch.slice(0, 0), 1) == [batch.slice(0, 0)]


@pytest.mark.parametrize("nested", [False, True])
def test_values_beyond_2_gib_of_an_array_are_slices_that_fit(nested: bool) -> None:
    """Arrow refuses to give these 32-bit offsets, however few they are; zeros take no memory."""
    far = (1 << 31) + 5
    data = np.zeros(far + 40, np.uint8)
    data[far:] = ord("x")
    ends = np.array([0, 10, far, far + 30, far + 40], np.int64)
    text = pa.LargeStringArray.from_buffers(4, pa.py_buffer(ends), pa.py_buffer(data))
    if nested:
        text = pa.StructArray.from_arrays([text], names=["of"])
    batch = pa.record_batch({"text": text})
    plain = pa.struct([("of", pa.string())]) if nested else pa.string()
    for some in (split_large(batch.slice(2), 1 << 20), split_large(batch.slice(2), 20)):
        found = [value for piece in some for value in piece.column(0).cast(plain).to_pylist()]
        wanted = ["x" * 30, "x" * 10]
        assert found == ([{"of": value} for value in wanted] if nested else wanted)


def test_a_dictionary_of_nothing_is_measured() -> None:
    """Nulls have no place in a dictionary."""
    array = pa.DictionaryArray.from_arrays(
        pa.array([None, None], pa.int32()), pa.array([], pa.string())
    )
    assert record_sizes(pa.record_batch({"value": array})).tolist() == [4, 4]
    array = pa.DictionaryArray.from_arrays(pa.array([None, 1], pa.int8()), pa.array(["", "ab"]))
    assert record_sizes(pa.record_batch({"value": array})).tolist() == [4, 6]


class Full:
    """Stands for values that Arrow has no memory for in another type."""

    type = pa.dictionary(pa.int8(), pa.string())

    def __len__(self) -> int:
        return 1

    def cast(self, *_: object, **__: object) -> object:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    def column(self, _: str) -> Full:
        return self


def test_memory_that_is_short_is_no_fault_of_the_records() -> None:
    """Nobody is told that they are damaged, or of the wrong type."""
    field = pa.field("x", pa.binary())
    with pytest.raises(MemoryError):
        _normalize_binary("x", Full())
    with pytest.raises(MemoryError):
        next(SchemaColumns(pa.schema([field]), pa.schema([field])).make(Full(), 1))
    bad = pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array(["a"]), safe=False)
    with pytest.raises(UnsupportedRecordFormat, match="cannot be made binary"):
        _normalize_binary("x", bad)
