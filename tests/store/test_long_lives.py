"""A process may live for months: what it remembers does not follow the names that have passed."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from itertools import chain
from pathlib import Path

import pytest

from tests.support.log.settling import settle_early
from tests.support.runtime import long_life
from tests.support.runtime.long_life import SAMPLES, Passing, handles
from tests.support.steps import another, append
from txnlog.clock import Signal
from txnlog.log import open_logs, sequence_log, settlement, state_log
from txnlog.storage import open_storage
from txnlog.storage.adapters import held_folders
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write import coordinator, record_buffers

TURNS = 8

pytestmark = pytest.mark.store(on="heap")


@pytest.mark.few(1)
@pytest.mark.parametrize("on_disk", [False, True], ids=["heap", "disk"])
def test_what_is_remembered_does_not_follow_the_names_that_have_passed(
    clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    """No container of any of the library's objects grows; found by walking through all of them.

    Nor do its threads and open files, give or take a few.
    """
    settle_early(monkeypatch)
    monkeypatch.setattr(sequence_log, "KEPT_NAMES", 3)
    monkeypatch.setattr(settlement, "_MOST_REMEMBERED", 3)
    monkeypatch.setattr(record_buffers, "_KEPT_TOPICS", 3)
    monkeypatch.setattr(coordinator, "_MOST_WRITTEN", 3)
    monkeypatch.setattr(held_folders, "_MOST_HELD", 3)
    storage = open_storage(str(tmp_path / "store")) if on_disk else HeapStorage()
    config = {"transaction.max.timeout.ms": 60_000, "log.cleanup.age.ms": 86_400_000}
    passing = Passing(attach(storage, create=True, clock=clock, config=config))
    for number in range(2 * TURNS):
        if number == TURNS:
            before, held = passing.sizes(), handles()
        passing.turn(number)
        clock.time_ms += 1_200_000
    after = passing.sizes()
    assert {what: count for what, count in handles().items() if count - held[what] > 3} == {}
    assert sum(after.values()) > 100
    grown = {
        path: (before[path], size)
        for path, size in after.items()
        if size - before[path] >= TURNS / 2
    }
    assert grown == {}


@pytest.mark.slow
def test_a_process_does_not_grow(tmp_path: Path) -> None:
    """Of as many transactions as ``TXNLOG_LONG_LIFE`` says, in a process of their own, on a disk.

    In the last third of them it holds nothing more than in the one before: neither memory, nor
    anything of its own.
    """
    transactions = os.environ.get("TXNLOG_LONG_LIFE", "6000")
    command = [sys.executable, long_life.__file__, str(tmp_path / "store"), transactions]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    samples = [json.loads(line) for line in told.splitlines()]
    assert len(samples) == SAMPLES
    third = SAMPLES // 3
    before, after = (
        {path: max(one.get(path, 0) for one in some) for path in {*chain(*some)}}
        for some in (samples[third:-third], samples[-third:])
    )
    assert before["arrow"] > 0
    grown = {path: (before.get(path, 0), size) for path, size in after.items()}
    for name in ("resident", "objects"):
        most, now = grown.pop(name)
        assert now < 1.03 * most, f"{name}: {most:,} and then {now:,}"
    # Of Arrow bytes, of a few manifests and batches; else elements: of the last seconds there are
    # more when the machine has got faster.
    few = {"arrow": 1 << 20, "threads": 3, "descriptors": 3}
    assert {
        path: of for path, of in grown.items() if of[1] > 1.2 * of[0] + few.get(path, 400)
    } == {}


def test_a_log_in_use_is_one_object_however_long(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has locks. One that nobody uses goes when it was not asked for lately."""
    monkeypatch.setattr(sequence_log, "KEPT_NAMES", 1)
    logs = attach(HeapStorage(), create=True, clock=clock).logs
    used, left = logs.topic("used"), weakref.ref(logs.topic("left"))
    for number in range(4):
        clock.time_ms += 1000 * int(sequence_log.IDLE_S) + 1
        logs.topic(f"other-{number}")
    assert logs.topic("used") is used
    gc.collect()
    assert left() is None


def test_what_is_asked_for_is_remembered_however_much_it_is(clock: VirtualClock) -> None:
    """Names in use are never forgotten for others; those that are not make room for new ones."""
    known: sequence_log.Recent[int, int] = sequence_log.Recent(clock)
    names_ = range(3 * sequence_log.KEPT_NAMES)
    for number in names_:
        known[number] = number
    for _ in range(3):
        clock.time_ms += int(500 * sequence_log.IDLE_S)
        assert [known.get(number) for number in names_] == [*names_]
    clock.time_ms += int(1001 * sequence_log.IDLE_S)
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


def test_what_is_in_doubt_keeps_the_id_that_it_was_written_under(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes, and whatever topics are met meanwhile; later records need not."""
    monkeypatch.setattr(sequence_log, "KEPT_NAMES", 1)
    producer = store.producer()
    producer.send("t", b"a")
    plain, segments = producer._plain, producer._records.finish()["t"]
    written_as = plain.writes_as("t")
    plain.add("t", segments)
    clock.time_ms += 1000 * int(sequence_log.IDLE_S) + 1
    plain.writes_as("another")
    assert plain.writes_as("t") != written_as
    plain.place()
    assert {*store.logs.topic("t").state.producers} == {written_as.producer_id}
