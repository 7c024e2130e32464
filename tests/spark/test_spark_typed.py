"""Typed topics in Spark: their columns in and out, in every way that there is."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import redirect_stdout
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import txnlog
from tests.spark.spark_helpers import fill, load, rows, save
from tests.spark.stream_helpers import reads_streams, run, sink, stream
from tests.support.admin.compacted_topics import compact, newest
from tests.support.admin.compacted_topics import read as read_all
from tests.support.segments.typed_formats import in_either_format
from txnlog import Store, TopicPartition
from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.spark import read, shuffle_by_partition, transaction
from txnlog.spark.batch import native_read
from txnlog.spark.batch.typed_rows import check_typed, named_as_in_topic
from txnlog.spark.batch.write_plan import check_columns

INNER = pa.struct([("x", pa.int32()), ("Y.z", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("Full Name", pa.string()),
        pa.field("a.b", pa.int32()),
        pa.field("tick`ed", pa.float64()),
        pa.field("SHOUT, loud", pa.bool_()),
        pa.field("tiny", pa.int8()),
        pa.field("short", pa.int16()),
        pa.field("single", pa.float32()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("at_ms", pa.timestamp("ms", "UTC")),
        pa.field("wall", pa.timestamp("ms")),
        pa.field("price", pa.decimal128(12, 3)),
        pa.field("large", pa.decimal128(38, 0)),
        pa.field("list", pa.list_(pa.timestamp("ms", "UTC"))),
        pa.field("map", pa.map_(pa.string(), INNER)),
        pa.field(
            "nest", pa.struct([("in side", pa.list_(pa.decimal128(9, 2))), ("n", pa.int64())])
        ),
    ]
)
"""One column of each kind, and names of each."""


@pytest.mark.parametrize(
    ("frame", "topic", "found"),
    [
        ("id value", "Id value", "Id value"),
        ("ID VALUE", "Id value", "Id value"),
        ("id Id", "Id", "id Id"),
        ("id iD", "Id", "id iD"),
        ("ID", "Id id", "ID"),
        ("ID id", "Id id", "Id id"),
        ("other", "Id", "other"),
        ("_Partition id", "id", "_Partition id"),
    ],
)
def test_names_may_differ_in_case_where_one_is_meant(frame: str, topic: str, found: str) -> None:
    """As Spark resolves them; what is exact goes before, and nothing is guessed."""
    metadata = {"from": "there"}
    schema = StructType([StructField(n, LongType(), False, metadata) for n in frame.split()])
    columns = pa.schema([pa.field(name, pa.int64()) for name in topic.split()])
    renamed = named_as_in_topic(schema, columns)
    assert renamed.names == found.split()
    assert all((f.metadata, f.nullable) == (metadata, False) for f in renamed)


@pytest.mark.more
def test_rows_are_written_whose_columns_differ_in_case(spark: SparkSession, store: Store) -> None:
    """By a write, a transaction, and behind a shuffle by the key."""
    columns = pa.schema([pa.field("Id", pa.int64(), nullable=False), ("Name", pa.string())])
    store.topics.create("t", partitions=2, schema=columns, key=["Id"])
    frame = spark.range(0, 5).selectExpr("id", "string(id) as NAME")
    save(frame, store, "t")
    shuffle_by_partition(frame, store, "t").write.format("txnlog").options(
        path=store.url, topic="t"
    ).mode("append").save()
    with transaction(spark, store, transactional_id="x") as txn:
        txn.write(frame, topic="t")
    assert sorted(store.scan("t", columns=["Name"]).to_arrow()["Name"].to_pylist()) == sorted(
        [str(n) for n in range(5)] * 3
    )


def test_columns_are_read_that_are_named_in_another_case(spark: SparkSession, store: Store) -> None:
    """By each read: the frame's columns are called as the topic's are."""
    columns = pa.schema([pa.field("Id", pa.int64(), nullable=False), ("Name", pa.string())])
    store.topics.create("t", schema=columns, key=["Id"])
    with store.producer() as producer:
        producer.send("t", {"Id": 1, "Name": "a"})
    names = ["name", "_OFFSET"]
    frames = [
        load(spark, store, "t", columns=",".join(names)),
        read(spark, store, "t", columns=names, latest=True),
        read(spark, store, "t", columns=names, pre_images=True, since="earliest"),
    ]
    for frame in frames:
        assert frame.columns == ["Name", "_offset"]
        assert [tuple(row) for row in frame.collect()] == [("a", 0)]


def example(number: int) -> dict[str, Any]:
    """A row; each third has nulls."""
    if number % 3 == 0:
        return {"id": number, **dict.fromkeys(SCHEMA.names[1:])}
    moment = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC) + dt.timedelta(hours=number)
    return {
        "id": number,
        "Full Name": f"name {number}",
        "a.b": -number,
        "tick`ed": number / 7,
        "SHOUT, loud": number % 2 == 0,
        "tiny": number % 100,
        "short": -(number % 1000),
        "single": number / 4,
        "raw": b"\x00\xff" * (number % 3),
        "day": dt.date(1500 + number % 600, 2, 28),
        "at": moment.replace(microsecond=number % 1000),
        "at_ms": moment.replace(year=1066),
        "wall": dt.datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - a wall clock
        "price": Decimal(number) / 8,
        "large": Decimal(10) ** 37 + number,
        "list": [moment, None],
        "map": {"k": {"x": number, "Y.z": None}, "": None},
        "nest": {"in side": [Decimal("1.25"), None], "n": number},
    }


def fill_typed(store: Store, topic: str, count: int, start: int = 0) -> None:
    """Append examples without Spark."""
    rows = [example(number) for number in range(start, start + count)]
    with store.producer() as producer:
        producer.send_batch(topic, pa.Table.from_pylist(rows, SCHEMA))


def found(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows by id, as Arrow has them: no zone of the session shifts them."""
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [_plain(row) for row in sorted(rows, key=lambda row: int(row["id"]))]


def _plain(value: Any) -> Any:
    """The same without what differs in form alone: maps are lists of pairs in Arrow."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, tuple) for item in value):
            return {name: _plain(item) for name, item in value}
        return [_plain(item) for item in value]
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


def expected(count: int) -> list[dict[str, Any]]:
    """What is to be found of examples."""
    table = pa.Table.from_pylist([example(number) for number in range(count)], SCHEMA)
    return [_plain(row) for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("record_format", "native"),
    [("parquet", False), ("parquet", True), ("columns", None)],
    indirect=["record_format"],
)
@pytest.mark.usefixtures("record_format")
def test_every_type_goes_out_and_in(spark: SparkSession, store: Store, native: bool | None) -> None:
    """Values of each type, nested ones and nulls, read by Spark, written by it, and read again.

    The session's zone is Berlin's, on a night without a half past two.
    """
    for topic in ("in", "out"):
        store.topics.create(topic, partitions=2, schema=SCHEMA)
    fill_typed(store, "in", 40)
    frame = read(spark, store, "in", native=native)
    assert is_native(frame) == bool(native)
    assert frame.columns == SCHEMA.names
    assert frame.schema["at_ms"].dataType.simpleString() == "timestamp"
    assert frame.schema["wall"].dataType.simpleString() == "timestamp_ntz"
    assert found(frame) == expected(40)
    save(frame, store, "out")
    written = store.scan("out").to_arrow().sort_by("id")
    assert [_plain(row) for row in written.to_pylist()] == expected(40)


def is_native(frame: DataFrame) -> bool:
    """Whether Spark reads a DataFrame by itself, all of it."""
    with redirect_stdout(StringIO()) as plan:
        frame.explain()
    return "FileScan parquet" in plan.getvalue() and "BatchScan" not in plan.getvalue()


def places(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Where each row is, and which it is."""
    wanted = ("_topic", "_partition", "_offset", "id")
    return sorted(tuple(row) for row in frame.select(*wanted).collect())


PLACES = ["id", "_offset", "_partition", "_topic"]
NUMBERED = pa.schema([("id", pa.int64()), ("name", pa.string())])


def number_rows(store: Store, topic: str, start: int, stop: int) -> None:
    """Append rows (id, name) without Spark, at once."""
    with store.producer() as producer:
        names = [f"n{number}" for number in range(start, stop)]
        producer.send_batch(topic, pa.table({"id": range(start, stop), "name": names}))


def placed(store: Store, topic: str) -> list[tuple[Any, ...]]:
    """The same as ``places``, without Spark."""
    rows = store.scan(topic, columns=PLACES).to_arrow().to_pylist()
    return sorted((r["_topic"], r["_partition"], r["_offset"], r["id"]) for r in rows)


@pytest.mark.parametrize("most_to_filter", [90, 0])
def test_offsets_are_those_of_the_log(
    spark: SparkSession,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    most_to_filter: int,
) -> None:
    """Of whole files and of files that a range cuts, alone or together."""
    monkeypatch.setattr(native_read, "MOST_TO_FILTER", most_to_filter)
    store.topics.create("t", partitions=3, schema=NUMBERED)
    for start in range(0, 90, 30):
        number_rows(store, "t", start, start + 30)
    wanted = placed(store, "t")
    frame = read(spark, store, "t", columns=PLACES, native=True)
    assert is_native(frame)
    assert places(frame) == wanted
    ends = store.snapshot(["t"]).end_offsets("t")
    starts = dict.fromkeys(ends, 5)
    stops = {number: end - 7 for number, end in ends.items()}
    cut = read(
        spark,
        store,
        "t",
        columns=PLACES,
        starting_offsets={"t": starts},
        ending_offsets={"t": stops},
        native=True,
    )
    assert is_native(cut)
    inside = [row for row in wanted if starts[row[1]] <= row[2] < stops[row[1]]]
    assert places(cut) == inside
    assert cut.count() == len(inside) > 0


def test_only_what_is_committed_shows(spark: SparkSession, store: Store) -> None:
    """Rows of transactions that were aborted, or are open, lie in files that no plan names."""
    store.topics.create("t", partitions=2, schema=NUMBERED)
    number_rows(store, "t", 0, 10)
    aborted = store.producer(transactional_id="a")
    aborted.init_transactions()
    aborted.begin_transaction()
    aborted.send_batch("t", pa.table({"id": range(100, 110), "name": ["x"] * 10}))
    aborted.flush()
    aborted.abort_transaction()
    number_rows(store, "t", 10, 20)
    opened = store.producer(transactional_id="o")
    opened.init_transactions()
    opened.begin_transaction()
    opened.send_batch("t", pa.table({"id": range(200, 210), "name": ["x"] * 10}))
    opened.flush()
    number_rows(store, "t", 20, 30)
    frame = read(spark, store, "t", columns=PLACES, native=True)
    assert is_native(frame)
    assert places(frame) == placed(store, "t")
    assert {row[3] for row in places(frame)} <= {*range(30)}
    number_rows(store, "t", 30, 40)
    opened.commit_transaction()
    aborted.close()
    opened.close()
    assert {row[3] for row in places(frame)} <= {*range(30)}, "the read was pinned"


def test_a_file_that_is_gone_is_an_error_whatever_the_session_says(
    spark: SparkSession, store: Store
) -> None:
    """Fewer rows would be lost for ever once the group's offsets have moved past them."""
    store.topics.create("t", schema=NUMBERED)
    number_rows(store, "t", 0, 10)
    number_rows(store, "t", 10, 20)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        frame = read(spark, store, "t", native=True)
        gone, *_ = Path(store.url).glob("topics/t/data/0/*.parquet")
        kept = gone.read_bytes()
        gone.unlink()
        with pytest.raises(Exception, match=gone.name):
            frame.collect()
        gone.write_bytes(kept[: len(kept) // 2])
        with pytest.raises(Exception, match=gone.name):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_folders_may_be_called_anything(spark: SparkSession, tmp_path: Path) -> None:
    """What Hadoop takes for a pattern, or would decode."""
    store = txnlog.open(str(tmp_path / "a b{c,d}[e]*%20?#"), create=True)
    store.topics.create("t", partitions=2, schema=NUMBERED)
    number_rows(store, "t", 0, 20)
    frame = read(spark, store, "t", columns=PLACES, native=True)
    assert is_native(frame)
    assert places(frame) == placed(store, "t")


def test_a_flipped_bit_is_an_error(spark: SparkSession, store: Store) -> None:
    """In values that are not compressed, where nothing else would notice."""
    store.topics.create("t", schema=NUMBERED, config={"compression.type": "none"})
    number_rows(store, "t", 0, 100)
    [file] = Path(store.url).glob("topics/t/data/0/*.parquet")
    data = file.read_bytes()
    assert data.count(b"n77") == 1
    file.write_bytes(data.replace(b"n77", b"n76", 1))
    with pytest.raises(Exception, match=r"(?i)crc|checksum"):
        read(spark, store, "t", native=True).collect()


def test_what_is_no_parquet_file_is_united(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """Segments that came from Kafka beside Parquet files, in a topic of keys and values."""
    kafka = txnlog.open(str(tmp_path / "kafka"), create=True)
    kafka.topics.create("t", partitions=2, config={"record.format": "kafka"})
    fill(kafka, "t", 0, 20)
    kafka.kafka.export_topic("t", str(tmp_path / "folders"))
    store.topics.create("t", partitions=2, config={"record.format": "parquet"})
    store.kafka.import_topic("t", [str(tmp_path / "folders")])
    fill(store, "t", 20, 40)
    store.topics.delete_records({TopicPartition("t", number): 3 for number in range(2)})
    runs = native_read.plan_runs(store.scan("t").ranges, ordered=False)
    assert [run.files is None for run in runs] == [True, False]
    frame = read(spark, store, "t", include_headers=True)
    by_python = load(spark, store, "t", includeHeaders=True)
    assert frame.columns == by_python.columns
    assert frame.schema.simpleString() == by_python.schema.simpleString()
    assert rows(frame, frame.columns) == rows(by_python, by_python.columns)
    pinned = rows(frame, ["value"])
    fill(store, "t", 40, 50)
    assert rows(frame, ["value"]) == pinned


def test_gaps_are_where_the_log_has_them(spark: SparkSession, store: Store) -> None:
    """Segments that were compacted hold their rows' offsets, which no row's number tells."""
    config = {"cleanup.policy": "compact", "record.format": "parquet"}
    store.topics.create("t", config=config)
    with store.producer() as producer:
        for number in range(300):
            producer.send("t", b"v%d" % number, b"%d" % (number % 90 if number % 3 else 7))
    wanted = [(r.offset, r.value) for r in newest(read_all(store))]
    compact(store)
    fill(store, "t", 1000, 1010)
    frame = read(spark, store, "t", columns=["offset", "value"], native=True)
    assert is_native(frame)
    found_rows = sorted(rows(frame, ["offset", "value"]))
    assert [row for row in found_rows if row[0] < 300] == wanted
    middle = wanted[len(wanted) // 2][0]
    cut = read(
        spark, store, "t", columns=["offset"], starting_offsets={"t": {0: middle}}, native=True
    )
    assert rows(cut, ["offset"]) == [(row[0],) for row in found_rows if row[0] >= middle]


def test_a_transaction_reads_and_writes_typed_rows_once(spark: SparkSession, store: Store) -> None:
    """Natively and not: what was consumed is told by the block, whoever has read the rows."""
    for topic in ("in", "out"):
        store.topics.create(topic, partitions=2, schema=NUMBERED)
    for turn, native in enumerate((None, False)):
        number_rows(store, "in", turn * 10, turn * 10 + 10)
        for _ in range(2):
            with transaction(
                spark, store, transactional_id="t", group_id="g", max_records=7
            ) as txn:
                new = txn.read("in", native=native)
                assert is_native(new) == (native is not False and txn.consumed_records > 0)
                txn.write(new, topic="out")
    ids = store.scan("out").to_arrow().column("id").to_pylist()
    assert sorted(ids) == list(range(20))


def test_a_changed_schema_is_read_as_it_is_now(spark: SparkSession, store: Store) -> None:
    """Older files lack a column, have one too many, or narrower numbers."""
    few, many = Decimal("1.50"), Decimal("12345678901.00")
    before = [("id", pa.int32()), ("x", pa.float32()), ("d", pa.decimal128(5, 2))]
    store.topics.create("t", schema=pa.schema([*before, ("name", pa.string())]))
    with store.producer() as producer:
        producer.send_batch("t", [{"id": 1, "name": "a", "x": 0.5, "d": few}])
    after = [("id", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(18, 2))]
    store.topics.alter("t", schema=pa.schema([("more", pa.string()), *after]))
    with store.producer() as producer:
        producer.send_batch("t", [{"id": 1 << 40, "x": 0.1, "more": "m", "d": many}])
    wanted = [(1, 0.5, few, None), (1 << 40, 0.1, many, "m")]
    for native in (False, True):
        frame = read(spark, store, "t", native=native)
        assert is_native(frame) == native
        assert frame.columns == ["more", "id", "x", "d"]
        assert rows(frame, ["id", "x", "d", "more"]) == wanted
        for name, number, literal in (("id", 0, 1 << 40), ("x", 1, 0.1), ("d", 2, many)):
            found = rows(frame.where(f"{name} = {literal}"), [name])
            assert found == [(wanted[1][number],)]


DEFAULTS: dict[str, Any] = {
    "flag": True,
    "tiny": -1,
    "number": 0.25,
    "text": "it's `so`",
    "raw": b"\x00\xff",
    "day": dt.date(1582, 10, 10),
    "at": dt.datetime(2026, 3, 29, 1, 30, 0, 123, tzinfo=dt.UTC),
    "wall": dt.datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - a wall clock
    "price": Decimal("-1.250"),
}


def test_older_files_lack_a_column_that_others_call_otherwise(
    spark: SparkSession, store: Store
) -> None:
    store.topics.create("t", schema=pa.schema([("id", pa.int64())]))
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"id": [1]}))
    columns = pa.schema([("n", pa.int64()), ("id", pa.int64())])
    store.topics.alter("t", schema=columns, defaults={"n": 7})
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"n": [3], "id": [2]}))
    store.topics.alter("t", rename={"n": "number"})
    for native in (False, True):
        frame = read(spark, store, "t", native=native)
        assert is_native(frame) == native
        assert rows(frame, ["id", "number"]) == [(1, 7), (2, 3)]


def test_columns_are_found_under_the_names_that_they_had(spark: SparkSession, store: Store) -> None:
    """Renamed ones, swapped ones, names used again, those inside of structs, and defaults."""
    inner = pa.struct([("x", pa.int8()), ("y", pa.string())])
    before = pa.schema(
        [
            ("id", pa.int64()),
            ("a", pa.string()),
            ("b", pa.string()),
            ("again", pa.int32()),
            ("in", inner),
            ("list", pa.list_(inner)),
            ("map", pa.map_(pa.string(), inner)),
        ]
    )
    none = {"schema.compatibility": "NONE"}
    store.topics.create("t", schema=before, config=none)
    old = {"x": 1, "y": "y"}
    row = {
        "id": 1, "a": "a", "b": "b", "again": 5, "in": old, "list": [old, None], "map": {"k": old}
    }  # fmt: skip
    nothing = dict.fromkeys(before.names) | {"id": 2}
    with store.producer() as producer:
        producer.send_batch("t", pa.Table.from_pylist([row, nothing], before))
    store.topics.alter("t", rename={"a": "b", "b": "a", "id": "ID"})
    swapped_only = read(spark, store, "t", columns=["ID", "a", "b"], native=True)
    assert rows(swapped_only.where("a = 'b'"), ["ID", "a", "b"]) == [(1, "b", "a")]
    inner = pa.struct([("Y", pa.int16()), ("x", pa.int32())])
    kinds = {f.name: f.type for f in SCHEMA} | {"flag": pa.bool_(), "text": pa.string()}
    kinds["number"] = pa.float64()
    after = pa.schema(
        [
            ("ID", pa.int64()),
            ("a", pa.string()),
            ("b", pa.string()),
            ("again", pa.string()),
            ("in", inner),
            ("list", pa.list_(inner)),
            ("map", pa.map_(pa.string(), inner)),
            *(pa.field(name, kinds[name], nullable=False) for name in DEFAULTS),
        ]
    )
    store.topics.alter("t", schema=after, defaults=DEFAULTS)
    new = {"x": 1000, "Y": 2}
    later = {
        "ID": 3, "a": "x", "b": "y", "again": "z", "in": new, "list": [new], "map": {"k": new}
    }  # fmt: skip
    with store.producer() as producer:
        producer.send_batch("t", pa.Table.from_pylist([later], pa.schema([*after][:7])))
    wide = {"Y": None, "x": 1}
    swapped = {"a": "b", "b": "a", "again": None, "in": wide, "list": [wide, None]}
    wanted = [
        row | swapped | {"map": {"k": wide}} | DEFAULTS | {"ID": 1},
        nothing | DEFAULTS | {"ID": 2},
        later | DEFAULTS,
    ]
    wanted = [{name: row[name] for name in after.names} for row in wanted]
    for native in (False, True):
        frame = read(spark, store, "t", native=native)
        assert is_native(frame) == native
        assert frame.columns == after.names
        got = frame.toArrow().to_pylist()
        assert [_plain(row) for row in sorted(got, key=lambda row: int(row["ID"]))] == wanted
    assert rows(frame.where("a = 'b' AND tiny = -1 AND in.x = 1"), ["ID", "b"]) == [(1, "a")]
    assert frame.where("price > 0").count() == 0
    placed = read(spark, store, "t", columns=["flag", "_offset", "a"], native=True)
    assert is_native(placed)
    assert sorted(rows(placed, placed.columns)) == [(True, 0, "b"), (True, 1, None), (True, 2, "x")]


def test_a_struct_is_not_null_for_want_of_fields(spark: SparkSession, store: Store) -> None:
    """Where a file has none of those that the struct has now; what it lacks has its default."""
    kind = pa.struct([("x", pa.int8())])
    store.topics.create("t", schema=pa.schema([("id", pa.int64()), ("in", kind)]))
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"id": [1, 2], "in": pa.array([{"x": 1}, None], kind)}))
    after = pa.schema([("id", pa.int64()), ("in", pa.struct([("y", pa.int8())])), ("n", pa.int8())])
    store.topics.alter("t", schema=after, defaults={"n": 7})
    frame = read(spark, store, "t", native=True)
    assert is_native(frame)
    wanted = [{"id": 1, "in": {"y": None}, "n": 7}, {"id": 2, "in": None, "n": 7}]
    assert found(frame) == wanted


@pytest.mark.more
@reads_streams
def test_a_stream_goes_on_when_columns_are_renamed(spark: SparkSession, store: Store) -> None:
    """Under the names that it began with; one that was dropped is null."""
    for topic in ("in", "out"):
        store.topics.create(topic, schema=NUMBERED)
    number_rows(store, "in", 0, 10)
    query = sink(stream(spark, store, "in"), store, "out").start()
    try:
        query.processAllAvailable()
        store.topics.alter("in", rename={"id": "number"})
        with store.producer() as producer:
            producer.send_batch("in", pa.table({"number": [10], "name": ["n10"]}))
        query.processAllAvailable()
        store.topics.alter("in", schema=pa.schema([("number", pa.int64())]))
        with store.producer() as producer:
            producer.send_batch("in", pa.table({"number": [11]}))
        query.processAllAvailable()
    finally:
        query.stop()
    written = store.scan("out").to_arrow().sort_by("id").to_pylist()
    assert [row["id"] for row in written] == list(range(12))
    assert [row["name"] for row in written[9:]] == ["n9", "n10", None]


@pytest.mark.more
@reads_streams
@in_either_format
def test_a_stream_of_typed_rows(spark: SparkSession, store: Store) -> None:
    """From a typed topic to another, in several batches; metadata on request."""
    for topic in ("in", "out"):
        store.topics.create(topic, partitions=2, schema=NUMBERED, key=["id"])
    number_rows(store, "in", 0, 20)
    frame = stream(spark, store, "in", maxOffsetsPerTrigger=8, columns="name,id,_deleted,_offset")
    assert frame.columns == ["name", "id", "_deleted", "_offset"]
    run(sink(frame, store, "out"))
    number_rows(store, "in", 20, 30)
    run(sink(frame, store, "out"))
    written = store.scan("out").to_arrow()
    assert sorted(written.column("id").to_pylist()) == list(range(30))


@pytest.mark.more
@in_either_format
def test_keys_choose_partitions_and_deletes_are_kept(spark: SparkSession, store: Store) -> None:
    """As a producer does it; shuffled by partition too; a view of SQL is inserted into."""
    for topic in ("sent", "saved", "shuffled"):
        store.topics.create(topic, partitions=4, schema=NUMBERED, key=["id"])
    number_rows(store, "sent", 0, 40)
    columns = ["id", "name", "_deleted"]
    frame = read(spark, store, "sent", columns=columns)
    save(frame, store, "saved")
    save(shuffle_by_partition(frame, store, "shuffled"), store, "shuffled")
    where = ["id", "_partition", "name"]
    expected_rows = rows(read(spark, store, "sent", columns=where), where)
    for topic in ("saved", "shuffled"):
        assert rows(read(spark, store, topic, columns=where), where) == expected_rows
    assert len(store.topics.segments("shuffled")) == 4
    options = f"path '{store.url}', subscribe 'saved', columns 'id,_deleted'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW saved USING txnlog OPTIONS ({options})")
    spark.sql("INSERT INTO saved (id, _deleted) VALUES (7, true)")
    gone = store.scan("saved", columns=[*columns, "_partition"]).to_arrow().to_pylist()
    [deleted] = [row for row in gone if row["_deleted"]]
    assert (deleted["id"], deleted["name"]) == (7, None)
    assert (7, deleted["_partition"], "n7") in expected_rows


def test_what_cannot_be_written_is_refused_before_the_job(
    spark: SparkSession, store: Store
) -> None:
    """Columns on the driver's side, values with their column; and the two kinds are not mixed."""
    store.topics.create("typed", schema=pa.schema([("id", pa.int32()), ("name", pa.string())]))
    store.topics.create("plain")
    row = spark.range(1)
    for columns, said in (
        (("'a' AS name", "1 AS ID2"), "column 'ID2' is not in its schema"),
        (("'a' AS id",), "column 'id' is string, its type is int32"),
        (("'a' AS key", "'b' AS value"), "its rows are not keys and values"),
        (("1 AS id", "'x' AS _partition"), "column '_partition' is string"),
        (("1 AS id", "true AS _deleted"), "which has no key"),
        (("1 AS id", "INTERVAL '1' DAY AS name"), "which no topic can hold"),
        (("1 AS id", "2 AS id"), "there are two columns 'id'"),
        (("1 AS id", "TIMESTAMP_NTZ '2026-01-01' AS _timestamp"), "a time without a zone"),
    ):
        with pytest.raises(InvalidRecord, match=re.escape(said)):
            check_typed(row.selectExpr(*columns).schema, store.logs.topic_spec("typed"), None)
    with pytest.raises(InvalidRecord, match="was created with a schema"):
        check_columns(row.selectExpr("1 AS id").schema, store.logs.topic_spec("plain"), None)
    with pytest.raises(InvalidOption, match="cannot be read at once"):
        read(spark, store, "typed", "plain")
    with pytest.raises(PySparkException, match=re.escape("'id': a value in row 0 (5000000000)")):
        save(row.selectExpr("5000000000 AS id"), store, "typed")
    with pytest.raises(PySparkException, match="with the option topic"):
        save(row.selectExpr("'b' AS value", "'typed' AS topic"), store)
    assert store.scan("typed").record_count == 0
