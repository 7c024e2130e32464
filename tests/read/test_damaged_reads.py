"""Consumers at damage: what is sound comes first, then the error with the offset to go on at."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.groups.alone import read_alone
from tests.support.steps import new_store
from txnlog.consumer import Consumer
from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.names import TopicPartition
from txnlog.results import DamagedRecords
from txnlog.segments import writer
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.testing import VirtualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FORMATS = pytest.mark.parametrize("record_format", ["columns", "kafka", "parquet"])
Found = list[tuple[int, int]]


@pytest.fixture
def store(memory_storage: Storage, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Its writers make batches, and row groups, of ten records of 2 kB."""
    for name in ("DEFAULT_BATCH_BYTES", "DEFAULT_ROW_GROUP_BYTES"):
        monkeypatch.setattr(writer, name, 21_500)
    return new_store(memory_storage, clock, {})


def fill(store: Store, record_format: str, batches: int, *, in_one_segment: bool) -> None:
    """Batches of ten records in partition 0, and five records in partition 1."""
    config = {"record.format": record_format, "compression.type": "none"}
    store.topics.create("t", partitions=2, config=config)
    rows = [(b"<%04d>" % number) * 333 for number in range(10 * batches)]
    pieces = [rows] if in_one_segment else [rows[at : at + 10] for at in range(0, len(rows), 10)]
    for piece in pieces:
        with store.producer() as producer:
            producer.send_batch("t", pa.record_batch({"value": piece}), partition=0)
    with store.producer() as producer:
        for number in range(5):
            producer.send("t", b"%d" % number, partition=1)


def damage(store: Store, value: bytes) -> None:
    """Flip a byte of the one file that has this value."""
    for name, _ in [*store.storage.list_all("topics/t/data")]:
        content = bytearray(store.storage.get(name))
        at = content.find(value * 20)  # what pads the batch before it may be the same
        if at >= 0:
            content[at] ^= 1
            store.storage.delete([name])
            store.storage.put(name, bytes(content))
            return
    raise AssertionError(value)


def poll(consumer: Consumer) -> Found:
    return [(record.partition, record.offset) for record in consumer.poll()]


def poll_some(consumer: Consumer) -> Found:
    return [(record.partition, record.offset) for record in consumer.poll(max_records=7)]


def poll_batches(consumer: Consumer) -> Found:
    found = consumer.poll_batches()
    return [
        (where.partition, offset)
        for where, batches in found.items()
        for batch in batches
        for offset in batch.column("offset").to_pylist()
    ]


def iterate(consumer: Consumer) -> Found:
    """What an iteration yields before it raises, which the next call does."""
    found: Found = []
    records = iter(consumer)
    try:
        for record in records:
            found.append((record.partition, record.offset))
    except CorruptRecord:
        if not found:
            raise
    return found


WAYS = pytest.mark.parametrize("way", [poll, poll_some, poll_batches, iterate])
Way = Callable[[Consumer], Found]


def until_damage(consumer: Consumer, way: Way) -> tuple[Found, CorruptRecord | None]:
    found: Found = []
    try:
        while some := way(consumer):
            found += some
    except CorruptRecord as error:
        return found, error
    return found, None


@pytest.mark.condition(43)
@FORMATS
@WAYS
@pytest.mark.parametrize("in_one_segment", [False, True])
def test_what_is_sound_comes_first(
    store: Store, record_format: str, way: Way, in_one_segment: bool
) -> None:
    """Before the damage and in other partitions; a seek to the offset that is named goes on."""
    fill(store, record_format, 3, in_one_segment=in_one_segment)
    damage(store, b"<0010>")
    consumer = read_alone(store, "t", auto_offset_reset="earliest", stop_at_end=True)
    found, error = until_damage(consumer, way)
    before = [(1, at) for at in range(5)]
    assert error is not None
    assert (error.topic, error.partition, error.next_offset) == ("t", 0, 20)
    assert error.offset == 10
    assert sorted(found) == [(0, at) for at in range(10)] + before
    assert "offsets 10 to 19 of t:0" in str(error)
    assert consumer.positions() == {T0: 10, T1: 5}
    assert until_damage(consumer, way)[0] == []
    consumer.seek(T0, 20)
    found, again = until_damage(consumer, way)
    assert again is None
    assert found == [(0, at) for at in range(20, 30)]
    assert consumer.positions() == {T0: 30, T1: 5}


@FORMATS
@WAYS
@pytest.mark.parametrize("in_one_segment", [False, True])
def test_damage_is_skipped_where_that_is_asked_for(
    store: Store,
    record_format: str,
    way: Way,
    in_one_segment: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two stretches of it, one at the end; the log says which offsets, and how many."""
    fill(store, record_format, 6, in_one_segment=in_one_segment)
    for value in (b"<0010>", b"<0059>"):
        damage(store, value)
    consumer = read_alone(
        store, "t", auto_offset_reset="earliest", stop_at_end=True, on_corrupt="skip"
    )
    with caplog.at_level(logging.WARNING, "txnlog"):
        found, error = until_damage(consumer, way)
    assert error is None
    said = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert "10 at most: offsets 10 to 19 of t:0" in said[0]
    assert "10 at most: offsets 50 to 59 of t:0" in said[1]
    assert len(said) == 2
    whole = [*range(10), *range(20, 50)]
    assert sorted(found) == [(0, at) for at in whole] + [(1, at) for at in range(5)]
    assert consumer.positions() == {T0: 60, T1: 5}


@FORMATS
@pytest.mark.parametrize("columns", [["value"], ["partition", "value", "offset"]])
def test_a_count_is_of_what_is_sound(store: Store, record_format: str, columns: list[str]) -> None:
    """Where it is told of damage, and so reads everything; of a filter and of the newest too."""
    fill(store, record_format, 3, in_one_segment=False)
    damage(store, b"<0010>")
    snapshot = store.snapshot(["t"])
    found: list[DamagedRecords] = []
    assert snapshot.scan("t", columns=columns).count(report=found.append) == {0: 20, 1: 5}
    assert [(each.offset, each.next_offset) for each in found] == [(10, 20)]
    some = snapshot.scan("t", columns=columns, filter=pc.field("offset") < 22)
    assert some.count(report=found.append) == {0: 12, 1: 5}
    newest = snapshot.scan("t", columns=columns, latest=True)
    assert newest.count(report=found.append) == {0: 0, 1: 0}
    assert len(found) == 3


def test_new_records_of_others_come_at_damage(store: Store) -> None:
    """Each poll returns what is new of the other partition, or says what is damaged."""
    fill(store, "columns", 3, in_one_segment=False)
    damage(store, b"<0010>")
    consumer = read_alone(store, "t", auto_offset_reset="earliest")
    until_damage(consumer, poll)
    for number in (5, 6):
        with store.producer() as producer:
            producer.send("t", b"new", partition=1)
        assert poll(consumer) == [(1, number)]
        with pytest.raises(CorruptRecord, match="begin at offset 20"):
            consumer.poll()


def test_a_segment_that_is_gone_is_damage_too(store: Store) -> None:
    """Its offsets are those of the log."""
    fill(store, "columns", 3, in_one_segment=False)
    names = [
        segment.paths.log for segment in store.topics.segments("t") if segment.base_offset == 10
    ]
    store.storage.delete(names)
    consumer = read_alone(store, "t", auto_offset_reset="earliest", on_corrupt="skip")
    assert sorted(until_damage(consumer, poll)[0]) == [
        (0, at) for at in [*range(10), *range(20, 30)]
    ] + [(1, at) for at in range(5)]


def test_only_what_is_known_may_be_asked_for(store: Store) -> None:
    with pytest.raises(InvalidOption, match="on_corrupt 'ignore' is not one of raise, skip"):
        store.consumer(on_corrupt="ignore")  # type: ignore[arg-type]
