"""A process that lives long: it writes, reads and maintains a store on a disk, while names pass.

Run as ``python long_life.py FOLDER TRANSACTIONS``. Says what it holds, in a line of JSON now and
then: SAMPLES in all.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa

from tests.support.runtime.held_sizes import held_sizes
from tests.support.steps import another
from txnlog.consumer import Consumer
from txnlog.log import manifests, sequence_log, settlement
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.results import MaintenanceFailure
from txnlog.storage import open_storage
from txnlog.store import Store, attach
from txnlog.write import coordinator, record_buffers, topic_buffer

SAMPLES = 48
AGE_MS = 20_000
"""What is left behind is deleted when it is so old: much sooner than elsewhere."""
FORMATS = ("auto", "parquet", "kafka")


class Passing:
    """A store in which topics, groups and transactional ids come and go, and three clients stay."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.topics.create("stays")
        self.transactional = self._producer("stays")
        self.transactional.init_transactions()
        self.plain: Producer = store.producer()
        self.consumer: Consumer = store.consumer(auto_offset_reset="earliest")

    def _producer(self, transactional_id: str) -> Producer:
        return self.store.producer(transactional_id=transactional_id, transaction_timeout_ms=AGE_MS)

    def turn(self, number: int) -> None:
        """Names that are used once: written and read by those that stay and others, and gone."""
        name = f"passing-{number}"
        self.store.topics.create(name, partitions=2)
        with self.transactional.transaction():
            self.transactional.send(name, b"a")
            self.transactional.send("stays", b"b")
        self.plain.send(name, b"c")
        self.plain.flush()
        with self._producer(name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(name, b"d", partition=0)
            producer.flush()
            self.consumer.subscribe(["stays", name])
            assert self.consumer.poll(timeout_ms=0)  # which finds an open transaction
            producer.commit_transaction()
        with self.store.consumer(name, group_id=name, auto_offset_reset="earliest") as consumer:
            assert consumer.poll(timeout_ms=0)
            consumer.commit()
        assert self.store.snapshot([name, "stays"]).scan(name).to_arrow().num_rows == 3
        self.store.topics.delete(name)
        self.store.groups.delete(name)
        self.consumer.poll(timeout_ms=0)

    def sizes(self) -> Counter[str]:
        """The containers of all that stays."""
        return held_sizes(self.store, self.transactional, self.plain, self.consumer)


def handles() -> dict[str, int]:
    """What the process holds of the operating system's, but for its memory."""
    gc.collect()
    return {"threads": threading.active_count(), "descriptors": len([*Path("/dev/fd").iterdir()])}


def resident_bytes() -> int:
    """How much of this process is in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def process_sizes(passing: Passing) -> dict[str, int]:
    """What this process holds: memory, bytes of Arrow, objects, containers, threads, files."""
    held = handles()
    return {
        "resident": resident_bytes(),
        "arrow": pa.total_allocated_bytes(),
        "objects": len(gc.get_objects()),
        **passing.sizes(),
        **held,
    }


def live(folder: str, transactions: int) -> None:
    """Transactions of a job that copies, reads and maintains, and of names that pass."""
    # So much is remembered at any time; the rest of it would be soon.
    sequence_log.KEPT_NAMES = record_buffers._KEPT_TOPICS = settlement._MOST_REMEMBERED = 10
    coordinator._MOST_WRITTEN = 100
    sequence_log.IDLE_S = topic_buffer.METADATA_MAX_AGE_S = AGE_MS / 1000
    manifests._REWRITES_KEPT_MS = AGE_MS
    config = dict.fromkeys(
        ("transaction.max.timeout.ms", "log.cleanup.age.ms", "producer.id.expiration.ms"), AGE_MS
    )
    store = attach(open_storage(folder), create=True, config=config)
    # By bytes, so that on a machine that gets faster meanwhile there is not more.
    kept = {"retention.ms": AGE_MS, "retention.bytes": 20_000, "file.delete.delay.ms": AGE_MS}
    for record_format in FORMATS:
        own = {**kept, "record.format": record_format}
        store.topics.create(record_format, partitions=2, config=own)
    passing = Passing(store)
    # Its segments were replaced again and again, which is known for as long as their files stay.
    store.topics.alter("stays", config={"file.delete.delay.ms": AGE_MS})
    consumer = store.consumer("parquet", group_id="g", auto_offset_reset="earliest")
    producer = passing.transactional
    for number in range(transactions):
        with producer.transaction():
            for record_format in FORMATS:
                producer.send(record_format, b"%0100d" % number, key=b"%d" % (number % 7))
            if records := consumer.poll(max_records=20, timeout_ms=0):
                ends = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
                producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        if number % 10 == 0:
            snapshot = store.snapshot(FORMATS)
            shown = snapshot.scan("parquet")
            begins = shown.start_offsets
            last = {at: max(end - 20, begins[at]) for at, end in shown.end_offsets.items()}
            assert snapshot.scan("parquet", last).to_arrow().num_rows > 0
        if number % 50 == 0:
            passing.turn(number)
        if number % 200 == 0:
            # By another process: one that maintains has met every name that the store still has.
            steps = another(store).maintain()
            assert [step for step in steps if isinstance(step, MaintenanceFailure)] == []
        if number * SAMPLES // transactions != (number + 1) * SAMPLES // transactions:
            sys.stdout.write(f"{json.dumps(process_sizes(passing))}\n")
            sys.stdout.flush()
    consumer.close()


if __name__ == "__main__":
    live(sys.argv[1], int(sys.argv[2]))
