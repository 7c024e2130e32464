"""A group of Kafka's goes on here with the record that it would have read there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

import txnlog
from tests.bridge.mock_kafka import PARTITIONS, MockKafka, Row
from tests.support.cli.cli_command import cli
from txnlog import TopicPartition
from txnlog.bridge import KafkaSink, KafkaSource, TranslatedOffset, translate_offsets
from txnlog.cli.commands.groups import translate_group
from txnlog.errors import BridgeFailed, GroupNotEmpty, InvalidOption, UnknownTopicOrPartition
from txnlog.store import Store


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cannot tell a group's state; a real broker does in tests/stores."""
    monkeypatch.setattr("txnlog.bridge.group_offsets._check_idle", lambda *_: None)


def rows(first: int, count: int, partition: int = 0) -> list[Row]:
    numbers = range(first, first + count)
    return [(partition, b"k", b"v%d" % n, 1_700_000_000_000 + n, ()) for n in numbers]


def commit(kafka: MockKafka, offsets: dict[int, int], group: str = "g") -> None:
    """As a consumer of Kafka's does."""
    config = {"bootstrap.servers": kafka.servers, "group.id": group, "log_level": 2}
    consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
    where = [confluent_kafka.TopicPartition("t", p, offset) for p, offset in offsets.items()]
    consumer.commit(offsets=where, asynchronous=False)
    consumer.close()


@pytest.fixture
def store(kafka: MockKafka, tmp_path: Path) -> Store:
    """Twenty records in partition 0 and five in 1, copied behind gaps that Kafka does not have."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    kafka.make("t")
    kafka.send("t", [*rows(0, 10), *rows(0, 5, partition=1)])
    source = KafkaSource(store, kafka.servers, ["t"])
    source.run(until_end=True)
    producer = store.producer(transactional_id="gap")
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(3):
        producer.send("t", b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    producer.close()
    kafka.send("t", rows(10, 10))
    source.run(until_end=True)
    return store


def next_value(store: Store, partition: int, offset: int) -> bytes | None:
    """What a consumer of the group reads first."""
    table = store.scan("t", {partition: offset}, columns=["partition", "value"]).to_arrow()
    values = [row["value"] for row in table.to_pylist() if row["partition"] == partition]
    return values[0] if values else None


def test_a_group_goes_on_with_the_next_record(kafka: MockKafka, store: Store) -> None:
    """Wherever it is, before and behind a gap; a partition without an offset is left alone."""
    for offset in (0, 1, 9, 10, 15, 19, 20):
        commit(kafka, {0: offset, 1: 5})
        done = translate_offsets(store, kafka.servers, "g", ["t"])
        assert [(one.partition, one.source_offset) for one in done] == [(0, offset), (1, 5)]
        wanted = None if offset == 20 else b"v%d" % offset
        assert next_value(store, 0, done[0].after) == wanted, offset
    assert done[1] == TranslatedOffset("t", 1, 5, 5, 5)
    offsets = {(one.topic, one.partition): one.offset for one in store.groups.describe("g").offsets}
    assert offsets == {("t", 0): 23, ("t", 1): 5}


@pytest.mark.parametrize("back", [False, True], ids=["in", "back"])
@pytest.mark.parametrize(
    ("kind", "time_ms"),
    [("CreateTime", 1_700_000_000_000), ("LogAppendTime", 1_700_000_000_000), ("CreateTime", 0)],
    ids=["CreateTime", "LogAppendTime", "time 0"],
)
def test_times_count_unless_a_side_has_its_own(
    kafka: MockKafka, tmp_path: Path, kind: str, time_ms: int, *, back: bool
) -> None:
    """In any case keys and values do; and times where both sides have those that were given."""
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")
    config = {"message.timestamp.type": kind}
    store.topics.create("t", partitions=PARTITIONS, config=config)
    times = [time_ms + n * bool(time_ms) for n in range(6)]
    values = [b"v%d" % n for n in range(6)]

    def send_here(value: bytes, time: int) -> None:
        with store.producer() as producer:
            given = None if kind == "LogAppendTime" else time
            producer.send("t", value, key=b"k", partition=0, timestamp_ms=given)

    def send_there(value: bytes, time: int) -> None:
        kafka.send("t", [(0, b"k", value, time, ())])

    source, target = (send_here, send_there) if back else (send_there, send_here)
    for value, time in zip(values, times, strict=True):
        source(value, time)
    bridge = KafkaSink if back else KafkaSource
    bridge(store, kafka.servers, ["t"]).run(until_end=True)
    if back:
        store.groups.reset_offsets("g", to={TopicPartition("t", 0): 4})
    else:
        commit(kafka, {0: 4})

    def translate() -> list[int]:
        found = translate_offsets(store, kafka.servers, "g", ["t"], back=back, dry_run=True)
        return [one.after for one in found]

    assert translate() == [4]
    target(values[-1], times[-1] + 1000)
    with pytest.raises(BridgeFailed, match="the last 2 records of the copy are not those"):
        translate()


@pytest.mark.parametrize("changes", ["value", "time"])
def test_another_record_in_the_place_of_the_last_is_refused(
    kafka: MockKafka, tmp_path: Path, changes: str
) -> None:
    store = txnlog.open(str(tmp_path), create=True)
    kafka.make("t")
    kafka.send("t", rows(0, 5))
    KafkaSource(store, kafka.servers, ["t"]).run(until_end=True)
    commit(kafka, {0: 4})
    with store.producer() as producer:
        value = b"other" if changes == "value" else b"v4"
        time = 1_700_000_000_004 + (changes == "time")
        producer.send("t", value, key=b"k", partition=0, timestamp_ms=time)
    with pytest.raises(BridgeFailed, match="the last 1 records of the copy are not those"):
        translate_offsets(store, kafka.servers, "g", ["t"])


def test_what_does_not_fit_is_refused(kafka: MockKafka, store: Store) -> None:
    """Others have written here, the bridge is behind, or there is nothing; the group stays."""

    def refused(reason: str, *topics: str, name: str = "bridge") -> None:
        with pytest.raises(BridgeFailed, match=reason):
            translate_offsets(store, kafka.servers, "g", topics or ["t"], name=name)
        assert "g" not in store.groups.list()

    refused("no offsets of group 'g'")
    commit(kafka, {0: 20, 1: 5})
    kafka.send("t", rows(20, 2))
    commit(kafka, {0: 21})
    refused("has read up to offset 21, and the bridge has copied up to 20")
    commit(kafka, {0: 12})
    refused("copied up to 0", name="another")
    with store.producer() as producer:
        producer.send("t", b"v19", key=b"k", partition=0)
    refused("t:0: the last 8 records of the copy are not those")
    commit(kafka, {0: 20})
    refused("t:0: the last 1 records of the copy are not those")
    with pytest.raises(UnknownTopicOrPartition):
        translate_offsets(store, kafka.servers, "g", ["gone"])
    with pytest.raises(InvalidOption, match="list of topics"):
        translate_offsets(store, kafka.servers, "g", [])


def test_without_a_bridge(kafka: MockKafka, tmp_path: Path) -> None:
    kafka.make("t")
    store = txnlog.open(str(tmp_path), create=True)
    with pytest.raises(BridgeFailed, match="no bridge has copied"):
        translate_offsets(store, kafka.servers, "g", ["t"])


def test_partitions_that_are_empty(kafka: MockKafka, store: Store) -> None:
    """Nothing to compare there and here is the beginning; records here alone are refused."""
    commit(kafka, {2: 0})
    assert translate_offsets(store, kafka.servers, "g", ["t"])[0].after == 0
    with store.producer() as producer:
        producer.send("t", b"mine", partition=2)
    with pytest.raises(BridgeFailed, match="t:2: no record is left"):
        translate_offsets(store, kafka.servers, "g", ["t"])


@pytest.mark.parametrize(
    ("options", "passes"),
    [({"yes": True}, [False]), ({}, [True, False]), ({"yes": True, "dry_run": True}, [True])],
)
def test_who_need_not_be_asked_compares_once(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], passes: list[bool]
) -> None:
    """All that a group has not read is read on both sides each time."""
    done: list[bool] = []

    def translate(*_: object, dry_run: bool = False, **__: object) -> list[TranslatedOffset]:
        done.append(dry_run)
        return [TranslatedOffset("t", 0, 5, None, 5)]

    monkeypatch.setattr("txnlog.bridge.translate_offsets", translate)
    output = SimpleNamespace(rows=lambda _, moved: shown.extend(moved))
    shown: list[TranslatedOffset] = []
    session: Any = SimpleNamespace(open_store=lambda **_: None, output=output)
    translate_group(session, "g", ["t"], source="kafka://here", **options)
    assert done == passes
    assert [one.after for one in shown] == [5]


def test_the_command_shows_before_it_acts(kafka: MockKafka, store: Store) -> None:
    """A dry run, a question where offsets are lost, one commit."""
    commit(kafka, {0: 15, 1: 2})
    cluster = f"kafka://{kafka.servers}"
    # By force, since the mock does not tell whether the group has members.
    words = ("groups", "translate", "g", "--from", cluster, "--topics", "t", "--force")
    at = ("--store", store.url, "-o", "json")
    dry = cli(*words, "--dry-run", *at)
    shown = json.loads(dry.out)
    assert [(one["source_offset"], one["before"], one["after"]) for one in shown] == [
        (15, None, 18),
        (2, None, 2),
    ]
    assert store.groups.list() == []
    assert "dry run" in dry.err
    assert cli(*words, *at).json() == shown
    commit(kafka, {0: 16})
    unasked = cli(*words, *at)
    assert (unasked.code, "move 1 offset(s) of group g" in unasked.err) == (2, True)
    assert [one["after"] for one in cli(*words, "--yes", *at).json()] == [19, 2]
    consumer = store.consumer("t", group_id="g")
    consumer.poll()
    with pytest.raises(GroupNotEmpty):
        translate_offsets(store, kafka.servers, "g", ["t"])
    translate_offsets(store, kafka.servers, "g", ["t"], force=True)
    consumer.close()
    offsets = {one.partition: one.offset for one in store.groups.describe("g").offsets}
    assert offsets == {0: 19, 1: 2}


def test_a_group_goes_back_to_kafka(kafka: MockKafka, tmp_path: Path) -> None:
    """To the record that it would have read here, behind aborted ones that take offsets here."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    kafka.make("t", f"_txnlog_positions.bridge.{store.store_id}")
    kafka.send("t", rows(100, 3))  # before the bridge
    store.topics.create("t", partitions=PARTITIONS)
    producer = store.producer(transactional_id="w")
    producer.init_transactions()
    for number in range(12):
        producer.begin_transaction()
        producer.send("t", b"v%d" % number, b"k", partition=0)
        producer.flush()
        (producer.abort_transaction if number in (3, 4) else producer.commit_transaction)()
    sink = KafkaSink(store, kafka.servers, ["t"])
    sink.run(until_end=True)
    store.groups.reset_offsets("g", to={TopicPartition("t", 0): 0, TopicPartition("t", 3): 0})
    for offset, after in ((0, 3), (5, 6), (12, 14)):  # at last behind a marker
        store.groups.reset_offsets("g", to={TopicPartition("t", 0): offset})
        dry = translate_offsets(store, kafka.servers, "g", ["t"], back=True, dry_run=True)
        done = translate_offsets(store, kafka.servers, "g", ["t"], back=True)
        assert done == dry
        assert [(one.partition, one.source_offset, one.after) for one in done] == [
            (0, offset, after),
            (3, 0, 0),
        ]
    assert done[0].before == 6
    store.topics.create("other")
    with pytest.raises(BridgeFailed, match="no offsets for these topics"):
        translate_offsets(store, kafka.servers, "g", ["other"], back=True)
    producer.begin_transaction()
    producer.send("t", b"late", b"k", partition=0)
    producer.commit_transaction()
    store.groups.reset_offsets("g", to={TopicPartition("t", 0): 13})
    with pytest.raises(BridgeFailed, match="read up to offset 13, and the bridge has copied up to"):
        translate_offsets(store, kafka.servers, "g", ["t"], back=True)
    sink.run(until_end=True)
    kafka.send("t", rows(7, 1))
    with pytest.raises(BridgeFailed, match="not those that the group"):
        translate_offsets(store, kafka.servers, "g", ["t"], back=True)
    producer.close()
    consumer = store.consumer("t", group_id="g")
    consumer.poll()
    with pytest.raises(GroupNotEmpty, match="stop them first"):
        translate_offsets(store, kafka.servers, "g", ["t"], back=True)
    consumer.close()
    both = ("groups", "translate", "g", "--topics", "t", "--store", store.url)
    assert "give --from or --to" in cli(*both).err
