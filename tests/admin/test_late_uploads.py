"""Writers that sleep until vacuum has taken their uploads for left behind: nothing is placed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

from tests.support.log.settling import settling_early
from tests.support.steps import another, append, begin, maintain, reasons, upload, values
from tests.support.storage.disturbed_storages import LosingStorage
from txnlog import TopicPartition
from txnlog.errors import CommitStateUnknown, StorageError, UploadExpired
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

T0 = TopicPartition("t", 0)
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


pytestmark = [pytest.mark.store(on="heap"), pytest.mark.rule("V1", "hazard 11")]


def test_a_writer_that_sleeps_past_the_age_is_refused(store: Store, clock: VirtualClock) -> None:
    """Its uploads are gone: nothing is placed. What waits for less is placed."""
    writer = another(store)
    early, late = upload(writer, b"early"), upload(writer, b"late")
    clock.time_ms += WEEK_MS - 1
    maintain(store)
    writer.logs.topic("t").place(early)
    clock.time_ms += 1
    assert reasons(maintain(store)) == ["never placed"]
    with pytest.raises(UploadExpired, match="Nothing was placed"):
        writer.logs.topic("t").place(late)
    assert another(store).scan("t").to_arrow()["value"].to_pylist() == [b"early"]


def test_a_note_is_enough_to_refuse_it(store: Store, clock: VirtualClock) -> None:
    """The files are there still, but vacuum is about to delete them."""
    append(store, b"a")
    store.topics.delete_records({T0: 1})
    segments = upload(store, b"late")
    clock.time_ms += WEEK_MS
    assert [type(step).__name__ for step in maintain(store)] == ["FileDeletion", "FileRetirement"]
    with pytest.raises(UploadExpired):
        store.logs.topic("t").place(segments)


class _Hidden(ForwardingStorage):
    """The objects of some names can be listed, and not be read."""

    hidden = ""
    retriable = False

    def get(self, name: str) -> bytes:
        if name.endswith(self.hidden):
            error = StorageError(f"reading {name} failed: Permission denied")
            error.retriable = self.retriable
            raise error
        return self.inner.get(name)


def test_a_note_that_cannot_be_read_refuses_only_older_uploads(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """It may name those alone. Vacuum keeps it, goes on, and finds by age what it names."""
    early = upload(store, b"early")
    clock.time_ms += 1
    append(store, b"a")
    store.topics.delete_records({T0: 1})
    late = upload(store, b"late")
    clock.time_ms += DAY_MS
    hidden = _Hidden(heap)
    (hidden.hidden,) = heap.list_names("topics/t/retired")
    hidden.retriable = True
    with pytest.raises(StorageError, match="Permission denied"):
        another(store, hidden).logs.topic("t").place(late)
    hidden.retriable = False
    with pytest.raises(StorageError, match="Permission denied"):
        another(store, hidden).logs.topic("t").place(early)
    another(store, hidden).logs.topic("t").place(late)
    assert values(another(store)) == [b"late"]
    for found in (["FileRetirement"], ["FileDeletion"], []):
        clock.time_ms += WEEK_MS
        steps = another(store, hidden).maintain()
        assert [type(step).__name__ for step in steps] == found
    assert heap.list_names("topics/t/retired") == [hidden.hidden]


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_producer_that_sleeps_past_the_age(
    store: Store, clock: VirtualClock, in_transaction: bool
) -> None:
    """Its flush fails, and nothing of it shows; the producer goes on."""
    store.topics.alter("t", config={"segment.bytes": 1024})
    producer = another(store).producer(transactional_id="p" if in_transaction else None)
    if in_transaction:
        producer.init_transactions()
        producer.begin_transaction()
    # Rolled and uploaded at once.
    producer.send_batch("t", pa.RecordBatch.from_pydict({"value": [b"x" * 999] * 20}))
    clock.time_ms += WEEK_MS
    assert reasons(maintain(store)) == ["never placed"]
    with pytest.raises(UploadExpired):
        producer.flush()
    if in_transaction:
        producer.abort_transaction()
        producer.begin_transaction()
    producer.send("t", b"next")
    producer.commit_transaction() if in_transaction else producer.flush()
    assert another(store).scan("t").to_arrow()["value"].to_pylist() == [b"next"]


class _Interrupting(ForwardingStorage):
    """Calls ``at_put`` before the next entry of a topic is put: its writer sleeps just then."""

    at_put: Callable[[], None] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        at_put = self.at_put
        if name.startswith("topics/t/log/") and at_put is not None:
            self.at_put = None
            at_put()
        return self.inner.put_if_absent(name, data)


def sleep_before_put(store: Store, clock: VirtualClock) -> Store:
    """Another process that is to sleep between looking at its uploads and putting its entry."""
    storage = _Interrupting(store.storage)

    def sleep() -> None:
        clock.time_ms += WEEK_MS
        assert reasons(maintain(store)) == ["never placed"]

    storage.at_put = sleep
    return attach(storage, clock=clock)


def test_a_writer_that_sleeps_just_before_its_put_is_told(
    store: Store, clock: VirtualClock
) -> None:
    """Its entry is there and its files are not: the outcome is not called a success."""
    writer = sleep_before_put(store, clock)
    segments = upload(writer, b"late")
    with pytest.raises(StorageError, match="vacuum took for left behind") as raised:
        writer.logs.topic("t").place(segments)
    assert not raised.value.retriable


def test_a_producer_that_sleeps_just_before_its_put_is_told(
    store: Store, clock: VirtualClock
) -> None:
    """Without a transaction its flush does not succeed, nor does it when it is repeated."""
    producer = sleep_before_put(store, clock).producer()
    producer.send("t", b"late")
    with pytest.raises(CommitStateUnknown, match="vacuum took for left behind"):
        producer.flush()
    with pytest.raises(UploadExpired):
        producer.flush()


def test_a_transaction_that_sleeps_just_before_its_put_is_aborted(
    store: Store, clock: VirtualClock
) -> None:
    """Nothing that is missing is ever committed."""
    sleeper = sleep_before_put(store, clock)
    producer = begin(sleeper, timeout_ms=900_000)
    producer.send("t", b"late")
    with pytest.raises(StorageError, match="vacuum took for left behind"):
        producer.flush()
    with suppress(Exception):
        producer.abort_transaction()
    assert another(store).scan("t").to_arrow().num_rows == 0


def test_a_note_that_goes_with_its_files_is_not_missed(store: Store, clock: VirtualClock) -> None:
    """The files are deleted, and then the note, while a writer looks for both."""
    append(store, b"a")
    store.topics.delete_records({T0: 1})
    segments = upload(store, b"late")
    clock.time_ms += WEEK_MS
    maintain(store)  # notes it; deletes it when the delay has passed
    clock.time_ms += WEEK_MS
    looks: list[str] = []

    def delete_meanwhile(text: str) -> None:
        if "retired" in text or segments[0].stored.name in text:
            looks.append(text)
            if len(looks) == 2:
                assert reasons(maintain(store)) == ["never placed"]

    faulty = FaultyStorage(store.storage, before_request=delete_meanwhile)
    with pytest.raises(UploadExpired):
        another(store, faulty).logs.topic("t").place(segments)
    assert len(looks) >= 2


def test_young_uploads_cost_no_request(store: Store) -> None:
    """Nobody looks for notes who has uploaded within the last hour."""
    faulty = FaultyStorage(store.storage)
    append(another(store, faulty), b"a")
    assert not [text for text in faulty.requests if "retired" in text or text.startswith("size")]


@pytest.mark.parametrize("settled", [False, True])
def test_a_repeated_append_of_which_the_first_was_placed_too_late(
    store: Store, clock: VirtualClock, settled: bool
) -> None:
    """It is no success either, though a manifest has its entry by then."""
    with settling_early():
        append(store, b"first")
        writer = sleep_before_put(store, clock)
        losing = LosingStorage(writer.storage)
        producer = attach(losing, clock=clock).producer(delivery_timeout_ms=0)
        producer.send("t", b"late")
        losing.losing = "topics/t/log/"
        with pytest.raises(CommitStateUnknown):
            producer.flush()
        losing.losing = ""
        for number in range(20 if settled else 0):
            append(another(store), b"%d" % number)
        log = another(store).logs.topic("t")
        log.refresh()
        assert (log.state.settled is not None) is settled
        with pytest.raises(UploadExpired):
            producer.flush()
