"""Records that are made of columns: what they are, and what making them costs."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest

from tests.support.runtime.call_counts import calls_of
from txnlog import ConsumerRecord
from txnlog.names import TopicPartition
from txnlog.read.consumer_reads import _python_values, each_record
from txnlog.read.plan import SCAN_SCHEMA
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

WHERE = TopicPartition("t", 3)


def one_by_one(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    """What a batch says, by Arrow's own conversion."""
    return [
        (
            *(row["topic"], row["partition"], row["offset"]),
            *(row["timestamp"] // 1000, row["timestampType"], row["key"], row["value"]),
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in batch.set_column(
            SCAN_SCHEMA.get_field_index("timestamp"),
            "timestamp",
            batch.column("timestamp").view(pa.int64()),
        ).to_pylist()
    ]


def fields(record: ConsumerRecord) -> tuple[object, ...]:
    return (
        *(record.topic, record.partition, record.offset, record.timestamp),
        *(record.timestamp_type, record.key, record.value, record.headers),
    )


def any_bytes(rng: random.Random, nulls: float) -> bytes | None:
    return None if rng.random() < nulls else rng.randbytes(rng.choice((0, 1, 7, 100)))


@pytest.mark.parametrize("seed", range(40))
def test_records_are_what_their_columns_say(seed: int) -> None:
    """Nulls, empties, headers, gaps, times alike or not, in slices of batches: judged by Arrow."""
    rng = random.Random(seed)
    count = rng.choice((1, 2, 50))
    key_nulls, value_nulls = rng.choice((0, 0.3, 1)), rng.choice((0, 0.3, 1))
    offsets = np.cumsum([rng.choice((1, 1, 1 + seed % 2)) for _ in range(count)]) + 2**40
    alike = rng.randrange(2)
    times = [-1 if alike else rng.randrange(-(2**40), 2**40) for _ in range(count)]
    columns = {
        "key": [any_bytes(rng, key_nulls) for _ in range(count)],
        "value": [any_bytes(rng, value_nulls) for _ in range(count)],
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": offsets,
        "timestamp": pa.array([time * 1000 for time in times], pa.int64()).view(
            SCAN_SCHEMA.field("timestamp").type
        ),
        "timestampType": [rng.randrange(2)] * count,
        "headers": [
            [
                {"key": rng.choice(("a", "", "ключ")), "value": any_bytes(rng, 0.3)}
                for _ in range(rng.randrange(3) * (seed % 3))
            ]
            for _ in range(count)
        ],
    }
    if seed % 5 == 4:
        columns["headers"][0] = None
    batch = pa.record_batch(columns, schema=SCAN_SCHEMA)
    start = rng.randrange(count)
    for part in (batch, batch.slice(start), batch.slice(start, 1)):
        made = [*each_record(WHERE, part)]
        assert [fields(record) for record in made] == one_by_one(part)
        for record in made:
            kinds = [type(field) for field in fields(record)[:5]]
            assert kinds == [str, int, int, int, int]
            assert {type(record.key), type(record.value)} <= {bytes, type(None)}


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["ms", "us"])
def test_values_of_rows_are_those_of_arrow(unit: str, zone: str | None) -> None:
    """The short ways too: numbers and times with nulls, before 1970, in slices; judged by Arrow."""
    ticks = pa.array([0, None, -1, 10**12, -(10**12), 1], pa.int64())
    far = pa.array([0, None, 1 << 62], pa.int64()).view(pa.timestamp("us", zone))
    columns = [ticks.view(pa.timestamp(unit, zone)), ticks, ticks.drop_null()]
    columns += [pa.array([0.5, None, float("inf")]), pa.array([1.5, -0.0], pa.float32())]
    for column in columns:
        for start, count in ((0, len(column)), (1, 2), (2, 0)):
            piece = column.slice(start, count)
            assert _python_values(piece) == piece.to_pylist()
    assert _python_values(far) == [far[0].as_py(), None, far[2]]


def test_a_record_is_a_value() -> None:
    """Equal, hashed, shown, copied and pickled by its fields, matched by them, and unchangeable."""
    record = ConsumerRecord("t", 1, 2, 3, 0, b"k", None, (("h", b"x"), ("i", None)))
    same = ConsumerRecord("t", 1, 2, 3, 0, b"k", None, (("h", b"x"), ("i", None)))
    other = ConsumerRecord("t", 1, 2, 3, 0, b"k", b"", ())
    assert (record == same, record == other, len({record, same, other})) == (True, False, 2)
    for again in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert again == record
    assert repr(record) == (
        "ConsumerRecord(topic='t', partition=1, offset=2, timestamp=3, timestamp_type=0, "
        "key=b'k', value=None, headers=(('h', b'x'), ('i', None)))"
    )
    match record:
        case ConsumerRecord(topic="t", offset=found):
            assert found == 2
    with pytest.raises(AttributeError):
        record.offset = 9  # type: ignore[misc]


def filled(count: int) -> Store:
    store = attach(HeapStorage(), create=True, clock=VirtualClock())
    store.topics.create("t")
    values = pa.array([b"%d" % number for number in range(count)], pa.binary())
    with store.producer() as producer:
        producer.send_batch("t", pa.record_batch({"key": values, "value": values}))
    return store


def test_no_python_runs_for_each_record() -> None:
    """A poll of 8,000 records calls as many functions as one of 80; iterating, itself for each."""
    few, many = filled(80), filled(8_000)

    def poll(store: Store) -> None:
        consumer = store.consumer("t", auto_offset_reset="earliest")
        assert len(consumer.poll(max_records=8_000)) == store.scan("t").record_count

    def iterate(store: Store) -> None:
        consumer = store.consumer(
            "t", auto_offset_reset="earliest", stop_at_end=True, max_poll_records=10_000
        )
        assert sum(1 for _ in consumer) == store.scan("t").record_count

    for store in (few, many):  # what is imported and made once
        poll(store)
        iterate(store)
    assert calls_of(lambda: poll(many)) < calls_of(lambda: poll(few)) + 100
    assert calls_of(lambda: iterate(many)) < calls_of(lambda: iterate(few)) + 2 * 8_000 + 100


def test_sending_calls_three_functions_for_each_record() -> None:
    """The producer, its buffers, the topic's; and the clock, to know how old its metadata are."""
    store = filled(1)
    producer = store.producer()
    producer.send("t", b"v", b"k")

    def send(count: int) -> None:
        for _ in range(count):
            producer.send("t", b"v", b"k")

    assert calls_of(lambda: send(900)) - calls_of(lambda: send(100)) <= 800 * 5
