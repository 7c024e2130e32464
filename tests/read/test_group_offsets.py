"""Conditions 29 and 34 to 38 of groups and positions: resets, reopening, seeks, held offsets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.groups.alone import read_alone
from tests.support.steps import another, begin, begin_with_offsets, new_store
from txnlog import AutoOffsetReset
from txnlog.errors import (
    CommitFailed,
    ConcurrentTransactions,
    NoOffsetForPartition,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.names import TopicPartition
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import VirtualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 60_000
POLICIES = pytest.mark.parametrize("policy", ["earliest", "latest", "none"])


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    """Topic ``t``: offsets 3 to 9 in partition 0, nothing in partition 1."""
    store = new_store(memory_storage, clock, {"t": 2})
    fill(store, 10)
    store.topics.delete_records({T0: 3})
    return store


def fill(store: Store, count: int) -> None:
    with store.producer() as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=0)


def committed_offset(store: Store, where: TopicPartition = T0) -> tuple[int, str] | None:
    found = another(store).consumer("t", group_id="g").committed(where)
    return (found.offset, found.metadata) if found else None


@pytest.mark.condition(34)
@pytest.mark.parametrize("commits", [True, False])
def test_offsets_of_an_open_transaction_show_nowhere(store: Store, commits: bool) -> None:
    """Neither as committed nor to somebody who starts reading; then as they were decided."""
    store.consumer("t", group_id="g").commit({T0: 5})
    producer = begin_with_offsets(store, "p", {T0: 8})
    for reader in (store, another(store)):
        consumer = reader.consumer("t", group_id="g", auto_offset_reset="none")
        consumer.assign([T0])
        assert consumer.position(T0) == 5
        assert [(o.offset, o.lag) for o in reader.groups.describe("g").offsets] == [(5, 5)]
    assert committed_offset(store) == (5, "")
    if commits:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    expected = 8 if commits else 5
    assert committed_offset(store) == (expected, "")
    assert [o.offset for o in store.groups.describe("g").offsets] == [expected]


@pytest.mark.condition(35)
@pytest.mark.parametrize("winner", [0, 1, 2])
def test_of_transactions_from_one_offset_one_commits(store: Store, winner: int) -> None:
    """While one holds the offset others wait; whoever comes after its commit is refused."""
    jobs = [begin(another(store), name) for name in "abc"]
    for producer in jobs:
        producer.send("t", b"out", partition=1)
        producer.send_offsets_to_transaction({T0: 8}, "g")
    first = jobs.pop(winner)
    first._place({}, first._offsets.take())
    with pytest.raises(ConcurrentTransactions, match="t:0"):
        jobs[0].commit_transaction()
    first.commit_transaction()
    with pytest.raises(
        CommitFailed, match="read when the group had no offset, but the group is at 8"
    ):
        jobs[1].commit_transaction()
    for producer in jobs:
        producer.abort_transaction()
    assert committed_offset(store) == (8, "")
    assert another(store).scan("t", {0: 10, 1: 0}).record_count == 1


@pytest.mark.condition(29)
def test_offsets_that_a_timed_out_transaction_holds(store: Store, clock: VirtualClock) -> None:
    """They block others up to the timeout and its margin, not a millisecond longer."""
    begin_with_offsets(store, "stuck", {T0: 8})
    other = another(store).consumer("t", group_id="g")
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS
    with pytest.raises(ConcurrentTransactions, match="'stuck'"):
        other.commit({T0: 4})
    clock.time_ms += 1
    producer = begin(another(store), "p")
    producer.send_offsets_to_transaction({T0: 4}, "g")
    producer.commit_transaction()
    assert committed_offset(store) == (4, "")
    other.commit({T0: 6})
    assert committed_offset(store) == (6, "")


@pytest.mark.condition(36)
@POLICIES
def test_a_new_group_starts_as_the_policy_says(store: Store, policy: AutoOffsetReset) -> None:
    """At the log start, at the last stable offset, or not at all."""
    waiting = begin(store, "open")
    waiting.send("t", b"open", partition=0)
    waiting.flush()
    consumer = store.consumer("t", group_id="new", auto_offset_reset=policy, stop_at_end=True)
    if policy == "none":
        for _ in range(2):
            with pytest.raises(NoOffsetForPartition, match="t:0"):
                consumer.poll()
        return
    assert [record.offset for record in consumer] == (
        list(range(3, 10)) if policy == "earliest" else []
    )
    waiting.commit_transaction()
    assert [record.value for record in consumer] == [b"open"]


@pytest.mark.condition(36)
@POLICIES
@pytest.mark.parametrize("offset", [0, 2, 11, 1000])
def test_a_groups_offset_out_of_range(store: Store, policy: AutoOffsetReset, offset: int) -> None:
    """Below the log start and beyond the log's end the policy decides."""
    store.consumer("t", group_id="g").commit({T0: offset, T1: 0})
    consumer = another(store).consumer(
        "t", group_id="g", auto_offset_reset=policy, stop_at_end=True
    )
    if policy == "none":
        for call in (lambda: consumer.position(T0), consumer.poll, consumer.poll):
            with pytest.raises(OffsetOutOfRange, match=f"position {offset} of t:0.* 3 to 10"):
                call()
        return
    expected = list(range(3, 10)) if policy == "earliest" else []
    assert [record.offset for record in consumer] == expected
    assert consumer.position(T0) == 10


@pytest.mark.condition(37)
@pytest.mark.parametrize("commits", [1, 40])
def test_committed_offsets_with_metadata_are_listed_and_reset(store: Store, commits: int) -> None:
    """They survive reopening, by entries or by a checkpoint, and can be set back."""
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    for number in range(commits):
        consumer.commit({T0: 3 + number % 7, T1: 0}, metadata=f"by hand {number}")
    last = commits - 1
    files = store.storage.list_names("groups/g")
    assert any(name.endswith(".checkpoint") for name in files) is (commits > 32)
    assert committed_offset(store) == (3 + last % 7, f"by hand {last}")
    assert another(store).groups.list() == ["g"]
    (listed,) = another(store).groups.describe_all()
    assert listed == another(store).groups.describe("g")
    assert [(o.partition, o.offset, o.metadata, o.lag) for o in listed.offsets] == [
        (0, 3 + last % 7, f"by hand {last}", 7 - last % 7),
        (1, 0, f"by hand {last}", 0),
    ]
    for reset, expected in ((consumer.seek_to_end, 10), (consumer.seek_to_beginning, 3)):
        reset()
        consumer.commit()
        assert committed_offset(store) == (expected, "")
        again = read_alone(
            another(store), "t", group_id="g", auto_offset_reset="none", stop_at_end=True
        )
        assert [record.offset for record in again] == list(range(expected, 10))
    assert committed_offset(store, T1) == (0, "")


@pytest.mark.condition(38)
@POLICIES
@pytest.mark.parametrize("group_id", [None, "g"])
def test_a_seek_past_the_end(store: Store, policy: AutoOffsetReset, group_id: str | None) -> None:
    """OffsetOutOfRange, or what the policy says, as in Kafka; the end itself is in range."""
    consumer = store.consumer("t", group_id=group_id, auto_offset_reset=policy)
    consumer.assign([T0])
    consumer.seek(T0, 10)
    assert consumer.poll() == []
    assert consumer.position(T0) == 10
    consumer.seek(T0, 12)
    if policy == "none":
        with pytest.raises(OffsetOutOfRange, match="position 12 of t:0"):
            consumer.poll()
        return
    expected = list(range(3, 10)) if policy == "earliest" else []
    assert [record.offset for record in consumer.poll()] == expected
    fill(store, 4)
    assert [record.offset for record in consumer.poll()] == [10, 11, 12, 13]


@pytest.mark.condition(38)
@POLICIES
def test_a_seek_below_the_log_start(store: Store, policy: AutoOffsetReset) -> None:
    """OffsetOutOfRange, or what the policy says; the log start itself is in range."""
    consumer = store.consumer("t", auto_offset_reset=policy)
    consumer.assign([T0])
    consumer.seek(T0, 3)
    assert [record.offset for record in consumer.poll()] == list(range(3, 10))
    consumer.seek(T0, 2)
    if policy == "none":
        with pytest.raises(OffsetOutOfRange, match="position 2 of t:0"):
            consumer.poll()
        return
    expected = list(range(3, 10)) if policy == "earliest" else []
    assert [record.offset for record in consumer.poll()] == expected
    assert consumer.position(T0) == 10


def commit(store: Store, where: TopicPartition) -> None:
    with store.consumer(group_id="g") as consumer:
        consumer.assign([T0])
        consumer.commit({where: 2})


def commit_async(store: Store, where: TopicPartition) -> None:
    with store.consumer(group_id="g") as consumer:
        consumer.commit_async({where: 2})


def send_offsets(store: Store, where: TopicPartition) -> None:
    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({where: 2}, "g")


def reset(store: Store, where: TopicPartition) -> None:
    store.groups.reset_offsets("g", to={where: 2})


WAYS = (commit, commit_async, send_offsets, reset)


@pytest.mark.parametrize("is_known", [True, False], ids=["known topic", "unread topic"])
@pytest.mark.parametrize("way", WAYS)
def test_offsets_of_partitions_that_come_later(
    store: Store, way: Callable[[Store, TopicPartition], None], is_known: bool
) -> None:
    """They are refused, and so do not count when it comes: its records would be passed over."""
    one = another(store)
    if is_known:
        one.topics.describe("t")
    later = TopicPartition("t", 2)
    with pytest.raises(UnknownTopicOrPartition, match="no partition 2"):
        way(one, later)
    another(store).topics.alter("t", partitions=3)
    assert committed_offset(store, later) is None
    with store.producer() as producer:
        for number in range(4):
            producer.send("t", b"%d" % number, partition=2)
    way(one, later)
    assert committed_offset(store, later) == (2, "")


def test_offsets_of_topics_that_are_gone_are_not_refused(store: Store) -> None:
    """What was read is committed with other topics' offsets, and counts nowhere."""
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    consumer.poll()
    another(store).topics.delete("t")
    consumer.commit({T0: 10, T1: 0})
    another(store).topics.create("t", partitions=1)
    consumer.commit({T0: 10, T1: 0})
    assert committed_offset(store) is None
