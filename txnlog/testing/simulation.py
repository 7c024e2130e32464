"""Several processes over one storage, interleaved as a seed decides.

Each process runs its body, the real code, in a thread of its own, and waits before every storage
request until the simulation lets it go on: only one runs at any time. Between the requests faults
happen by their rates, and virtual time passes. So a run is a function of the seed and the bodies.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from txnlog.errors import StorageError
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing.faults import ClockFaults, Fault, FaultRates, is_synced
from txnlog.testing.faulty_storage import FaultyStorage, ProcessStopped
from txnlog.testing.heap_storage import HeapStorage
from txnlog.testing.process_clock import MachineClock, ProcessClock
from txnlog.testing.virtual_clock import VirtualClock

T = TypeVar("T")

_REAL_TIMEOUT_S = 120.0
_RESTART_MS = (0, 30_000)

Choose = Callable[[Sequence[int]], int]
"""From the numbers of the processes that can go on, in ascending order, picks one."""
Body = Callable[["Process"], None]
"""The body of a process, which ends when this returns; an error ends the simulation."""


def random_choice(seed: int) -> Choose:
    """Any order, decided by a seed."""
    return random.Random(seed).choice


def preemptions(switches: Sequence[int]) -> Choose:
    """Run the first process that can, but pass on to the next one at these steps.

    Walking through all small sets of switches visits every interleaving with as many
    preemptions: the bound that finds most races (after Musuvathi and Qadeer's CHESS).
    """
    step = -1
    current = 0

    def choose(running: Sequence[int]) -> int:
        nonlocal step, current
        step += 1
        if step in switches or current not in running:
            later = [number for number in running if number > current]
            current = later[0] if later else running[0]
        return current

    return choose


class SimulationStuck(AssertionError):
    """The processes took longer than a run may, or one did not return."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a run: the process, its request, the time, and the fault."""

    time_ms: int
    process: str
    request: str
    fault: Fault | None = None

    def __str__(self) -> str:
        mark = f"  !! {self.fault.name}" if self.fault else ""
        return f"{self.time_ms} {self.process} {self.request}{mark}"


class Process:
    """One process of a simulation, as its body sees it.

    ``incarnation`` is 0 at first and grows with each restart; ``chance`` is a random source of the
    process's own. A store must not be shared by several processes: make one by :meth:`store`.
    """

    def __init__(self, simulation: Simulation, actor: _Actor, incarnation: int) -> None:
        self.name = actor.name
        self.incarnation = incarnation
        self.chance = random.Random(f"{simulation.seed}/{actor.name}/{incarnation}")
        self.clock = ProcessClock(actor, actor.machine, self.chance)
        self.storage: FaultyStorage = _ProcessStorage(simulation, actor, self.chance)
        self.faults = 0
        """How many requests of this process went wrong so far."""

    def store(self, *, create: bool = False, config: Mapping[str, object] | None = None) -> Store:
        """The store, opened through this process's storage and clock."""
        return attach(self.storage, create=create, config=config, clock=self.clock)

    def step(self, text: str = "step") -> None:
        """A point at which others may go on, without a request."""
        self.storage._before(text)  # noqa: SLF001 - the same point as before a request
        if self.storage.stopped:
            raise ProcessStopped(text)


class Simulation:
    """Processes, a storage and a clock. Spawn processes, then :meth:`run`.

    Args:
        seed: decides everything. Print it where a test fails; errors that leave :meth:`run` carry
            it as a note.
        storage: the real storage beneath; an empty one in memory if left out.
        rates: how often requests go wrong, unless :meth:`spawn` says otherwise.
        now_ms: the time at the beginning.
        step_ms: how much time passes with each step: any time between these two.
        clocks: how wrong the clocks of the processes are.
        storage_ahead_ms: how far the storage's own clock is ahead, if it is a
            :class:`HeapStorage`: it tells when its objects were made. None if it does not.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        storage: Storage | None = None,
        rates: FaultRates | None = None,
        now_ms: int = 1_700_000_000_000,
        step_ms: tuple[int, int] = (1, 1),
        clocks: ClockFaults | None = None,
        storage_ahead_ms: int | None = 0,
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.storage = HeapStorage() if storage is None else storage
        self.rates = rates or FaultRates()
        self.clocks = clocks or ClockFaults()
        self.clock = VirtualClock(now_ms, seed)
        """The true time, which no process knows."""
        self.trace: list[Event] = []
        """The steps so far."""
        self.order: list[int] = []
        """The number of the process that went on at each step."""
        self.shuffles = True
        """Whether parallel requests of one process are sent in a random order, or the program's."""
        self._step_ms = step_ms
        self._actors: list[_Actor] = []
        self._landings: list[tuple[int, str, Callable[[], object]]] = []
        self._syncs_fail_until_ms = 0
        self._broken: dict[str, bool] = {}
        """By folder, whether its syncs fail in the outage of now, or of last."""
        self.on_power_cut: Callable[[], None] | None = None
        """Called after each power cut, before any process goes on: for the test's own judge."""
        if isinstance(self.storage, HeapStorage):
            ahead_ms = storage_ahead_ms
            self.storage.time_ms = (
                None if ahead_ms is None else lambda: self.clock.time_ms + ahead_ms
            )

    def store(self, *, create: bool = True, config: Mapping[str, object] | None = None) -> Store:
        """The store itself, without faults and without waiting: to prepare and to judge a run.

        Not while :meth:`run` runs.
        """
        return attach(self.storage, create=create, config=config, clock=self.clock)

    def spawn(
        self,
        name: str,
        body: Body,
        *,
        rates: FaultRates | None = None,
        restart: bool = False,
        skew_ms: int = 0,
    ) -> None:
        """Add a process.

        Args:
            name: for the trace; each process has its own.
            body: called with the :class:`Process`.
            rates: how often its requests go wrong, if not as everybody's.
            restart: begin the body again, some time after the process was stopped by a fault.
            skew_ms: by how much the process's wall clock is ahead at the beginning.
        """
        if any(actor.name == name for actor in self._actors):
            raise ValueError(f"there is a process {name!r} already")
        number = len(self._actors)
        self._actors.append(_Actor(self, number, name, body, rates or self.rates, restart, skew_ms))

    def run(self, choose: Choose | None = None, *, max_steps: int = 1_000_000) -> None:
        """Let the processes go on, one request at a time, until all have ended.

        Args:
            choose: picks the next process, from the numbers of those that can go on; by the seed if
                left out. Processes are numbered in the order they were spawned.
            max_steps: more of them are an endless loop.

        Raises:
            SimulationStuck: an endless loop, or a process that waits for another one's lock.
            BaseException: whatever a body raised, with a note that names the seed.
        """
        self.shuffles = choose is None
        try:
            for actor in self._actors:
                actor.start()
            self._run(choose or self.chance.choice, max_steps)
        except BaseException as error:
            tail = "\n".join(str(event) for event in self.trace[-20:])
            error.add_note(f"simulation with seed {self.seed}; the last requests:\n{tail}")
            raise
        finally:
            for actor in self._actors:
                actor.end()
        self._land(None)

    def _run(self, choose: Choose, max_steps: int) -> None:
        for _ in range(max_steps):
            if self.rates.power_cut and self.chance.random() < self.rates.power_cut:
                self.power_cut()
            if self._begins_to_fail():
                self.fail_syncs(self.chance.randint(*self.rates.outage_ms))
            if self._landings:
                self._land(self.clock.time_ms)
            going = [actor for actor in self._actors if not actor.done]
            if not going:
                return
            ready = [actor.number for actor in going if actor.wake_ms <= self.clock.time_ms]
            if not ready:
                self.clock.time_ms = min(actor.wake_ms for actor in going)
                continue
            number = choose(ready)
            self.order.append(number)
            self._actors[number].go_on()
            self.clock.time_ms += self.chance.randint(*self._step_ms)
        raise SimulationStuck(f"no end after {max_steps} steps")

    def power_cut(self) -> None:
        """All processes stop, and objects that are not durable are lost or not, by chance.

        Those that are spawned with ``restart`` start over. Not by a process itself, since it would
        go on to its next request; by its rate, by ``choose``, or before and after a run.
        """
        gone: list[str] = []
        if isinstance(self.storage, HeapStorage):
            gone = self.storage.power_cut(self.chance)
        self.trace.append(Event(self.clock.time_ms, "power", f"is cut: lost {gone}"))
        for actor in self._actors:
            if actor.process is not None and not actor.done:
                actor.process.storage.stopped = True
                actor.wake_ms = min(actor.wake_ms, self.clock.time_ms)
                actor.machine.wake_up()
        if self.on_power_cut is not None:
            self.on_power_cut()

    def fail_syncs(self, for_ms: int) -> None:
        """For ``for_ms``, let syncs fail in a random half of the folders, for every process.

        Only in a half: a file may follow from one that is not durable, and be durable itself in
        another folder. A power cut does not end it.
        """
        self._syncs_fail_until_ms = self.clock.time_ms + for_ms
        self._broken = {}
        self.trace.append(Event(self.clock.time_ms, "disk", f"fails to sync for {for_ms} ms"))

    def _begins_to_fail(self) -> bool:
        over = self.clock.time_ms >= self._syncs_fail_until_ms
        return over and self.rates.sync_outage > 0 and self.chance.random() < self.rates.sync_outage

    def _fails_to_sync(self, request: str) -> bool:
        if self.clock.time_ms >= self._syncs_fail_until_ms or not is_synced(request):
            return False
        folder = request.partition(" ")[2].rpartition("/")[0]
        if folder not in self._broken:
            self._broken[folder] = self.chance.random() < 0.5
        return self._broken[folder]

    def _land(self, until_ms: int | None) -> None:
        """Let puts that are in flight take effect when their time has come."""
        due = [item for item in self._landings if until_ms is None or item[0] <= until_ms]
        for item in due:
            self._landings.remove(item)
            self.trace.append(Event(self.clock.time_ms, "network", f"lands: {item[1]}"))
            with suppress(StorageError):
                item[2]()


class _Actor:
    """A process's thread, and the simulation's state of it."""

    def __init__(
        self,
        simulation: Simulation,
        number: int,
        name: str,
        body: Body,
        rates: FaultRates,
        restart: bool,
        skew_ms: int,
    ) -> None:
        self.simulation = simulation
        self.number = number
        self.name = name
        self.rates = rates
        self.machine = MachineClock(
            simulation.clock,
            simulation.clocks,
            skew_ms,
            random.Random(f"{simulation.seed}/{name}/clock"),
        )
        self.wake_ms = 0
        self.done = False
        self.error: BaseException | None = None
        self.process: Process | None = None
        self._body = body
        self._restart = restart
        self._ending = False
        self._stuck = False
        # Two locks as gates: much quicker than semaphores.
        self._turn = threading.Lock()
        self._parked = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._turn.acquire()
            self._parked.acquire()
            self._thread = threading.Thread(target=self._run, daemon=True, name=self.name)
            self._thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        incarnation = 0
        try:
            while not self._ending:
                self.process = Process(self.simulation, self, incarnation)
                try:
                    self._body(self.process)
                    return
                except ProcessStopped:
                    if not self._restart:
                        return
                    incarnation += 1
                    self.wait(self.simulation.chance.randint(*_RESTART_MS))
        except BaseException as error:  # noqa: BLE001 - the simulation raises it
            self.error = error
        finally:
            self.done = True
            self._parked.release()

    def wait(self, for_ms: int = 0) -> None:
        """In the actor's thread: let others go on, for at least this long."""
        if self._ending:
            return
        self.wake_ms = self.simulation.clock.time_ms + for_ms
        self._parked.release()
        self._turn.acquire()
        if self.process is not None:
            self.process.storage.stopped |= self._ending

    def go_on(self) -> None:
        """In the simulation's thread: let the actor run to its next request."""
        self._turn.release()
        if not self._parked.acquire(timeout=_REAL_TIMEOUT_S):
            self._stuck = True
            raise SimulationStuck(
                f"{self.name} did not come back: it waits for something other than a request, "
                "such as a lock that another process of the simulation holds"
            )
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Unwind the thread, if the run ended before the body did."""
        if self._thread is None or self._stuck:
            return
        self._ending = True
        if not self.done:
            self._turn.release()
        self._thread.join(timeout=_REAL_TIMEOUT_S)


class _ProcessStorage(FaultyStorage):
    """Waits before each request, and draws its fault."""

    def __init__(self, simulation: Simulation, actor: _Actor, chance: random.Random) -> None:
        super().__init__(simulation.storage)
        self._simulation = simulation
        self._actor = actor
        self.chance = chance

    def _before(self, text: str) -> None:  # noqa: ARG002 - whoever waits need not say for what
        self._actor.wait()
        moved_ms = self._actor.machine.jump()
        if moved_ms:
            self._note(f"its clock is set by {moved_ms} ms")

    def _note(self, text: str, fault: Fault | None = None) -> None:
        actor, simulation = self._actor, self._simulation
        if fault is not None and actor.process is not None:
            actor.process.faults += 1
        simulation.trace.append(Event(simulation.clock.time_ms, actor.name, text, fault))

    def _fault(self, text: str) -> Fault | None:
        fault = super()._fault(text) or self._actor.rates.draw(self.chance, text)
        if fault is None and self._simulation._fails_to_sync(text):  # noqa: SLF001 - see below
            fault = Fault.SYNC_FAILS
        self._note(text, fault)
        return fault

    def _wait(self, fault: Fault) -> None:
        for_ms = self._actor.rates.duration_ms(fault, self.chance)
        if fault is Fault.PAUSE and self._actor.machine.fall_asleep(for_ms):
            self._note(f"sleeps for {for_ms} ms, and so does its machine")
        self._actor.wait(for_ms)

    def _amid(self, text: str) -> None:
        """Let others go on; faults can happen here too."""
        self._actor.wait(self.chance.randint(*self._actor.rates.tear_ms))
        self._check_running(text)
        fault = self._actor.rates.draw(self.chance)
        self._note(f"in the middle of {text}", fault)
        match fault:
            case None:
                pass
            case Fault.STOP_BEFORE | Fault.STOP_AFTER:
                self.stopped = True
            case Fault.PAUSE | Fault.DELAY:
                self._wait(fault)
            case _:
                raise StorageError(f"injected failure in the middle of {text}")

    def _listing_looks(self) -> int:
        rate = self._actor.rates.tear_listing
        return self.chance.choice([2, 2, 3]) if rate and self.chance.random() < rate else 1

    def _split_deletion(self, names: Sequence[str]) -> list[Sequence[str]]:
        rate = self._actor.rates.tear_delete
        if not rate or self.chance.random() >= rate:
            return [names]
        order = self.chance.sample(names, len(names))
        ends = sorted(self.chance.randint(0, len(order)) for _ in range(self.chance.randint(1, 3)))
        return [
            order[start:end] for start, end in zip([0, *ends], [*ends, len(order)], strict=True)
        ]

    def _land_later(self, call: Callable[[], object]) -> None:
        simulation = self._simulation
        after_ms = self._actor.rates.duration_ms(Fault.LAND_LATE, self.chance)
        simulation._landings.append(  # noqa: SLF001 - two halves of one thing
            (simulation.clock.time_ms + after_ms, simulation.trace[-1].request, call)
        )

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        # Parallel requests may run in any order.
        made = list(calls)
        order = list(range(len(made)))
        if self._simulation.shuffles:
            self.chance.shuffle(order)
        results = super().gather([made[index] for index in order])
        found = dict(zip(order, results, strict=True))
        return [found[index] for index in range(len(made))]
