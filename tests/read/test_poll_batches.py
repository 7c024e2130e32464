"""poll_batches: Arrow by partition, within bounds, with positions that follow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.steps import another, append, new_store
from txnlog import ConsumerConfig
from txnlog.errors import StorageError
from txnlog.names import TopicPartition
from txnlog.read.consumer_reads import in_turns
from txnlog.read.plan import SCAN_SCHEMA
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, VirtualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Batches = dict[TopicPartition, list[pa.RecordBatch]]


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    """Two partitions with twenty segments of a thousand bytes each."""
    store = new_store(memory_storage, clock, {"t": 2})
    for number in range(20):
        with store.producer() as producer:
            for partition in (0, 1):
                producer.send("t", bytes([number]) * 1000, partition=partition)
    return store


def offsets(found: Batches) -> dict[TopicPartition, list[int]]:
    return {
        where: pa.Table.from_batches(batches).column("offset").to_pylist()
        for where, batches in found.items()
    }


def test_batches_are_those_of_a_scan(store: Store) -> None:
    """The same columns and records; positions are behind them, and a part can be committed."""
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    found = consumer.poll_batches()
    assert {batch.schema for batches in found.values() for batch in batches} == {SCAN_SCHEMA}
    scanned = store.scan("t").to_arrow()
    assert pa.Table.from_batches([b for mine in found.values() for b in mine]) == scanned
    assert {where: consumer.position(where) for where in (T0, T1)} == {T0: 20, T1: 20}
    assert consumer.poll_batches() == consumer.poll_batches(timeout_ms=50) == {}
    consumer.commit({T0: 7})
    consumer.close()
    again = another(store).consumer("t", group_id="g", auto_offset_reset="earliest")
    assert offsets(again.poll_batches()) == {T0: [*range(7, 20)], T1: [*range(20)]}
    again.commit()
    assert store.groups.describe("g").lag == 0


def test_what_a_poll_returns_is_bounded(store: Store) -> None:
    """By all its bytes, and by those of a partition; a batch that is larger comes alone."""
    for settings, most in (
        (ConsumerConfig(fetch_max_bytes=5_500), 5),
        (ConsumerConfig(max_partition_fetch_bytes=3_300), 6),
        (ConsumerConfig(fetch_max_bytes=1), 1),
    ):
        consumer = store.consumer("t", auto_offset_reset="earliest", config=settings)
        sizes: list[int] = []
        seen: dict[TopicPartition, list[int]] = {T0: [], T1: []}
        while found := consumer.poll_batches():
            sizes.append(sum(len(batches) for batches in found.values()))
            for where, mine in offsets(found).items():
                seen[where] += mine
        assert seen == {T0: [*range(20)], T1: [*range(20)]}
        assert max(sizes) <= most
        assert max(sizes) >= (most + 1) // 2


def test_partitions_take_turns_by_their_bytes(store: Store) -> None:
    """A limited part of each in turn; small ones are read whole and in order."""
    view = store.snapshot("t").view("t")
    ranges = view.visible_ranges({0: 0, 1: 0}, {0: 20, 1: 20})
    size = ranges[0].size_bytes
    places = [(part.partition, part.start_offset) for part in in_turns(ranges, 8 * size)]
    assert [partition for partition, _ in places] == [0] * 8 + [1] * 8 + [0] * 8 + [1] * 8 + [
        *[0] * 4,
        *[1] * 4,
    ]
    assert [at for partition, at in places if partition == 0] == [*range(20)]
    assert in_turns(ranges, 1 << 20) == ranges
    assert [part.partition for part in in_turns(ranges, 1)] == [0, 1] * 20


@pytest.mark.parametrize("columns", ["__", "aa", "ab", "_a", "aba"])
@pytest.mark.parametrize("as_batches", [False, True], ids=["records", "batches"])
def test_topics_take_turns_whatever_their_columns(
    memory_storage: Storage, clock: VirtualClock, columns: str, *, as_batches: bool
) -> None:
    """Each topic has one column of this name, or is untyped."""
    store = new_store(memory_storage, clock, {})
    topics = {f"{number}{name}": name for number, name in enumerate(columns)}
    for topic, name in topics.items():
        store.topics.create(topic, schema=None if name == "_" else pa.schema({name: pa.int64()}))
    for number in range(4):
        for topic, name in topics.items():
            with store.producer() as producer:
                producer.send(topic, b"%d" % number if name == "_" else {name: number})
    consumer = store.consumer(
        *topics,
        auto_offset_reset="earliest",
        config=ConsumerConfig(max_partition_fetch_bytes=1, fetch_max_bytes=1),
    )
    order: list[tuple[str, int]] = []
    if as_batches:
        while found := consumer.poll_batches():
            for where, batches in found.items():
                shown = "value" if topics[where.topic] == "_" else topics[where.topic]
                order += [(where.topic, int(v)) for b in batches for v in b[shown].to_pylist()]
    else:
        for record in consumer.poll():
            shown = topics[record.topic]
            value = record.value if shown == "_" else record.value[shown]
            order.append((record.topic, int(value)))
    assert order == [(topic, number) for number in range(4) for topic in topics]


def test_records_and_batches_may_be_mixed(memory_storage: Storage, clock: VirtualClock) -> None:
    """Records fetched but not returned by one are returned by the other, in whole columns."""
    store = new_store(memory_storage, clock, {"t": 2})
    for _ in range(8):
        append(store, *[bytes(100)] * 20)
    consumer = store.consumer(
        "t", auto_offset_reset="earliest", config=ConsumerConfig(max_partition_fetch_bytes=5_000)
    )
    seen: dict[TopicPartition, list[int]] = {T0: [], T1: []}
    for turn in range(60):
        if turn % 2:
            for record in consumer.poll(max_records=2):
                seen[TopicPartition(record.topic, record.partition)].append(record.offset)
        else:
            found = consumer.poll_batches()
            assert {b.schema for mine in found.values() for b in mine} <= {SCAN_SCHEMA}
            for where, mine in offsets(found).items():
                seen[where] += mine
    assert seen == {T0: [*range(80)], T1: [*range(80)]}


def test_batches_that_fail_midway_come_again(store: Store, clock: VirtualClock) -> None:
    """Nothing is passed over: the positions are where they were."""
    storage = FaultyStorage(store.storage)
    consumer = attach(storage, clock=clock).consumer("t", auto_offset_reset="earliest")
    get_range, reads = storage.get_range, 0

    def failing(name: str, start: int, stop: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 5:
            raise StorageError("503")
        return get_range(name, start, stop)

    storage.get_range = failing  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="503"):
        consumer.poll_batches()
    assert consumer.position(T0) == 0
    assert offsets(consumer.poll_batches()) == {T0: [*range(20)], T1: [*range(20)]}


def test_a_typed_topics_batches_have_its_columns(memory_storage: Storage) -> None:
    """And what else is known of a record; a poll shows them as rows."""
    store = attach(memory_storage, create=True)
    store.topics.create("typed", schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    store.topics.create("plain")
    with store.producer() as producer:
        producer.send_batch("typed", pa.table({"id": [1, 2], "name": ["a", None]}))
    append(store, b"x", topic="plain")
    consumer = store.consumer("typed", "plain", auto_offset_reset="earliest")
    assert [record.value for record in consumer.poll(max_records=1)] == [{"id": 1, "name": "a"}]
    found = consumer.poll_batches()
    (typed,) = found[TopicPartition("typed", 0)]
    assert typed.select(["id", "name", "_offset"]).to_pylist() == [
        {"id": 2, "name": None, "_offset": 1}
    ]
    assert typed.schema.names == ["id", "name", "_offset", "_timestamp", "_headers"]
    (plain,) = found[TopicPartition("plain", 0)]
    assert plain.column("value").to_pylist() == [b"x"]
    assert consumer.position(TopicPartition("typed", 0)) == 2
