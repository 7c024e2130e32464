"""A root that was out for one record comes back: what is copied, and what that takes on its disk.

Beside it the same root after what it had was forgotten, so that everything is copied.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from txnlog.replication import Joined, Replicas, open_replicas
from txnlog.store import Store

RECORD_BYTES, BATCH = 1_000_000, 16
MB = 1_000_000


def measure(folder: Path, data_mb: tuple[int, ...]) -> list[str]:
    """Lines of Markdown: a table."""
    what = (
        "A root that was out comes back, on a local disk, in records of 1 MB; and the same after "
        "what it had was forgotten."
    )
    lines = [
        what,
        "",
        "| data | the root | copied | kept | room on its disk | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for size_mb in data_mb:
        for which in ("was out for one record", "lost what it had"):
            copied, room, took_s = _one(folder / f"{size_mb}-{which[:3]}", size_mb, which[0] == "l")
            lines.append(
                f"| {size_mb} MB | {which} | {copied.bytes / MB:.2f} MB, {copied.objects} objects "
                f"| {copied.kept_bytes / MB:.0f} MB, {copied.kept_objects} objects "
                f"| {room / MB:.2f} MB | {took_s:.2f} |"
            )
    return lines


def _one(folder: Path, data_mb: int, is_lost: bool) -> tuple[Joined, int, float]:
    roots = [str(folder / name) for name in "ab"]
    store = open_replicas(roots, controller=str(folder / "control"), create=True).store
    store.topics.create("t", partitions=1, config={"compression.type": "none"})
    _send(store, data_mb * MB // RECORD_BYTES)
    replicas = Replicas(store)
    replicas.remove("r1")
    _send(store, 1)
    if is_lost:
        replicas.forget("r1-0")
    before, began_s = _room(folder / "b"), time.perf_counter()
    joined = replicas.add(roots[1])
    return joined, _room(folder / "b") - before, time.perf_counter() - began_s


def _send(store: Store, count: int) -> None:
    chance = np.random.default_rng(count)
    with store.producer() as producer:
        for first in range(0, count, BATCH):
            values = [chance.bytes(RECORD_BYTES) for _ in range(min(BATCH, count - first))]
            producer.send_batch("t", pa.record_batch({"value": pa.array(values, pa.binary())}))
            producer.flush()


def _room(folder: Path) -> int:
    """The bytes on disk below a folder, each file's once."""
    found: dict[int, os.stat_result] = {}
    for path in folder.rglob("*"):
        about = path.stat()
        found[about.st_ino] = about
    return sum(512 * about.st_blocks for about in found.values())
