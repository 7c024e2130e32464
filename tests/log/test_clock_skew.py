"""Hazard 10: wall clocks that are wrong may make something abort early, never make data wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import begin, new_store
from tests.support.storage.timed_storage import TimedStorage
from txnlog.errors import CommitStateUnknown, ProducerFenced, StorageError
from txnlog.log.manifests import KEPT_ENTRIES, SETTLED_AT_ONCE
from txnlog.producer import Producer
from txnlog.state.producers import ProducerRef
from txnlog.state.segment import SegmentEntry, StoredSegment
from txnlog.state.topic import CHECKPOINT_DECODER, TopicState
from txnlog.state.topic_entries import Append, Created
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
DAY_MS = 24 * HOUR_MS
TIMEOUT_MS = 10_000
MANY = SETTLED_AT_ONCE + KEPT_ENTRIES + 100
"""So many appends that some of them are settled."""


pytestmark = [
    pytest.mark.store(
        topics=dict.fromkeys("abc", 1), config={"transaction.max.timeout.ms": TIMEOUT_MS}
    ),
    pytest.mark.rule("L6", "T9", "hazard 10"),
]


@pytest.fixture
def timed(store: Store, clock: VirtualClock) -> Store:
    """The same store, whose storage has a clock of its own."""
    return attach(TimedStorage(store.storage, clock), clock=clock)


def ahead_of(store: Store, clock: VirtualClock, ahead_ms: int, seed: int = 1) -> Store:
    """The same store in a process whose clock is wrong."""
    return attach(store.storage, clock=VirtualClock(clock.time_ms + ahead_ms, seed))


def put(store: Store, topic: str, value: bytes = b"x", times: int = 1) -> None:
    with store.producer() as producer:
        for _ in range(times):
            producer.send(topic, value)
            producer.flush()


def place(producer: Producer, *topics: str) -> None:
    for topic in topics:
        producer.send(topic, b"T")
        producer.flush()


def values_by_topic(store: Store, clock: VirtualClock, topics: str) -> dict[str, list[bytes]]:
    """One snapshot by a process that has just started."""
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
    put(ahead_of(store, clock, 2 * DAY_MS), "a", b"from the future")
    producer.flush()
    assert values_by_topic(store, clock, "a") == {"a": [b"in doubt", b"from the future"]}


def test_a_fast_clock_makes_no_topic_forget_who_writes(store: Store, clock: VirtualClock) -> None:
    """Hazard 10: whoever writes after an entry from the future is remembered as before."""
    producer = store.producer()
    for turn in range(4):
        producer.send("a", b"x")
        producer.flush()
        if turn == 0:
            ahead_of(store, clock, 2 * DAY_MS).topics.alter("a", config={"segment.bytes": 2048})
    assert [segment.base_sequence for segment in store.topics.segments("a")] == [0, 1, 2, 3]


@pytest.mark.parametrize("ahead_ms", [0, YEAR_MS])
def test_a_fast_clock_lets_go_of_nothing_that_readers_are_pinned_to(
    heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    """What was merged stays known for as long as its files: a snapshot of a minute ago is read."""
    settle_early(monkeypatch)
    store = new_store(heap, clock)
    put(ahead_of(store, clock, ahead_ms), "t", b"first")
    for turn in range(3):
        put(store, "t", times=19)
        store.maintain()
        clock.time_ms += 8 * DAY_MS * (turn < 2)
    put(store, "t", times=10)
    snapshot = attach(heap, clock=clock).snapshot(["t"])
    clock.time_ms += 60_000
    put(store, "t", times=80)
    store.maintain()
    put(store, "t", times=10)
    assert sum(snapshot.scan("t").count().values()) == 68
    assert snapshot.scan("t").to_arrow().num_rows == 68


def test_a_fast_clock_only_aborts_early(store: Store, clock: VirtualClock) -> None:
    """Hazard 10: a reader from the future ends an open transaction; its producer learns it."""
    producer = begin(store, "p", TIMEOUT_MS)
    place(producer, "a", "b")
    assert values_by_topic(store, VirtualClock(clock.time_ms + HOUR_MS), "ab") == {"a": [], "b": []}
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    assert values_by_topic(store, clock, "ab") == {"a": [], "b": []}


def test_a_fast_clock_that_stops_does_not_block_for_so_long(
    store: Store, clock: VirtualClock
) -> None:
    """Hazard 10: a producer dies whose clock was a month ahead: a reader waits one timeout."""
    dead = begin(ahead_of(store, clock, 30 * DAY_MS), "p", TIMEOUT_MS)
    place(dead, "a")
    put(store, "a")
    reader = attach(store.storage, clock=clock)
    for waited_ms, seen in ((0, 0), (TIMEOUT_MS, 0), (1, 1)):
        clock.time_ms += waited_ms
        assert reader.scan("a").record_count == seen
    assert reader.transactions.describe("p").status == "CompleteAbort"
    # The next transaction of the id has its own time.
    again = begin(ahead_of(store, clock, 30 * DAY_MS, seed=4), "p", TIMEOUT_MS)
    place(again, "a")
    assert reader.scan("a").record_count == 1
    again.commit_transaction()
    assert reader.scan("a").record_count == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("ahead_ms", [-DAY_MS, pytest.param(0, marks=pytest.mark.slow), DAY_MS])
@pytest.mark.parametrize("times", [pytest.param(40, marks=pytest.mark.slow), MANY])
def test_a_wrong_clock_tears_no_snapshot(
    timed: Store, clock: VirtualClock, ahead_ms: int, times: int
) -> None:
    """Hazard 10: what a cut needs is kept apart, whatever clocks say, or the snapshot says so.

    It says so where the transaction that would be hidden seems to be a day old.
    """
    store = timed
    waiting = begin(store, "open", TIMEOUT_MS)
    place(waiting, "a")
    behind = ahead_of(store, clock, min(ahead_ms, 0))
    producer = begin(behind, "p", TIMEOUT_MS)
    place(producer, "a", "b")
    producer.commit_transaction()
    put(behind, "b", times=times)
    put(ahead_of(store, clock, max(ahead_ms, 0), seed=2), "b", times=times)
    snapshot = attach(store.storage, clock=clock).snapshot(["a", "b"])
    assert snapshot.is_atomic == (ahead_ms >= 0)
    everything = [b"T", *[b"x"] * 2 * times]
    seen = {"a": [], "b": []} if snapshot.is_atomic else {"a": [], "b": everything}
    assert values_by_topic(store, clock, "ab") == seen
    waiting.abort_transaction()
    assert values_by_topic(store, clock, "ab") == {"a": [b"T"], "b": everything}


def test_what_lies_behind_an_open_transaction_is_kept_apart(
    timed: Store, clock: VirtualClock
) -> None:
    """Hazard 10: however far ahead a clock runs, what waits behind a transaction can be cut."""
    store = timed
    waiting = begin(store, "open", TIMEOUT_MS)
    place(waiting, "a")
    producer = begin(store, "p", TIMEOUT_MS)
    place(producer, "a", "b")
    producer.commit_transaction()
    put(ahead_of(store, clock, DAY_MS), "a", times=MANY)
    assert values_by_topic(store, clock, "ab") == {"a": [], "b": []}


def test_an_append_from_the_future_that_was_let_go_holds_up_no_snapshot(
    store: Store, clock: VirtualClock
) -> None:
    """Hazard 10: it was not made later than what was let go with it, whatever it says."""
    put(ahead_of(store, clock, DAY_MS - HOUR_MS), "b")
    put(store, "b")
    clock.time_ms += HOUR_MS
    put(store, "b", times=MANY)
    place(begin(store, "open", TIMEOUT_MS), "a", "b")
    snapshot = attach(store.storage, clock=clock).snapshot(["a", "b"])
    assert snapshot.is_atomic
    assert [snapshot.scan(topic).record_count for topic in "ab"] == [0, MANY + 2]


def test_what_was_let_go_in_the_future_is_let_go_by_now(store: Store, clock: VirtualClock) -> None:
    """Hazard 10: two processes a month ahead, one that appends and one that leaves a checkpoint."""
    put(store, "b", times=20)
    put(ahead_of(store, clock, 30 * DAY_MS), "b")
    put(store, "b", times=MANY)
    ahead = ahead_of(store, clock, 31 * DAY_MS, seed=2)
    put(ahead, "b")
    ahead.logs.topic("b").checkpoint()
    put(store, "b")
    clock.time_ms += HOUR_MS
    place(begin(store, "open", TIMEOUT_MS), "a", "b")
    assert attach(store.storage, clock=clock).snapshot(["a", "b"]).is_atomic


def test_a_reader_that_is_ahead_lets_nothing_go_too_early(
    timed: Store, clock: VirtualClock
) -> None:
    """Hazard 10: it asks the log, too, how old appends are."""
    place(begin(timed, "open", TIMEOUT_MS), "a")
    producer = begin(timed, "p", TIMEOUT_MS)
    place(producer, "a", "b")
    producer.commit_transaction()
    put(timed, "b", times=MANY)
    snapshot = ahead_of(timed, clock, DAY_MS).snapshot(["a", "b"])
    assert snapshot.is_atomic
    assert [snapshot.scan(topic).record_count for topic in "ab"] == [0, 0]


def test_a_long_chain_of_transactions_tears_no_snapshot(store: Store, clock: VirtualClock) -> None:
    """Each overlaps the next without end: readers fall behind no further, and are told."""
    place(before := begin(store, "0", TIMEOUT_MS), "c", "a")
    for link in range(1, 25):
        clock.time_ms += TIMEOUT_MS - 1000
        topic = "ab"[link % 2]
        place(current := begin(store, str(link), TIMEOUT_MS), topic)
        place(before, topic)
        before.commit_transaction()
        before = current
    put(store, "c", times=MANY)
    # Of each partition what lies before the open transaction, which has written to one.
    assert not attach(store.storage, clock=clock).snapshot(["a", "b", "c"]).is_atomic
    seen = values_by_topic(store, clock, "abc")
    assert [seen[topic].count(b"T") for topic in "abc"] == [23, 24, 1]
    whole = attach(store.storage, clock=clock).snapshot(list("abc"), isolation_level="snapshot")
    assert whole.is_atomic
    assert [whole.scan(topic).record_count for topic in "ab"] == [24, 24]
    before.abort_transaction()
    assert attach(store.storage, clock=clock).snapshot(["a", "b", "c"]).is_atomic
    seen = values_by_topic(store, clock, "abc")
    assert [seen[topic].count(b"T") for topic in "abc"] == [24, 24, 1]


def after_many_producers(count: int, wrong: Mapping[int, int]) -> TopicState:
    """A topic to which one producer after the other writes, each half an hour, and expires.

    ``wrong`` says by how much the clocks of some of them, by number, are ahead.
    """
    state = TopicState(producer_id_expiration_ms=DAY_MS)
    state.apply(0, Created("n", YEAR_MS, "id", 1, {}))
    write_on(state, count, wrong)
    return state


def write_on(state: TopicState, count: int, wrong: Mapping[int, int]) -> None:
    for turn in range(count):
        number = state.next_entry
        place = SegmentEntry(0, number - 1, StoredSegment(f"s{number}", 1, 1, 1, 1), 0)
        at_ms = 2 * YEAR_MS + number * HOUR_MS // 2 + wrong.get(turn, 0)
        state.apply(number, Append("n", at_ms, (place,), producer=ProducerRef(number, 0)))
        state.expire()


@pytest.mark.parametrize("ahead_ms", [YEAR_MS, -YEAR_MS, 2 * DAY_MS, -2 * DAY_MS])
@pytest.mark.parametrize("times", [1, 4])
def test_a_wrong_clock_neither_stops_the_expiry_of_producers_nor_causes_it(
    ahead_ms: int, times: int
) -> None:
    """Hazard 10: of 3,000 as many are known at any time as if all clocks were right."""
    wrong = {1500 + 2 * turn: ahead_ms for turn in range(times)}
    right = after_many_producers(1500, {})
    state = after_many_producers(1500, {})
    for _ in range(30):
        write_on(right, 1, {})
        write_on(state, 1, {0: wrong.get(state.next_entry - 1, 0)})
        # The median of nine may be an append older, or younger, for each that is wrong.
        assert abs(len(state.producers) - len(right.producers)) <= times
    write_on(right, 1470, {})
    write_on(state, 1470, {})
    assert set(state.producers) == set(right.producers)
    assert len(state.producers) <= 49


@pytest.mark.parametrize("ahead_ms", [YEAR_MS, -YEAR_MS])
def test_producers_expire_when_most_clocks_were_wrong_for_a_while(ahead_ms: int) -> None:
    """Hazard 10: time goes on from where it is when they are right again."""
    state = after_many_producers(1000, dict.fromkeys(range(300, 330), ahead_ms))
    assert len(state.producers) <= 49


@pytest.mark.parametrize("seed", range(20))
def test_who_is_forgotten_follows_from_the_entries_alone(seed: int) -> None:
    """Invariants L7 and L9: whatever the clocks say, and whenever somebody looks."""
    rng = random.Random(seed)
    often, seldom = (TopicState(producer_id_expiration_ms=1000) for _ in range(2))
    at_ms = 10**6
    for number in range(120):
        at_ms += rng.choice([0, 10, 300, 1001])
        entry: Created | Append = Created("n", at_ms, "id", 1, {})
        if number:
            place = SegmentEntry(0, number - 1, StoredSegment(f"s{number}", 1, 1, 1, 1), 0)
            wrong_ms = rng.choice([0, 0, 0, 5000, -5000, 10**6, -(10**6)])
            producer = ProducerRef(rng.randrange(6), 0)
            entry = Append("n", max(at_ms + wrong_ms, 0), (place,), producer=producer)
        before = often.append_time_ms
        often.apply(number, entry)
        seldom.apply(number, entry)
        often.expire()
        assert often.append_time_ms >= before
        if rng.random() < 0.2:
            often = CHECKPOINT_DECODER.decode(msgspec.json.encode(often))
    seldom.expire()
    assert seldom == often
