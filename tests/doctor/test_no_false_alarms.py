"""Nothing is wrong with a sound store: after a crash at any request, while others write."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress

import pytest

from tests.doctor.broken_store import DAY_MS, SMALL, BrokenStore, examine, violated_rules
from tests.support.log.settling import settle_early
from tests.support.simulation.copy_job import PREPARED, TOTAL, copy_all
from tests.support.simulation.long_runs.readers import settle
from tests.support.simulation.long_runs.run import CALM, ROUGH, STALLING, STORMY
from tests.support.simulation.long_runs.world import World, prepare, survived
from tests.support.simulation.long_runs.writers import copy as copying
from tests.support.simulation.long_runs.writers import feed, transfer
from tests.support.tiers import more
from txnlog.errors import ProducerFenced, TxnlogError, UnknownTopicOrPartition
from txnlog.names import TopicPartition
from txnlog.store import attach
from txnlog.testing import (
    Fault,
    FaultRates,
    FaultyStorage,
    HeapStorage,
    Process,
    ProcessStopped,
    Simulation,
    VirtualClock,
)


def test_a_sound_store_has_nothing_wrong() -> None:
    """The store that the cases below are made from; everything was looked at."""
    assert examine(SMALL.copy()) == []
    store = attach(SMALL.copy(), clock=VirtualClock(seed=9))
    looked = [(f.check, f.subject) for f in store.examine(with_probe=False)]
    assert looked == [
        ("transactions", ""),
        ("topic", "a"),
        ("data", "a"),
        ("topic", "b"),
        ("data", "b"),
        ("group", "g"),
        ("files", ""),
    ]


def test_a_writer_that_slept_until_its_id_had_expired() -> None:
    """Its state lies under the last name that was freed; the id has begun anew behind it."""
    clock, storage = VirtualClock(), HeapStorage()
    storage.time_ms = clock.now_ms
    store = attach(storage, create=True, clock=clock)
    store.topics.create("c")
    old = store.producer(transactional_id="x")
    old.init_transactions()
    for _ in range(2):
        clock.time_ms += 8 * DAY_MS
        store.maintain()
    new = attach(storage, clock=clock).producer(transactional_id="x")
    new.init_transactions()
    old.begin_transaction()
    old.send("c", b"late")
    with pytest.raises(ProducerFenced):
        old.commit_transaction()
    with new.transaction():
        new.send("c", b"sent")
    assert [f for f in store.examine(with_probe=False) if f.state not in ("ok", "note")] == []
    assert store.scan("c").to_arrow()["value"].to_pylist() == [b"sent"]


@pytest.mark.few(1)
@pytest.mark.parametrize("commits", [1, 2, 3, 5])
@pytest.mark.parametrize("days", [1, 2, 3])
def test_compacted_for_weeks(monkeypatch: pytest.MonkeyPatch, commits: int, days: int) -> None:
    """The newest list has left out rewrites that were in force at older checkpoints.

    So many commits a day, and maintenance once in so many days.
    """
    settle_early(monkeypatch)
    monkeypatch.setattr("txnlog.log.state_log.KEPT_CHECKPOINTS", 7)
    monkeypatch.setattr("txnlog.log.chapters.CHAPTER", 64)  # the entries are there still
    clock, heap = VirtualClock(1_700_000_000_000), HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    store = attach(heap, create=True, clock=clock)
    store.topics.create("t", config={"cleanup.policy": "compact", "file.delete.delay.ms": 60_000})
    for day in range(20):
        for number in range(commits):
            with store.producer() as producer:
                producer.send("t", f"{day}.{number}", key=f"{number % 2}")
            clock.time_ms += DAY_MS // commits
        if day % days == 0:
            attach(heap, clock=clock).maintain()
        assert not violated_rules(heap)


def test_single_topics_and_unknown_ones() -> None:
    """Only the topics that are named, with the ids; a topic that never was is refused."""
    store = attach(SMALL.copy(), clock=VirtualClock(seed=9))
    looked = [(f.check, f.subject) for f in store.examine(["b"], with_probe=False)]
    assert looked == [("transactions", ""), ("topic", "b"), ("data", "b")]
    with pytest.raises(UnknownTopicOrPartition):
        list(store.examine(["nope"], with_probe=False))


def test_honest_checkpoints_agree() -> None:
    """One after each step of any sort: undecided, decided late, trimmed, deleted, recreated."""
    broken = BrokenStore()
    store = attach(broken.storage, clock=VirtualClock(seed=6))

    def step() -> None:
        for kind, name in (("topic", "a"), ("topic", "b"), ("group", "g"), ("group", "h")):
            log = store.logs.log(kind, name)  # type: ignore[arg-type]
            log.refresh()
            if log.next_entry:
                store.logs.settlement.settle([log])
                log.checkpoint()
        assert {finding.state for finding in examine(broken.storage)} <= {"note"}

    step()
    late = store.producer(transactional_id="late")
    late.init_transactions()
    for ends in (late.commit_transaction, late.abort_transaction):
        late.begin_transaction()
        for where in ("a", "b"):
            late.send(where, "late", partition=0)
        late.send_offsets_to_transaction({TopicPartition("b", 0): 2}, "h")
        late.flush()
        step()
        ends()
        step()
    store.groups.delete_offsets("h", ["b"])
    step()
    store.groups.delete("g")
    step()
    store.transactions.abort("open", reason="it is in the way")
    step()
    store.topics.delete_records({TopicPartition("b", 0): 4})
    step()
    store.topics.delete("a")
    step()
    store.topics.create("a")
    with store.producer() as producer:
        producer.send("a", "anew")
    step()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow),
        Fault.STOP_AFTER,
        *more([Fault.LAND_LATE]),
    ],
)
def test_a_crash_is_no_damage(fault: Fault) -> None:
    """Wherever a process stops, what it leaves breaks no rule; nor does what lands late."""
    for number in range(TOTAL):
        storage = PREPARED.copy()
        faulty = FaultyStorage(storage, {number: fault})
        with suppress(ProcessStopped, TxnlogError):
            copy_all(attach(faulty, clock=VirtualClock(seed=2)), abort_once=True)
        for _ in range(2):
            found = examine(storage, with_contents=True)
            assert {finding.state for finding in found} <= {"note"}, (number, found)
            faulty.land()


@pytest.mark.parametrize(
    "way", ["deleted", "recreated", "trimmed", "merged", "compacted", "partly trimmed"]
)
def test_what_goes_while_it_is_looked_at_is_no_damage(way: str) -> None:
    """Segments' files are deleted at any request, because their records were, or are elsewhere."""
    clock, storage = VirtualClock(), HeapStorage()
    storage.time_ms = clock.now_ms
    config: dict[str, object] = {"file.delete.delay.ms": 0, "min.cleanable.dirty.ratio": 0}
    if way == "compacted":
        config["cleanup.policy"] = "compact"
    store = attach(storage, create=True, clock=clock)
    store.topics.create("a", config=config)
    for _ in range(6):
        with store.producer() as producer:
            producer.send("a", "value", "key")
    kept = storage.copy()

    def act(storage: HeapStorage) -> None:
        store = attach(storage, clock=VirtualClock(seed=3))
        if way in ("deleted", "recreated"):
            store.topics.delete("a")
            if way == "recreated":
                store.topics.create("a")
            return
        if "trimmed" in way:
            store.topics.delete_records({TopicPartition("a", 0): 6 if way == "trimmed" else 4})
        store.maintain("a")
        store.maintain("a")

    files = {name for name, _ in kept.list_all("topics/a/data")}

    def look(at: int) -> bool:
        """Whether there is such a request, before which it happens."""
        storage = kept.copy()
        looking = FaultyStorage(storage, {at: Fault.PAUSE}, on_wait=lambda _: act(storage))
        other = attach(looking, clock=VirtualClock(seed=2))
        found = [*other.examine(with_probe=False, with_contents=True)]
        assert {finding.state for finding in found} <= {"ok", "note"}, found
        happened = len(looking.requests) > at
        assert happened == (not files <= {name for name, _ in storage.list_all("topics/a/data")})
        return happened

    assert len([*itertools.takewhile(look, itertools.count())]) > 12


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "rates",
    [
        CALM,
        STORMY,
        *(pytest.param(rates, marks=pytest.mark.slow) for rates in (ROUGH, STALLING)),
    ],
    ids="csrS",
)
def test_looking_while_others_write(rates: FaultRates) -> None:
    """Eight writers with faults, and somebody who examines all the while: no false alarm."""
    seed = 4
    simulation = Simulation(seed, rates=rates, step_ms=(0, 30))
    cleanup_age_ms = random.Random(seed).choice((DAY_MS, 40_000))
    world = prepare(simulation, cleanup_age_ms, 25, 0)
    looked = 0

    def look(world: World, process: Process) -> None:
        nonlocal looked
        while world.running:
            with survived():
                for finding in process.store().examine(with_probe=False):
                    looked += 1
                    assert finding.state != "damage", finding
            process.clock.sleep(1)

    for number, body in enumerate([transfer] * 3 + [copying] * 2 + [feed]):
        world.spawn(f"{body.__name__}-{number}", body, writes=True)
    world.spawn("look", look, writes=False)
    simulation.run()
    settle(world)
    assert looked > 0
    store = simulation.store()
    assert all(f.state != "damage" for f in store.examine(with_probe=False, with_contents=True))
