"""txnlog.testing itself: what faults do, how time passes, and that a seed decides everything."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import pytest

from txnlog.errors import ObjectNotFound, StorageError, TxnlogError
from txnlog.testing import (
    ClockFaults,
    Fault,
    FaultRates,
    FaultyStorage,
    HeapStorage,
    Process,
    ProcessStopped,
    Simulation,
    SimulationStuck,
    VirtualClock,
    preemptions,
)

ALL_RATES = FaultRates(
    fail=0.02,
    lose_response=0.02,
    land_late=0.02,
    delay=0.03,
    pause=0.01,
    stop=0.01,
    partial=0.1,
    sync_fails=0.02,
    tear_listing=0.3,
    tear_delete=0.5,
    power_cut=0.001,
    tear_ms=(0, 50),
)
CLOCKS = ClockFaults(most_ms=500, drift_ppm=500, monotonic_ppm=50, jump=0.01, asleep=0.5)


def writer(process: Process) -> None:
    """Some transactions over two topics, whatever happens to them."""
    store = process.store()
    with store.producer(transactional_id=process.name) as producer:
        producer.init_transactions()
        for turn in range(5):
            with producer.transaction():
                producer.send("a", b"%d" % turn, key=b"k")
                producer.send("b", b"%d" % turn)


def trace_of(seed: int) -> Simulation:
    def body(process: Process) -> None:
        for _ in range(5):
            try:
                writer(process)
            except TxnlogError as error:
                process.step(repr(error))

    simulation = Simulation(seed, rates=ALL_RATES, step_ms=(0, 20), clocks=CLOCKS)
    store = simulation.store()
    store.topics.create("a", partitions=2)
    store.topics.create("b")
    for name in ("one", "two", "three"):
        simulation.spawn(name, body, restart=True)
    simulation.run()
    return simulation


def digest(simulation: Simulation) -> str:
    lines = "\n".join(str(event) for event in simulation.trace)
    return hashlib.sha256(lines.encode()).hexdigest()


def test_the_same_seed_gives_the_same_trace() -> None:
    """Every request, its time and its fault; and another seed gives another run."""
    first, second, other = trace_of(1), trace_of(1), trace_of(2)
    assert len(first.trace) > 100
    assert {event.fault for event in first.trace} > {None, Fault.DELAY}
    assert first.trace == second.trace
    assert first.order == second.order
    assert list(first.storage.list_all("")) == list(second.storage.list_all(""))
    assert first.trace != other.trace


@pytest.mark.more
def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """No run depends on the order of a set of strings, which Python varies from run to run."""
    code = (
        "from tests.simulation.test_simulation import digest, trace_of; print(digest(trace_of(4)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {digest(trace_of(4))}


def test_importing_txnlog_leaves_testing_alone() -> None:
    """Users pay for it where they use it, and it needs nothing that only tests have."""
    code = textwrap.dedent(
        """
        import sys, txnlog
        [getattr(txnlog, name) for name in dir(txnlog)]
        assert not [name for name in sys.modules if name.startswith("txnlog.testing")]
        import txnlog.testing
        print([name for name in ("pytest", "hypothesis", "moto") if name in sys.modules])
        """
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("fault", "raised", "there"),
    [
        (Fault.STOP_BEFORE, ProcessStopped, False),
        (Fault.STOP_AFTER, ProcessStopped, True),
        (Fault.LOSE_RESPONSE, StorageError, True),
        (Fault.FAIL, StorageError, False),
        (Fault.LAND_LATE, StorageError, False),
        (Fault.PARTIAL, StorageError, False),
        (Fault.SYNC_FAILS, StorageError, True),
    ],
)
def test_what_a_fault_does(fault: Fault, raised: type[BaseException], there: bool) -> None:
    """Whether the put is there, and what the caller is told."""
    inner = HeapStorage()
    storage = FaultyStorage(inner, {1: fault})
    storage.put("before", b"1")
    with pytest.raises(raised):
        storage.put_if_absent("x", b"2")
    assert ("x" in inner.list_names("")) is there
    assert storage.stopped is (raised is ProcessStopped)
    if storage.stopped:
        with pytest.raises(ProcessStopped):
            storage.get("before")
    storage.land()
    assert ("x" in inner.list_names("")) is (there or fault is Fault.LAND_LATE)
    assert storage.requests[:2] == ["put before", "put_if_absent x"]


@pytest.mark.parametrize(("fault", "seen"), [(Fault.PAUSE, []), (Fault.DELAY, ["x"])])
def test_what_others_see_while_a_process_waits(fault: Fault, seen: list[str]) -> None:
    """A pause comes before the effect, a delay after it; both end well."""
    inner, found = HeapStorage(), []
    storage = FaultyStorage(inner, {0: fault}, on_wait=lambda _: found.append(inner.list_names("")))
    assert storage.put_if_absent("x", b"") is True
    assert found == [seen]


def test_reads_that_would_land_late_fail() -> None:
    """A read has no effect that could come later."""
    storage = FaultyStorage(HeapStorage(), {0: Fault.LAND_LATE})
    with pytest.raises(StorageError, match="injected failure of get x"):
        storage.get("x")
    assert storage.in_flight == []
    with pytest.raises(ObjectNotFound):
        storage.get("x")


def test_what_fails_keeps_no_parallel_request_from_running() -> None:
    """As with threads: all run, and then the first error is raised."""
    storage = FaultyStorage(HeapStorage(), {0: Fault.FAIL})
    with pytest.raises(StorageError, match="put one"):
        storage.gather([lambda: storage.put("one", b""), lambda: storage.put("two", b"")])
    assert storage.inner.list_names("") == ["two"]


@pytest.mark.parametrize("kind", ["list_names", "list_folders", "list_all"])
@pytest.mark.parametrize("shown", [True, False])
def test_a_listing_is_not_one_instant(kind: str, shown: bool) -> None:
    """What was there all the time shows; what came or went shows or not, as one decides."""
    inner = HeapStorage()
    names = {name: f"f/{name}/1" if kind == "list_folders" else f"f/{name}" for name in "abc"}
    for name in "ab":
        inner.put(names[name], b"1")

    def amid(text: str) -> None:
        assert text == f"{kind.removesuffix('_names')} f"
        inner.delete([names["a"]])
        inner.put(names["c"], b"3")

    storage = FaultyStorage(inner, amid=amid)
    asked: list[str] = []
    storage.shows = lambda name: asked.append(name) or shown  # type: ignore[func-returns-value]
    found = [
        getattr(item, "partition", item[0].partition)("/") for item in getattr(storage, kind)("f")
    ]
    assert [last or first for first, _, last in found] == (["a", "b", "c"] if shown else ["b"])
    assert [name.rpartition("/")[2] for name in asked] == ["a", "c"]


def test_a_deletion_goes_on_in_steps_and_stops_in_part() -> None:
    """Others run between its objects; a PARTIAL one deletes some, neither none nor all."""
    inner = HeapStorage()
    names = [f"f/{number}" for number in range(6)]
    for name in names:
        inner.put(name, b"")
    left: list[int] = []
    storage = FaultyStorage(inner, amid=lambda _: left.append(len(inner.list_names("f"))))
    storage.delete(names[:3])
    assert left == [5, 4]
    assert inner.list_names("f") == ["3", "4", "5"]
    ends = set()
    for seed in range(60):
        copy = inner.copy()
        partly = FaultyStorage(copy, {0: Fault.PARTIAL}, seed=seed)
        with pytest.raises(StorageError, match="in the middle of delete 3 objects"):
            partly.delete(names[3:])
        ends.add(tuple(copy.list_names("f")))
    assert len(ends) == 6


def test_steps_of_listings_and_deletions_in_a_simulation() -> None:
    """Other processes go on in the middle, and a process can be stopped there."""
    looks: set[tuple[str, ...]] = set()
    left: set[int] = set()
    stopped = 0
    for seed in range(40):
        simulation = Simulation(seed, rates=FaultRates(tear_listing=1, tear_delete=1))
        for number in range(4):
            simulation.storage.put(f"old/{number}", b"")

        def lister(process: Process) -> None:
            looks.add(tuple(process.storage.list_names("new")))

        def writer(process: Process) -> None:
            for name in "abc":
                process.storage.put(f"new/{name}", b"")

        def cleaner(process: Process) -> None:
            process.storage.delete([f"old/{number}" for number in range(4)])

        simulation.spawn("lister", lister)
        simulation.spawn("writer", writer)
        simulation.spawn("cleaner", cleaner, rates=FaultRates(tear_delete=1, stop=0.2))
        simulation.run()
        left.add(len(simulation.storage.list_names("old")))
        stopped += any(
            event.fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER)
            and event.request.startswith("in the middle")
            for event in simulation.trace
        )
    assert ("b",) in looks or ("c",) in looks or ("a", "c") in looks, "name by name"
    assert len(left & {1, 2, 3}) > 1
    assert stopped > 0


def test_clocks_of_machines() -> None:
    """Wall clocks are off, drift and jump within bounds; monotonic ones never go back."""
    clocks = ClockFaults(most_ms=3_000, drift_ppm=1_000, monotonic_ppm=100, jump=0.1, asleep=1)
    simulation = Simulation(
        5, clocks=clocks, rates=FaultRates(pause=0.1, pause_ms=(10_000, 10_000)), step_ms=(0, 500)
    )
    apart: set[int] = set()
    slept: list[bool] = []

    def body(process: Process) -> None:
        last_s, last_ms = process.clock.monotonic_s(), simulation.clock.time_ms
        for _ in range(200):
            process.storage.list_names("")
            now_s, true_ms = process.clock.monotonic_s(), simulation.clock.time_ms
            assert now_s >= last_s
            slept.append((true_ms - last_ms) - (now_s - last_s) * 1000 > 9_000)
            last_s, last_ms = now_s, true_ms
            apart.add(process.clock.now_ms() - true_ms)

    simulation.spawn("one", body, skew_ms=2_000)
    simulation.spawn("two", body)
    simulation.run()
    assert max(map(abs, apart)) <= 3_000
    assert min(apart) < -1_000
    assert max(apart) > 1_000
    assert len(apart) > 20
    assert 5 < slept.count(True) < 100


def test_a_virtual_clock_of_two_hands() -> None:
    """A machine that sleeps, and a wall clock that is set, do not move the monotonic one."""
    clock = VirtualClock(now_ms=1_000)
    clock.time_ms += 500
    clock.sleep_machine(60_000)
    assert (clock.now_ms(), clock.monotonic_s()) == (61_500, 1.5)
    clock.set_wall(10)
    clock.sleep(1)
    assert (clock.now_ms(), clock.monotonic_s()) == (1_010, 2.5)


def test_the_storage_tells_when_its_objects_were_made() -> None:
    """By the true time of the simulation, by a clock of its own, or not at all."""
    plain = HeapStorage()
    plain.put("x", b"")
    assert plain.modified_ms("x") is None
    with pytest.raises(ObjectNotFound):
        plain.modified_ms("y")
    for ahead_ms, told in ((0, 7_000), (-500, 6_500), (None, None)):
        simulation = Simulation(now_ms=5_000, storage_ahead_ms=ahead_ms)
        simulation.clock.time_ms += 2_000
        simulation.storage.put("x", b"")
        simulation.clock.time_ms += 2_000
        assert simulation.storage.modified_ms("x") == told


def test_a_power_cut_stops_everybody() -> None:
    """What is not durable may be gone, and those that are restarted find the rest."""
    found: list[list[str]] = []
    simulation = Simulation(2)

    def body(process: Process) -> None:
        if process.incarnation:
            found.append(process.storage.list_names(process.name))
            return
        process.storage.faults = dict.fromkeys(range(1, 40), Fault.SYNC_FAILS)
        process.storage.put(f"{process.name}/0", b"")
        for number in range(1, 40):
            with pytest.raises(StorageError):
                process.storage.put(f"{process.name}/{number}", b"")
        while True:
            process.step()

    def choose(running: Sequence[int]) -> int:
        if len(simulation.order) == 200:
            simulation.power_cut()
        return running[len(simulation.order) % len(running)]

    cuts: list[int] = []
    simulation.on_power_cut = lambda: cuts.append(simulation.clock.time_ms)
    for name in ("one", "two"):
        simulation.spawn(name, body, restart=True)
    simulation.run(choose)
    assert len(cuts) == 1
    assert len(found) == 2
    for names in found:
        assert sorted(map(int, names)) == [*range(len(names))], "filesystems keep the order"
        assert 0 < len(names) < 40


def test_waiting_lets_others_go_on() -> None:
    """A process that sleeps for an hour of virtual time is overtaken by all that others do."""
    said: list[tuple[str, int]] = []
    simulation = Simulation(now_ms=0)

    def sleeper(process: Process) -> None:
        process.clock.sleep(3600)
        said.append(("slept", process.clock.now_ms()))

    def worker(process: Process) -> None:
        for _ in range(10):
            process.step()
        said.append(("worked", process.clock.now_ms()))

    simulation.spawn("sleeper", sleeper)
    simulation.spawn("worker", worker, skew_ms=-5000)
    simulation.run(preemptions([]))
    assert [name for name, _ in said] == ["worked", "slept"]
    assert said[0][1] == 11 - 5000
    assert said[1][1] == 3_600_000


def test_a_stopped_process_is_restarted_only_if_asked() -> None:
    """Its next incarnation begins from the top; others stay as they are."""
    begun: list[tuple[str, int]] = []
    simulation = Simulation(3)

    def body(process: Process) -> None:
        begun.append((process.name, process.incarnation))
        process.storage.faults = {} if process.incarnation > 1 else {2: Fault.STOP_AFTER}
        for turn in range(4):
            process.storage.put(f"{process.name}/{process.incarnation}/{turn}", b"")
        begun.append((process.name, -1))

    simulation.spawn("once", body)
    simulation.spawn("again", body, restart=True)
    simulation.run()
    assert [item for item in begun if item[0] == "once"] == [("once", 0)]
    assert [number for name, number in begun if name == "again"] == [0, 1, 2, -1]
    assert simulation.storage.list_names("once/0") == ["0", "1", "2"]


def test_an_error_ends_the_run_and_names_the_seed() -> None:
    """The other processes are unwound, and nothing of them takes effect any more."""
    simulation = Simulation(77)

    def failing(process: Process) -> None:
        process.step()
        raise ValueError("the body's own error")

    def endless(process: Process) -> None:
        while True:
            process.storage.list_names("")

    simulation.spawn("endless", endless)
    simulation.spawn("failing", failing)
    with pytest.raises(ValueError, match="own error") as caught:
        simulation.run()
    assert "seed 77" in caught.value.__notes__[0]
    assert "endless list" in caught.value.__notes__[0]
    assert all(actor.done for actor in simulation._actors)


def test_an_endless_loop_is_found() -> None:
    """A run that does not end says so."""
    simulation = Simulation()

    def endless(process: Process) -> None:
        while True:
            process.step()

    simulation.spawn("endless", endless)
    with pytest.raises(SimulationStuck, match="no end after 500 steps"):
        simulation.run(max_steps=500)


def test_rates_are_checked_and_kept() -> None:
    """About as many of each fault as the rates say."""
    with pytest.raises(ValueError, match="at most 1"):
        FaultRates(fail=0.7, stop=0.4)
    rates, chance = FaultRates(fail=0.1, stop=0.2, pause=0.3), random.Random(5)
    drawn: Sequence[Fault | None] = [rates.draw(chance) for _ in range(10_000)]
    counts = {fault: drawn.count(fault) / 10_000 for fault in {*drawn}}
    expected = {Fault.FAIL: 0.1, Fault.STOP_BEFORE: 0.1, Fault.STOP_AFTER: 0.1, Fault.PAUSE: 0.3}
    assert counts.keys() == {*expected, None}
    assert all(abs(counts[fault] - rate) < 0.02 for fault, rate in expected.items())
