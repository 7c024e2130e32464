"""Reads of the past in Spark: by token and by time, natively and through the data source."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import txnlog
from txnlog.errors import InvalidOption, OffsetOutOfRange
from txnlog.names import TopicPartition
from txnlog.spark import read, register
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.stream_options import parse_stream
from txnlog.testing import VirtualClock

START_MS = 1_700_000_000_000
OLD = pa.schema([("id", pa.int32()), ("gone", pa.string())])
NEW = pa.schema([("id", pa.int64()), ("more", pa.string())])
READ = {"path": "/store", "subscribe": "t"}


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A typed topic and one of keys and values, with a token of them as they were at first."""
    folder = tmp_path_factory.mktemp("past")
    clock = VirtualClock(START_MS)
    store = txnlog.open(str(folder), create=True, clock=clock)
    store.topics.create("typed", schema=OLD)
    store.topics.create("plain")
    clock.sleep(10)
    with store.producer() as producer:
        producer.send_batch("typed", pa.table({"id": [1, 2, 3], "gone": ["x"] * 3}, schema=OLD))
        producer.send("plain", b"old")
    token = store.snapshot(["typed", "plain"]).token()
    clock.sleep(10)
    store.topics.alter("typed", schema=NEW)
    with store.producer() as producer:
        producer.send_batch("typed", pa.table({"id": [2**40], "more": ["y"]}, schema=NEW))
        producer.send("plain", b"new")
    store.topics.delete_records({TopicPartition("typed", 0): 1})
    return folder, token


@pytest.mark.more
def test_the_past_is_read_in_every_way(spark: SparkSession, past: tuple[Path, str]) -> None:
    """A trim cut through the file: Spark reads the rest by row numbers, under the old schema."""
    folder, token = past
    register(spark)
    moment = dt.datetime.fromtimestamp(START_MS / 1000 + 15, tz=dt.UTC)
    left: dict[str, dict[int, int]] = {"typed": {0: 1}}
    for native in (True, False):
        for at in (token, moment, START_MS + 15_000):
            frame = read(spark, str(folder), "typed", at=at, native=native, starting_offsets=left)
            assert frame.columns == ["id", "gone"]
            assert sorted(map(tuple, frame.collect())) == [(2, "x"), (3, "x")]
    options = {"path": str(folder), "subscribe": "plain"}
    for option in ({"atToken": token}, {"atTimestamp": "2023-11-14T23:13:35+01:00"}):
        frame = spark.read.format("txnlog").options(**options, **option).load()
        assert [bytes(row.value) for row in frame.collect()] == [b"old"]
    with pytest.raises(OffsetOutOfRange, match="typed:0 from offset 0 to 0"):
        read(spark, str(folder), "typed", at=token)
    lossy = read(spark, str(folder), "typed", at=token, options={"failOnDataLoss": False})
    assert lossy.count() == 2
    with pytest.raises(PySparkException, match="was made at"):
        spark.read.format("txnlog").options(**options, atTimestamp="5").load().collect()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"atTimestamp": "yesterday"}, "with a zone such as"),
        ({"atTimestamp": "2025-01-01T00:00:00"}, "with a zone such as"),
        ({"atTimestamp": "5", "atToken": "x"}, "contradict"),
        ({"atTimestamp": "5", "group.id": "g"}, "follows no group"),
        ({"atToken": "x", "isolation.level": "snapshot"}, "leave isolation.level out"),
    ],
)
def test_options_of_the_past_that_make_no_sense(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        parse_read({**READ, **given})


def test_the_past_is_for_batches_with_named_topics() -> None:
    with pytest.raises(InvalidOption, match="names its topics"):
        parse_read({"path": "/store", "subscribePattern": "t.*", "atTimestamp": "5"})
    with pytest.raises(InvalidOption, match="atToken"):
        parse_stream({**READ, "atToken": "x"})
    assert parse_read({**READ, "atTimestamp": "2025-01-01T00:00:00Z"}).at == 1_735_689_600_000
