"""Consumers on every kind of storage: where they begin, seek and commit, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from tests.support.groups.alone import read_alone
from tests.support.steps import ANYWHERE, another, elsewhere, send, values
from txnlog.errors import (
    IllegalState,
    InvalidOption,
    NoOffsetForPartition,
    OffsetOutOfRange,
)
from txnlog.names import TopicPartition
from txnlog.store import Store
from txnlog.testing import VirtualClock

T0 = TopicPartition("t", 0)


pytestmark = ANYWHERE


@pytest.mark.condition(36)
def test_offset_reset(store: Store) -> None:
    """Earliest, latest and none, for a new group and for an offset out of range."""
    with store.producer() as plain:
        for number in range(5):
            plain.send("t", b"%d" % number)
    earliest = store.consumer("t", group_id="g", auto_offset_reset="earliest", stop_at_end=True)
    assert [record.offset for record in earliest] == [0, 1, 2, 3, 4]
    earliest.close()
    assert read_alone(store, "t", group_id="g", auto_offset_reset="latest").poll() == []
    with pytest.raises(NoOffsetForPartition, match="t:0"):
        read_alone(store, "t", group_id="g", auto_offset_reset="none").poll()
    with pytest.raises(NoOffsetForPartition, match="the consumer has no position in t:0 and auto"):
        store.consumer("t", auto_offset_reset="none").poll()
    store.topics.delete_records({T0: 3})
    store.consumer("t", group_id="g").commit({T0: 1})
    again = read_alone(store, "t", group_id="g", auto_offset_reset="earliest", stop_at_end=True)
    assert [record.offset for record in again] == [3, 4]
    assert read_alone(store, "t", group_id="g", auto_offset_reset="latest").poll() == []
    with pytest.raises(OffsetOutOfRange, match="3 to 5"):
        read_alone(store, "t", group_id="g", auto_offset_reset="none").poll()


@pytest.mark.condition(38, 39)
def test_seek_and_read_from_any_offset(store: Store) -> None:
    """Exactly the records from an offset on, across batches and segments."""
    with store.producer() as plain:
        for start in range(0, 60, 20):
            plain.send_batch(
                "t", pa.record_batch({"value": [b"%d" % n for n in range(start, start + 20)]})
            )
            plain.flush()
    consumer = store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    for offset in (0, 1, 19, 20, 21, 39, 40, 59, 60):
        consumer.seek(T0, offset)
        assert [record.offset for record in consumer] == list(range(offset, 60))
        scanned = store.scan("t", {0: offset}).to_arrow()
        assert scanned.column("offset").to_pylist() == list(range(offset, 60))
    assert store.scan("t", {0: 5}, {0: 25}).to_arrow().column("value").to_pylist() == [
        b"%d" % number for number in range(5, 25)
    ]
    with pytest.raises(OffsetOutOfRange):
        store.scan("t", {0: 61})


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_what_is_no_offset_cannot_be_sought(store: Store, offset: int) -> None:
    """The bounds are those of an offset to commit: what was sought may be committed."""
    consumer = store.consumer("t", group_id="g")
    with pytest.raises(InvalidOption, match="the offset to seek to must be a whole number"):
        consumer.seek(T0, offset)
    consumer.seek(T0, (1 << 63) - 1)
    consumer.commit()


@pytest.mark.few(2)
@pytest.mark.condition(37, 47)
@pytest.mark.parametrize("turns", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_committed_offsets_are_dense_and_survive_reopening(
    store: Store, clock: VirtualClock, turns: int
) -> None:
    """No gaps where nothing was aborted; end - start is the count."""
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    for turn in range(turns):
        with producer.transaction():
            send(producer, b"%d" % turn)
            producer.send_offsets_to_transaction({T0: turn + 1}, "g")
    fresh = elsewhere(store.storage, clock)
    assert [
        r.offset for r in fresh.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    ] == list(range(turns))
    group = fresh.groups.describe("g")
    assert [(o.offset, o.end_offset, o.lag) for o in group.offsets] == [(turns, turns, 0)]
    assert values(fresh) == [b"%d" % turn for turn in range(turns)]


@pytest.mark.condition(46)
def test_records_come_back_as_they_were_sent(store: Store) -> None:
    """Through the whole stack: nulls, empties, headers, extreme timestamps."""
    sent = [
        (None, b"", -1, ()),
        (b"", None, 0, (("a", None), ("a", b""), ("b", b"x"))),
        (b"\x00\xff", b"v" * 70_000, 1_700_000_000_123, (("h", b"1"),)),
        ("kéy".encode(), "välue".encode(), 253_402_300_799_999, ()),
    ]
    store.topics.alter("t", config={"message.timestamp.after.max.ms": 10**18})
    with another(store).producer() as plain:
        for key, value, timestamp_ms, headers in sent:
            plain.send("t", value, key, timestamp_ms=timestamp_ms, headers=headers)
    got = [
        (record.key, record.value, record.timestamp, record.headers)
        for record in store.consumer("t", auto_offset_reset="earliest", stop_at_end=True)
    ]
    assert got == sent


def test_a_closed_consumer_commits_nothing(store: Store) -> None:
    """It does not say that it has, either."""
    for way in ("subscribed", "assigned"):
        consumer = store.consumer(group_id=way)
        if way == "subscribed":
            consumer.subscribe(["t"])
            consumer.poll()
        else:
            consumer.assign([T0])
        consumer.close()
        calls: list[Callable[[], object]] = [
            consumer.commit,
            partial(consumer.commit, {T0: 0}),
            partial(consumer.commit_async, {T0: 0}),
            partial(consumer.committed, T0),
            consumer.group_metadata,
        ]
        for call in calls:
            with pytest.raises(IllegalState, match="is closed"):
                call()
