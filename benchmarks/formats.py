"""From which size on a segment is better a Parquet file: what ``record.format=auto`` rests on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rows import ROW_BYTES, batches
from timing import interleaved

import txnlog
from txnlog.clock import SystemClock
from txnlog.spark import read
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("columns", "parquet")
SIZES = (16, 64, 256, 1024, 4096)
"""KiB of records in an append."""


def measure(spark: SparkSession, folder: Path, total_bytes: int, repetitions: int) -> list[str]:
    """Lines of Markdown: by the size of appends, Parquet files' CPU time and bytes by batches'."""
    lines = [
        (
            f"{total_bytes >> 20} MiB of rows of 16 + 100 bytes, in appends of one size to one "
            "partition, in memory; for Spark on a disk, read to `noop`: by itself, and by the data "
            "source. Parquet files' CPU time by that of batches in columns, and their bytes."
        ),
        "",
        (
            "| KiB an append | appends | write | scan | scan of values | poll | iterating "
            "| first poll | Spark | bytes |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kib in SIZES:
        rows = max((kib << 10) // ROW_BYTES, 1)
        count = max(min(total_bytes // (kib << 10), 512), 1)
        lines.append(_line(spark, folder / str(kib), kib, rows, count, repetitions))
    return lines


def _line(
    spark: SparkSession, folder: Path, kib: int, rows: int, count: int, repetitions: int
) -> str:
    (piece,) = pa.Table.from_batches(batches(rows)).combine_chunks().to_batches()
    heap = attach(HeapStorage(), create=True, clock=SystemClock())
    disk = txnlog.open(str(folder), create=True)
    for name in FORMATS:
        for store in (heap, disk):
            _fill(store, name, name, piece, count)
    made = 0

    def write(name: str) -> None:
        nonlocal made
        made += 1
        _fill(heap, f"w{made}", name, piece, count)

    def forget() -> None:
        heap.topics.delete(f"w{made}")

    def poll(name: str) -> None:
        with closing(heap.consumer(name, auto_offset_reset="earliest")) as consumer:
            found = 0
            while some := consumer.poll(max_records=500):
                found += len(some)
        assert found == rows * count

    def iterate(name: str) -> None:
        with closing(
            heap.consumer(name, auto_offset_reset="earliest", stop_at_end=True)
        ) as consumer:
            assert sum(1 for _ in consumer) == rows * count

    def poll_once(name: str) -> None:
        with closing(heap.consumer(name, auto_offset_reset="earliest")) as consumer:
            assert consumer.poll(max_records=500)

    def scan(name: str, columns: list[str] | None) -> None:
        found = heap.scan(name, columns=columns).to_batches()
        assert sum(batch.num_rows for batch in found) == rows * count

    def by_spark(name: str) -> None:
        frame = read(spark, disk, name, columns=["key", "value"])
        frame.write.format("noop").mode("overwrite").save()

    values = partial(scan, columns=["value"])
    scans = [partial(scan, columns=None), values]
    works: list[Callable[[str], None]] = [write, *scans, poll, iterate, poll_once]
    ratios = [_ratio(work, repetitions, forget if work is write else None) for work in works]
    spark_runs = {name: partial(by_spark, name) for name in FORMATS}
    taken = interleaved(spark_runs, repetitions)
    ratios.append(taken["parquet"].cpu_s / taken["columns"].cpu_s)
    size = {n: sum(segment.size_bytes for segment in heap.topics.segments(n)) for n in FORMATS}
    ratios.append(size["parquet"] / size["columns"])
    return f"| {kib:,} | {count} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |"


def _ratio(
    work: Callable[[str], None], repetitions: int, cleanup: Callable[[], object] | None
) -> float:
    """CPU time of this process, which is told more finely than that of Spark's."""
    taken: dict[str, list[float]] = {name: [] for name in FORMATS}
    for _ in range(2 * repetitions + 1):
        for name in FORMATS:
            start = time.process_time()
            work(name)
            taken[name].append(time.process_time() - start)
            if cleanup is not None:
                cleanup()
    return statistics.median(taken["parquet"]) / statistics.median(taken["columns"])


def _fill(store: Store, topic: str, record_format: str, piece: pa.RecordBatch, count: int) -> None:
    store.topics.create(topic, config={"record.format": record_format})
    with store.producer() as producer:
        for _ in range(count):
            producer.send_batch(topic, piece)
            producer.flush()
