"""Faults that a review found, each with the history that shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faults import FaultyStorage, VirtualClock

from txnlog.errors import CommitStateUnknown, InvalidTxnState, StorageError, TxnlogError
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.storage.base import Storage
from txnlog.store import Store, attach

T0 = TopicPartition("t", 0)
AGE_MS = 3_600_000


class Hooked(FaultyStorage):
    """Calls a rule before each create; the rule may raise."""

    rule: Callable[[str], None] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.rule is not None:
            self.rule(name)
        return super().put_if_absent(name, data)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    store = attach(memory_storage, create=True, clock=clock, config={"log.cleanup.age.ms": AGE_MS})
    store.create_topic("t")
    return store


@pytest.fixture
def hooked(store: Store) -> Hooked:
    return Hooked(store.storage)


def put(store: Store, value: bytes) -> None:
    with store.producer() as producer:
        producer.send("t", value)


def values(store: Store) -> list[bytes]:
    found: list[bytes] = store.scan("t").to_arrow().column("value").to_pylist()
    return found


def begun(store: Store) -> Producer:
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def interrupting(storage: Hooked, part: str) -> None:
    """The next create of a name with ``part`` in it is interrupted, as by Ctrl-C."""

    def rule(name: str) -> None:
        if part in name:
            storage.rule = None
            raise KeyboardInterrupt

    storage.rule = rule


def test_offsets_do_not_move_backwards_for_a_new_reader(store: Store, clock: VirtualClock) -> None:
    """A transaction's offsets count where they stand, though their marker is seen last."""
    producer = begun(store)
    producer.send_offsets_to_transaction({T0: 5}, "g")
    producer.commit_transaction()
    store.consumer("t", group_id="g").commit({T0: 10})
    found = attach(store.storage, clock=clock).consumer("t", group_id="g").committed(T0)
    assert found is not None
    assert found.offset == 10


def test_a_cleaned_marker_is_not_taken_for_an_abort(store: Store, clock: VirtualClock) -> None:
    """A reader that saw the entry undecided takes a checkpoint when entry and marker are gone."""
    producer = begun(store)
    producer.send("t", b"committed")
    producer.flush()
    for number in range(40):
        put(store, b"%d" % number)
    old = attach(store.storage, clock=clock)
    assert values(old) == []
    producer.commit_transaction()
    clock.time_ms += AGE_MS + 1
    for number in range(40, 64):
        put(store, b"%d" % number)
    with producer.transaction():
        producer.send("t", b"second")
    assert "00000000000000000001.commit" not in store.storage.list_names("topics/t/log")
    assert b"committed" in values(old)


def test_cleaning_spares_what_its_checkpoint_calls_undecided(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """A marker that comes while a checkpoint is written without it is not cleaned away."""
    crashing = Hooked(store.storage)
    producer = begun(attach(crashing, clock=clock))
    producer.send("t", b"committed")
    interrupting(crashing, ".commit")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    writer = attach(hooked, clock=clock)
    for number in range(35):
        put(writer, b"%d" % number)
    clock.time_ms += AGE_MS + 1

    def settle(name: str) -> None:
        if name.endswith(".checkpoint"):
            hooked.rule = None
            attach(store.storage, clock=clock).producer(transactional_id="p").init_transactions()

    hooked.rule = settle
    for number in range(35, 70):
        put(writer, b"%d" % number)
    assert hooked.rule is None
    assert b"committed" in values(attach(store.storage, clock=clock))


def test_short_lived_writers_clean_up(store: Store, clock: VirtualClock) -> None:
    """A chain of processes that each append a little keeps the log's folder small."""
    for _ in range(200):
        put(attach(store.storage, clock=clock), b"x")
        clock.time_ms += AGE_MS // 16
    assert len(store.storage.list_names("topics/t/log")) < 120
    assert len(values(attach(store.storage, clock=clock))) == 200


def test_an_interrupted_commit_is_not_half_repeated(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """After Ctrl-C between placements only abort is left; no part of it is committed."""
    store.create_topic("u")
    producer = begun(attach(hooked, clock=clock))
    producer.send("t", b"1")
    producer.send("u", b"1")
    interrupting(hooked, "topics/u/log")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(attach(store.storage, clock=clock)) == []


def test_an_interrupt_while_marking_is_no_abort(
    store: Store, hooked: Hooked, clock: VirtualClock
) -> None:
    """The decision stands: abort must not say that it has aborted."""
    producer = begun(attach(hooked, clock=clock))
    producer.send("t", b"1")
    interrupting(hooked, ".commit")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnState, match="ended with commit"):
        producer.abort_transaction()
    assert values(attach(store.storage, clock=clock)) == [b"1"]


def test_an_unknown_abort_is_no_commit(store: Store, hooked: Hooked, clock: VirtualClock) -> None:
    """Calling commit after an abort of unknown outcome is refused."""
    producer = begun(attach(hooked, clock=clock))
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
    assert values(attach(store.storage, clock=clock)) == []


def test_kafkas_loop_with_one_consumer(store: Store) -> None:
    """Consume, produce, send the offsets, commit, again: the consumer learns of its commits."""
    store.create_topic("out")
    for number in range(4):
        put(store, b"%d" % number)
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
        put(store, b"%d" % number)
    consumer = store.consumer("t", auto_offset_reset="earliest")
    for record in consumer:
        assert record.offset == 0
        break
    assert consumer.position(T0) == 1
    assert [record.offset for record in consumer] == [1, 2, 3]
