"""Filters of scans keep what a plain filter keeps of a full scan, and no more is read for it."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from compacted_topics import compact
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typed_formats import in_either_format

from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

START_MS = 1_700_000_000_000
TYPED = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("number", pa.int64()),
        ("small", pa.int8()),
        ("price", pa.float64()),
        ("cost", pa.float32()),
        ("amount", pa.decimal128(10, 2)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("flag", pa.bool_()),
        ("place.x", pa.int64()),
        ("place", pa.struct([("x", pa.int64())])),
    ]
)
DAY = dt.date(2024, 1, 1)
MOMENT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def _value(name: str, number: int) -> Any:
    """What a column has in a row; the same for the same number."""
    if number % 7 == 3 and name != "id":
        return None
    if number % 5 == 4 and name in ("price", "cost"):
        return math.nan
    return {
        "id": number,
        "number": number * 10 - 50,
        "small": number % 100 - 50,
        "price": number / 4 - 3,
        "cost": -number / 2,
        "amount": Decimal(number) / 4,
        "name": f"n{number:03}",
        "raw": b"%03d" % number,
        "day": DAY + dt.timedelta(days=number),
        "at": MOMENT + dt.timedelta(hours=number),
        "flag": number % 2 == 0,
        "place.x": number + 1000,
        "place": {"x": number},
    }[name]


def _typed_store(record_format: str = "parquet", storage: Storage | None = None) -> Store:
    """Two partitions of typed records, some in one row group each, written under two schemas."""
    clock = VirtualClock(START_MS)
    store = attach(storage or HeapStorage(), create=True, clock=clock)
    older = pa.schema([f for f in TYPED if f.name not in ("day", "flag")])
    older = older.set(older.get_field_index("number"), pa.field("number", pa.int32()))
    config = {"record.format": record_format}
    store.create_topic("typed", partitions=2, schema=older, key=["id"], config=config)
    for batch in range(6):
        if batch == 2:
            store.alter_topic("typed", schema=TYPED)
        columns = older if batch < 2 else TYPED
        numbers = range(batch * 12, batch * 12 + 12)
        rows = {f.name: [_value(f.name, n) for n in numbers] for f in columns}
        rows["_timestamp"] = [START_MS + n * 1000 for n in numbers]
        kinds = pa.schema([*columns, ("_timestamp", pa.int64())])
        clock.sleep(12_000)
        with store.producer() as producer:
            producer.send_batch("typed", pa.table(rows, schema=kinds), partition=batch % 2)
    return store


def _plain_store(record_format: str) -> Store:
    """Two partitions of keys and values, in four segments each, with aborted records between."""
    clock = VirtualClock(START_MS)
    store = attach(HeapStorage(), create=True, clock=clock)
    store.create_topic("plain", partitions=2, config={"record.format": record_format})
    for batch in range(8):
        clock.sleep(1)
        with store.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(batch * 10, batch * 10 + 10):
                key = None if number % 4 == 0 else b"k%d" % (number % 3)
                value = None if number % 6 == 5 else b"%03d" % number
                when = START_MS + number * 1000
                producer.send("plain", value, key=key, partition=batch % 2, timestamp_ms=when)
            if batch == 5:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return store


@pytest.fixture(scope="module")
def typed() -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patched:
        # Several row groups in each file.
        patched.setattr("txnlog.segments.writer.DEFAULT_ROW_GROUP_BYTES", 600)
        yield _typed_store()


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The same in files, of which few columns are read by Arrow's scanner, however small."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("txnlog.segments.writer.DEFAULT_ROW_GROUP_BYTES", 600)
        patched.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 0)
        yield _typed_store(storage=open_storage(str(tmp_path_factory.mktemp("store"))))


@pytest.fixture(scope="module")
def batches() -> Store:
    return _typed_store("columns")


@pytest.fixture(scope="module", params=["columns", "kafka", "parquet"])
def plain(request: pytest.FixtureRequest) -> Store:
    return _plain_store(request.param)


# -- random filters against a plain one ------------------------------------------------------------


def _time_of(number: int) -> pa.Scalar:
    return pa.scalar((START_MS + number * 1000) * 1000, pa.timestamp("us", tz="UTC"))


def _literals(name: str) -> Callable[[int], Any]:
    special = {
        "_timestamp": _time_of,
        "timestamp": _time_of,
        "_offset": lambda number: number // 2,
        "offset": lambda number: number // 2,
        "_partition": lambda number: number % 3,
        "partition": lambda number: number % 3,
        "key": lambda number: b"k%d" % (number % 4),
        "value": lambda number: b"%03d" % number,
        "amount": lambda number: pa.scalar(Decimal(number) / 4, pa.decimal128(10, 2)),
    }
    return special.get(name, lambda number: _value(name, number - number % 7))


def _leaf(names: list[str]) -> st.SearchStrategy[pc.Expression]:
    def make(name: str, kind: str, number: int) -> pc.Expression:
        field, value = pc.field(name), _literals(name)(number)
        if kind == "isin":
            return field.isin([value, _literals(name)(number + 21)])
        if kind == "is_null":
            return field.is_null()
        if kind == "is_nan" and name in ("price", "cost"):
            return field.is_nan()
        compare = {
            "<": field.__lt__,
            "<=": field.__le__,
            ">": field.__gt__,
            ">=": field.__ge__,
            "!=": field.__ne__,
        }
        return compare.get(kind, field.__eq__)(value)

    kinds = ["==", "!=", "<", "<=", ">", ">=", "isin", "is_null", "is_nan"]
    return st.builds(make, st.sampled_from(names), st.sampled_from(kinds), st.integers(0, 75))


def _filters(names: list[str]) -> st.SearchStrategy[pc.Expression]:
    return st.recursive(
        _leaf(names),
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=5,
    )


def _check(store: Store, topic: str, columns: list[str], kept: pc.Expression) -> None:
    everything = store.scan(topic, columns=ALL[topic]).to_arrow()
    expected = everything.filter(kept).select(columns)
    scan = store.scan(topic, columns=columns, filter=kept)
    found = scan.to_arrow()
    place = "_partition" if topic == "typed" else "partition"
    # NaN is not itself, but its text is.
    assert str(found.to_pylist()) == str(expected.to_pylist())
    assert found.schema == scan.schema == expected.schema
    counts = everything.filter(kept)[place].to_pylist()
    assert scan.count() == {number: counts.count(number) for number in (0, 1)}


ALL = {
    "typed": [*TYPED.names, "_partition", "_offset", "_timestamp"],
    "plain": ["key", "value", "partition", "offset", "timestamp"],
}
SOME = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MORE = settings(SOME, max_examples=75)
FLAT = [name for name in ALL["typed"] if name != "place"]


def some_of(names: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=1, unique=True)


TYPED_FILTERS = given(kept=_filters(FLAT), columns=some_of(ALL["typed"]))


@SOME
@TYPED_FILTERS
def test_a_filter_of_typed_records_keeps_what_a_plain_one_keeps(
    typed: Store, kept: pc.Expression, columns: list[str]
) -> None:
    """Over nulls, NaN, columns that older files lack, and those that were narrower there."""
    _check(typed, "typed", columns, kept)


@pytest.mark.more
@MORE
@TYPED_FILTERS
def test_many_filters_of_typed_records(
    typed: Store, kept: pc.Expression, columns: list[str]
) -> None:
    _check(typed, "typed", columns, kept)


@pytest.mark.slow
@settings(SOME, max_examples=1000)
@TYPED_FILTERS
def test_very_many_filters_of_typed_records(
    typed: Store, kept: pc.Expression, columns: list[str]
) -> None:
    _check(typed, "typed", columns, kept)


SCANNED = ["id", "number", "small", "day", "at", "flag", "place.x"]


@settings(SOME, max_examples=15)
@given(kept=_filters(SCANNED), columns=some_of([*SCANNED, "price"]), start=st.integers(0, 30))
def test_what_arrow_scans_is_what_a_plain_filter_keeps(
    on_disk: Store, kept: pc.Expression, columns: list[str], start: int
) -> None:
    """Also of files of an earlier schema, and of a file from its middle on."""
    everything = on_disk.scan("typed", {0: start, 1: 3}, columns=ALL["typed"]).to_arrow()
    found = on_disk.scan("typed", {0: start, 1: 3}, columns=columns, filter=kept).to_arrow()
    assert str(found.to_pylist()) == str(everything.filter(kept).select(columns).to_pylist())


@settings(SOME, max_examples=8)
@TYPED_FILTERS
def test_a_filter_of_typed_batches_keeps_what_a_plain_one_keeps(
    batches: Store, kept: pc.Expression, columns: list[str]
) -> None:
    _check(batches, "typed", columns, kept)


@settings(SOME, max_examples=8)
@given(
    kept=_filters(ALL["plain"]),
    columns=some_of(ALL["plain"]),
)
def test_a_filter_of_keys_and_values_keeps_what_a_plain_one_keeps(
    plain: Store, kept: pc.Expression, columns: list[str]
) -> None:
    _check(plain, "plain", columns, kept)


def test_nan_is_kept_where_the_filter_keeps_it(typed: Store) -> None:
    """Statistics know nothing of it: that all values lie below 100 says nothing of such rows."""
    for kept in (~(pc.field("price") < 100), pc.field("price").is_nan(), pc.field("cost") != 7.0):
        _check(typed, "typed", ["id", "price"], kept)
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
    store.create_topic("compacted", schema=schema, key=["id"], config=config)
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
    assert _reads(typed, "typed", pc.field("_timestamp") >= _time_of(60)) == 1
    assert (
        _reads(typed, "typed", pc.field("_timestamp") > dt.datetime(2100, 1, 1, tzinfo=dt.UTC)) == 0
    )
    assert _reads(typed, "typed", pc.scalar(False)) == 0
    whole = _reads(plain, "plain", pc.field("offset") >= 0)
    some = _reads(
        plain, "plain", (pc.field("timestamp") < _time_of(10)) & (pc.field("key") == b"k1")
    )
    assert (some, whole) == (1, 7)


def test_only_row_groups_that_can_match_are_read_and_columns_where_one_does(
    typed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First what the filter looks at, then the other columns of the row groups where it is true."""
    monkeypatch.setattr("txnlog.segments.parquet.open_segment.WHOLE_BYTES", 0)
    read: list[tuple[int, list[str]]] = []

    def decode(self: Any, group: Any, found: Any) -> pa.Table:
        read.append((group.number, self.stored))
        return original(self, group, found)

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
    from txnlog.read.scanned_ranges import read_ranges
    from txnlog.read.schema import scan_columns

    scan = typed.scan("typed")
    schema = typed.topic_spec("typed").schema
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
    store = _typed_store()
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


# -- by Arrow's scanner ----------------------------------------------------------------------------

ODD = (pc.field("id") > 25) & (pc.field("small") != 0)
"""Keeps some of each file, but for the first ones of an earlier schema."""


def _scanned(patched: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the files of which the scanner gives batches, of each run."""
    from txnlog.read.arrow_scans import _Scanning

    original, found = _Scanning._scan, []

    def scan(self: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
        for number, batch in original(self):
            found.append(number)
            yield number, batch

    patched.setattr(_Scanning, "_scan", scan)
    return found


@pytest.mark.parametrize(
    ("columns", "kept", "is_scanned"),
    [
        (["number"], ODD, True),
        (["number", "price"], ODD, True),
        (["number", "price", "cost"], ODD, False),  # the filter helps more with the others
        (["name"], pc.field("id") > 25, False),
        (["id"], pc.field("price") > 3, False),  # statistics pass over NaN
        (["id", "_offset"], ODD, False),
        (["id"], pc.field("_partition") == 1, False),
    ],
)
def test_arrow_scans_few_columns_of_whole_files(
    on_disk: Store,
    monkeypatch: pytest.MonkeyPatch,
    columns: list[str],
    kept: pc.Expression,
    is_scanned: bool,
) -> None:
    scanned = _scanned(monkeypatch)
    _check(on_disk, "typed", columns, kept)
    assert bool(scanned) == is_scanned
    scanned.clear()
    monkeypatch.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 4 << 20)
    _check(on_disk, "typed", columns, kept)
    assert not scanned  # of small ones our own reader checks all bytes


def test_a_default_is_there_of_files_without_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow knows of none: such files are read by our own reader, between others."""
    monkeypatch.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 0)
    scanned = _scanned(monkeypatch)
    store = attach(open_storage(str(tmp_path)), create=True, clock=VirtualClock(START_MS))
    schemas = [pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("n", pa.int64())])]
    store.create_topic("t", schema=schemas[0])
    for turn, schema in enumerate(schemas):
        if turn:
            store.alter_topic("t", schema=schema, defaults={"n": 7})
        with store.producer() as producer:
            rows = pa.table([[turn * 10 + n for n in range(10)]] * len(schema), schema=schema)
            producer.send_batch("t", rows)
    found = store.scan("t", columns=["n"], filter=pc.field("id").isin([4, 9, 14, 19]))
    assert found.to_arrow()["n"].to_pylist() == [7, 7, 14, 19]
    assert scanned


def test_where_the_scanner_fails_our_reader_goes_on(
    on_disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is lost or comes twice, wherever it is."""
    from txnlog.read.arrow_scans import _Scanning

    expected = on_disk.scan("typed", columns=["number"], filter=ODD).to_arrow()
    original = _Scanning._scan
    monkeypatch.setattr(
        "txnlog.read.arrow_scans._BATCH_BYTES", 64
    )  # several batches of each row group
    total = len(_scan_all(on_disk, monkeypatch))
    assert total > 8
    for most in range(total + 1):

        def scan(self: Any, most: int = most) -> Iterator[tuple[int, pa.RecordBatch]]:
            for at, found in enumerate(original(self)):
                if at == most:
                    raise OSError("the disk is damaged")
                yield found

        monkeypatch.setattr(_Scanning, "_scan", scan)
        assert on_disk.scan("typed", columns=["number"], filter=ODD).to_arrow() == expected


def _scan_all(store: Store, patched: pytest.MonkeyPatch) -> list[int]:
    with patched.context() as inner:
        scanned = _scanned(inner)
        store.scan("typed", columns=["number"], filter=ODD).to_arrow()
    return scanned


def test_damage_is_noticed_in_what_arrow_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right rows, or an error of that row group or of the footer, whichever byte is wrong."""
    monkeypatch.setattr("txnlog.segments.writer.DEFAULT_ROW_GROUP_BYTES", 600)
    monkeypatch.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 0)
    store = _typed_store(storage=open_storage(str(tmp_path / "store")))
    scan = store.scan("typed", columns=["number"], filter=ODD)
    expected = scan.to_arrow()
    scanned = _scanned(monkeypatch)
    part = scan.ranges[-1]
    path = Path(str(store.storage.local_path(part.paths.log)))
    data = path.read_bytes()
    errors: list[str] = []
    for at in range(0, len(data), 151):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            assert scan.to_arrow() == expected
        except CorruptRecord as error:
            errors.append(str(error))
    assert len(errors) > 5
    assert all(part.paths.log in error for error in errors)
    assert any("row group" in error for error in errors)
    assert scanned
    other = Path(str(store.storage.local_path(scan.ranges[0].paths.log))).read_bytes()
    for wrong in (data[:-1], data[: len(data) // 2], other):
        path.write_bytes(wrong)
        with pytest.raises(CorruptRecord, match=re.escape(part.paths.log)):
            scan.to_arrow()
    path.unlink()
    with pytest.raises(CorruptRecord, match="is gone"):
        scan.to_arrow()
