"""The hazards of design and docs/PROTOCOL.md that no other test of this folder is named for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from steps import another, append, checkpoint, new_store, values

from txnlog.errors import (
    CommitStateUnknown,
    CorruptEntry,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
)
from txnlog.names import TopicPartition
from txnlog.segments.records import normalize
from txnlog.state import transaction as transitions
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, VirtualClock
from txnlog.write.uploads import SegmentUploader

T0 = TopicPartition("t", 0)
CLEANUP_AGE_MS = 60_000


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock) -> Store:
    config = {"log.cleanup.age.ms": CLEANUP_AGE_MS, "transaction.max.timeout.ms": 60_000}
    return new_store(memory_storage, clock, config=config)


class Flaky(FaultyStorage):
    """Loses the responses to creates of names that contain a text, until told to stop."""

    losing = ""
    effect = True

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.losing and self.losing in name:
            if self.effect:
                super().put_if_absent(name, data)
            raise StorageError("the connection was reset")
        return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes:
        if self.losing and self.losing in name:
            raise StorageError("the connection was reset")
        return super().get(name)


@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("then", ["commit", "abort", "init"])
def test_an_unknown_commit_deletes_nothing_and_is_settled_later(
    store: Store, clock: VirtualClock, effect: bool, then: str
) -> None:
    """Goal (23): the error says so (hazard 2); repeating or a new init tells the truth."""
    flaky = Flaky(store.storage)
    flaky.effect = effect
    producer = attach(flaky, clock=clock).producer(transactional_id="p")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"x")
    producer.flush()
    flaky.losing = "transactions/p"
    with pytest.raises(CommitStateUnknown, match="commit_transaction"):
        producer.commit_transaction()
    flaky.losing = ""
    assert store.segments("t")[0].record_count == 1
    if then == "commit":
        producer.commit_transaction()
        expected = [b"x"]
    elif then == "abort" and effect:
        with pytest.raises(InvalidTxnState, match="had succeeded"):
            producer.abort_transaction()
        expected = [b"x"]
    elif then == "abort":
        producer.abort_transaction()
        expected = []
    else:
        store.producer(transactional_id="p").init_transactions()
        expected = [b"x"] if effect else []
    assert values(another(store)) == expected
    assert not store.describe_topic("t").open_transactions


@pytest.mark.parametrize("effect", [True, False])
def test_an_unknown_flush_is_not_repeated(store: Store, clock: VirtualClock, effect: bool) -> None:
    """Goal (49): flushing again writes what is missing, and nothing twice (hazard 2)."""
    flaky = Flaky(store.storage)
    flaky.effect = effect
    producer = attach(flaky, clock=clock).producer()
    producer.send("t", b"one")
    flaky.losing = "topics/t/log"
    with pytest.raises(CommitStateUnknown, match="flush"):
        producer.flush()
    producer.send("t", b"two")
    flaky.losing = ""
    placed = producer.flush()
    assert placed == {T0: [range(1), range(1, 2)]}
    assert values(another(store)) == [b"one", b"two"]


class LosesOne(FaultyStorage):
    """Loses the response to the first create of a log entry of topic ``t``."""

    lost = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if name.startswith("topics/t/log/") and not self.lost:
            self.lost = True
            raise StorageError("the connection was reset")
        return done


def test_a_lost_response_is_no_conflict(store: Store, clock: VirtualClock) -> None:
    """Hazard 1: the entry is read back, its nonce is ours, and no second one is written."""
    losing = LosesOne(store.storage)
    producer = attach(losing, clock=clock).producer()
    producer.send("t", b"x")
    assert producer.flush() == {T0: [range(1)]}
    assert losing.lost
    assert values(another(store)) == [b"x"]
    assert store.describe_topic("t").entries == 2


def test_a_failed_upload_is_not_forgotten(store: Store, clock: VirtualClock) -> None:
    """A plain producer that lost buffered records does not pretend to flush them later."""
    storage = FaultyStorage(store.storage)
    producer = attach(storage, clock=clock).producer()
    producer.send("t", b"x")
    storage.faults = {len(storage.requests): Fault.FAIL}
    with pytest.raises(StorageError, match="injected"):
        producer.flush()
    for call in (producer.flush, lambda: producer.send("t", b"y")):
        with pytest.raises(InvalidTxnState, match="send again what was not flushed"):
            call()
    producer.close()
    assert values(store) == []


A_QUARTER = "both, a quarter of the cleaning age"
CLOCKS = pytest.mark.parametrize(
    "clocks", ["both", "the wall clock", "the monotonic clock", A_QUARTER]
)


def stall(sleepers: VirtualClock, until_ms: int, clocks: str) -> None:
    """A process sleeps until then, and only some of its clocks show it.

    Its machine may have slept too, and the monotonic clock stood still; or its wall clock was set
    back meanwhile. Or those who clean up have clocks that differ.
    """
    begun_ms = sleepers.now_ms()
    if clocks == A_QUARTER:
        sleepers.time_ms += CLEANUP_AGE_MS // 4 + 1
        return
    if clocks == "the wall clock":
        sleepers.sleep_machine(until_ms - begun_ms)
    else:
        sleepers.time_ms = until_ms
    if clocks == "the monotonic clock":
        sleepers.set_wall(begun_ms)


@CLOCKS
def test_a_stalled_writer_does_not_believe_in_a_reused_name(
    store: Store, clock: VirtualClock, clocks: str
) -> None:
    """Goal (52): a writer that slept wins a name that was freed, and looks again (hazard 3)."""
    own = VirtualClock(clock.time_ms, seed=5)
    sleeper = attach(store.storage, clock=own)
    spec = sleeper.topic_spec("t")
    uploader = SegmentUploader(sleeper.storage, spec, clock)
    batch = normalize(pa.record_batch({"value": [b"late"]}), now_ms=1)
    uploader.write(batch, np.zeros(1, dtype=np.int32))
    segments = uploader.finish()
    sleeper.logs.topic("t").refresh()
    for turn in range(6):
        append(store, b"%d" % turn)
        clock.time_ms += CLEANUP_AGE_MS + 1
        checkpoint(store)
    assert store.storage.list_names("topics/t/log")[0] > "00000000000000000002"
    stall(own, clock.time_ms, clocks)
    appended = sleeper.logs.topic("t").place(segments, refreshed=True)
    assert appended.offsets == {T0: range(6, 7)}
    expected = [*(b"%d" % turn for turn in range(6)), b"late"]
    assert values(sleeper) == values(store) == expected
    assert values(another(store)) == expected


class AnswersLate(FaultyStorage):
    """The answer to one listing takes long; ``meanwhile`` is what others do after it was made."""

    meanwhile: Callable[[], None] | None = None

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        found = super().list_names(folder, start_after)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


def test_a_listing_is_as_old_as_its_beginning(store: Store, clock: VirtualClock) -> None:
    """Hazard 3: what it says of the next entry was true when it was asked for."""
    append(store, b"first")
    late = AnswersLate(store.storage)
    sleeper = attach(late, clock=clock)
    spec = sleeper.topic_spec("t")
    uploader = SegmentUploader(sleeper.storage, spec, clock)
    batch = normalize(pa.record_batch({"value": [b"late"]}), now_ms=1)
    uploader.write(batch, np.zeros(1, dtype=np.int32))
    segments = uploader.finish()

    def meanwhile() -> None:
        for turn in range(6):
            append(store, b"%d" % turn)
            clock.time_ms += CLEANUP_AGE_MS + 1
            checkpoint(store)

    late.meanwhile = meanwhile
    placed = sleeper.logs.topic("t").place(segments, timeout_ms=100 * CLEANUP_AGE_MS)
    assert placed.offsets == {T0: range(7, 8)}
    expected = [b"first", *(b"%d" % turn for turn in range(6)), b"late"]
    assert values(another(store)) == expected


@CLOCKS
def test_a_stalled_instance_does_not_believe_in_a_reused_transaction_state(
    store: Store, clock: VirtualClock, clocks: str
) -> None:
    """Goal (52): a decision put into a freed name of an id's log commits nothing (hazard 3)."""
    own = VirtualClock(clock.time_ms, seed=5)
    sleeper = attach(store.storage, clock=own).producer(transactional_id="p")
    sleeper.init_transactions()
    sleeper.begin_transaction()
    sleeper.send("t", b"late")
    sleeper.flush()
    for _ in range(100):
        clock.time_ms += CLEANUP_AGE_MS + 1
        store.producer(transactional_id="p").init_transactions()
    assert store.storage.list_names("transactions/p")[0] > "00000000000000000005"
    stall(own, clock.time_ms, clocks)
    with pytest.raises(ProducerFenced):
        sleeper.commit_transaction()
    assert values(another(store)) == []


def test_a_decision_put_into_a_name_that_a_living_producer_freed_commits_nothing(
    store: Store, clock: VirtualClock
) -> None:
    """Hazard 3 where nobody is initialised anew: the entries before the sleeper's are gone too."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    log = store.logs.transactions
    since = log.now()
    with producer.transaction():
        producer.send("t", b"1")
    stale = log.describe("p")
    for turn in range(100):
        clock.time_ms += CLEANUP_AGE_MS // 8
        with producer.transaction():
            producer.send("t", b"%d" % turn)
    assert store.storage.list_names("transactions/p")[0] > f"{stale.number + 1:020d}"
    late = transitions.participate(
        stale.state, topics=["t"], groups=(), now_ms=clock.now_ms(), nonce=clock.token()
    )
    for number in (stale.number, stale.number + 1):
        assert not log.put(number, late, since)
    assert log.describe("p").number > 200
    assert len(values(another(store))) == 101


def test_checkpoints_stand_in_for_deleted_entries(store: Store, clock: VirtualClock) -> None:
    """Old entries go only behind a checkpoint that is old enough; nothing is lost with them."""
    for turn in range(70):
        append(store, b"%d" % turn)
    files = store.storage.list_names("topics/t/log")
    assert sum(name.endswith(".json") for name in files) == 71
    assert sum(name.endswith(".checkpoint") for name in files) == 2
    clock.time_ms += CLEANUP_AGE_MS + 1
    for turn in range(70, 140):
        append(store, b"%d" % turn)
    files = store.storage.list_names("topics/t/log")
    assert sum(name.endswith(".json") for name in files) < 100
    expected = [b"%d" % turn for turn in range(140)]
    assert values(another(store)) == expected
    assert values(store) == expected


def test_a_reader_that_is_overtaken_by_cleaning_goes_on(store: Store, clock: VirtualClock) -> None:
    """A reader that has seen only deleted entries reloads from the newest checkpoint."""
    append(store, b"0")
    slow = another(store)
    assert values(slow) == [b"0"]
    for turn in range(1, 5):
        append(store, b"%d" % turn)
        clock.time_ms += CLEANUP_AGE_MS + 1
        checkpoint(store)
    assert values(slow) == [b"%d" % turn for turn in range(5)]


def test_a_damaged_checkpoint_is_passed_over(store: Store, clock: VirtualClock) -> None:
    """A checkpoint only saves reading: an older one or the entries do instead."""
    for turn in range(40):
        append(store, b"%d" % turn)
    name = next(n for n in store.storage.list_names("topics/t/log") if n.endswith(".checkpoint"))
    path = f"topics/t/log/{name}"
    damaged = bytearray(store.storage.get(path))
    damaged[100] ^= 1
    store.storage.delete([path])
    store.storage.put(path, bytes(damaged))
    assert len(values(another(store))) == 40


@pytest.mark.parametrize("position", [0, 3, 12, 25, 40, 90, -2])
def test_a_damaged_entry_is_reported_with_its_path(
    store: Store, clock: VirtualClock, position: int
) -> None:
    """One flipped bit anywhere in an entry: damage is reported, never wrong data."""
    append(store, b"x")
    path = "topics/t/log/00000000000000000001.json"
    damaged = bytearray(store.storage.get(path))
    damaged[position] ^= 1
    store.storage.delete([path])
    store.storage.put(path, bytes(damaged))
    with pytest.raises(CorruptEntry, match=path):
        values(another(store))


def test_a_missing_entry_is_reported(store: Store, clock: VirtualClock) -> None:
    """A hole in a log without a checkpoint behind it is damage, not the end."""
    for turn in range(3):
        append(store, b"%d" % turn)
    store.storage.delete(["topics/t/log/00000000000000000002.json"])
    with pytest.raises(CorruptEntry, match=r"0{19}2\.json is missing"):
        values(another(store))


@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_indexes_are_only_accelerators(store: Store, clock: VirtualClock, damage: str) -> None:
    """Goal (42): without indexes, or with damaged ones, every offset and time is found."""
    rows = [b"%0200d" % number for number in range(30_000)]
    with store.producer() as producer:
        times = pa.array(range(1000, 31_000), pa.int64())
        producer.send_batch("t", pa.record_batch({"value": rows, "timestamp": times}))
    indexes = [n for n, _ in store.storage.list_all("topics/t/data") if n.endswith("index")]
    assert len(indexes) == 2
    for name in indexes:
        content = bytearray(store.storage.get(name))
        store.storage.delete([name])
        if damage == "truncate":
            store.storage.put(name, bytes(content[:-5]))
        elif damage == "flip":
            content[3] ^= 0x40
            store.storage.put(name, bytes(content))
    for offset in (0, 1, 12_345, 29_999):
        table = store.scan("t", {0: offset}, {0: offset + 1}).to_arrow()
        assert table.column("value").to_pylist() == [rows[offset]]
        found = store.consumer("t").offsets_for_times({T0: 1000 + offset})[T0]
        assert found is not None
        assert found.offset == offset


def test_two_markers_of_one_entry_are_damage(store: Store, clock: VirtualClock) -> None:
    """Invariant L3: an entry that is both committed and aborted is reported, not chosen for."""
    append(store, b"x")
    for outcome in ("commit", "abort"):
        store.storage.put(f"topics/t/log/00000000000000000001.{outcome}", b"{}")
    with pytest.raises(CorruptEntry, match="both a commit and an abort marker"):
        values(another(store))


def test_a_producer_that_idles_before_a_completion_does_not_believe_in_a_reused_name(
    store: Store, clock: VirtualClock
) -> None:
    """Its commit was decided, an outage kept it from being completed, then others cleaned up."""
    storage = FaultyStorage(store.storage)
    producer = attach(storage, clock=clock).producer(transactional_id="p")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"1")
    producer.flush()
    begun = len(storage.requests)
    storage.faults = dict.fromkeys(range(begun + 1, begun + 60), Fault.FAIL)
    producer.commit_transaction()
    storage.faults = {}
    assert store.describe_transaction("p").status == "PrepareCommit"
    for _ in range(100):
        clock.time_ms += CLEANUP_AGE_MS + 1
        another(store).producer(transactional_id="p").init_transactions()
    producer.begin_transaction()
    producer.send("t", b"zombie")
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    found = another(store).scan("t").to_arrow()
    assert found.column("value").to_pylist() == [b"1"]
