"""Records one by one, as consumers and producers of Kafka's API have them, without Spark."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import beside_kafka
import pyarrow as pa
from timing import interleaved

import txnlog
from txnlog import ConsumerConfig
from txnlog.store import Store

_VALUE = b"v" * 100
_LARGE = 1_000_000


def measure(folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: records a second of each way, beside what Arrow's own lists take."""
    store = txnlog.open(str(folder / "records"), create=True)
    store.topics.create("read")
    keys = [b"%016d" % number for number in range(count)]
    with store.producer() as producer:
        values = pa.array([_VALUE] * count, pa.binary())
        producer.send_batch("read", pa.record_batch({"key": keys, "value": values}))
    store.topics.create("sent")
    runs: dict[str, Callable[[], object]] = {
        "`to_pylist()` of a scan's batches (the yardstick)": lambda: _list(store),
        "`send`, and `flush`": lambda: _send(store, keys),
        "iterating": lambda: _iterate(store),
        "`poll(max_records=10_000)`": lambda: _poll(store),
        "`poll_batches()`": lambda: _poll_batches(store),
    }
    taken = interleaved(runs, repetitions)
    (yardstick, *_) = taken.values()
    lines = [
        f"{count:,} records of 16 + 100 bytes, one partition, a local disk, median of",
        f"{repetitions} alternating runs. The last column is by CPU time.",
        "",
        "| what | records/s | records a CPU second | to the yardstick |",
        "|---|---|---|---|",
    ]
    for what, time in taken.items():
        lines.append(
            f"| {what} | {count / time.elapsed_s / 1e3:,.0f} k | {count / time.cpu_s / 1e3:,.0f} k "
            f"| {yardstick.cpu_s / time.cpu_s:.1f} |"
        )
    ours = {
        "send": lambda: _send(store, keys),
        "iterate": lambda: _iterate(store),
        "poll": lambda: _poll(store),
    }
    beside = beside_kafka.measure(folder, count, repetitions, ours)
    return [*lines, "", *beside, "", *_memory(store, folder)]


def measure_sends(folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: ways to send, beside confluent-kafka's."""
    store = txnlog.open(str(folder / "sends"), create=True)
    store.topics.create("sent")
    store.topics.create("typed", schema=pa.schema([("id", pa.binary()), ("text", pa.binary())]))
    keys = [b"%016d" % number for number in range(count)]
    mappings = [{"key": key, "value": _VALUE} for key in keys]
    dataclasses = [_Sent(key, _VALUE) for key in keys]
    typed = [{"id": key, "text": _VALUE} for key in keys]
    ours: dict[str, Callable[[], object]] = {
        "`send`, and `flush`": lambda: _send(store, keys),
        "`send` without a key": lambda: _send(store, [None] * count),
        "`send_batch` of lists of 10,000 mappings": lambda: _send_lists(store, "sent", mappings),
        "the same of dataclasses": lambda: _send_lists(store, "sent", dataclasses),
        "the same of mappings, to a typed topic": lambda: _send_lists(store, "typed", typed),
    }
    return beside_kafka.measure_sends(count, repetitions, ours)


@dataclass(slots=True)
class _Sent:
    key: bytes
    value: bytes


def _send_lists(store: Store, topic: str, rows: list[Any]) -> None:
    with store.producer() as producer:
        for start in range(0, len(rows), 10_000):
            producer.send_batch(topic, rows[start : start + 10_000])


def _list(store: Store) -> None:
    columns = ["key", "value", "offset", "timestamp"]
    for batch in store.scan("read", columns=columns).to_batches():
        for _ in batch.to_pylist():
            pass


def _send(store: Store, keys: Sequence[bytes | None]) -> None:
    with store.producer() as producer:
        send = producer.send
        for key in keys:
            send("sent", _VALUE, key)


def _iterate(store: Store) -> None:
    for _ in store.consumer("read", auto_offset_reset="earliest", stop_at_end=True):
        pass


def _poll(store: Store) -> None:
    consumer = store.consumer("read", auto_offset_reset="earliest")
    while records := consumer.poll(max_records=10_000):
        for _ in records:
            pass


def _poll_batches(store: Store) -> None:
    consumer = store.consumer("read", auto_offset_reset="earliest")
    while consumer.poll_batches():
        pass


def _memory(store: Store, folder: Path) -> list[str]:
    """Bytes per record, and the peak memory of processes that read a large topic."""
    consumer = store.consumer("read", auto_offset_reset="earliest")
    consumer.poll(max_records=1)
    tracemalloc.start()
    held = consumer.poll(max_records=10_000)
    consumer.close()
    per_record = tracemalloc.get_traced_memory()[0] / len(held)
    tracemalloc.stop()
    url = str(folder / "large")
    large = txnlog.open(url, create=True)
    large.topics.create("read", partitions=4)
    # Bytes that do not shrink: what is fetched is as large as what is read.
    import numpy as np

    rng = np.random.default_rng(1)
    with large.producer(compression_type="none") as producer:
        for _ in range(4):
            noise = rng.bytes(_LARGE // 4 * 400)
            values = pa.Array.from_buffers(pa.binary(400), _LARGE // 4, [None, pa.py_buffer(noise)])
            producer.send_batch("read", pa.record_batch({"value": values}))
    lines = [
        f"A record in memory takes {per_record:.0f} bytes, of which its key and value are 116.",
        f"{_LARGE * 400 / 1e6:.0f} MB in 4 partitions, read in a separate process from a storage",
        "that waits 5 ms for each request; memory beyond that of a process that has read nothing:",
        "",
        "| reading | `fetch_max_bytes` | peak, MB |",
        "|---|---|---|",
    ]
    idle = _peak_mb(url, "nothing", 1)
    for way in ("iterate", "batches"):
        for most in (1 << 20, 8 << 20, 50 << 20):
            peak = _peak_mb(url, way, most) - idle
            lines.append(f"| {way} | {most >> 20} MiB | {peak:.0f} |")
    return lines


def _peak_mb(url: str, way: str, most_bytes: int) -> float:
    done = subprocess.run(
        [sys.executable, __file__, url, way, str(most_bytes)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def _read_large(url: str, way: str, most_bytes: int) -> None:
    """In a separate process: read everything, and print the peak of its memory in MB."""
    import time

    from txnlog.clock import SystemClock
    from txnlog.storage import open_storage
    from txnlog.storage.forwarding import ForwardingStorage
    from txnlog.store import attach

    class Waiting(ForwardingStorage):
        def get_range(self, name: str, start: int, stop: int) -> bytes:
            time.sleep(0.005)
            return super().get_range(name, start, stop)

    store = attach(Waiting(open_storage(url)), clock=SystemClock())
    consumer = store.consumer(
        "read",
        auto_offset_reset="earliest",
        config=ConsumerConfig(fetch_max_bytes=most_bytes),
        stop_at_end=True,
    )
    if way == "iterate":
        assert sum(1 for _ in consumer) == _LARGE
    elif way == "batches":
        while consumer.poll_batches():
            pass
    # Not ru_maxrss: that starts at the parent's.
    status = Path("/proc/self/status").read_text()
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


if __name__ == "__main__":
    _read_large(sys.argv[1], sys.argv[2], int(sys.argv[3]))
