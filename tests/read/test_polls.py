"""Consumers that poll: in a loop, left early, failing midway, while others commit."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from tests.support.groups.alone import read_alone
from tests.support.log.settling import settle_early
from tests.support.runtime.call_counts import calls_of
from tests.support.steps import another, append, begin_with, new_store
from txnlog.config import AutoOffsetReset
from txnlog.errors import OffsetOutOfRange, StorageError
from txnlog.names import TopicPartition
from txnlog.read import plan
from txnlog.read.plan import SegmentRange
from txnlog.read.topic_view import TopicView
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

T0 = TopicPartition("t", 0)


def test_kafkas_loop_with_one_consumer(store: Store) -> None:
    """Consume, produce, send the offsets, commit, again: the consumer learns of its commits."""
    store.topics.create("out")
    for number in range(4):
        append(store, b"%d" % number)
    consumer = store.consumer(
        "t", group_id="g", auto_offset_reset="earliest", max_poll_records=2, stop_at_end=True
    )
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    while records := consumer.poll():
        with producer.transaction():
            for record in records:
                producer.send("out", record.value)
            producer.send_offsets_to_transaction(
                {T0: consumer.position(T0)}, consumer.group_metadata()
            )
    assert store.scan("out").record_count == 4


def test_leaving_the_loop_loses_no_records(store: Store) -> None:
    """The position is behind the last record that the loop has seen."""
    for number in range(4):
        append(store, b"%d" % number)
    consumer = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    for record in consumer:
        assert record.offset == 0
        break
    assert consumer.position(T0) == 1
    assert [record.offset for record in consumer] == [1, 2, 3]


def test_a_poll_that_fails_midway_loses_no_records(store: Store, clock: VirtualClock) -> None:
    """What it had read when it failed comes again with the next one."""
    for number in range(3):
        append(store, b"%d" % number)
    storage = FaultyStorage(store.storage)
    consumer = attach(storage, clock=clock).consumer(
        "t", auto_offset_reset="earliest", stop_at_end=True
    )
    get_range, reads = storage.get_range, 0

    def failing(name: str, start: int, stop: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 3:
            raise StorageError("503")
        return get_range(name, start, stop)

    storage.get_range = failing  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="503"):
        consumer.poll()
    assert reads == 3
    assert [record.value for record in consumer.poll()] == [b"0", b"1", b"2"]


@pytest.mark.rule("hazard 2")
def test_an_offset_that_is_committed_during_a_poll_is_not_out_of_range() -> None:
    """An offset beyond the poll's snapshot must not start over: the copy would come twice.

    Before each request of the poll in turn others write, copy what they wrote, and move the group.
    """
    for number in itertools.count():
        inner, clock = HeapStorage(), VirtualClock()
        store = new_store(inner, clock)
        append(store, b"0", b"1")
        slow = FaultyStorage(inner)
        consumer = read_alone(
            another(store, slow), "t", group_id="g", auto_offset_reset="earliest", stop_at_end=True
        )
        begun = len(slow.requests)

        def meanwhile(_: Fault, store: Store = store) -> None:
            append(store, b"2", b"3")
            store.consumer("t", group_id="g").commit({T0: 4})

        slow._on_wait = meanwhile
        slow.faults = {begun + number: Fault.PAUSE}
        records = consumer.poll(max_records=100)
        standing = consumer.group_metadata().start_of(T0)
        start = standing.offset or 0
        context = f"request {number} of {slow.requests[begun:]}"
        assert start in (0, 4), context
        offsets = [record.offset for record in records]
        assert offsets in ([[]] if start == 4 else [[0, 1], [0, 1, 2, 3]]), context
        if len(slow.requests) <= begun + number:
            break
    assert number > 2


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
@pytest.mark.parametrize("deleted_to", [0, 1, 2, 3])
def test_a_paused_partition_hinders_no_other(
    store: Store, reset: AutoOffsetReset, deleted_to: int
) -> None:
    """It stays where it is, also out of range: the policy holds once it is resumed."""
    store.topics.alter("t", partitions=2)
    t1 = TopicPartition("t", 1)
    append(store, b"0", b"1", b"2", partition=0)
    consumer = store.consumer(auto_offset_reset=reset)
    consumer.assign([T0, t1])
    consumer.seek(T0, 1)
    consumer.seek(t1, 0)
    consumer.pause(T0)
    assert consumer.poll() == []
    store.topics.delete_records({T0: deleted_to})
    for number in range(2):
        append(store, b"%d" % number, partition=1)
        assert [record.value for record in consumer.poll()] == [b"%d" % number]
        assert consumer.position(T0) == 1
    consumer.resume(T0)
    if reset == "none" and deleted_to > 1:
        with pytest.raises(OffsetOutOfRange, match="position 1 of t:0"):
            consumer.poll()
        return
    begins = max(deleted_to, 1) if reset != "latest" or deleted_to <= 1 else 3
    assert [record.offset for record in consumer.poll()] == [*range(begins, 3)]


@pytest.mark.few(3)
@pytest.mark.parametrize("topics", [("t",), ("t", "other")], ids=["one", "two"])
@pytest.mark.parametrize("happening", ["merge", "trim", "delete"])
def test_a_poll_plans_again_if_files_go_meanwhile(happening: str, topics: tuple[str, ...]) -> None:
    """Before each of its requests in turn the first half is rewritten or deleted, and vacuumed."""
    for number in itertools.count():
        inner, clock = HeapStorage(), VirtualClock()
        inner.time_ms = lambda clock=clock: clock.time_ms
        store = new_store(inner, clock)
        store.topics.create("other")
        store.topics.alter("t", config={"file.delete.delay.ms": "0"})
        for offset in range(6):
            append(store, b"%d" % offset)
        append(store, b"of the other", topic="other")
        slow = FaultyStorage(inner)
        consumer = another(store, slow).consumer(
            *topics, auto_offset_reset="earliest", stop_at_end=True
        )
        begun = len(slow.requests)

        def meanwhile(_: Fault, store: Store = store, clock: VirtualClock = clock) -> None:
            if happening == "merge":
                store.maintenance.merge("t")
            elif happening == "trim":
                store.topics.delete_records({T0: 3})
            else:
                store.topics.delete("t")
                store.topics.create("t")
                append(store, b"anew")
            clock.sleep(1)
            store.maintain()

        slow._on_wait = meanwhile
        slow.faults = {begun + number: Fault.PAUSE}
        found = [record.value for record in consumer if record.topic == "t"]
        context = f"request {number} of {slow.requests[begun:]}: {found}"
        kept = [b"%d" % offset for offset in range(6)]
        if happening == "delete":
            assert found == [*kept[: len(found) - 1], b"anew"] or found == kept, context
        else:
            assert found == kept or (happening == "trim" and found[-3:] == kept[3:]), context
        if len(slow.requests) <= begun + number:
            break
    assert number > 5


def test_records_that_go_while_a_poll_looks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each of its requests in turn half is deleted, and newer lists of manifests say so.

    The consumer has many appends in memory, and adopts such a list.
    """
    settle_early(monkeypatch)
    found: list[list[int]] = []
    for number in itertools.count():
        inner, clock = HeapStorage(), VirtualClock()
        store = new_store(inner, clock)
        append(store, b"first")
        slow = FaultyStorage(inner)
        consumer = another(store, slow).consumer("t", auto_offset_reset="earliest")
        assert len(consumer.poll()) == 1
        holder = begin_with(store, "holder", b"held")
        for offset in range(2, 16):
            append(store, b"%d" % offset)
        holder.commit_transaction()
        begun = len(slow.requests)

        def meanwhile(_: Fault, store: Store = store) -> None:
            store.topics.delete_records({T0: 10})
            for offset in range(16, 24):
                append(store, b"%d" % offset)

        slow._on_wait = meanwhile
        slow.faults = {begun + number: Fault.PAUSE}
        consumer.seek(T0, 0)
        offsets = [record.offset for record in consumer.poll()]
        assert offsets in ([*range(16)], [*range(10, 16)], [*range(10, 24)])
        found.append(offsets)
        if len(slow.requests) <= begun + number:
            break
    assert [*range(10, 24)] in found
    assert number > 5


@pytest.mark.parametrize("way", ["poll", "scan"])
def test_records_that_go_between_pinning_and_planning_are_left_out(
    store: Store, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread deletes them, and the list that it puts is known to the reader at once."""
    settle_early(monkeypatch)
    for offset in range(16):
        append(store, b"%d" % offset)
    begun: list[str] = []
    plan = TopicView.visible_ranges

    def trim_and_plan(*spans: Any) -> list[SegmentRange]:
        if not begun:
            begun.append(way)
            store.topics.delete_records({T0: 10})
            for offset in range(16, 24):
                append(store, b"%d" % offset)
        return plan(*spans)

    monkeypatch.setattr(TopicView, "visible_ranges", trim_and_plan)
    if way == "poll":
        consumer = store.consumer("t", auto_offset_reset="earliest")
        offsets = [record.offset for record in consumer.poll()]
    else:
        offsets = store.scan("t").to_arrow()["offset"].to_pylist()
    assert offsets == [*range(10, 24)]
    with pytest.raises(OffsetOutOfRange, match="offset 9 of t:0"):
        store.scan("t", {0: 9})


def _send(store: Store, topic: str, value: bytes, partition: int) -> None:
    with store.producer() as producer:
        producer.send(topic, value, partition=partition)


def _fill(store: Store, partitions: int) -> None:
    numbers = pa.array(range(partitions), pa.int32())
    with store.producer() as producer:
        values = pa.array([b"x"] * partitions, pa.binary())
        producer.send_batch("many", pa.record_batch({"value": values, "partition": numbers}))


def test_polls_are_linear_in_partitions_and_idle_ones_do_nothing_for_them(
    clock: VirtualClock,
) -> None:
    """Ten times the partitions are about ten times the work if one has grown, else the same."""
    found: dict[int, list[int]] = {}
    for partitions in (100, 1000):
        store = attach(HeapStorage(), create=True, clock=clock)
        store.topics.create("many", partitions=partitions)
        _fill(store, partitions)
        consumer = store.consumer(
            "many", group_id="g", auto_offset_reset="earliest", stop_at_end=True
        )
        while consumer.poll():
            pass
        idle = calls_of(consumer.poll)
        _send(store, "many", b"y", partitions - 1)
        one = calls_of(lambda consumer=consumer: consumer.poll(max_records=1))  # type: ignore[misc]
        found[partitions] = [idle, one]
    assert found[1000][0] == found[100][0] < 1000
    assert found[1000][1] < 12 * found[100][1]
    assert found[1000][1] < 50 * 1000


def test_what_was_read_to_its_end_is_read_again_when_asked_for(store: Store) -> None:
    """An idle poll that looks no further forgets no seek, pause, assignment or new topic."""
    append(store, b"0")
    consumer = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    assert [record.value for record in consumer] == [b"0"]
    assert consumer.poll() == consumer.poll() == []
    consumer.seek(T0, 0)
    assert [record.value for record in consumer] == [b"0"]
    consumer.pause(T0)
    append(store, b"1")
    assert consumer.poll() == consumer.poll() == []
    consumer.resume(T0)
    assert [record.value for record in consumer] == [b"1"]
    assert consumer.poll() == []
    store.topics.alter("t", partitions=2)
    _send(store, "t", b"2", 1)
    assert [record.value for record in consumer] == [b"2"]
    store.topics.create("u")
    _send(store, "u", b"3", 0)
    consumer.subscribe(["t", "u"])
    assert [record.value for record in consumer] == [b"3"]
    assert consumer.poll() == []
    store.topics.delete("t")
    store.topics.create("t")
    append(store, b"4")
    assert [record.value for record in consumer] == [b"4"]


def test_a_poll_without_news_moves_on_when_a_transaction_ends(store: Store) -> None:
    """What was undecided shows without any new entry in the topic's log; so does an abort."""
    consumer = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    for number, ending in enumerate(["commit_transaction", "abort_transaction"] * 2):
        producer = store.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"%d" % number)
        producer.flush()
        assert consumer.poll() == consumer.poll() == []
        getattr(producer, ending)()
        committed = ending == "commit_transaction"
        assert [record.value for record in consumer] == [b"%d" % number] * committed
    assert consumer.position(T0) == consumer.end_offsets([T0])[T0] == 4


def test_single_records_cost_no_copy_of_all_positions(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read record by record takes as long with many partitions as with few; errors rewind."""
    monkeypatch.setattr(plan, "MOST_JOINED_BYTES", 0)
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("many", partitions=50)
    for _ in range(2):
        _fill(store, 50)
    storage = FaultyStorage(store.storage)
    consumer = attach(storage, clock=clock).consumer(
        "many", auto_offset_reset="earliest", stop_at_end=True
    )
    first = consumer.poll(max_records=1)[0]
    noted = [consumer._reading._before is None]
    consumer.poll(max_records=1)
    assert [*noted, consumer._reading._before is None] == [False, True]
    before = {n: consumer.position(TopicPartition("many", n)) for n in range(50)}

    def fail(name: str, start: int, stop: int) -> bytes:
        raise StorageError(f"503 {name} {start} {stop}")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "get_range", fail)
        with pytest.raises(StorageError, match="503"):
            consumer.poll(max_records=500)
    assert before == {n: consumer.position(TopicPartition("many", n)) for n in range(50)}
    assert first.offset == 0
    assert len(list(consumer)) == 98
