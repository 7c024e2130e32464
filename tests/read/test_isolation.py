"""Conditions 24 to 33 through producers and consumers: what shows, to whom, and when.

Where readers and writers meet, every storage request is a point at which another one goes on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from tests.support.steps import another, begin, send
from txnlog import ConsumerIsolationLevel
from txnlog.errors import InvalidTxnState, ProducerFenced
from txnlog.names import TopicPartition
from txnlog.store import Store
from txnlog.testing import Choose, Process, Simulation, preemptions, random_choice

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Body = Callable[[Process], None]
_STORES = itertools.count()


pytestmark = pytest.mark.store(topics={"t": 2})


def stable(store: Store) -> list[int]:
    ends = store.consumer("t").end_offsets([T0, T1])
    return [ends[T0], ends[T1]]


def read(
    store: Store, isolation_level: ConsumerIsolationLevel = "read_committed"
) -> list[bytes | None]:
    consumer = store.consumer(
        "t", auto_offset_reset="earliest", isolation_level=isolation_level, stop_at_end=True
    )
    return [record.value for record in consumer]


@pytest.mark.condition(26)
def test_the_stable_offset_follows_the_earliest_of_three_producers(store: Store) -> None:
    """Through producers, in each partition by itself, for old and new readers."""
    first, second, third = (begin(store, name) for name in "abc")
    send(first, b"a")
    send(second, b"b", b"b")
    send(second, b"b", partition=1)
    send(third, b"c")
    send(third, b"c", b"c", partition=1)
    with store.producer() as plain:
        plain.send("t", b"p", partition=1)
    old = another(store)
    seen = []
    for end in (
        lambda: None,
        third.abort_transaction,
        first.commit_transaction,
        second.commit_transaction,
    ):
        end()
        assert stable(old) == stable(another(store))
        seen.append((stable(old), sorted(read(old))))  # type: ignore[type-var]
    assert seen == [
        ([0, 0], []),
        ([0, 0], []),
        ([1, 0], [b"a"]),
        ([4, 4], [b"a", b"b", b"b", b"b", b"p"]),
    ]
    assert len(read(old, "read_uncommitted")) == 8


@pytest.mark.condition(17, 28)
@pytest.mark.parametrize("call", ["send", "offsets", "commit", "abort"])
def test_each_call_of_a_replaced_instance_is_refused(store: Store, call: str) -> None:
    """Whatever the first instance does next; only what the second one did shows."""
    first = begin(store, "same")
    send(first, b"first")
    second = begin(another(store), "same")
    if call == "send":
        first.send("t", b"late", partition=0)
    if call == "offsets":
        first.send_offsets_to_transaction({T0: 1}, "g")
    refused = {"send": first.flush, "abort": first.abort_transaction}
    with pytest.raises(ProducerFenced, match="fenced"):
        refused.get(call, first.commit_transaction)()
    with pytest.raises(InvalidTxnState, match="fenced"):
        first.commit_transaction()
    with pytest.raises(InvalidTxnState, match="fenced"):
        first.begin_transaction()
    assert read(another(store)) == []
    send(second, b"second")
    second.send_offsets_to_transaction({T0: 2}, "g")
    second.commit_transaction()
    assert read(another(store)) == [b"second"]
    assert [o.offset for o in another(store).groups.describe("g").offsets] == [2]


@pytest.mark.condition(28)
@pytest.mark.parametrize("call", ["send", "offsets"])
def test_an_idle_instance_that_was_replaced_begins_nothing(store: Store, call: str) -> None:
    """The first one has no transaction open when the second one takes over."""
    first = begin(store, "same")
    send(first, b"first")
    first.commit_transaction()
    second = begin(another(store), "same")
    first.begin_transaction()
    if call == "send":
        first.send("t", b"late", partition=0)
    else:
        first.send_offsets_to_transaction({T0: 1}, "g")
    with pytest.raises(ProducerFenced):
        first.commit_transaction()
    send(second, b"second")
    second.commit_transaction()
    assert read(another(store)) == [b"first", b"second"]
    assert another(store).consumer("t", group_id="g").committed(T0) is None


@pytest.mark.condition(32)
def test_the_stable_offset_stays_at_the_log_start(store: Store) -> None:
    """Where a reader cannot learn what became of records that are deleted by now."""
    producer = begin(store, "p")
    send(producer, b"aborted")
    producer.abort_transaction()
    with store.producer() as plain:
        for number in range(4):
            plain.send("t", b"%d" % number, partition=0)
    store.topics.delete_records({T0: 3})
    names = [f"transactions/p/{name}" for name in store.storage.list_names("transactions/p")]
    lost = names[-2:]
    kept = [store.storage.get(name) for name in lost]
    store.storage.delete([f"topics/t/log/{1:020d}.abort", *lost])
    for name in lost:
        store.storage.put(name, b"damaged")
    reader = another(store)
    assert reader.logs.fresh_topic("t").undecided()
    assert stable(reader) == [3, 0]
    consumer = reader.consumer("t", auto_offset_reset="earliest")
    assert consumer.beginning_offsets([T0]) == {T0: 3}
    assert consumer.offsets_for_times({T0: 0}) == {T0: None}
    snapshot = reader.snapshot(["t"])
    assert snapshot.beginning_offsets("t") == snapshot.end_offsets("t") == {0: 3, 1: 0}
    assert read(reader) == []
    store.storage.delete(lost)
    for name, data in zip(lost, kept, strict=True):
        store.storage.put(name, data)
    assert stable(reader) == [5, 0]
    assert read(reader) == [b"2", b"3"]


# -- readers and writers that meet ---------------------------------------------------------------


def prepare(seed: int, *topics: str) -> Simulation:
    simulation = Simulation(seed)
    store = simulation.store()
    for topic in topics:
        store.topics.create(topic, partitions=2)
    return simulation


def aborter(times: int) -> Body:
    """A process that appends single records in transactions and aborts each."""

    def body(process: Process) -> None:
        store = process.store()
        producer = begin(store, "p")
        for turn in range(times):
            send(producer, b"never %d" % turn)
            producer.abort_transaction()
            if turn % 2:
                producer.begin_transaction()
            else:
                producer = begin(store, "p")

    return body


def poller(times: int, polls: list[int]) -> Body:
    """A process that polls with one consumer, and with a new one each time; nothing may come."""

    def body(process: Process) -> None:
        store = process.store()
        consumer = store.consumer("t", auto_offset_reset="earliest")
        for _ in range(times):
            assert consumer.poll() == []
            assert store.scan("t").record_count == 0
            polls.append(consumer.position(T0))

    return body


@pytest.mark.condition(30)
def test_a_reader_that_polls_at_any_moment_sees_nothing_aborted() -> None:
    """Every interleaving with one switch, then random ones; no record, ever."""

    def run(choose: Choose) -> tuple[int, list[int]]:
        simulation, polls = prepare(1, "t"), list[int]()
        simulation.spawn("aborting", aborter(4))
        simulation.spawn("polling", poller(8, polls))
        simulation.run(choose)
        return len(simulation.order), polls

    length, _ = run(preemptions([]))
    assert length > 60
    for switch in range(length):
        run(preemptions([switch]))
    found = [run(random_choice(seed))[1] for seed in range(60)]
    # They did meet: readers have passed over some of the records while others were yet to come.
    assert {at for polls in found for at in polls} == {0, 1, 2, 3, 4}


TOPICS = ("a", "b", "c", "d")
WRITERS, TURNS = 8, 2


def committer(number: int) -> Body:
    """A process whose transactions write to all topics, in several appends; it aborts some."""

    def body(process: Process) -> None:
        rng = random.Random(number)
        producer = process.store().producer(transactional_id=f"writer-{number}")
        producer.init_transactions()
        for turn in range(TURNS):
            producer.begin_transaction()
            for topic in rng.sample(TOPICS, len(TOPICS)):
                producer.send(topic, b"%d-%d" % (number, turn), partition=rng.randrange(2))
                if rng.random() < 0.5:
                    producer.flush()
            if (number + turn) % 4 == 3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()

    return body


def looker(seen: list[int]) -> Body:
    """A process that takes snapshots of all topics, opening the store again for every other one."""

    def body(process: Process) -> None:
        store = process.store()
        for turn in range(12):
            if turn % 2:
                store = process.store()
            snapshot = store.snapshot(TOPICS)
            shown = [
                sorted(snapshot.scan(topic).to_arrow().column("value").to_pylist())
                for topic in TOPICS
            ]
            assert shown == [shown[0]] * len(TOPICS), "a snapshot is torn"
            assert len(set(shown[0])) == len(shown[0])
            seen.append(len(shown[0]))

    return body


@pytest.mark.more
@pytest.mark.condition(31)
def test_snapshots_of_all_topics_while_eight_writers_commit() -> None:
    """Each transaction shows wholly or not at all, at any moment, in random orders."""
    seen: list[int] = []
    total = sum((n + turn) % 4 != 3 for n in range(WRITERS) for turn in range(TURNS))
    for seed in range(6):
        simulation = prepare(seed, *TOPICS)
        for number in range(WRITERS):
            simulation.spawn(f"writer {number}", committer(number))
        for number in range(2):
            simulation.spawn(f"reader {number}", looker(seen))
        simulation.run(random_choice(seed))
        store = simulation.store()
        assert [store.scan(topic).record_count for topic in TOPICS] == [total] * len(TOPICS)
    assert any(0 < count < total for count in seen)
