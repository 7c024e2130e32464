"""A bridge from Kafka beside Kafka's client that only reads: seconds, and CPU seconds.

    python benchmarks/bridge.py [--records 500000]

The broker is Kafka's own, see beside_kafka.py; its CPU time is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
from beside_kafka import broker
from machine import describe_machine

import txnlog
from txnlog.bridge import KafkaSource
from txnlog.bridge.client import Cluster

PARTITIONS = 4
VALUE = b"v" * 100


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory() as name, broker(Path(name)) as (servers, _):
        _fill(servers, count)
        store = txnlog.open(str(Path(name) / "store"), create=True)
        taken: dict[str, list[tuple[float, float]]] = {"client alone": [], "bridge": []}
        for turn in range(4):
            bridge = KafkaSource(store, servers, ["t"], name=f"turn-{turn}")
            runs: dict[str, Callable[[], object]] = {
                "client alone": lambda: _read(servers, count),
                "bridge": partial(bridge.run, until_end=True),
            }
            for what, run in runs.items():
                begun = time.perf_counter(), time.process_time()
                run()
                spent = time.perf_counter() - begun[0], time.process_time() - begun[1]
                if turn:  # the first one warms up
                    taken[what].append(spent)
        assert store.scan("t").record_count == 4 * count
    print("\n".join([*describe_machine(), "", "| | records/s | records / CPU second |"]))
    print("|---|---|---|")
    for what, times in taken.items():
        wall, cpu = (statistics.median(some) for some in zip(*times, strict=True))
        print(f"| {what} | {count / wall:,.0f} | {count / cpu:,.0f} |")


def _fill(servers: str, count: int) -> None:
    new = confluent_kafka.admin.NewTopic("t", PARTITIONS, 1)  # type: ignore[attr-defined]
    admin = Cluster(servers).admin()  # what it was asked for ends with it
    admin.create_topics([new])["t"].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "compression.type": "lz4"})
    for number in range(count):
        while True:
            try:
                producer.produce("t", VALUE, b"%016d" % number, number % PARTITIONS)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush()


def _read(servers: str, count: int) -> None:
    consumer = Cluster(servers).consumer("alone")
    begin = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition("t", n, begin) for n in range(PARTITIONS)])
    left = count
    while left:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is None:
                left -= 1
                message.key(), message.value(), message.timestamp(), message.headers()
    consumer.close()


if __name__ == "__main__":
    main()
