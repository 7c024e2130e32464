"""Bridges to a broker of Kafka's own, with processes that are killed while they copy."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import confluent_kafka
import pytest

import txnlog
from tests.support.checkout import ROOT
from txnlog.bridge import KafkaSink, KafkaSource
from txnlog.bridge.client import Cluster

PARTITIONS = 3
KILLS = 5
CHILD = """
import sys, txnlog
from txnlog.bridge import KafkaSink, KafkaSource
way, root, servers = sys.argv[1:]
kind = KafkaSource if way == "in" else KafkaSink
kind(txnlog.open(root), servers, ["t"], commit_interval_ms=150).run()
"""
Row = tuple[int, bytes, bytes]


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A broker, from Maven Central."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    with import_module("beside_kafka").broker(tmp_path) as (address, _):
        admin = Cluster(address).admin()
        new = confluent_kafka.admin.NewTopic("t", PARTITIONS, 1)  # type: ignore[attr-defined]
        admin.create_topics([new])["t"].result(30)
        yield address


def rows_in_kafka(servers: str) -> list[Row]:
    """All committed records."""
    consumer, left, found = Cluster(servers).consumer("judge"), set(range(PARTITIONS)), []
    begin = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition("t", number, begin) for number in left])
    while left:
        for message in consumer.consume(10_000, 0.3):
            if message.error() is None:
                found.append((message.partition(), message.key(), message.value()))
            else:
                assert message.error().name() == "_PARTITION_EOF"
                left.discard(message.partition())
    consumer.close()
    return found


def rows_in_store(store: txnlog.Store) -> list[Row]:
    names = ["partition", "key", "value"]
    table = store.scan("t", columns=names).to_arrow()
    return [*zip(*(table[name].to_pylist() for name in names), strict=True)]


def kill_while_copying(
    way: str, root: str, servers: str, write: Callable[[list[Row], bool], None]
) -> list[Row]:
    """Processes that copy are killed one after the other; returns what was committed meanwhile."""
    chance, sent = random.Random(1), list[Row]()
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", CHILD, way, root, servers])
        until_s = time.monotonic() + 3.5 + 2 * chance.random()
        while time.monotonic() < until_s:
            commits = chance.random() < 0.8
            first = len(sent)
            rows = [(n % PARTITIONS, b"k%d" % n, b"v%d" % n) for n in range(first, first + 100)]
            write(rows, commits)
            sent += rows if commits else []
        child.kill()
        child.wait()
    return sent


def same(found: list[Row], sent: list[Row]) -> bool:
    """Each record once, those of a partition in their order."""
    return all(
        [row for row in found if row[0] == number] == [row for row in sent if row[0] == number]
        for number in range(PARTITIONS)
    )


def test_what_comes_in_comes_once(servers: str, tmp_path: Path) -> None:
    store = txnlog.open(str(tmp_path / "store"), create=True)
    producer = Cluster(servers).producer("writer")
    producer.init_transactions(30)

    def write(rows: list[Row], commits: bool) -> None:
        producer.begin_transaction()
        for partition, key, value in rows:
            producer.produce("t", value, key, partition)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)

    sent = kill_while_copying("in", store.url, servers, write)
    before = store.topics.describe("t").entries
    KafkaSource(store, servers, ["t"]).run(until_end=True)
    assert before > 2  # some of those that were killed had committed
    assert same(rows_in_store(store), sent)


def test_what_goes_out_goes_once(servers: str, tmp_path: Path) -> None:
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=PARTITIONS)
    producer = store.producer(transactional_id="writer")
    producer.init_transactions()

    def write(rows: list[Row], commits: bool) -> None:
        producer.begin_transaction()
        for partition, key, value in rows:
            producer.send("t", value, key, partition=partition)
        (producer.commit_transaction if commits else producer.abort_transaction)()

    KafkaSink(store, servers, ["t"]).run(until_end=True)  # the broker makes its own topics
    sent = kill_while_copying("out", store.url, servers, write)
    assert rows_in_kafka(servers)  # some of those that were killed had committed
    KafkaSink(store, servers, ["t"]).run(until_end=True)
    assert same(rows_in_kafka(servers), sent)
