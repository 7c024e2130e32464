"""Bridges to a broker of Kafka's own, with processes that are killed while they copy."""

from __future__ import annotations

import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

import txnlog
from tests.support.checkout import ROOT
from txnlog import TopicPartition
from txnlog.bridge import KafkaSink, KafkaSource, translate_offsets
from txnlog.bridge.client import Cluster
from txnlog.errors import BridgeFailed, GroupNotEmpty

PARTITIONS = 3
KILLS = 5
LONG_S = 90
"""Longer than what takes 20 seconds takes beside much else."""
CHILD = """
import sys, txnlog
from txnlog.bridge import KafkaSink, KafkaSource
way, root, servers = sys.argv[1:]
kind = KafkaSource if way == "in" else KafkaSink
bridge = kind(txnlog.open(root), servers, ["t"], commit_interval_ms=150)
bridge.run(report=lambda _: print(flush=True))
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
    way: str,
    root: str,
    servers: str,
    write: Callable[[list[Row], bool], None],
) -> list[Row]:
    """Processes that copy are killed one after the other; returns what was committed meanwhile.

    Every other one has copied something by then, however busy the machine is.
    """
    chance, sent = random.Random(1), list[Row]()

    def send() -> None:
        commits = not sent or chance.random() < 0.8
        first = len(sent)
        rows = [(n % PARTITIONS, b"k%d" % n, b"v%d" % n) for n in range(first, first + 100)]
        write(rows, commits)
        sent.extend(rows if commits else [])

    for number in range(KILLS):
        send()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, way, root, servers], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        try:
            if number % 2 == 0:
                assert select.select([child.stdout], [], [], LONG_S)[0], "it has copied nothing"
            until_s = time.monotonic() + (3.5 if number % 2 else 0) + 2 * chance.random()
            while time.monotonic() < until_s:
                send()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
    return sent


def same(found: list[Row], sent: list[Row]) -> bool:
    """Each record once, those of a partition in their order."""
    return all(
        [row for row in found if row[0] == number] == [row for row in sent if row[0] == number]
        for number in range(PARTITIONS)
    )


def test_what_comes_in_comes_once(servers: str, tmp_path: Path) -> None:
    store = txnlog.open(str(tmp_path / "store"), create=True)
    producer = Cluster(servers).producer("writer", 60_000)
    producer.init_transactions(30)

    def write(rows: list[Row], commits: bool) -> None:
        producer.begin_transaction()
        for partition, key, value in rows:
            producer.produce("t", value, key, partition)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)

    sent = kill_while_copying("in", store.url, servers, write)
    assert rows_in_store(store)  # some of those that were killed had committed
    KafkaSource(store, servers, ["t"]).run(until_end=True)
    assert same(rows_in_store(store), sent)


def test_partitions_that_are_added_while_it_copies(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are added on the other side, and copied, in the same run."""
    monkeypatch.setattr("txnlog.bridge.base._GROWN_AFTER_S", 0.5)
    store = txnlog.open(str(tmp_path / "store"), create=True)
    admin = Cluster(servers).admin()
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.produce("t", b"old", b"k", 0)
    producer.flush()
    looks = 0

    def grown_in() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            new = confluent_kafka.admin.NewPartitions("t", 5)  # type: ignore[attr-defined]
            admin.create_partitions([new])["t"].result(30)
            later = confluent_kafka.Producer({"bootstrap.servers": servers})
            while len(later.list_topics("t", timeout=30).topics["t"].partitions) < 5:
                pass  # the broker is told by its controller
            later.produce("t", b"new", b"k", 4)
            later.flush()
        return looks > 5 and len(rows_in_store(store)) == 2

    until_s = time.monotonic() + LONG_S
    KafkaSource(store, servers, ["t"], commit_interval_ms=100).run(
        is_stopped=lambda: grown_in() or time.monotonic() > until_s
    )
    assert rows_in_store(store) == [(0, b"k", b"old"), (4, b"k", b"new")]

    store.topics.create("back", partitions=1)
    looks = 0

    def grown_out() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            store.topics.alter("back", partitions=2)
            with store.producer() as writer:
                writer.send("back", b"new", partition=1)
        there = admin.list_topics(timeout=30).topics
        return looks > 5 and "back" in there and len(there["back"].partitions) == 2

    KafkaSink(store, servers, ["back"], commit_interval_ms=100).run(
        is_stopped=lambda: grown_out() or time.monotonic() > until_s + LONG_S
    )
    KafkaSink(store, servers, ["back"]).run(until_end=True)
    low, high = (
        Cluster(servers)
        .consumer("judge")
        .get_watermark_offsets(confluent_kafka.TopicPartition("back", 1), timeout=30)
    )
    assert (low, high) == (0, 2)  # the record, and the marker of its transaction


def test_what_kafka_has_deleted_is_said_or_skipped(servers: str, tmp_path: Path) -> None:
    store = txnlog.open(str(tmp_path / "store"), create=True)
    admin = Cluster(servers).admin()
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})

    def send(first: int) -> None:
        for number in range(first, first + 4):
            producer.produce("t", b"%d" % number, b"k", 0)
        producer.flush()

    send(0)
    KafkaSource(store, servers, ["t"]).run(until_end=True)
    send(4)
    before = confluent_kafka.TopicPartition("t", 0, 6)
    (done,) = admin.delete_records([before]).values()
    done.result(30)
    with pytest.raises(BridgeFailed, match=r"deleted the records from offset 4 on.*begins at 6"):
        KafkaSource(store, servers, ["t"]).run(until_end=True)
    KafkaSource(store, servers, ["t"], skip_lost=True).run(until_end=True)
    assert [value for _, _, value in rows_in_store(store)] == [b"0", b"1", b"2", b"3", b"6", b"7"]


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


def test_a_group_goes_on_here_where_it_is_in_kafka(servers: str, tmp_path: Path) -> None:
    """Behind markers and aborted records, which take offsets there; not while it has members."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    producer = Cluster(servers).producer("writer", 60_000)
    producer.init_transactions(30)
    for number in range(60):
        producer.begin_transaction()
        producer.produce("t", b"v%d" % number, b"k", number % PARTITIONS)
        aborts = number % 10 in (3, 4, 5)
        (producer.abort_transaction if aborts else producer.commit_transaction)(30)
        if number == 30:
            KafkaSource(store, servers, ["t"]).run(until_end=True)
    KafkaSource(store, servers, ["t"]).run(until_end=True)
    config = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    left = [b"v%d" % number for number in range(60) if number % 10 not in (3, 4, 5)]
    for count in (1, 16, 25):
        consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
        consumer.subscribe(["t"])
        for _ in range(count):
            message = consumer.poll(30)
            assert message is not None
            left.remove(message.value() or b"")
            consumer.commit(message=message, asynchronous=False)
        with pytest.raises(GroupNotEmpty, match="has members in Kafka"):
            translate_offsets(store, servers, "g", ["t"])
        consumer.close()
        translate_offsets(store, servers, "g", ["t"])
        mine = store.consumer(group_id="g", auto_offset_reset="earliest", stop_at_end=True)
        mine.assign([TopicPartition("t", number) for number in range(PARTITIONS)])
        assert sorted(record.value for record in mine) == sorted(left)
        mine.close()
    assert left == []


def test_a_group_goes_back_to_kafka(servers: str, tmp_path: Path) -> None:
    """Its offsets there lie behind the markers of the bridge's transactions."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=PARTITIONS)
    for first in (0, 15):
        with store.producer() as producer:
            for number in range(first, first + 15):
                producer.send("t", b"v%d" % number, b"k", partition=number % PARTITIONS)
        KafkaSink(store, servers, ["t"]).run(until_end=True)
    for read in (0, 4, 5, 7, 10):  # of each partition; five are in each transaction of the bridge
        at = {TopicPartition("t", number): read for number in range(PARTITIONS)}
        store.groups.reset_offsets("g", to=at)
        done = translate_offsets(store, servers, "g", ["t"], back=True)
        assert [one.source_offset for one in done] == [read] * PARTITIONS
        consumer = Cluster(servers).consumer("judge")
        begin = [confluent_kafka.TopicPartition("t", one.partition, one.after) for one in done]
        consumer.assign(begin)
        ends, found = 0, []
        while ends < PARTITIONS:
            for message in consumer.consume(1000, 1):
                if message.error() is None:
                    found.append(message.value())
                ends += message.error() is not None
        consumer.close()
        assert sorted(found) == sorted(b"v%d" % n for n in range(read * PARTITIONS, 30))
