"""What a snapshot over topics shows while others write: an instant, or causes before effects (S3).

Another process acts before the reader's listings: once, so that the next round finds an instant; or
before each of them, so that none does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support.steps import append, begin, elsewhere, new_store, send, stop_before_marking
from txnlog import IsolationLevel, Snapshot
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import TopicPartition
from txnlog.read import consistent_cut, pin
from txnlog.read.consistent_cut import Standing
from txnlog.snapshot import take_snapshot
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("S3")

BOTH: list[IsolationLevel] = ["read_committed", "snapshot"]
TOPICS = ["t0", "t1"]
SOURCE = TopicPartition("t0", 0)


@pytest.fixture
def heap(clock: VirtualClock) -> HeapStorage:
    heap = HeapStorage()
    store = new_store(heap, clock, {"t0": 1, "t1": 1})
    for topic in TOPICS:
        append(store, b"first", topic=topic)
    return heap


def watched(heap: Storage, clock: VirtualClock, other: Callable[[str, int], None]) -> Store:
    """A reader whose listings of topics' logs are preceded by something: their topic, and count."""
    count = 0

    def before(request: str) -> None:
        nonlocal count
        parts = request.split("/")
        if parts[0] == "list topics" and parts[-1] == "log":
            count += 1
            other(parts[1], count)

    return attach(FaultyStorage(heap, before_request=before), clock=clock)


def cause_and_effect(store: Store, name: bytes, *topics: str) -> None:
    """T1 commits to t0; somebody polls it, and T2 writes what was made of it, with the offsets."""
    producer = begin(store, "cause")
    send(producer, b"cause " + name, topic="t0")
    producer.commit_transaction()
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign([SOURCE])
    records = consumer.poll(max_records=1000)
    assert records[-1].value == b"cause " + name
    producer = begin(store, "effect")
    for topic in topics or ("t1",):
        send(producer, b"effect " + name, topic=topic)
    producer.send_offsets_to_transaction(
        {SOURCE: records[-1].offset + 1}, consumer.group_metadata()
    )
    producer.commit_transaction()


def values(snapshot: Snapshot, topic: str) -> list[bytes]:
    found: list[bytes] = snapshot.scan(topic).to_arrow().column("value").to_pylist()
    return found


def orphans(snapshot: Snapshot) -> set[bytes]:
    """Effects whose causes are missing."""
    shown = {value for topic in TOPICS for value in values(snapshot, topic)}
    effects = {value[7:] for value in shown if value.startswith(b"effect ")}
    return effects - {value[6:] for value in shown if value.startswith(b"cause ")}


@pytest.mark.parametrize("level", BOTH)
@pytest.mark.parametrize("topics", [("t1",), ("t1", "t0")])
def test_a_cause_that_comes_between_two_listings(
    heap: HeapStorage, clock: VirtualClock, level: IsolationLevel, topics: tuple[str, ...]
) -> None:
    """``t0`` was listed without T1, ``t1`` with T2: the next round finds both, and nothing new."""
    writer = elsewhere(heap, clock)
    listings = 0

    def other(topic: str, count: int) -> None:
        nonlocal listings
        listings = count
        if count == 2:
            assert topic == "t1"
            cause_and_effect(writer, b"1", *topics)

    reader = watched(heap, clock, other)
    snapshot = reader.snapshot(TOPICS, isolation_level=level)
    assert snapshot.consistency == "instant"
    assert b"effect 1" in values(snapshot, "t1")
    assert b"cause 1" in values(snapshot, "t0")
    assert listings == 2 + 2 + 2


@pytest.mark.parametrize("level", BOTH)
@pytest.mark.parametrize("topics", [("t1",), ("t1", "t0")])
def test_a_topic_that_changes_all_the_while(
    heap: HeapStorage, clock: VirtualClock, level: IsolationLevel, topics: tuple[str, ...]
) -> None:
    """The rounds end, and the snapshot says that it is causal: no effect is without its cause.

    What was acknowledged before it began is there. In the last round T2 was listed whole, and T1,
    which it consumed, was not; or T2 was listed in part, and what came behind it there, whole.
    """
    writer = elsewhere(heap, clock)
    cause_and_effect(writer, b"before")
    listings = 0

    def other(topic: str, count: int) -> None:
        nonlocal listings
        listings = count
        if topic == "t1":
            cause_and_effect(writer, b"%d" % count, *topics)
            append(writer, b"behind %d" % count, topic="t1")

    snapshot = watched(heap, clock, other).snapshot(TOPICS, isolation_level=level)
    assert listings == 4 * len(TOPICS)
    assert snapshot.consistency == "causal"
    assert not orphans(snapshot)
    assert b"effect before" in values(snapshot, "t1")
    # What was new in the round before the last one is shown.
    assert b"effect 4" in values(snapshot, "t1")
    assert b"behind 4" in values(snapshot, "t1")
    assert b"effect 6" not in values(snapshot, "t1")
    assert b"behind 6" not in values(snapshot, "t1")
    if level == "read_committed":
        again = writer.snapshot(TOPICS, at=snapshot.token())
        assert again.consistency == "causal"
        assert [values(again, topic) for topic in TOPICS] == [
            values(snapshot, topic) for topic in TOPICS
        ]


@pytest.mark.parametrize("level", BOTH)
def test_what_cannot_be_looked_up_is_not_called_causal(
    heap: HeapStorage,
    clock: VirtualClock,
    level: IsolationLevel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Too many transactions since two rounds: each is whole, and no more is said."""
    monkeypatch.setattr(consistent_cut, "MOST_LOOKED_UP", 1)
    writer = elsewhere(heap, clock)

    def other(topic: str, count: int) -> None:
        if topic == "t1":
            cause_and_effect(writer, b"%d" % count)

    snapshot = watched(heap, clock, other).snapshot(TOPICS, isolation_level=level)
    assert snapshot.consistency == "atomic"
    assert snapshot.is_atomic


def test_outcomes_that_are_looked_up_are_those_of_one_moment(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """One id is found open, then it commits, then the next one does, which had seen that."""
    first, second = (begin(elsewhere(heap, clock), name) for name in ("a", "b"))
    send(first, b"cause 1", topic="t0")
    send(second, b"effect 1", topic="t1")
    seen: list[str] = []

    def before(request: str) -> None:
        if request == "list transactions/b" and not seen:
            seen.append(request)
            for producer in (first, second):
                assert producer._coordinator is not None
                producer._coordinator._finish_quietly = lambda: None  # type: ignore[method-assign]
                producer.commit_transaction()

    reader = attach(FaultyStorage(heap, before_request=before), clock=clock)
    for level in BOTH:
        snapshot = reader.snapshot(TOPICS, isolation_level=level)
        assert seen
        assert snapshot.consistency == "instant"
        assert not orphans(snapshot)
        assert b"effect 1" in values(snapshot, "t1")


def test_what_an_open_transaction_cuts_off_makes_it_atomic_alone(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Of two topics, one is held back: T1 is hidden in both, and T2, made of it, is not."""
    elsewhere(heap, clock).topics.create("t2")
    blocker = begin(elsewhere(heap, clock), "blocker")
    send(blocker, b"open", topic="t2")
    both = begin(elsewhere(heap, clock), "both")
    for topic in ("t0", "t2"):
        send(both, b"cause 1", topic=topic)
    both.commit_transaction()
    store = elsewhere(heap, clock)
    assert store.snapshot(["t0", "t1", "t2"]).consistency == "atomic"
    assert store.snapshot(["t0", "t1"]).consistency == "instant"
    whole = store.snapshot(["t0", "t1", "t2"], isolation_level="snapshot")
    assert whole.consistency == "instant"
    assert b"cause 1" in values(whole, "t0")
    blocker.abort_transaction()
    assert store.snapshot(["t0", "t1", "t2"]).consistency == "instant"


def test_each_way_to_read_says_what_it_is(heap: HeapStorage, clock: VirtualClock) -> None:
    store = elsewhere(heap, clock)
    assert store.snapshot(TOPICS, isolation_level="read_uncommitted").consistency == "none"
    snapshot = store.snapshot(TOPICS)
    assert snapshot.consistency == "instant"
    assert store.snapshot(TOPICS, at=snapshot.token()).consistency == "instant"
    assert store.snapshot(TOPICS, at=clock.time_ms).consistency == "atomic"
    assert "consistency='instant'" in repr(snapshot)


@pytest.mark.parametrize("level", BOTH)
def test_a_store_at_rest_costs_two_listings_of_each_topic(
    heap: HeapStorage, clock: VirtualClock, level: IsolationLevel
) -> None:
    """More are made only where the second ones find something new."""
    storage = FaultyStorage(heap)
    store = attach(storage, clock=clock)
    store.snapshot(TOPICS, isolation_level=level)
    for topics, requests in ((TOPICS, ["t0", "t1", "t0", "t1"]), (["t0"], ["t0"])):
        storage.requests.clear()
        assert store.snapshot(topics, isolation_level=level).consistency == "instant"
        assert storage.requests == [f"list topics/{topic}/log" for topic in requests]


def test_a_consumer_does_not_wait_for_an_instant(heap: HeapStorage, clock: VirtualClock) -> None:
    """It keeps a position of its own in each partition, as in Kafka: two listings, whatever."""
    writer = elsewhere(heap, clock)
    listings = 0

    def other(topic: str, count: int) -> None:
        nonlocal listings
        listings = count
        append(writer, b"more", topic=topic)

    reader = watched(heap, clock, other)
    snapshot = take_snapshot(reader.logs, TOPICS, rounds=1)
    assert listings == 4
    assert snapshot.consistency == "atomic"
    consumer = reader.consumer(*TOPICS, auto_offset_reset="earliest")
    before = listings
    assert consumer.poll(max_records=100)
    assert listings - before <= 4


@pytest.mark.parametrize("level", BOTH)
@pytest.mark.parametrize("topics", [1, 2])
def test_another_thread_reads_on_while_a_snapshot_is_taken(
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    level: IsolationLevel,
    topics: int,
) -> None:
    """It lists T1 without its marker and T2 with it, just after the snapshot had looked up ids."""
    elsewhere(heap, clock).topics.alter("t0", partitions=2)
    reader = attach(heap, clock=clock)
    settle = pin._settle

    def settle_then_read_on(logs: Logs, opened: Sequence[TopicLog]) -> dict[str, Standing]:
        settled = settle(logs, opened)
        monkeypatch.setattr(pin, "_settle", settle)
        cause = begin(elsewhere(heap, clock), "cause")
        send(cause, b"cause 1", topic="t0", partition=0)
        stop_before_marking(cause)
        cause.commit_transaction()
        other = elsewhere(heap, clock)
        assert b"cause 1" in values(other.snapshot(["t0"]), "t0")
        effect = begin(other, "effect")
        send(effect, b"effect 1", topic="t0", partition=1)
        effect.commit_transaction()
        for log in opened:
            log.refresh()
        return settled

    monkeypatch.setattr(pin, "_settle", settle_then_read_on)
    snapshot = reader.snapshot(TOPICS[:topics], isolation_level=level)
    shown = values(snapshot, "t0")
    assert pin._settle is settle
    assert snapshot.consistency == "instant"
    assert b"effect 1" in shown
    assert b"cause 1" in shown
