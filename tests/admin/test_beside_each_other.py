"""Processes that maintain a topic at the same time, where old files do not stay for readers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.steps import another
from txnlog import TopicPartition
from txnlog.errors import CorruptRecord
from txnlog.log.topic_log import TopicLog
from txnlog.log.uploads import read_notes
from txnlog.results import MaintenanceFailure, Merge, PurgeReport
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

DAY_MS = 86_400_000
PARTITIONS = 2
ROUNDS = 4


def new_store(
    record_format: str, policy: str, *, shares_files: bool = True
) -> tuple[Store, VirtualClock]:
    """Small segments in each partition, each of one of three keys."""
    clock = VirtualClock(1_700_000_000_000)
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    settings = {
        "cleanup.policy": policy,
        "record.format": record_format,
        "file.delete.delay.ms": 0,
        "min.cleanable.dirty.ratio": 0,
    }
    store.topics.create("t", partitions=PARTITIONS, config=settings)
    with store.producer() as producer:
        for number in range(ROUNDS):
            for partition in range(PARTITIONS):
                producer.send("t", str(number), key=f"k{number % 3}", partition=partition)
                if not shares_files:
                    producer.flush()
            producer.flush()
    return store, clock


def keys(store: Store) -> set[tuple[int, bytes]]:
    found = another(store).scan("t", columns=["partition", "key"]).to_arrow().to_pylist()
    return {(row["partition"], row["key"]) for row in found}


def maintain(store: Store) -> None:
    failures = [one for one in store.maintain() if isinstance(one, MaintenanceFailure)]
    assert failures == []


def purge(store: Store, *, dry_run: bool = False) -> PurgeReport:
    return store.maintenance.purge("t", [{"key": "k1"}], dry_run=dry_run)


def trim(store: Store, partition: int) -> None:
    """Delete a partition's records, and their files."""
    store.topics.delete_records({TopicPartition("t", partition): ROUNDS})
    maintain(store)


def purge_files(store: Store) -> None:
    """Purge, and delete the old files."""
    purge(store)
    maintain(store)


Step = Callable[[Store], object]

DOES: dict[str, Step] = {
    "maintain": maintain,
    "merge": lambda store: store.maintenance.merge("t"),
    "compact": lambda store: store.maintenance.compact("t"),
    "purge": purge,
    "count what to purge": lambda store: purge(store, dry_run=True),
}
MEANWHILE: dict[str, Step] = {
    "maintain": maintain,
    "trim the first": lambda store: trim(store, 0),
    "trim the last": lambda store: trim(store, PARTITIONS - 1),
    "purge": purge_files,
}


UNDER = {"delete": [does for does in DOES if does != "compact"], "compact": [*DOES]}


@pytest.mark.few(3)
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize(
    ("does", "policy"), [(does, policy) for policy, verbs in UNDER.items() for does in verbs]
)
def test_what_others_have_rewritten_or_trimmed_is_no_failure(
    does: str, policy: str, meanwhile: str
) -> None:
    """Whichever read finds that the files are gone, the process goes on without them."""
    reads = 0
    while True:
        store, clock = new_store("kafka" if policy == "delete" else "auto", policy)
        before = keys(store)
        seen = 0

        def overtake(request: str, store: Store = store, last: int = reads) -> None:
            nonlocal seen
            if request.startswith("get") and "/data/" in request:
                seen += 1
                if seen == last + 1:
                    MEANWHILE[meanwhile](another(store))

        DOES[does](attach(FaultyStorage(store.storage, before_request=overtake), clock=clock))
        if seen <= reads:
            break
        reads += 1
        gone = {"trim the first": 0, "trim the last": PARTITIONS - 1}.get(meanwhile)
        is_purged = does == "purge" or meanwhile == "purge"
        assert keys(store) == {
            (partition, key)
            for partition, key in before
            if partition != gone and not (is_purged and key == b"k1")
        }
    assert reads


@pytest.mark.parametrize("does", ["merge", "compact"])
@pytest.mark.parametrize("trimmed", range(PARTITIONS))
def test_a_partition_that_was_trimmed_keeps_no_other_from_being_rewritten(
    does: str, trimmed: int
) -> None:
    store, clock = new_store("kafka", "compact", shares_files=False)
    files = [path for path, _ in store.storage.list_all(f"topics/t/data/{trimmed}")]

    def overtake(request: str) -> None:
        if request.startswith("get") and any(file in request for file in files):
            store.topics.delete_records({TopicPartition("t", trimmed): ROUNDS})
            store.storage.delete(files)

    racing = attach(FaultyStorage(store.storage, before_request=overtake), clock=clock)
    DOES[does](racing)
    parts = another(store).logs.fresh_topic("t").state.partitions
    assert [number for number, part in enumerate(parts) if part.rewrites] == [1 - trimmed]


def test_a_file_that_is_lost_is_a_failure_still() -> None:
    store, _ = new_store("kafka", "delete", shares_files=False)
    path, _ = next(iter(store.storage.list_all("topics/t/data/0")))
    store.storage.delete([path])
    steps = store.maintain()
    (failure,) = [one for one in steps if isinstance(one, MaintenanceFailure)]
    assert isinstance(failure.error, CorruptRecord)
    assert {one.partition for one in steps if isinstance(one, Merge)} == {1}
    (damaged,) = purge(store).damaged
    assert "restore it from a backup" in damaged.reason


@pytest.mark.parametrize("what", ["delete_records", "delete"])
def test_a_writer_that_is_faster_costs_no_second_look_at_all_segments(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """That takes longer than it waits between two entries, and the race would be lost for ever.

    What it has placed meanwhile is deleted with the topic; and stays, if old records are deleted.
    """
    store, _ = new_store("kafka", "delete", shares_files=False)
    looks: list[str] = []

    def watch(method: str) -> None:
        real = getattr(TopicLog, method)

        def look(*args: object) -> object:
            looks.append(method)
            return real(*args)

        monkeypatch.setattr(TopicLog, method, look)

    watch("placed")
    watch("whole_segments")
    faster = iter(range(3))

    def append(request: str) -> None:
        if request.startswith("put_if_absent topics/t/log/") and next(faster, None) is not None:
            with another(store).producer() as producer:
                producer.send("t", "new", key="new", partition=0)

    slow = attach(FaultyStorage(store.storage, before_request=append), clock=store.logs.clock)
    if what == "delete":
        slow.topics.delete("t")
        assert [*store.storage.list_all("topics/t/data")] == []
    else:
        slow.topics.delete_records({TopicPartition("t", 0): ROUNDS})
        assert keys(store) == {(0, b"new"), *((1, f"k{n}".encode()) for n in range(3))}
    assert next(faster, None) is None
    assert len(looks) == 1


def test_records_deleted_meanwhile_are_looked_at_again() -> None:
    """A trim that has lost a race to another one, or to a rewrite, names what it lets go itself."""
    store, _ = new_store("kafka", "delete", shares_files=False)
    faster = iter([2])

    def trim_less(request: str) -> None:
        if request.startswith("put_if_absent topics/t/log/"):
            for offset in faster:
                another(store).topics.delete_records({TopicPartition("t", 0): offset})

    slow = attach(FaultyStorage(store.storage, before_request=trim_less), clock=store.logs.clock)
    slow.topics.delete_records({TopicPartition("t", 0): ROUNDS})
    notes = read_notes(store.storage, "t")
    assert sorted(len(note.retired.segments) for note in notes if note.retired) == [2, 2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"retention.ms": 1000}, {"retention.ms": -1}),
        ({"retention.bytes": 1}, {"retention.bytes": -1}),
        ({"retention.ms": 1000}, {"cleanup.policy": "compact"}),
    ],
    ids=["a time", "a size", "a policy"],
)
def test_retention_that_loses_to_an_alter_keeps_what_that_keeps(
    before: dict[str, object], after: dict[str, object]
) -> None:
    """``alter`` has returned: no record is deleted by the settings that it has replaced."""
    store = attach(HeapStorage(), create=True, clock=(clock := VirtualClock(seed=1)))
    store.topics.create("t", config=before)
    for value in range(5):
        with store.producer() as producer:
            producer.send("t", b"%d" % value, key=b"%d" % value)
    clock.time_ms += 3_600_000
    faster = iter([after])

    def alter(request: str) -> None:
        if request.startswith("put_if_absent topics/t/log/"):
            for config in faster:
                another(store).topics.alter("t", config=config)

    slow = attach(FaultyStorage(store.storage, before_request=alter), clock=clock)
    assert not [one for one in slow.maintain() if isinstance(one, MaintenanceFailure)]
    assert next(faster, None) is None
    assert store.scan("t").record_count == 5
