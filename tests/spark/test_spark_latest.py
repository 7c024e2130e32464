"""``latest=True``: one row for each key, which is its newest record."""

from __future__ import annotations

import random
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.admin.compacted_topics import compact
from tests.support.read.keyed_worlds import World, newest, tuples
from tests.support.tiers import more
from txnlog import Store
from txnlog.errors import InvalidOption
from txnlog.spark import read, transaction
from txnlog.storage.base import Storage


def newest_of(store: Store, topic: str) -> dict[bytes, bytes]:
    """By key, from all records: per partition the last one, of these the one with most time."""
    columns = ["key", "value", "partition", "offset", "timestamp"]
    last: dict[tuple[bytes, int], dict[str, Any]] = {}
    for row in store.scan(topic, columns=columns).to_arrow().to_pylist():
        if row["key"] is not None:
            last[row["key"], row["partition"]] = row
    found: dict[bytes, dict[str, Any]] = {}
    for row in sorted(last.values(), key=lambda row: (row["timestamp"], row["partition"])):
        found[row["key"]] = row
    return {key: row["value"] for key, row in found.items() if row["value"] is not None}


def by_key(frame: DataFrame) -> dict[bytes, bytes]:
    rows = frame.collect()
    found = {bytes(row["key"]): bytes(row["value"]) for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


@pytest.mark.parametrize("record_format", ["parquet", *more(["columns"])])
def test_newest_records_of_plain_topics(
    spark: SparkSession, store: Store, record_format: str
) -> None:
    """Against plain Python: times out of order, keys in several partitions, tombstones, no keys."""
    store.topics.create("t", partitions=2, config={"record.format": record_format})
    random.seed(7)
    times = random.sample(range(1_700_000_000_000, 1_700_000_100_000), 400)
    with store.producer() as producer:
        for number, timestamp_ms in enumerate(times):
            if number == 200:
                producer.flush()
                store.topics.alter("t", partitions=4)
            key = random.choice([None, *(b"k%d" % n for n in range(30))])
            value = None if random.random() < 0.3 else b"%d" % number
            partition = random.choice([None, 0])
            producer.send("t", value, key, partition=partition, timestamp_ms=timestamp_ms)
    expected = newest_of(store, "t")
    assert 5 < len(expected) < 30
    for columns in (None, "key,value", ["value", "key"]):
        frame = read(spark, store, "t", columns=columns, latest=True)
        assert by_key(frame) == expected
        plain = read(spark, store, "t", columns=columns)
        assert [(f.name, f.dataType) for f in frame.schema] == [
            (f.name, f.dataType) for f in plain.schema
        ]


def test_newest_records_of_typed_topics(spark: SparkSession, store: Store) -> None:
    """A key of two columns, names that must be quoted, maps, and rows that delete."""
    schema = pa.schema(
        [("a.b", pa.string()), ("`n", pa.int64()), ("m", pa.map_(pa.string(), pa.int32()))]
    )
    store.topics.create("t", partitions=3, schema=schema, key=["a.b", "`n"])

    def send(number: int, *, deleted: bool = False) -> None:
        row = {"a.b": ["x", "y"], "`n": [1, 2], "m": [[("v", number)]] * 2}
        with store.producer() as producer:
            producer.send_batch("t", pa.table(row, schema=schema))
            if deleted:
                gone = pa.table({"a.b": ["y"], "`n": [2], "_deleted": [True]})
                producer.send_batch("t", gone)

    send(1)
    token = store.snapshot(["t"]).token()
    send(2, deleted=True)
    for native in (True, False):
        found = read(spark, store, "t", latest=True, native=native).collect()
        assert [row.asDict() for row in found] == [{"a.b": "x", "`n": 1, "m": {"v": 2}}]
        then = read(spark, store, "t", columns=["m"], at=token, latest=True, native=native)
        assert [row["m"] for row in then.collect()] == [{"v": 1}] * 2


def test_a_join_with_newest_records_has_one_row_for_each_order(
    spark: SparkSession, store: Store
) -> None:
    """As docs/SPARK.md looks things up: each run finds the newest customer, and consumes none."""
    for topic in ("orders", "customers", "paid"):
        store.topics.create(topic, partitions=2)

    def run() -> list[bytes]:
        with transaction(spark, store, transactional_id="etl", group_id="etl") as txn:
            orders = txn.read("orders")
            customers = txn.read_whole("customers", latest=True)
            named = orders.join(customers.selectExpr("key", "value AS customer"), "key")
            txn.write(named.selectExpr("key", "concat(value, customer) AS value"), topic="paid")
        return sorted(store.scan("paid").to_arrow()["value"].to_pylist())

    with store.producer() as producer:
        for value in (b"old", b"new"):
            producer.send("customers", value, b"c")
        producer.send("orders", b"1 of ", b"c")
    assert run() == [b"1 of new"]
    with store.producer() as producer:
        producer.send("customers", b"newest", b"c")
        producer.send("orders", b"2 of ", b"c")
    assert run() == [b"1 of new", b"2 of newest"]


def test_a_topic_without_a_key_has_no_newest_records(spark: SparkSession, store: Store) -> None:
    """Every row would be left out."""
    store.topics.create("t", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidOption, match="has no key"):
        read(spark, store, "t", latest=True)


NONE = {"_FEW_RECORDS": 0, "_MOST_LOOKED_UP": 0}
WAYS: dict[str, dict[str, int]] = {
    "aggregated": {"_FEW_RECORDS": 1 << 16, "_MOST_LOOKED_UP": 0},
    "marked": NONE,
    "marked, as Spark joins": {**NONE, "_MOST_MARKED": 0},
    "looked up": {"_FEW_RECORDS": 0, "_MOST_LOOKED_UP": 1 << 19},
}
"""The limits by which each way of reading is chosen, whatever there is to read."""


@pytest.mark.parametrize("is_typed", [True, *more([False])])
@pytest.mark.parametrize("stray_rate", [0.4, *more([0.01])])
@pytest.mark.parametrize("seed", [1, *more(range(2, 8))])
def test_newest_records_through_a_topics_life(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    stray_rate: float,
    is_typed: bool,
) -> None:
    """Each way of reading gives what plain Python keeps of all that was sent."""
    monkeypatch.setattr("txnlog.admin.compaction.compact.DEFAULT_GROUP_BYTES", 1)
    world = World(random.Random(seed), is_typed, stray_rate)
    for number in range(2):
        for _ in range(10):
            world.step()
        url = copied(world.store.storage, tmp_path / str(number))
        expected = sorted(world.rows(newest(world.visible)))
        for way in WAYS:
            choose(monkeypatch, way)
            frame = read(spark, url, "t", columns=world.columns, latest=True)
            assert sorted(tuples(frame.toArrow())) == expected, way


@pytest.mark.parametrize("way", ["looked up", *more(way for way in WAYS if way != "looked up")])
def test_keys_of_several_topics_are_not_mixed(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Both are compacted; then keys come again, before, then and later, in any two partitions.

    What is last in a key's own partition replaces what was compacted there, even if it is older and
    the newest one of those that came again is elsewhere, and older, too.
    """
    choose(monkeypatch, way)
    places = [(p, time_ms) for p in range(3) for time_ms in (4, 5, 6)]
    expected = set()
    for topic in ("a", "b"):
        store.topics.create(topic, partitions=3, config={"cleanup.policy": "compact"})
        with store.producer() as producer:
            for number in range(3 * len(places)):
                producer.send(topic, b"first of " + topic.encode(), b"%d" % number, timestamp_ms=5)
        compact(store, topic)
        random.seed(topic)
        with store.producer() as producer:
            for number in range(2 * len(places)):
                for partition, time_ms in random.sample(places, 2):
                    value = random.choice([None, b"later in %d" % partition])
                    key = b"%d" % number
                    producer.send(topic, value, key, partition=partition, timestamp_ms=time_ms)
        expected |= {(topic, *pair) for pair in newest_of(store, topic).items()}
    rows = read(spark, store, "a", "b", latest=True).collect()
    assert {(row["topic"], bytes(row["key"]), bytes(row["value"])) for row in rows} == expected
    assert len(rows) == len(expected)


def test_rows_are_not_shuffled(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor read for columns that nobody asks for; few are aggregated by one task."""
    names = ["id", "text", "other"]
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("other", pa.string())])
    store.topics.create("t", partitions=2, schema=schema, key=["id"])
    with store.producer() as producer:
        rows = {"id": [*range(10)] * 2, "text": ["t"] * 20, "other": ["o"] * 20}
        producer.send_batch("t", pa.table(rows, schema=schema))

    def plan(way: str, columns: list[str]) -> list[str]:
        """The operators, each with what goes in."""
        choose(monkeypatch, way)
        frame = read(spark, store, "t", columns=columns, latest=True, native=True)
        with redirect_stdout(StringIO()) as shown:
            frame.explain("formatted")
        return re.findall(r"^\(\d+\) (?:.+\n)+", shown.getvalue(), re.MULTILINE)

    def shuffled(operators: list[str]) -> list[str]:
        return [one for one in operators if "hashpartitioning" in one]

    marked = shuffled(plan("marked", names))
    assert len(marked) == 3
    assert not [one for one in marked if "text" in one]
    assert not [one for one in plan("marked", ["id", "text"]) if "other" in one]
    assert [one for one in plan("aggregated", names) if "text" in one]
    assert shuffled(plan("aggregated", names)) == []


def choose(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Read in this way."""
    for name, limit in WAYS[way].items():
        monkeypatch.setattr(f"txnlog.spark.batch.latest.{name}", limit)


def copied(storage: Storage, folder: Path) -> str:
    """The objects of a store on a disk, where Spark reaches them."""
    for name, _ in [*storage.list_all("")]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.get(name))
    return str(folder)
