"""What operations cost in storage requests, beside the limits of docs/PROTOCOL.md.

Counted on a storage in memory: the numbers are the same on every machine and filesystem.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from txnlog.clock import SystemClock
from txnlog.names import TopicPartition
from txnlog.spark.batch.commit import group_by_topic, offset_commits, place_and_commit
from txnlog.spark.batch.pinned_read import pin_read
from txnlog.spark.batch.task_uploads import Uploaded
from txnlog.spark.batch.tasks import group_ranges
from txnlog.spark.batch.write_plan import WritePlan
from txnlog.spark.batch.writer import TxnlogWriter
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.write_options import parse_write
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.write.coordinator import Coordinator

TOPICS = ("a", "b", "c")
HISTORY = 1_000
_PUTS = ("put_if_absent", "put")
_READS = ("get", "get_range")
_WRITE_LIMIT = "2 listings (the log; notes of reads that it may not write) + 1 put"


def measure() -> list[str]:
    """Lines of Markdown: a table of operations."""
    storage = CountingStorage(open_storage("memory://benchmark"))
    store = attach(storage, create=True, clock=SystemClock())
    for topic in TOPICS:
        store.topics.create(topic, partitions=4)
    store.topics.create("input", partitions=4)
    return [
        "| operation | listings | puts | reads | other | limit |",
        "|---|---|---|---|---|---|",
        _row("write of Spark to one topic, after upload", _write(store), _WRITE_LIMIT),
        _row(
            "transaction, 3 topics + 1 group, after upload",
            _transaction(store),
            f"{3 + 2 * (len(TOPICS) + 1)} puts + 1 listing for each of {len(TOPICS) + 1} logs",
        ),
        _row(
            f"cold open of a topic after {HISTORY:,} appends",
            _cold_open(store),
            "2 listings, manifest list, checkpoint, the entries since (under 32); "
            "to describe it, its manifests",
        ),
        _row(
            "plan of a Spark read of it, whole",
            _plan(store),
            "1 listing and its manifests (O(log n)), nothing per segment",
        ),
        "",
        "A listing counts once here. An object store answers it in one request for each 1,000",
        "names; a log keeps one or two names per entry until `log.cleanup.age.ms` (15 minutes) has",
        "passed. A local disk reads the whole folder, which has at most about 1,200 entries.",
    ]


def _counting(store: Store) -> CountingStorage:
    assert isinstance(store.storage, CountingStorage)
    return store.storage


def _uploaded(store: Store, topic: str) -> tuple[TxnlogWriter, Uploaded]:
    options = parse_write({"path": "unused", "topic": topic})
    plan = WritePlan(
        store, options, ("key", "value"), ("key", "value"), store.logs.topic_spec(topic)
    )
    writer = TxnlogWriter(plan)
    keys = [b"%d" % number for number in range(100)]
    return writer, writer.write(iter([pa.record_batch({"key": keys, "value": keys})]))


def _write(store: Store) -> dict[str, int]:
    writer, message = _uploaded(store, "a")
    return _counted(store, lambda: writer.commit([message]))


def _transaction(store: Store) -> dict[str, int]:
    writer, message = _uploaded(store, "input")
    writer.commit([message])
    coordinator = Coordinator(store.logs, "benchmark", 60_000)
    coordinator.initialize()
    counted: dict[str, int] = {}
    for start in (0, 10):  # the second is the steady state
        uploaded = [_uploaded(store, topic)[1] for topic in TOPICS]
        given = {"path": "unused", "subscribe": "input", "group.id": "g", "maxRecords": "10"}
        pinned = pin_read(store, parse_read(given))
        segments = group_by_topic(segment for message in uploaded for segment in message.segments)
        offsets = offset_commits(pinned.consumed("g"))
        assert sum(len(span) for span in pinned.offsets.values()) == 10, start
        counted = _counted(store, partial(place_and_commit, store, coordinator, segments, offsets))
    return counted


def _cold_open(store: Store) -> dict[str, int]:
    with store.producer() as producer:
        for number in range(HISTORY):
            producer.send("input", b"%d" % number)
            producer.flush()
    opened = attach(store.storage, clock=SystemClock())
    return _counted(opened, lambda: opened.topics.describe("input"))


def _plan(store: Store) -> dict[str, int]:
    def plan() -> None:
        pinned = pin_read(store, parse_read({"path": "unused", "subscribe": "input"}))
        assert pinned.offsets[TopicPartition("input", 0)].stop > 0
        group_ranges(pinned.ranges)

    return _counted(store, plan)


def _counted(store: Store, operation: Callable[[], object]) -> dict[str, int]:
    storage = _counting(store)
    storage.take()
    operation()
    return storage.take()


def _row(operation: str, counts: dict[str, int], limit: str) -> str:
    listings = counts.pop("list", 0)
    puts = sum(counts.pop(kind, 0) for kind in _PUTS)
    reads = sum(counts.pop(kind, 0) for kind in _READS)
    other = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
    return f"| {operation} | {listings} | {puts} | {reads} | {other} | {limit} |"
