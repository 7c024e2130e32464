"""A broker's folders: how fast records are exported, imported, and read from an import."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rows import batches

import txnlog

MOST_ROWS = 1_000_000
CODECS = ("none", "lz4", "zstd")


def measure(folder: Path, count: int) -> list[str]:
    """Lines of Markdown: a table by codec. Imports and exports check every byte."""
    count = min(count, MOST_ROWS)
    head = (
        f"{count:,} rows of one partition, local disk, CPU time of one core: a topic of columns is "
        "exported, the folder imported, the imported topic scanned."
    )
    lines = [
        head,
        "",
        "| codec | export M rows/s | import M rows/s | scan M rows/s |",
        "|---|---|---|---|",
    ]
    for codec in CODECS:
        store = txnlog.open(str(folder / f"kafka-{codec}"), create=True)
        store.topics.create("t", config={"compression.type": codec})
        with store.producer() as producer:
            for batch in batches(count):
                producer.send_batch("t", batch)
        out = str(folder / f"folders-{codec}")
        steps: list[Callable[[], object]] = [
            partial(store.kafka.export_topic, "t", out),
            partial(store.kafka.import_topic, "back", [out]),
            partial(_read, store, "back"),
        ]
        rates = [f"{count / _cpu_seconds(step) / 1e6:.2f}" for step in steps]
        lines.append(f"| {codec} | {' | '.join(rates)} |")
    return lines


def _read(store: txnlog.Store, topic: str) -> int:
    return sum(batch.num_rows for batch in store.scan(topic).to_batches())


def _cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start
