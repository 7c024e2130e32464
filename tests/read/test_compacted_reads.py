"""Offsets with gaps, as compaction leaves them: every way to read finds the same records."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.support.admin.compacted_topics import Record, compact, newest, read
from tests.support.steps import append, begin
from txnlog import Store, TopicPartition
from txnlog.inspect.placed_indexes import check_placed_indexes, rebuild_placed_indexes
from txnlog.inspect.segments import check_placed_segment, dump_placed_segment
from txnlog.results import FileDeletion
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

COUNT = 6000
BEGAN_MS = 1_700_000_000_000


@pytest.fixture(params=["columns", "kafka", "parquet"])
def compacted(request: pytest.FixtureRequest) -> tuple[Store, list[Record]]:
    """A topic of several batches with gaps between them and in them, and what it holds."""
    made, left = compact_once(request.param)
    storage, clock = made.copy(), VirtualClock(BEGAN_MS, seed=1)
    storage.time_ms = lambda: clock.time_ms
    return attach(storage, clock=clock), left


@cache
def compact_once(record_format: str) -> tuple[HeapStorage, list[Record]]:
    clock = VirtualClock(BEGAN_MS)
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    store = attach(storage, create=True, clock=clock)
    config = {
        "cleanup.policy": "compact",
        "record.format": record_format,
        "compression.type": "none",
        "index.interval.bytes": "1000",
    }
    store.topics.create("t", config=config)
    rng = np.random.default_rng(4)
    keys = rng.integers(0, COUNT // 2, COUNT)
    keys[1000:3000] = 7  # a long gap
    with store.producer() as producer:
        for at, key in enumerate(keys):
            producer.send("t", bytes(4000), b"%d" % key, timestamp_ms=1000 * at)
    before = read(store)
    compact(store)
    left = newest(before)
    (segment,) = store.topics.segments("t")
    assert segment.batch_count == 1 if record_format == "parquet" else segment.batch_count > 4
    assert 2000 < segment.record_count == len(left) < 3500
    return storage, left


@pytest.mark.few(1)
def test_from_any_offset_to_any_other(compacted: tuple[Store, list[Record]]) -> None:
    """By the index, in the midst of batches, inside gaps, behind the last record."""
    store, left = compacted
    for start, stop in ((0, 6000), (0, 1), (999, 1001), (1500, 1501), (1500, 3100), (5990, 6000)):
        found = read(store, starting_offsets={0: start}, ending_offsets={0: stop})
        assert found == [r for r in left if start <= r.offset < stop]
    for start in range(0, 6000, 371):
        found = read(store, starting_offsets={0: start})
        assert found == [r for r in left if r.offset >= start]


def test_counts_and_ends(compacted: tuple[Store, list[Record]]) -> None:
    """Records are counted, not offsets; the newest ones are found across gaps."""
    store, left = compacted
    scan = store.scan("t")
    assert scan.count() == {0: len(left)}
    assert store.scan("t", starting_offsets={0: 1500}, ending_offsets={0: 3050}).count() == {
        0: sum(1500 <= r.offset < 3050 for r in left)
    }
    assert scan.record_count >= len(left)
    for count in (1, 900, 1200):
        assert scan.head(count)["offset"].to_pylist() == [r.offset for r in left[:count]]
        assert scan.tail(count)["offset"].to_pylist() == [r.offset for r in left[-count:]]
    assert store.snapshot("t").end_offsets("t") == {0: COUNT}


def test_times_are_found(compacted: tuple[Store, list[Record]]) -> None:
    """The first record that is left at or after a time."""
    store, left = compacted
    snapshot = store.snapshot("t")
    for at_ms in range(-1, 1000 * COUNT, 249_999):
        found = snapshot.offset_for_time(TopicPartition("t", 0), at_ms)
        expected = next((r for r in left if r.timestamp_ms >= at_ms), None)
        assert (found and (found.offset, found.timestamp)) == (
            expected and (expected.offset, expected.timestamp_ms)
        )


def test_a_consumer_passes_over_gaps(compacted: tuple[Store, list[Record]]) -> None:
    """It gets each record once, stands at the end, and has no lag then."""
    store, left = compacted
    where = TopicPartition("t", 0)
    with store.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        seen: list[int] = []
        while consumer.position(where) < COUNT:
            seen += [record.offset for record in consumer.poll()]
        consumer.commit()
    assert seen == [r.offset for r in left]
    (described,) = store.groups.describe("g").offsets
    assert described.lag == 0


def test_files_are_checked_and_indexes_made_anew(
    compacted: tuple[Store, list[Record]],
) -> None:
    """Verify, dump, and the rebuild of an index know gaps."""
    store, left = compacted
    (segment,) = store.topics.segments("t")
    assert not check_placed_segment(store.storage, segment).damages
    dumped = [b.decoded for b in dump_placed_segment(store.storage, segment)]
    assert sum(d.records.num_rows for d in dumped if d is not None) == len(left)
    assert {f.state for f in store.examine(["t"], with_contents=True)} <= {"ok", "note"}
    if segment.paths.is_parquet:
        assert check_placed_indexes(store.storage, segment) == ([], None)
        return
    paths = (segment.paths.offset_index, segment.paths.time_index)
    before = [store.storage.get(path) for path in paths]
    assert all(before)
    store.storage.delete(paths)
    interval_bytes = int(store.logs.topic_spec("t").config["index.interval.bytes"])
    rebuild_placed_indexes(store.storage, segment, interval_bytes)
    assert [store.storage.get(path) for path in paths] == before
    checks, damage = check_placed_indexes(store.storage, segment)
    assert damage is None
    assert {check.state for check in checks} == {"ok"}
    assert {f.state for f in store.examine(["t"], with_contents=True)} <= {"ok", "note"}


def test_old_files_go_when_nobody_needs_them(compacted: tuple[Store, list[Record]]) -> None:
    """A reader that is pinned reads on until then."""
    store, left = compacted
    clock = store.logs.clock
    assert isinstance(clock, VirtualClock)
    append_key(store)
    pinned = store.scan("t")
    compact(store)
    assert pinned.to_arrow().num_rows == len(left) + 1
    before = len([*store.storage.list_names("topics/t/data/0")])
    store.maintain("t")
    clock.time_ms += 8 * 86_400_000
    done = store.maintain("t")
    assert any(isinstance(step, FileDeletion) for step in done)
    assert len([*store.storage.list_names("topics/t/data/0")]) < before
    assert [r.offset for r in read(store)] == [r.offset for r in left[1:]] + [COUNT]


def append_key(store: Store) -> None:
    """A new record of the key of the oldest record that is left."""
    (first, *_) = read(store)
    with store.producer() as producer:
        producer.send("t", b"new", first.key)


def test_a_snapshot_of_several_topics_does_not_tear() -> None:
    """What is cut off supersedes nothing: the older record of its key shows."""
    store = attach(HeapStorage(), create=True, clock=VirtualClock(1_700_000_000_000))
    store.topics.create("t", config={"cleanup.policy": "compact"})
    store.topics.create("u")
    with store.producer() as producer:
        producer.send("t", b"old", b"k")
    holding = begin(store, "holding")
    holding.send("u", b"held")
    holding.flush()
    both = begin(store, "both")
    both.send("t", b"new", b"k")
    both.send("u", b"new")
    both.commit_transaction()
    compact(store)
    assert [r.value for r in read(store)] == [b"new"]
    snapshot = store.snapshot(["t", "u"])
    assert snapshot.scan("u").to_arrow()["value"].to_pylist() == []
    assert snapshot.scan("t").to_arrow()["value"].to_pylist() == [b"old"]
    holding.commit_transaction()
    snapshot = store.snapshot(["t", "u"])
    assert snapshot.scan("t").to_arrow()["value"].to_pylist() == [b"new"]
    append(store, b"more", topic="u")


def test_export_to_folders_of_kafka(compacted: tuple[Store, list[Record]], tmp_path: Path) -> None:
    """An import of them has the same records at the same offsets."""
    store, left = compacted
    store.kafka.export_topic("t", str(tmp_path / "out"))
    other = attach(HeapStorage(), create=True)
    other.kafka.import_topic("t", [str(tmp_path / "out")])
    assert read(other) == left
    other.topics.alter("t", config={"cleanup.policy": "compact"})
    append_key(other)
    expected = newest(read(other))
    compact(other)
    assert read(other) == expected
    assert len(expected) == len(left)
