"""What many small commits leave on a disk, data and metadata, beside Delta's."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

import txnlog

PARTITIONS = 8
RECORDS = 16


def measure(folder: Path, commits: int) -> list[str]:
    """Lines of Markdown: files and bytes after ``commits`` commits of the same rows."""
    store = txnlog.open(str(folder / "ours"), create=True)
    store.topics.create("t", partitions=PARTITIONS)
    chance = random.Random(1)
    with store.producer() as producer:
        for _ in range(commits):
            rows = pa.table(
                {
                    "key": [chance.randbytes(16) for _ in range(RECORDS)],
                    "value": [chance.randbytes(100) for _ in range(RECORDS)],
                }
            )
            producer.send_batch("t", rows)
            producer.flush()
            write_deltalake(str(folder / "delta"), rows, mode="append")
    ours, delta = _sizes(folder / "ours"), _sizes(folder / "delta")
    return [
        f"{commits:,} commits of {RECORDS} records of 116 random bytes, without a transaction:",
        f"ours into {PARTITIONS} partitions of one topic, Delta's by deltalake with its defaults.",
        "",
        "| | files | MB |",
        "|---|---|---|",
        *(
            f"| {name} | {files:,} | {size / 1e6:.1f} |"
            for name, (files, size) in (("ours", ours), ("Delta", delta))
        ),
        f"| ours / Delta | {ours[0] / delta[0]:.2f} | {ours[1] / delta[1]:.2f} |",
    ]


def _sizes(folder: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)
