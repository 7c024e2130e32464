"""A queue: six workers in one group share out the jobs; one is killed, and each job is done once.

    python examples/recipes/workers.py --store worker-store

No Spark, no broker: each worker is a process that opens the store. What it makes of its jobs and
how far it has read are committed together, so another worker does a job that a dead one had begun,
and nothing of the first try is ever seen.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.synchronize import Event

import txnlog
from txnlog import ConsumerConfig
from txnlog.errors import CommitFailed

WORKERS = 6


def work(root: str, name: str, ended: Event) -> None:
    """One worker: do jobs until told to stop. Start over where the group has moved on."""
    store = txnlog.open(root)
    while not ended.is_set():
        try:
            do_jobs(store, name, ended)
        except CommitFailed as error:
            print(f"{name}: starts over: {type(error).__name__}")


def do_jobs(store: txnlog.Store, name: str, ended: Event) -> None:
    """Share in the jobs, and do them in transactions of up to 100."""
    with (
        store.consumer(
            "jobs",
            group_id="workers",
            config=ConsumerConfig(
                client_id=name, session_timeout_ms=3_000, heartbeat_interval_ms=500
            ),
            auto_offset_reset="earliest",
        ) as consumer,
        store.producer(transactional_id=name, transaction_timeout_ms=5_000) as producer,
    ):
        producer.init_transactions()
        while not ended.is_set():
            records = consumer.poll(max_records=100)
            if not records:
                time.sleep(0.05)
                continue
            with producer.transaction():
                for record in records:
                    producer.send("done", (record.value or b"") + b" by " + name.encode())
                producer.send_offsets_to_transaction(
                    consumer.positions(), consumer.group_metadata()
                )


def run(root: str, jobs: int) -> dict[str, int]:
    """Do so many new jobs; returns how many each worker has done."""
    store = txnlog.open(root, create=True)
    if "jobs" not in store.topics.list():
        store.topics.create("jobs", partitions=12)
        store.topics.create("done", partitions=1)
    before = store.scan("done").record_count
    with store.producer(partitioner="round_robin") as producer:
        for number in range(jobs):
            producer.send("jobs", f"job {number}".encode())
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    workers = {
        f"worker-{number}": context.Process(target=work, args=(root, f"worker-{number}", ended))
        for number in range(WORKERS)
    }
    for worker in workers.values():
        worker.start()
    wait_for(store, before + jobs // 4)
    workers["worker-0"].kill()
    wait_for(store, before + jobs)
    ended.set()
    for worker in workers.values():
        worker.join()
    done: dict[str, int] = {}
    for value in store.scan("done").to_arrow()["value"].to_pylist()[before:]:
        name = value.decode().rpartition(" ")[2]
        done[name] = done.get(name, 0) + 1
    return done


def wait_for(store: txnlog.Store, count: int) -> None:
    """Wait until so many jobs are done."""
    while store.scan("done").record_count < count:
        time.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", default="worker-store", help="path or URL of the store")
    parser.add_argument("--jobs", type=int, default=20_000, help="how many")
    given = parser.parse_args()
    for name, count in sorted(run(given.store, given.jobs).items()):
        print(f"{name}: {count:,} jobs")
