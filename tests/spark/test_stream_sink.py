"""The sink's commit without a JVM: at each storage request in turn, and with an older driver."""

from __future__ import annotations

import statistics
from contextlib import suppress

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from txnlog.errors import CommitStateUnknown, InvalidTxnState, TxnlogError
from txnlog.spark.batch.task_uploads import upload
from txnlog.spark.batch.write_plan import WritePlan
from txnlog.spark.options.write_options import parse_write
from txnlog.spark.stream.commit_once import query_batch
from txnlog.spark.stream.writer import TxnlogStreamWriter, UploadedForQuery
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

NAMES = ("topic", "value")
EXECUTION = "a-session-0"
OPTIONS = parse_write({"path": "unused", "transactional.id": "t"}, streaming=True)


@pytest.fixture
def inner() -> HeapStorage:
    """A store with topics a and b."""
    storage = HeapStorage()
    store = attach(storage, create=True, clock=VirtualClock(seed=1))
    for topic in ("a", "b"):
        store.topics.create(topic, partitions=2)
    return storage


class Driver:
    """One life of a query's driver: each batch has 4 rows for each of the two topics."""

    def __init__(self, storage: HeapStorage | FaultyStorage, seed: int, query: str = "q") -> None:
        self.store = attach(storage, clock=VirtualClock(seed=seed))
        self._plan = WritePlan(self.store, OPTIONS, NAMES, NAMES, None)
        self._query = query

    def writer(self) -> TxnlogStreamWriter:
        return TxnlogStreamWriter(self._plan)

    def upload(self, batch: int) -> list[WriterCommitMessage | None]:
        """What the tasks of a batch do: two of them with rows, one without."""
        messages: list[WriterCommitMessage | None] = []
        for task in range(2):
            rows = [f"{batch}-{task}-{row}".encode() for row in range(4)]
            data = pa.record_batch([["a", "b"] * 2, rows], names=list(NAMES))
            segments = upload(self._plan, [data])
            messages.append(UploadedForQuery(segments, EXECUTION, self._query))
        return [*messages, UploadedForQuery((), EXECUTION, self._query)]

    def commit(self, batch: int, messages: list[WriterCommitMessage | None]) -> None:
        """As Spark does it: what fails is followed by abort, on another writer."""
        try:
            self.writer().commit(messages, batch)
        except TxnlogError:
            self.writer().abort(messages, batch)
            raise

    def run(self, batch: int) -> None:
        self.commit(batch, self.upload(batch))


def committed_values(storage: HeapStorage) -> list[bytes]:
    store = attach(storage, clock=VirtualClock(seed=99))
    snapshot = store.snapshot(["a", "b"])
    return sorted(
        value
        for topic in snapshot.topics
        for value in snapshot.scan(topic).to_arrow()["value"].to_pylist()
    )


def expected(*batches: int) -> list[bytes]:
    return sorted(
        f"{batch}-{task}-{row}".encode() for batch in batches for task in (0, 1) for row in range(4)
    )


def orphans(storage: HeapStorage) -> set[str]:
    store = attach(storage, clock=VirtualClock(seed=98))
    placed = {segment.name for topic in ("a", "b") for segment in store.topics.segments(topic)}
    files = {
        name.removesuffix(".log")
        for topic in ("a", "b")
        for folder in ("0", "1", "shared")
        for name in storage.list_names(f"topics/{topic}/data/{folder}")
        if name.endswith(".log")
    }
    return files - placed


ENDS = {
    Fault.STOP_BEFORE: {"stopped"},
    Fault.STOP_AFTER: {"stopped"},
    Fault.FAIL: {"failed", "committed"},
    Fault.LOSE_RESPONSE: {"failed", "committed"},
    Fault.LAND_LATE: {"failed", "committed"},
}
"""How the commit ends, over all of its requests."""


@pytest.mark.few(1)
@pytest.mark.condition(48, 49)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            marks=[pytest.mark.slow] * (fault is Fault.STOP_BEFORE)
            + [pytest.mark.more] * (fault in {Fault.FAIL, Fault.LAND_LATE}),
        )
        for fault in ENDS
    ],
)
def test_each_request_of_a_commit_goes_wrong(inner: HeapStorage, fault: Fault) -> None:
    """Whatever the second batch's commit dies of, its next run leaves it there once.

    The faulty driver may end as it likes; the next one repeats the batch, and goes on.
    """
    Driver(inner, seed=2).run(0)
    number = 0
    outcomes = set()
    while True:
        storage = inner.copy()
        faulty = FaultyStorage(storage)
        driver = Driver(faulty, seed=3)
        messages = driver.upload(1)
        at = len(faulty.requests) + number
        faulty.faults = {at: fault}
        outcome = "committed"
        try:
            driver.commit(1, messages)
        except ProcessStopped:
            outcome = "stopped"
        except CommitStateUnknown:
            outcome = "unknown"
        except TxnlogError:
            outcome = "failed"
        if len(faulty.requests) <= at:
            break
        outcomes.add(outcome)
        assert committed_values(storage) in (expected(0), expected(0, 1))
        if outcome == "committed":
            assert committed_values(storage) == expected(0, 1)
        again = Driver(storage, seed=4)
        again.run(1)
        faulty.land()
        assert committed_values(storage) == expected(0, 1)
        again.run(2)
        again.run(2)
        assert committed_values(storage) == expected(0, 1, 2)
        if outcome == "committed":
            assert orphans(storage) == set()
        number += 1
    assert number > 10
    assert outcomes == ENDS[fault]


def test_an_unknown_outcome_is_not_aborted_but_found_out(inner: HeapStorage) -> None:
    """Hazard 2: the decision landed, nobody was told: its files stay, a replay adds none."""
    storage = inner.copy()

    class Lost(FaultyStorage):
        lost = False

        def _fault(self, text: str) -> Fault | None:
            if text.startswith("put_if_absent transactions/") and text.endswith("2.json"):
                self.lost = True
                return Fault.LOSE_RESPONSE
            return Fault.FAIL if self.lost else None

    driver = Driver(Lost(storage), seed=3)
    messages = driver.upload(0)
    with pytest.raises(CommitStateUnknown):
        driver.writer().commit(messages, 0)
    Driver(storage, seed=5).writer().abort([*messages], 0)  # the storage is back
    assert committed_values(storage) == expected(0)
    Driver(storage, seed=4).run(0)
    assert committed_values(storage) == expected(0)
    assert orphans(storage) == set()


def test_a_failed_task_leaves_no_file(inner: HeapStorage) -> None:
    """A message that is missing proves that nothing was placed, so the others are deleted."""
    driver = Driver(inner, seed=2)
    messages = driver.upload(0)
    assert len(orphans(inner)) > 0
    driver.writer().abort([*messages[:1], None, *messages[1:]], 0)
    assert orphans(inner) == set()
    assert committed_values(inner) == []


@pytest.mark.condition(28)
def test_an_older_driver_of_the_same_query(inner: HeapStorage) -> None:
    """Two drivers have the same batch; whoever comes second adds nothing."""
    older, newer = Driver(inner, seed=2), Driver(inner, seed=3)
    late = older.upload(0)
    newer.run(0)
    older.commit(0, late)
    assert committed_values(inner) == expected(0)
    assert orphans(inner) == set()
    newer.run(1)
    late = older.upload(0)
    with pytest.raises(InvalidTxnState, match="its checkpoint was set back"):
        older.commit(0, late)
    assert committed_values(inner) == expected(0, 1)
    assert orphans(inner) == set()


@pytest.mark.condition(28, 50)
def test_two_drivers_meet_in_a_commit(inner: HeapStorage) -> None:
    """The newer driver commits while the older one stands still at each request."""
    number = 0
    while True:
        storage = inner.copy()
        newer = Driver(storage, seed=4)

        def meet(_: Fault, newer: Driver = newer) -> None:
            newer.run(0)

        faulty = FaultyStorage(storage, on_wait=meet)
        older = Driver(faulty, seed=3)
        messages = older.upload(0)
        at = len(faulty.requests) + number
        faulty.faults = {at: Fault.PAUSE}
        with suppress(TxnlogError):
            older.commit(0, messages)
        if len(faulty.requests) <= at:
            break
        assert committed_values(storage) == expected(0)
        number += 1
    assert number > 10


def test_another_query_changes_nothing(inner: HeapStorage) -> None:
    """A refused query has fenced nobody, and has deleted only its own files."""
    owner = Driver(inner, seed=2)
    owner.run(3)
    before = owner.store.transactions.describe("t")
    messages = owner.upload(4)
    other = Driver(inner, seed=3, query="another")
    with pytest.raises(InvalidTxnState, match="belongs to streaming query q, which has committed"):
        other.run(0)
    assert owner.store.transactions.describe("t") == before
    owner.commit(4, messages)
    assert committed_values(inner) == expected(3, 4)
    assert orphans(inner) == set()
    assert owner.store.logs.transactions.describe("t").state.versions == {query_batch("q", 4)[0]: 4}


def test_an_empty_batch_puts_nothing(inner: HeapStorage) -> None:
    """Tasks without rows cost no transaction, not even where another query owns the id."""
    faulty = FaultyStorage(inner)
    driver = Driver(faulty, seed=2)
    faulty.requests.clear()
    driver.writer().commit([UploadedForQuery((), EXECUTION, "q")], 0)
    assert faulty.requests == []


def test_a_batch_costs_what_the_first_ones_did(inner: HeapStorage) -> None:
    """The store stays open between batches: its logs' length does not matter."""
    faulty = FaultyStorage(inner)
    driver = Driver(faulty, seed=2)
    costs: list[int] = []
    for batch in range(64):
        messages = driver.upload(batch)
        faulty.requests.clear()
        driver.store.logs.topic_spec("a")  # as each batch is planned
        driver.commit(batch, messages)
        costs.append(len(faulty.requests))
    usual = 14  # 5 listings, 1 read, 8 puts
    assert {statistics.mode(costs[:20]), statistics.mode(costs[-20:])} == {usual}
    assert sum(cost != usual for cost in costs) <= 8, "checkpoints, and cleaning"
