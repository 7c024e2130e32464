"""Many small segments, partitions and groups: on a local disk, and where requests take 20 ms."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import txnlog
from txnlog.clock import SystemClock
from txnlog.names import TopicPartition
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage

RECORDS = 10
REQUEST_S = 0.02


class SlowStorage(ForwardingStorage):
    """Answers each read and listing after 20 ms, as an object store may."""

    requests = 0

    def get(self, name: str) -> bytes:
        self._wait()
        return super().get(name)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        self._wait()
        return super().get_range(name, start, stop)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        self._wait()
        return super().list_names(folder, start_after)

    def _wait(self) -> None:
        self.requests += 1
        time.sleep(REQUEST_S)


def measure(folder: Path, count: int) -> list[str]:
    """Lines of Markdown: a table of what was done to ``count`` small things."""
    local = txnlog.open(str(folder / "small"), create=True)
    _fill(local, count)
    slow_storage = SlowStorage(local.storage)
    slow = attach(slow_storage, clock=SystemClock())
    heap = attach(HeapStorage(), create=True, clock=SystemClock())
    _fill(heap, count)
    groups = count // 5
    for number in range(groups):
        local.consumer("t", group_id=f"g{number}").commit({TopicPartition("t", 0): 1})
    consumer = heap.consumer("t", group_id="g", auto_offset_reset="earliest")
    while consumer.poll():
        pass
    slow_consumer = slow.consumer("t", auto_offset_reset="earliest")
    lines = [
        f"{count:,} segments of {RECORDS} records, each in a partition of its own.",
        "",
        "| what | CPU ms | elapsed ms | requests |",
        "|---|---|---|---|",
    ]
    rows: list[tuple[str, Callable[[], object], SlowStorage | None, int]] = [
        ("scan, local disk", lambda: _scan(local, count), None, 5),
        ("scan, 20 ms a request", lambda: _scan(slow, count), slow_storage, 1),
        ("oldest 10 records, 20 ms", lambda: slow.scan("t").head(10), slow_storage, 1),
        (
            "poll of 500 records, 20 ms",
            lambda: slow_consumer.poll(max_records=500),
            slow_storage,
            1,
        ),
        ("idle poll, in memory", consumer.poll, None, 9),
        (
            f"{groups:,} groups described, 20 ms",
            lambda: [*slow.groups.describe_all()],
            slow_storage,
            1,
        ),
        (f"{groups:,} groups listed, local disk", local.groups.list, None, 3),
    ]
    for what, work, counted, runs in rows:
        before = counted.requests if counted else 0
        cpu_s, elapsed_s = min(_timed(work) for _ in range(runs))
        requests = f"{counted.requests - before:,}" if counted else ""
        lines.append(f"| {what} | {cpu_s * 1e3:,.1f} | {elapsed_s * 1e3:,.1f} | {requests} |")
    return lines


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    cpu_s, elapsed_s = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu_s, time.perf_counter() - elapsed_s


def _fill(store: Store, count: int) -> None:
    store.topics.create("t", partitions=count)
    partitions = [number for number in range(count) for _ in range(RECORDS)]
    values = pa.array([b"x" * 100] * len(partitions), pa.binary())
    with store.producer() as producer:
        batch = {"value": values, "partition": pa.array(partitions, pa.int32())}
        producer.send_batch("t", pa.record_batch(batch))


def _scan(store: Store, count: int) -> None:
    assert store.scan("t").to_arrow().num_rows == count * RECORDS
