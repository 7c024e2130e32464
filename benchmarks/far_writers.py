"""Many transactional writers of one topic on storages whose requests take a while, in virtual time.

The load on the machine has no influence: time passes by requests alone, and each run is a function
of its seed. `disk` is asked for names one by one (SFTP, HDFS, NFS), `listing` lists in order, as
object stores do. What an answer's bytes cost is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from txnlog.testing import HeapStorage, Process, Simulation

WRITERS = 32
SECONDS = 4
WARM_MS = 1_000


def run(
    request_ms: int, *, like_disk: bool, writers: int = WRITERS, seconds: float = SECONDS
) -> str:
    """One line of Markdown."""
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.support.simulation.slow_requests import SlowRequests

    simulation = Simulation(1, storage=HeapStorage(like_disk=like_disk), step_ms=(0, 0))
    simulation.store().topics.create("t", partitions=4)
    took_ms: list[int] = []
    counts: Counter[str] = Counter()
    begin_ms = simulation.clock.time_ms + WARM_MS + 100 * request_ms
    end_ms = begin_ms + int(1000 * seconds)

    def write(process: Process) -> None:
        far = SlowRequests(process, (request_ms, request_ms))
        producer = process.store().producer(transactional_id=process.name)
        producer.init_transactions()
        while (begun_ms := simulation.clock.time_ms) < end_ms:
            if begun_ms < begin_ms:
                far.counts.clear()
            producer.begin_transaction()
            producer.send("t", b"x" * 100)
            producer.commit_transaction()
            if begun_ms >= begin_ms:
                took_ms.append(simulation.clock.time_ms - begun_ms)
        counts.update(far.counts)

    for number in range(writers):
        simulation.spawn(f"writer-{number}", write)
    simulation.run(max_steps=10_000_000)
    times = sorted(took_ms)
    return (
        f"| {'disk' if like_disk else 'listing'} | {request_ms} | {writers} "
        f"| {len(times) / seconds:.0f} | {times[len(times) // 2] / 1000:.2f} "
        f"| {times[len(times) * 99 // 100] / 1000:.2f} | {times[-1] / 1000:.2f} "
        f"| {counts.total() / len(times):.0f} | "
        + ", ".join(f"{kind} {n / len(times):.1f}" for kind, n in counts.most_common(5))
        + " |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, nargs="+", default=[WRITERS])
    parser.add_argument("--request-ms", type=int, nargs="+", default=[2, 5, 20])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    chosen = parser.parse_args()
    print(
        "| storage | ms a request | writers | commits/s | median s | p99 s | worst s "
        "| requests a commit | of these |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for writers in chosen.writers:
        for request_ms in chosen.request_ms:
            for like_disk in (False, True):
                line = run(request_ms, like_disk=like_disk, writers=writers, seconds=chosen.seconds)
                print(line, flush=True)


if __name__ == "__main__":
    main()
