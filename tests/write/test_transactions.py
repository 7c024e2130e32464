"""Producers, consumers and transactions, on every kind of storage: conditions 8, 13 to 37, 39, 47.

The judge is the input and plain lists. Clocks are virtual, so timeouts need no waiting.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.groups.alone import read_alone
from tests.support.steps import (
    ANYWHERE,
    begin,
    begin_with_offsets,
    elsewhere,
    send,
    values,
)
from tests.support.storage.timed_storage import TimedStorage
from txnlog.errors import (
    CommitFailed,
    ConcurrentTransactions,
    CorruptEntry,
    CorruptTransactionState,
    IncompleteResult,
    InvalidRecord,
    InvalidTxnState,
    ProducerFenced,
)
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.names import TopicPartition
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

T0 = TopicPartition("t", 0)
TIMEOUT_MS = 60_000


pytestmark = [*ANYWHERE, pytest.mark.rule("G1", "L5", "T3", "T6")]


@pytest.mark.condition(24)
def test_aborted_records_are_for_read_uncommitted_only(store: Store) -> None:
    """Abort 2 records, commit 2: 2 and 4."""
    producer = begin(store, "p")
    send(producer, b"a1", b"a2")
    producer.abort_transaction()
    with producer.transaction():
        send(producer, b"c1", b"c2")
    assert values(store) == [b"c1", b"c2"]
    assert values(store, isolation_level="read_uncommitted") == [b"a1", b"a2", b"c1", b"c2"]


@pytest.mark.condition(25)
def test_an_open_transaction_bounds_what_is_stable(store: Store, clock: VirtualClock) -> None:
    """The end is the last stable offset, and no time lookup goes beyond it."""
    with store.producer() as plain:
        plain.send("t", b"before", timestamp_ms=100)
    waiting = begin(store, "w")
    send(waiting, b"open")
    with store.producer() as plain:
        plain.send("t", b"after", timestamp_ms=300)
    for reader in (store, elsewhere(store.storage, clock)):
        committed = reader.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
        assert [record.value for record in committed] == [b"before"]
        assert committed.end_offsets([T0]) == {T0: 1}
        assert committed.offsets_for_times({T0: 200}) == {T0: None}
        uncommitted = reader.consumer("t", isolation_level="read_uncommitted")
        assert uncommitted.end_offsets([T0]) == {T0: 3}
        found = uncommitted.offsets_for_times({T0: 200})[T0]
        assert found is not None
        assert found.offset == 1
    waiting.commit_transaction()
    assert values(store) == [b"before", b"open", b"after"]


@pytest.mark.few(1)
@pytest.mark.condition(27)
def test_a_copy_job_that_aborts_every_other_time(store: Store) -> None:
    """500 records in transactions, every other one aborted, come out once each."""
    with store.producer() as plain:
        plain.send_batch("wide", pa.record_batch({"value": [b"%03d" % n for n in range(500)]}))
    producer = store.producer(transactional_id="copy")
    producer.init_transactions()
    turn = 0
    while True:
        consumer = read_alone(store, "wide", group_id="copy", auto_offset_reset="earliest")
        records = consumer.poll(max_records=50)
        if not records:
            break
        turn += 1
        producer.begin_transaction()
        for record in records:
            producer.send("t", record.value)
        moved = {w: consumer.position(w) for w in consumer.assignment()}
        producer.send_offsets_to_transaction(moved, consumer.group_metadata())
        if turn % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert turn == 20
    assert sorted(values(store)) == [b"%03d" % n for n in range(500)]
    assert len(values(store, isolation_level="read_uncommitted")) == 1000


@pytest.mark.rule("hazard 6")
@pytest.mark.condition(18, 29)
def test_a_timed_out_transaction_blocks_nobody(store: Store, clock: VirtualClock) -> None:
    """A reader past the timeout aborts it, and fences it (hazard 6)."""
    store = attach(TimedStorage(store.storage), clock=clock)
    stuck = begin(store, "stuck")
    send(stuck, b"stuck")
    with store.producer() as plain:
        plain.send("t", b"behind")
    clock.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS
    assert values(store) == []
    clock.time_ms += 1
    assert values(elsewhere(store.storage, clock)) == [b"behind"]
    assert values(store) == [b"behind"]
    with pytest.raises(ProducerFenced):
        stuck.commit_transaction()
    assert store.transactions.describe("stuck").status == "CompleteAbort"
    assert store.transactions.describe("stuck").producer_epoch == 1


@pytest.mark.few(2)
@pytest.mark.condition(30)
def test_a_reader_never_sees_what_is_aborted(store: Store) -> None:
    """Polling between single-record transactions that are all aborted."""
    consumer = store.consumer("t", auto_offset_reset="earliest")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for _ in range(20):
        producer.begin_transaction()
        send(producer, b"never")
        assert consumer.poll() == []
        producer.abort_transaction()
        assert consumer.poll() == []
    assert consumer.position(T0) == 20


@pytest.mark.condition(33)
def test_data_between_aborted_ranges_is_kept(store: Store) -> None:
    """Aborted data over several segments is skipped, what lies between is not."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for turn in range(6):
        producer.begin_transaction()
        for part in range(3):
            send(producer, b"%d-%d" % (turn, part))
        if turn % 2:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert values(store) == [b"%d-%d" % (t, p) for t in (1, 3, 5) for p in range(3)]
    consumer = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    assert [record.offset for record in consumer] == [3, 4, 5, 9, 10, 11, 15, 16, 17]


@pytest.mark.condition(34)
def test_offsets_of_a_transaction_wait_for_its_decision(store: Store, clock: VirtualClock) -> None:
    """Invisible until the decision, gone after an abort."""
    producer = begin_with_offsets(store, "p", {T0: 5})
    other = elsewhere(store.storage, clock).consumer("t", group_id="g")
    assert other.committed(T0) is None
    with pytest.raises(ConcurrentTransactions):
        other.commit({T0: 1})
    producer.abort_transaction()
    assert other.committed(T0) is None
    other.commit({T0: 1}, metadata="by hand")
    found = elsewhere(store.storage, clock).consumer("t", group_id="g").committed(T0)
    assert found is not None
    assert (found.offset, found.metadata) == (1, "by hand")


@pytest.mark.condition(35)
def test_of_two_jobs_with_the_same_records_one_commits(store: Store, clock: VirtualClock) -> None:
    """Two transactional ids, one group, the same starting offset."""
    with store.producer() as plain:
        plain.send("t", b"x", partition=0)
    jobs = []
    for name, process in (("one", store), ("two", elsewhere(store.storage, clock))):
        consumer = read_alone(process, "t", group_id="g", auto_offset_reset="earliest")
        records = consumer.poll()
        producer = begin(process, name)
        producer.send("wide", name.encode() + (records[0].value or b""), partition=0)
        producer.send_offsets_to_transaction({T0: 1}, consumer.group_metadata())
        jobs.append(producer)
    jobs[0].commit_transaction()
    with pytest.raises(
        CommitFailed, match="read when the group had no offset, but the group is at 1"
    ):
        jobs[1].commit_transaction()
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        jobs[1].commit_transaction()
    jobs[1].abort_transaction()
    assert values(store, topic="wide") == [b"onex"]
    with jobs[1].transaction():
        jobs[1].send("wide", b"works again", partition=0)
    assert values(store, topic="wide") == [b"onex", b"works again"]


@pytest.mark.condition(21)
def test_calls_out_of_order_are_refused(store: Store) -> None:
    """A producer's allowed calls depend on its phase."""
    producer = store.producer(transactional_id="p")
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("t", b"x"),
    ):
        with pytest.raises(InvalidTxnState, match="not initialised"):
            call()
    producer.init_transactions()
    with pytest.raises(InvalidTxnState, match="called before"):
        producer.init_transactions()
    for call in (producer.commit_transaction, lambda: producer.send("t", b"x"), producer.flush):
        with pytest.raises(InvalidTxnState, match="begin_transaction"):
            call()
    producer.begin_transaction()
    with pytest.raises(InvalidTxnState, match="commit or abort"):
        producer.begin_transaction()
    plain = store.producer()
    for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction):
        with pytest.raises(InvalidTxnState, match="no transactional_id"):
            call()


@pytest.mark.condition(22)
def test_a_failed_send_leaves_only_abort(store: Store) -> None:
    """After the abort the next transaction works."""
    producer = begin(store, "p")
    send(producer, b"good")
    with pytest.raises(InvalidRecord, match="no partition 7"):
        producer.send("t", b"bad", partition=7)
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        send(producer, b"next")
    assert values(store) == [b"next"]


@pytest.mark.condition(16)
def test_commit_and_abort_may_be_repeated_but_not_contradicted(store: Store) -> None:
    """By the same instance, without effect."""
    producer = begin(store, "p")
    send(producer, b"x")
    placed = producer.commit_transaction()
    before = store.transactions.describe("p")
    assert producer.commit_transaction() == placed == {T0: [range(1)]}
    with pytest.raises(InvalidTxnState, match="ended with commit"):
        producer.abort_transaction()
    producer.begin_transaction()
    send(producer, b"y")
    producer.abort_transaction()
    producer.abort_transaction()
    with pytest.raises(InvalidTxnState, match="ended with abort"):
        producer.commit_transaction()
    assert before.number == 1
    assert values(store) == [b"x"]


@pytest.mark.condition(14)
def test_init_finishes_what_was_prepared(store: Store, clock: VirtualClock) -> None:
    """A decided commit is carried out by the next init, whatever is missing."""
    producer = begin(store, "p")
    send(producer, b"decided")
    coordinator = producer._coordinator
    assert coordinator is not None
    coordinator._finish_quietly = lambda: None  # type: ignore[method-assign]
    producer.commit_transaction()
    assert store.transactions.describe("p").status == "PrepareCommit"
    assert values(elsewhere(store.storage, clock)) == [b"decided"]
    elsewhere(store.storage, clock).producer(transactional_id="p").init_transactions()
    described = elsewhere(store.storage, clock).transactions.describe("p")
    assert (described.status, described.producer_epoch) == ("Empty", 1)
    assert values(elsewhere(store.storage, clock)) == [b"decided"]


@pytest.mark.condition(20)
def test_a_damaged_transaction_stops_no_other(store: Store, clock: VirtualClock) -> None:
    """Damage in one id's log is reported with its path; other ids work."""
    store.storage.put("transactions/bad/00000000000000000000.json", b'{"format":1,"checksum":"0"')
    with pytest.raises(CorruptEntry, match=r"transactions/bad/0{20}\.json"):
        store.producer(transactional_id="bad").init_transactions()
    good = begin(store, "good")
    send(good, b"fine")
    good.commit_transaction()
    assert values(elsewhere(store.storage, clock)) == [b"fine"]
    listed: list[str] = []
    with pytest.raises(IncompleteResult, match=r"transactions/bad/0{20}\.json") as failed:
        listed.extend(found.transactional_id for found in store.transactions.list())
    assert listed == ["good"]
    assert [type(error) for error in failed.value.errors] == [CorruptTransactionState]


@pytest.mark.condition(20)
def test_an_open_transaction_that_is_damaged_stops_no_reader(
    store: Store, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its entry stays undecided, which is told; what stands before it is read."""
    good = begin(store, "good")
    send(good, b"before")
    good.commit_transaction()
    send(begin(store, "bad"), b"open")
    head = store.logs.transactions.describe("bad").number
    store.storage.delete([f"transactions/bad/{head:020d}.json"])
    store.storage.put(f"transactions/bad/{head:020d}.json", b"{}")
    good.begin_transaction()
    send(good, b"behind")
    good.commit_transaction()
    assert values(elsewhere(store.storage, clock)) == [b"before"]
    assert f"transactions/bad/{head:020d}.json is damaged" in caplog.text
    assert values(elsewhere(store.storage, clock), isolation_level="read_uncommitted") == [
        b"before",
        b"open",
        b"behind",
    ]
