"""Memory of a task's Python process, and the cost of planning, for a large topic."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rows import ROW_BYTES, write_parquet
from timing import descendants

import txnlog
from txnlog.clock import SystemClock
from txnlog.log.uploads import UploadedSegment
from txnlog.spark import register
from txnlog.spark.batch.pinned_read import pin_read
from txnlog.spark.batch.tasks import group_ranges
from txnlog.spark.options.read_options import parse_read
from txnlog.state.segment import StoredSegment
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach

PARTITIONS = 200
SEGMENTS = 10_000


def measure(
    session: Callable[[], AbstractContextManager[SparkSession]], folder: Path, count: int
) -> list[str]:
    """Lines of Markdown: memory of a write and a read of one large topic, each in new workers."""
    parquet = folder / "memory.parquet"
    write_parquet(parquet, min(count, 3_000_000), files=4)
    store = txnlog.open(str(folder / "memory-store"), create=True)
    store.topics.create("large", partitions=PARTITIONS)
    with session() as spark:
        register(spark)
        idle_mb = _idle_mb(spark)
        source = spark.read.parquet(str(parquet))
        for _ in range(-(-count // 3_000_000) - 1):
            source = source.unionAll(spark.read.parquet(str(parquet)))
        options = {"path": store.url, "topic": "large"}
        with _peak() as written:
            source.write.format("txnlog").options(**options).mode("append").save()
    with session() as spark:
        register(spark)
        given = {"path": store.url, "subscribe": "large"}
        with _peak() as read:
            _drain(spark.read.format("txnlog").options(**given).load())
    size_gb = store.scan("large").record_count * ROW_BYTES / 1e9
    head = (
        f"{size_gb:.1f} GB of keys and values in {PARTITIONS} partitions; the largest resident "
        f"size of any Python worker. One that has only started takes {idle_mb:.0f} MB."
    )
    lines = ["| task | MB | beyond the idle worker's |", "|---|---|---|"]
    for name, peak in (("write", written), ("read", read)):
        lines.append(f"| {name} | {peak[0]:.0f} | {peak[0] - idle_mb:.0f} |")
    return [head, "", *lines, "", *_planning(folder)]


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _idle_mb(spark: SparkSession) -> float:
    """The resident size of a worker that has imported pyspark and pyarrow and done nothing."""

    def nothing(batches: Iterator[object]) -> Iterator[object]:
        yield from batches

    with _peak() as idle:
        _drain(spark.range(10).mapInArrow(nothing, "id long"))
    return idle[0]


@contextmanager
def _peak() -> Iterator[list[float]]:
    """The largest resident size (MB) of a Python process below this one, sampled all the time."""
    peak = [0.0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.005):
            peak[0] = max([peak[0], *_worker_sizes_mb()])

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _worker_sizes_mb() -> Iterator[float]:
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1e6
    for pid, fields in descendants().items():
        if pid == os.getpid():
            continue
        with suppress(OSError):
            if Path(f"/proc/{pid}/exe").resolve().name.startswith("python"):
                yield int(fields[21]) * page_mb


def _planning(folder: Path) -> list[str]:
    """A plan of a topic of many segments, by a process that knows nothing of it."""
    root = str(folder / "planning-store")
    store = txnlog.open(root, create=True)
    store.topics.create("t", partitions=100)
    spec = store.logs.topic_spec("t")
    for number in range(SEGMENTS // 100):
        placed = [
            UploadedSegment(
                "t", spec.topic_id, partition, StoredSegment(f"s{number}", 1000, 100_000, 0, 0)
            )
            for partition in range(100)
        ]
        store.logs.topic("t").place(placed)
        store.logs.topic("t").checkpoint_if_due()
    counting = CountingStorage(store.storage)
    opened = attach(counting, clock=SystemClock())
    counting.take()
    before = time.process_time()
    pinned = pin_read(opened, parse_read({"path": "unused", "subscribe": "t"}))
    tasks = group_ranges(pinned.ranges)
    cpu_s = time.process_time() - before
    assert len(pinned.ranges) == SEGMENTS
    requests = ", ".join(f"{count} {kind}" for kind, count in sorted(counting.take().items()))
    line = (
        f"Planning a topic of {SEGMENTS:,} segments, into {len(tasks)} tasks, takes "
        f"{cpu_s:.2f} s of CPU and these requests: {requests}."
    )
    return [line]
