"""Topics that are deleted, and recreated, while somebody reads them: never the wrong records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.groups.alone import read_alone
from tests.support.steps import another, begin
from txnlog.consumer import Consumer
from txnlog.errors import (
    CommitFailed,
    CorruptRecord,
    NoOffsetForPartition,
    StorageError,
    UnknownTopicOrPartition,
)
from txnlog.names import TopicPartition
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, VirtualClock

T0, T2 = TopicPartition("t", 0), TopicPartition("t", 2)
U0 = TopicPartition("u", 0)


pytestmark = [pytest.mark.store(topics={"t": 3, "u": 1}), pytest.mark.rule("G3")]


def fill(store: Store, *values: bytes, topic: str = "t") -> None:
    with store.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def make_anew(store: Store, *values: bytes, partitions: int = 1) -> None:
    store.topics.delete("t")
    store.topics.create("t", partitions=partitions)
    fill(store, *values)


def test_a_consumer_goes_on_in_the_new_topic_as_the_reset_policy_says(store: Store) -> None:
    """The old position does not count; partitions that the new topic lacks are not read."""
    fill(store, b"old 0", b"old 1")
    consumer = store.consumer("t", auto_offset_reset="earliest")
    careful = store.consumer("t", auto_offset_reset="none")
    careful.seek_to_beginning()
    assert len(consumer.poll()) == len(careful.poll()) == 2
    make_anew(store, b"new 0", b"new 1", b"new 2")
    assert [record.value for record in consumer.poll()] == [b"new 0", b"new 1", b"new 2"]
    assert consumer.assignment() == [T0]
    with pytest.raises(NoOffsetForPartition, match="t:0"):
        careful.poll()


def test_an_assigned_partition_that_is_gone_is_reported(store: Store) -> None:
    """Nobody else can say what is to be read in its place."""
    consumer = store.consumer(auto_offset_reset="earliest")
    consumer.assign([T0, T2])
    assert consumer.poll() == []
    make_anew(store, b"new")
    with pytest.raises(UnknownTopicOrPartition, match=r"no partition 2; it has 1.*assign again"):
        consumer.poll()
    consumer.assign([T0])
    assert [record.value for record in consumer.poll()] == [b"new"]


@pytest.mark.few(4)
@pytest.mark.parametrize("call", [Consumer.poll, Consumer.poll_batches, next])
@pytest.mark.parametrize("sought", [(), (T0,), (T2,), (T0, T2)], ids=str)
@pytest.mark.parametrize("paused", [(), (T0,), (T2,), (T0, T2)], ids=str)
@pytest.mark.parametrize("group_id", [None, "g"])
def test_one_that_is_gone_is_reported_whatever_was_done_to_it(
    store: Store,
    group_id: str | None,
    paused: tuple[TopicPartition, ...],
    sought: tuple[TopicPartition, ...],
    call: Callable[[Any], object],
) -> None:
    """Also where it is not read, and where it was given a position since; by each way to poll."""
    consumer = store.consumer(group_id=group_id, auto_offset_reset="earliest")
    consumer.assign([T0, T2])
    consumer.pause(*paused)
    assert consumer.poll() == []
    make_anew(store, b"new")
    for _ in range(3):
        with pytest.raises(UnknownTopicOrPartition, match=r"no partition 2; it has 1.*assign aga"):
            call(iter(consumer) if call is next else consumer)
        for where in sought:
            consumer.seek(where, 0)
    consumer.assign([T0])
    consumer.resume(T0)
    assert [record.value for record in consumer.poll()] == [b"new"]


def test_a_groups_offsets_do_not_apply_to_the_new_topic(store: Store) -> None:
    """Neither for a new consumer, nor where a transaction compares them."""
    fill(store, b"old 0", b"old 1")
    old = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
    old.poll()
    old.commit()
    make_anew(store, b"new 0", b"new 1", b"new 2")
    described = store.groups.describe("g").offsets
    assert {(at.partition, at.lag) for at in described} == {(0, None), (1, None), (2, None)}
    consumer = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
    assert consumer.committed(T0) is None
    assert len(consumer.poll(max_records=2)) == 2
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    with producer.transaction():
        producer.send_offsets_to_transaction({T0: 2}, consumer.group_metadata())
    with producer.transaction():
        producer.send_offsets_to_transaction({T0: 3}, "g")
    committed = consumer.committed(T0)
    assert committed is not None
    assert committed.offset == 3
    assert store.groups.describe("g").offsets[0].lag == 0


def test_a_late_commit_for_the_old_topic_moves_nobody_in_the_new_one(store: Store) -> None:
    """A consumer commits what it has read of a topic that is another one by now."""
    fill(store, b"old 0", b"old 1")
    consumer = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
    consumer.poll()
    metadata = consumer.group_metadata()
    make_anew(store, b"new 0", b"new 1", b"new 2")
    consumer.commit({T0: 2})
    fresh = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
    assert len(fresh.poll()) == 3
    fresh.commit()
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    with pytest.raises(CommitFailed), producer.transaction():
        producer.send_offsets_to_transaction({T0: 1}, metadata)


@pytest.mark.parametrize("asleep", [False, True])
def test_a_late_commit_replaces_no_offset_of_the_new_topic(
    store: Store, caplog: pytest.LogCaptureFixture, asleep: bool
) -> None:
    """Wherever its process slept; what it has read of other topics is committed all the same."""
    fill(store, b"old 0", b"old 1")
    fill(store, b"other", topic="u")

    def go_on(request: str) -> None:
        if asleep and request.startswith("put_if_absent groups/g/") and not later:
            later.append(True)
            make_anew_and_commit()

    def make_anew_and_commit() -> None:
        make_anew(store, b"new 0", b"new 1", b"new 2")
        fresh = read_alone(another(store), "t", group_id="g", auto_offset_reset="earliest")
        assert len(fresh.poll(max_records=1)) == 1
        fresh.commit()

    later: list[bool] = []
    late_store = another(store, FaultyStorage(store.storage, before_request=go_on))
    late = late_store.consumer(group_id="g", auto_offset_reset="earliest")
    late.assign([T0, U0])
    assert len(late.poll()) == 3
    if not asleep:
        make_anew_and_commit()
    late.commit()
    assert "offsets of t were not committed" in caplog.text
    for reader in (store, another(store)):
        at = reader.consumer(group_id="g").committed(U0)
        assert at is not None
        assert at.offset == 1
        fresh = read_alone(reader, "t", group_id="g", auto_offset_reset="none")
        assert [record.value for record in fresh.poll()] == [b"new 1", b"new 2"]
    late.commit({T0: 2})  # nothing else: there is no entry for it
    assert another(store).logs.fresh_group("g").next_entry == 2
    assert len(late.poll()) == 2  # from the group's offset in the new topic
    late.commit()
    described = {(at.topic, at.partition): at.offset for at in store.groups.describe("g").offsets}
    assert described["t", 0] == 3


def test_a_deleted_topic_does_not_stop_the_others(store: Store) -> None:
    """The others are read on; when none is left the error names the topic and the remedy."""
    fill(store, b"1", topic="u")
    consumer = store.consumer("t", "u", auto_offset_reset="earliest")
    store.topics.delete("t")
    assert [record.value for record in consumer.poll()] == [b"1"]
    assert consumer.assignment() == [TopicPartition("u", 0)]
    store.topics.create("t")
    fill(store, b"new")
    assert [record.value for record in consumer.poll()] == [b"new"]
    store.topics.delete("t")
    store.topics.delete("u")
    with pytest.raises(UnknownTopicOrPartition, match="'t' does not exist; make it"):
        consumer.poll()


def test_a_topic_that_is_deleted_while_it_is_read_does_not_stop_the_others(store: Store) -> None:
    """Its segments vanish between two batches."""
    for _ in range(2):
        fill(store, b"t")
    fill(store, b"u", topic="u")
    consumer = store.consumer("t", "u", auto_offset_reset="earliest", max_poll_records=1)
    assert [record.value for record in consumer.poll()] == [b"t"]
    store.topics.delete("t")
    assert [record.value for record in consumer.poll()] == [b"u"]


def test_a_poll_that_fails_does_not_bring_old_positions_back(
    store: Store, clock: VirtualClock
) -> None:
    """The poll that finds the topic recreated fails while reading; the next starts at its start."""
    fill(store, b"old 0", b"old 1")
    storage = FaultyStorage(store.storage)
    consumer = attach(storage, clock=clock).consumer("t", auto_offset_reset="earliest")
    assert len(consumer.poll()) == 2
    make_anew(store, b"new 0", b"new 1", b"new 2")

    def fail_once(name: str, start: int, stop: int) -> bytes:
        del storage.get_range
        raise StorageError("503")

    storage.get_range = fail_once  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="503"):
        consumer.poll()
    assert len(consumer.poll()) == 3


@pytest.mark.parametrize("again", [False, True])
def test_an_open_scan_says_that_its_topic_was_deleted(store: Store, again: bool) -> None:
    """Not that its records are corrupt; a lookup of a time says the same."""
    fill(store, b"1")
    scan = store.scan("t")
    snapshot = store.snapshot(["t"])
    store.topics.delete("t")
    if again:
        store.topics.create("t")
        fill(store, b"2")
    expected = "'t' was deleted and recreated since" if again else "'t' was deleted since"
    with pytest.raises(UnknownTopicOrPartition, match=expected):
        scan.to_arrow()
    with pytest.raises(UnknownTopicOrPartition, match=expected):
        snapshot.offset_for_time(T0, 0)


def test_a_lost_segment_is_still_damage(store: Store) -> None:
    """A file that is gone while its topic is there was not deleted by txnlog."""
    fill(store, b"1")
    scan = store.scan("t")
    store.storage.delete([name for name, _ in store.storage.list_all("topics/t/data")])
    with pytest.raises(CorruptRecord, match="is gone, with offsets 0 to 0"):
        scan.to_arrow()


def test_a_snapshot_is_not_cut_by_what_a_later_topic_holds(
    store: Store, clock: VirtualClock
) -> None:
    """A topic is recreated between the two listings of a snapshot: it is taken again."""
    fill(store, b"old 0", b"old 1")
    fill(store, b"u", topic="u")

    listings = 0

    def meanwhile(request: str) -> None:
        nonlocal listings
        listings += request == "list topics/t/log"
        if listings == 2:
            listings += 1
            make_anew(store, b"new")

    storage = FaultyStorage(store.storage, before_request=meanwhile)
    snapshot = attach(storage, clock=clock).snapshot(["t", "u"])
    assert listings > 3
    assert snapshot.scan("t").to_arrow().column("value").to_pylist() == [b"new"]
    assert snapshot.scan("u").to_arrow().column("value").to_pylist() == [b"u"]


def test_a_producer_goes_on_in_the_new_topic(store: Store) -> None:
    """What was sent for the old topic does not land in the new one; what is sent then does."""
    producer = store.producer()
    producer.send("t", b"old")
    producer.flush()
    producer.send("t", b"for the old one")
    make_anew(store)
    with pytest.raises(UnknownTopicOrPartition, match="recreated"):
        producer.flush()
    producer.send("t", b"new")
    producer.flush()
    assert store.scan("t").to_arrow().column("value").to_pylist() == [b"new"]


def test_a_transaction_for_the_old_topic_can_only_be_aborted(store: Store) -> None:
    """The producer goes on with the next one."""
    producer = begin(store, "p")
    producer.send("t", b"for the old one")
    make_anew(store)
    with pytest.raises(UnknownTopicOrPartition, match="recreated"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"new")
    assert store.scan("t").to_arrow().column("value").to_pylist() == [b"new"]
