"""Bridges on librdkafka's own mock cluster: everything but what brokers themselves decide."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigSource  # type: ignore[attr-defined]

import txnlog
from tests.bridge.fake_kafka import FakePartition
from tests.bridge.mock_kafka import PARTITIONS, MockKafka, Row
from tests.support.cli.cli_command import cli
from tests.support.tiers import more
from txnlog import TopicPartition
from txnlog.bridge import BridgeCommit, KafkaSink, KafkaSource, client, source
from txnlog.bridge.base import COPIED_CONFIG
from txnlog.bridge.source import POSITIONS
from txnlog.errors import (
    BridgeFailed,
    CorruptRecord,
    InvalidOption,
    InvalidTopic,
    OffsetOutOfRange,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.storage import open_storage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

TOPIC, BROKER = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.STATIC_BROKER_CONFIG


def rows_of(store: Store, topic: str) -> list[Row]:
    """All records of a topic, by partition."""
    names = ["partition", "key", "value", "timestamp", "headers"]
    table = store.scan(topic, columns=names).to_arrow()
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    found = []
    for row, time in zip(table.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
        headers = tuple((header["key"], header["value"]) for header in row["headers"])
        found.append((row["partition"], row["key"], row["value"], time // 1000, headers))
    return sorted(found, key=lambda row: row[0])


def some_rows(first: int, count: int) -> list[Row]:
    """Tombstones, records without a key, empty values and headers among them."""
    return [
        (
            number % PARTITIONS,
            None if number % 5 == 0 else b"k%d" % number,
            None if number % 7 == 3 else b"" if number % 11 == 0 else b"v%d" % number,
            1_700_000_000_000 + number,
            (("h", b"%d" % number), ("none", None)) if number % 3 == 0 else (),
        )
        for number in range(first, first + count)
    ]


def by_partition(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row[0])


def test_what_is_in_kafka_comes_once(kafka: MockKafka, tmp_path: Path) -> None:
    """Keys, values, headers, times, partitions; again only what is new."""
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("orders", "paid")
    kafka.send("orders", some_rows(0, 40))
    kafka.send("paid", some_rows(100, 8))
    told: list[BridgeCommit] = []
    source = KafkaSource(store, f"kafka://{kafka.servers}", ["orders", "paid"])
    source.run(until_end=True, report=told.append)
    assert rows_of(store, "orders") == by_partition(some_rows(0, 40))
    assert rows_of(store, "paid") == by_partition(some_rows(100, 8))
    assert sum(commit.record_count for commit in told) == 48
    assert told[-1].lag == 0
    assert {at for commit in told for at in commit.positions} == {
        TopicPartition(topic, p) for topic in ("orders", "paid") for p in range(PARTITIONS)
    }
    kafka.send("orders", some_rows(40, 9))
    source.run(until_end=True)
    assert rows_of(store, "orders") == by_partition(some_rows(0, 49))
    source.run(until_end=True, report=told.append)
    assert rows_of(store, "orders") == by_partition(some_rows(0, 49))


@pytest.mark.parametrize(
    ("told", "source", "expected"),
    [
        ({"max.message.bytes": "104857600"}, TOPIC, {"max.message.bytes": str(1 << 26)}),
        ({"max.message.bytes": "67108864"}, TOPIC, {"max.message.bytes": str(1 << 26)}),
        ({"max.message.bytes": "1000"}, TOPIC, {}),
        ({"max.message.bytes": "2000000"}, BROKER, {"max.message.bytes": "2000000"}),
        ({"max.message.bytes": "1000"}, BROKER, {}),
        (
            {"retention.ms": "-1", "retention.bytes": "5", "cleanup.policy": "compact,delete"},
            TOPIC,
            {"retention.ms": "-1", "retention.bytes": "5", "cleanup.policy": "compact,delete"},
        ),
        (
            {"retention.ms": "8", "retention.bytes": "5", "cleanup.policy": "compact,delete"},
            BROKER,
            {},
        ),
        ({"message.timestamp.after.max.ms": "5", "segment.ms": "7"}, TOPIC, {}),
    ],
    ids=[
        *("larger", "largest", "smaller", "broker's larger", "broker's smaller"),
        *("policies", "broker's policies", "not copied"),
    ],
)
def test_topics_are_made_for_what_kafka_has(
    kafka: MockKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    told: dict[str, str],
    source: ConfigSource,
    expected: dict[str, str],
) -> None:
    """Settings as far as they are valid here; for any times, since brokers may have no limit."""

    def describe(_: object, resources: list[Any]) -> dict[Any, Future[Any]]:
        future: Future[Any] = Future()
        future.set_result(
            {
                name: SimpleNamespace(value=told[name], is_default=False, source=source.value)
                for name in told
            }
        )
        return dict.fromkeys(resources, future)

    monkeypatch.setattr("confluent_kafka.admin.AdminClient.describe_configs", describe)
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("t")
    now_ms = store.logs.clock.now_ms()
    times = (1, 1_700_000_000_000, now_ms, now_ms + 86_400_000, now_ms * 1000)
    rows: list[Row] = [(0, b"k", b"%d" % time, time, ()) for time in times]
    kafka.send("t", rows)
    KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    assert rows_of(store, "t") == rows
    config = store.topics.describe("t").config
    assert {name: config[name] for name in config.keys() & COPIED_CONFIG} == expected
    assert ("here the most is 67108864" in caplog.text) == ("104857600" in told.values())


def test_topics_of_kafka_are_made_for_what_the_store_has(
    kafka: MockKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was set for them, and not what a store has by default; the mock makes no topics.

    A limit of records bounds no batch of them: as Kafka's it would refuse the bridge's own.
    """
    store = txnlog.open(str(tmp_path), create=True)
    given = {"cleanup.policy": "compact", "retention.bytes": "9"}
    limits = {"given": "5000", "default": "1048588", "larger": "1048589"}
    for topic, limit in limits.items():
        config = {**given, "segment.bytes": "7000", "max.message.bytes": limit}
        store.topics.create(topic, partitions=PARTITIONS, config=config)
    store.topics.create("plain", partitions=PARTITIONS)
    made: dict[str, tuple[int, dict[str, str]]] = {}

    def create(_: object, topics: list[Any]) -> dict[str, Future[None]]:
        (topic,) = topics
        made[topic.topic] = topic.num_partitions, topic.config
        kafka.make(topic.topic)
        future: Future[None] = Future()
        future.set_result(None)
        return {topic.topic: future}

    monkeypatch.setattr("confluent_kafka.admin.AdminClient.create_topics", create)
    with store.producer() as producer:
        for topic in (*limits, "plain"):
            producer.send(topic, b"v", b"k", partition=0)
    KafkaSink(store, kafka.servers, [*limits, "plain"]).run(until_end=True)
    positions = (1, {"cleanup.policy": "compact"})
    assert made == {
        f"_txnlog_positions.bridge.{store.store_id}": positions,
        "given": (PARTITIONS, given),
        "default": (PARTITIONS, given),
        "larger": (PARTITIONS, {**given, "max.message.bytes": str(1_048_589 + client.BATCH_BYTES)}),
        "plain": (PARTITIONS, {}),
    }


def test_a_topic_that_was_made_anew_here_is_copied_whole(kafka: MockKafka, tmp_path: Path) -> None:
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("t")
    kafka.send("t", some_rows(0, 12))
    KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    store.topics.delete("t")
    KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    assert rows_of(store, "t") == by_partition(some_rows(0, 12))


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[] if n % 20 == 10 else [pytest.mark.more]) for n in range(60)],
)
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_topic_is_made_anew_at_any_request(kafka: MockKafka, direction: str, number: int) -> None:
    """Here, while it is copied: all of it goes once, whatever was known of the old one."""
    heap = HeapStorage()
    other = attach(heap, create=True)
    other.topics.create("t", partitions=PARTITIONS)
    kafka.make("t", f"_txnlog_positions.bridge.{other.store_id}")
    count = 0

    def send(*values: bytes) -> None:
        with other.producer() as producer:
            for value in values:
                producer.send("t", value, partition=0)

    def make_anew(_: str) -> None:
        nonlocal count
        count += 1
        if count == number + 1:
            other.topics.delete("t")
            other.topics.create("t", partitions=PARTITIONS)
            if direction == "out":
                send(b"c", b"d", b"e")

    def run(store: Store) -> None:
        kind = KafkaSource if direction == "in" else KafkaSink
        kind(store, kafka.servers, ["t"]).run(until_end=True)

    if direction == "out":
        send(b"a")
    else:
        kafka.send("t", some_rows(0, 8))
    run(other)
    if direction == "out":
        send(b"b")
    else:
        kafka.send("t", some_rows(8, 8))
    run(attach(FaultyStorage(heap, before_request=make_anew), clock=VirtualClock()))
    run(other)
    if direction == "in":
        assert rows_of(other, "t") == by_partition(some_rows(0, 16))
    else:
        values = [row[2] for row in kafka.rows("t")]
        kept = [b"c", b"d", b"e"] if count > number else []
        assert values in ([b"a", *kept], [b"a", b"b", *kept])


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[] if n % 12 == 7 else [pytest.mark.more]) for n in range(60)],
)
def test_a_crash_at_any_request_loses_and_doubles_nothing(kafka: MockKafka, number: int) -> None:
    """The process dies before it; so another one dies after the one before."""
    heap = HeapStorage()
    sound = attach(heap, create=True)
    kafka.make("t")
    kafka.send("t", some_rows(0, 16))
    KafkaSource(sound, kafka.servers, ["t"]).run(until_end=True)
    kafka.send("t", some_rows(16, 16))
    count = 0

    class Died(BaseException):
        pass

    def die(_: str) -> None:
        nonlocal count
        if count == number:
            raise Died
        count += 1

    with suppress(Died, TxnlogError):
        dying = attach(FaultyStorage(heap, before_request=die))
        KafkaSource(dying, kafka.servers, ["t"]).run(until_end=True)
    after = attach(heap)
    KafkaSource(after, kafka.servers, ["t"]).run(until_end=True)
    assert rows_of(after, "t") == by_partition(some_rows(0, 32))


def test_what_fails_on_the_way_is_tried_again(kafka: MockKafka) -> None:
    """In the same run, from the positions on."""
    heap = HeapStorage()
    attach(heap, create=True)
    kafka.make("t")
    kafka.send("t", some_rows(0, 16))
    for number in (20, 33, 41):
        faulty = FaultyStorage(heap, {number: Fault.LOSE_RESPONSE, number + 1: Fault.FAIL})
        store = attach(faulty, clock=VirtualClock())
        KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
        kafka.send("t", some_rows(16, 16) if number == 20 else [])
    assert rows_of(attach(heap), "t") == by_partition(some_rows(0, 32))


def test_what_other_bridges_have_not_decided_hides_no_position(
    kafka: MockKafka, tmp_path: Path
) -> None:
    """They share a topic, whose last stable offset stands still while one of them is dead."""
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("t")
    kafka.send("t", some_rows(0, 8))
    KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    dead = store.producer(transactional_id="kafka-bridge-other")
    dead.init_transactions()
    dead.begin_transaction()
    dead.send(POSITIONS, b"1", b'["other","c","t","i",0]')
    dead.flush()
    kafka.send("t", some_rows(8, 8))
    for _ in range(2):
        KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
        assert rows_of(store, "t") == by_partition(some_rows(0, 16))
    dead.abort_transaction()


def test_positions_that_are_deleted_meanwhile(kafka: MockKafka, tmp_path: Path) -> None:
    """An error: to go on without them would be to copy all again."""
    store, other = txnlog.open(str(tmp_path), create=True), txnlog.open(str(tmp_path))
    kafka.make("t")
    kafka.send("t", some_rows(0, 8))
    copied: list[int] = []

    def is_stopped() -> bool:
        if sum(copied) == 8 and other.topics.list([POSITIONS]):
            other.topics.delete(POSITIONS)
            kafka.send("t", some_rows(8, 8))
        return sum(copied) > 8

    bridge = KafkaSource(store, kafka.servers, ["t"], commit_interval_ms=1)
    with pytest.raises(UnknownTopicOrPartition, match=POSITIONS):
        bridge.run(is_stopped=is_stopped, report=lambda commit: copied.append(commit.record_count))
    assert rows_of(store, "t") == by_partition(some_rows(0, 8))


def test_the_command_copies_in_and_out(kafka: MockKafka, tmp_path: Path) -> None:
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("a", "b", f"_txnlog_positions.back.{store.store_id}")
    kafka.send("a", some_rows(0, 8))
    kafka.send("b", some_rows(50, 4))
    for topic in ("a", "b"):
        store.topics.create(topic, partitions=PARTITIONS)
    given = tmp_path / "client.properties"
    given.write_text("# of librdkafka\nclient.id = me\n\n", encoding="utf-8")
    cluster = f"kafka://{kafka.servers}"
    where = ("--store", tmp_path, "-o", "json", "--kafka-config", given)
    into = cli("bridge", "--from", cluster, "--topics", "a,b", "--once", *where).json()
    assert sum(commit["record_count"] for commit in into) == 12
    assert rows_of(store, "a") == by_partition(some_rows(0, 8))
    out = cli("bridge", "--to", cluster, "--topics", "b", "--name", "back", "--once", *where)
    assert [(commit["record_count"], commit["lag"]) for commit in out.json()] == [(4, 0)]
    assert kafka.rows("b") == by_partition([*some_rows(50, 4)] * 2)
    both = cli("bridge", "--from", cluster, "--to", cluster, "--topics", "a", *where)
    assert (both.code, "--from or --to" in both.err) == (2, True)
    given.write_text("sasl.password", encoding="utf-8")
    wrong = cli("bridge", "--from", cluster, "--topics", "a", *where)
    assert (wrong.code, "line 1 is not KEY=VALUE" in wrong.err) == (1, True)


def test_a_second_instance_takes_over(kafka: MockKafka, tmp_path: Path) -> None:
    """The older one is told, and what it had not committed is committed by the newer."""
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("t")
    kafka.send("t", some_rows(0, 8))

    def take_over() -> bool:
        KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
        return True

    with pytest.raises(BridgeFailed, match=r"bridge 'bridge': .*another instance took over"):
        KafkaSource(store, kafka.servers, ["t"]).run(is_stopped=take_over)
    assert rows_of(store, "t") == by_partition(some_rows(0, 8))


@pytest.mark.parametrize("reads", [True, False], ids=["read", "not read"])
@pytest.mark.parametrize("slept_s", [30, 300, 3000, 10 * 86_400])
def test_a_computer_sleeps_while_a_transaction_is_open(
    monkeypatch: pytest.MonkeyPatch, slept_s: int, *, reads: bool
) -> None:
    """Whoever reads may end it by its timeout: no other instance has, so this one begins again."""
    FakePartition({0: b"a", 1: b"b"}, end=2).serve(monkeypatch)
    clock, heap = VirtualClock(), HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store, other = attach(heap, create=True, clock=clock), attach(heap, clock=clock)
    commit = source._Copying._commit
    slept: list[int] = []

    def sleep_once(copying: Any, positions: Any) -> None:
        if not slept:
            copying._producer.flush()
            for _ in range(2):
                slept.append(slept_s)
                clock.sleep(slept_s)
                if reads:
                    other.scan("t").to_arrow()
                    other.maintain()
        commit(copying, positions)

    monkeypatch.setattr(source._Copying, "_commit", sleep_once)
    KafkaSource(store, "h:1", ["t"]).run(until_end=True)
    assert other.scan("t").to_arrow()["value"].to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize(("between_s", "most"), [(3600, 20), (130, 20), (110, 5), (0, 5)], ids=str)
def test_failures_that_are_far_apart(
    monkeypatch: pytest.MonkeyPatch, between_s: int, most: int
) -> None:
    """A bridge that has nothing to copy lives on after any number of them; a row ends it."""
    FakePartition().serve(monkeypatch)
    clock = VirtualClock()
    store = attach(HeapStorage(), create=True, clock=clock)
    failures = 0

    def take(*_: object) -> list[object]:
        nonlocal failures
        clock.sleep(between_s)
        failures += 1
        raise client.passing("Kafka has not answered")

    monkeypatch.setattr(client, "take", take)
    with pytest.raises(BridgeFailed, match="has not answered"):
        KafkaSource(store, "h:1", ["t"]).run(is_stopped=lambda: failures >= 20)
    assert failures == most


def test_records_that_kafka_has_no_more(kafka: MockKafka, tmp_path: Path) -> None:
    """A topic that is shorter than what was copied was made anew."""
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("t")
    kafka.send("t", some_rows(0, 8))
    KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    with store.producer() as producer:
        (old, *_) = store.scan(POSITIONS, latest=True).to_arrow()["key"].to_pylist()
        producer.send(POSITIONS, b"77", old)
    with pytest.raises(BridgeFailed, match="was copied up to offset 77, and ends at 2 in Kafka"):
        KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    with store.producer() as producer:
        producer.send(POSITIONS, b"x", b"y")
    with pytest.raises(BridgeFailed, match="a record that no bridge has written"):
        KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)


def test_a_typed_topic_takes_no_records_of_kafka(kafka: MockKafka, tmp_path: Path) -> None:
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", partitions=4, schema=pa.schema([("a", pa.int64())]))
    kafka.make("t")
    with pytest.raises(BridgeFailed, match="topic 't' of the store has columns"):
        KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)


def test_what_is_in_a_store_goes_out_once(kafka: MockKafka, tmp_path: Path) -> None:
    """What was aborted does not; typed rows go out as JSON."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", partitions=PARTITIONS)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    store.topics.create("typed", partitions=PARTITIONS, schema=schema, key=["id"])
    kafka.make("t", "typed", f"_txnlog_positions.bridge.{store.store_id}")

    def send(rows: list[Row], *, commit: bool = True) -> None:
        with store.producer(transactional_id="w") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for partition, key, value, time, headers in rows:
                producer.send(
                    "t", value, key, partition=partition, timestamp_ms=time, headers=[*headers]
                )
            (producer.commit_transaction if commit else producer.abort_transaction)()

    send(some_rows(0, 20))
    send(some_rows(500, 4), commit=False)
    with store.producer() as producer:
        producer.send("typed", {"id": 1, "name": "ä"}, partition=2)
        producer.send("typed", {"id": 1, "_deleted": True}, partition=2)
    sink = KafkaSink(store, kafka.servers, ["t", "typed"])
    told: list[BridgeCommit] = []
    sink.run(until_end=True, report=told.append)
    assert kafka.rows("t") == by_partition(some_rows(0, 20))
    (row, gone) = kafka.rows("typed")
    assert [json.loads(text or b"") for text in row[1:3]] == [[1], {"id": 1, "name": "ä"}]
    assert gone[:3] == (2, row[1], None)
    assert (sum(commit.record_count for commit in told), told[-1].lag) == (22, 0)
    send(some_rows(20, 5))
    sink.run(until_end=True)
    sink.run(until_end=True)
    assert kafka.rows("t") == by_partition(some_rows(0, 25))


def test_records_that_were_deleted_before_they_went_out(kafka: MockKafka, tmp_path: Path) -> None:
    """Said, unless they may be passed over."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t")
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")
    with store.producer() as producer:
        for number in range(4):
            producer.send("t", b"%d" % number)
    KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
    with store.producer() as producer:
        for number in range(4, 8):
            producer.send("t", b"%d" % number)
    store.topics.delete_records({TopicPartition("t", 0): 6})
    with pytest.raises(OffsetOutOfRange, match=r"from offset 4 to 6 were deleted .*--skip-lost"):
        KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
    KafkaSink(store, kafka.servers, ["t"], skip_lost=True).run(until_end=True)
    assert [row[2] for row in kafka.rows("t")] == [b"0", b"1", b"2", b"3", b"6", b"7"]


@pytest.mark.parametrize(
    ("records", "end", "counts"),
    [({0: b"a", 1: b"b"}, 3, [2]), ({}, 2, [0]), ({3: b"a"}, 9, [1]), ({}, 0, [])],
    ids=["marker", "all aborted", "aborted around", "empty"],
)
def test_what_is_no_record_of_kafka_is_never_lost(
    monkeypatch: pytest.MonkeyPatch, records: dict[int, bytes], end: int, counts: list[int]
) -> None:
    """Retention may delete up to the end what was read, markers too. Being idle costs nothing."""
    partition = FakePartition(records, end=end)
    partition.serve(monkeypatch)
    store = attach(HeapStorage(), create=True, clock=(clock := VirtualClock()))
    told: list[int] = []
    looks = iter(range(100))

    def is_stopped() -> bool:
        clock.sleep(10)
        return next(looks) > 50

    bridge = KafkaSource(store, "h:1", ["t"])
    bridge.run(is_stopped=is_stopped, report=lambda commit: told.append(commit.record_count))
    assert told == counts
    bridge.run(until_end=True, report=lambda commit: told.append(commit.record_count))
    assert told == counts
    partition.start, partition.records = end, {end: b"new"}
    partition.end = end + 1
    bridge.run(until_end=True)
    assert [row[2] for row in rows_of(store, "t")] == [*records.values(), b"new"]


@pytest.mark.parametrize("first", [True, False], ids=["behind a record", "alone"])
def test_what_was_aborted_in_a_store_is_never_lost(
    kafka: MockKafka, tmp_path: Path, *, first: bool
) -> None:
    """It may be deleted once it was passed over."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t")
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")
    told: list[int] = []
    sink = KafkaSink(store, kafka.servers, ["t"])

    def run() -> None:
        sink.run(until_end=True, report=lambda commit: told.append(commit.record_count))

    if first:
        with store.producer() as producer:
            producer.send("t", b"1")
    run()
    with store.producer(transactional_id="w") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"aborted")
        producer.flush()
        producer.abort_transaction()
    run()
    run()
    (end,) = store.snapshot("t").end_offsets("t").values()
    store.topics.delete_records({TopicPartition("t", 0): end})
    run()
    assert told == [1, 0] if first else [0]
    assert [row[2] for row in kafka.rows("t")] == [b"1"] * first


@pytest.mark.parametrize("interval_ms", [300_000, *more([1])])
@pytest.mark.parametrize(
    ("happening", "skip_lost"),
    [("trim", True), ("trim", False), ("recreate", True), ("recreate smaller", False)],
)
def test_records_are_deleted_while_they_go_out(
    kafka: MockKafka, tmp_path: Path, happening: str, *, skip_lost: bool, interval_ms: int
) -> None:
    """What was read is committed, and the rest goes on; a topic that was made anew goes whole."""
    other = txnlog.open(str(tmp_path), create=True)
    store = attach(open_storage(str(tmp_path)), clock=VirtualClock())
    other.topics.create("t", partitions=2)
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")

    def send(*numbers: int) -> None:
        with other.producer() as producer:
            for number in numbers:
                producer.send("t", b"%d" % number, partition=0)

    send(0, 1, 2, 3)
    asked = 0

    def is_stopped() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            if happening == "trim":
                send(4, 5, 6, 7)
                other.topics.delete_records({TopicPartition("t", 0): 6})
            else:
                other.topics.delete("t")
                other.topics.create("t", partitions=1 if happening == "recreate smaller" else 2)
                send(6, 7)
        return asked > 2

    sink = KafkaSink(
        store, kafka.servers, ["t"], skip_lost=skip_lost, commit_interval_ms=interval_ms
    )
    copied = [b"0", b"1", b"2", b"3"]
    if happening == "trim" and not skip_lost:
        with pytest.raises(OffsetOutOfRange, match=r"from offset 4 to 6 were deleted .*--skip"):
            sink.run(is_stopped=is_stopped)
    else:
        sink.run(is_stopped=is_stopped)
        copied += [b"6", b"7"]
    assert [row[2] for row in kafka.rows("t")] == copied


def store_to_go_out(
    kafka: MockKafka, path: Path, partitions: int = 1, config: dict[str, str] | None = None
) -> Store:
    """With a topic ``t`` that is in Kafka, too."""
    store = txnlog.open(str(path), create=True)
    store.topics.create("t", partitions=partitions, config=config)
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")
    return store


def abort_a_record(store: Store) -> None:
    """Place one in ``t`` that no reader sees."""
    with store.producer(transactional_id="a") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"1")
        producer.flush()
        producer.abort_transaction()


@pytest.mark.parametrize("size", [900_000, 1_000_000, 1_048_000, 3_000_000])
def test_records_go_out_that_the_store_takes(kafka: MockKafka, tmp_path: Path, size: int) -> None:
    """Whether Kafka takes them is for Kafka to say; what the client was told to refuse is named."""
    limit = {"max.message.bytes": str(size + 200)} if size > 1_048_588 else {}
    store = store_to_go_out(kafka, tmp_path, config=limit)
    values = [b"small", b"x" * size, b"behind"]
    with store.producer() as producer:
        for value in values:
            producer.send("t", value)
    told = {"message.max.bytes": str(size)}
    with pytest.raises(BridgeFailed, match="t:0: Kafka does not take the record at offset 1 of"):
        KafkaSink(store, kafka.servers, ["t"], options=told).run(until_end=True)
    assert kafka.rows("t") == []
    KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
    assert [row[2] for row in kafka.rows("t")] == values


@pytest.mark.parametrize("size", [1_500_000, 20_000_000], ids=["in the queue", "over the queue"])
@pytest.mark.parametrize("kind", ["JSON", "raised"])
def test_records_go_out_that_are_larger_than_the_limit_was(
    kafka: MockKafka, kind: str, size: int
) -> None:
    """A limit of the store's that is raised meanwhile, and rows that are larger in JSON."""
    store = attach(HeapStorage(), create=True, clock=VirtualClock())
    schema = pa.schema([("a", pa.binary())]) if kind == "JSON" else None
    limit = {"max.message.bytes": str(size - 200_000)} if kind == "JSON" else {}
    store.topics.create("t", schema=schema, config=limit)
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")

    def send(count: int) -> None:
        with store.producer() as producer:
            if kind == "JSON":
                producer.send("t", {"a": random.Random(count).randbytes(count * 3 // 4)})
            else:
                producer.send("t", b"x" * count)

    told: list[int] = []

    def report(commit: BridgeCommit) -> None:
        told.append(commit.record_count)
        if len(told) == 1:
            if kind == "raised":
                store.topics.alter("t", config={"max.message.bytes": str(size + 200)})
            send(size)

    send(10)
    sink = KafkaSink(store, kafka.servers, ["t"], commit_interval_ms=1)
    sink.run(report=report, is_stopped=lambda: len(told) > 1)
    assert told == [1, 1]


class DisturbedProducer:
    """Kafka's client, whose calls of one method fail at first, or each of whose records does."""

    def __init__(self, real: Any, failing: dict[str, list[Any]]) -> None:
        self._real, self._failing = real, failing
        self.called: list[str] = []

    def __len__(self) -> int:
        return len(self._real)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            self.called.append(name)
            failures = self._failing.get(name)
            if failures and (failure := failures.pop(0)) is not None:
                raise failure
            if "refuse" in self._failing and "on_delivery" in more:
                more["on_delivery"](self._failing["refuse"][0], None)
            return getattr(self._real, name)(*arguments, **more)

        return call


def error_of(code: int, **more: Any) -> KafkaException:
    return KafkaException(KafkaError(code, **more))


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        ({"commit_transaction": [error_of(KafkaError._TIMED_OUT, retriable=True)] * 3}, None),
        ({"produce": [BufferError("Local: Queue full")]}, "t:0: .* offset 0 .* size too large"),
        (
            {
                "refuse": [KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)],
                "commit_transaction": [error_of(KafkaError._STATE, txn_requires_abort=True)],
            },
            "t:0: .* the record at offset 1 .* size too large; raise max.message.bytes",
        ),
        (
            {
                "refuse": [KafkaError(KafkaError.INVALID_RECORD)],
                "commit_transaction": [error_of(KafkaError._STATE, txn_requires_abort=True)],
            },
            "t:0: .* one of the records from offset 0 to 2 .* validate record$",
        ),
        (
            {
                "refuse": [KafkaError(KafkaError._PURGE_QUEUE)],
                "commit_transaction": [error_of(KafkaError._STATE)],
            },
            "committing to Kafka: Kafka says",
        ),
        *(
            (
                {
                    "refuse": [KafkaError(code)],
                    "produce": [None] * sent + [error_of(KafkaError._STATE)],
                },
                why,
            )
            for code, why in (
                (KafkaError.MSG_SIZE_TOO_LARGE, "t:0: .* size too large"),
                (KafkaError.INVALID_TXN_STATE, "the transaction failed: .* in an invalid state"),
                (KafkaError.INVALID_PRODUCER_EPOCH, "a newer instance of this bridge has taken"),
            )
            for sent in (2, 3)
        ),
    ],
    ids=[
        *("slow link", "larger than the queue", "refused by a broker", "refused with others"),
        *("another failure", "refused before a record", "refused before a position"),
        *("failed before a record", "failed before a position"),
        *("fenced before a record", "fenced before a position"),
    ],
)
def test_what_a_transaction_in_kafka_meets(
    kafka: MockKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: dict[str, list[Any]],
    why: str | None,
) -> None:
    """A commit that takes longer than one call goes on; a record that is refused is named.

    After other failures the next attempt goes on.
    """
    store = store_to_go_out(kafka, tmp_path)
    values = [b"1", b"22", b"3"]
    with store.producer() as producer:
        for value in values:
            producer.send("t", value)
    make = client.Cluster.producer
    failing = {name: [*failures] for name, failures in failing.items()}
    monkeypatch.setattr(
        client.Cluster, "producer", lambda *given: DisturbedProducer(make(*given), failing)
    )
    monkeypatch.setattr("txnlog.bridge.base._ATTEMPTS", 1)
    sink = KafkaSink(store, kafka.servers, ["t"])
    if why is None:
        sink.run(until_end=True)
        assert [row[2] for row in kafka.rows("t")] == values
    else:
        with pytest.raises(BridgeFailed, match=why) as caught:
            sink.run(until_end=True)
        assert caught.value.retriable == ("transaction failed" in why)


def test_no_transaction_with_positions_alone_stays_open(
    kafka: MockKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out as in: readers would wait for its timeout."""
    store = store_to_go_out(kafka, tmp_path)
    abort_a_record(store)
    monkeypatch.setattr("txnlog.bridge.base._ATTEMPTS", 1)
    failing = {"commit_transaction": [error_of(KafkaError._STATE)]}
    disturbed: list[DisturbedProducer] = []
    make = client.Cluster.producer

    def producer_of(*given: Any) -> DisturbedProducer:
        disturbed.append(DisturbedProducer(make(*given), failing))
        return disturbed[-1]

    monkeypatch.setattr(client.Cluster, "producer", producer_of)
    with pytest.raises(BridgeFailed, match="committing to Kafka"):
        KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
    assert disturbed[0].called[-2:] == ["commit_transaction", "abort_transaction"]

    def fail(*_: object) -> None:
        raise BridgeFailed("a commit")

    FakePartition(end=5).serve(monkeypatch)
    monkeypatch.setattr("txnlog.producer.Producer.commit_transaction", fail)
    with pytest.raises(BridgeFailed, match="a commit"):
        KafkaSource(store, "h:1", ["in"]).run(until_end=True)
    found = {one.transactional_id: one.status for one in store.transactions.list()}
    assert found["kafka-bridge-bridge"] == "CompleteAbort"


@pytest.mark.parametrize(
    ("given", "largest", "expected"),
    [
        ({}, 1_048_588, ("536870912", "16384")),
        ({}, 1000, ("536870912", "16384")),
        ({}, 1 << 26, ("536870912", "131080")),
        ({"message.max.bytes": "7", "queue.buffering.max.kbytes": "8"}, 1 << 26, ("7", "8")),
    ],
    ids=["default", "small", "largest", "given"],
)
def test_what_waits_to_be_sent_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    largest: int,
    expected: tuple[str, str],
) -> None:
    """A commit sends it all; but it holds the largest record of the topics."""
    made: list[dict[str, object]] = []
    monkeypatch.setattr(client.load(), "Producer", lambda config, **_: made.append(config))
    client.Cluster("localhost:1", given).producer("t", 60_000, largest)
    names = ("message.max.bytes", "queue.buffering.max.kbytes")
    assert tuple(str(made[0][name]) for name in names) == expected


@pytest.mark.parametrize("behind", [0, 1])
def test_an_open_transaction_of_others_holds_up_no_run(
    kafka: MockKafka, tmp_path: Path, behind: int
) -> None:
    """What is behind it, in its partition or by a transaction in others, is not there yet."""
    store = store_to_go_out(kafka, tmp_path, partitions=2)
    with (
        store.producer() as plain,
        store.producer(transactional_id="a") as open_one,
        store.producer(transactional_id="b") as committed,
    ):
        plain.send("t", b"before", partition=0)
        plain.flush()
        open_one.init_transactions()
        open_one.begin_transaction()
        open_one.send("t", b"open", partition=1)
        open_one.flush()
        committed.init_transactions()
        committed.begin_transaction()
        for partition in (0, 1):
            committed.send("t", b"behind", partition=max(partition, behind))
        committed.commit_transaction()
        looks = iter(range(10))
        told: list[BridgeCommit] = []
        sink = KafkaSink(store, kafka.servers, ["t"])
        sink.run(until_end=True, is_stopped=lambda: next(looks) > 3, report=told.append)
        assert next(looks) < 3
        assert [(commit.record_count, commit.lag) for commit in told] == [(1, 0)]
        assert [row[2] for row in kafka.rows("t")] == [b"before"]
        open_one.abort_transaction()
    sink.run(until_end=True)
    assert [row[2] for row in kafka.rows("t")] == [b"before", b"behind", b"behind"]


def test_damage_in_one_partition_holds_up_no_other(kafka: MockKafka, tmp_path: Path) -> None:
    """What is sound is copied, before it and in other partitions, and then it is told."""
    store = store_to_go_out(kafka, tmp_path, partitions=2)
    for value in (b"a", b"damaged"):
        with store.producer() as producer:
            producer.send("t", value, partition=0)
    with store.producer() as producer:
        producer.send("t", b"b", partition=1)
    damaged = store.topics.segments("t", 0)[-1].name
    (path,) = tmp_path.rglob(f"{damaged}.log")
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="offset 1 of t:0"):
            KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
        assert [row[2] for row in kafka.rows("t")] == [b"a", b"b"]
    path.write_bytes(data)
    KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
    assert [row[2] for row in kafka.rows("t")] == [b"a", b"damaged", b"b"]


@pytest.mark.parametrize("error", [CorruptRecord, OffsetOutOfRange])
def test_what_was_passed_over_before_an_error_is_committed(
    kafka: MockKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[TxnlogError]
) -> None:
    """As records are: aborted ones that are deleted later would pass for lost."""
    store = store_to_go_out(kafka, tmp_path)
    abort_a_record(store)
    polls = 0
    poll = txnlog.Consumer.poll

    def failing(consumer: txnlog.Consumer, **given: Any) -> Any:
        nonlocal polls
        polls += 1
        if polls == 2:
            raise error("a look")
        return poll(consumer, **given)

    monkeypatch.setattr(txnlog.Consumer, "poll", failing)
    monkeypatch.setattr("txnlog.bridge.base._ATTEMPTS", 1)
    told: list[BridgeCommit] = []
    with pytest.raises(TxnlogError, match="a look"):
        KafkaSink(store, kafka.servers, ["t"]).run(report=told.append)
    assert [dict(commit.positions) for commit in told] == [{TopicPartition("t", 0): 1}]


def test_a_topic_of_kafka_that_is_gone(kafka: MockKafka, tmp_path: Path) -> None:
    """What was copied to it would be missing: that is told, and no other topic is made."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", partitions=PARTITIONS)
    positions = f"_txnlog_positions.bridge.{store.store_id}"
    with store.producer() as producer:
        producer.send("t", b"1", partition=0)
    kafka.make("t", positions)
    KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
    without = MockKafka()  # no mock deletes a topic: here it was never there
    without.make(positions)
    without.send(positions, kafka.rows(positions))
    with pytest.raises(BridgeFailed, match=r"no topic 't' any more, .* of another name"):
        KafkaSink(store, without.servers, ["t"]).run(until_end=True)


def test_a_store_that_has_lost_what_was_copied(kafka: MockKafka, tmp_path: Path) -> None:
    """Restored from a backup, for instance: what comes next has the numbers of what is gone."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("t")
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")
    copytree(tmp_path / "s", tmp_path / "restored")
    with store.producer() as producer:
        producer.send("t", b"1")
    KafkaSink(store, kafka.servers, ["t"]).run(until_end=True)
    restored = txnlog.open(str(tmp_path / "restored"))
    with pytest.raises(BridgeFailed, match=r"t:0 was copied up to offset 1, and ends at 0 in the"):
        KafkaSink(restored, kafka.servers, ["t"]).run(until_end=True)


@pytest.mark.parametrize("kind", [KafkaSource, KafkaSink])
def test_a_bridge_with_nothing_to_copy_stays_alive(
    kafka: MockKafka, kind: type[KafkaSource | KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than unused transactional ids live."""
    monkeypatch.setattr("txnlog.bridge.source.LOOK_S", 0.1)
    clock, heap = VirtualClock(), HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store, other = attach(heap, create=True, clock=clock), attach(heap, clock=clock)
    store.topics.create("t", partitions=PARTITIONS)
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")
    told: list[int] = []
    days: list[int] = []
    asked = 0

    def send() -> None:
        kafka.send("t", some_rows(asked, 1))
        with other.producer() as producer:
            producer.send("t", b"", partition=0)

    def is_stopped() -> bool:
        nonlocal asked
        asked += 1
        clock.sleep(1)
        if told and len(days) < 3:
            days.append(4)
            clock.sleep(4 * 86_400)
            other.maintain()
            if len(days) == 3:
                send()
        return len(told) > 1 or asked > 100

    send()
    kind(store, kafka.servers, ["t"], commit_interval_ms=1).run(
        is_stopped=is_stopped, report=lambda commit: told.append(commit.record_count)
    )
    assert len(told) == 2


@pytest.mark.parametrize(
    ("config", "row", "why"),
    [
        ({}, (2, b"k", b"v", 1_700_000_000_000_000_000, ()), "which no calendar has"),
        ({"cleanup.policy": "compact"}, (2, None, b"v", 1_700_000_000_000, ()), "have no key"),
        ({"max.message.bytes": "500"}, (2, b"k", b"v" * 500, 1_700_000_000_000, ()), "is larger"),
    ],
    ids=["time", "key", "size"],
)
def test_what_the_store_refuses_is_named(
    kafka: MockKafka, tmp_path: Path, config: dict[str, str], row: Row, why: str
) -> None:
    """By its place in Kafka, whatever came in the same batch."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t", partitions=PARTITIONS, config=config)
    kafka.make("t")
    sound: list[Row] = [(p, b"k", b"v", 1_700_000_000_000, ()) for p in range(PARTITIONS)]
    kafka.send("t", [*sound, *sound, row, *sound])
    with pytest.raises(BridgeFailed, match=rf"t:2: .* the record at offset 2 of Kafka, .*{why}"):
        KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    assert rows_of(store, "t") == []


def test_a_cluster_that_does_not_answer_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By its address, and not tried again; what the store lacks is told before."""
    monkeypatch.setattr(client, "WAIT_S", 1.5)
    store = txnlog.open(str(tmp_path / "s"), create=True)
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        KafkaSink(store, "127.0.0.1:9", ["t"]).run(until_end=True)
    store.topics.create("t")
    for kind in (KafkaSource, KafkaSink):
        with pytest.raises(BridgeFailed, match=r"Kafka at 127\.0\.0\.1:9: Kafka says"):
            kind(store, "127.0.0.1:9", ["t"]).run(until_end=True)
    told = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert told.count("FAIL") <= 1


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda store: KafkaSource(store, "kafka://u:p@h:1/x y", ["t"]), InvalidOption, "servers"),
        (lambda store: KafkaSource(store, "h:1", []), InvalidOption, "one at least"),
        (lambda store: KafkaSource(store, "h:1", "to"), InvalidOption, "a list of topics"),
        (lambda store: KafkaSource(store, "h:1", ["a/b"]), InvalidTopic, "a/b"),
        (lambda store: KafkaSource(store, "h:1", [POSITIONS]), InvalidOption, "own positions"),
        (lambda store: KafkaSource(store, "h:1", ["t"], name="a/b"), InvalidOption, "of a bridge"),
        (
            lambda store: KafkaSource(store, "h:1", ["t"], commit_interval_ms=300_001),
            InvalidOption,
            "commit_interval_ms",
        ),
        (
            lambda store: KafkaSink(store, "h:1", ["t"], options={"transactional.id": "x"}),
            InvalidOption,
            "is decided by the bridge",
        ),
        (
            lambda store: KafkaSource(store, "h:1", ["t"], options={"no.such": "s3cret"}).run(),
            TxnlogError,
            "no.such",
        ),
    ],
)
def test_wrong_arguments_are_told(
    wrong: Callable[[Store], object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    """Before anything is asked of Kafka, and without an option's value."""
    with pytest.raises(error, match=message) as raised:
        wrong(txnlog.open(str(tmp_path), create=True))
    assert "s3cret" not in str(raised.value)
    assert "u:p" not in str(raised.value)


@pytest.mark.parametrize(("given", "waits"), [({}, 100), ({"fetch.wait.max.ms": "500"}, "500")])
def test_brokers_tell_soon_that_a_partition_has_ended(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], waits: object
) -> None:
    """Many partitions are read to their ends; a user may still say how long brokers wait."""
    made: list[dict[str, object]] = []
    monkeypatch.setattr(client.load(), "Consumer", lambda config, **_: made.append(config))
    client.Cluster("localhost:1", given).consumer("g")
    assert [config["fetch.wait.max.ms"] for config in made] == [waits]
