"""Compaction by key of one partition: speed, memory, and how many records are left."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from timing import growth

import txnlog

FORMATS = ("columns", "kafka")
_BATCH_ROWS = 100_000
_KEY_BYTES, _VALUE_BYTES = 16, 100


def measure(folder: Path, count: int) -> list[str]:
    """Lines of Markdown: a topic of ``count`` records in which each key occurs ten times."""
    head = (
        f"{count:,} records of {_KEY_BYTES} + {_VALUE_BYTES} bytes in one partition, "
        f"{count // 10:,} keys, lz4, local disk. First all of it is dirty; then a tenth as many "
        "records follow, and supersede part of the clean ones. CPU time of a separate process, in "
        "all: keys are read and compared, records read, filtered, encoded and written. Memory is "
        "the growth since the store was opened."
    )
    lines = [
        head,
        "",
        "| format | part | records | left | CPU s | M records/s of one core | MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for record_format in FORMATS:
        store = txnlog.open(str(folder / f"compacted-{record_format}"), create=True)
        config = {"cleanup.policy": "compact", "record.format": record_format}
        store.topics.create("t", config=config)
        for part, rows in (("all dirty", count), ("a tenth more", count // 10)):
            _write(store, rows, count // 10, seed=rows)
            there = sum(segment.record_count for segment in store.topics.segments("t"))
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                taken_s, grown_mb = pool.submit(_compact, store.url).result()
            left = sum(segment.record_count for segment in store.topics.segments("t"))
            lines.append(
                f"| {record_format} | {part} | {there:,} | {left:,} | {taken_s:.2f} "
                f"| {there / taken_s / 1e6:.2f} | {grown_mb:.0f} |"
            )
    return lines


def _compact(url: str) -> tuple[float, float]:
    """The CPU seconds that it takes, and the MB that the process grows by."""
    store = txnlog.open(url)
    with growth() as grown:
        started_s = time.process_time()
        store.maintenance.compact("t")
        taken_s = time.process_time() - started_s
    return taken_s, grown[0]


def _write(store: txnlog.Store, count: int, keys: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    with store.producer() as producer:
        for start in range(0, count, _BATCH_ROWS):
            rows = min(_BATCH_ROWS, count - start)
            numbers = random.integers(0, keys, rows)
            values = np.full((rows, _VALUE_BYTES), ord("."), dtype=np.uint8)
            values[:, :50] = random.integers(48, 64, (rows, 50))
            batch = [
                _fixed(np.char.zfill(numbers.astype("S16"), _KEY_BYTES).tobytes(), _KEY_BYTES),
                _fixed(values.tobytes(), _VALUE_BYTES),
            ]
            producer.send_batch("t", pa.record_batch(batch, names=["key", "value"]))


def _fixed(data: bytes, width: int) -> pa.Array:
    offsets = np.arange(0, len(data) + 1, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
