"""``linger_ms`` flushes by itself; records that are never flushed are told."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading

import pytest

from tests.support.runtime.forked_child import in_child
from tests.support.steps import begin
from tests.support.tiers import more
from txnlog.errors import InvalidConfig, StorageError
from txnlog.storage import open_storage
from txnlog.storage.base import Upload
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach

WAIT_MS = 60_000
pytestmark = pytest.mark.store(on="disk")


def test_records_go_out_by_themselves(store: Store) -> None:
    """One by one and in batches, again and again, without a flush."""
    import pyarrow as pa

    consumer = store.consumer("t", auto_offset_reset="earliest")
    with store.producer(linger_ms=1) as producer:
        for turn in range(3):
            producer.send("t", b"%d" % turn)
            assert [record.value for record in consumer.poll(timeout_ms=WAIT_MS)] == [b"%d" % turn]
        producer.send_batch("t", pa.record_batch({"value": [b"batch"]}))
        assert [record.value for record in consumer.poll(timeout_ms=WAIT_MS)] == [b"batch"]


def test_in_a_transaction_they_show_with_its_commit(store: Store) -> None:
    """They are placed before, as read_uncommitted sees."""
    seeing = store.consumer("t", auto_offset_reset="earliest", isolation_level="read_uncommitted")
    producer = store.producer(transactional_id="p", linger_ms=1)
    producer.init_transactions()
    for end, count in ((producer.abort_transaction, 0), (producer.commit_transaction, 1)):
        producer.begin_transaction()
        producer.send("t", b"1")
        assert [record.value for record in seeing.poll(timeout_ms=WAIT_MS)] == [b"1"]
        assert store.scan("t").record_count == 0
        end()
        assert store.scan("t").record_count == count
    producer.close()


class Failing(ForwardingStorage):
    """Uploads, or new entries of topics' logs, fail once told to; ``failed`` is set then."""

    def __init__(self, url: str) -> None:
        super().__init__(open_storage(url))
        self.fails = self.fails_entries = False
        self.failed = threading.Event()

    def upload(self, name: str) -> Upload:
        self._check(self.fails)
        return super().upload(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._check(self.fails_entries and name.startswith("topics/"))
        return super().put_if_absent(name, data)

    def _check(self, fails: bool) -> None:
        if fails:
            self.failed.set()
            raise StorageError("the disk is gone")


@pytest.mark.parametrize("call", ["send", "flush", "close"])
def test_an_error_is_raised_by_the_next_call(store: Store, call: str) -> None:
    """Once; then the producer is what the error has made of it."""
    storage = Failing(store.storage.url)
    producer = attach(storage).producer(linger_ms=1, delivery_timeout_ms=1)
    storage.fails = True
    producer.send("t", b"1")
    assert storage.failed.wait(WAIT_MS / 1000)
    storage.fails = False
    arguments = ("t", b"2") if call == "send" else ()
    with pytest.raises(StorageError, match="the disk is gone"):
        getattr(producer, call)(*arguments)
    assert store.scan("t").record_count == 0


def test_a_transaction_whose_flush_failed_can_only_be_aborted(store: Store) -> None:
    """The commit raises the error, and nothing of it is committed."""
    storage = Failing(store.storage.url)
    producer = attach(storage).producer(transactional_id="p", linger_ms=1, delivery_timeout_ms=1)
    producer.init_transactions()
    producer.begin_transaction()
    storage.fails = True
    producer.send("t", b"1")
    assert storage.failed.wait(WAIT_MS / 1000)
    storage.fails = False
    with pytest.raises(StorageError, match="the disk is gone"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"2")
    assert [r.value for r in store.consumer("t", auto_offset_reset="earliest").poll()] == [b"2"]


def test_closing_aborts_a_transaction_whose_flush_failed(store: Store) -> None:
    """It raises the error, and leaves nobody to wait for the transaction's timeout."""
    storage = Failing(store.storage.url)
    producer = attach(storage).producer(transactional_id="p", linger_ms=1, delivery_timeout_ms=1)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"1")
    producer.flush()
    storage.fails = True
    producer.send("t", b"2")
    assert storage.failed.wait(WAIT_MS / 1000)
    storage.fails = False
    with pytest.raises(StorageError, match="the disk is gone"):
        producer.close()
    assert store.transactions.describe("p").status == "CompleteAbort"


def test_closing_writes_what_was_in_doubt(store: Store) -> None:
    """Once: then nothing is left to be told."""
    storage = Failing(store.storage.url)
    producer = attach(storage).producer(linger_ms=1, delivery_timeout_ms=1)
    storage.fails_entries = True
    producer.send("t", b"1")
    assert storage.failed.wait(WAIT_MS / 1000)
    with producer._lock.mutex:  # the flush is over
        storage.fails_entries = False
    producer.close()
    assert store.scan("t").to_arrow().column("value").to_pylist() == [b"1"]


def test_the_error_of_a_partitioner_is_raised_by_the_next_call(store: Store) -> None:
    """It is the user's own."""
    called = threading.Event()

    def choose(*_: object) -> object:
        called.set()
        raise ValueError("the user's")

    producer = store.producer(linger_ms=1, partitioner=choose)
    producer.send("t", b"1")
    assert called.wait(WAIT_MS / 1000)
    with pytest.raises(ValueError, match="the user's"):
        producer.flush()


def test_a_linger_that_makes_no_sense_is_refused(store: Store) -> None:
    for linger_ms in (-1, 1.5, "1"):
        with pytest.raises(InvalidConfig, match=r"linger\.ms"):
            store.producer(linger_ms=linger_ms)  # type: ignore[arg-type]


SCRIPT = """
import sys
import txnlog

store = txnlog.open(sys.argv[1])
producer = store.producer(**eval(sys.argv[2]))
if "transactional_id" in sys.argv[2]:
    producer.init_transactions()
    producer.begin_transaction()
for number in range(3):
    producer.send("t", b"x")
if sys.argv[3]:
    getattr(producer, sys.argv[3])()
"""


@pytest.mark.parametrize("settings", ["{}", "{'transactional_id': 'p'}", "{'linger_ms': 3600000}"])
@pytest.mark.parametrize("end", ["", *more(["close"])])
def test_what_is_lost_at_exit_is_told(store: Store, settings: str, end: str) -> None:
    """On stderr, with its count; nothing is said where the producer was closed."""
    command = [sys.executable, "-c", SCRIPT, store.storage.url, settings, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    if end:
        assert done.stderr == ""
    else:
        assert "records are lost: 3 for topic 't'" in done.stderr


def test_a_producer_that_is_dropped_tells_it_too(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Not after a flush or a commit; and a child of a fork says nothing of its parent's."""
    gc.collect()
    gc.freeze()  # what other tests have left: a child that looks through it copies it
    producer = store.producer()
    producer.send("t", b"1")
    producer.flush()
    committed = begin(store)
    committed.send("t", b"1")
    committed.commit_transaction()
    with caplog.at_level(logging.WARNING, "txnlog"):
        del producer, committed
        gc.collect()
        assert caplog.records == []
        producer = store.producer(linger_ms=3_600_000)
        producer.send("t", b"1")

        def drop() -> int:
            nonlocal producer
            producer = store.producer()
            gc.collect()
            return len(caplog.records)

        assert in_child(drop) == "0"
        del producer
        gc.collect()
    (said,) = caplog.records
    assert "1 for topic 't'" in said.getMessage()
