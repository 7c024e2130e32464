"""A worker of a group in a process of its own, for tests that kill and stop it.

``group_worker.py URL MODE NAME NOTES``: copies ``in`` to ``out`` in transactions, or notes in a
file what it has read and commits then. Ends on SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import txnlog
from txnlog import ConsumerConfig
from txnlog.consumer import Consumer
from txnlog.errors import TxnlogError
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.store import Store


def open_consumer(store: Store, name: str) -> Consumer:
    return store.consumer(
        "in",
        group_id="g",
        auto_offset_reset="earliest",
        config=ConsumerConfig(
            client_id=name,
            session_timeout_ms=2_000,
            heartbeat_interval_ms=400,
            max_poll_interval_ms=10_000,
        ),
    )


def copy(consumer: Consumer, producer: Producer) -> bool:
    """Copy a few records in a transaction; whether there were any."""
    records = consumer.poll(max_records=2_000)
    if not records:
        return False
    with producer.transaction():
        moved = {}
        for record in records:
            producer.send("out", record.value)
            moved[TopicPartition(record.topic, record.partition)] = record.offset + 1
        producer.send_offsets_to_transaction(moved, consumer.group_metadata())
    return True


def note(consumer: Consumer, notes: Path) -> bool:
    """Note a few records, then commit; whether there were any."""
    records = consumer.poll(max_records=2_000)
    if not records:
        return False
    with notes.open("ab") as file:
        file.write(b"".join((record.value or b"") + b"\n" for record in records))
    consumer.commit()
    return True


def work(url: str, mode: str, name: str, notes: Path) -> None:
    store = txnlog.open(url)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    consumer, producer = open_consumer(store, name), None
    while not ended:
        try:
            if mode == "transactions" and producer is None:
                producer = store.producer(transactional_id=name, transaction_timeout_ms=3_000)
                producer.init_transactions()
            done = note(consumer, notes) if producer is None else copy(consumer, producer)
            if not done:
                time.sleep(0.05)
        except TxnlogError as error:
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            consumer.close()
            consumer, producer = open_consumer(store, name), None
    consumer.close()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
