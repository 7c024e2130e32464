"""A standby beside its source: the same records, whatever was rewritten, trimmed or deleted."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import append
from txnlog.names import TopicPartition
from txnlog.replication import Standby
from txnlog.replication.standby.data_files import DataFileCopier
from txnlog.replication.standby.follower import Follower
from txnlog.replication.standby.standby_storage import find_at
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

DAY_MS = 86_400_000
AGES = {"log.cleanup.age.ms": 1_000, "transaction.max.timeout.ms": 1_000}
DELETES_AT_ONCE = {"file.delete.delay.ms": 0}
COMPACTS = {**DELETES_AT_ONCE, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


class Pair:
    """A source to which things happen by chance, and its standby."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = VirtualClock(seed=seed)
        self.storage = HeapStorage()
        self.storage.time_ms = lambda: self.clock.time_ms
        self.store = attach(self.storage, create=True, clock=self.clock, config=AGES)
        self.target = HeapStorage()
        self.standby = self.follower()
        self.store.topics.create("plain", partitions=2, config=DELETES_AT_ONCE)
        self.store.topics.create("compacted", config=COMPACTS)
        columns = pa.schema([("k", pa.string()), ("v", pa.int64())])
        self.store.topics.create("typed", schema=columns, key=["k"], config=DELETES_AT_ONCE)

    def follower(self) -> Follower:
        return Follower(attach(self.storage, clock=self.clock), self.target)

    def write(self, step: int) -> None:
        name = f"x{self.chance.randrange(3)}"
        producer = self.store.producer(transactional_id=name, transaction_timeout_ms=1_000)
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(self.chance.randrange(1, 8)):
            key = f"k{self.chance.randrange(6)}"
            producer.send("plain", b"%d" % step)
            producer.send("compacted", b"%d" % step, key.encode())
            producer.send("typed", {"k": key, "v": step})
            if self.chance.random() < 0.3:
                producer.flush()
        if self.chance.random() < 0.2:
            producer.abort_transaction()
            return
        producer.commit_transaction()
        if self.chance.random() < 0.1:
            producer.begin_transaction()
            producer.send("plain", b"open")
            producer.flush()

    def step(self, number: int) -> None:
        drawn = self.chance.random()
        if drawn < 0.6:
            self.write(number)
        elif drawn < 0.8:
            self.clock.time_ms += self.chance.choice([1_000, 100_000, 10 * DAY_MS])
            self.store.maintain()
        elif drawn < 0.86:
            at = self.store.topics.describe("plain").partitions[0]
            start = self.chance.randint(at.log_start_offset, at.last_stable_offset)
            self.store.topics.delete_records({TopicPartition("plain", 0): start})
        elif drawn < 0.9:
            self.store.topics.delete("compacted")
            self.store.topics.create("compacted", config=COMPACTS)
        else:
            if self.chance.random() < 0.3:
                self.standby = self.follower()
            self.standby.follow()
            if self.chance.random() < 0.5:
                self.standby.sweep()
            self.compare()

    def compare(self) -> None:
        found = find_at(self.target)
        assert found is not None
        copy = attach(found, clock=VirtualClock(self.clock.time_ms, seed=1001))
        assert copy.topics.list() == self.store.topics.list()
        for topic in copy.topics.list():
            for level in ("read_committed", "read_uncommitted"):
                there = self.store.scan(topic, isolation_level=level).to_arrow()
                assert copy.scan(topic, isolation_level=level).to_arrow().equals(there), topic
        check(copy)

    def promote(self) -> Store:
        found = find_at(self.target)
        assert found is not None
        Standby(attach(found, clock=self.clock)).promote()
        return attach(self.target, clock=VirtualClock(self.clock.time_ms + DAY_MS, seed=2002))


def check(store: Store) -> None:
    found = store.examine(with_probe=False)
    assert not [one for one in found if one.state in ("damage", "unreadable")]


@pytest.mark.more
@pytest.mark.parametrize("seed", range(3))
def test_a_standby_holds_what_its_source_does(seed: int) -> None:
    """Through compaction, merges, trims, deleted topics and sweeps; and as a store of its own."""
    pair = Pair(seed)
    for number in range(50):
        pair.step(number)
    pair.standby.follow()
    pair.standby.sweep()
    pair.compare()
    store = pair.promote()
    for number in range(100):
        with store.producer() as producer:
            producer.send("plain", b"%d" % number)
    store.maintain()
    check(store)


def test_manifests_that_a_killed_round_has_left_are_made_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was killed between a put and its sync; whoever has copied them asks no second time."""
    settle_early(monkeypatch)
    source, target = HeapStorage(like_disk=True), CountingStorage(HeapStorage(like_disk=True))
    store = attach(source, create=True, clock=VirtualClock())
    store.topics.create("t")
    for number in range(9):
        append(store, b"%d" % number)
    listing = store.logs.topic("t").manifests.newest()
    assert listing is not None
    assert isinstance(target.inner, HeapStorage)
    with target.inner.failing_sync():
        DataFileCopier(source, target).copy_manifests("t", listing)
    assert len(target.inner.unsynced) == len(listing.files)
    copier = DataFileCopier(source, target)
    copier.copy_manifests("t", listing)
    assert target.inner.unsynced == []
    target.take()
    copier.copy_manifests("t", listing)
    assert target.take() == {"list": 1}
