"""Scans without Spark: how fast Arrow batches come out of a topic."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rows import ROW_BYTES, batches
from timing import interleaved

import txnlog

CODECS = ("none", "lz4", "zstd")
PARTITIONS = 8
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def measure(folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown: a table of scans by codec."""
    store = txnlog.open(str(folder / "scanned"), create=True)
    sizes: dict[str, int] = {}
    for codec in CODECS:
        config = {"compression.type": codec}
        store.topics.create(codec, partitions=PARTITIONS, config=config)
        with store.producer() as producer:
            for batch in batches(count):
                producer.send_batch(codec, batch)
        sizes[codec] = store.topics.describe(codec).size_bytes
    seconds = interleaved({codec: partial(_scan, store, codec) for codec in CODECS}, repetitions)
    head = f"{count:,} rows, one thread, files in the page cache; GB of keys and values."
    lines = [
        head,
        "",
        "| codec | seconds | M rows/s | GB/s | stored bytes a row |",
        "|---|---|---|---|---|",
    ]
    for codec, taken in seconds.items():
        rate = count / taken.elapsed_s
        speed = f"{rate / 1e6:.1f} | {rate * ROW_BYTES / 1e9:.2f}"
        lines.append(f"| {codec} | {taken.elapsed_s:.2f} | {speed} | {sizes[codec] / count:.0f} |")
    return lines


def _scan(store: txnlog.Store, topic: str) -> None:
    scan = store.scan(topic, columns=COLUMNS)
    assert sum(batch.num_rows for batch in scan.to_batches()) == scan.record_count
