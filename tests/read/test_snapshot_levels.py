"""Visibility by isolation level with overlapping transactions (condition 31, invariant S1)."""

from __future__ import annotations

import itertools

import pytest

from tests.support.steps import begin, new_store
from txnlog import IsolationLevel
from txnlog.errors import ConcurrentTransactions, InvalidOption
from txnlog.log.manifests import KEPT_ENTRIES, SETTLED_AT_ONCE
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.read.pin import pin_topics
from txnlog.snapshot import Snapshot, take_snapshot
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("L6", "hazard 5")

TIMEOUT_MS = 60_000
MANY = SETTLED_AT_ONCE + KEPT_ENTRIES + 100
"""So many appends that some of them are settled."""
HOUR_MS = 3_600_000
_SEEDS = itertools.count(1)


def is_log_listing(request: str) -> bool:
    """Whether a request lists the log of a topic."""
    return request.startswith("list topics/") and request.endswith("/log")


@pytest.fixture
def heap(clock: VirtualClock) -> HeapStorage:
    heap = HeapStorage()
    new_store(heap, clock, {"t": 1, "u": 1}, {"transaction.max.timeout.ms": TIMEOUT_MS})
    return heap


def process(heap: Storage, clock: VirtualClock) -> Store:
    """The store as another process sees it, at the same time."""

    class Clock(VirtualClock):
        def now_ms(self) -> int:
            return clock.time_ms

        def monotonic_s(self) -> float:
            return clock.time_ms / 1000

    return attach(heap, clock=Clock(seed=next(_SEEDS)))


def begin_at(heap: Storage, clock: VirtualClock, transactional_id: str) -> Producer:
    return begin(process(heap, clock), transactional_id)


def place(producer: Producer, value: bytes, *topics: str) -> None:
    for topic in topics or ("t",):
        producer.send(topic, value)
        producer.flush()


def values_by_topic(
    store: Store, isolation_level: IsolationLevel, *topics: str
) -> list[list[bytes]]:
    snapshot = store.snapshot(topics or ("t",), isolation_level=isolation_level)
    assert snapshot.is_atomic == (isolation_level != "read_uncommitted")
    return [snapshot.scan(t).to_arrow().column("value").to_pylist() for t in snapshot.topics]


def overlap(heap: HeapStorage, clock: VirtualClock, turns: int, step_ms: int) -> Producer:
    """Two writers that flush twice each, half a turn apart; returns the one whose turn is open."""
    writers = [begin_at(heap, clock, f"w{number}") for number in range(2)]
    place(writers[0], b"0")
    for turn in range(1, turns):
        current, before = writers[turn % 2], writers[(turn - 1) % 2]
        clock.time_ms += step_ms
        place(current, b"%d" % turn)
        place(before, b"%d" % (turn - 1))
        before.commit_transaction()
        before.begin_transaction()
    return writers[(turns - 1) % 2]


@pytest.mark.parametrize("turns", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_readers_do_not_starve_where_transactions_overlap(
    heap: HeapStorage, clock: VirtualClock, turns: int
) -> None:
    """Each reaches behind the next one: readers are one transaction behind, as in Kafka."""
    last = overlap(heap, clock, turns, step_ms=1_000)
    store = process(heap, clock)
    snapshot = store.snapshot(["t"])
    assert not snapshot.is_atomic
    # All but the second record of the last committed one, which lies behind the open one.
    assert snapshot.scan("t").record_count == 2 * (turns - 1) - 1
    whole = store.snapshot(["t"], isolation_level="snapshot")
    assert whole.is_atomic
    assert whole.scan("t").to_arrow().num_rows == 2 * (turns - 1)
    assert store.consumer("t", auto_offset_reset="earliest").poll(max_records=1000)[
        -1
    ].value == b"%d" % (turns - 3)
    place(last, b"%d" % (turns - 1))
    last.commit_transaction()
    (values,) = values_by_topic(process(heap, clock), "read_committed")
    assert sorted(values) == sorted(b"%d" % turn for turn in range(turns) for _ in range(2))


def test_the_oldest_open_transaction_says_how_far_back(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """A younger one with a longer timeout does not."""
    config = {"transaction.max.timeout.ms": 15 * TIMEOUT_MS}
    heap = HeapStorage()
    attach(heap, create=True, clock=clock, config=config).topics.create("t")
    overlap(heap, clock, 100, step_ms=1_000)
    young = process(heap, clock).producer(
        transactional_id="young", transaction_timeout_ms=15 * TIMEOUT_MS
    )
    young.init_transactions()
    young.begin_transaction()
    place(young, b"young")
    assert not process(heap, clock).snapshot(["t"]).is_atomic


def test_a_cut_that_is_fresh_enough_is_atomic(heap: HeapStorage, clock: VirtualClock) -> None:
    """What overlaps within a timeout of the oldest open transaction is hidden whole, not torn."""
    overlap(heap, clock, 40, step_ms=1_000)
    assert values_by_topic(process(heap, clock), "read_committed") == [[]]
    (values,) = values_by_topic(process(heap, clock), "snapshot")
    assert sorted(values) == sorted(b"%d" % turn for turn in range(39) for _ in range(2))


def test_a_consumer_reads_on_where_cuts_fall_back(heap: HeapStorage, clock: VirtualClock) -> None:
    """A later cut may lie before a position that was reached without one: nothing comes again."""
    overlap(heap, clock, 100, step_ms=1_000)
    store = process(heap, clock)
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    first = consumer.poll(max_records=10_000)
    consumer.commit()
    clock.time_ms += TIMEOUT_MS // 2
    waiting = begin_at(heap, clock, "other")
    place(waiting, b"w", "t", "u")
    again = process(heap, clock).consumer("t", group_id="g", auto_offset_reset="none")
    assert again.poll(max_records=10_000) == []
    waiting.abort_transaction()
    clock.time_ms += 10 * TIMEOUT_MS
    found = [record.offset for record in [*first, *again.poll(max_records=10_000)]]
    assert found == sorted(set(found))


def test_whole_transactions_over_topics(heap: HeapStorage, clock: VirtualClock) -> None:
    """Undecided ones are left out wherever they lie, what was committed around them is there."""
    first, second = begin_at(heap, clock, "first"), begin_at(heap, clock, "second")
    place(first, b"1", "t")
    place(second, b"2", "t", "u")
    place(first, b"1", "u")
    second.commit_transaction()
    store = process(heap, clock)
    assert values_by_topic(store, "snapshot", "t", "u") == [[b"2"], [b"2"]]
    assert values_by_topic(store, "read_committed", "t", "u") == [[], []]
    with store.producer() as plain:
        plain.send("t", b"p")
    assert values_by_topic(store, "snapshot", "t", "u") == [[b"2", b"p"], [b"2"]]
    first.commit_transaction()
    for level in ("snapshot", "read_committed"):
        assert values_by_topic(store, level, "t", "u") == [[b"1", b"2", b"p"], [b"2", b"1"]]
    third = begin_at(heap, clock, "third")
    place(third, b"3", "t", "u")
    third.abort_transaction()
    assert values_by_topic(store, "snapshot", "t", "u") == [[b"1", b"2", b"p"], [b"2", b"1"]]


@pytest.mark.condition(31)
@pytest.mark.parametrize("level", ["read_committed", "snapshot"])
@pytest.mark.parametrize("topics", [("t",), ("t", "u")])
@pytest.mark.parametrize("begins", ["before it", "meanwhile"])
def test_a_commit_at_any_request_of_a_snapshot(
    clock: VirtualClock,
    heap: HeapStorage,
    level: IsolationLevel,
    topics: tuple[str, ...],
    begins: str,
) -> None:
    """It shows whole or not at all, and once it was committed before, it shows."""
    for number in itertools.count():
        storage = heap.copy()
        producer = begin_at(storage, clock, "p")
        if begins == "before it":
            place(producer, b"x", "t")

        requests: list[str] = []

        def meanwhile(
            text: str,
            producer: Producer = producer,
            number: int = number,
            requests: list[str] = requests,
        ) -> None:
            if len(requests) == number and text:
                if begins == "meanwhile":
                    place(producer, b"x", "t")
                place(producer, b"x", *topics)
                producer.commit_transaction()

        reading = FaultyStorage(storage, before_request=meanwhile)
        reading.requests = requests
        view = attach(reading, clock=VirtualClock(seed=next(_SEEDS))).snapshot(
            topics, isolation_level=level
        )
        counts = [view.scan(topic).record_count for topic in topics]
        values = [view.scan(topic).to_arrow().num_rows for topic in topics]
        whole = [2] + [1] * (len(topics) - 1)
        assert values in ([0] * len(topics), whole), (number, reading.requests)
        assert view.is_atomic
        assert level == "snapshot" or counts == values
        if number >= len(reading.requests):
            break
    assert number > 2


def test_what_was_aborted_behind_an_open_transaction_hides_nothing(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """Nobody sees it, so a cut need not fall before it elsewhere."""
    place(begin_at(heap, clock, "open"), b"o", "u")
    aborting = begin_at(heap, clock, "aborted")
    place(aborting, b"a", "t", "u")
    aborting.abort_transaction()
    store = process(heap, clock)
    with store.producer() as plain:
        plain.send("t", b"p")
    assert values_by_topic(store, "read_committed", "t", "u") == [[b"p"], []]


class StopsAmongMarkers(FaultyStorage):
    """Its process is killed when it has put the first marker of a commit."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created = super().put_if_absent(name, data)
        self.stopped = name.endswith(".commit")
        return created


@pytest.mark.parametrize("damaged", [False, True])
def test_a_marker_that_shows_before_the_rest_of_its_transaction(
    heap: HeapStorage, clock: VirtualClock, damaged: bool
) -> None:
    """The first reading finds a commit in one topic, the second one its undecided entry in another.

    At once it is looked up, which gives the whole; where that cannot be, half of it never shows.
    """
    producer = begin_at(StopsAmongMarkers(heap), clock, "p")
    place(producer, b"x", "t")
    listings: list[str] = []

    def meanwhile(text: str) -> None:
        if is_log_listing(text):
            listings.append(text)
            if len(listings) == 2:
                place(producer, b"x", "u")
                with pytest.raises(ProcessStopped):
                    producer.commit_transaction()
                if damaged:
                    newest = f"transactions/p/{heap.list_names('transactions/p')[-1]}"
                    heap.delete([newest])
                    heap.put(newest, b"damaged")

    store = process(FaultyStorage(heap, before_request=meanwhile), clock)
    if damaged:
        with pytest.raises(ConcurrentTransactions):
            store.snapshot(["u", "t"], isolation_level="snapshot")
    else:
        pinned = pin_topics(store.logs, ["u", "t"], "snapshot", attempts=1)
        whole = Snapshot(store.storage, pinned, "snapshot")
        assert [whole.scan(topic).record_count for topic in ("u", "t")] == [1, 1]
    assert listings[:2] == ["list topics/u/log", "list topics/t/log"]


def test_a_commit_between_two_listings_that_is_settled_in_both_topics_at_once(
    heap: HeapStorage, clock: VirtualClock
) -> None:
    """The first reading of ``u`` was before it, that of ``t`` behind it: it shows whole."""
    producer = begin_at(heap, clock, "p")
    place(producer, b"x", "t")
    listings: list[str] = []

    def meanwhile(text: str) -> None:
        if is_log_listing(text):
            listings.append(text)
            if len(listings) == 2:
                place(producer, b"x", "u")
                producer.commit_transaction()
                with process(heap, clock).producer() as plain:
                    for topic in ("t", "u"):
                        for _ in range(MANY):
                            plain.send(topic, b"p")
                            plain.flush()

    store = process(FaultyStorage(heap, before_request=meanwhile), clock)
    pinned = pin_topics(store.logs, ["u", "t"], "snapshot", attempts=1)
    whole = Snapshot(store.storage, pinned, "snapshot")
    found = [whole.scan(topic).to_arrow()["value"].to_pylist() for topic in ("u", "t")]
    assert listings[:2] == ["list topics/u/log", "list topics/t/log"]
    assert [values.count(b"x") for values in found] == [1, 1]


@pytest.mark.few(1)
@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_reader_that_sleeps_between_its_readings(
    heap: HeapStorage, clock: VirtualClock, leaves_out: bool
) -> None:
    """Invariant L6: what it would leave out is kept apart no more, so it reads again.

    Topics that do not exist are left out then too, if they may be.
    """
    producer = begin_at(heap, clock, "p")
    place(producer, b"x", "t")
    listings: list[str] = []

    def meanwhile(text: str) -> None:
        if is_log_listing(text):
            listings.append(text)
            if len(listings) == (4 if leaves_out else 3):
                place(producer, b"x", "u")
                producer.commit_transaction()
                for _ in range(3):
                    clock.time_ms += HOUR_MS
                    with process(heap, clock).producer() as plain:
                        for _ in range(MANY):
                            plain.send("u", b"p")
                            plain.flush()

    store = process(FaultyStorage(heap, before_request=meanwhile), clock)
    if not leaves_out:
        in_t, in_u = values_by_topic(store, "snapshot", "t", "u")
        assert (in_t, in_u.count(b"x")) == ([b"x"], 1)
        assert len(listings) > 4
        return
    pinned = pin_topics(store.logs, ["t", "u", "none"], "snapshot", leave_out_missing=True)
    assert (sorted(pinned.views), pinned.consistency) == (["t", "u"], "instant")
    assert len(listings) > 6


def test_the_level_is_not_for_whoever_keeps_offsets(heap: HeapStorage, clock: VirtualClock) -> None:
    """Offsets are a prefix, and what was left out would be passed over."""
    store = process(heap, clock)
    for group_id in (None, "g"):
        with pytest.raises(InvalidOption, match="Use read_committed"):
            store.consumer("t", group_id=group_id, isolation_level="snapshot")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="read_committed, snapshot, read_uncommitted"):
        store.snapshot("t", isolation_level="whole")  # type: ignore[arg-type]


@pytest.mark.parametrize("jobs", [240, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_a_cut_must_know_does_not_grow(
    heap: HeapStorage, clock: VirtualClock, jobs: int
) -> None:
    """A transactional id for each of many jobs: a checkpoint holds none of them for ever."""
    for number in range(jobs):
        clock.time_ms += HOUR_MS
        producer = begin_at(heap, clock, f"job-{number}")
        place(producer, b"x", "t", "u")
        producer.commit_transaction()
    log = process(heap, clock).logs.fresh_topic("t")
    log.checkpoint()
    assert len(log._state.recent) <= SETTLED_AT_ONCE + KEPT_ENTRIES
    assert len(log._state.producers) < 100


@pytest.mark.parametrize("level", ["read_committed", "snapshot"])
def test_a_checkpoint_that_comes_in_the_middle_of_a_listing(
    clock: VirtualClock, heap: HeapStorage, level: IsolationLevel
) -> None:
    """It shows that a transaction was committed, and the listing misses an entry from before it."""
    producer = begin_at(heap, clock, "p")
    place(producer, b"x", "t")
    other = process(heap, clock).logs.fresh_topic("t")

    class Torn(FaultyStorage):
        """The first listing of the topic takes long, and misses all entries that come meanwhile."""

        torn = False

        def list_names(self, folder: str, start_after: str = "") -> list[str]:
            before = super().list_names(folder, start_after)
            if folder != "topics/t/log" or self.torn:
                return before
            self.torn = True
            place(producer, b"x", "t")
            with pytest.raises(ProcessStopped):
                producer.commit_transaction()
            process(heap, clock).logs.settlement.settle([other])
            other.checkpoint()
            after = super().list_names(folder, start_after)
            return [name for name in after if name in before or name.endswith("checkpoint")]

    # The process of the producer stops when it has decided: no marker tells of it.
    stopping = heap.put_if_absent

    def put_if_absent(name: str, data: bytes) -> bool:
        if name.endswith(".commit"):
            raise ProcessStopped(name)
        return stopping(name, data)

    heap.put_if_absent = put_if_absent  # type: ignore[method-assign]
    view = attach(Torn(heap), clock=VirtualClock(seed=next(_SEEDS))).snapshot(
        ["t"], isolation_level=level
    )
    assert view.is_atomic
    assert view.scan("t").to_arrow().num_rows in (0, 2)


@pytest.mark.more
@pytest.mark.parametrize(("level", "listing"), [("read_committed", 2), ("snapshot", 4)])
def test_a_reader_that_sleeps_between_its_listings(
    clock: VirtualClock, heap: HeapStorage, level: IsolationLevel, listing: int
) -> None:
    """When it wakes, newer appends are no longer kept apart: it says so, or starts over.

    With one round only; another one would find all of them.
    """
    for topic in ("t", "u"):
        with process(heap, clock).producer() as plain:
            plain.send(topic, b"0")
    listings = 0

    def asleep(text: str) -> None:
        nonlocal listings
        listings += is_log_listing(text)
        if listings != listing or not is_log_listing(text):
            return
        producer = begin_at(heap, clock, "p")
        place(producer, b"T", "t", "u")
        producer.commit_transaction()
        for _ in range(3):
            clock.time_ms += HOUR_MS
            with process(heap, clock).producer() as plain:
                for _ in range(MANY):
                    for topic in ("t", "u"):
                        plain.send(topic, b"x")
                    plain.flush()

    store = attach(FaultyStorage(heap, before_request=asleep), clock=clock)
    snapshot = take_snapshot(store.logs, ["t", "u"], level, rounds=1)
    counts = {
        snapshot.scan(topic).to_arrow().column("value").to_pylist().count(b"T")
        for topic in ("t", "u")
    }
    assert snapshot.is_atomic == (level == "snapshot")
    assert len(counts) == 1 or not snapshot.is_atomic


@pytest.mark.condition(32)
def test_a_cut_does_not_fall_below_the_log_start(heap: HeapStorage, clock: VirtualClock) -> None:
    """Records that it would hide were deleted: the snapshot is empty there, not negative."""
    store = process(heap, clock)
    waiting = begin(store, "open")
    place(waiting, b"open", "u")
    producer = begin(store)
    producer.send("t", b"1")
    producer.send("u", b"1")
    producer.commit_transaction()
    store.topics.delete_records({TopicPartition("t", 0): 1})
    snapshot = store.snapshot(["t", "u"])
    assert snapshot.beginning_offsets("t") == snapshot.end_offsets("t") == {0: 1}
    assert snapshot.scan("t").record_count == 0
    consumer = store.consumer("t", "u", auto_offset_reset="earliest")
    assert consumer.poll() == []
    assert consumer.position(TopicPartition("t", 0)) == 1
    waiting.abort_transaction()
    assert [record.value for record in consumer.poll()] == [b"1"]
