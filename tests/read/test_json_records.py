"""Records of typed topics as JSON: the text of columns, against an encoder of single values."""

from __future__ import annotations

import datetime as dt
from itertools import combinations
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txnlog import TopicPartition
from txnlog.read import json_records
from txnlog.read.json_records import json_lists, json_objects, json_texts, most_json_bytes
from txnlog.read.plan import SCAN_SCHEMA
from txnlog.schema import TopicSchema
from txnlog.storage.base import Storage
from txnlog.store import attach

Values = st.SearchStrategy[Any]
NAMES = ("a", 'q"', "é\\", "a.b", "tab\t")
MOMENTS = st.datetimes()
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["".join(map(chr, range(0x21))), '\\"\\\\n', "\x7f\u2028"]
)


def _ms(moment: dt.datetime) -> dt.datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


LEAVES: list[tuple[pa.DataType, Values]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXTS),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("ms"), MOMENTS.map(_ms)),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda at: at.replace(tzinfo=dt.UTC))),
    (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    (pa.decimal128(5, 0), st.decimals(-99999, 99999, places=0)),
]
TYPED = st.sampled_from(LEAVES)


@st.composite
def nested(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, Values]:
    """A type, and values of it as Python has them, nulls among them."""
    choice = draw(st.integers(0, 5)) if depth else 0
    if choice < 3:
        kind, values = draw(TYPED)
    elif choice == 3:
        inner, values = draw(nested(depth - 1))
        kind, values = pa.list_(inner), st.lists(values, max_size=3)
    elif choice == 4:
        (key, keys), (item, items) = draw(TYPED), draw(nested(depth - 1))
        kind, values = pa.map_(key, item), st.lists(st.tuples(keys, items), max_size=3)
    else:
        fields = {name: draw(nested(depth - 1)) for name in NAMES[: draw(st.integers(1, 3))]}
        kind = pa.struct([(name, kind) for name, (kind, _) in fields.items()])
        values = st.tuples(*(values for _, values in fields.values())).map(
            lambda found: dict(zip(fields, found, strict=True))
        )
    return kind, st.none() | values


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    """A batch, which may begin within its buffers, and its rows."""
    columns = {name: draw(nested()) for name in NAMES[: draw(st.integers(1, 4))]}
    count = draw(st.integers(0, 6))
    rows = [{name: draw(values) for name, (_, values) in columns.items()} for _ in range(count)]
    schema = pa.schema([(name, kind) for name, (kind, _) in columns.items()])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    start = draw(st.integers(0, count))
    stop = draw(st.integers(start, count))
    return batch.slice(start, stop - start), rows[start:stop]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(made=batches())
def test_the_text_of_columns_is_that_of_each_value(
    made: tuple[pa.RecordBatch, list[dict[str, Any]]],
) -> None:
    """Byte for byte, of any types; and no text is longer than it was said to be at most."""
    batch, rows = made
    names, columns = batch.schema.names, batch.columns
    wanted = [msgspec.json.encode(row).decode() for row in rows]
    assert json_objects(names, columns, len(rows)).to_pylist() == wanted
    assert json_lists(columns, len(rows)).to_pylist() == [
        msgspec.json.encode([*row.values()]).decode() for row in rows
    ]
    for name, column in zip(names, columns, strict=True):
        texts = [msgspec.json.encode(row[name]) for row in rows]
        assert json_texts(column).to_pylist() == [text.decode() for text in texts]
        assert sum(map(len, texts)) <= most_json_bytes(column)


def test_what_lies_below_a_null_does_not_show() -> None:
    """Nulls of lists, maps and structs may have anything in the buffers below them."""
    mask = pa.array([False, True, False])
    inner = pa.array(['"', '"', None])
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    for column, wanted in (
        (pa.StructArray.from_arrays([inner], ["x"], mask=mask), ['{"x":"\\""}', '{"x":null}']),
        (pa.ListArray.from_arrays(offsets, inner, mask=mask), ['["\\""]', "[null]"]),
        (
            pa.MapArray.from_arrays(offsets, inner.fill_null("k"), inner, mask=mask),
            ['[["\\"","\\""]]', '[["k",null]]'],
        ),
    ):
        assert json_texts(column).to_pylist() == [wanted[0], "null", wanted[1]]


def test_times_that_rfc_3339_cannot_say_are_as_arrow_writes_them() -> None:
    """And only they: those beside them are not."""
    edges = [-62_135_596_800_000_000, 253_402_300_799_999_999]
    us = pa.array([edges[0] - 1, *edges, edges[1] + 1, None], pa.timestamp("us", "UTC"))
    assert json_texts(us).to_pylist() == [
        '"0000-12-31 23:59:59.999999Z"',
        '"0001-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59.999999Z"',
        '"10000-01-01 00:00:00.000000Z"',
        "null",
    ]
    ms = pa.array([edges[1] // 1000, edges[1] // 1000 + 1, -(1 << 62)], pa.timestamp("ms"))
    assert json_texts(ms).to_pylist() == [
        '"9999-12-31T23:59:59.999000"',
        '"10000-01-01 00:00:00.000"',
        '"<value out of range: -4611686018427387904>"',
    ]
    assert json_texts(pa.array([-800_000, 2_932_897], pa.date32())).to_pylist() == [
        '"-0221-09-04"',
        '"10000-01-01"',
    ]


@pytest.mark.parametrize("record_format", ["parquet", "columns"])
def test_large_batches_are_shown_in_slices(memory_storage: Storage, record_format: str) -> None:
    """Each with its own offsets, also where compaction has left gaps."""
    store = attach(memory_storage, create=True)
    config = {"record.format": record_format, "min.compaction.lag.ms": 0}
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    compacted = {**config, "cleanup.policy": "compact"}
    store.topics.create("t", schema=schema, key=["k"], config=compacted)
    with store.producer() as producer:
        keys = pa.array([n if n % 3 else 7 for n in range(200)], pa.int64())
        producer.send_batch("t", pa.table({"k": keys, "v": ["é" * 9] * 200}))
    store.maintenance.compact("t")
    columns = ["offset", "key", "value"]
    whole = store.snapshot("t").scan("t", columns=columns, as_json=True).to_arrow()
    offsets = store.scan("t", columns=["_offset", "k"]).to_arrow()
    assert whole["offset"].to_pylist() == offsets["_offset"].to_pylist() != [*range(len(whole))]
    assert whole["key"].to_pylist() == [b"[%d]" % k for k in offsets["k"].to_pylist()]
    with patch.object(json_records, "_MOST_BYTES", 1000):
        sliced = store.snapshot("t").scan("t", columns=columns, as_json=True)
        sizes = [batch.num_rows for batch in sliced.to_batches()]
        assert len(sizes) > 10
        assert sliced.to_arrow().combine_chunks() == whole.combine_chunks()
        consumer = store.consumer(as_json=True)
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        found = [(r.offset, r.key, r.value) for r in consumer.poll(timeout_ms=100)]
    assert found[:50] == [*zip(*(whole[name].to_pylist() for name in columns), strict=True)][:50]


@pytest.mark.few(3)
@pytest.mark.parametrize("record_format", ["parquet", "columns"])
@pytest.mark.parametrize("key", [(), ("topic",), ("partition", "value")])
def test_columns_with_names_of_others_show_in_the_value_alone(
    memory_storage: Storage, record_format: str, key: tuple[str, ...]
) -> None:
    """Whichever columns are asked for: alone, in pairs, and all; also filtered, and the newest."""
    store = attach(memory_storage, create=True)
    names = SCAN_SCHEMA.names
    schema = pa.schema([(name, pa.string()) for name in names])
    config = {"record.format": record_format}
    store.topics.create("t", schema=schema, key=key, config=config, partitions=2)
    rows = [{name: f"{name} {n}" for name in names} for n in range(11)]
    with store.producer() as producer:
        producer.send_batch("t", pa.Table.from_pylist(rows), partition=1)
    times = store.scan("t", columns=["_timestamp"]).to_arrow()["_timestamp"].to_pylist()
    keys = [[row[name] for name in key] for row in rows]
    texts = [of[0].encode() if len(of) == 1 else msgspec.json.encode(of) for of in keys]
    wanted = {
        "key": texts if key else [None] * 11,
        "value": [msgspec.json.encode(row) for row in rows],
        "topic": ["t"] * 11,
        "partition": [1] * 11,
        "offset": [*range(11)],
        "timestamp": times,
        "timestampType": [0] * 11,
        "headers": [[]] * 11,
    }
    for columns in (*combinations(names, 1), *combinations(names, 2), names):
        for options in ({}, {"filter": pc.field("partition") == 1}, {"latest": True}):
            if options.get("latest") and not key:
                continue
            scan = store.snapshot("t").scan("t", columns=[*columns], as_json=True, **options)
            assert scan.to_arrow().to_pydict() == {name: wanted[name] for name in columns}, (
                columns,
                options,
            )
    for as_json, values in ((False, rows), (True, wanted["value"])):
        with store.consumer(
            "t", auto_offset_reset="earliest", stop_at_end=True, as_json=as_json
        ) as consumer:
            found = [(one.topic, one.partition, one.offset, one.value) for one in consumer]
        assert found == [("t", 1, n, value) for n, value in enumerate(values)]


@pytest.mark.parametrize("record_format", ["parquet", "columns"])
def test_a_filter_makes_the_json_of_few_records_at_a_time(
    memory_storage: Storage, monkeypatch: pytest.MonkeyPatch, record_format: str
) -> None:
    """And of a row group only of those that are read."""
    store = attach(memory_storage, create=True)
    columns = pa.schema([("n", pa.int32())])
    store.topics.create("t", schema=columns, config={"record.format": record_format})
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"n": pa.array(range(1000), pa.int32())}))
    store.topics.alter("t", schema=columns.append(pa.field("new", pa.string())))
    monkeypatch.setattr(json_records, "_MOST_BYTES", 4000)
    made: list[int] = []
    original = json_records.json_values

    def count(records: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        made.append(records.num_rows)
        return original(records, schema)

    monkeypatch.setattr("txnlog.read.scan_reader.json_values", count)
    kept = pc.match_substring(pc.field("value"), "77,")
    scan = store.snapshot("t").scan("t", {0: 300}, {0: 700}, ["offset"], as_json=True, filter=kept)
    assert scan.to_arrow()["offset"].to_pylist() == [377, 477, 577, 677]
    assert max(made) < 100
    assert sum(made) == 400


def test_a_record_that_deletes_has_no_value(memory_storage: Storage) -> None:
    store = attach(memory_storage, create=True)
    store.topics.create("t", schema=pa.schema([("k", pa.string()), ("v", pa.int8())]), key=["k"])
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"k": ["a", "b"], "_deleted": [True, False]}))
    shown = store.snapshot("t").scan("t", columns=["key", "value"], as_json=True).to_arrow()
    assert shown.to_pylist() == [
        {"key": b"a", "value": None},
        {"key": b"b", "value": b'{"k":"b","v":null}'},
    ]


def test_times_of_a_day_are_strings() -> None:
    """JSON has no others; a null stays one."""
    column = pa.array([dt.time(12, 30, 0, 5), None], pa.time64("us"))
    assert json_texts(column).to_pylist() == ['"12:30:00.000005"', "null"]
