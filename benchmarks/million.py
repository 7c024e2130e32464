"""Planning a topic of a million segments, whose log and manifests are synthetic."""

from __future__ import annotations

import gc
import time
from pathlib import Path

from txnlog.log.topic_log import TopicLog
from txnlog.names import LogFile
from txnlog.state.segment import SegmentEntry, StoredSegment
from txnlog.state.topic_entries import Append
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing import HeapStorage

PARTITIONS = 8
RECORDS = 10
_SETTLED_TOGETHER = 50_000
_FIRST_MS = 1_700_000_000_000


def measure(count: int) -> list[str]:
    """Markdown lines: CPU and memory of plans over ``count`` segments."""
    storage = HeapStorage()
    _forge(storage, count)
    gc.collect()
    store = attach(storage)
    before = _resident_bytes()
    snapshot = store.snapshot(["t"])
    started = time.process_time()
    ranges = snapshot.scan("t").ranges
    whole_s, grown = time.process_time() - started, _resident_bytes() - before
    assert len(ranges) == count
    del ranges
    ends = snapshot.end_offsets("t")
    started = time.process_time()
    newest = attach(storage).scan("t", {p: end - 1000 // PARTITIONS for p, end in ends.items()})
    newest_s = time.process_time() - started
    return [
        f"{count:,} synthetic segments of {RECORDS} records in {PARTITIONS} partitions, in memory.",
        "",
        "| plan | CPU s | MB |",
        "|---|---|---|",
        f"| of all, {count:,} ranges | {whole_s:.2f} | {grown / 1e6:.0f} |",
        f"| cold, of the newest 1,000 records, {len(newest.ranges)} ranges | {newest_s:.3f} | |",
    ]


def _forge(storage: Storage, count: int) -> None:
    """A topic with that many appends, all but the last few dozen settled."""
    store = attach(storage, create=True)
    store.topics.create("t", partitions=PARTITIONS)
    log = store.logs.topic("t")
    log.refresh()
    state = log._state  # noqa: SLF001 - forged
    for number in range(1, count + 1):
        state.apply(number, _append(number))
        if number % _SETTLED_TOGETHER == 0:
            _settle(log)
    checkpoint = envelope.encode(state)
    storage.put(log.log.path(count, LogFile.CHECKPOINT), checkpoint)
    for number in range(count - 64, count + 1):
        storage.put(log.log.path(number), envelope.encode(_append(number)))


def _settle(log: TopicLog) -> None:
    manifests, state = log.manifests, log._state  # noqa: SLF001 - as above
    log._adopt(manifests.newest())  # noqa: SLF001
    staged = manifests.stage(state, manifests.newest(), state.first_unsettled(64))
    assert manifests.publish(staged)
    state.leave_to_manifests(staged.settled, staged.listing.log_start_offsets, ())
    manifests.collect(staged.listing)


def _append(number: int) -> Append:
    partition, turn = (number - 1) % PARTITIONS, (number - 1) // PARTITIONS
    at_ms = _FIRST_MS + number
    name = f"{number:032x}-0"
    place = SegmentEntry(
        partition, RECORDS * turn, StoredSegment(name, RECORDS, 1000, at_ms, at_ms)
    )
    return Append(f"{number:032x}", at_ms, (place,))


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0
