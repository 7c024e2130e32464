"""Uploading: memory and open files are bounded, over all topics of one writer together."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from txnlog import TopicPartition, uploads
from txnlog.clock import SystemClock
from txnlog.segments.records import normalize
from txnlog.storage import open_storage
from txnlog.store import Store, attach
from txnlog.uploads import SegmentUploader, UploadBudget


def _store(name: str, topics: int, partitions: int) -> Store:
    store = attach(open_storage(f"memory://uploads-{name}"), create=True, clock=SystemClock())
    for topic in range(topics):
        store.create_topic(f"t{topic}", partitions=partitions)
    return store


def _records(numbers: list[int], value_bytes: int) -> pa.RecordBatch:
    values = pa.array([b"%0*d" % (value_bytes, n) for n in numbers], pa.binary())
    return normalize(pa.RecordBatch.from_arrays([values], names=["value"]), now_ms=1)


def test_topics_share_one_budget_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is held never passes the budget by more than a batch; nothing is lost or moved."""
    monkeypatch.setattr(uploads, "MAX_OPEN_SEGMENTS", 128)
    topics, partitions, value_bytes = 10, 40, 1000
    store = _store("shared", topics, partitions)
    budget = UploadBudget(memory_bytes=200_000)
    clock = store.logs.clock
    uploaders = [
        SegmentUploader(store.storage, store.topic_spec(f"t{topic}"), clock, budget)
        for topic in range(topics)
    ]
    rng = random.Random(3)
    sent: dict[TopicPartition, list[int]] = {}
    most = 0
    for start in range(0, 4000, 20):
        topic = rng.randrange(topics)
        numbers = list(range(start, start + 20))
        chosen = np.array([rng.randrange(partitions) for _ in numbers], dtype=np.int32)
        uploaders[topic].write(_records(numbers, value_bytes), chosen)
        most = max(most, budget.held_bytes)
        for number, partition in zip(numbers, chosen.tolist(), strict=True):
            sent.setdefault(TopicPartition(f"t{topic}", partition), []).append(number)
    assert 100_000 < most <= 200_000
    placed = 0
    for uploader in uploaders:
        segments = uploader.finish()
        placed += len(segments)
        store.logs.topic(segments[0].topic).place(segments)
    assert budget.held_bytes == 0
    assert placed > len(sent) == 400  # more than may be open: some were finished early
    found: dict[TopicPartition, list[int]] = {}
    for topic in range(topics):
        for row in store.scan(f"t{topic}", columns=["value", "partition"]).to_arrow().to_pylist():
            where = TopicPartition(f"t{topic}", row["partition"])
            found.setdefault(where, []).append(int(row["value"]))
    assert found == sent


def test_discarding_frees_the_budget_of_others() -> None:
    """Goal: an uploader that gives up takes its records out of the common budget."""
    store = _store("discard", 2, 3)
    budget = UploadBudget()
    first, second = (
        SegmentUploader(store.storage, store.topic_spec(f"t{n}"), store.logs.clock, budget)
        for n in range(2)
    )
    numbers = np.array([0, 1, 2], dtype=np.int32)
    first.write(_records([1, 2, 3], 10), numbers)
    held = budget.held_bytes
    second.write(_records([4, 5, 6], 10), numbers)
    assert budget.held_bytes > held > 0
    second.discard()
    assert budget.held_bytes == held
    first.discard()
    first.discard()
    assert budget.held_bytes == 0


def test_two_hundred_partitions_are_two_hundred_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: where files enough may be open, no segment is cut short for another one."""
    monkeypatch.setattr(uploads, "MAX_OPEN_SEGMENTS", 200)
    store = _store("many", 1, 200)
    uploader = SegmentUploader(store.storage, store.topic_spec("t0"), store.logs.clock)
    chosen = np.arange(2_000, dtype=np.int32) % 200
    for _ in range(5):
        uploader.write(_records(list(range(2_000)), 100), chosen)
    assert [segment.record_count for segment in uploader.finish()] == [50] * 200
