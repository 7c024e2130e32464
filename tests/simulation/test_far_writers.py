"""Many writers of one topic on a disk that is far away do not starve.

In virtual time, so the machine has no influence; `benchmarks/far_writers.py` has larger runs.
"""

from __future__ import annotations

import pytest

from tests.support.simulation.slow_requests import SlowRequests
from txnlog.testing import HeapStorage, Process, Simulation

WRITERS = 32
REQUEST_MS = (5, 5)
BEGIN_MS = 500
END_MS = BEGIN_MS + 400


def run(*, like_disk: bool) -> tuple[list[int], int]:
    """How long each commit took (ms, ascending), and the requests of all writers."""
    simulation = Simulation(storage=HeapStorage(like_disk=like_disk), step_ms=(0, 0))
    simulation.store().topics.create("t", partitions=4)
    begun_ms = simulation.clock.time_ms
    took_ms: list[int] = []
    requests = 0

    def write(process: Process) -> None:
        nonlocal requests
        slow = SlowRequests(process, REQUEST_MS)
        producer = process.store().producer(transactional_id=process.name)
        producer.init_transactions()
        while (now_ms := simulation.clock.time_ms - begun_ms) < END_MS:
            if now_ms < BEGIN_MS:
                slow.counts.clear()
            with producer.transaction():
                producer.send("t", b"x")
            if now_ms >= BEGIN_MS:
                took_ms.append(simulation.clock.time_ms - begun_ms - now_ms)
        requests += slow.counts.total()

    for number in range(WRITERS):
        simulation.spawn(f"w{number}", write)
    simulation.run()
    return sorted(took_ms), requests


@pytest.mark.more
def test_a_far_disk_is_half_as_fast_as_a_storage_that_lists() -> None:
    listing, requests = run(like_disk=False)
    disk, disk_requests = run(like_disk=True)
    assert len(disk) > 0.5 * len(listing)
    assert disk[len(disk) * 99 // 100] < 1000
    assert disk_requests / len(disk) < 2 * requests / len(listing)
