"""Merging: what a scan of many small commits takes before and after it, beside one large commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach

ROWS = 10


def measure(folder: Path, commits: int) -> list[str]:
    """Markdown lines: times, requests and files for ``commits`` commits of 10 rows each."""
    storage = open_storage(str(folder / "merging")).without_fsync()
    counting = CountingStorage(storage)
    store = attach(counting, create=True)
    for topic in ("many", "one"):
        store.topics.create(topic)
    with store.producer() as producer:
        for number in range(commits):
            producer.send_batch("many", _records(number * ROWS, ROWS))
            producer.flush()
        producer.send_batch("one", _records(0, commits * ROWS))
    expected = _scan(store, "one")
    assert _scan(store, "many") == expected == commits * ROWS
    one = _time(lambda: _scan(store, "one"), 9)
    counting.take()
    before = _time(lambda: _scan(store, "many"), 3)
    asked = sum(counting.take().values()) // 3
    files = _data_files(storage)
    started = time.process_time()
    (merge,) = store.maintenance.merge("many")
    merging_s = time.process_time() - started
    counting.take()
    after = _time(lambda: _scan(store, "many"), 9)
    live = f"{merge.merged_count} live"
    asked_after = sum(counting.take().values()) // 9
    return [
        f"{commits * ROWS:,} rows of 16 + 100 bytes, {ROWS} per commit, one partition, local disk.",
        "A scan plans and reads all of them; CPU.",
        "",
        "| | scan, ms | of one commit | requests | data files |",
        "|---|---|---|---|---|",
        f"| one commit | {one * 1e3:.1f} | 1 | | |",
        f"| before merging | {before * 1e3:.1f} | {before / one:.1f} | {asked:,} | {files:,} |",
        f"| after merging | {after * 1e3:.1f} | {after / one:.1f} | {asked_after:,} | {live} |",
        "",
        f"The merge took {merging_s:.2f} s CPU, {commits / merging_s:,.0f} segments a second:",
        f"{merge.size_bytes:,} bytes became {merge.merged_bytes:,}.",
    ]


def _records(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "key": [b"%016d" % number for number in numbers],
            "value": [b"%0100d" % number for number in numbers],
        }
    )


def _scan(store: Store, topic: str) -> int:
    return sum(batch.num_rows for batch in store.scan(topic).to_batches())


def _data_files(storage: Storage) -> int:
    return sum(1 for _ in storage.list_all("topics/many/data"))


def _time(work: Callable[[], object], runs: int) -> float:
    took = []
    for _ in range(runs):
        started = time.process_time()
        work()
        took.append(time.process_time() - started)
    return min(took)
