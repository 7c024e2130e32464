"""What a small commit costs on a local disk: files, syncs, threads, requests, CPU time.

Counted in this process, by wrapping ``os.fsync``, ``os.link`` and the starting of threads, so that
all but the CPU time is the same on every machine.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from txnlog.clock import SystemClock
from txnlog.log.group_metadata import GroupMetadata
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach

PARTITIONS = 8
RECORDS = 16
SOURCE = TopicPartition("in", 0)
_WARM = 3
"""Commits that are not counted: settings are read, threads and folders made."""


def measure(folder: Path, commits: int) -> list[str]:
    """Lines of Markdown: a table of the two kinds of commits, the median of ``commits`` each."""
    rows = [
        _row(f"{RECORDS} records into {PARTITIONS} partitions", _plain(folder / "plain", commits)),
        _row(
            f"transaction: {RECORDS} records into {PARTITIONS} partitions of each of 2 topics, "
            "and a group",
            _transactions(folder / "transactions", commits),
        ),
    ]
    return [
        f"`python benchmarks/run.py --only small`. Medians of {commits} commits, `acks=all`.",
        "",
        "| commit | files | links | fsyncs | threads started | requests | CPU ms |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        *_beside_delta(folder, commits),
    ]


def _beside_delta(folder: Path, commits: int) -> list[str]:
    """The same records appended by deltalake, alternating with ours; it syncs nothing."""
    plain, job = _make(folder / "beside").producer(), _make(folder / "jobs")
    producer = job.producer(transactional_id="job")
    producer.init_transactions()

    def flush(turn: int) -> None:
        _send(plain, "a", turn)
        plain.flush()

    def append(turn: int, tables: tuple[str, ...]) -> None:
        for table in tables:
            values = [b"%d of %d" % (number, turn) for number in range(RECORDS)]
            write_deltalake(str(folder / table), pa.table({"value": values}), mode="append")

    sides: tuple[tuple[str, Callable[[int], None]], ...] = (
        (f"a flush of {RECORDS} records", flush),
        ("an append of deltalake", partial(append, tables=("one",))),
        ("a transaction of 2 topics and a group", partial(_commit_job, producer)),
        ("two appends of deltalake", partial(append, tables=("two", "three"))),
    )
    elapsed: dict[str, list[float]] = {name: [] for name, _ in sides}
    used: dict[str, list[float]] = {name: [] for name, _ in sides}
    for turn in range(_WARM + commits):
        for name, side in sides:
            began, cpu = time.perf_counter(), time.process_time()
            side(turn)
            if turn >= _WARM:
                elapsed[name].append(time.perf_counter() - began)
                used[name].append(time.process_time() - cpu)
    lines = ["| in turns | ms | CPU ms |", "|---|---|---|"]
    for name, _ in sides:
        times = statistics.median(elapsed[name]), statistics.median(used[name])
        lines.append(f"| {name} | {times[0] * 1000:.1f} | {times[1] * 1000:.1f} |")
    return lines


def _plain(folder: Path, commits: int) -> list[Counter[str]]:
    store = _make(folder)
    producer = store.producer()

    def commit(turn: int) -> None:
        _send(producer, "a", turn)
        producer.flush()

    return _counted(store, commit, commits)


def _transactions(folder: Path, commits: int) -> list[Counter[str]]:
    store = _make(folder)
    producer = store.producer(transactional_id="job")
    producer.init_transactions()

    return _counted(store, partial(_commit_job, producer), commits)


def _commit_job(producer: Producer, turn: int) -> None:
    producer.begin_transaction()
    for topic in ("a", "b"):
        _send(producer, topic, turn)
    producer.send_offsets_to_transaction(
        {SOURCE: turn + 1}, GroupMetadata("g", {SOURCE: turn or None})
    )
    producer.commit_transaction()


def _make(folder: Path) -> Store:
    counting = CountingStorage(open_storage(str(folder)))
    store = attach(counting, create=True, clock=SystemClock())
    for topic in ("in", "a", "b"):
        store.topics.create(topic, partitions=PARTITIONS)
    return store


def _send(producer: Producer, topic: str, turn: int) -> None:
    for number in range(RECORDS):
        producer.send(topic, b"%d of %d" % (number, turn), partition=number % PARTITIONS)


def _counted(store: Store, commit: Callable[[int], None], commits: int) -> list[Counter[str]]:
    """The cost of each commit. Requests are those of ``CountingStorage``."""
    counting = store.storage
    assert isinstance(counting, CountingStorage)
    found = []
    for turn in range(_WARM + commits):
        counting.take()
        before = sum(1 for _ in counting.list_all(""))
        counting.take()
        with _calls_counted() as counts:
            started = time.process_time()
            commit(turn)
            counts["microseconds"] = round((time.process_time() - started) * 1e6)
        counts["requests"] = sum(counting.take().values())
        counts["files"] = sum(1 for _ in counting.list_all("")) - before
        if turn >= _WARM:
            found.append(counts)
    return found


@contextmanager
def _calls_counted() -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    fsync, link, start = os.fsync, os.link, threading.Thread.start

    def counted_fsync(descriptor: int) -> None:
        counts["fsyncs"] += 1
        fsync(descriptor)

    def counted_link(*arguments: Path) -> None:
        counts["links"] += 1
        link(*arguments)

    def counted_start(thread: threading.Thread) -> None:
        counts["threads"] += 1
        start(thread)

    os.fsync, os.link = counted_fsync, counted_link  # type: ignore[assignment]
    threading.Thread.start = counted_start  # type: ignore[assignment,method-assign]
    try:
        yield counts
    finally:
        os.fsync, os.link = fsync, link
        threading.Thread.start = start  # type: ignore[method-assign]


def _row(what: str, found: list[Counter[str]]) -> str:
    kinds = ("files", "links", "fsyncs", "threads", "requests")
    medians = [f"{statistics.median_low(counts[kind] for counts in found)}" for kind in kinds]
    cpu_ms = statistics.median(counts["microseconds"] for counts in found) / 1000
    return f"| {' | '.join([what, *medians, f'{cpu_ms:.1f}'])} |"
