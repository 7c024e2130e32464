"""Consumers that wait: how often they look, what wakes them, and what bounds a poll."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from itertools import islice

import pytest

from tests.support.groups.alone import read_alone
from tests.support.groups.consumer_options import consumer_options
from tests.support.steps import another, append, begin_with, new_store
from txnlog import ConsumerConfig, ConsumerRebalanceListener
from txnlog.clock import Signal, SystemClock
from txnlog.consumer import Consumer
from txnlog.errors import (
    IllegalState,
    InvalidOption,
    RecordDeserializationFailed,
    StorageError,
    Wakeup,
)
from txnlog.log import open_logs
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

T0 = TopicPartition("t", 0)


class EventfulClock(VirtualClock):
    """Each wait lets something happen first; nobody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.happenings: list[Callable[[], object]] = []

    def wait(self, event: Signal, seconds: float) -> None:
        if self.happenings:
            self.happenings.pop(0)()
        super().wait(event, seconds)


class ListingsCounted(ForwardingStorage):
    """Counts listings of the topic's log; after the next one something may happen."""

    then: Callable[[], object] | None = None

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.listings = 0

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        names = super().list_names(folder, start_after)
        if folder.startswith("topics/t/"):
            self.listings += 1
            then, self.then = self.then, None
            if then is not None:
                then()
        return names


@pytest.fixture
def eventful() -> EventfulClock:
    return EventfulClock()


@pytest.fixture
def store(memory_storage: Storage, eventful: EventfulClock) -> Store:
    return new_store(memory_storage, eventful)


@pytest.mark.parametrize("timeout_ms", [100, 10_000])
def test_an_idle_consumer_looks_twice_a_second(timeout_ms: int) -> None:
    """At Kafka's fetch.max.wait.ms, however short its polls are; more often only at first."""
    clock = VirtualClock()
    counted = ListingsCounted(HeapStorage())
    store = new_store(counted, clock)
    consumer = store.consumer("t", auto_offset_reset="earliest")
    assert consumer.poll() == []
    counted.listings, begun_ms = 0, clock.time_ms
    for _ in range(10_000 // timeout_ms):
        assert consumer.poll(timeout_ms=timeout_ms) == []
    assert clock.time_ms - begun_ms == 10_000
    assert 20 <= counted.listings <= 26
    counted.listings = 0
    for _ in range(5):
        assert consumer.poll() == []  # without a timeout each poll looks
    assert counted.listings == 5


def test_a_writer_of_the_same_process_ends_the_wait(store: Store, eventful: EventfulClock) -> None:
    """Also by another store object, and by a transaction's commit; no time passes."""
    consumer = store.consumer("t", auto_offset_reset="earliest")
    transaction = begin_with(another(store), "x", b"0")
    for value, happening in (
        (b"0", transaction.commit_transaction),
        (b"1", lambda: append(another(store), b"1")),
        (b"2", lambda: append(store, b"2")),
    ):
        assert consumer.poll() == []
        begun_ms = eventful.time_ms
        eventful.happenings = [happening]
        assert [record.value for record in consumer.poll(timeout_ms=60_000)] == [value]
        assert eventful.time_ms == begun_ms


def test_what_comes_during_a_look_is_looked_for_at_once(eventful: EventfulClock) -> None:
    """The listing that has just missed it is not a reason to wait."""
    counted = ListingsCounted(HeapStorage())
    store = new_store(counted, eventful)
    consumer = store.consumer("t", auto_offset_reset="earliest")
    assert consumer.poll() == []
    begun_ms = eventful.time_ms
    other = another(store, counted.inner)
    counted.then = lambda: append(other, b"0")
    assert [record.value for record in consumer.poll(timeout_ms=60_000)] == [b"0"]
    assert eventful.time_ms - begun_ms == 10  # the first pause, before the look that missed it


def test_what_others_write_is_found_by_looking(
    store: Store, eventful: EventfulClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process cannot wake this one: its record comes after one pause at most."""
    monkeypatch.setattr(open_logs, "announce", lambda _: None)
    consumer = store.consumer(
        "t", auto_offset_reset="earliest", config=ConsumerConfig(fetch_max_wait_ms=300)
    )
    assert consumer.poll(timeout_ms=5_000) == []
    begun_ms = eventful.time_ms
    eventful.happenings = [lambda: append(store, b"1")]
    assert [record.value for record in consumer.poll(timeout_ms=5_000)] == [b"1"]
    assert 0 < eventful.time_ms - begun_ms <= 300


def test_iterating_waits_unless_told_to_stop(store: Store, eventful: EventfulClock) -> None:
    """For ever; with stop_at_end it ends, and goes on when it is asked again."""
    append(store, b"0")
    eventful.happenings = [*[int] * 5, lambda: append(store, b"1", b"2")]
    forever = store.consumer("t", auto_offset_reset="earliest")
    assert [record.value for record in islice(forever, 3)] == [b"0", b"1", b"2"]
    assert forever.position(T0) == 3
    ending = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    assert [record.offset for record in ending] == [0, 1, 2]
    begun_ms = eventful.time_ms
    assert [*ending] == []
    assert eventful.time_ms == begun_ms
    append(store, b"3")
    assert [record.offset for record in ending] == [3]


def test_wakeup_ends_a_wait_and_loses_nothing(store: Store, eventful: EventfulClock) -> None:
    """The poll that waits raises, or the next one, once; records come with the one after."""
    consumer = store.consumer("t", auto_offset_reset="earliest")
    eventful.happenings = [consumer.wakeup]
    with pytest.raises(Wakeup, match="poll again"):
        consumer.poll(timeout_ms=60_000)
    append(store, b"0", b"1")
    consumer.wakeup()
    with pytest.raises(Wakeup):
        consumer.poll_batches()
    assert [record.value for record in consumer.poll(max_records=1)] == [b"0"]
    consumer.wakeup()
    with pytest.raises(Wakeup):
        next(iter(consumer))
    assert [record.value for record in consumer.poll(timeout_ms=100)] == [b"1"]
    eventful.happenings = [lambda: append(store, b"2"), consumer.wakeup]
    reading = iter(consumer)
    assert next(reading).value == b"2"
    with pytest.raises(Wakeup):
        next(reading)


STARTS = ["new", "member", "pattern", "found by pattern", "recreated", "out of range"]


def consumer_that_begins(
    store: Store, how: str, deserializer: Callable[[bytes], bytes]
) -> Consumer:
    """A consumer whose next poll is the first that decides where to read in a partition."""
    group = "g" if how == "member" else None
    consumer = store.consumer(group_id=group, value_deserializer=deserializer)
    if how == "found by pattern":
        store.topics.delete("t")
    if "pattern" in how:
        consumer.subscribe(pattern="t.*")
    else:
        consumer.subscribe(["t"])
    if how == "found by pattern":
        store.topics.create("t")
        append(store, b"old")
        store.logs.clock.sleep(600)
    if how == "recreated":
        consumer.poll()
        store.topics.delete("t")
        store.topics.create("t")
        append(store, b"old")
    if how == "out of range":
        consumer.seek(T0, 0)
        store.topics.delete_records({T0: 1})
    return consumer


@pytest.mark.parametrize("how", STARTS)
@pytest.mark.parametrize("failing", ["wakeup", "interrupt", "wrong record"])
def test_a_poll_that_fails_has_begun_where_it_looked_first(
    store: Store, eventful: EventfulClock, how: str, failing: str
) -> None:
    """What comes after that is not passed over, though no poll has returned yet."""
    append(store, b"old")
    failures: list[str] = []

    def deserialize(value: bytes) -> bytes:
        if value == b"wrong":
            raise ValueError(value)
        return value

    consumer = consumer_that_begins(store, how, deserialize)

    def fail_once_it_has_begun() -> None:
        if T0 not in consumer.positions() or failures:
            return
        failures.append(failing)
        if failing == "wakeup":
            consumer.wakeup()
        elif failing == "interrupt":
            raise KeyboardInterrupt
        else:
            append(store, b"wrong")

    eventful.happenings = [fail_once_it_has_begun] * 100
    with pytest.raises((Wakeup, KeyboardInterrupt, RecordDeserializationFailed)):
        consumer.poll(timeout_ms=60_000)
    assert failures == [failing]
    if failing == "wrong record":
        with pytest.raises(RecordDeserializationFailed):
            consumer.poll()
        consumer.seek(T0, consumer.position(T0) + 1)
    append(store, b"new")
    assert [record.value for record in consumer.poll()] == [b"new"]


def test_wakeup_from_a_thread() -> None:
    """With the machine's own clock: the other thread comes back though nothing is written."""
    store = attach(HeapStorage(), create=True, clock=SystemClock())
    store.topics.create("t")
    consumer = store.consumer("t")
    raised: list[type[BaseException]] = []

    def wait() -> None:
        try:
            consumer.poll(timeout_ms=3_600_000)
        except Wakeup as error:
            raised.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    consumer.wakeup()
    thread.join(timeout=60)
    assert raised == [Wakeup]


def test_a_call_within_another_thread_s_is_refused() -> None:
    """It would mix up the positions; who polls may be woken and measured, and gets its records."""
    store = attach(HeapStorage(), create=True, clock=SystemClock())
    store.topics.create("t")
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    found: list[bytes] = []
    polls, asked = threading.Event(), threading.Event()

    class Told(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            found.append(b"%d" % consumer.position(*partitions))  # by the thread that is in it
            polls.set()
            asked.wait(60)

    consumer.subscribe(["t"], listener=Told())
    thread = threading.Thread(
        target=lambda: found.extend(r.value for r in consumer.poll(timeout_ms=3_600_000))
    )
    thread.start()
    assert polls.wait(60)
    for call in (
        consumer.poll,
        consumer.poll_batches,
        lambda: next(iter(consumer)),
        consumer.commit,
        consumer.positions,
        lambda: consumer.seek(T0, 0),
        consumer.close,
        consumer.assignment,
    ):
        with pytest.raises(IllegalState, match=r"another thread is in a call of Consumer\(topics="):
            call()
    assert consumer.metrics() is not None
    asked.set()
    append(store, b"1")
    thread.join(timeout=60)
    assert found == [b"0", b"1"]
    assert consumer.position(T0) == 1
    consumer.close()


def test_few_bytes_wait_for_more_but_not_for_long(store: Store, eventful: EventfulClock) -> None:
    """fetch_min_bytes: until they have come, or fetch_max_wait_ms have passed since the first."""
    lazy = store.consumer(
        "t",
        auto_offset_reset="earliest",
        config=ConsumerConfig(fetch_min_bytes=2_000, fetch_max_wait_ms=400),
    )
    append(store, b"0")
    assert lazy.poll() == []
    begun_ms = eventful.time_ms
    assert [record.value for record in lazy.poll(timeout_ms=10_000)] == [b"0"]
    assert 400 <= eventful.time_ms - begun_ms <= 800
    assert lazy.poll() == []
    append(store, b"1")
    eventful.happenings = [lambda: append(store, random.Random(1).randbytes(4_000))]
    begun_ms = eventful.time_ms
    assert [record.offset for record in lazy.poll(timeout_ms=10_000)] == [1, 2]
    assert eventful.time_ms - begun_ms < 400
    append(store, b"3")
    ending = store.consumer(
        "t",
        auto_offset_reset="earliest",
        config=ConsumerConfig(fetch_min_bytes=1 << 30),
        stop_at_end=True,
    )
    assert [record.offset for record in ending] == [0, 1, 2, 3]


@pytest.mark.parametrize("call", ["poll", "poll_batches"])
def test_what_is_no_timeout(store: Store, call: str) -> None:
    """A bare number is a time to some and a count to others; seconds are told from milliseconds."""
    consumer = store.consumer("t")
    for bare in (1, 0.5, 1000, None):
        with pytest.raises(InvalidOption, match=r"a time or a count\? Say .*timeout_ms=\.\.\."):
            getattr(consumer, call)(bare)
    with pytest.raises(InvalidOption, match="for so many seconds give timeout_ms=500"):
        getattr(consumer, call)(timeout_ms=0.5)
    for wrong in (-1, True, "1", None):
        with pytest.raises(InvalidOption, match="timeout_ms must be a whole number"):
            getattr(consumer, call)(timeout_ms=wrong)
    with pytest.raises(InvalidOption, match="max_records must be"):
        consumer.poll(max_records=0)


@pytest.mark.parametrize(
    "setting",
    [
        "fetch_max_bytes",
        "max_partition_fetch_bytes",
        "fetch_max_wait_ms",
        "auto_commit_interval_ms",
        "session_timeout_ms",
        "heartbeat_interval_ms",
        "max_poll_interval_ms",
        "max_poll_records",
    ],
)
def test_settings_that_make_no_sense(store: Store, setting: str) -> None:
    """Refused when the consumer, or its config, is made; the setting is named."""
    for wrong in (0, -1, 1.5, "1"):
        with pytest.raises(InvalidOption, match=setting):
            store.consumer("t", **consumer_options({setting: wrong}))


def test_a_consumers_config_is_checked_as_it_is_made(store: Store) -> None:
    """Texts, times and assignors, too; and it cannot be changed, nor be a mere mapping."""
    wrong: dict[str, object] = {"metadata_max_age_ms": -1, "fetch_min_bytes": -1, "client_id": 7}
    wrong |= {"group_instance_id": "x" * 250, "partition_assignment_strategy": "fair"}
    for setting, value in wrong.items():
        with pytest.raises(InvalidOption, match=setting):
            ConsumerConfig(**{setting: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="heartbeat_interval_ms 30000 is more than half"):
        ConsumerConfig(heartbeat_interval_ms=30_000)
    with pytest.raises(InvalidOption, match="config must be a ConsumerConfig"):
        store.consumer("t", config={"client_id": "a"})  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        ConsumerConfig().client_id = "b"  # type: ignore[misc]


def test_auto_commit_needs_a_group(store: Store) -> None:
    """There is nobody for whom it could commit."""
    with pytest.raises(InvalidOption, match="enable_auto_commit is for a group"):
        store.consumer("t", enable_auto_commit=True)


# -- committing by itself ------------------------------------------------------------------------


def committed(store: Store) -> int | None:
    found = another(store).consumer(group_id="g").committed(T0)
    return None if found is None else found.offset


@pytest.fixture
def filled(store: Store) -> Store:
    append(store, *(b"%d" % number for number in range(10)))
    return store


def test_what_polls_have_returned_is_committed_in_time(
    filled: Store, eventful: EventfulClock
) -> None:
    """At a later poll, when the interval is over, and not what that poll returns."""
    consumer = filled.consumer(
        *("t",),
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        config=ConsumerConfig(auto_commit_interval_ms=1000),
    )
    consumer.poll(max_records=3)
    eventful.sleep(0.9)
    consumer.poll(max_records=1)
    assert committed(filled) is None
    eventful.sleep(0.1)
    consumer.poll(max_records=2)
    assert committed(filled) == 4
    eventful.sleep(1)
    iterating = iter(consumer)
    assert next(iterating).offset == 6
    assert committed(filled) == 6
    consumer.close()
    assert committed(filled) == 7
    quiet = filled.consumer("t", group_id="g")
    quiet.poll()
    eventful.sleep(100)
    quiet.poll()
    quiet.close()
    assert committed(filled) == 7


@pytest.mark.parametrize("wait_ms", [500, 15_000])
@pytest.mark.parametrize("as_batches", [False, True], ids=["records", "batches"])
def test_what_polls_have_returned_is_committed_while_one_waits(
    filled: Store, eventful: EventfulClock, *, as_batches: bool, wait_ms: int
) -> None:
    """In the interval, whatever the pauses between looks; not what came since, until it is done."""
    config = ConsumerConfig(auto_commit_interval_ms=4_000, fetch_max_wait_ms=wait_ms)
    consumer = filled.consumer(
        *("t",),
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        config=config,
    )
    consumer.poll_batches() if as_batches else consumer.poll()
    seen: list[tuple[int, int | None]] = []
    begun_ms = eventful.time_ms

    def note() -> None:
        seen.append((eventful.time_ms - begun_ms, committed(filled)))

    eventful.happenings = [note] * 1000
    poll = consumer.poll_batches if as_batches else consumer.poll
    assert not poll(timeout_ms=20_000)
    assert {at for time_ms, at in seen if time_ms < 4_000} == {None}
    assert {at for time_ms, at in seen if time_ms >= 4_000} == {10}
    entries = len(filled.storage.list_names("groups/g"))
    eventful.happenings = [lambda: append(filled, b"10"), *[note] * 1000]
    iterating = iter(consumer)
    assert next(iterating).offset == 10
    eventful.happenings = [*[note] * 40, lambda: append(filled, b"11")]
    assert next(iterating).offset == 11
    assert committed(filled) == 11
    assert len(filled.storage.list_names("groups/g")) > entries


def test_a_first_poll_that_waits_commits_where_it_has_begun(
    store: Store, eventful: EventfulClock
) -> None:
    """So who takes over passes over nothing, and a quiet topic does not end its group."""
    append(store, b"old")
    config = ConsumerConfig(auto_commit_interval_ms=1_000)
    consumer = read_alone(store, "t", group_id="g", enable_auto_commit=True, config=config)
    seen: list[int | None] = []
    eventful.happenings = [lambda: seen.append(committed(store))] * 100
    assert consumer.poll(timeout_ms=5_000) == []
    assert (seen[0], seen[-1]) == (None, 1)


def test_a_block_that_fails_commits_nothing_more(filled: Store) -> None:
    """The record that it failed on comes again."""

    def work(on: Callable[[int], object]) -> None:
        with filled.consumer(
            "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=True
        ) as consumer:
            on(consumer.poll(max_records=1)[0].offset)

    with pytest.raises(ZeroDivisionError):
        work(lambda offset: 1 // offset)
    assert committed(filled) is None
    work(print)
    assert committed(filled) == 1


def test_a_commit_that_fails_is_tried_again(
    filled: Store, eventful: EventfulClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The storage's errors are logged, and the poll goes on; an idle group costs no entry."""
    storage = ForwardingStorage(filled.storage)
    options = {"auto_offset_reset": "earliest", "enable_auto_commit": True}
    consumer = read_alone(attach(storage, clock=eventful), "t", group_id="g", **options)
    consumer.poll(max_records=2)
    eventful.sleep(5)
    with pytest.MonkeyPatch.context() as patched:

        def fail(name: str, data: bytes) -> bool:
            raise StorageError(f"503 {name} {len(data)}")

        patched.setattr(storage, "put_if_absent", fail)
        assert len(consumer.poll(max_records=2)) == 2
    assert "tried again: 503" in caplog.text
    assert committed(filled) is None
    eventful.sleep(5)
    assert len(consumer.poll(max_records=2)) == 2
    assert committed(filled) == 4
    eventful.sleep(5)
    consumer.poll(max_records=10)
    entries = len(storage.list_names("groups/g"))
    for _ in range(5):
        eventful.sleep(5)
        consumer.poll()
    consumer.close()
    assert len(storage.list_names("groups/g")) == entries + 1
