"""What a commit, an idle poll and a cold plan cost as a store grows, by real commits."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from txnlog.consumer import Consumer
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage

TOPICS = ("a", "b")
WINDOW = 256
"""Commits that are measured together: checkpoints and manifests come in between."""
_WARM = 144
"""Commits of a new store before it is measured."""


def measure(folder: Path, commits: int) -> Iterator[str]:
    """Markdown lines: costs at some moments of a store's growth, on disk and in memory."""
    yield f"One producer, {len(TOPICS)} topics and a group in each transaction; defaults. CPU in"
    yield "ms (user and system), metadata put, requests. An idle poll is one by a"
    yield "consumer of both topics that finds nothing; a cold plan is a plan of the last 1,000"
    yield "records by a process that has just started. All within one cleaning age."
    for name, storage in (
        ("local disk, not synced", open_storage(str(folder / "growth")).without_fsync()),
        ("memory, listings like S3's", HeapStorage()),
    ):
        yield ""
        yield f"### {name}"
        yield ""
        yield "| commit | CPU each | KB each | requests each | idle poll, ms | cold plan |"
        yield "|---|---|---|---|---|---|"
        yield from _grow(storage, commits)
    shutil.rmtree(folder / "growth", ignore_errors=True)


def measure_beside_new(commits: int) -> Iterator[str]:
    """Markdown lines: windows of a grown store, in memory, alternating with a new store's.

    CPU is of one process in one run, so that ratios hold on a busy machine too.
    """
    yield "| commit | CPU each, ms | of a new store | ratio |"
    yield "|---|---|---|---|"
    grown, done = _producer(HeapStorage()), 0
    for at in _moments(commits):
        _commit(grown, done, at - done)
        done = at
        for _ in range(5):
            new = _producer(HeapStorage())
            _commit(new, 0, _WARM)
            grown_ms, new_ms = _window_ms(grown, done), _window_ms(new, _WARM)
            done += WINDOW
            yield f"| {at:,} | {grown_ms:.2f} | {new_ms:.2f} | {grown_ms / new_ms:.2f} |"


def _producer(storage: Storage) -> Producer:
    store = attach(storage, create=True)
    for topic in TOPICS:
        store.topics.create(topic)
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    return producer


def _window_ms(producer: Producer, first: int) -> float:
    cpu_s = _cpu_s()
    _commit(producer, first, WINDOW)
    return (_cpu_s() - cpu_s) * 1000 / WINDOW


def _grow(storage: Storage, commits: int) -> Iterator[str]:
    counting = WeighingStorage(storage)
    producer = _producer(counting)
    consumer = attach(storage).consumer(*TOPICS, group_id="g", auto_offset_reset="earliest")
    done, moments = 0, _moments(commits)
    for at in moments:
        _commit(producer, done, at - WINDOW - done)
        done = at - WINDOW
        counting.take()
        counting.put_bytes = 0
        cpu_ms = _window_ms(producer, done)
        requests = sum(counting.take().values()) / WINDOW
        done = at
        while consumer.poll():
            pass
        yield (
            f"| {at:,} | {cpu_ms:.2f} | {counting.put_bytes / WINDOW / 1000:.1f} | {requests:.2f} "
            f"| {_idle_poll_ms(consumer):.2f} | {_cold_plan(storage)} |"
        )


class WeighingStorage(CountingStorage):
    """Counts requests, and the bytes of small objects put."""

    put_bytes = 0

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.put_bytes += len(data)
        return super().put_if_absent(name, data)

    def put(self, name: str, data: bytes) -> None:
        self.put_bytes += len(data)
        super().put(name, data)


def _moments(commits: int) -> list[int]:
    return [n for n in (400, 2000, 8000, 32_000, 100_000) if n <= commits]


def _commit(producer: Producer, first: int, count: int) -> None:
    for number in range(first, first + count):
        with producer.transaction():
            for topic in TOPICS:
                producer.send(topic, b"%d" % number)
            offsets = {TopicPartition("a", 0): number}
            producer.send_offsets_to_transaction(offsets, "offsets")


def _idle_poll_ms(consumer: Consumer) -> float:
    times = []
    for _ in range(9):
        began = _cpu_s()
        consumer.poll()
        times.append((_cpu_s() - began) * 1000)
    return sorted(times)[4]


def _cold_plan(storage: Storage) -> str:
    counting = CountingStorage(storage)
    began = _cpu_s()
    store: Store = attach(counting)
    snapshot = store.snapshot(["a"])
    end = snapshot.end_offsets("a")[0]
    scan = snapshot.scan("a", {0: max(end - 1000, 0)})
    cpu_ms = (_cpu_s() - began) * 1000
    assert scan.record_count == min(end, 1000)
    spent: Counter[str] = Counter(counting.take())
    return f"{cpu_ms:.0f} ms, {spent['list']} listings, {spent['get']} reads"


def _cpu_s() -> float:
    return time.process_time()


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as there:
        started = time.monotonic()
        commits = int(sys.argv[1]) if sys.argv[1:] else 8000
        beside = "beside" in sys.argv
        lines = measure_beside_new(commits) if beside else measure(Path(there), commits)
        for line in lines:
            print(line, flush=True)
        print(f"{time.monotonic() - started:.0f} s")
