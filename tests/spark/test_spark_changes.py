"""Feeds of changes in Spark: as a batch and as a stream, they are those of ``Store.changes``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.stream_helpers import reads_streams
from tests.support.tiers import more
from txnlog import Store
from txnlog.errors import InvalidOption
from txnlog.spark import read

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.int8()))])


def put(store: Store, rng: random.Random) -> None:
    """Some rows of few keys, a quarter of which delete."""
    rows: list[dict[str, Any]] = []
    for number in range(rng.randrange(1, 30)):
        gone = rng.random() < 0.25
        rows.append(
            {
                "id": rng.randrange(12),
                "name": None if gone else f"n{number}",
                "tags": None if gone else [number],
                "_deleted": gone,
            }
        )
    with store.producer() as producer:
        schema = PEOPLE.append(pa.field("_deleted", pa.bool_()))
        producer.send_batch("people", pa.Table.from_pylist(rows, schema=schema))
        for row in rows:
            value = None if row["_deleted"] else str(row["name"]).encode()
            producer.send("plain", value, b"%d" % row["id"])


@pytest.fixture
def topics(store: Store) -> Store:
    store.topics.create("people", partitions=2, schema=PEOPLE, key=["id"])
    store.topics.create("plain", partitions=2)
    return store


def ordered(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """By the record that made them: the two of an update are one after the other."""
    found = [tuple(row.values()) for row in rows]
    return sorted(found, key=lambda row: (row[1], row[2], row[0] == "update_after"))


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    return [
        {n: bytes(v) if isinstance(v, bytearray) else v for n, v in row.asDict().items()}
        for row in frame.collect()
    ]


COLUMNS = {
    "people": ["_change", "_partition", "_offset", "id", "name", "tags"],
    "plain": ["_change", "partition", "offset", "key", "value"],
}


@pytest.mark.parametrize("topic", [*more(["people"]), "plain"])
def test_a_batch_is_what_the_store_says(spark: SparkSession, topics: Store, topic: str) -> None:
    rng = random.Random(3)
    tokens = []
    for _ in range(3):
        put(topics, rng)
        tokens.append(topics.snapshot(["people", "plain"]).token())
    columns = COLUMNS[topic]
    spans = (("earliest", None), (tokens[0], tokens[1]), (tokens[1], tokens[2]))
    for since, until in spans:
        for options in ({}, {"minPartitions": 3}):
            frame = read(
                spark,
                topics,
                topic,
                columns=columns,
                since=since,
                at=until,
                pre_images=True,
                options=options,
            )
            feed = topics.changes(topic, since, until, columns, pre_images=True)
            expected = ordered(feed.to_arrow().to_pylist())
            assert ordered(collected(frame)) == expected
    assert frame.rdd.getNumPartitions() == 4
    every = read(spark, topics, topic, since=tokens[0], pre_images=True)
    whole = {"subscribe": topic, "startingOffsets": "earliest", "preImages": "true"}
    loaded = spark.read.format("txnlog").options(path=topics.url, **whole).load()
    assert loaded.count() == topics.changes(topic, "earliest", pre_images=True).to_arrow().num_rows
    assert every.columns == [*topics.changes(topic, tokens[0], pre_images=True).columns]
    before = every.count()
    put(topics, rng)
    assert every.count() == before
    empty = topics.snapshot(["people", "plain"]).token()
    assert read(spark, topics, topic, since=empty, pre_images=True).count() == 0


@reads_streams
@pytest.mark.parametrize("topic", ["people", *more(["plain"])])
def test_a_stream_makes_the_rows_of_its_end(
    spark: SparkSession, topics: Store, tmp_path: Path, topic: str
) -> None:
    """Batch after batch, in queries that go on, each row before is the one that was there."""
    rng = random.Random(5)
    key = "id" if topic == "people" else "key"
    state: dict[Any, Any] = {}
    kinds: set[str] = set()

    def apply(batch: DataFrame, _: int) -> None:
        names = COLUMNS[topic]
        rows = [dict(zip(names, row, strict=True)) for row in ordered(collected(batch))]
        for row in rows:
            value = row["name" if topic == "people" else "value"]
            kinds.add(row["_change"])
            if row["_change"] in ("update_before", "delete"):
                assert state.pop(row[key]) == value
            else:
                assert row[key] not in state
                state[row[key]] = value

    for turn in range(3):
        put(topics, rng)
        if turn == 1:
            topics.topics.alter(topic, config={"cleanup.policy": "compact"})
            topics.maintenance.compact(topic)
        stream = (
            spark.readStream.format("txnlog")
            .options(path=topics.url, subscribe=topic, startingOffsets="earliest")
            .options(preImages="true", columns=",".join(COLUMNS[topic]), maxOffsetsPerTrigger="7")
        )
        query = (
            stream.load()
            .writeStream.foreachBatch(apply)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        shown = topics.snapshot(topic).scan(topic, latest=True).to_arrow().to_pylist()
        value = "name" if topic == "people" else "value"
        assert state == {row[key]: row[value] for row in shown}
    assert kinds == {"insert", "update_before", "update_after", "delete"}


@reads_streams
def test_a_stream_ends_where_keys_were_purged(
    spark: SparkSession, topics: Store, tmp_path: Path
) -> None:
    """And goes on if it is told to, from then on as before."""
    told: list[tuple[str, bytes]] = []

    def run(keeps: bool) -> None:
        stream = (
            spark.readStream.format("txnlog")
            .options(path=topics.url, subscribe="plain", startingOffsets="earliest")
            .options(preImages="true", columns="_change,key", failOnDataLoss=str(keeps).lower())
        )
        query = (
            stream.load()
            .writeStream.foreachBatch(lambda batch, _: told.extend(map(tuple, batch.collect())))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def send(key: str, value: str | None) -> None:
        with topics.producer() as producer:
            producer.send("plain", value, key)

    send("ann", "1")
    send("bob", "1")
    run(keeps=True)
    send("ann", None)
    topics.maintenance.purge("plain", [{"key": "ann"}])
    with pytest.raises(StreamingQueryException, match="keys were purged from topic 'plain'"):
        run(keeps=True)
    run(keeps=False)
    send("bob", "2")
    run(keeps=True)
    changed = [("update_after", b"bob"), ("update_before", b"bob")]
    assert sorted(told) == [("insert", b"ann"), ("insert", b"bob"), *changed]


def test_what_it_refuses(spark: SparkSession, topics: Store) -> None:
    since = topics.snapshot(["people", "plain"]).token()
    topics.topics.create("keyless", schema=PEOPLE)
    for arguments, why in (
        ({"pre_images": True}, "give sinceToken, sinceTimestamp, or startingOffsets=earliest"),
        ({"since": since}, "give preImages=true"),
        (
            {"pre_images": True, "since": since, "latest": True},
            "leave latest, native and values out",
        ),
        ({"pre_images": True, "since": since, "starting_offsets": "earliest"}, "offsets out"),
        ({"pre_images": True, "since": since, "options": {"maxRecords": 3}}, "maxRecords out"),
        ({"pre_images": True, "since": since, "options": {"onCorrupt": "skip"}}, "onCorrupt out"),
        ({"pre_images": True, "since": since, "columns": "_deleted"}, "no|unknown column"),
        ({"options": {"preImages": "true"}}, "has since and pre_images for it"),
    ):
        with pytest.raises(InvalidOption, match=why):
            read(spark, topics, "people", **arguments)
    with pytest.raises(InvalidOption, match="is of one topic"):
        read(spark, topics, "people", "plain", since=since, pre_images=True)
    later = topics.snapshot("keyless").token()
    with pytest.raises(InvalidOption, match="the schema of keyless has no key"):
        read(spark, topics, "keyless", since=later, pre_images=True)
