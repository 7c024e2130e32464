"""What a producer can be told: acks, retries, idempotence versions. Clocks are virtual."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from tests.support.steps import new_store, values
from txnlog import AcksValue
from txnlog.clock import Clock, Moment
from txnlog.errors import (
    CommitStateUnknown,
    CorruptRecord,
    InvalidConfig,
    InvalidOption,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TxnlogError,
)
from txnlog.names import TopicPartition
from txnlog.state.transaction import TransactionState
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.storage.create_once import Retries
from txnlog.storage.failure_messages import failure
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("T8")

T0 = TopicPartition("t", 0)


# -- acks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("acks", "synced"), [("all", True), (-1, True), (1, False)])
def test_acks_say_what_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: AcksValue, synced: bool
) -> None:
    """All: the data and its entry are synced; 1: the entry alone, so that no log has a gap."""
    store = attach(open_storage(str(tmp_path / "store")), create=True, clock=VirtualClock())
    store.topics.create("t")
    producer = store.producer(acks=acks)
    producer.send("t", b"x")
    found: list[str] = []
    real = os.fsync

    def recording(descriptor: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    assert producer.flush() == {T0: [range(1)]}
    monkeypatch.undo()
    root = str(tmp_path / "store")
    assert (f"{root}/topics/t/data/0" in found) is synced
    assert f"{root}/topics/t/log" in found
    files = [path for path in found if "/.tmp/" in path]
    assert len(files) == (2 if synced else 1)
    assert values(store) == [b"x"]


def test_data_that_a_power_cut_took_is_reported(tmp_path: Path) -> None:
    """What acks=1 risks: the records are gone, and reading says so."""
    store = attach(open_storage(str(tmp_path / "store")), create=True, clock=VirtualClock())
    store.topics.create("t")
    with store.producer(acks=1) as producer:
        producer.send("t", b"x")
    (segment,) = (tmp_path / "store/topics/t/data/0").glob("*.log")
    segment.write_bytes(b"")
    with pytest.raises(CorruptRecord, match=segment.name):
        values(store)
    segment.unlink()
    with pytest.raises(TxnlogError, match=segment.name):
        values(store)
    store.topics.delete_records({T0: 1})
    with store.producer() as producer:
        producer.send("t", b"next")
    assert values(store) == [b"next"]


def test_on_object_stores_acks_1_is_all(memory_storage: Storage) -> None:
    """There is nothing to be less durable."""
    assert memory_storage.without_fsync() is memory_storage


def test_acks_0_waits_for_nothing(store: Store) -> None:
    """A flush returns while its first request is held up; closing waits for all of them."""
    go = threading.Event()
    first = []

    def hold(request: str) -> None:
        if threading.current_thread().name.startswith("txnlog-acks0"):
            first.append(request)
            assert go.wait(60)

    slow = attach(FaultyStorage(store.storage, before_request=hold), clock=VirtualClock())
    producer = slow.producer(acks=0)
    for number in range(3):
        producer.send("t", b"%d" % number)
        assert producer.flush() == {}
    assert values(store) == []
    go.set()
    producer.close()
    assert first
    assert values(store) == [b"0", b"1", b"2"]
    with slow.producer(acks="0") as producer:
        producer.send("t", b"on closing")
    assert values(store)[3:] == [b"on closing"]


def test_acks_0_keeps_failures_to_the_log(
    store: Store, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss is a warning, and later records are written, in order and once."""

    class Failing(FaultyStorage):
        failing = ""

        def put_if_absent(self, name: str, data: bytes) -> bool:
            if self.failing and name.startswith(self.failing):
                raise StorageError("the disk is gone")
            return super().put_if_absent(name, data)

    storage = Failing(store.storage)
    producer = attach(storage, clock=clock).producer(acks=0)
    producer.send("t", b"one")
    producer.flush()
    producer._background.close()  # type: ignore[union-attr]
    storage.failing = "topics/t/log"
    producer.send("t", b"lost")
    with caplog.at_level(logging.WARNING, "txnlog.write.plain_writer"):
        producer.flush()
        producer._background.close()  # type: ignore[union-attr]
    assert "acks=0: records for topic 't' may or may not have been written" in caplog.text
    storage.failing = ""
    producer.send("t", b"two")
    producer.close()
    assert values(store) == [b"one", b"two"]
    assert [segment.base_sequence for segment in store.topics.segments("t")] == [0, 0]


def test_bad_acks_are_refused(store: Store) -> None:
    """Each says what there is; a transaction promises that everything is there."""
    for bad in (2, "some", True, None, ""):
        with pytest.raises(InvalidConfig, match="must be 0, 1, or 'all'"):
            store.producer(acks=bad)  # type: ignore[arg-type]
    unsafe: tuple[AcksValue, ...] = (0, 1)
    for acks in unsafe:
        with pytest.raises(InvalidConfig, match="with a transactional_id it must be 'all'"):
            store.producer(transactional_id="p", acks=acks)
    store.producer(transactional_id="p", acks="-1")


# -- retries -------------------------------------------------------------------------------------


class Down(FaultyStorage):
    """Every request fails until a time, or those whose names begin with ``names``."""

    def __init__(self, inner: Storage, clock: VirtualClock) -> None:
        super().__init__(inner)
        self.clock = clock
        self.until_ms = 0
        self.names = ""
        self.retriable = True
        self.refused = 0

    def _check(self, name: str) -> None:
        if self.clock.time_ms < self.until_ms and name.startswith(self.names):
            self.refused += 1
            error = StorageError(f"no answer for {name}")
            error.retriable = self.retriable
            raise error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._check(name)
        return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes:
        self._check(name)
        return super().get(name)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        self._check(folder)
        return super().list_names(folder, start_after)


@pytest.fixture
def down(store: Store, clock: VirtualClock) -> Down:
    return Down(store.storage, clock)


def test_a_flush_is_retried_until_the_delivery_timeout(
    store: Store, clock: VirtualClock, down: Down
) -> None:
    """No error if the storage comes back in time, else CommitStateUnknown."""
    producer = attach(down, clock=clock).producer(delivery_timeout_ms=30_000)
    producer.send("t", b"one")
    down.names = "topics/t/log"
    down.until_ms = clock.time_ms + 20_000
    assert producer.flush() == {T0: [range(1)]}
    producer.send("t", b"two")
    started_ms = clock.time_ms
    down.until_ms = clock.time_ms + 10**9
    with pytest.raises(CommitStateUnknown, match="flush"):
        producer.flush()
    assert 25_000 < clock.time_ms - started_ms <= 30_000
    down.until_ms = 0
    assert producer.flush() == {T0: [range(1, 2)]}
    assert values(store) == [b"one", b"two"]


def test_a_commit_is_retried_within_its_transaction(
    store: Store, clock: VirtualClock, down: Down
) -> None:
    """Condition 23: repeated while the transaction has time enough, and never past its timeout."""
    process = attach(down, clock=clock)
    producer = process.producer(transactional_id="p", transaction_timeout_ms=40_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"one")
    producer.flush()
    down.names = "transactions/p"
    down.until_ms = clock.time_ms + 10_000
    assert producer.commit_transaction() == {T0: [range(1)]}
    producer.begin_transaction()
    producer.send("t", b"two")
    producer.flush()
    started_ms = clock.time_ms
    down.until_ms = clock.time_ms + 10**9
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    assert clock.time_ms - started_ms < 25_000
    down.until_ms = 0
    producer.commit_transaction()
    assert values(store) == [b"one", b"two"]


def test_an_init_is_retried(store: Store, clock: VirtualClock, down: Down) -> None:
    """It may be called again, so it is; the epoch grows by what was completed."""
    process = attach(down, clock=clock)
    down.until_ms = clock.time_ms + 5_000
    process.producer(transactional_id="p").init_transactions()
    assert store.transactions.describe("p").producer_epoch == 0
    down.until_ms = clock.time_ms + 10**9
    with pytest.raises(StorageError, match="no answer"):
        process.producer(transactional_id="q", delivery_timeout_ms=50).init_transactions()


def test_what_waiting_does_not_mend_is_not_retried(
    store: Store, clock: VirtualClock, down: Down
) -> None:
    """Permission denied, a full disk: the error comes at once."""
    producer = attach(down, clock=clock).producer()
    producer.send("t", b"x")
    down.until_ms = clock.time_ms + 10**9
    down.retriable = False
    with pytest.raises(CommitStateUnknown):
        producer.flush()
    assert down.refused == 1


@pytest.mark.parametrize("cause", ["ENOSPC", "EACCES", "EROFS"])
def test_storage_errors_know_whether_waiting_helps(cause: str) -> None:
    """By the cause: an unreachable server may answer later, a full disk does not empty itself."""
    bad = failure("writing", "/s", "n", OSError(getattr(errno, cause), "no"))
    assert not bad.retriable
    assert failure("writing", "/s", "n", TimeoutError("slow")).retriable


def test_pauses_double_with_jitter_up_to_a_limit() -> None:
    """Kafka's: retry.backoff.ms, doubled each time, up to retry.backoff.max.ms, +-20 %."""

    class Watched(VirtualClock):
        slept: list[float] = []
        chance = 0.5

        def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            super().sleep(seconds)

        def jitter(self) -> float:
            return self.chance

    def fails() -> None:
        raise StorageError("no")

    for chance, factor in ((0.5, 1.0), (0.0, 0.8), (1.0, 1.2)):
        clock = Watched()
        clock.slept, clock.chance = [], chance
        checked: Clock = clock
        with pytest.raises(StorageError):
            Retries.of(5_000, 100, 1000).run(checked, HeapStorage(), fails)
        expected = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert clock.slept[:6] == pytest.approx([factor * pause for pause in expected][:6])
        assert sum(clock.slept) < 5


def test_a_fatal_error_is_not_retried() -> None:
    """Only what the storage did is repeated."""
    calls = []

    def fenced() -> None:
        calls.append(1)
        raise ProducerFenced("gone")

    with pytest.raises(ProducerFenced):
        Retries().run(VirtualClock(), HeapStorage(), fenced)
    assert calls == [1]


@pytest.mark.parametrize("option", ["delivery_timeout_ms", "retry_backoff_ms"])
def test_bad_retry_settings_are_refused(store: Store, option: str) -> None:
    """They name Kafka's key."""
    for value in (-1, 1 << 31, 1.5, True, "1"):
        with pytest.raises(InvalidConfig, match=option.replace("_", ".")):
            store.producer(**{option: value})  # type: ignore[arg-type]


# -- idempotence versions ------------------------------------------------------------------------


def run_batch(store: Store, version: int, application_id: str = "stream") -> bool:
    """What a foreachBatch does: True if the batch was written."""
    with store.producer(transactional_id="sink") as producer:
        producer.init_transactions()
        begun = producer.begin_transaction(application_id=application_id, version=version)
        if begun.already_committed:
            return False
        producer.send("t", b"%s-%d" % (application_id.encode(), version))
        producer.commit_transaction()
        return True


def test_a_batch_that_comes_again_is_skipped(store: Store, clock: VirtualClock) -> None:
    """By application, also in a new process; a lower version was committed before."""
    assert [run_batch(store, version) for version in (0, 0, 1, 5, 3, 5, 6)] == [
        True,
        False,
        True,
        True,
        False,
        False,
        True,
    ]
    other = attach(store.storage, clock=clock)
    assert not run_batch(other, 6)
    assert run_batch(other, 2, "another")
    assert other.transactions.describe("sink").versions == {"stream": 6, "another": 2}
    expected = [b"stream-0", b"stream-1", b"stream-5", b"stream-6", b"another-2"]
    assert values(store) == expected


def test_an_aborted_version_may_come_again(store: Store) -> None:
    """Only a commit makes a version known; one without records does too."""
    with store.producer(transactional_id="sink") as producer:
        producer.init_transactions()
        assert not producer.begin_transaction(application_id="a", version=1).already_committed
        producer.send("t", b"aborted")
        producer.flush()
        producer.abort_transaction()
        assert producer.committed_version("a") is None
        assert not producer.begin_transaction(application_id="a", version=1).already_committed
        assert producer.commit_transaction() == {}
        assert producer.committed_version("a") == 1
        assert producer.commit_transaction() == {}
        assert producer.begin_transaction(application_id="a", version=1).already_committed
        with pytest.raises(InvalidTxnState, match="begin_transaction"):
            producer.send("t", b"x")
        assert not producer.begin_transaction().already_committed
        producer.commit_transaction()
        assert producer.committed_version("a") == 1
    assert values(store) == []


@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("failing", ["Ongoing", "PrepareCommit", "CompleteCommit"])
def test_a_version_without_records_survives_a_put_in_doubt(
    store: Store, monkeypatch: pytest.MonkeyPatch, failing: str, effect: bool
) -> None:
    """The commit is repeated, recognises its own states, and is not a fenced producer's."""
    producer = store.producer(transactional_id="sink")
    producer.init_transactions()
    real = store.logs.transactions.put
    failed: list[int] = []

    def put(number: int, state: TransactionState, since: Moment, *, decided: bool = False) -> bool:
        if state.status.value == failing and not failed:
            failed.append(number)
            if effect:
                real(number, state, since, decided=decided)
            raise StorageError("the connection was reset")
        return real(number, state, since, decided=decided)

    monkeypatch.setattr(store.logs.transactions, "put", put)
    assert not producer.begin_transaction(application_id="a", version=1).already_committed
    producer.commit_transaction()
    assert failed
    assert not producer.begin_transaction(application_id="a", version=2).already_committed
    producer.commit_transaction()
    assert store.transactions.describe("sink").versions == {"a": 2}
    assert store.transactions.describe("sink").number == 2


@pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.STOP_AFTER, Fault.FAIL])
def test_a_batch_is_written_once_wherever_its_sink_fails(clock: VirtualClock, fault: Fault) -> None:
    """At each request of the sink: run again, the batch is there once."""
    for number in range(100):
        storage = HeapStorage()
        store = new_store(storage, clock)
        run_batch(store, 0)
        faulty = FaultyStorage(storage)
        process = attach(faulty, clock=clock)
        start = len(faulty.requests)
        faulty.faults = {start + number: fault}
        try:
            run_batch(process, 1)
        except BaseException as error:  # noqa: BLE001 - a process that stops raises what it likes
            context = repr(error)
        else:
            context = "no error"
        again = attach(storage, clock=clock)
        run_batch(again, 1)
        assert values(again) == [b"stream-0", b"stream-1"], f"request {number}: {context}"
        if start + number >= len(faulty.requests):
            assert number > 8
            return
    raise AssertionError("a batch has no end of requests")


def test_bad_versions_are_refused(store: Store) -> None:
    """Both or neither, a name, and a number that fits."""
    producer = store.producer(transactional_id="p")
    with pytest.raises(InvalidTxnState, match="not initialised"):
        producer.committed_version("a")
    producer.init_transactions()
    bad: list[tuple[object, object]] = [
        ("a", None),
        (None, 1),
        ("", 1),
        ("a", -1),
        ("a", 1 << 63),
        ("a", True),
        ("a", "1"),
    ]
    for application_id, version in bad:
        with pytest.raises(InvalidOption):
            producer.begin_transaction(
                application_id=application_id,  # type: ignore[arg-type]
                version=version,  # type: ignore[arg-type]
            )
    producer.begin_transaction(application_id="a", version=(1 << 63) - 1)
    with pytest.raises(InvalidTxnState, match="no transactional_id"):
        store.producer().committed_version("a")
