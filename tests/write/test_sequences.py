"""Conditions 1 to 10 on the real log of a topic: sequences, epochs, expiry, reopening.

Each append goes through storage; the topic is judged by a process that opens the store again.
"""

from __future__ import annotations

import random

import pytest

from tests.support.steps import begin, send, upload
from tests.support.tiers import more
from txnlog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    ProducerFenced,
    StorageError,
    TxnlogError,
)
from txnlog.log.uploads import Appended, IdempotentWriter, UploadedSegment
from txnlog.names import TopicPartition
from txnlog.state.producers import ProducerRef, ProducerState
from txnlog.storage import envelope
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, VirtualClock

T0 = TopicPartition("t", 0)
EXPIRATION_MS = 1000
PRODUCER = ProducerRef(producer_id=9, producer_epoch=3)


pytestmark = [
    pytest.mark.store(
        topics={"t": 2},
        config={
            "producer.id.expiration.ms": EXPIRATION_MS,
            "transaction.max.timeout.ms": EXPIRATION_MS,
        },
    ),
    pytest.mark.rule("L4", "L9"),
]


def place(
    store: Store,
    sequence: int,
    count: int = 1,
    *,
    producer: ProducerRef = PRODUCER,
    partition: int = 0,
    segments: list[UploadedSegment] | None = None,
) -> Appended:
    """One batch of an idempotent producer, with the sequence that it claims."""
    writer = IdempotentWriter(producer, {partition: sequence})
    segments = segments or upload(store, *[b"v"] * count, partition=partition)
    return store.logs.topic("t").place(segments, writer=writer)


def contents(store: Store) -> tuple[list[str], list[int]]:
    """The files of the topic's log, and the end offset of each partition."""
    fresh = attach(store.storage, clock=VirtualClock(seed=5))
    ends = [partition.end_offset for partition in fresh.topics.describe("t").partitions]
    return store.storage.list_names("topics/t/log"), ends


def check_refused(store: Store, error: type[TxnlogError], sequence: int, **named: object) -> None:
    """The batch is refused, and neither the log nor the state changes."""
    log = store.logs.topic("t")
    log.refresh()
    before, state = contents(store), envelope.encode(log._state)
    with pytest.raises(error):
        place(store, sequence, **named)  # type: ignore[arg-type]
    assert envelope.encode(log._state) == state
    assert contents(store) == before


def reopened(store: Store, how: str) -> Store:
    """The same store as it is in memory, or as a process that starts now finds it."""
    if how == "memory":
        return store
    if how == "checkpoint":
        log = store.logs.topic("t")
        log.refresh()
        log.checkpoint()
    return attach(store.storage, clock=store.logs.clock)


WAYS = pytest.mark.parametrize("how", ["memory", "reopened", "checkpoint"])


@pytest.mark.condition(1, 10)
@WAYS
@pytest.mark.parametrize("sequence", [1, 5])
def test_the_first_batch_of_a_partition_has_sequence_0(
    store: Store, how: str, sequence: int
) -> None:
    """A producer that the topic knows starts at 0 in each further partition."""
    place(store, 0, 7, partition=1)
    store = reopened(store, how)
    check_refused(store, OutOfOrderSequence, sequence)
    assert place(store, 0, 2).offsets == {T0: range(2)}


@pytest.mark.condition(1)
def test_a_producer_that_nobody_knows_starts_at_sequence_0(store: Store) -> None:
    """Whatever it claims, it never continues a sequence that the topic has not seen."""
    writer = IdempotentWriter(PRODUCER, {0: 5})
    store.logs.topic("t").place(upload(store, b"v", b"v"), writer=writer)
    (segment,) = store.topics.segments("t", 0)
    assert segment.base_sequence == 0
    assert segment.producer_id == writer.producer.producer_id != PRODUCER.producer_id


@pytest.mark.condition(2, 10)
@WAYS
def test_a_newer_epoch_starts_at_0_and_ends_the_older_one(store: Store, how: str) -> None:
    """Epoch 4 is refused at any sequence but 0; then epoch 3 is fenced."""
    place(store, 0, 5)
    store = reopened(store, how)
    newer = ProducerRef(PRODUCER.producer_id, PRODUCER.producer_epoch + 1)
    for sequence in (1, 5):
        check_refused(store, OutOfOrderSequence, sequence, producer=newer)
    assert place(store, 0, producer=newer).offsets == {T0: range(5, 6)}
    store = reopened(store, how)
    for sequence, partition in ((5, 0), (0, 0), (0, 1)):
        check_refused(store, InvalidProducerEpoch, sequence, partition=partition)
    assert issubclass(InvalidProducerEpoch, ProducerFenced)


@pytest.mark.condition(2)
def test_a_newer_instance_writes_from_sequence_0_and_fences_the_older_one(store: Store) -> None:
    """The same through two producers with one transactional id."""
    first = begin(store, "p", EXPIRATION_MS)
    send(first, b"1", b"2")
    first.commit_transaction()
    second = begin(store, "p", EXPIRATION_MS)
    send(second, b"3")
    second.commit_transaction()
    written = [(s.producer_epoch, s.base_sequence) for s in store.topics.segments("t", 0)]
    assert written == [(0, 0), (1, 0)]
    first.begin_transaction()
    first.send("t", b"late", partition=0)
    with pytest.raises(ProducerFenced):
        first.flush()
    assert contents(store)[1] == [3, 0]


@pytest.mark.condition(3, 9, 10)
@WAYS
def test_a_gap_in_the_sequence_is_refused(store: Store, how: str) -> None:
    """After sequence 0 comes 1; with 2 nothing changes, and 1 is still next."""
    place(store, 0)
    store = reopened(store, how)
    check_refused(store, OutOfOrderSequence, 2)
    assert place(store, 1).offsets == {T0: range(1, 2)}


@pytest.mark.condition(4, 5, 10)
@WAYS
def test_repeats_get_the_offsets_of_the_first_time(store: Store, how: str) -> None:
    """Each of the last five batches is recognised, the sixth is refused."""
    batches = {sequence: upload(store, b"v", b"v") for sequence in range(0, 12, 2)}
    for sequence, segments in batches.items():
        place(store, sequence, segments=segments)
    store = reopened(store, how)
    before = contents(store)
    for sequence in (10, 2, 6, 4, 8):
        repeated = place(store, sequence, segments=batches[sequence])
        assert repeated.entry is None
        assert repeated.offsets == {T0: range(sequence, sequence + 2)}
    assert contents(store) == before
    check_refused(store, OutOfOrderSequence, 0, segments=batches[0])
    assert place(store, 12, 2).offsets == {T0: range(12, 14)}


@pytest.mark.condition(4, 10)
@WAYS
def test_a_repeat_is_recognised_when_its_records_were_deleted(store: Store, how: str) -> None:
    """Its name is remembered with it, whatever became of the segment."""
    segments = upload(store, b"v", b"v")
    place(store, 0, segments=segments)
    place(store, 2, 1)
    store.topics.delete_records({T0: 2})
    store = reopened(store, how)
    assert place(store, 0, segments=segments).offsets == {T0: range(2)}


@pytest.mark.condition(4)
@WAYS
@pytest.mark.parametrize("deleted", [0, 2])
def test_other_records_with_the_numbers_of_a_batch_are_no_repeat(
    store: Store, how: str, deleted: int
) -> None:
    """A copy of a producer counts on as it does; nobody gets another's offsets."""
    place(store, 0, 2)
    place(store, 2, 2)
    if deleted:
        store.topics.delete_records({T0: deleted})
    store = reopened(store, how)
    for sequence in (0, 2):
        check_refused(store, OutOfOrderSequence, sequence, count=2)
    with pytest.raises(OutOfOrderSequence, match=r"have that number already: .* new producer"):
        place(store, 2, 2)


@pytest.mark.condition(6, 10)
@WAYS
@pytest.mark.parametrize(("sequence", "count"), [(1, 2), (1, 1), (0, 2), (2, 2), (0, 4)])
def test_an_overlapping_batch_is_refused(store: Store, how: str, sequence: int, count: int) -> None:
    """Two records in the middle of three, and every other overlap."""
    place(store, 0, 3)
    store = reopened(store, how)
    check_refused(store, OutOfOrderSequence, sequence, count=count)


def known_producers(store: Store) -> dict[int, ProducerState]:
    log = store.logs.topic("t")
    log.refresh()
    with log.lock:
        state = log.state
        return dict(state.producers)


@pytest.mark.condition(7, 10)
@WAYS
def test_an_open_transaction_is_remembered_though_it_is_idle(
    store: Store, clock: VirtualClock, how: str
) -> None:
    """A plain producer is forgotten; an open transaction goes on in its sequence.

    It has outlived its timeout too, but nobody has looked, so it may still commit.
    """
    waiting = begin(store, "open", EXPIRATION_MS)
    send(waiting, b"1", b"2")
    ended = begin(store, "ended", EXPIRATION_MS)
    send(ended, b"x")
    ended.commit_transaction()
    place(store, 0)
    clock.time_ms += EXPIRATION_MS + 1
    place(store, 0, producer=ProducerRef(7, 0), partition=1)
    store = reopened(store, how)
    waiting_id = store.transactions.describe("open").producer_id
    assert set(known_producers(store)) == {waiting_id, 7}
    send(waiting, b"3")
    waiting.commit_transaction()
    mine = [s for s in store.topics.segments("t", 0) if s.producer_id == waiting_id]
    assert [segment.base_sequence for segment in mine] == [0, 2]


@WAYS
def test_an_idle_transaction_goes_on_in_every_partition(
    store: Store, clock: VirtualClock, how: str
) -> None:
    """L9: what it wrote before it was idle counts, also where it has not written since.

    Forgotten by its next append, its sequence would start over in the other partition (L4).
    """
    waiting = begin(store, "open", EXPIRATION_MS)
    for partition in (0, 1):
        waiting.send("t", b"before", partition=partition)
    waiting.flush()
    clock.time_ms += EXPIRATION_MS + 1
    for partition in (0, 1):
        place(store, 0, producer=ProducerRef(7 + partition, 0))
        waiting.send("t", b"after", partition=partition)
        waiting.flush()
        store = reopened(store, how)
    waiting.commit_transaction()
    mine = store.transactions.describe("open").producer_id
    for partition in (0, 1):
        found = [
            s.base_sequence for s in store.topics.segments("t", partition) if s.producer_id == mine
        ]
        assert found == [0, 1]


@pytest.mark.condition(8)
def test_nothing_is_sent_outside_a_transaction(store: Store) -> None:
    """A transactional producer sends inside its transactions only."""
    producer = begin(store, "p", EXPIRATION_MS)
    send(producer, b"inside")
    producer.commit_transaction()
    for call in (lambda: producer.send("t", b"outside"), producer.flush):
        with pytest.raises(InvalidTxnState, match="begin_transaction"):
            call()
    assert contents(store)[1] == [1, 0]


@pytest.mark.condition(8)
@WAYS
@pytest.mark.parametrize("partition", [0, 1])
def test_a_producer_with_an_open_transaction_cannot_write_beside_it(
    store: Store, how: str, partition: int
) -> None:
    """An append of the same producer that claims no transaction is refused."""
    waiting = begin(store, "p", EXPIRATION_MS)
    send(waiting, b"1")
    described = store.transactions.describe("p")
    beside = ProducerRef(described.producer_id, described.producer_epoch)
    store = reopened(store, how)
    sequence = 1 if partition == 0 else 0
    check_refused(store, InvalidTxnState, sequence, producer=beside, partition=partition)
    waiting.commit_transaction()
    place(store, sequence, producer=beside, partition=partition)


@pytest.mark.condition(9)
def test_a_put_that_fails_leaves_the_state_as_it_was(store: Store, clock: VirtualClock) -> None:
    """An accepted append changes state and writer only when its entry is put."""

    def failing(request: str) -> None:
        if broken and "topics/t/log" in request and not request.startswith("list"):
            raise StorageError("503")

    broken = False
    mine = attach(FaultyStorage(store.storage, before_request=failing), clock=clock)
    place(mine, 0)
    log, writer, segments = (
        mine.logs.topic("t"),
        IdempotentWriter(PRODUCER, {0: 1}),
        upload(mine, b"v", b"v"),
    )
    before = envelope.encode(log._state)
    broken = True
    with pytest.raises(StorageError, match="503"):
        log.place(segments, writer=writer)
    assert (envelope.encode(log._state), writer) == (before, IdempotentWriter(PRODUCER, {0: 1}))
    broken = False
    assert log.place(segments, writer=writer).offsets == {T0: range(1, 3)}
    assert writer == IdempotentWriter(PRODUCER, {0: 3})


@pytest.mark.condition(7, 10)
@pytest.mark.parametrize("seed", [*range(10), *more(range(10, 40))])
def test_reopening_gives_the_producers_that_are_in_memory(
    store: Store, clock: VirtualClock, seed: int
) -> None:
    """Random histories, with checkpoints or not, for whoever looks when it likes."""
    rng = random.Random(seed)
    plain = [store.producer() for _ in range(2)]
    others = [begin(store, name, EXPIRATION_MS) for name in "ab"]
    looks_now_and_then = attach(store.storage, clock=clock)
    for step in range(30):
        clock.time_ms += rng.choice([0, 10, 300, EXPIRATION_MS // 2, EXPIRATION_MS + 1])
        partition = rng.randrange(2)
        if rng.random() < 0.4:
            producer = rng.choice(plain)
            producer.send("t", b"%d" % step, partition=partition)
            producer.flush()
        else:
            producer = rng.choice(others)
            producer.send("t", b"%d" % step, partition=partition)
            producer.flush()
            if rng.random() < 0.6:
                end = rng.choice([producer.commit_transaction, producer.abort_transaction])
                end()
                producer.begin_transaction()
        if rng.random() < 0.2:
            store.logs.topic("t").checkpoint()
        expected = known_producers(store)
        assert known_producers(attach(store.storage, clock=clock)) == expected
        if rng.random() < 0.3:
            assert known_producers(looks_now_and_then) == expected


@pytest.mark.condition(10)
def test_an_idle_producer_loses_nothing_when_its_topic_is_read_anew(
    store: Store, clock: VirtualClock
) -> None:
    """A batch forgotten by a process in memory is not a repeat for one that reads it again."""
    producer = begin(store, "p", EXPIRATION_MS)
    send(producer, b"1")
    send(producer, b"2")
    producer.commit_transaction()
    clock.time_ms += EXPIRATION_MS + 1
    place(store, 0, partition=1)
    with producer.transaction():
        send(producer, b"3")
    store.logs.topic("t")._drop()  # as a refresh that fails does
    with producer.transaction():
        send(producer, b"4")
    table = attach(store.storage, clock=clock).scan("t", {0: 0, 1: 1}).to_arrow()
    assert table.column("value").to_pylist() == [b"1", b"2", b"3", b"4"]
