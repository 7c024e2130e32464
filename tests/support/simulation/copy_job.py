"""The main job in small, for tests that stop it anywhere; and the judge of what it leaves.

A transactional producer copies records from ``in`` to ``a`` and ``b``, moves the group's offsets,
and aborts a transaction in between. The judge knows only the input.
"""

from __future__ import annotations

from tests.support.steps import values
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

INPUT = [b"record %d" % number for number in range(6)]


def prepare(storage: Storage) -> None:
    """A store with an input topic of six records and two empty topics."""
    store = attach(storage, create=True, clock=VirtualClock(seed=1))
    store.topics.create("in")
    store.topics.create("a", partitions=2)
    store.topics.create("b")
    with store.producer() as producer:
        for value in INPUT:
            producer.send("in", value, partition=0)


PREPARED = HeapStorage()
prepare(PREPARED)


def copy_all(store: Store, *, abort_once: bool = False) -> None:
    """Consume, produce to two topics, in transactions of two records, until nothing is left."""
    with store.producer(transactional_id="copy") as producer:
        producer.init_transactions()
        if abort_once:
            producer.begin_transaction()
            producer.send("a", b"never seen", partition=0)
            producer.flush()
            producer.abort_transaction()
        while True:
            consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
            consumer.assign([TopicPartition("in", 0)])
            records = consumer.poll(max_records=2)
            if not records:
                return
            with producer.transaction():
                for record in records:
                    producer.send("a", record.value, key=record.value)
                    producer.send("b", record.value)
                producer.send_offsets_to_transaction(
                    {TopicPartition("in", 0): records[-1].offset + 1}, consumer.group_metadata()
                )


def judge(storage: Storage, context: str) -> None:
    """Nothing lost, nothing doubled, nothing aborted seen, the offsets at the end, none open."""
    store = attach(storage, clock=VirtualClock(seed=9))
    assert sorted(values(store, "a")) == INPUT, context
    assert sorted(values(store, "b")) == INPUT, context
    assert [offset.offset for offset in store.groups.describe("g").offsets] == [len(INPUT)], context
    for topic in ("a", "b"):
        for partition in store.topics.describe(topic).partitions:
            assert partition.last_stable_offset == partition.end_offset, context
        assert not store.topics.describe(topic).open_transactions, context


def check_whole_transactions(storage: Storage, context: str) -> None:
    """At any moment: ``a`` and ``b`` hold the same records, and an even number of them."""
    store = attach(storage, clock=VirtualClock(seed=8))
    snapshot = store.snapshot(["a", "b"], isolation_level="snapshot")
    seen = {
        topic: sorted(snapshot.scan(topic).to_arrow().column("value").to_pylist())
        for topic in ("a", "b")
    }
    assert seen["a"] == seen["b"], context
    assert len(seen["a"]) % 2 == 0, context


def requests_of_one_run() -> int:
    storage = PREPARED.copy()
    faulty = FaultyStorage(storage)
    copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
    judge(storage, "without any fault")
    return len(faulty.requests)


TOTAL = requests_of_one_run()
