"""A process may live for months: what it remembers does not follow the names that have passed."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.log.settling import settle_early
from tests.support.runtime.held_sizes import held_sizes
from tests.support.steps import another, append
from txnlog.clock import Signal
from txnlog.consumer import Consumer
from txnlog.log import manifests, open_logs, recent, settlement, state_log
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.results import MaintenanceFailure
from txnlog.storage import open_storage
from txnlog.storage.adapters import held_folders
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write import record_buffers

TURNS = 8

CORRECTNESS = {
    "Coordinator._written": "partitions this epoch has written to: a later append is not the first",
    "PlainWriter._writers": "ids and sequences by topic: an append in doubt is repeated as it was",
    "IdempotentWriter.sequences": "the same, by partition",
}
"""What stays until the producer ends, since it tells a repeat, or a first write, from others."""


pytestmark = pytest.mark.store(on="heap")


class Passing:
    """A store in which topics, groups and transactional ids come and go, and three clients stay."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store, self.clock = store, clock
        store.topics.create("stays")
        self.transactional: Producer = store.producer(transactional_id="stays")
        self.transactional.init_transactions()
        self.plain: Producer = store.producer()
        self.consumer: Consumer = store.consumer(auto_offset_reset="earliest")

    def turn(self, number: int, seconds: int = 1200) -> None:
        """Names that are used once: written and read by those that stay and others, and gone."""
        name = f"passing-{number}"
        self.store.topics.create(name, partitions=2)
        with self.transactional.transaction():
            self.transactional.send(name, b"a")
            self.transactional.send("stays", b"b")
        self.plain.send(name, b"c")
        self.plain.flush()
        with self.store.producer(transactional_id=name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(name, b"d", partition=0)
            producer.flush()
            self.consumer.subscribe(["stays", name])
            assert self.consumer.poll(timeout_ms=0)  # which finds an open transaction
            producer.commit_transaction()
        with self.store.consumer(name, group_id=name, auto_offset_reset="earliest") as consumer:
            assert consumer.poll(timeout_ms=0)
            consumer.commit()
        assert self.store.snapshot([name, "stays"]).scan(name).to_arrow().num_rows == 3
        self.store.topics.delete(name)
        self.store.groups.delete(name)
        self.consumer.poll(timeout_ms=0)
        self.clock.time_ms += 1000 * seconds

    def sizes(self) -> Counter[str]:
        """The containers of all that stays."""
        return held_sizes(self.store, self.transactional, self.plain, self.consumer)


def handles() -> dict[str, int]:
    """What the process holds of the operating system's, but for its memory."""
    gc.collect()
    return {"threads": threading.active_count(), "descriptors": len([*Path("/dev/fd").iterdir()])}


@pytest.mark.parametrize("on_disk", [False, True], ids=["heap", "disk"])
def test_what_is_remembered_does_not_follow_the_names_that_have_passed(
    clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    """No container of any of the library's objects grows; found by walking through all of them.

    Nor do its threads and open files, give or take a few.
    """
    settle_early(monkeypatch)
    monkeypatch.setattr(recent, "KEPT", 3)
    monkeypatch.setattr(settlement, "_MOST_REMEMBERED", 3)
    monkeypatch.setattr(record_buffers, "_KEPT_TOPICS", 3)
    monkeypatch.setattr(held_folders, "_MOST_HELD", 3)
    storage = open_storage(str(tmp_path / "store")) if on_disk else HeapStorage()
    config = {"transaction.max.timeout.ms": 60_000, "log.cleanup.age.ms": 86_400_000}
    passing = Passing(attach(storage, create=True, clock=clock, config=config), clock)
    for number in range(TURNS):
        passing.turn(number)
    before, held = passing.sizes(), handles()
    for number in range(TURNS, 2 * TURNS):
        passing.turn(number)
    after = passing.sizes()
    assert {what: count for what, count in handles().items() if count - held[what] > 3} == {}
    assert sum(after.values()) > 100
    grown = {
        path: (before[path], size)
        for path, size in after.items()
        if size - before[path] >= TURNS / 2
    }
    of = {path: path.partition("[")[0].partition(" ")[0] for path in grown}
    assert {path: sizes for path, sizes in grown.items() if of[path] not in CORRECTNESS} == {}
    assert {*of.values()} == {*CORRECTNESS}


def process_sizes(passing: Passing, heap: HeapStorage) -> dict[str, int]:
    """What a process holds: threads, bytes of Arrow, objects that the collector knows, containers.

    Not the store, which lies in the same memory: it keeps logs of names that have passed. So the
    memory of the whole process tells nothing.
    """
    gc.collect()
    sizes = passing.sizes()
    for path in [path for path in sizes if path.partition("[")[0] in CORRECTNESS]:
        del sizes[path]
    stored = len(heap._folders) + len(heap._sorted) + len(heap._unsynced)
    objects = len(gc.get_objects()) - stored
    return {"arrow": pa.total_allocated_bytes(), "objects": objects, **sizes, **handles()}


@pytest.mark.slow
def test_a_process_does_not_grow(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of a job that copies, reads and maintains, and of names that pass.

    As many as ``TXNLOG_LONG_LIFE`` says, a second apart. Nothing is larger in the last third of
    them than in the one before it.
    """
    transactions = int(os.environ.get("TXNLOG_LONG_LIFE", "6000"))
    monkeypatch.setattr(recent, "KEPT", 10)
    monkeypatch.setattr(record_buffers, "_KEPT_TOPICS", 10)
    monkeypatch.setattr(settlement, "_MOST_REMEMBERED", 10)
    monkeypatch.setattr(manifests, "_REWRITES_KEPT_MS", 60_000)
    heap = HeapStorage()
    monkeypatch.setattr(heap, "time_ms", lambda: clock.time_ms)
    config = {
        "transaction.max.timeout.ms": 60_000,
        "log.cleanup.age.ms": 600_000,
        "producer.id.expiration.ms": 600_000,
    }
    store = attach(heap, create=True, clock=clock, config=config)
    kept = {"retention.ms": 600_000, "file.delete.delay.ms": 60_000}
    formats = ("auto", "parquet", "kafka")
    for record_format in formats:
        own = {**kept, "record.format": record_format}
        store.topics.create(record_format, partitions=2, config=own)
    passing = Passing(store, clock)
    # Its segments were replaced again and again, which is known for as long as their files stay.
    store.topics.alter("stays", config={"file.delete.delay.ms": 60_000})
    consumer = store.consumer("parquet", group_id="g", auto_offset_reset="earliest")
    producer = passing.transactional
    thirds: list[dict[str, int]] = [{}, {}, {}]
    for number in range(transactions):
        with producer.transaction():
            for record_format in formats:
                producer.send(record_format, b"%0100d" % number, key=b"%d" % (number % 7))
            if records := consumer.poll(max_records=20, timeout_ms=0):
                ends = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
                producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        clock.time_ms += 1000
        if number % 10 == 0:
            snapshot = store.snapshot(formats)
            shown = snapshot.scan("parquet").end_offsets
            last = {where: max(end - 20, 0) for where, end in shown.items()}
            assert snapshot.scan("parquet", last).to_arrow().num_rows > 0
        if number % 50 == 0:
            passing.turn(number, seconds=1)
        if number % 500 == 0:
            # By another process: one that maintains has met every name that the store still has.
            steps = another(store).maintain()
            assert [step for step in steps if isinstance(step, MaintenanceFailure)] == []
        if number % max(transactions // 48, 1) == 0:
            most = thirds[3 * number // transactions]
            for path, size in process_sizes(passing, heap).items():
                most[path] = max(size, most.get(path, 0))
    _, before, after = thirds
    assert before["arrow"] > 0
    grown = {path: (before.get(path, 0), size) for path, size in after.items()}
    # Of Arrow bytes, of a few manifests and batches; else elements.
    few = {"arrow": 1 << 20, "threads": 3, "descriptors": 3}
    assert {p: of for p, of in grown.items() if of[1] > 1.2 * of[0] + few.get(p, 50)} == {}
    assert after["objects"] < 1.02 * before["objects"]
    consumer.close()


def test_a_log_in_use_is_one_object_however_long(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has locks. One that nobody uses goes when it was not asked for lately."""
    monkeypatch.setattr(recent, "KEPT", 1)
    logs = attach(HeapStorage(), create=True, clock=clock).logs
    used, left = logs.topic("used"), weakref.ref(logs.topic("left"))
    for number in range(4):
        clock.time_ms += 1000 * int(recent.IDLE_S) + 1
        logs.topic(f"other-{number}")
    assert logs.topic("used") is used
    gc.collect()
    assert left() is None


def test_what_is_asked_for_is_remembered_however_much_it_is(clock: VirtualClock) -> None:
    """Names in use are never forgotten for others; those that are not make room for new ones."""
    known: recent.Recent[int, int] = recent.Recent(clock)
    names_ = range(3 * recent.KEPT)
    for number in names_:
        known[number] = number
    for _ in range(3):
        clock.time_ms += int(500 * recent.IDLE_S)
        assert [known.get(number) for number in names_] == [*names_]
    clock.time_ms += int(1001 * recent.IDLE_S)
    assert known.get(7) == 7
    for number in names_:
        known[-1 - number] = number
    assert [number for number in names_ if known.get(number) is not None] == [7]
    known.pop(7)
    known.pop(7)
    assert known.get(7) is None


def test_checkpoints_of_others_are_not_all_remembered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only reads deletes none, and so forgets none by that."""
    settle_early(monkeypatch)
    monkeypatch.setattr(state_log, "KEPT_CHECKPOINTS", 1)
    log = another(store).logs.topic("t")
    for number in range(80):
        append(store, b"%d" % number)
        log.refresh()
    assert len(log._seen_checkpoints) == 16 < log.folded // 4


def test_stores_that_are_gone_have_no_listeners() -> None:
    """A server may open any number of stores, one after the other."""
    before = {*open_logs._WAITING}
    for number in range(10):
        open_logs.listen(f"memory://gone-{number}", Signal())
    assert len(open_logs._WAITING.keys() - before) == 1


def test_members_that_have_left_are_not_remembered(store: Store, clock: VirtualClock) -> None:
    """Whether their former selves were asked for; a group may have any number of members."""
    consumer = store.consumer("t", group_id="g")
    consumer.poll(timeout_ms=0)
    assert consumer._rebalancer is not None
    member = consumer._rebalancer._member
    assert member is not None
    member._asked["left"] = 3
    clock.time_ms += 10_000
    consumer.poll(timeout_ms=0)
    assert member._asked == {}
    consumer.close()
