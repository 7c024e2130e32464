"""For tests of code built on txnlog: storages that fail on purpose, clocks that tests control.

    from txnlog.testing import FaultRates, Process, Simulation

    simulation = Simulation(seed=7, rates=FaultRates(stop=0.01, lose_response=0.01))
    simulation.store().topics.create("orders")

    def job(process: Process) -> None:
        with process.store().producer(transactional_id="etl") as producer: ...

    simulation.spawn("job", job, restart=True)
    simulation.run()

Everything is decided by the seed: the same seed, the same run, request by request. docs/TESTING.md
has the details. Nothing here is imported by ``import txnlog``, and nothing beyond txnlog is needed.
"""

from __future__ import annotations

from txnlog.testing.faults import ClockFaults, Fault, FaultRates
from txnlog.testing.faulty_storage import FaultyStorage, ProcessStopped
from txnlog.testing.heap_storage import HeapStorage
from txnlog.testing.simulation import (
    Choose,
    Event,
    Process,
    Simulation,
    SimulationStuck,
    preemptions,
    random_choice,
)
from txnlog.testing.virtual_clock import VirtualClock

__all__ = [
    "Choose",
    "ClockFaults",
    "Event",
    "Fault",
    "FaultRates",
    "FaultyStorage",
    "HeapStorage",
    "Process",
    "ProcessStopped",
    "Simulation",
    "SimulationStuck",
    "VirtualClock",
    "preemptions",
    "random_choice",
]
