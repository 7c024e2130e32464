"""A topic with 100,000 entries: looking at it costs what a small one costs, in bounded memory."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest

from txnlog.admin.offsets import ListedOffset
from txnlog.inspect.describe import describe_segments_within
from txnlog.log.chapters import CHAPTER
from txnlog.log.segment_outline import outline_partition
from txnlog.names import LogFile, TopicPartition
from txnlog.state.segment import SegmentEntry, StoredSegment
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Append
from txnlog.storage import envelope
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage

ENTRIES = 100_000
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def huge() -> HeapStorage:
    """A topic ``t`` whose log has 100,000 appends of 10 records, and a checkpoint near its end.

    Only the newest segment is there; nothing here may look for another one.
    """
    storage = HeapStorage()
    store = attach(storage, create=True)
    store.topics.create("t", config={"message.timestamp.after.max.ms": 2 * FIRST_MS})
    log = store.logs.topic("t")
    state: TopicState = log._state
    for number in range(1, ENTRIES):
        at_ms = FIRST_MS + number
        place = SegmentEntry(
            0, 10 * (number - 1), StoredSegment(f"writer-{number}", 10, 1000, at_ms, at_ms)
        )
        entry = Append(f"{number:032x}", at_ms, (place,))
        storage.put(log.log.path(number), envelope.encode(entry))
        state.apply(number, entry)
        if number == ENTRIES - 10:
            storage.put(log.log.path(number, LogFile.CHECKPOINT), envelope.encode(state))
    with store.producer() as producer:
        for number in range(10):
            producer.send("t", b"x", timestamp_ms=2 * FIRST_MS + number)
    return storage


def opened(huge: HeapStorage) -> tuple[Store, CountingStorage]:
    counting = CountingStorage(huge)
    store = attach(counting)
    counting.take()
    return store, counting


def test_offsets_cost_a_listing_a_checkpoint_and_the_newest_entries(huge: HeapStorage) -> None:
    """For ends no segment is touched; for a time one is, of 100,000."""
    ends = {"earliest": 0, "stable": 10 * ENTRIES, "latest": 10 * ENTRIES}
    for at in ("earliest", "stable", "latest"):
        store, counting = opened(huge)
        (found,) = store.topics.offsets(["t"], at=at)
        assert found == ListedOffset("t", 0, ends[at])
        counts = counting.take()
        assert counts == {"get": counts["get"], "list": 2}
        assert counts["get"] <= 33
    store, counting = opened(huge)
    where = TopicPartition("t", 0)
    (found,) = store.topics.offsets([where], timestamp_ms=2 * FIRST_MS + 4)
    assert found == ListedOffset("t", 0, 10 * ENTRIES - 6, 2 * FIRST_MS + 4)
    assert counting.take()["get_range"] <= 2


@pytest.mark.more
def test_a_piece_of_the_log_costs_a_piece(huge: HeapStorage) -> None:
    """A few entries from the middle or the end: a listing, and reads for these alone."""
    for first in (0, 50_000, ENTRIES - 10):
        store, counting = opened(huge)
        found = list(islice(store.topics.log("t", first=first), 10))
        assert [entry.number for entry in found] == [*range(first, first + 10)]
        counts = counting.take()
        assert counts["list"] == 1
        assert counts["get"] <= 128


@pytest.mark.more
def test_the_whole_log_streams(huge: HeapStorage) -> None:
    """All entries pass by, once each, while memory stays that of their names."""
    store, counting = opened(huge)
    tracemalloc.start()
    try:
        for _ in islice(store.topics.log("t"), 5000):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
    counting.take()
    numbers = [entry.number for entry in store.topics.log("t")]
    assert numbers == [*range(ENTRIES + 1)]
    assert counting.take() == {"get": ENTRIES + 1, "list": 1}


def test_a_listing_of_topics_reads_no_segment(huge: HeapStorage) -> None:
    """What ``topics ls`` and ``segments du`` ask for: listings and logs."""
    store, counting = opened(huge)
    (topic,) = store.topics.describe_all()
    assert (topic.offset_count, topic.segment_count) == (10 * ENTRIES, ENTRIES)
    assert not {"get_range", "size"} & counting.take().keys()
    log, data = store.topics.disk_usage("t")
    # Of the log: also two checkpoints; two manifests, and a list of them; marks, 6 of them wide.
    marks = 6 + (ENTRIES - 6 * 16_384) // CHAPTER
    assert (log.file_count, data.file_count) == (ENTRIES + 6 + marks, 1)
    assert not {"get_range", "size"} & counting.take().keys()


def test_a_picture_of_a_partition_is_made_of_arrays(huge: HeapStorage) -> None:
    """100,000 segments take what their manifests take; as objects they took 100 MB."""
    store, _ = opened(huge)
    log = store.logs.fresh_topic("t")
    tracemalloc.start()
    try:
        outline = outline_partition(log, 0)
        listed = describe_segments_within(log, 0, 10 * ENTRIES - 1000, 10 * ENTRIES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert (len(outline), len(listed)) == (ENTRIES, 100)
    assert [one.base_offset for one in listed] == outline.base_offsets[-100:].tolist()
