"""Dry runs write nothing, whatever there is to do and to settle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.steps import append, begin_with, elsewhere, new_store, send, stop_before_marking
from txnlog.admin.joinable_segments import LEAST_SEGMENTS
from txnlog.results import Expiry, MaintenanceFailure, TransactionEnd
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

TIMEOUT_MS = 60_000
DAY_MS = 86_400_000
READS = {"get", "get_range", "size", "modified", "list", "list_folders", "list_all", "list_uploads"}


def neglected_store(clock: VirtualClock, *, has_clock: bool) -> HeapStorage:
    """There is something to do of each kind, and transactions that readers would end."""
    heap = HeapStorage()
    heap.time_ms = clock.now_ms if has_clock else None
    config = {"offsets.retention.ms": DAY_MS, "transactional.id.expiration.ms": DAY_MS}
    store = new_store(heap, clock, {"t": 1, "old": 1, "keys": 1, "small": 1}, config)
    store.topics.alter("old", config={"retention.ms": DAY_MS, "segment.bytes": 1 << 14})
    store.topics.alter("keys", config={"cleanup.policy": "compact"})
    for _ in range(LEAST_SEGMENTS):
        append(store, b"v", topic="old")
        append(store, b"v", topic="small")
        with store.producer() as producer:
            producer.send("keys", b"v", b"k")
    idle = begin_with(store, "idle", b"1")
    idle.commit_transaction()
    store.groups.reset_offsets("idle", "t", to="earliest")
    killed = store.consumer("t", group_id="killed", auto_offset_reset="earliest")
    killed.poll(timeout_ms=0)
    killed.commit()
    heap.put("topics/t/data/0/left-0.log", b"left behind")
    clock.time_ms += 9 * DAY_MS
    left = begin_with(store, "open", b"2", timeout_ms=TIMEOUT_MS)
    send(left, b"2", topic="small")
    left.send("keys", b"2", b"k")
    left.flush()
    decided = begin_with(store, "decided", timeout_ms=TIMEOUT_MS)
    send(decided, b"3")
    stop_before_marking(decided)
    decided.commit_transaction()
    clock.time_ms += DAY_MS // 2
    return heap


RUNS: dict[str, Callable[[Store], object]] = {
    "maintain": lambda store: store.maintain(dry_run=True),
    "end hanging": lambda store: [*store.transactions.end_hanging(dry_run=True)],
    "ids": lambda store: store.transactions.expire_ids(dry_run=True),
    "groups": lambda store: store.groups.expire(dry_run=True),
    "compact": lambda store: store.maintenance.compact("keys", dry_run=True),
    "merge": lambda store: store.maintenance.merge("small", dry_run=True),
}


@pytest.mark.parametrize("has_clock", [True, False])
@pytest.mark.parametrize("run", RUNS)
def test_a_dry_run_only_reads(run: str, has_clock: bool) -> None:
    """By clocks that are right, and where only a witness would tell later that they are not."""
    clock = VirtualClock()
    heap = neglected_store(clock, has_clock=has_clock)
    for ahead_ms in (0, -DAY_MS):  # seen from a day before, transactions begin in the future
        counted = CountingStorage(heap)
        store = elsewhere(counted, clock, ahead_ms)
        counted.take()
        before = dict(heap.list_all(""))
        assert RUNS[run](store) or ahead_ms, run
        assert {*counted.take()} <= READS | {"confirm"}
        assert dict(heap.list_all("")) == before


def test_a_dry_run_tells_what_is_done() -> None:
    """Of what depends on no other step."""
    clock = VirtualClock()
    heap = neglected_store(clock, has_clock=True)
    told = attach(heap, clock=clock).maintain(dry_run=True)
    done = attach(heap, clock=clock).maintain()
    kinds = (TransactionEnd, Expiry, MaintenanceFailure)
    ends = [step for step in told if isinstance(step, kinds)]
    assert ends == [step for step in done if isinstance(step, kinds)]
    assert len(ends) == 5
    assert {type(step) for step in told} >= {type(step) for step in done}
