"""The record with the greatest time, against what a scan says."""

from __future__ import annotations

import random

import txnlog
from txnlog.names import TopicPartition
from txnlog.storage.adapters.memory import MemoryStorage
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach


def find(store: txnlog.Store) -> list[tuple[int | None, int | None]]:
    listed = store.topics.offsets(["t"], at="max-timestamp")
    return [(at.offset, at.timestamp_ms) for at in listed]


def newest(store: txnlog.Store, partition: int) -> tuple[int | None, int | None]:
    """What a reader sees of it."""
    columns = ["partition", "offset", "timestamp"]
    rows = store.scan("t", columns=columns).to_arrow().to_pylist()
    own = [
        (round(row["timestamp"].timestamp() * 1000), -row["offset"])
        for row in rows
        if row["partition"] == partition
    ]
    timestamp_ms, offset = max(own, default=(None, None))
    return None if offset is None else -offset, timestamp_ms


def test_the_newest_record_is_what_a_scan_finds() -> None:
    """Times in any order and often the same, aborted transactions, starts moved up by steps."""
    for seed in range(3):
        chance = random.Random(seed)
        store = attach(MemoryStorage(f"newest-{seed}"), create=True)
        store.topics.create("t", partitions=3)
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        for _ in range(6):
            producer.begin_transaction()
            for _ in range(chance.randint(1, 6)):
                at_ms = 1_700_000_000_000 + chance.choice((0, 7, 5_000, 86_400_000)) % 90_000_000
                producer.send("t", b"v", None, chance.randint(0, 1), at_ms + chance.randint(0, 2))
            (producer.commit_transaction if chance.random() < 0.7 else producer.abort_transaction)()
        ends = store.snapshot(["t"]).end_offsets("t")
        for start in range(0, max(ends.values()) + 1, 3):
            store.topics.delete_records({TopicPartition("t", p): min(start, ends[p]) for p in ends})
            assert find(store) == [newest(store, number) for number in range(3)], (seed, start)


def test_one_segment_is_read_for_it() -> None:
    """Of many, the one that says it has the newest."""
    counting = CountingStorage(MemoryStorage("newest"))
    store = attach(counting, create=True)
    store.topics.create("t")
    with store.producer() as producer:
        for number in (1, 9, 4, 3):
            producer.send("t", b"v", None, 0, 1_700_000_000_000 + number)
            producer.flush()
    find(store)
    counting.take()
    assert find(store) == [(1, 1_700_000_000_009)]
    assert counting.counts["get_range"] <= 2
