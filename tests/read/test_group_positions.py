"""The entry that moved an offset is compared, not its value: resets and deletions fence."""

from __future__ import annotations

import random

import msgspec
import pytest

from tests.support.groups.alone import read_alone
from tests.support.steps import another, append, begin, new_store, values
from tests.support.storage.disturbed_storages import HookedStorage
from tests.support.tiers import more
from txnlog.admin.resets import plan_reset
from txnlog.consumer import Consumer
from txnlog.errors import (
    CommitFailed,
    CommitStateUnknown,
    InvalidOption,
    InvalidTxnState,
    StorageError,
    TxnlogError,
)
from txnlog.log.group_metadata import GroupMetadata
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.read.consumer_reads import ConsumerRecord
from txnlog.state.group import CHECKPOINT_DECODER, ENTRY_DECODER, GroupState, OffsetCommit
from txnlog.state.transaction import ConsumedOffset
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import Fault, FaultyStorage, VirtualClock

pytestmark = pytest.mark.rule("G1")

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    """Topic ``t`` with ten records, and topic ``out``."""
    store = new_store(memory_storage, clock, {"t": 1, "out": 1})
    append(store, *(b"%d" % number for number in range(10)))
    return store


def job(store: Store, transactional_id: str) -> tuple[Consumer, Producer]:
    """A job that has read two records and wrote what it made of them."""
    consumer = read_alone(another(store), "t", group_id="g", auto_offset_reset="earliest")
    producer = another(store).producer(transactional_id=transactional_id)
    producer.init_transactions()
    read(consumer, producer)
    return consumer, producer


def read(consumer: Consumer, producer: Producer) -> None:
    producer.begin_transaction()
    consumer.poll(max_records=2)
    producer.send("out", b"x")
    offsets = {T0: consumer.position(T0)}
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())


def committed_offset(store: Store) -> int | None:
    found = another(store).consumer("t", group_id="g").committed(T0)
    return found.offset if found else None


def output(store: Store) -> int:
    return another(store).scan("out").record_count


@pytest.mark.condition(35)
@pytest.mark.parametrize("through", [[4], [9, 4], [0, 9, 4]])
def test_who_read_before_a_reset_cannot_commit_after_it(store: Store, through: list[int]) -> None:
    """To where the group stands, or away and back: the older reader loses."""
    store.groups.reset_offsets("g", "t", to=4)
    _, before = job(store, "before")
    for offset in through:
        store.groups.reset_offsets("g", "t", to=offset)
    _, after = job(store, "after")
    with pytest.raises(CommitFailed, match=r"read from offset 4, and entry \d+ of its log"):
        before.commit_transaction()
    before.abort_transaction()
    after.commit_transaction()
    assert (committed_offset(store), output(store)) == (6, 1)


@pytest.mark.parametrize("whole", [True, False])
def test_who_found_no_offset_before_a_deletion_cannot_commit_after_it(
    store: Store, whole: bool
) -> None:
    """None, then committed, then deleted: none again, but another none."""
    _, before = job(store, "before")
    _, between = job(store, "between")
    between.commit_transaction()
    if whole:
        store.groups.delete("g")
    else:
        store.groups.delete_offsets("g", [T0])
    _, after = job(store, "after")
    with pytest.raises(CommitFailed, match="read when the group had no offset, and entry 1 "):
        before.commit_transaction()
    before.abort_transaction()
    after.commit_transaction()
    assert (committed_offset(store), output(store)) == (2, 2)


def test_deleting_other_offsets_disturbs_nobody(store: Store) -> None:
    """Only the partition's own entry counts."""
    store.topics.create("u")
    u0 = TopicPartition("u", 0)
    store.consumer("u", group_id="g").commit({u0: 0})
    _, producer = job(store, "p")
    store.groups.delete_offsets("g", [u0])
    producer.commit_transaction()
    assert committed_offset(store) == 2


@pytest.mark.parametrize("unknown", [False, True])
def test_a_job_goes_on_from_its_own_commits(store: Store, unknown: bool) -> None:
    """Its own entries do not fence it: transactions, plain commits, and resets it looked up."""
    consumer, producer = job(store, "p")
    for _ in range(2):
        producer.commit_transaction()
        read(consumer, producer)
    producer.abort_transaction()
    consumer.commit({T0: 4})
    read(consumer, producer)
    producer.commit_transaction()
    store.groups.reset_offsets("g", "t", to=8)
    read(consumer, producer)
    with pytest.raises(CommitFailed):
        producer.commit_transaction()
    producer.abort_transaction()
    assert consumer.committed(T0) is not None
    consumer.seek(T0, 8)
    if unknown:
        assert consumer._group_positions is not None
        consumer._group_positions._start_entries.clear()
    read(consumer, producer)
    producer.commit_transaction()
    assert committed_offset(store) == 10


def test_a_bare_group_id_stands_where_it_stood_when_it_was_given(store: Store) -> None:
    """Reset to the same place between that and the commit."""
    store.groups.reset_offsets("g", "t", to=4)
    producer = begin(store, "p")
    producer.send_offsets_to_transaction({T0: 6}, "g")
    store.groups.reset_offsets("g", "t", to=4)
    producer.send_offsets_to_transaction({T0: 7}, "g")
    with pytest.raises(CommitFailed):
        producer.commit_transaction()


def test_of_two_resets_at_a_time_one_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset compares what it was planned from too, also where both lead to one place."""
    store.groups.reset_offsets("g", "t", to=4)

    def slow(*args: object) -> object:
        plan = plan_reset(*args)  # type: ignore[arg-type]
        monkeypatch.setattr("txnlog.admin.groups.plan_reset", plan_reset)
        another(store).groups.reset_offsets("g", "t", to=4)
        return plan

    monkeypatch.setattr("txnlog.admin.groups.plan_reset", slow)
    with pytest.raises(CommitFailed):
        store.groups.reset_offsets("g", "t", shift_by=1)
    assert committed_offset(store) == 4


def test_what_does_not_tell_the_entry_is_compared_by_value(store: Store) -> None:
    """Entries, metadata, consumed offsets, checkpoints without what moved an offset."""
    old = b'{"topic":"t","partition":0,"offset":6,"compare":true,"start":4}'
    move = msgspec.json.decode(old, type=OffsetCommit)
    assert move.start_entry is None
    assert msgspec.json.encode(move) == old
    for number in range(3):
        store.groups.reset_offsets("g", "t", to=4)
        store.logs.group("g")._state.check_commit("g", [move])
        assert number >= 0
    with pytest.raises(CommitFailed):
        store.logs.group("g")._state.check_commit("g", [msgspec.structs.replace(move, start=None)])
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    with producer.transaction():
        producer.send_offsets_to_transaction({T0: 6}, GroupMetadata("g", {T0: 4}))
    assert committed_offset(store) == 6
    consumed = b'{"group_id":"g","topic":"t","partition":0,"start":4,"end":6}'
    assert msgspec.json.decode(consumed, type=ConsumedOffset).start_entry is None
    checkpoint = b'{"kind":"group-checkpoint","next_entry":9,"committed":{"t":{"0":%s}}}'
    position = b'{"offset":4,"metadata":"","at_ms":1}'
    state = CHECKPOINT_DECODER.decode(checkpoint % position)
    state.check_commit("g", [msgspec.structs.replace(move, start_entry=7)])


@pytest.mark.condition(35)
@pytest.mark.parametrize("seed", [*range(15), *more(range(15, 60))])
def test_whoever_began_before_the_last_move_is_refused(store: Store, seed: int) -> None:
    """Random histories. A counter of moves for each partition is the oracle."""
    rng = random.Random(seed)
    store.topics.alter("t", partitions=2)
    moves = {T0: 0, T1: 0}
    readers: list[tuple[GroupMetadata, dict[TopicPartition, int]]] = []
    admins = [store, another(store)]
    outcomes = set()
    for step in range(40):
        admin = rng.choice(admins)
        where = rng.choice([T0, T1])
        action = rng.choice(["read", "read", "commit", "commit", "reset", "plain", "delete"])
        if action == "read":
            metadata = admin.consumer("t", group_id="g").group_metadata()
            readers.append((metadata, dict(moves)))
        elif action == "commit" and readers:
            metadata, seen = readers[rng.randrange(len(readers))]
            producer = admin.producer(transactional_id=rng.choice("pq"))
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({where: rng.randrange(3)}, metadata)
            try:
                producer.commit_transaction()
            except CommitFailed:
                assert seen[where] != moves[where], f"step {step}"
                producer.abort_transaction()
                outcomes.add("refused")
            else:
                assert seen[where] == moves[where], f"step {step}"
                moves[where] += 1
                seen[where] = moves[where]  # its next one starts from its own
                outcomes.add("committed")
        elif action == "reset":
            admin.groups.reset_offsets("g", [where], to=rng.randrange(3))
            moves[where] += 1
        elif action == "plain":
            admin.consumer("t", group_id="g").commit({where: rng.randrange(3)})
            moves[where] += 1
        elif action == "delete":
            had = {w for w in moves if another(store).consumer("t", group_id="g").committed(w)}
            try:
                admin.groups.delete_offsets("g", [where])
            except TxnlogError:
                assert not had
            else:
                moves[where] += where in had
        if rng.random() < 0.1:
            admin.logs.fresh_group("g").checkpoint()
        if rng.random() < 0.1:
            admins[1] = another(store)
    assert outcomes


def test_states_that_are_folded_or_loaded_stand_alike(store: Store) -> None:
    """Invariant L7: a checkpoint keeps what deleted an offset."""
    store.groups.reset_offsets("g", "t", to=4)
    store.groups.delete_offsets("g", [T0])
    log = store.logs.fresh_group("g")
    copy = CHECKPOINT_DECODER.decode(msgspec.json.encode(log._state))
    assert copy == log._state
    assert copy.logged_position("t", 0) == (None, 1)
    entry = b'{"kind":"deleted","nonce":"n","at_ms":1}'
    copy.apply(2, ENTRY_DECODER.decode(entry))
    assert copy.logged_position("t", 0) == (None, 2)
    assert GroupState().logged_position("t", 0) == (None, -1)


def copy(producer: Producer, consumer: Consumer, records: list[ConsumerRecord]) -> None:
    with producer.transaction():
        for record in records:
            producer.send("out", record.value)
        producer.send_offsets_to_transaction(
            {T0: records[-1].offset + 1}, consumer.group_metadata()
        )


def test_a_consumer_begins_anew_where_the_group_is(store: Store) -> None:
    """Kafka's way after an abort: seek to what is committed. A refused commit is not for ever."""
    consumer = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    records = consumer.poll(max_records=2)
    store.consumer("t", group_id="g").commit({T0: 1})
    for _ in range(2):  # not by being tried again
        with pytest.raises(CommitFailed):
            copy(producer, consumer, records)
    committed = consumer.committed(T0)
    assert committed is not None
    consumer.seek(T0, committed.offset)
    copy(producer, consumer, consumer.poll(max_records=2))
    store.groups.delete("g")
    with pytest.raises(CommitFailed):
        copy(producer, consumer, consumer.poll(max_records=1))
    assert consumer.committed(T0) is None
    consumer.seek_to_beginning()
    copy(producer, consumer, consumer.poll(max_records=1))
    assert values(store, "out") == [b"1", b"2", b"0"]


def test_seeking_elsewhere_is_not_beginning_anew(store: Store) -> None:
    """To pass over a record, or to read one again, is not to have seen who moved the group."""
    consumer = read_alone(store, "t", group_id="g", auto_offset_reset="earliest")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    assert consumer.committed(T0) is None
    copy(producer, consumer, consumer.poll(max_records=2))
    consumer.seek(T0, 0)
    copy(producer, consumer, consumer.poll(max_records=1))
    store.consumer("t", group_id="g").commit({T0: 3})
    assert consumer.committed(T0) is not None
    consumer.seek(T0, 2)
    with pytest.raises(CommitFailed):
        copy(producer, consumer, consumer.poll(max_records=1))


def test_a_consumer_learns_of_a_commit_that_its_abort_finds(store: Store) -> None:
    """The commit was in doubt and has succeeded: the next transaction starts behind it."""
    hooked = HookedStorage(store.storage)
    there = another(store, hooked)
    consumer = read_alone(there, "t", group_id="g", auto_offset_reset="earliest")
    producer = there.producer(transactional_id="p", delivery_timeout_ms=0)
    producer.init_transactions()

    def lost(name: str) -> None:
        if name == f"transactions/p/{2:020d}.json":
            store.storage.put_if_absent(*hooked.last)
            hooked.faults = dict.fromkeys(range(len(hooked.requests), 1000), Fault.FAIL)

    hooked.rule = lost
    with pytest.raises(CommitStateUnknown):
        copy(producer, consumer, consumer.poll(max_records=1))
    hooked.rule, hooked.faults = None, {}
    with pytest.raises(InvalidTxnState, match="had succeeded"):
        producer.abort_transaction()
    copy(producer, consumer, consumer.poll(max_records=1))
    assert values(store, "out") == [b"0", b"1"]


def test_offsets_that_could_not_be_sent_are_not_left_out(store: Store) -> None:
    """A commit without them would have its records come again: only abort is left."""
    faulty = FaultyStorage(store.storage)
    producer = begin(another(store, faulty))
    producer.send("out", b"out")
    faulty.faults = {len(faulty.requests) + 1: Fault.FAIL}  # the log, behind manifests
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
    assert output(store) == 0
