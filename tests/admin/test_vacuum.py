"""Vacuum: what is deleted, when, and what never is."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from tests.support.steps import (
    another,
    append,
    begin,
    maintain,
    new_store,
    reasons,
    send,
    upload,
    values,
)
from txnlog import TopicPartition
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    NotEnoughReplicas,
    OffsetOutOfRange,
    StorageError,
)
from txnlog.metric import Metric
from txnlog.results import FileDeletion, FileRetirement, MaintenanceFailure
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

T0 = TopicPartition("t", 0)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS


pytestmark = [pytest.mark.store(on="heap"), pytest.mark.rule("V1", "V2")]


def data_files(heap: HeapStorage) -> list[str]:
    """What lies in topics, but for their logs."""
    return [path for path, _ in heap.list_all("topics") if path.split("/")[2] != "log"]


def put_orphan(storage: Storage, name: str = "w-0", topic: str = "t") -> list[str]:
    paths = [f"topics/{topic}/data/0/{name}.{ending}" for ending in ("index", "log", "timeindex")]
    for path in paths:
        storage.put(path, b"orphan")
    return paths


def test_files_of_deleted_records_wait_for_the_delay(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """From the deletion on, by the storage's clock, however old the files are; then they go."""
    for value in (b"a", b"b", b"c"):
        append(store, value)
    before = data_files(heap)
    clock.time_ms += 10 * WEEK_MS
    store.topics.delete_records({T0: 2})
    pinned = store.scan("t")
    clock.time_ms += WEEK_MS - 1
    assert maintain(store) == []
    assert set(before) < {*data_files(heap)}
    clock.time_ms += 1
    (done,) = maintain(store)
    assert isinstance(done, FileDeletion)
    assert (done.topic, done.reason, len(done.paths)) == ("t", "deleted records", 2)
    assert done.size_bytes > 0
    assert data_files(heap) == sorted(set(before) - set(done.paths))
    assert pinned.to_arrow()["value"].to_pylist() == [b"c"]
    assert maintain(store) == []


def test_the_delay_is_the_topics_own(store: Store, heap: HeapStorage, clock: VirtualClock) -> None:
    """With 0 they go at once."""
    store.topics.alter("t", config={"file.delete.delay.ms": 0, "retention.ms": 1000})
    append(store, b"a")
    clock.time_ms += 2000
    steps = maintain(store)
    assert [type(step).__name__ for step in steps] == ["RetentionDeletion", "FileDeletion"]
    assert data_files(heap) == []


def test_a_deletion_that_nobody_noted_is_found_by_age(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """The process was killed behind the entry: the delay counts from when it is found."""
    append(store, b"a")
    clock.time_ms += 10 * WEEK_MS
    store.topics.delete_records({T0: 1})
    heap.delete([path for path in data_files(heap) if "/retired/" in path])
    (found,) = maintain(store)
    assert isinstance(found, FileRetirement)
    assert (len(found.paths), found.delete_after_ms) == (1, WEEK_MS)
    clock.time_ms += WEEK_MS - 1
    assert maintain(store) == []
    clock.time_ms += 1
    assert reasons(maintain(store)) == ["never placed"]
    assert data_files(heap) == []


def test_what_was_never_placed_goes_by_its_age(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """With its indexes; at once where no records were ever deleted. What is younger may come."""
    append(store, b"a")
    kept = data_files(heap)
    orphans = put_orphan(heap)
    clock.time_ms += WEEK_MS - 1
    young = put_orphan(heap, "w-1")
    assert maintain(store) == []
    clock.time_ms += 1
    (done,) = maintain(store)
    assert isinstance(done, FileDeletion)
    assert (done.reason, done.paths, done.size_bytes) == ("never placed", tuple(orphans), 18)
    assert data_files(heap) == sorted([*kept, *young])


def test_what_is_placed_before_its_note_is_put_stays(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Its writer has found no note, before its entry nor after it: so the log is read again."""
    late = upload(store, b"late")
    clock.time_ms += WEEK_MS
    placed: list[str] = []

    def place(text: str) -> None:
        if "/retired/" in text and text.startswith("put") and not placed:
            placed.append(text)
            another(store).logs.topic("t").place(late)

    maintainer = another(store, FaultyStorage(heap, before_request=place))
    assert maintainer.maintain() == []
    assert placed
    assert values(another(store)) == [b"late"]
    clock.time_ms += WEEK_MS
    assert maintain(store) == []
    assert values(another(store)) == [b"late"]


def test_a_note_that_is_younger_than_the_listing_stays(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Its files may be there though the listing lacks them: notes are read first."""
    looks: list[str] = []

    def delete_meanwhile(text: str) -> None:
        if "topics/t/retired" in text or "topics/t/data" in text:
            looks.append(text)
            if len(looks) == 2:
                append(store, b"a")
                store.topics.delete_records({T0: 1})

    another(store, FaultyStorage(heap, before_request=delete_meanwhile)).maintain()
    assert len(looks) >= 2
    clock.time_ms += WEEK_MS
    assert reasons(maintain(store)) == ["deleted records"]
    assert data_files(heap) == []


def test_an_index_without_its_segment_goes_too(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """A deletion had stopped half way. A segment stays until all of its files are old."""
    heap.put("topics/t/data/0/w-0.index", b"")
    heap.put("topics/t/data/0/w-1.log", b"x")
    heap.put("topics/t/data/0/README.txt", b"not ours")
    clock.time_ms += WEEK_MS - 1
    heap.put("topics/t/data/0/w-1.index", b"")
    clock.time_ms += 1
    (done,) = maintain(store)
    assert isinstance(done, FileDeletion)
    assert done.paths == ("topics/t/data/0/w-0.index",)


def test_a_deleted_topic_leaves_nothing_but_its_log(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Also of records that were deleted before; at once, since its readers have failed already."""
    append(store, b"a")
    append(store, b"b")
    store.topics.delete_records({T0: 1})
    store.topics.delete("t")
    assert len(data_files(heap)) == 2
    assert reasons(maintain(store)) == ["deleted topic"]
    assert data_files(heap) == []
    assert heap.list_names("topics/t/log") != []
    put_orphan(heap)
    assert maintain(store) == []
    clock.time_ms += WEEK_MS
    assert reasons(maintain(store, "t")) == ["deleted topic"]
    assert data_files(heap) == []


def test_what_an_earlier_topic_of_the_name_has_left(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """It goes; what the new topic has stays, with what is on its way."""
    append(store, b"old")
    append(store, b"older")
    store.topics.delete_records({T0: 1})
    store.topics.delete("t")
    put_orphan(heap)
    store.topics.create("t")
    append(store, b"new")
    assert reasons(maintain(store)) == ["deleted topic"]
    clock.time_ms += WEEK_MS
    late = upload(store, b"late")
    assert reasons(maintain(store)) == ["never placed"]
    store.logs.topic("t").place(late)
    assert another(store).scan("t").to_arrow()["value"].to_pylist() == [b"new", b"late"]


def test_without_a_log_nothing_is_deleted(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """It may be lost, and what is left be all there is. That is told once the files are old.

    Before, an import may be on its way. One that makes the topic gives them the delay once more.
    """
    orphans = put_orphan(heap, topic="lost")
    clock.time_ms += WEEK_MS - 1
    assert maintain(store) == []
    clock.time_ms += 1
    (failure,) = store.maintain()
    assert isinstance(failure, MaintenanceFailure)
    assert (failure.part, failure.topic) == ("vacuum", "lost")
    assert "topics/lost/log has no entry" in str(failure.error)
    clock.time_ms += 10 * WEEK_MS
    store.topics.create("lost", config={"file.delete.delay.ms": 0})
    for _ in range(2):
        assert maintain(store) == []
        clock.time_ms += WEEK_MS // 2
        assert data_files(heap) == orphans
    assert reasons(maintain(store)) == ["never placed"]


def test_a_lost_log_is_told_by_the_manifests_beside_it(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """By everything that reads the topic; none is made in its place, which would end its data."""
    with store.producer() as producer:
        for _ in range(600):
            producer.send("t", b"x")
            producer.flush()
    heap.delete([path for path, _ in heap.list_all("topics/t/log")])
    before = data_files(heap)
    assert any("/manifests/" in path for path in before)
    with pytest.raises(CorruptEntry, match=r"topics/t/log has no entry.*the log is lost"):
        another(store).topics.create("t")
    with pytest.raises(CorruptEntry, match="the log is lost"):
        append(another(store), b"y")
    assert another(store).topics.list() == ["t"]
    clock.time_ms += 10 * WEEK_MS
    failed = another(store).maintain()
    assert {step.topic for step in failed if isinstance(step, MaintenanceFailure)} == {"t"}
    unreadable = {
        step.labels.get("kind"): step.value
        for step in another(store).metrics().with_errors()
        if isinstance(step, Metric) and step.name == "txnlog_unreadable"
    }
    assert unreadable["topic"] == 1
    assert data_files(heap) == before
    for left, told in ((1, "the log is lost"), (99, "it is away")):
        failures = left

        def fail(request: str) -> None:
            nonlocal failures
            if "topics/t/manifests" in request and failures:
                failures -= 1
                raise StorageError("it is away")

        with pytest.raises((CorruptEntry, StorageError), match=told):
            another(store, FaultyStorage(heap, before_request=fail)).topics.create("t")


def test_aborted_and_undecided_records_are_referred_to(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """read_uncommitted shows them."""
    aborted = begin(store, "aborted")
    send(aborted, b"aborted")
    aborted.abort_transaction()
    send(begin(store, "open", timeout_ms=900_000), b"undecided")
    before = data_files(heap)
    clock.time_ms += 10 * WEEK_MS
    for _ in range(3):
        assert reasons(maintain(store)) == []
        clock.time_ms += WEEK_MS
    assert data_files(heap) == before
    assert another(store).scan("t", isolation_level="read_uncommitted").to_arrow().num_rows == 2


def test_where_the_storage_tells_no_time_only_what_is_proven_goes(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Files of a deleted topic, of which it was noted that they were its own."""
    heap.time_ms = None
    append(store, b"a")
    put_orphan(heap)
    heap.put("staging/t-000000.json", b"{}")
    store.topics.delete_records({T0: 1})
    before = data_files(heap)
    clock.time_ms += 100 * WEEK_MS
    assert maintain(store) == []
    assert data_files(heap) == before
    store.topics.delete("t")
    assert reasons(maintain(store)) == ["deleted topic"]


def test_a_clock_that_runs_ahead_deletes_nothing(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Neither records nor files: the storage's clock is behind, and it counts."""
    store.topics.alter("t", config={"retention.ms": DAY_MS})
    append(store, b"a")
    append(store, b"b")
    store.topics.delete_records({T0: 1})
    put_orphan(heap)
    before = data_files(heap)
    ahead = VirtualClock(clock.time_ms + 52 * WEEK_MS, seed=7)
    assert attach(heap, clock=ahead).maintain() == []
    assert data_files(heap) == before


def test_what_jobs_and_processes_have_left(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Manifests and notes of Spark, temporary files, what a probe has left: when they are old."""
    token = "0123456789abcdef" * 2
    left = [f".probe/{token}/twice", f".tmp/{token}", "staging/t-000000.json"]
    foreign = [".probe/x", ".tmp/keep.txt", "staging/a-2026.json", "staging/sub/t-000000.json"]
    for path in (*left, *foreign):
        heap.put(path, b"x")
    clock.time_ms += WEEK_MS - 1
    heap.put("staging/t-000001.json", b"x")
    assert maintain(store) == []
    clock.time_ms += 1
    assert maintain(store, "t") == []
    (done,) = maintain(store)
    assert isinstance(done, FileDeletion)
    assert (done.topic, done.reason, sorted(done.paths)) == (None, "left behind", left)
    heap.delete(["staging/t-000001.json"])
    found = [path for at in (".probe", ".tmp", "staging") for path, _ in heap.list_all(at)]
    assert found == foreign  # somebody else's, by their names


def test_a_dry_run_tells_the_same_and_changes_nothing(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Retention, files that go, files that are found, what was left behind, ids and groups."""
    build_everything(store, heap, clock)
    before = sorted(heap.list_all(""))
    told = maintain(store, dry_run=True)
    assert sorted(heap.list_all("")) == before
    assert maintain(store) == told
    assert {type(step).__name__ for step in told} == {
        *("RetentionDeletion", "FileDeletion", "FileRetirement", "Expiry")
    }
    assert sorted(heap.list_all("")) != before


def build_everything(store: Store, heap: HeapStorage, clock: VirtualClock) -> None:
    """Something to do for each part: topics ``t``, ``gone``, ``old``; an id and a group."""
    for topic in ("gone", "old"):
        store.topics.create(topic)
        append(store, b"x", b"y", topic=topic)
    append(store, b"1")
    append(store, b"2")
    with store.producer(transactional_id="idle") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"3")
            producer.send_offsets_to_transaction({T0: 1}, "readers")
    store.topics.delete_records({T0: 1, TopicPartition("gone", 0): 2})
    store.topics.delete("gone")
    store.topics.alter("old", config={"retention.ms": 1})
    put_orphan(heap)
    heap.put("staging/t-000000.json", b"x")
    clock.time_ms += 2 * WEEK_MS


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "fault",
    [
        *(Fault.STOP_AFTER, Fault.PARTIAL),
        *(
            pytest.param(fault, marks=pytest.mark.more)
            for fault in (Fault.FAIL, Fault.LOSE_RESPONSE, Fault.LAND_LATE)
        ),
        pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow),
    ],
)
def test_a_fault_at_each_request(fault: Fault) -> None:
    """Whatever maintain was about to do, nothing is lost, and a later one finishes."""
    prepared, building = HeapStorage(), VirtualClock()
    prepared.time_ms = lambda: building.time_ms
    store = new_store(prepared, building, config={"offsets.retention.ms": 1000})
    build_everything(store, prepared, building)
    number = 0
    while True:
        clock = VirtualClock(building.time_ms, seed=1)
        storage = prepared.copy()
        storage.time_ms = lambda clock=clock: clock.time_ms
        store = attach(storage, clock=clock)
        faulty = FaultyStorage(storage, {number: fault})
        with suppress(StorageError, ProcessStopped):
            attach(faulty, clock=clock).maintain()
        values = another(store).scan("t").to_arrow()["value"].to_pylist()
        assert values == [b"2", b"3"], number
        faulty.land()
        clock.time_ms += 2 * WEEK_MS
        for _ in range(2):
            maintain(store)
            clock.time_ms += WEEK_MS
        assert maintain(store) == [], number
        assert another(store).scan("t").to_arrow()["value"].to_pylist() == values
        assert len(data_files(storage)) == 2, number
        assert not [*storage.list_all("staging"), *storage.list_all("topics/old/data")]
        assert another(store).groups.list() == []
        if number >= len(faulty.requests):
            assert number > 40
            break
        number += 1


def test_pinned_readers_read_until_the_delay_is_over(store: Store, clock: VirtualClock) -> None:
    """Then they are told what has become of the records."""
    append(store, b"a")
    append(store, b"b")
    pinned = store.scan("t")
    store.topics.delete_records({T0: 1})
    maintain(store)
    clock.time_ms += WEEK_MS - 1
    maintain(store)
    assert pinned.to_arrow()["value"].to_pylist() == [b"a", b"b"]
    clock.time_ms += 1
    maintain(store)
    with pytest.raises(OffsetOutOfRange, match=r"deleted since this read was planned"):
        pinned.to_arrow()


def test_an_import_into_a_deleted_topic_is_on_its_way(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Its files come before its topic does: vacuum must not take them for the old topic's."""
    append(store, b"a")
    store.topics.delete("t")
    put_orphan(heap)
    clock.time_ms += WEEK_MS - 1
    assert maintain(store) == []
    assert len(data_files(heap)) == 3


class OneStays(ForwardingStorage):
    """One object cannot be deleted; as everywhere the others are, before that is told."""

    stuck = ""

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        self.inner.delete([name for name in doomed if name != self.stuck])
        if self.stuck in doomed:
            error = StorageError(f"deleting {self.stuck} failed: Permission denied")
            error.retriable = False
            raise error


def test_one_file_that_cannot_be_deleted_keeps_nothing_behind_it(
    store: Store, heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in its own batch nor in the next, nor what comes after segments, run after run.

    What can still be opened keeps its transaction index.
    """
    monkeypatch.setattr("txnlog.admin.vacuum._PER_DELETION", 2)
    store.topics.alter("t", config={"record.format": "kafka", "file.delete.delay.ms": 0})
    for value in (b"a", b"b", b"c", b"d", b"e"):
        append(store, value)
    segments = [path for path in data_files(heap) if path.endswith(".log")]
    for path in segments:
        heap.put(path.replace(".log", ".txnindex"), b"")
    heap.put("topics/t/proposals/left", b"{}")
    clock.time_ms += 2 * WEEK_MS
    store.topics.delete_records({T0: 5})
    stuck = OneStays(heap)
    stuck.stuck = segments[1]
    for _ in range(2):
        failure = another(store, stuck).maintain("t")[-1]
        assert isinstance(failure, MaintenanceFailure)
        assert "Permission denied" in str(failure.error)
    left = [path for path in data_files(heap) if "/retired/" not in path]
    assert left == [segments[1], segments[1].replace(".log", ".txnindex")]
    stuck.stuck = ""
    assert reasons(another(store, stuck).maintain()) == ["deleted records"]
    assert data_files(heap) == []


@pytest.mark.parametrize("kind", [StorageError, NotEnoughReplicas])
def test_a_storage_that_is_away_is_not_asked_for_every_batch(
    store: Store,
    heap: HeapStorage,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[StorageError],
) -> None:
    """Each of them may take minutes."""
    monkeypatch.setattr("txnlog.admin.vacuum._PER_DELETION", 1)
    store.topics.alter("t", config={"file.delete.delay.ms": 0})
    for value in (b"a", b"b", b"c"):
        append(store, value)
    store.topics.delete_records({T0: 3})
    asked = 0

    class Away(ForwardingStorage):
        def delete(self, names: Iterable[str]) -> None:
            nonlocal asked
            doomed = [*names]
            if any(name.startswith("topics/t/data") for name in doomed):
                asked += 1
                raise kind("it is away")
            self.inner.delete(doomed)

    clock.time_ms += 2 * WEEK_MS
    failure = another(store, Away(heap)).maintain("t")[-1]
    assert isinstance(failure, MaintenanceFailure)
    assert asked == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_deletes_what_is_due(
    store: Store, heap: HeapStorage, clock: VirtualClock, number: int
) -> None:
    """Though nothing can be put: neither an object for the time, nor a note of something else."""
    append(store, b"a")
    append(store, b"b")
    store.topics.delete_records({T0: 1})
    orphans = put_orphan(heap)
    clock.time_ms += WEEK_MS
    append(store, b"c")
    clock.time_ms += 10 * WEEK_MS

    def refuse(request: str) -> None:
        if request.startswith("put"):
            error = StorageError("no space left")
            error.__cause__ = OSError(number, "no space left")
            raise error

    full = another(store, FaultyStorage(heap, before_request=refuse))
    steps = full.maintain()
    assert ("vacuum", "t") in [
        (s.part, s.topic) for s in steps if isinstance(s, MaintenanceFailure)
    ]
    assert len([path for path in data_files(heap) if path.endswith(".log")]) == 3, "one is gone"
    assert {*orphans} < {*data_files(heap)}
    assert values(store) == [b"b", b"c"]


def test_a_file_from_the_future_makes_nothing_old_on_a_full_disk(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """A clock ran ahead for a while, or a copy kept its times."""
    clock.time_ms += 10 * WEEK_MS
    append(store, b"a")
    clock.time_ms -= 10 * WEEK_MS
    heap.put(f".tmp/{0:032x}", b"x")

    def refuse(request: str) -> None:
        if request.startswith("put"):
            error = StorageError("no space left")
            error.__cause__ = OSError(errno.ENOSPC, "no space left")
            raise error

    another(store, FaultyStorage(heap, before_request=refuse)).maintain()
    assert heap.get(f".tmp/{0:032x}") == b"x"


@pytest.mark.parametrize("age_ms", [0, DAY_MS - 1, 1.5, True])
def test_an_orphan_age_below_a_day_is_refused(store: Store, age_ms: int) -> None:
    with pytest.raises(InvalidOption, match="orphan age"):
        store.maintain(orphan_age_ms=age_ms)


def test_one_topic_that_fails_stops_no_other(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Nor ids nor groups; what cannot be read loses nothing."""
    build_everything(store, heap, clock)
    entry = next(path for path, _ in heap.list_all("topics/old/log"))
    data = heap.get(entry)
    heap.delete([entry])
    heap.put(entry, data[:-9] + b"somewhat}")
    steps = another(store).maintain()
    failed = [(step.part, step.topic) for step in steps if isinstance(step, MaintenanceFailure)]
    parts = ("retention", "compaction", "merging", "publishing", "vacuum")
    assert failed == [(part, "old") for part in parts]
    assert {*reasons(steps)} == {"deleted topic", "deleted records", "left behind"}
    assert [path for path, _ in heap.list_all("topics/old/data")] != []


def test_a_damaged_note_says_nothing(store: Store, heap: HeapStorage, clock: VirtualClock) -> None:
    """It is deleted; what it named is found by its age."""
    append(store, b"a")
    store.topics.delete_records({T0: 1})
    (note,) = [path for path in data_files(heap) if "/retired/" in path]
    heap.delete([note])
    heap.put(note, b"{}")
    clock.time_ms += WEEK_MS
    assert [type(step).__name__ for step in maintain(store)] == ["FileRetirement"]
    clock.time_ms += WEEK_MS
    maintain(store)
    assert data_files(heap) == []


@pytest.mark.few(1)
def test_on_every_storage(any_storage: Storage) -> None:
    """With its own clock, or without one."""
    store = attach(any_storage, create=True)
    store.topics.create("t", config={"file.delete.delay.ms": 0})
    append(store, b"a")
    append(store, b"b")
    store.topics.delete_records({T0: 1})
    put_orphan(any_storage)
    assert reasons(maintain(store)) == ["deleted records"]
    files = [path for path, _ in any_storage.list_all("topics/t") if "/log/" not in path]
    assert len(files) == 4
    assert [path for path, _ in any_storage.list_all(".probe")] == []
    assert values(another(store)) == [b"b"]


class _Deleting(ForwardingStorage):
    """Takes note of which files each request deletes, and of what is put."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.requests: list[list[str]] = []

    def delete(self, names: Iterable[str]) -> None:
        self.requests.append(sorted(names))
        self.inner.delete(self.requests[-1])

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.requests.append([name])
        return self.inner.put_if_absent(name, data)


def test_a_segment_that_can_be_opened_can_be_read(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Accelerators go first, then the segment, then what tells its aborted records; notes last."""
    for ending in ("index", "log", "timeindex", "txnindex"):
        heap.put(f"topics/t/data/0/w-0.{ending}", b"x")
    clock.time_ms += WEEK_MS
    deleting = _Deleting(heap)
    attach(deleting, clock=clock).maintain("t")
    _, *notes, accelerators, segment, transactions, finished = deleting.requests
    assert [len(note) for note in notes] == [1, 1]
    assert accelerators == ["topics/t/data/0/w-0.index", "topics/t/data/0/w-0.timeindex"]
    assert segment == ["topics/t/data/0/w-0.log"]
    assert transactions == ["topics/t/data/0/w-0.txnindex"]
    assert finished == sorted(note for (note,) in notes)


def test_the_note_of_a_deletion_comes_behind_its_entry(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """Its time must not be before that of the deletion. Where no segment goes there is none."""
    append(store, b"a", b"b")
    append(store, b"c")
    deleting = _Deleting(heap)
    process = attach(deleting, clock=clock)
    process.topics.delete_records({T0: 1})
    assert len(deleting.requests) == 1
    process.topics.delete_records({T0: 2})
    folders = [paths[0].split("/")[2] for paths in deleting.requests]
    assert folders == ["log", "log", "retired"]


def test_many_segments_take_several_notes(
    store: Store, heap: HeapStorage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is done with when its own files are gone."""
    monkeypatch.setattr("txnlog.log.uploads._PER_NOTE", 2)
    for _ in range(5):
        append(store, b"x")
    store.topics.delete_records({T0: 5})
    assert len(data_files(heap)) == 5 + 3
    clock.time_ms += WEEK_MS
    maintain(store)
    assert data_files(heap) == []


TABLE_FILES = [
    f"0-w-0-0-5.{1:032x}.parquet",
    f"{'1' * 40}.list.avro",
    f"{'2' * 40}.plain.3.40.avro",
    f"{'3' * 40}.cut.3.40-{1:032x}.avro",
    f"{4:032x}.00000001.metadata.json",
]


def test_what_catalogs_put_goes_when_its_day_is_long_past(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """By its folder's name, a week after the day has ended; what has no day for a name stays."""
    today = clock.now_ms() // DAY_MS * DAY_MS
    day = datetime.fromtimestamp(today / 1000, UTC).date().isoformat()
    own = sorted(f"tables/{day}/t/{name}" for name in TABLE_FILES)
    foreign = [
        *(f"tables/{folder}/t/{TABLE_FILES[0]}" for folder in ("20000101", "2999-01-01", "own")),
        *(f"tables/{day}/{name}" for name in ("day.parquet", "t/a.avro", "t/b.parquet")),
    ]
    for path in (*own, *foreign):
        heap.put(path, b"1234")
    clock.time_ms = today + WEEK_MS + DAY_MS - 1
    assert "left behind" not in reasons(maintain(store))
    clock.time_ms += 1
    young = f"tables/{day}/t/{'0' * 40}.list.avro"  # by a clock that is behind
    heap.put(young, b"1234")
    (planned,) = store.maintain(dry_run=True)
    (done,) = maintain(store)
    assert done == planned
    assert done == FileDeletion(None, "left behind", 4 * len(own), tuple(own))
    assert [path for path, _ in heap.list_all("tables")] == sorted([*foreign, young])
