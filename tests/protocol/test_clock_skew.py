"""Hazard 10: wall clocks that are wrong may make something abort early, never make data wrong."""

from __future__ import annotations

import pytest
from faults import FaultyStorage, VirtualClock
from timed_storage import TimedStorage

from txnlog.errors import (
    CommitStateUnknown,
    ProducerFenced,
    StorageError,
)
from txnlog.producer import Producer
from txnlog.state.topic import RECENT_ENTRIES
from txnlog.storage.base import Storage
from txnlog.store import Store, attach

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TIMEOUT_MS = 10_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    config = {"transaction.max.timeout.ms": TIMEOUT_MS}
    store = attach(memory_storage, create=True, clock=clock, config=config)
    for topic in "abc":
        store.create_topic(topic)
    return store


@pytest.fixture
def timed(store: Store, clock: VirtualClock) -> Store:
    """The same store, whose storage has a clock of its own."""
    return attach(TimedStorage(store.storage, clock), clock=clock)


def skewed(store: Store, clock: VirtualClock, ahead_ms: int, seed: int = 1) -> Store:
    """The same store in a process whose clock is wrong."""
    return attach(store.storage, clock=VirtualClock(clock.time_ms + ahead_ms, seed))


def put(store: Store, topic: str, value: bytes = b"x", times: int = 1) -> None:
    with store.producer() as producer:
        for _ in range(times):
            producer.send(topic, value)
            producer.flush()


def begun(store: Store, transactional_id: str) -> Producer:
    producer = store.producer(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def place(producer: Producer, *topics: str) -> None:
    for topic in topics:
        producer.send(topic, b"T")
        producer.flush()


def shown(store: Store, clock: VirtualClock, topics: str) -> dict[str, list[bytes]]:
    """What a process that has just started sees in one snapshot."""
    snapshot = attach(store.storage, clock=clock).snapshot(list(topics))
    return {topic: snapshot.scan(topic).to_arrow().column("value").to_pylist() for topic in topics}


def test_a_fast_clock_doubles_no_append_in_doubt(store: Store, clock: VirtualClock) -> None:
    """Hazard 10: an entry from the future makes a topic forget the producer, not its records."""
    storage = FaultyStorage(store.storage)
    producer = attach(storage, clock=clock).producer()
    producer.send("a", b"in doubt")
    put_if_absent, get = storage.put_if_absent, storage.get

    def lost_put(name: str, data: bytes) -> bool:
        put_if_absent(name, data)
        raise StorageError("the connection was reset")

    def lost_get(name: str) -> bytes:
        raise StorageError("the connection was reset")

    storage.put_if_absent, storage.get = lost_put, lost_get  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown):
        producer.flush()
    storage.put_if_absent, storage.get = put_if_absent, get  # type: ignore[method-assign]
    put(skewed(store, clock, 2 * DAY_MS), "a", b"from the future")
    producer.flush()
    assert shown(store, clock, "a") == {"a": [b"in doubt", b"from the future"]}


def test_a_fast_clock_makes_no_topic_forget_who_writes(store: Store, clock: VirtualClock) -> None:
    """Hazard 10: whoever writes after an entry from the future is remembered as before."""
    producer = store.producer()
    for turn in range(4):
        producer.send("a", b"x")
        producer.flush()
        if turn == 0:
            skewed(store, clock, 2 * DAY_MS).alter_topic("a", config={"segment.bytes": 2048})
    assert [segment.base_sequence for segment in store.segments("a")] == [0, 1, 2, 3]


def test_a_fast_clock_only_aborts_early(store: Store, clock: VirtualClock) -> None:
    """Hazard 10: a reader from the future ends an open transaction; its producer learns it."""
    producer = begun(store, "p")
    place(producer, "a", "b")
    assert shown(store, VirtualClock(clock.time_ms + HOUR_MS), "ab") == {"a": [], "b": []}
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    assert shown(store, clock, "ab") == {"a": [], "b": []}


def test_a_fast_clock_that_stops_does_not_block_for_so_long(
    store: Store, clock: VirtualClock
) -> None:
    """Hazard 10: a producer dies whose clock was a month ahead: a reader waits one timeout."""
    dead = begun(skewed(store, clock, 30 * DAY_MS), "p")
    place(dead, "a")
    put(store, "a")
    reader = attach(store.storage, clock=clock)
    for waited_ms, seen in ((0, 0), (TIMEOUT_MS, 0), (1, 1)):
        clock.time_ms += waited_ms
        assert reader.scan("a").record_count == seen
    assert reader.describe_transaction("p").status == "CompleteAbort"
    # The next transaction of the id has its own time.
    again = begun(skewed(store, clock, 30 * DAY_MS, seed=4), "p")
    place(again, "a")
    assert reader.scan("a").record_count == 1
    again.commit_transaction()
    assert reader.scan("a").record_count == 2


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, 0, DAY_MS])
@pytest.mark.parametrize("times", [40, RECENT_ENTRIES + 40])
def test_a_wrong_clock_tears_no_snapshot(
    timed: Store, clock: VirtualClock, ahead_ms: int, times: int
) -> None:
    """Hazard 10: what a cut needs was let go too early: the snapshot says that it is not atomic."""
    store = timed
    waiting = begun(store, "open")
    place(waiting, "a")
    producer = begun(skewed(store, clock, min(ahead_ms, 0)), "p")
    place(producer, "a", "b")
    producer.commit_transaction()
    put(skewed(store, clock, max(ahead_ms, 0), seed=2), "b", times=times)
    snapshot = attach(store.storage, clock=clock).snapshot(["a", "b"])
    assert snapshot.is_atomic == (not ahead_ms or times < RECENT_ENTRIES)
    seen = {"a": [], "b": []} if snapshot.is_atomic else {"a": [], "b": [b"T", *[b"x"] * times]}
    assert shown(store, clock, "ab") == seen
    waiting.abort_transaction()
    assert shown(store, clock, "ab") == {"a": [b"T"], "b": [b"T", *[b"x"] * times]}


def test_what_lies_behind_an_open_transaction_is_kept_apart(
    timed: Store, clock: VirtualClock
) -> None:
    """Hazard 10: however far ahead a clock runs, what waits behind a transaction can be cut."""
    store = timed
    waiting = begun(store, "open")
    place(waiting, "a")
    producer = begun(store, "p")
    place(producer, "a", "b")
    producer.commit_transaction()
    put(skewed(store, clock, DAY_MS), "a", times=RECENT_ENTRIES + 40)
    assert shown(store, clock, "ab") == {"a": [], "b": []}


def test_a_long_chain_of_transactions_tears_no_snapshot(store: Store, clock: VirtualClock) -> None:
    """Each overlaps the next without end: readers fall behind no further, and are told."""
    place(before := begun(store, "0"), "c", "a")
    for link in range(1, 25):
        clock.time_ms += TIMEOUT_MS - 1000
        topic = "ab"[link % 2]
        place(current := begun(store, str(link)), topic)
        place(before, topic)
        before.commit_transaction()
        before = current
    put(store, "c", times=RECENT_ENTRIES + 40)
    # Of each partition what lies before the open transaction, which has written to one.
    assert not attach(store.storage, clock=clock).snapshot(["a", "b", "c"]).is_atomic
    seen = shown(store, clock, "abc")
    assert [seen[topic].count(b"T") for topic in "abc"] == [23, 24, 1]
    whole = attach(store.storage, clock=clock).snapshot(list("abc"), isolation_level="snapshot")
    assert whole.is_atomic
    assert [whole.scan(topic).record_count for topic in "ab"] == [24, 24]
    before.abort_transaction()
    assert attach(store.storage, clock=clock).snapshot(["a", "b", "c"]).is_atomic
    seen = shown(store, clock, "abc")
    assert [seen[topic].count(b"T") for topic in "abc"] == [24, 24, 1]
