"""What operations cost in requests, as design and docs/PROTOCOL.md promise: the same everywhere."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import txnlog
from tests.support.steps import new_store
from txnlog.log.chapters import CHAPTER
from txnlog.log.group_metadata import GroupMetadata
from txnlog.log.manifests import FANOUT, SETTLED_AT_ONCE
from txnlog.log.state_log import CHECKPOINT_INTERVAL
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

SOURCE = TopicPartition("in", 0)


@pytest.fixture
def counting(memory_storage: Storage) -> CountingStorage:
    return CountingStorage(memory_storage)


@pytest.fixture
def store(counting: CountingStorage) -> Store:
    return new_store(counting, VirtualClock(), dict.fromkeys(("in", "a", "b", "c"), 4))


def send_to_each_partition(producer: Producer) -> None:
    for partition in range(4):
        producer.send("a", b"x", partition=partition)


def test_a_plain_write_is_one_listing_and_one_put(store: Store, counting: CountingStorage) -> None:
    """One topic, no transaction, four partitions: one upload, one listing, one put."""
    producer = store.producer()
    for turn in range(3):
        send_to_each_partition(producer)
        counting.take()
        producer.flush()
        assert counting.take() == {"list": 1, "put_if_absent": 1, "upload": 1}, turn


def test_a_transaction_is_five_rounds(store: Store, counting: CountingStorage) -> None:
    """T topics and a group, steady state: 3 + 2 (T + 1) puts and one listing per log touched."""
    topics = ["a", "b", "c"]
    producer = store.producer(transactional_id="etl")
    producer.init_transactions()
    for turn in range(4):
        producer.begin_transaction()
        for topic in topics:
            for partition in range(4):
                producer.send(topic, b"x", partition=partition)
        start = turn or None
        producer.send_offsets_to_transaction(
            {SOURCE: turn + 1}, GroupMetadata("g", {SOURCE: start})
        )
        counting.take()
        producer.commit_transaction()
        spent = counting.take()
        assert spent.pop("upload") == len(topics)
        assert spent == {"list": 4, "put_if_absent": 3 + 2 * (len(topics) + 1)}, turn


@pytest.mark.parametrize("kind", ["plain", "transaction"])
def test_a_small_commit_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """16 records to 8 partitions (of 2 topics, and a group): files, links, syncs, no new thread."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    for topic in ("in", "a", "b"):
        store.topics.create(topic, partitions=8)
    producer = store.producer(transactional_id="etl" if kind == "transaction" else None)
    if kind == "transaction":
        producer.init_transactions()

    def commit(turn: int) -> None:
        if kind == "transaction":
            producer.begin_transaction()
        for topic in ("a", "b") if kind == "transaction" else ("a",):
            for number in range(16):
                producer.send(topic, b"%d" % number, partition=number % 8)
        if kind == "plain":
            producer.flush()
            return
        producer.send_offsets_to_transaction(
            {SOURCE: turn + 1}, GroupMetadata("g", {SOURCE: turn or None})
        )
        producer.commit_transaction()

    for turn in range(3):
        commit(turn)
    done: Counter[str] = Counter()

    def count(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def counted(*arguments: object, **named: object) -> object:
            done[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    count(os, "fsync")
    count(os, "link")
    count(threading.Thread, "start")
    before = {name for name, _ in store.storage.list_all("")}
    commit(3)
    made = {name for name, _ in store.storage.list_all("")} - before
    files = {"plain": 2, "transaction": 11}[kind]
    assert len(made) == files
    assert len([name for name in made if "/data/shared/" in name]) == (1 if kind == "plain" else 2)
    assert done["link"] == files
    assert done["fsync"] == 2 * files
    # A round may find the threads of the one before it busy still; it starts few, if any.
    assert done["start"] <= 4


@pytest.mark.parametrize("entries", [10, 500])
def test_opening_a_topic_does_not_grow_with_its_history(
    store: Store, counting: CountingStorage, entries: int
) -> None:
    """Two listings, one checkpoint, and at most a checkpoint interval of entries; manifests."""
    producer = store.producer()
    for _ in range(entries):
        producer.send("a", b"x")
        producer.flush()
    fresh = attach(counting, clock=VirtualClock())
    counting.take()
    fresh.scan("a")
    spent = counting.take()
    assert spent.pop("list") == 2
    assert spent.pop("get") <= 1 + CHECKPOINT_INTERVAL + 1 + 2 * FANOUT
    assert spent == {}


def test_a_commit_costs_what_the_second_one_did(store: Store, counting: CountingStorage) -> None:
    """After 300 transactions, none of them old enough to be cleaned away."""
    producer = store.producer(transactional_id="etl")
    producer.init_transactions()
    spent = []
    for _ in range(300):
        counting.take()
        with producer.transaction():
            producer.send("a", b"x")
        spent.append(counting.take())
    assert spent.pop(0)["list"] == 2, "the first send reads the topic's settings"
    usual = Counter({"list": 1, "put_if_absent": 5, "upload": 1})
    dear = [Counter(spent_once) - usual for spent_once in spent if spent_once != usual]
    checkpoints, chapters = 300 // CHECKPOINT_INTERVAL + 1, 300 // CHAPTER + 900 // 96
    assert len(dear) <= checkpoints + chapters
    # A checkpoint; a look at the log, a mark or two that close chapters, how old the oldest one is;
    # a manifest, its list, and what they stand for.
    checkpoint = Counter({"put_if_absent": 1, "delete": 1})
    closing = Counter({"put_if_absent": 2, "list": 1, "get": 1, "modified": 1})
    settling = Counter({"list": 2, "get": 1, "put": 1, "put_if_absent": 1, "delete": 1})
    assert all(extra <= checkpoint + closing + closing + settling for extra in dear)
    assert sum(extra["put"] for extra in dear) <= 300 // SETTLED_AT_ONCE
    most = 2 * checkpoints + 6 * chapters + 6 * (300 // SETTLED_AT_ONCE)
    assert sum(extra.total() for extra in dear) <= most


def test_a_commit_does_not_grow_with_the_history(memory_storage: Storage) -> None:
    """600 transactions of one producer, 50 in each cleaning age: neither its log nor its costs."""
    age_ms, clock, counting = 3_600_000, VirtualClock(), CountingStorage(memory_storage)
    store = attach(counting, create=True, clock=clock, config={"log.cleanup.age.ms": age_ms})
    store.topics.create("a")
    producer = store.producer(transactional_id="etl")
    producer.init_transactions()
    reader = attach(counting, clock=clock)
    spent: list[Counter[str]] = []
    for turn in range(600):
        clock.time_ms += age_ms // 50
        counting.take()
        with producer.transaction():
            producer.send("a", b"x")
        if turn % 100 == 0:
            spent.append(Counter())
            assert len(memory_storage.list_names("transactions/etl")) < 400, turn
            assert len(memory_storage.list_names("topics/a/log")) < 310, turn
        spent[-1].update(counting.take())
    totals = [hundred.total() for hundred in spent[1:]]
    assert max(totals) < 100 * (1 + 5 + 1) + 60, "a listing, five puts, an upload each"
    assert max(totals) - min(totals) <= 16, "a manifest more or less, or a few that are joined"
    assert reader.scan("a").record_count == 600


def test_a_reader_lists_only_the_newest_states(store: Store, counting: CountingStorage) -> None:
    """Settling looks at an id's log from where it was last seen, however long it is."""
    producer = store.producer(transactional_id="etl")
    producer.init_transactions()
    listed = []
    list_names = counting.inner.list_names

    def recording(folder: str, start_after: str = "") -> list[str]:
        found = list_names(folder, start_after)
        listed.append(len(found) if folder.startswith("transactions/") else 0)
        return found

    counting.inner.list_names = recording  # type: ignore[method-assign]
    reader = attach(counting, clock=VirtualClock())
    for _ in range(50):
        with producer.transaction():
            producer.send("a", b"x")
            producer.flush()
            listed.clear()
            reader.scan("a")
            assert max(listed) <= 4


def test_a_plan_touches_no_segment(store: Store, counting: CountingStorage) -> None:
    """Planning a scan of many segments costs what planning one costs."""
    producer = store.producer()
    for _ in range(40):
        send_to_each_partition(producer)
        producer.flush()
    counting.take()
    scan = store.scan("a")
    assert len(scan.ranges) == 160
    assert scan.record_count == 160
    assert counting.take() == {"list": 1}


@pytest.mark.parametrize("record_format", ["columns", "auto"])
def test_reading_one_record_fetches_little(
    store: Store, counting: CountingStorage, record_format: str
) -> None:
    """A point read in a large segment uses its index: not the whole segment is fetched."""
    store.topics.create("large", config={"record.format": record_format})
    data = np.random.default_rng(1).bytes(20_000_000)
    values = [data[at : at + 100] for at in range(0, len(data), 100)]
    with store.producer() as producer:
        producer.send_batch("large", pa.record_batch({"value": values}))
    (segment,) = store.topics.segments("large")
    assert segment.paths.is_parquet == (record_format == "auto")
    size = segment.size_bytes
    fetched = []
    inner_get_range = counting.inner.get_range

    def recording(name: str, start: int, stop: int) -> bytes:
        fetched.append(stop - start)
        return inner_get_range(name, start, stop)

    counting.inner.get_range = recording  # type: ignore[method-assign]
    table = store.scan("large", {0: 150_000}, {0: 150_001}).to_arrow()
    assert table.column("offset").to_pylist() == [150_000]
    assert sum(fetched) < size / 4


def test_looking_up_a_time_uses_the_time_index(store: Store, counting: CountingStorage) -> None:
    """A lookup in a large segment: two index files and a few ranges, not one per batch."""
    rows = 200_000
    batch = pa.record_batch(
        {
            "value": [b"%0100d" % number for number in range(rows)],
            "timestamp": pa.array(range(rows), pa.int64()),
        }
    )
    store.topics.create("large", config={"record.format": "columns"})
    with store.producer() as producer:
        producer.send_batch("large", batch)
    assert store.topics.segments("large")[0].batch_count > 10
    consumer = store.consumer("large")
    for wanted in (0, 123_456, rows - 1):
        counting.take()
        where = TopicPartition("large", 0)
        found = consumer.offsets_for_times({where: wanted})[where]
        assert found is not None
        assert (found.offset, found.timestamp) == (wanted, wanted)
        spent = counting.take()
        assert spent["get"] == 2
        assert spent["get_range"] <= 5
