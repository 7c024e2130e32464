"""Commits of a few records are packed: where, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.segments.segment_layout import raw_batches
from tests.support.steps import another, begin, new_store, send
from txnlog import TopicPartition
from txnlog.admin.merge_topic import merge_topic
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock

PARTITIONS = 4
COLUMNS, PACKED, KAFKA = 100, 102, 2
pytestmark = pytest.mark.store(
    on="heap", topics={"t": PARTITIONS}, topic_config={"record.format": "columns"}
)


def magics(store: Store, topic: str = "t") -> list[int]:
    """The formats of the batches that a reader of the topic meets."""
    files = dict.fromkeys(segment.paths.log for segment in another(store).topics.segments(topic))
    return [raw.magic for file in files for raw in raw_batches(store.storage.get(file))]


def commit(store: Store, *words: bytes, topic: str = "t") -> None:
    """These records to each partition, with all that records have."""
    producer = begin(store)
    for partition in range(PARTITIONS):
        for number, word in enumerate(words):
            key = b"%d" % number if number % 3 else None
            headers = [("h", word)] if number % 2 else []
            producer.send(topic, word, key=key, headers=headers, partition=partition)
    producer.commit_transaction()


def test_a_few_records_are_packed(store: Store) -> None:
    """In a file that partitions share and in one of their own; many are not."""
    commit(store, b"a", b"b", b"c")
    assert magics(store) == [PACKED] * PARTITIONS
    with store.producer() as producer:
        producer.send("t", b"alone", partition=1)
    assert magics(store) == [PACKED] * (PARTITIONS + 1)
    with store.producer() as producer:
        producer.send("t", np.random.default_rng(1).bytes(10_000), partition=1)
    assert magics(store) == [PACKED] * (PARTITIONS + 1) + [COLUMNS]
    rows = another(store).scan("t").to_arrow().to_pylist()
    assert [row["value"] for row in rows if row["partition"] == 0] == [b"a", b"b", b"c"]
    assert [row["key"] for row in rows if row["partition"] == 2] == [None, b"1", b"2"]
    assert rows[1]["headers"] == [{"key": "h", "value": b"b"}]
    found = another(store).examine(with_contents=True, with_probe=False)
    assert [one for one in found if one.state == "damage"] == []


def test_a_topic_in_kafkas_format_is_not_packed(clock: VirtualClock) -> None:
    """There is one format of its own batches."""
    store = new_store(HeapStorage(), clock, {})
    store.topics.create("rows", partitions=PARTITIONS, config={"record.format": "kafka"})
    commit(store, b"a", topic="rows")
    assert magics(store, "rows") == [KAFKA] * PARTITIONS


def test_what_is_merged_is_packed_no_more(store: Store) -> None:
    """Small batches become one of Arrow's columns; or a packed one, where that is small, too."""
    for number in range(5):
        commit(store, b"%d" % number, b"and %d" % number)
    before = store.scan("t").to_arrow()
    merged = [*merge_topic(another(store).logs, "t")]
    assert sum(done.segment_count for done in merged) == 5 * PARTITIONS
    assert all(done.merged_bytes < done.size_bytes for done in merged if done.merged_bytes)
    assert magics(store) == [PACKED] * PARTITIONS
    assert another(store).scan("t").to_arrow().sort_by("offset") == before.sort_by("offset")
    for number in range(5):
        commit(store, b"%d" % number * 900, b"and %d" % number * 300)
    before = store.scan("t").to_arrow()
    assert magics(store) == [PACKED] * 6 * PARTITIONS
    assert [*merge_topic(another(store).logs, "t")]
    assert magics(store) == [COLUMNS] * PARTITIONS
    assert another(store).scan("t").to_arrow().sort_by("offset") == before.sort_by("offset")


def test_offsets_of_times_are_found_in_packed_batches(store: Store) -> None:
    """By the timestamps of single records."""
    producer = begin(store)
    for time_ms in (5_000, 7_000, 6_000):
        producer.send("t", b"v", timestamp_ms=time_ms, partition=0)
    producer.commit_transaction()
    send(begin(store), b"open")
    at = TopicPartition("t", 0)
    consumer = another(store).consumer("t", group_id="g")
    found = consumer.offsets_for_times({at: 5_500})[at]
    assert found is not None
    assert (found.offset, found.timestamp) == (1, 7_000)
