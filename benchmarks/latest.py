"""The newest record of each key: CPU beside a scan of all, and memory for each distinct key."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from timing import growth

import txnlog

KEY_BYTES = (8, 16, 100)
_VALUE = b"." * 100
_BATCH_ROWS = 100_000


def measure(folder: Path, count: int) -> list[str]:
    """Lines of Markdown: a topic of ``count`` records in which each key occurs twice, by key size.

    A key's memory is the growth over that of half as many keys, by the difference in keys.
    """
    head = (
        f"{count:,} records with values of 100 bytes in 4 partitions, {count // 2:,} keys, lz4. "
        "CPU and memory of a separate process each. Bytes a key: how much more the process grows "
        "than over a topic of half as many keys, by their difference; the documents say about 300 "
        "and five times the key's size."
    )
    lines = [
        head,
        "",
        "| bytes of a key | scan, CPU s | latest=True, CPU s | MB | bytes a key | documents |",
        "|---|---|---|---|---|---|",
    ]
    store = txnlog.open(str(folder / "latest"), create=True)
    for size in KEY_BYTES:
        for part, rows in (("half", count // 2), ("whole", count)):
            topic = f"{part}-{size}"
            store.create_topic(topic, partitions=4)
            _write(store, topic, rows, size)
        scanned_s, _ = _measured(store.url, f"whole-{size}", rows=count, latest=False)
        _, half_mb = _measured(store.url, f"half-{size}", rows=count // 4, latest=True)
        latest_s, whole_mb = _measured(store.url, f"whole-{size}", rows=count // 2, latest=True)
        each = (whole_mb - half_mb) * 1e6 / (count // 2 - count // 4)
        lines.append(
            f"| {size} | {scanned_s:.2f} | {latest_s:.2f} | {whole_mb:.0f} | {each:.0f} "
            f"| {300 + 5 * size} |"
        )
    return lines


def _write(store: txnlog.Store, topic: str, count: int, size: int) -> None:
    random = np.random.default_rng(3)
    with store.producer() as producer:
        for _ in range(2):
            numbers = random.permutation(count // 2)
            for start in range(0, len(numbers), _BATCH_ROWS):
                some = numbers[start : start + _BATCH_ROWS]
                keys = np.char.zfill(some.astype(f"S{size}"), size)
                batch = {"key": pa.array(keys.tolist()), "value": pa.array([_VALUE] * len(some))}
                producer.send_batch(topic, pa.record_batch(batch))


def _measured(url: str, topic: str, *, rows: int, latest: bool) -> tuple[float, float]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_read, url, topic, rows=rows, latest=latest).result()


def _read(url: str, topic: str, *, rows: int, latest: bool) -> tuple[float, float]:
    """The CPU seconds that it takes, and the MB that the process grows by."""
    scan = txnlog.open(url).scan(topic, latest=latest)
    with growth() as grown:
        started_s = time.process_time()
        found = sum(batch.num_rows for batch in scan.to_batches())
        taken_s = time.process_time() - started_s
    if found != rows:
        raise AssertionError(f"{found} rows were read, {rows} were expected")
    return taken_s, grown[0]
