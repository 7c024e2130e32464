"""Filters of scans keep what a plain filter keeps of a full scan, and no more is read for it."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from tests.support.admin.compacted_topics import compact
from tests.support.read.filtered_stores import (
    ALL,
    FLAT,
    MORE,
    SOME,
    START_MS,
    check_filter,
    filters_of,
    plain_store,
    some_of,
    time_of,
    typed_store,
)
from tests.support.segments.typed_formats import in_either_format
from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock


@pytest.fixture(scope="module")
def typed() -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patched:
        # Several row groups in each file.
        patched.setattr("txnlog.segments.writer.DEFAULT_ROW_GROUP_BYTES", 600)
        yield typed_store()


@pytest.fixture(scope="module")
def batches() -> Store:
    return typed_store("columns")


@pytest.fixture(scope="module", params=["columns", "kafka", "parquet"])
def plain(request: pytest.FixtureRequest) -> Store:
    return plain_store(request.param)


# -- random filters against a plain one ------------------------------------------------------------

TYPED_FILTERS = given(kept=filters_of(FLAT), columns=some_of(ALL["typed"]))


@SOME
@TYPED_FILTERS
def test_a_filter_of_typed_records_keeps_what_a_plain_one_keeps(
    typed: Store, kept: pc.Expression, columns: list[str]
) -> None:
    """Over nulls, NaN, columns that older files lack, and those that were narrower there."""
    check_filter(typed, "typed", columns, kept)


@pytest.mark.parametrize("columns", [["_offset"], ["_offset", "_partition"], ALL["typed"]])
def test_a_filter_without_columns_keeps_all_or_nothing(typed: Store, columns: list[str]) -> None:
    everything = typed.scan("typed", columns=columns).to_arrow().num_rows
    assert everything
    for value, expected in ((True, everything), (False, 0)):
        scan = typed.scan("typed", columns=columns, filter=pc.scalar(value))
        assert scan.to_arrow().num_rows == expected


@pytest.mark.more
@MORE
@TYPED_FILTERS
def test_many_filters_of_typed_records(
    typed: Store, kept: pc.Expression, columns: list[str]
) -> None:
    check_filter(typed, "typed", columns, kept)


@pytest.mark.slow
@settings(SOME, max_examples=1000)
@TYPED_FILTERS
def test_very_many_filters_of_typed_records(
    typed: Store, kept: pc.Expression, columns: list[str]
) -> None:
    check_filter(typed, "typed", columns, kept)


@settings(SOME, max_examples=8)
@TYPED_FILTERS
def test_a_filter_of_typed_batches_keeps_what_a_plain_one_keeps(
    batches: Store, kept: pc.Expression, columns: list[str]
) -> None:
    check_filter(batches, "typed", columns, kept)


@settings(SOME, max_examples=8)
@given(
    kept=filters_of(ALL["plain"]),
    columns=some_of(ALL["plain"]),
)
def test_a_filter_of_keys_and_values_keeps_what_a_plain_one_keeps(
    plain: Store, kept: pc.Expression, columns: list[str]
) -> None:
    check_filter(plain, "plain", columns, kept)


def test_nan_is_kept_where_the_filter_keeps_it(typed: Store) -> None:
    """Statistics know nothing of it: that all values lie below 100 says nothing of such rows."""
    for kept in (~(pc.field("price") < 100), pc.field("price").is_nan(), pc.field("cost") != 7.0):
        check_filter(typed, "typed", ["id", "price"], kept)
    found = typed.scan("typed", columns=["price"], filter=~(pc.field("price") < 100)).to_arrow()
    assert found.num_rows > 5
    assert all(map(math.isnan, found["price"].to_pylist()))


def test_a_filter_looks_into_nested_columns(typed: Store) -> None:
    kept = pc.field("place.x") == 1070  # a name with a dot in it, and no field of a struct
    assert typed.scan("typed", columns=["id"], filter=kept).to_arrow()["id"].to_pylist() == [70]
    kept = pc.field("place", "x") >= 60
    assert typed.scan("typed", columns=["id"], filter=kept).to_arrow()["id"].to_pylist() == [
        n for part in (0, 1) for n in range(60, 72) if n // 12 % 2 == part and n % 7 != 3
    ]


@in_either_format
def test_a_filter_of_records_with_gaps() -> None:
    """Compaction leaves offsets that are no row numbers; the filter goes by offsets."""
    store = attach(HeapStorage(), create=True, clock=VirtualClock(START_MS))
    config = {"cleanup.policy": "compact"}
    schema = pa.schema([pa.field("id", pa.int32()), pa.field("turn", pa.int64())])
    store.topics.create("compacted", schema=schema, key=["id"], config=config)
    for turn in range(3):
        ids = range(0, 30, turn + 1)
        with store.producer() as producer:
            rows = pa.table({"id": [*ids], "turn": [turn] * len(ids)}, schema=schema)
            producer.send_batch("compacted", rows)
    store.logs.clock.sleep(1)
    assert compact(store, "compacted")
    everything = store.scan("compacted", columns=["id", "turn", "_offset"]).to_arrow()
    assert everything.num_rows == 30
    for kept in (
        (pc.field("_offset") > 9) & (pc.field("_offset") < 50),
        (pc.field("turn") == 0) & (pc.field("id") > 10),
        pc.field("id").isin([1, 6, 7, 29]) & (pc.field("_offset") != 7),
    ):
        scan = store.scan("compacted", columns=["id", "turn", "_offset"], filter=kept)
        assert scan.to_arrow().to_pylist() == everything.filter(kept).to_pylist() != []
        start = scan.to_arrow()["_offset"][1].as_py()
        rest = store.scan("compacted", {0: start}, columns=["_offset"], filter=kept).to_arrow()
        assert rest["_offset"].to_pylist() == scan.to_arrow()["_offset"].to_pylist()[1:]


# -- what is read ----------------------------------------------------------------------------------


def _counted(store: Store) -> tuple[Store, CountingStorage]:
    counting = CountingStorage(store.storage)
    return attach(counting, clock=store.logs.clock), counting


def _reads(store: Store, topic: str, kept: pc.Expression) -> int:
    """How many requests a scan makes once it is planned."""
    store, counting = _counted(store)
    scan = store.scan(topic, filter=kept)
    counting.take()
    scan.to_arrow()
    return counting.take().get("get_range", 0)


def test_segments_are_passed_over_by_what_the_log_knows(typed: Store, plain: Store) -> None:
    """By offsets, times and partitions; six and seven segments are there in all."""
    assert _reads(typed, "typed", pc.field("_partition") < 5) == 6
    assert _reads(typed, "typed", pc.field("_partition") == 1) == 3
    assert _reads(typed, "typed", (pc.field("_offset") >= 12) & (pc.field("_offset") < 24)) == 2
    assert _reads(typed, "typed", pc.field("_timestamp") >= time_of(60)) == 1
    assert (
        _reads(typed, "typed", pc.field("_timestamp") > dt.datetime(2100, 1, 1, tzinfo=dt.UTC)) == 0
    )
    assert _reads(typed, "typed", pc.scalar(False)) == 0
    whole = _reads(plain, "plain", pc.field("offset") >= 0)
    some = _reads(
        plain, "plain", (pc.field("timestamp") < time_of(10)) & (pc.field("key") == b"k1")
    )
    assert (some, whole) == (1, 7)


def test_only_row_groups_that_can_match_are_read_and_columns_where_one_does(
    typed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First what the filter looks at, then the other columns of the row groups where it is true."""
    monkeypatch.setattr("txnlog.segments.parquet.open_segment.WHOLE_BYTES", 0)
    read: list[tuple[int, list[str]]] = []

    def decode(self: Any, group: Any, *args: Any) -> Any:
        read.append((group.number, self.stored))
        return original(self, group, *args)

    from txnlog.segments.parquet.reader import RowGroupReading

    original = RowGroupReading._read
    monkeypatch.setattr(RowGroupReading, "_read", decode)
    found = typed.scan("typed", columns=["name"], filter=pc.field("id") == 70).to_arrow()
    assert found["name"].to_pylist() == ["n070"]
    [(group, first), (same, then)] = read
    assert (first, then) == (["id"], ["name"])
    assert group == same > 0
    read.clear()
    # Of a column that was narrower in the file.
    found = typed.scan("typed", columns=["name"], filter=pc.field("number") == 30).to_arrow()
    assert found["name"].to_pylist() == ["n008"]
    assert [names for _, names in read] == [["number"], ["name"]]
    read.clear()
    # No statistics rule this out, and no row is kept: so nothing else is read.
    kept = (pc.field("id") == 70) & (pc.field("flag") != pc.field("flag"))
    assert typed.scan("typed", columns=["name"], filter=kept).to_arrow().num_rows == 0
    assert {name for _, names in read for name in names} == {"id", "flag"}


def test_the_ends_of_a_scan_are_those_of_what_is_kept(typed: Store, plain: Store) -> None:
    kept = pc.field("id").isin([2, 3, 30, 31, 71])
    scan = typed.scan("typed", columns=["id"], filter=kept)
    assert scan.head(3)["id"].to_pylist() == [2, 3, 30]
    assert scan.tail(2)["id"].to_pylist() == [31, 71]
    assert scan.tail(100).num_rows == scan.head(100).num_rows == 5
    assert scan.to_pandas()["id"].tolist() == [2, 3, 30, 31, 71]
    rows = plain.scan("plain", columns=["value"], filter=pc.field("value") >= b"03").tail(2)
    assert rows["value"].to_pylist() == [b"078", b"079"] or rows.num_rows == 2


def test_a_filter_over_json(typed: Store) -> None:
    """The columns are those that the scan has."""
    kept = (pc.field("offset") == 35) & pc.match_substring(pc.field("value"), '"id":71')
    snapshot = typed.snapshot("typed")
    [row] = (
        snapshot.scan("typed", columns=["partition"], as_json=True, filter=kept)
        .to_arrow()
        .to_pylist()
    )
    assert row == {"partition": 1}


def test_a_plan_with_a_filter_travels(typed: Store) -> None:
    """Spark's tasks get it as it is."""
    from txnlog.read.plan import scan_columns
    from txnlog.read.scan_reader import read_ranges

    scan = typed.scan("typed")
    schema = typed.logs.topic_spec("typed").schema
    columns = scan_columns(["id"], schema, row_filter=pc.field("number") == 30)
    sent = pickle.loads(pickle.dumps(columns))
    [batch] = read_ranges(typed.storage, scan.ranges, sent)
    assert batch.to_pylist() == [{"id": 8}]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        ("id = 1", "expression of pyarrow"),
        (pc.field("nope") == 1, "No match for FieldRef.Name\\(nope\\)"),
        (pc.field(0) == 1, "by its number"),
        (pc.field("id"), "int32, neither true nor false"),
        (pc.field("name") > 5, "does not fit the columns"),
        (pc.field("at") > dt.datetime.fromisoformat("2024-01-01"), "without timezone"),
        (pc.field("place", "y") == 1, "does not fit"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(typed: Store, kept: Any, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        typed.scan("typed", filter=kept)


def test_a_filter_that_fails_for_a_value_says_so(typed: Store) -> None:
    scan = typed.scan("typed", filter=pc.divide(pc.field("id"), pc.field("id") - 30) == 1)
    with pytest.raises(InvalidOption, match="divide by zero"):
        scan.to_arrow()


def test_damage_is_noticed_in_what_is_looked_at() -> None:
    """A filtered scan returns the right rows, or an error; whichever byte is wrong."""
    store = typed_store()
    kept = (pc.field("id") == 70) & (pc.field("_offset") >= 24) & (pc.field("_partition") == 1)
    expected = store.scan("typed", columns=["name"], filter=kept).to_arrow()
    assert expected.num_rows == 1
    [part] = store.scan("typed", filter=kept).ranges
    path, data = part.paths.log, store.storage.get(part.paths.log)
    noticed = 0
    for at in range(0, len(data), 61):
        damaged = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        store.storage.delete([path])
        store.storage.put(path, damaged)
        try:
            assert store.scan("typed", columns=["name"], filter=kept).to_arrow() == expected
        except CorruptRecord:
            noticed += 1
    assert noticed > len(data) // 61 // 2
