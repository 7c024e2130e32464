"""Topics with a schema: what is taken, what is refused and why, and what comes back."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.support.examples import share_of
from tests.support.segments.typed_formats import in_either_format
from txnlog import schema as schemas
from txnlog.admin import topics
from txnlog.columns.checks import make_schema
from txnlog.columns.keys import encode_keys
from txnlog.config import CompressionType, TopicConfig
from txnlog.errors import (
    CorruptEntry,
    InvalidConfig,
    InvalidOption,
    InvalidRecord,
    InvalidSchema,
    RecordTooLarge,
)
from txnlog.names import TopicPartition
from txnlog.schema import TopicSchema
from txnlog.segments.batch_header import NO_TAG
from txnlog.segments.records import HEADERS_TYPE
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

FLIGHTS = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="Europe/Berlin")),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("seats", pa.map_(pa.string(), pa.int64())),
        pa.field(
            "place", pa.struct([pa.field("x", pa.float64(), nullable=False), ("y", pa.int8())])
        ),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.bool_()),
    ]
)
ROW: dict[str, Any] = {
    "carrier": "AA",
    "flight": 7,
    "price": Decimal("1.25"),
    "at": dt.datetime(2024, 3, 1, 12, 30, 0, 123456, tzinfo=dt.UTC),
    "day": dt.date(2024, 3, 1),
    "tags": ["new", None],
    "seats": [("a", 1), ("b", None)],
    "place": {"x": 0.5, "y": -1},
    "value": b"\x00\xff",
    "timestamp": True,
}


pytestmark = pytest.mark.store(topics={}, on="heap")


@pytest.fixture
def flights(store: Store) -> Store:
    store.topics.create("f", partitions=3, schema=FLIGHTS, key=["carrier", "flight"])
    return store


def send(store: Store, batch: Any, topic: str = "f", **arguments: Any) -> None:
    with store.producer() as producer:
        producer.send_batch(topic, batch, **arguments)


@in_either_format
def test_rows_come_back_as_they_were(flights: Store) -> None:
    """Every type, nulls, and names that other topics' records have too."""
    nothing = dict.fromkeys(ROW) | {"carrier": "", "flight": 0}
    send(flights, pa.Table.from_pylist([ROW, nothing], schema=FLIGHTS), partition=1)
    assert attach(flights.storage).scan("f").to_arrow().to_pylist() == [ROW, nothing]
    assert flights.scan("f", columns=["day", "_partition", "_offset"]).to_arrow().to_pylist() == [
        {"day": ROW["day"], "_partition": 1, "_offset": 0},
        {"day": None, "_partition": 1, "_offset": 1},
    ]
    assert flights.scan("f").head(1).to_pylist() == [ROW]
    assert flights.scan("f", columns=["flight"]).tail(1).to_pylist() == [{"flight": 0}]


@in_either_format
def test_what_every_record_has_is_given_and_asked_for_by_name(
    flights: Store, clock: VirtualClock
) -> None:
    """Times, headers, partitions; a record that deletes has its key alone."""
    row = {"carrier": "AA", "flight": 1, "day": ROW["day"]}
    times = pa.array([5, None], pa.int64())
    headers = pa.array([[{"key": "h", "value": b"1"}], None])
    table = pa.Table.from_pylist([row, row])
    table = table.append_column("_timestamp", times).append_column("_headers", headers)
    table = table.append_column("_partition", pa.array([2, 0], pa.int32()))
    send(flights, table.append_column("_deleted", pa.array([False, True])))
    columns = ["_topic", "_partition", "_offset", "_timestamp", "_headers", "_deleted", "day"]
    first, second = flights.scan("f", columns=columns).to_arrow().to_pylist()
    assert (first["_partition"], first["_deleted"], first["day"]) == (0, True, None)
    assert first["_timestamp"].timestamp() * 1000 == clock.now_ms()
    assert (second["_topic"], second["_partition"], second["day"]) == ("f", 2, ROW["day"])
    assert second["_timestamp"] == dt.datetime.fromtimestamp(0.005, dt.UTC)
    assert second["_headers"] == [{"key": "h", "value": b"1"}]


@in_either_format
def test_frames_of_other_libraries_are_taken(flights: Store) -> None:
    """Whatever speaks Arrow; wider numbers where every value fits, dictionaries as their values."""
    columns = {"carrier": ["a", "b"], "flight": [1, 2]}
    for frame in (
        pd.DataFrame(columns),
        pl.DataFrame(columns),
        pa.table(columns),
        pa.record_batch({**columns, "carrier": pa.array(["a", "b"]).dictionary_encode()}),
    ):
        send(flights, frame)
    send(flights, pl.DataFrame(columns).with_columns(pl.col("carrier").cast(pl.Categorical)))
    found = flights.scan("f", columns=["carrier", "flight"]).to_arrow()
    assert found.num_rows == 10
    assert set(found.column("flight").to_pylist()) == {1, 2}


def test_what_is_no_batch_is_refused_with_what_makes_one(flights: Store) -> None:
    """Lazy frames, dictionaries, and lists of no records."""
    row = {"carrier": "a", "flight": 1}
    refused: list[tuple[Any, str]] = [
        (pl.LazyFrame({"carrier": ["a"]}), r"not LazyFrame; its collect\(\) makes a frame"),
        ({"carrier": ["a"]}, r"not dict; pyarrow\.table\(\) makes a table of columns, send\(\)"),
        ([1], r"record 0 of 1: a list of records has mappings, or dataclasses .*: not int"),
        (1, r"PyCapsule .*, not int$"),
    ]
    with flights.producer() as producer:
        for given, said in refused:
            with pytest.raises(InvalidRecord, match=said):
                producer.send_batch("f", given)
        producer.send_batch("f", pa.Table.from_pylist([row]))
        producer.send_batch("f", pl.LazyFrame(row).collect())
    assert flights.scan("f", columns=[*row]).to_arrow().to_pylist() == [row, row]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"carrier": ["a", None], "flight": [1, 2]}, r"column 'carrier' is null in row 1"),
        ({"flight": [1]}, "column 'carrier' is missing, and must not be null"),
        ({"carrier": ["a"], "flight": [1], "x": [1]}, "column 'x' is not in its schema"),
        (
            {"carrier": ["a"] * 3, "flight": [1, 1 << 31, 1 << 40]},
            r"'flight': a value in row 1 \(2147483648\) of type int64 is not valid as int32",
        ),
        ({"carrier": ["a"], "flight": ["1"]}, "column 'flight' is string, its type is int32"),
        ({"carrier": ["a"], "flight": [1.0]}, r"its type is int32\. .*astype\('Int32'\)"),
        (
            {"carrier": ["a"], "flight": [1], "at": pa.array([1], pa.timestamp("us"))},
            r"its type is timestamp\[us, tz=UTC\]\. .*tz_localize",
        ),
        (
            {"carrier": ["a"], "flight": [1], "at": pa.array([1 << 60], pa.timestamp("s", "UTC"))},
            r"'at': a value in row 0 of type timestamp\[s, tz=UTC\] is not valid as timestamp",
        ),
        (
            {"carrier": ["a"], "flight": [1], "tags": pa.array([["x"]], pa.list_view(pa.string()))},
            "column 'tags' is list_view<item: string>, its type is list",
        ),
        ({"carrier": ["a"], "flight": [1], "price": [10**8]}, r"row 0 \(100000000\) of type int64"),
        (
            {"carrier": ["a"] * 2, "flight": [1, 2], "place": [None, {"x": None, "y": 1}]},
            r"column 'place.x' is null in row 1",
        ),
        ({"carrier": ["a"], "flight": [1], "_timestamp": ["x"]}, "'_timestamp'"),
        (
            {
                "carrier": ["a"],
                "flight": [1],
                "_headers": pa.array(
                    [[{"key": "k", "value": b"v"}]], pa.list_view(HEADERS_TYPE.value_type)
                ),
            },
            "'_headers' is list_view",
        ),
        ({"carrier": ["a"], "flight": [1], "_deleted": [1]}, "'_deleted' is int64"),
        ({"carrier": ["a"], "flight": [1], "_partition": [3]}, "partition"),
    ],
)
def test_wrong_rows_are_refused_whole(
    flights: Store, columns: dict[str, list[Any]], reason: str
) -> None:
    """The column and the first wrong row are named, and nothing of the batch is sent."""
    with flights.producer() as producer:
        with pytest.raises(InvalidRecord, match=reason):
            producer.send_batch("f", pa.table(columns))
        with pytest.raises(InvalidRecord, match="use send_batch"):
            producer.send("f", b"value")
    assert flights.scan("f").record_count == 0


@pytest.mark.parametrize(
    ("schema", "key", "reason"),
    [
        (pa.schema([]), None, "at least one column"),
        (pa.schema([("a", pa.uint32())]), None, "cannot be uint32: use int64"),
        (pa.schema([("a", pa.timestamp("ns"))]), None, r"use timestamp\('us'\)"),
        (pa.schema([("a", pa.list_(pa.time64("us")))]), None, "a.element"),
        (pa.schema([("_offset", pa.int64())]), None, "every record has that already"),
        (pa.schema([("a", pa.int8()), ("A", pa.int8())]), None, "differs from 'a' only in case"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), None, "'a' occurs twice"),
        (pa.schema([("_TimeStamp", pa.int8())]), None, "every record has that already"),
        (pa.schema([("", pa.int8())]), None, "cannot be the name"),
        (pa.schema([("a\0b", pa.int8())]), None, "cannot be the name"),
        (pa.schema([("a", pa.struct([("x", pa.int8()), ("X", pa.int8())]))]), None, "only in case"),
        (pa.schema([("a", pa.struct([]))]), None, "without fields"),
        (pa.schema([(f"c{n}", pa.int8()) for n in range(10_000)]), None, "at most 4096 columns"),
        (pa.schema([("a", pa.decimal128(5, -2))]), None, "from 0 to the precision"),
        (pa.schema([("a", pa.decimal128(5, 7))]), None, "from 0 to the precision"),
        (pa.schema([("a", pa.float64())]), ["a"], "several forms of the same value"),
        (pa.schema([("a", pa.int8())]), ["b"], "key 'b' is not a column"),
        (pa.schema([("a", pa.int8())]), "a", "a list of columns' names"),
        (pa.schema([("a", pa.int8())]), ["a", "a"], "names a column twice"),
        ({"a": "int"}, None, "must be a pyarrow.Schema"),
    ],
)
def test_schemas_that_no_engine_could_read_are_refused(
    store: Store, schema: Any, key: Any, reason: str
) -> None:
    """With what to use instead."""
    with pytest.raises(InvalidSchema, match=reason):
        store.topics.create("t", schema=schema, key=key)
    assert store.topics.list() == []


def test_deep_nesting_is_refused_and_not_followed() -> None:
    """Before Python's own limit is reached."""
    kind: pa.DataType = pa.int8()
    for _ in range(40):
        kind = pa.list_(kind)
    with pytest.raises(InvalidSchema, match="more than 16 levels"):
        make_schema(pa.schema([("a", kind)]))


def test_a_schema_of_spark_is_told_how_to_be_one_of_arrow(store: Store) -> None:
    class StructType:
        """By name: here is no Spark."""

    with pytest.raises(InvalidSchema, match=r"not StructType; frame\.limit\(0\)\.toArrow\(\)"):
        store.topics.create("t", schema=StructType())


def test_settings_fit_the_schema(store: Store) -> None:
    """Which is in no batch of Kafka's, and may have no key."""
    schema = pa.schema([("a", pa.int8())])
    for config in ({"record.format": "kafka"}, {"cleanup.policy": "compact"}):
        with pytest.raises(InvalidConfig):
            store.topics.create("t", schema=schema, config=config)  # compacted by no key
    with pytest.raises(InvalidSchema, match="there is none"):
        store.topics.create("t", key=["a"])
    store.topics.create("t", schema=schema)
    store.topics.create("v", schema=schema, config={"record.format": "columns"})
    with pytest.raises(InvalidConfig, match="kafka has keys and values"):
        store.topics.alter("v", config={"record.format": "kafka"})
    with pytest.raises(InvalidConfig, match="has no key"):
        store.topics.alter("t", config={"cleanup.policy": "compact"})
    store.topics.alter("t", config={"compression.type": "gzip"})
    with pytest.raises(InvalidOption, match="unknown column 'key'"):
        store.scan("t", columns=["key"])


KEYS: list[tuple[list[pa.Array], list[str | None]]] = [
    ([pa.array(["ab", ""])], ["6162", ""]),
    ([pa.array([b"\x01"])], ["01"]),
    ([pa.array([1, -1], pa.int8())], ["010000000000000001", "01ffffffffffffffff"]),
    ([pa.array([True])], ["0101"]),
    ([pa.array([dt.date(1970, 1, 3)])], ["010000000000000002"]),
    ([pa.array([5], pa.timestamp("ms", "UTC"))], ["010000000000001388"]),
    (
        [pa.array(["a"]), pa.array([258], pa.int64())],
        ["010000000161" + "010000000000000102"],
    ),
    ([], [None]),
]


@pytest.mark.parametrize(("columns", "expected"), KEYS)
def test_keys_are_hashed_by_the_same_bytes_for_ever(
    columns: list[pa.Array], expected: list[str | None]
) -> None:
    """As docs/TYPED.md has it: whoever changes this sends keys to other partitions."""
    found = encode_keys(columns, len(expected)).to_pylist()
    assert [None if key is None else key.hex() for key in found] == expected


@in_either_format
def test_a_key_of_text_goes_where_kafka_sends_it(store: Store) -> None:
    """Where a record with these bytes as its key goes in another topic."""
    store.topics.create("typed", partitions=7, schema=pa.schema([("k", pa.string())]), key=["k"])
    store.topics.create("plain", partitions=7)
    keys = [f"key {n}" for n in range(200)]
    send(store, pa.table({"k": keys}), "typed")
    send(store, pa.table({"key": keys, "value": keys}), "plain")
    typed = store.scan("typed", columns=["k", "_partition"]).to_arrow().to_pylist()
    plain = store.scan("plain", columns=["key", "partition"]).to_arrow().to_pylist()
    assert {row["k"]: row["_partition"] for row in typed} == {
        row["key"].decode(): row["partition"] for row in plain
    }


@in_either_format
def test_small_segments_are_merged_and_time_is_found(flights: Store, clock: VirtualClock) -> None:
    """The rows stay the same, under any name."""
    for number in range(9):
        row = ROW | {"flight": number}
        table = pa.Table.from_pylist([row], schema=FLIGHTS)
        stamp = pa.array([1000 * number], pa.int64())
        send(flights, table.append_column("_timestamp", stamp), partition=0)
    before = flights.scan("f").to_arrow()
    snapshot = flights.snapshot(["f"])
    flights.maintenance.merge("f")
    (segment,) = flights.topics.segments("f")
    assert segment.identity is not None
    assert segment.identity.tag != NO_TAG
    assert flights.scan("f").to_arrow() == before
    assert snapshot.scan("f").to_arrow() == before
    found = flights.snapshot(["f"]).offset_for_time(TopicPartition("f", 0), 4500)
    assert found is not None
    assert (found.offset, found.timestamp) == (5, 5000)
    assert {finding.state for finding in flights.examine(with_contents=True)} <= {"ok", "note"}


@in_either_format
def test_a_consumer_gets_keys_and_json(flights: Store) -> None:
    """For whoever takes records one by one."""
    flights.topics.create("plain")
    send(flights, pa.Table.from_pylist([ROW], schema=FLIGHTS))
    gone = pa.table({"carrier": ["AA"], "flight": [7], "_deleted": [True]})
    send(flights, gone)
    send(flights, pa.table({"value": ["v"]}), "plain")
    with flights.consumer("f", "plain", auto_offset_reset="earliest", as_json=True) as consumer:
        first, second, third = consumer.poll()
    assert first.key == second.key == b'["AA",7]'
    assert json.loads(first.value or b"") == {
        "carrier": "AA",
        "flight": 7,
        "price": "1.25",
        "at": "2024-03-01T12:30:00.123456Z",
        "day": "2024-03-01",
        "tags": ["new", None],
        "seats": [["a", 1], ["b", None]],
        "place": {"x": 0.5, "y": -1},
        "value": "AP8=",
        "timestamp": True,
    }
    assert (second.value, third.value) == (None, b"v")


@in_either_format
def test_a_consumer_gets_rows_that_can_be_sent_again(flights: Store) -> None:
    """Values of Python's types, a deletion too; topics without a schema beside it keep bytes."""
    flights.topics.create("copy", schema=FLIGHTS, key=["carrier", "flight"])
    flights.topics.create("plain")
    nothing = dict.fromkeys(ROW) | {"carrier": "", "flight": 0}
    gone = nothing | {"_deleted": True}
    send(flights, [ROW, nothing], partition=0)
    send(flights, [{"carrier": "", "flight": 0, "_deleted": True}], partition=0)
    send(flights, pa.table({"value": ["v"]}), "plain")

    def rows(topic: str) -> list[Any]:
        with flights.consumer(topic, auto_offset_reset="earliest") as consumer:
            return [record.value for record in consumer.poll()]

    assert rows("f") == [ROW, nothing, gone]
    with flights.producer() as producer:
        for row in rows("f"):
            producer.send("copy", row)
    assert (rows("copy"), rows("plain")) == ([ROW, nothing, gone], [b"v"])


@in_either_format
def test_values_that_python_cannot_hold_stop_no_consumer(store: Store) -> None:
    """Arrow's times go further than Python's: they come as Arrow's, and can be sent again."""
    store.topics.create("t", schema=pa.schema([("at", pa.timestamp("us")), ("n", pa.int64())]))
    far = pa.array([0, 1 << 62], pa.int64()).view(pa.timestamp("us"))
    send(store, pa.table({"at": far, "n": [1, 2]}), "t")
    first, second = store.consumer("t", auto_offset_reset="earliest").poll()
    assert first.value == {"at": dt.datetime(1970, 1, 1), "n": 1}  # noqa: DTZ001 - a wall clock
    assert second.value == {"at": far[1], "n": 2}
    with store.producer() as producer:
        producer.send("t", second.value)
    assert store.scan("t").to_arrow().column("at").combine_chunks()[2] == far[1]


def test_a_python_time_is_rounded_down_to_its_columns_unit(store: Store) -> None:
    """Also before 1970, in lists, and of a day's last moment; columns of Arrow are not rounded."""
    kind = pa.timestamp("ms", tz="UTC")
    store.topics.create("t", schema=pa.schema([("at", kind), ("several", pa.list_(kind))]))
    berlin = dt.timezone(dt.timedelta(hours=1))
    late, early = (
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=berlin),
        dt.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    )
    with store.producer() as producer:
        producer.send("t", {"at": late, "several": [early, None]})
        producer.send_batch("t", [{"at": early, "several": None}, {"at": None, "several": [late]}])
        exact = pa.table({"at": pa.array([late], pa.timestamp("us", tz="UTC"))})
        with pytest.raises(InvalidRecord, match="would lose data"):
            producer.send_batch("t", exact)
    late, early = (time.replace(microsecond=999_000) for time in (late, early))
    assert store.scan("t").to_arrow().to_pylist() == [
        {"at": late, "several": [early, None]},
        {"at": early, "several": None},
        {"at": None, "several": [late]},
    ]


def test_a_snapshot_is_a_dataset(any_storage: Storage) -> None:
    """Engines read the files themselves; what is not a whole file stands beside them."""
    store = attach(any_storage, create=True)
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("t", pa.string())])
    store.topics.create("t", partitions=2, schema=schema)
    for first in (0, 1000):
        table = pa.table({"n": range(first, first + 1000), "t": ["x"] * 1000})
        send(store, table, "t", partition=first // 1000)
    with store.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_batch("t", pa.table({"n": [-1]}))
        producer.flush()
        snapshot = store.snapshot(["t"])
        producer.abort_transaction()
    found = snapshot.dataset("t")
    assert found.count_rows() == 2000
    some = found.to_table(columns=["n"], filter=pc.field("n") >= 1990)
    assert some.column("n").to_pylist() == list(range(1990, 2000))
    store.topics.delete_records({TopicPartition("t", 0): 400})
    trimmed = store.snapshot(["t"]).dataset("t")
    assert sorted(trimmed.to_table().column("n").to_pylist()) == list(range(400, 2000))
    store.topics.create("none", schema=schema)
    assert store.snapshot(["none"]).dataset("none").to_table().schema.names == ["n", "t"]


# -- any schema ----------------------------------------------------------------------------------

LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ms", tz="UTC"): st.datetimes().map(
        lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=dt.UTC)
    ),
}


def nested(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    lists = inner.map(lambda of: (pa.list_(of[0]), st.lists(st.none() | of[1], max_size=3)))
    maps = inner.map(
        lambda of: (
            pa.map_(pa.string(), of[0]),
            st.dictionaries(st.text("ab", max_size=2), st.none() | of[1], max_size=2).map(
                lambda found: list(found.items())
            ),
        )
    )
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda of: (
            pa.struct([(f"f{n}", kind) for n, (kind, _) in enumerate(of)]),
            st.fixed_dictionaries(
                {f"f{n}": st.none() | values for n, (_, values) in enumerate(of)}
            ),
        )
    )
    return lists | maps | structs


TYPES = st.recursive(st.sampled_from([*LEAVES.items()]), nested, max_leaves=4)


@settings(
    max_examples=share_of(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(st.lists(TYPES, min_size=1, max_size=4), st.data())
def test_any_schema(
    clock: VirtualClock,
    types: list[tuple[pa.DataType, st.SearchStrategy[Any]]],
    data: st.DataObject,
) -> None:
    """Whatever its columns are, rows come back, also when they were merged, and as a dataset."""
    schema = pa.schema([(f"c {n}", kind) for n, (kind, _) in enumerate(types)])
    row = st.fixed_dictionaries(
        {f"c {n}": st.none() | values for n, (_, values) in enumerate(types)}
    )
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    store = attach(HeapStorage(), create=True, clock=clock)
    record_format = data.draw(st.sampled_from(["parquet", "columns"]))
    store.topics.create("t", schema=schema, config={"record.format": record_format})
    for start in range(4):
        send(store, pa.Table.from_pylist(rows[start::4], schema=schema), "t")
    expected = [row for start in range(4) for row in rows[start::4]]
    assert store.scan("t").to_arrow().to_pylist() == expected
    assert store.snapshot(["t"]).dataset("t").to_table().to_pylist() == expected
    store.maintenance.merge("t")
    assert store.scan("t").to_arrow().to_pylist() == expected


@in_either_format
def test_of_each_key_the_newest_record_stays(store: Store, clock: VirtualClock) -> None:
    """Compaction by the key's columns; what deletes goes when its time has come."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("n", pa.int64())])
    store.topics.create("t", schema=schema, key=["b", "a"], config=config)
    rng = np.random.default_rng(2)
    newest: dict[tuple[int, str], dict[str, Any]] = {}
    for first in range(0, 400, 100):
        rows = []
        for n in range(first, first + 100):
            row: dict[str, Any] = {
                "a": int(rng.integers(5)),
                "b": "xy"[n % 2],
                "n": n,
                "_deleted": n % 7 == 0,
            }
            newest[row["a"], row["b"]] = row | ({"n": None} if row["_deleted"] else {})
            rows.append(row)
        send(store, pa.Table.from_pylist(rows), "t")
    clock.time_ms += 1000
    store.maintenance.compact("t")
    columns = ["a", "b", "n", "_deleted"]

    def found() -> dict[tuple[int, str], dict[str, Any]]:
        rows = store.scan("t", columns=columns).to_arrow().to_pylist()
        by_key = {(row["a"], row["b"]): row for row in rows}
        assert len(by_key) == len(rows)
        return by_key

    assert found() == newest
    assert any(row["_deleted"] for row in newest.values())
    dataset = store.snapshot(["t"]).dataset("t").to_table()
    assert sorted(row["n"] or 0 for row in dataset.to_pylist()) == sorted(
        row["n"] or 0 for row in newest.values()
    )
    clock.time_ms += 2 * 86_400_000
    send(store, pa.table({"a": [9], "b": ["z"], "n": [1000]}), "t")
    clock.time_ms += 1000
    store.maintenance.compact("t")
    kept = {key: row for key, row in newest.items() if not row["_deleted"]}
    assert {key: row for key, row in found().items() if key != (9, "z")} == kept


@in_either_format
def test_kafkas_format_brings_no_columns(flights: Store, tmp_path: Path) -> None:
    """What comes from a broker's folders are keys and values."""
    flights.topics.create("plain", partitions=3)
    send(flights, pa.table({"value": ["v"]}), "plain")
    flights.kafka.export_topic("plain", str(tmp_path / "folders"))
    for number in range(3):
        (tmp_path / "folders" / f"plain-{number}").rename(tmp_path / "folders" / f"f-{number}")
    with pytest.raises(InvalidOption, match="has a schema, and Kafka has"):
        flights.kafka.import_topic("f", [str(tmp_path / "folders")])


def test_filtered_pandas_frames_are_taken_without_their_index(flights: Store) -> None:
    """Such an index has no name, so it is not a column; one with a name is."""
    frame = pd.DataFrame({"carrier": ["a", "b", "c"], "flight": [1, 2, 3]})
    send(flights, frame[frame.flight > 1])
    send(flights, pa.Table.from_pandas(frame[frame.flight == 2]))
    send(flights, frame.set_index("carrier"))
    flights.topics.create("raw")
    send(flights, pd.DataFrame({"value": ["y"]}, index=[7]), "raw")
    assert flights.scan("f").record_count == 6
    assert flights.scan("raw", columns=["value"]).to_arrow().to_pylist() == [{"value": b"y"}]
    schema = pa.schema([("__index_level_0__", pa.int64()), ("a", pa.int64())])
    flights.topics.create("indexed", schema=schema)
    send(flights, pd.DataFrame({"a": [2]}, index=[7]), "indexed")
    assert flights.scan("indexed").to_arrow().to_pylist() == [{"__index_level_0__": 7, "a": 2}]


def test_text_that_is_none_is_refused(flights: Store) -> None:
    """Arrow takes any bytes for text; the first wrong row is named, in nested columns too."""
    good, bad = pa.array(["a"] * 10), pa.array([b"a"] * 7 + [b"\xff", b"\xff", b"a"])
    bad = bad.view(pa.string())
    numbers = pa.array([1] * 10, pa.int32())
    lists = pa.ListArray.from_arrays(pa.array([*range(11)], pa.int32()), bad)
    pairs = pa.StructArray.from_arrays([bad, pa.array([b""] * 10)], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([*range(11)], pa.int32()), pairs)
    for column, name in ((bad, "carrier"), (lists, "tags"), (headers, "_headers")):
        table = pa.table({"carrier": good, "flight": numbers} | {name: column})
        what = "a header" if name == "_headers" else "text"
        reason = f"column '{name}' has {what} in row 7 (that|whose key) is not UTF-8"
        with flights.producer() as producer, pytest.raises(InvalidRecord, match=reason):
            producer.send_batch("f", table)
        send(flights, table.slice(9))
    assert flights.scan("f").record_count == 3


def test_single_records_of_many_topics_look_up_no_schema(store: Store) -> None:
    """Of schemas 64 are kept decoded: by more topics in turn each record would decode its own."""
    names = [f"t{number}" for number in range(70)]
    for name in names:
        store.topics.create(name, schema=pa.schema([("id", pa.int64()), (name, pa.string())]))
    kept = (schemas._decode, schemas._record_columns)
    with store.producer() as producer:
        for name in names:
            producer.send(name, {"id": 1})
        before = [each.cache_info() for each in kept]
        for name in names:
            producer.send(name, {"id": 2, name: "x"})
        assert [each.cache_info() for each in kept] == before
    assert store.scan("t69").record_count == 2


@in_either_format
def test_records_are_sent_one_by_one(flights: Store, clock: VirtualClock) -> None:
    """As mappings, in order with batches; structs and maps in every form that they have."""
    seats = {"seats": {"a": 1, "b": None}}
    given = ROW | {"tags": ("new", None), "price": 1, "at": None}
    with flights.producer() as producer:
        producer.send("f", ROW, partition=2, timestamp_ms=5, headers=[("h", b"1")])
        producer.send_batch("f", pa.Table.from_pylist([ROW], schema=FLIGHTS), partition=2)
        producer.send("f", given | seats, partition=2)
        producer.send("f", {"carrier": "x", "flight": 1, "place": {"x": 1}}, partition=2)
        for number in range(600):
            producer.send("f", {"carrier": "a", "flight": number})
        producer.send("f", {"carrier": "a", "flight": 3, "_deleted": True})
    found = flights.scan("f", ending_offsets={0: 0, 1: 0, 2: 4}).to_arrow().to_pylist()
    assert found[:3] == [ROW, ROW, ROW | {"price": Decimal(1), "at": None}]
    assert found[3] == dict.fromkeys(ROW) | {
        "carrier": "x", "flight": 1, "place": {"x": 1.0, "y": None}
    }  # fmt: skip
    columns = ["_timestamp", "_headers", "_deleted"]
    ends = {0: 0, 1: 0, 2: 2}
    first, second = flights.scan("f", None, ends, columns=columns).to_arrow().to_pylist()
    assert first["_timestamp"] == dt.datetime.fromtimestamp(0.005, dt.UTC)
    assert first["_headers"] == [{"key": "h", "value": b"1"}]
    assert second["_timestamp"].timestamp() * 1000 == clock.now_ms()
    rows = flights.scan("f", columns=["carrier", "flight", "_deleted"]).to_arrow().to_pylist()
    sent = [row for row in rows if row["carrier"] == "a"]
    assert sorted(row["flight"] for row in sent if not row["_deleted"]) == [*range(600)]
    assert [row["flight"] for row in sent if row["_deleted"]] == [3]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"value", "a mapping of its columns to values, not bytes; .* use send_batch"),
        (None, "not NoneType"),
        ({"carrier": "a"}, "column 'flight' is missing"),
        ({"no": 1}, "column 'no' is not in its schema"),
        ({"flight": "1"}, "column 'flight' is string, its type is int32"),
        ({"flight": 1.5}, "column 'flight' is double, its type is int32"),
        ({"flight": 1 << 31}, r"'flight': a value in row 0 \(2147483648\)"),
        ({"flight": 1 << 70}, "column 'flight' cannot be 1180591620717411303424"),
        ({"carrier": None}, "column 'carrier' is null in row 0"),
        ({"carrier": object()}, "column 'carrier' cannot be"),
        ({"carrier": "\ud800"}, "column 'carrier' cannot be"),
        ({"at": dt.datetime(2024, 1, 1)}, "Say in which zone"),  # noqa: DTZ001 - a wall clock
        ({"tags": "x"}, "column 'tags' is not a list"),
        ({"tags": [1]}, "column 'tags.element' is int64"),
        ({"seats": 1}, "column 'seats' is not a mapping"),
        ({"seats": [("a",)]}, "column 'seats' is not a mapping"),
        ({"seats": {"a": "x"}}, "column 'seats.value' is string"),
        ({"place": 1}, "column 'place' is not a mapping"),
        ({"place": {"z": 1}}, "column 'place' has no field 'z'"),
        ({"place": {"y": 1}}, r"column 'place.x' is null in row 0"),
        ({"_timestamp": 1}, "times and headers are arguments of send"),
        ({"_deleted": 1}, "'_deleted' is int64"),
    ],
)
def test_a_record_is_checked_when_it_is_sent(flights: Store, row: Any, reason: str) -> None:
    """What was sent before goes on, and what is wrong is not among it."""
    good = {"carrier": "a", "flight": 1}
    with flights.producer() as producer:
        producer.send("f", good)
        wrong = good | row if isinstance(row, dict) and row.keys() != {"carrier"} else row
        wrong = {"flight": 1} | row if row == {"carrier": None} else wrong
        with pytest.raises(InvalidRecord, match=reason):
            producer.send("f", wrong)
        with pytest.raises(InvalidRecord, match="leave key out"):
            producer.send("f", good, key="a")
        producer.send("f", good)
    assert flights.scan("f").record_count == 2


@in_either_format
def test_a_record_that_is_too_large_is_refused_alone(store: Store) -> None:
    """What it takes in memory may be a little more than the limit."""
    config = {"max.message.bytes": 100}
    store.topics.create("t", schema=pa.schema([("a", pa.string())]), config=config)
    with store.producer() as producer:
        producer.send("t", {"a": "x" * 80})
        with pytest.raises(RecordTooLarge, match=r"larger than the 100 that max\.message\.bytes"):
            producer.send("t", {"a": "x" * 90})
    assert store.scan("t").record_count == 1


def test_floats_become_narrower_but_not_infinite(store: Store) -> None:
    kinds = {
        "a": pa.float32(),
        "b": pa.list_(pa.float32()),
        "c": pa.struct([("x", pa.int8()), ("y", pa.map_(pa.string(), pa.float32()))]),
    }
    store.topics.create("n", schema=pa.schema(list(kinds.items())))
    infinite = float("inf")
    send(store, pa.table({"a": [0.1, infinite, None], "b": [[1.5], [], [infinite, None]]}), "n")
    pairs = pa.map_(pa.string(), pa.float64())
    for name, value in {
        "a": pa.array([1.0, 1e300]),
        "b": pa.array([[1.0], [2.0, 1e300]]),
        "c": pa.StructArray.from_arrays(
            [pa.array([[("k", 1.0)], [("k", -1e300)]], pairs), pa.array([1, 2])], ["y", "x"]
        ),
    }.items():
        with pytest.raises(InvalidRecord, match=f"column '{name}': a value in row 1 .* too large"):
            send(store, pa.table({name: value}), "n")
    found = store.scan("n").to_arrow().column("a").to_pylist()
    assert found == [pytest.approx(0.1), infinite, None]


def test_structs_that_are_null_may_have_fields_that_are_not(store: Store) -> None:
    """As Spark makes them of literals, in maps, lists and structs; in slices, and with nulls."""
    inner = pa.field("x", pa.int32(), nullable=False)
    items = pa.StructArray.from_arrays(
        [pa.array([1, None] * 3, pa.int32())], fields=[inner], mask=pa.array([False, True] * 3)
    )
    offsets = pa.array([0, 2, 4, 6], pa.int32())
    mask = pa.array([False, True, False])
    maps = pa.MapArray.from_arrays(offsets, pa.array(["a", "b"] * 3), items, mask=mask)
    lists = pa.ListArray.from_arrays(offsets, items, mask=mask)
    deep = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(["a"] * 3), lists)
    batch = pa.record_batch({"m": maps, "l": lists, "d": deep})
    kind = pa.struct([("x", pa.int32())])
    columns = {"m": pa.map_(pa.string(), kind), "l": pa.list_(kind)}
    schema = pa.schema([*columns.items(), ("d", pa.map_(pa.string(), columns["l"]))])
    store.topics.create("nested", schema=schema)
    with store.producer() as producer:
        for part in (batch, batch.slice(1), batch.slice(2, 1)):
            producer.send_batch("nested", part)
    wanted = [*batch.to_pylist(), *batch.to_pylist()[1:], batch.to_pylist()[2]]
    assert store.scan("nested", columns=["m", "l", "d"]).to_arrow().to_pylist() == wanted


def test_whole_numbers_become_decimals_where_they_fit(store: Store) -> None:
    store.topics.create("n", schema=pa.schema([("a", pa.decimal128(5, 2))]))
    send(store, pa.table({"a": [1, -999, None]}), "n")
    found = store.scan("n").to_arrow().column("a").to_pylist()
    assert found == [Decimal("1.00"), Decimal("-999.00"), None]


def test_whole_numbers_of_more_than_64_bits_become_decimals(store: Store) -> None:
    store.topics.create("n", schema=pa.schema([("a", pa.decimal128(38, 2))]))
    given = [1 << 63, -(1 << 63), 10**36 - 1]
    with store.producer() as producer:
        for number in given:
            producer.send("n", {"a": number})
        for number in (10**36, 10**80):
            with pytest.raises(InvalidRecord, match="column 'a'"):
                producer.send("n", {"a": number})
    assert store.scan("n").to_arrow().column("a").to_pylist() == given


def test_decimals_become_numbers_where_these_say_the_same(store: Store) -> None:
    """As DuckDB makes them of sums and literals: exact, or refused with the row that is not."""
    kinds = {"i": pa.int64(), "d": pa.float64(), "f": pa.float32()}
    store.topics.create("n", schema=pa.schema(list(kinds.items())))
    large = [Decimal((1 << 63) - 1), None]
    d38, d2 = pa.decimal128(38, 0), pa.decimal128(2, 1)
    tenths = [Decimal("-0.7"), Decimal("0.1")]
    whole = {"i": pa.array(large, d38), "d": pa.array(tenths, d2), "f": pa.array(tenths, d2)}
    send(store, pa.table(whole), "n")
    send(store, [{"i": Decimal("2.0"), "d": Decimal("1.5"), "f": Decimal("1e-3")}], "n")
    found = store.scan("n").to_arrow()
    assert found.column("i").to_pylist() == [(1 << 63) - 1, None, 2]
    assert found.column("d").to_pylist() == [-0.7, 0.1, 1.5]
    assert found.column("f").to_pylist() == [*map(np.float32, (-0.7, 0.1, 0.001))]
    for name, wrong, kind in (
        ("i", "1.5", d2),
        ("i", str(1 << 63), d38),
        ("d", "12345678901234567890", d38),
        ("f", "123456789", d38),
    ):
        given = pa.array([Decimal(1), Decimal(wrong)], kind)
        with pytest.raises(InvalidRecord, match=f"column '{name}': a value in row 1 .*{wrong}"):
            send(store, pa.table({name: given}), "n")
    assert store.scan("n").record_count == 3


def test_decimals_in_lists_become_numbers_too(store: Store) -> None:
    """Nulls and empty lists stay, slices are of their own rows; one wrong item is told."""
    store.topics.create("n", schema=pa.schema([("l", pa.list_(pa.list_(pa.float64())))]))
    kind = pa.list_(pa.list_(pa.decimal128(38, 1)))
    tenth = Decimal("0.1")
    rows = [[[tenth] * 9], [[tenth, None], None, []], None, [], [[Decimal(1) / 2]]]
    send(store, pa.table({"l": pa.array(rows, kind).slice(1)}), "n")
    found = store.scan("n").to_arrow().column("l").to_pylist()
    assert found == [[[0.1, None], None, []], None, [], [[0.5]]]
    wrong = pa.array([[[tenth]], [[Decimal("1234567890123456789.1")]]], kind)
    with pytest.raises(InvalidRecord, match="column 'l': a value in row 1"):
        send(store, pa.table({"l": wrong}), "n")


@in_either_format
def test_times_that_python_does_not_know_are_read(store: Store) -> None:
    """They are shown as Arrow does, and a consumer does not stop at them."""
    at = pa.timestamp("us")
    kinds = [
        ("at", at),
        ("days", pa.list_(pa.date32())),
        ("map", pa.map_(at, pa.struct([("t", at)]))),
    ]
    store.topics.create("n", schema=pa.schema(kinds), key=["at"])
    far = 1 << 62
    table = pa.table(
        {
            "at": pa.array([0, far], at),
            "days": pa.array([[1], [(1 << 31) - 1]], pa.list_(pa.date32())),
            "map": pa.array([[], [(far, {"t": far})]], kinds[2][1]),
        }
    )
    send(store, table, "n")
    assert store.scan("n").to_arrow().column("at").cast(pa.int64()).to_pylist() == [0, far]
    rows = store.snapshot(["n"]).scan("n", columns=["key", "value"], as_json=True).to_arrow()
    first, second = rows.to_pylist()
    near = {"at": "1970-01-01T00:00:00", "days": ["1970-01-02"], "map": []}
    assert json.loads(first["value"]) == near
    assert json.loads(second["value"])["map"] == [[json.loads(second["key"])[0], {"t": ANY}]]
    assert str(far) in json.loads(second["value"])["at"]


def test_keys_in_milliseconds_end_where_microseconds_do(store: Store) -> None:
    store.topics.create("n", schema=pa.schema([("at", pa.timestamp("ms"))]), key=["at"])
    times = pa.array([0, 1 << 62], pa.timestamp("ms"))
    with pytest.raises(InvalidRecord, match="column 'at' has a time in row 1 that is too far"):
        send(store, pa.table({"at": times}), "n")
    send(store, pa.table({"at": times[:1]}), "n")
    assert store.scan("n").record_count == 1


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (TopicSchema("!"), "does not decode"),
        (TopicSchema(base64.b64encode(b"x" * 80).decode()), "does not decode"),
        (msgspec.structs.replace(make_schema(FLIGHTS), key=("no",)), "no column 'no', its key"),
    ],
)
def test_a_schema_that_is_none_is_a_damaged_log(
    store: Store, schema: TopicSchema, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "make_schema", lambda *_: schema)
    store.topics.create("n", schema=FLIGHTS)
    for use in (lambda: store.scan("n"), lambda: send(store, pa.table({"flight": [1]}), "n")):
        with pytest.raises(CorruptEntry, match=reason):
            use()


@in_either_format
def test_names_with_dots_are_columns_like_others(store: Store) -> None:
    """From a file above 4 MiB each column is read separately."""
    count = 300_000
    numbers = np.random.default_rng(1).integers(0, 1 << 60, (3, count))
    table = pa.table({"a.b": numbers[0], "a": numbers[1], "c.d.e": numbers[2]})
    store.topics.create("n", schema=table.schema, config={"compression.type": "none"})
    send(store, table, "n")
    for name in table.column_names:
        assert store.scan("n", columns=[name]).to_arrow().equals(table.select([name]))


def test_a_dataset_checks_the_pages(store: Store) -> None:
    store.topics.create(
        "n", schema=pa.schema([("a", pa.int64())]), config={"compression.type": "none"}
    )
    send(store, pa.table({"a": pa.array(np.arange(1000) * 7919)}), "n")
    (name,) = (n for n, _ in store.storage.list_all("topics") if n.endswith(".parquet"))
    data = bytearray(store.storage.get(name))
    data[2000] ^= 1
    assert store.snapshot(["n"]).dataset("n").to_table().num_rows == 1000
    store.storage.delete([name])
    store.storage.put(name, bytes(data))
    with pytest.raises(OSError, match=r"(?i)crc"):
        store.snapshot(["n"]).dataset("n").to_table()


def test_columns_share_files_until_they_are_merged(store: Store) -> None:
    """A small commit is one file, whatever partitions it writes to."""
    config = {"record.format": "columns", "cleanup.policy": "compact"}
    store.topics.create("f", partitions=3, schema=FLIGHTS, key=["carrier", "flight"], config=config)
    for _ in range(3):
        send(store, pa.table({"carrier": ["a"] * 20, "flight": pa.array(range(20), pa.int32())}))
    placed = store.topics.segments("f")
    assert {segment.partition for segment in placed} == {0, 1, 2}
    assert len({segment.paths.log for segment in placed}) == 3
    store.maintenance.merge("f")
    assert len({segment.paths.log for segment in store.topics.segments("f")}) == 3
    assert store.scan("f", filter=pc.field("flight") == 7).to_arrow().num_rows == 3


@pytest.mark.parametrize("schema", [None, pa.schema([("value", pa.string())])])
def test_parquet_has_the_levels_that_are_chosen(store: Store, schema: pa.Schema | None) -> None:
    """By the topic, or by the writer where the topic leaves it to that; others are refused."""
    rng = np.random.default_rng(6)
    words = [f"{word:x}" for word in rng.integers(1 << 60, size=500)]
    table = pa.table({"value": [" ".join(rng.choice(words, 40)) for _ in range(200)]})
    choices: list[tuple[CompressionType, tuple[str, str]]] = [
        ("gzip", ("1", "9")),
        ("zstd", ("1", "19")),
    ]
    for codec, levels in choices:
        for level in levels:
            config = {
                "record.format": "parquet",
                "compression.type": codec,
                f"compression.{codec}.level": level,
            }
            store.topics.create(codec + level, schema=schema, config=config)
            send(store, table, codec + level)
        left_to_writers = {"record.format": "parquet", "compression.type": "producer"}
        store.topics.create(codec, schema=schema, config=left_to_writers)
        with store.producer(compression_type=codec, compression_level=int(levels[1])) as producer:
            producer.send_batch(codec + levels[0], table)
            producer.send_batch(codec, table)
        (low, decided), (high,) = (store.topics.segments(codec + level) for level in levels)
        (chosen,) = store.topics.segments(codec)
        assert decided.size_bytes == pytest.approx(low.size_bytes, abs=32)
        assert chosen.size_bytes == pytest.approx(high.size_bytes, abs=32)
        assert high.size_bytes < low.size_bytes - 64
        for segment in (low, chosen, high):
            file = pa.BufferReader(store.storage.get(segment.paths.log))
            group = parquet.read_metadata(file).row_group(0)
            found = {group.column(number).compression for number in range(group.num_columns)}
            assert found == {codec.upper()}
    for setting, said in (
        ({"compression.gzip.level": 10}, "10 is not between 1 and 9"),
        ({"compression.zstd.level": 23}, "23 is not between -7 and 22"),
        ({"compression.zstd.level": "most"}, "an integer is needed, not 'most'"),
        ({"compression.snappy.level": 1}, "unknown topic config 'compression.snappy.level'"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            store.topics.create("t", schema=schema, config={"record.format": "parquet", **setting})
    with pytest.raises(InvalidConfig, match="snappy has no levels"):
        store.producer(compression_type="snappy", compression_level=1)


def test_parquet_is_compressed_by_zstd_if_nothing_else_is_said(store: Store) -> None:
    """As a setting of the topic: those that were made without it keep their codec."""
    store.topics.create("typed", schema=FLIGHTS)
    store.topics.create("bytes", config={"record.format": "parquet"})
    store.topics.create("chosen", schema=FLIGHTS, config={"compression.type": "lz4"})
    store.topics.create("columns", config={"record.format": "columns"})
    found = {name: store.logs.topic_spec(name).config for name in store.topics.list()}
    assert {name: TopicConfig.of(of).compression.kafka_name for name, of in found.items()} == {
        "typed": "zstd",
        "bytes": "zstd",
        "chosen": "lz4",
        "columns": "lz4",
    }
