"""Faults that a review found, each with the history that shows it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from steps import another, append, begin, new_store, values

from txnlog.consumer import Consumer, ConsumerRecord
from txnlog.errors import (
    CommitFailed,
    CommitStateUnknown,
    CorruptEntry,
    InvalidOption,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TxnlogError,
)
from txnlog.log.group_metadata import GroupMetadata
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.state import envelope
from txnlog.state.placement import Placement
from txnlog.state.topic import Append
from txnlog.state.transaction import MAX_PRODUCER_EPOCH
from txnlog.storage.base import Storage, Upload
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, VirtualClock

T0 = TopicPartition("t", 0)
AGE_MS = 3_600_000


class Hooked(FaultyStorage):
    """Calls a rule before each create; the rule may raise. ``last`` is what it was called for."""

    rule: Callable[[str], None] | None = None
    last = ("", b"")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.last = (name, data)
        if self.rule is not None:
            self.rule(name)
        return super().put_if_absent(name, data)


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    return new_store(memory_storage, clock, config={"log.cleanup.age.ms": AGE_MS})


@pytest.fixture
def hooked(store: Store) -> Hooked:
    return Hooked(store.storage)


def interrupting(storage: Hooked, part: str) -> None:
    """The next create of a name with ``part`` in it is interrupted, as by Ctrl-C."""

    def rule(name: str) -> None:
        if part in name:
            storage.rule = None
            raise KeyboardInterrupt

    storage.rule = rule


def test_offsets_do_not_move_backwards_for_a_new_reader(store: Store, clock: VirtualClock) -> None:
    """A transaction's offsets count where they stand, though their marker is seen last."""
    producer = begin(store)
    producer.send_offsets_to_transaction({T0: 5}, "g")
    producer.commit_transaction()
    store.consumer("t", group_id="g").commit({T0: 10})
    found = another(store).consumer("t", group_id="g").committed(T0)
    assert found is not None
    assert found.offset == 10


def test_a_cleaned_marker_is_not_taken_for_an_abort(store: Store, clock: VirtualClock) -> None:
    """A reader that saw the entry undecided takes a checkpoint when entry and marker are gone."""
    producer = begin(store)
    producer.send("t", b"committed")
    producer.flush()
    for number in range(40):
        append(store, b"%d" % number)
    old = another(store)
    assert values(old) == []
    producer.commit_transaction()
    clock.time_ms += AGE_MS + 1
    for number in range(40, 64):
        append(store, b"%d" % number)
    with producer.transaction():
        producer.send("t", b"second")
    assert "00000000000000000001.commit" not in store.storage.list_names("topics/t/log")
    assert b"committed" in values(old)


def test_cleaning_spares_what_its_checkpoint_calls_undecided(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """A marker that comes while a checkpoint is written without it is not cleaned away."""
    crashing = Hooked(store.storage)
    producer = begin(attach(crashing, clock=clock))
    producer.send("t", b"committed")
    interrupting(crashing, ".commit")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    writer = attach(hooked, clock=clock)
    for number in range(35):
        append(writer, b"%d" % number)
    clock.time_ms += AGE_MS + 1

    def settle(name: str) -> None:
        if name.endswith(".checkpoint"):
            hooked.rule = None
            another(store).producer(transactional_id="p").init_transactions()

    hooked.rule = settle
    for number in range(35, 70):
        append(writer, b"%d" % number)
    assert hooked.rule is None
    assert b"committed" in values(another(store))


def test_short_lived_writers_clean_up(store: Store, clock: VirtualClock) -> None:
    """A chain of processes that each append a little keeps the log's folder small."""
    for _ in range(200):
        append(another(store), b"x")
        clock.time_ms += AGE_MS // 16
    assert len(store.storage.list_names("topics/t/log")) < 120
    assert len(values(another(store))) == 200


def test_an_interrupted_commit_is_not_half_repeated(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """After Ctrl-C between placements only abort is left; no part of it is committed."""
    store.create_topic("u")
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"1")
    producer.send("u", b"1")
    interrupting(hooked, "topics/u/log")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(another(store)) == []


def test_an_interrupt_while_marking_is_no_abort(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """The decision stands: abort must not say that it has aborted."""
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"1")
    interrupting(hooked, ".commit")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnState, match="ended with commit"):
        producer.abort_transaction()
    assert values(another(store)) == [b"1"]


def test_the_end_of_somebody_elses_transaction_is_not_taken_over(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """A newer instance completes ours, then its own, which looks alike; we are fenced."""
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"1")
    producer.flush()
    puts: list[str] = []

    def overtaken(name: str) -> None:
        if name.startswith("transactions/"):
            puts.append(name)
            if len(puts) == 2:
                newer = begin(another(store))
                newer.send("t", b"2")
                newer.commit_transaction()

    hooked.rule = overtaken
    producer.commit_transaction()
    assert len(puts) == 2
    with pytest.raises(ProducerFenced), producer.transaction():
        producer.send("t", b"late")
    assert values(another(store)) == [b"1", b"2"]


def test_an_unknown_abort_is_no_commit(store: Store, hooked: Hooked, clock: VirtualClock) -> None:
    """Calling commit after an abort of unknown outcome is refused."""
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"1")
    producer.flush()

    def failing(name: str) -> None:
        if name.startswith("transactions/"):
            raise StorageError("503")

    hooked.rule = failing
    with pytest.raises(CommitStateUnknown):
        producer.abort_transaction()
    hooked.rule = None
    with pytest.raises(TxnlogError, match="abort was begun"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(another(store)) == []


def test_kafkas_loop_with_one_consumer(store: Store) -> None:
    """Consume, produce, send the offsets, commit, again: the consumer learns of its commits."""
    store.create_topic("out")
    for number in range(4):
        append(store, b"%d" % number)
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest", max_poll_records=2)
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
    consumer = store.consumer("t", auto_offset_reset="earliest")
    for record in consumer:
        assert record.offset == 0
        break
    assert consumer.position(T0) == 1
    assert [record.offset for record in consumer] == [1, 2, 3]


def test_half_an_entry_is_not_kept_in_memory(store: Store, clock: VirtualClock) -> None:
    """An entry turns out wrong in its second half: its first half leaves no trace in the state."""
    reader = another(store)
    append(store, b"1")
    assert values(reader) == [b"1"]
    places = tuple(Placement(partition, "x-0", 1, 7, 10, 1, 1) for partition in (0, 7))
    wrong = "topics/t/log/00000000000000000002.json"
    store.storage.put(wrong, envelope.encode(Append("n", clock.time_ms, places)))
    for _ in range(2):
        with pytest.raises(CorruptEntry, match="contradicts the entries before it"):
            values(reader)
    store.storage.delete([wrong])
    append(store, b"2")
    assert values(reader) == [b"1", b"2"]


def test_a_poll_that_fails_midway_loses_no_records(store: Store, clock: VirtualClock) -> None:
    """What it had read when it failed comes again with the next one."""
    for number in range(3):
        append(store, b"%d" % number)
    storage = FaultyStorage(store.storage)
    consumer = attach(storage, clock=clock).consumer("t", auto_offset_reset="earliest")
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


def test_a_late_commit_that_lands_against_an_abort_wins(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """A commit of unknown outcome lands just before its abort: abort says so, and no more."""
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"1")
    producer.flush()

    def lost(name: str) -> None:
        if name.startswith("transactions/"):
            raise StorageError("the connection was reset")

    hooked.rule = lost
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    name, commit = hooked.last

    def late(_: str) -> None:
        hooked.rule = None
        assert store.storage.put_if_absent(name, commit)

    hooked.rule = late
    with pytest.raises(InvalidTxnState, match="had succeeded"):
        producer.abort_transaction()
    assert values(another(store)) == [b"1"]
    with producer.transaction():
        producer.send("t", b"2")
    assert values(another(store)) == [b"1", b"2"]


def test_after_the_last_epoch_comes_a_new_producer_id(store: Store, clock: VirtualClock) -> None:
    """Also where init aborts an open transaction of that epoch, which leaves no epoch to bump."""
    transactions = store.logs.transactions
    store.producer(transactional_id="p").init_transactions()
    first = transactions.describe("p")
    worn = msgspec.structs.replace(first.state, producer_epoch=MAX_PRODUCER_EPOCH - 1, nonce="n")
    assert transactions.put(first.number + 1, worn, transactions.now())
    old = begin(store)
    old.send("t", b"old")
    old.flush()
    last = transactions.describe("p").state
    assert (last.producer_id, last.producer_epoch) == (worn.producer_id, MAX_PRODUCER_EPOCH)
    new = begin(store)
    state = transactions.describe("p").state
    assert state.producer_id != worn.producer_id
    assert state.producer_epoch == 0
    new.send("t", b"new")
    with pytest.raises(TxnlogError) as caught:
        old.commit_transaction()
    assert caught.value.fatal
    new.commit_transaction()
    assert values(another(store)) == [b"new"]


def test_a_cut_does_not_fall_below_the_log_start(store: Store) -> None:
    """Goal (32): what it would hide was deleted: the snapshot is empty there, not negative."""
    store.create_topic("u")
    waiting = store.producer(transactional_id="open")
    waiting.init_transactions()
    waiting.begin_transaction()
    waiting.send("u", b"open")
    waiting.flush()
    producer = begin(store)
    producer.send("t", b"1")
    producer.send("u", b"1")
    producer.commit_transaction()
    store.delete_records({T0: 1})
    snapshot = store.snapshot(["t", "u"])
    assert snapshot.beginning_offsets("t") == snapshot.end_offsets("t") == {0: 1}
    assert snapshot.scan("t").record_count == 0
    consumer = store.consumer("t", "u", auto_offset_reset="earliest")
    assert consumer.poll() == []
    assert consumer.position(T0) == 1
    waiting.abort_transaction()
    assert [record.value for record in consumer.poll()] == [b"1"]


def test_an_abort_after_an_unknown_begin_ends_what_was_begun(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """The put of Ongoing has landed, though it failed: abort finds it, and the id goes on."""
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"1")

    def lost(name: str) -> None:
        if name.startswith("transactions/"):
            store.storage.put_if_absent(*hooked.last)
            raise StorageError("the connection was reset")

    def unreadable(name: str) -> bytes:
        if name.startswith("transactions/") and hooked.rule is not None:
            raise StorageError("the connection was reset")
        return store.storage.get(name)

    hooked.rule, hooked.get = lost, unreadable  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="reset"):
        producer.flush()
    hooked.rule = None
    producer.abort_transaction()
    assert store.describe_transaction("p").status == "CompleteAbort"
    with producer.transaction():
        producer.send("t", b"2")
    assert values(another(store)) == [b"2"]


def test_an_abort_is_complete_without_the_marker_of_an_entry_in_doubt(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """Invariant T4: an append landed, though it failed; unmarked it is aborted, now and later."""
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"1")

    def lost(name: str) -> None:
        if name.startswith("topics/t/log"):
            store.storage.put_if_absent(*hooked.last)
            raise StorageError("the connection was reset")

    def unreadable(name: str) -> bytes:
        if name.startswith("topics/t/log") and hooked.rule is not None:
            raise StorageError("the connection was reset")
        return store.storage.get(name)

    hooked.rule, hooked.get = lost, unreadable  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="reset"):
        producer.flush()
    hooked.rule = None
    producer.abort_transaction()
    assert store.describe_transaction("p").status == "CompleteAbort"
    names = store.storage.list_names("topics/t/log")
    assert names == ["00000000000000000000.json", "00000000000000000001.json"]
    assert values(another(store)) == []
    with producer.transaction():
        producer.send("t", b"2")
    assert values(another(store)) == [b"2"]


class CountingUpload(Upload):
    """Counts the bytes that an upload is given, and keeps none."""

    def __init__(self, counts: list[int]) -> None:
        self._counts = counts

    def write(self, data: bytes) -> int:
        self._counts.append(len(data))
        return len(data)

    def close(self) -> None:
        pass

    def discard(self) -> None:
        pass


@pytest.mark.parametrize("record_format", ["columns", "kafka"])
def test_large_records_sent_one_by_one_are_not_piled_up(
    store: Store, hooked: Hooked, clock: VirtualClock, record_format: str
) -> None:
    """Fewer records than make a batch by their number are made one by their size, 4 MiB."""
    store.create_topic("large", config={"record.format": record_format, "compression.type": "none"})
    written: list[int] = []
    hooked.upload = lambda _name: CountingUpload(written)  # type: ignore[method-assign]
    producer = attach(hooked, clock=clock).producer(buffer_memory_bytes=1)
    for _ in range(100):
        producer.send("large", bytes(500_000))
    assert 50_000_000 - sum(written) < 5 << 20
    assert max(written) < 5 << 20
    producer.close(flush=False)


@pytest.mark.parametrize("transactional", [False, True])
def test_records_that_were_taken_are_not_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """An interrupt while single records become a batch loses them: no later call may go on."""
    producer = begin(store) if transactional else store.producer()
    producer.send("t", b"1")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("txnlog.write.topic_buffer.normalize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
    go_on = producer.commit_transaction if transactional else producer.flush
    with pytest.raises(InvalidTxnState, match=r"only be aborted|is lost"):
        go_on()
    assert values(store) == []


def test_offsets_that_could_not_be_sent_are_not_left_out(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """A commit without them would have its records come again: only abort is left."""
    append(store, b"in")
    producer = begin(attach(hooked, clock=clock))
    producer.send("t", b"out")
    hooked.faults = {len(hooked.requests): Fault.FAIL}
    with pytest.raises(StorageError):
        producer.send_offsets_to_transaction({T0: 1}, "g")
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    with pytest.raises(InvalidOption, match="was not reading it"):
        producer.send_offsets_to_transaction({T0: 1}, GroupMetadata("g", {}))
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        producer.commit_transaction()
    assert values(another(store)) == [b"in"]


def copied(producer: Producer, consumer: Consumer, records: list[ConsumerRecord]) -> None:
    with producer.transaction():
        for record in records:
            producer.send("out", record.value)
        producer.send_offsets_to_transaction(
            {T0: records[-1].offset + 1}, consumer.group_metadata()
        )


def test_a_consumer_begins_anew_where_the_group_is(store: Store) -> None:
    """Kafka's way after an abort: seek to what is committed. A refused commit is not for ever."""
    store.create_topic("out")
    for number in range(4):
        append(store, b"%d" % number)
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    records = consumer.poll(2)
    store.consumer("t", group_id="g").commit({T0: 1})
    for _ in range(2):  # not by being tried again
        with pytest.raises(CommitFailed):
            copied(producer, consumer, records)
    committed = consumer.committed(T0)
    assert committed is not None
    consumer.seek(T0, committed.offset)
    copied(producer, consumer, consumer.poll(2))
    store.delete_group("g")
    with pytest.raises(CommitFailed):
        copied(producer, consumer, consumer.poll(1))
    assert consumer.committed(T0) is None
    consumer.seek_to_beginning()
    copied(producer, consumer, consumer.poll(1))
    found = store.scan("out").to_arrow().column("value").to_pylist()
    assert found == [b"1", b"2", b"0"]


def test_seeking_elsewhere_is_not_beginning_anew(store: Store) -> None:
    """To pass over a record, or to read one again, is not to have seen who moved the group."""
    store.create_topic("out")
    for number in range(4):
        append(store, b"%d" % number)
    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    assert consumer.committed(T0) is None
    copied(producer, consumer, consumer.poll(2))
    consumer.seek(T0, 0)
    copied(producer, consumer, consumer.poll(1))
    store.consumer("t", group_id="g").commit({T0: 3})
    assert consumer.committed(T0) is not None
    consumer.seek(T0, 2)
    with pytest.raises(CommitFailed):
        copied(producer, consumer, consumer.poll(1))


def test_a_consumer_learns_of_a_commit_that_its_abort_finds(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """The commit was in doubt and has succeeded: the next transaction starts behind it."""
    store.create_topic("out")
    for number in range(2):
        append(store, b"%d" % number)
    there = attach(hooked, clock=clock)
    consumer = there.consumer("t", group_id="g", auto_offset_reset="earliest")
    producer = there.producer(transactional_id="p", delivery_timeout_ms=0)
    producer.init_transactions()

    def lost(name: str) -> None:
        if name == f"transactions/p/{2:020d}.json":
            store.storage.put_if_absent(*hooked.last)
            hooked.faults = dict.fromkeys(range(len(hooked.requests), 1000), Fault.FAIL)

    hooked.rule = lost
    with pytest.raises(CommitStateUnknown):
        copied(producer, consumer, consumer.poll(1))
    hooked.rule, hooked.faults = None, {}
    with pytest.raises(InvalidTxnState, match="had succeeded"):
        producer.abort_transaction()
    copied(producer, consumer, consumer.poll(1))
    assert store.scan("out").to_arrow().column("value").to_pylist() == [b"0", b"1"]
