"""Retention by those who write: nobody need call ``maintain`` for old records to go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.steps import another, append, begin, send, upload, values
from tests.support.storage.disturbed_storages import HookedStorage
from txnlog.admin.upkeep import CHECK_INTERVAL_MS
from txnlog.log.state_log import CHECKPOINT_INTERVAL
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

HOUR_MS = 3_600_000
pytestmark = pytest.mark.store(on="heap", topic_config={"retention.ms": str(HOUR_MS)})


def write_until_checkpoint(store: Store, name: str = "new") -> None:
    """So many appends of one writer that it leaves a checkpoint."""
    with store.producer() as producer:
        for number in range(CHECKPOINT_INTERVAL):
            send(producer, f"{name} {number}".encode())


def beginning(store: Store) -> int:
    log = another(store).logs.fresh_topic("t")
    with log.lock:
        state = log.state
        return state.partitions[0].log_start_offset


def checkpoints(heap: HeapStorage) -> list[str]:
    return [name for name in heap.list_names("topics/t/log") if name.endswith(".checkpoint")]


def entry_kinds(heap: HeapStorage) -> Iterator[bytes]:
    for name in heap.list_names("topics/t/log"):
        if name.endswith(".json"):
            yield heap.get(f"topics/t/log/{name}").split(b'"kind":"')[1].split(b'"')[0]


def test_a_writer_that_leaves_a_checkpoint_deletes_what_is_too_old(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """In one entry, and its files are noted as released; what is young enough stays."""
    for number in range(4):
        append(store, b"old %d" % number)
    clock.time_ms += 2 * HOUR_MS
    write_until_checkpoint(another(store))
    assert beginning(store) == 4
    assert values(another(store)) == [f"new {n}".encode() for n in range(CHECKPOINT_INTERVAL)]
    assert [*entry_kinds(heap)].count(b"trimmed") == 1
    assert len(heap.list_names("topics/t/retired")) == 1
    assert not [found for found in store.examine() if found.state == "damage"]


def test_one_process_looks_once_in_five_minutes(store: Store, clock: VirtualClock) -> None:
    """Others that write at the same time look for themselves, and find that it is done."""
    store.topics.alter("t", config={"retention.ms": "1000"})
    writer = another(store)
    write_until_checkpoint(writer, "one")
    clock.time_ms += CHECK_INTERVAL_MS - 1_000
    write_until_checkpoint(writer, "two")
    assert beginning(store) == 0
    write_until_checkpoint(another(store), "three")
    assert beginning(store) == CHECKPOINT_INTERVAL
    clock.time_ms += 1_001
    write_until_checkpoint(writer, "four")
    assert beginning(store) == 3 * CHECKPOINT_INTERVAL


def test_a_clock_that_runs_ahead_deletes_nothing(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """The storage's time is asked for where something seems to be due."""
    append(store, b"young")
    ahead = attach(heap, clock=VirtualClock(clock.time_ms + 2 * HOUR_MS, 7))
    write_until_checkpoint(ahead)
    assert beginning(store) == 0


def test_where_the_storage_has_no_clock_those_of_other_writers_count(
    store: Store, heap: HeapStorage, clock: VirtualClock
) -> None:
    """One whose clock runs ahead puts the entry with which a checkpoint is due: nothing goes."""
    heap.time_ms = None
    write_until_checkpoint(attach(heap, clock=clock), "young")
    for number in range(CHECKPOINT_INTERVAL - 4):
        append(store, b"young %d" % number)
    before = len(checkpoints(heap))
    ahead = attach(heap, clock=VirtualClock(clock.time_ms + 2 * HOUR_MS, 7))
    for _ in range(4):
        append(ahead, b"by a wrong clock")
    assert len(checkpoints(heap)) > before
    assert beginning(store) == 0


def test_an_open_transaction_keeps_what_lies_behind_it(store: Store, clock: VirtualClock) -> None:
    """Nothing beyond the last stable offset goes."""
    append(store, b"old")
    producer = begin(store, "p", timeout_ms=900_000)
    send(producer, b"open")
    clock.time_ms += 600_000
    store.topics.alter("t", config={"retention.ms": "60000"})
    write_until_checkpoint(another(store))
    assert beginning(store) == 1


def test_it_fails_no_write(store: Store, heap: HeapStorage, clock: VirtualClock) -> None:
    """Failed upkeep is left to the next writer."""
    append(store, b"old")
    clock.time_ms += 2 * HOUR_MS

    def fail(text: str) -> None:
        if ".probe" in text:
            faulty.faults[len(faulty.requests)] = Fault.FAIL

    faulty = FaultyStorage(heap, before_request=fail)
    write_until_checkpoint(attach(faulty, clock=clock))
    assert faulty.faults
    assert beginning(store) == 0
    assert len(values(another(store))) == CHECKPOINT_INTERVAL + 1


def test_it_holds_up_no_write_for_long(store: Store, clock: VirtualClock) -> None:
    """While others are always faster it gives up, and they will delete what is too old."""
    append(store, b"old")
    clock.time_ms += 2 * HOUR_MS
    lost = []

    class Slow(HookedStorage):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            if b'"trimmed"' in data:
                other = another(store)
                lost.append(other.logs.topic("t").place(upload(store, b"faster")))
            return super().put_if_absent(name, data)

    began_ms = clock.time_ms
    write_until_checkpoint(another(store, Slow(store.storage)))
    assert len(lost) > 1
    assert clock.time_ms - began_ms < 2_000
    assert beginning(store) == 0


def test_it_costs_nothing_without_retention(store: Store, heap: HeapStorage) -> None:
    """And where nothing is due no entry, and no question for the time."""
    spent = []
    for setting in ("-1", str(HOUR_MS)):
        store.topics.alter("t", config={"retention.ms": setting})
        counting = CountingStorage(heap)
        writer = attach(counting, clock=store.logs.clock)
        append(writer, b"warm")
        counting.take()
        write_until_checkpoint(writer)
        spent.append(sum(counting.take().values()))
    assert spent[0] == spent[1]
