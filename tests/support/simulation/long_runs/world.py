"""What the processes of a long run share: a store, a judge, and how they go on after errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.simulation.long_runs.judge import Intent, Judge, Violation
from txnlog.errors import CorruptEntry, CorruptRecord, TxnlogError
from txnlog.testing import Process, Simulation

PARTITIONS = {"left": 2, "right": 1, "in": 2, "out": 1, "again": 1}
OUTPUTS = ("left", "right", "out")
TIMEOUT_MS = 10_000
MOST_SKEW_MS = 2_000

Body = Callable[["World", Process], None]


@dataclass
class World:
    """One store and all that its processes share besides it."""

    simulation: Simulation
    transactions: int
    cleanup_age_ms: int
    skew_ms: int = MOST_SKEW_MS
    judge: Judge = field(default_factory=Judge)
    done: dict[str, int] = field(default_factory=dict)
    running: int = 0
    names: int = 0
    refused: int = 0

    def new_intent(self, process: Process) -> Intent:
        self.names += 1
        return self.judge.begin(f"{process.name}.{self.names}")

    def left_for(self, process: Process, cost: int = 1) -> bool:
        """Count one more turn of a process, over all its incarnations; a long one costs more."""
        self.done[process.name] = self.done.get(process.name, 0) + cost
        return self.done[process.name] <= self.transactions

    def spawn(self, name: str, body: Body, *, writes: bool = True, skew_ms: int = 0) -> None:
        """Add a process that starts over when it is stopped; writers keep the others going."""
        self.running += writes

        def outer(process: Process) -> None:
            body(self, process)
            self.running -= writes

        self.simulation.spawn(name, outer, restart=True, skew_ms=skew_ms)


def prepare(simulation: Simulation, cleanup_age_ms: int, transactions: int, skew_ms: int) -> World:
    """A store with the topics of all these processes."""
    store = simulation.store(
        config={
            "transaction.max.timeout.ms": TIMEOUT_MS,
            "log.cleanup.age.ms": cleanup_age_ms,
        }
    )
    for topic, partitions in PARTITIONS.items():
        store.topics.create(topic, partitions=partitions)
    world = World(simulation, transactions, cleanup_age_ms, skew_ms)
    simulation.on_power_cut = world.judge.power_cut
    return world


@contextmanager
def survived() -> Iterator[None]:
    """Errors are a part of life, and the next turn starts over; damage is not."""
    try:
        yield
    except (CorruptEntry, CorruptRecord) as error:
        raise Violation("damage", repr(error)) from error
    except TxnlogError:
        pass
