"""Export of typed topics: what a consumer returns, in folders that independent libraries read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from tests.kafka.broker_folders import Record, read
from tests.kafka.folder_judges import JUDGES, batches, committed_records, records_of_batches
from tests.support.segments.typed_formats import in_either_format
from txnlog import Producer, Store, TopicPartition
from txnlog.read import json_records

SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
        ("legs", pa.list_(pa.struct([("to", pa.string()), ("miles", pa.float32())]))),
        ("raw", pa.binary()),
    ]
)


pytestmark = pytest.mark.store(topics={})


def rows(first: int, stop: int) -> pa.Table:
    """Rows with keys ``c<first>`` to ``c<stop - 1>``; every fourth one deletes its key."""
    numbers = range(first, stop)
    return pa.table(
        {
            "carrier": [f"c{n}" for n in numbers],
            "at": pa.array([n * 1_000_001 for n in numbers], SCHEMA.field("at").type),
            "price": pa.array(list(numbers), pa.int64()),
            "legs": pa.array(
                [[{"to": 'é"\n', "miles": n / 3}, None] if n % 3 else None for n in numbers],
                SCHEMA.field("legs").type,
            ),
            "raw": [b"\0%d" % n for n in numbers],
            "_deleted": [n % 4 == 3 for n in numbers],
            "_timestamp": pa.array([1_600_000_000_000 + n for n in numbers], pa.int64()),
            "_headers": pa.array(
                [[{"key": "h", "value": b"%d" % n}, {"key": "h", "value": None}] for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


def transactional(store: Store, name: str) -> Producer:
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    return producer


def fill(store: Store) -> None:
    """Plain records, and transactions that commit, abort and interleave."""
    first, second = transactional(store, "first"), transactional(store, "second")
    with store.producer() as plain:
        plain.send_batch("t", rows(0, 9))
    first.begin_transaction()
    second.begin_transaction()
    for turn in range(2):
        first.send_batch("t", rows(10 + turn, 20 + turn))
        second.send_batch("t", rows(30 + turn, 50 + turn))
        first.flush()
        second.flush()
    second.abort_transaction()
    first.commit_transaction()


def shown(
    store: Store,
    partition: int,
    level: Literal["read_committed", "read_uncommitted"] = "read_committed",
) -> list[Record]:
    """What a consumer returns of a partition, in JSON."""
    consumer = store.consumer(isolation_level=level, as_json=True)
    consumer.assign([TopicPartition("t", partition)])
    consumer.seek_to_beginning()
    return [
        (r.offset, r.timestamp, r.timestamp_type, r.key, r.value, list(r.headers))
        for r in consumer.poll(timeout_ms=100)
    ]


def behind_markers(records: list[Record], markers: list[int]) -> list[Record]:
    """Records with the offsets that they have in a folder with markers at these offsets."""
    moved = []
    for offset, *rest in records:
        for marker in markers:  # ascending
            offset += marker <= offset
        moved.append((offset, *rest))
    return moved  # type: ignore[return-value]  # the parts of a record, one after the other


@pytest.mark.few(2)
@in_either_format
@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("most_bytes", [1 << 26, 900])
def test_an_export_has_what_a_consumer_returns(
    store: Store, tmp_path: Path, judge: str, most_bytes: int
) -> None:
    """Keys, values in JSON, tombstones, times and headers; aborted records stay aborted."""
    store.topics.create("t", partitions=2, schema=SCHEMA, key=["carrier"])
    fill(store)
    with patch.object(json_records, "_MOST_BYTES", most_bytes):
        done = store.kafka.export_topic("t", str(tmp_path))
    deleted = 0
    for part in done.partitions:
        found = batches(tmp_path / f"t-{part.partition}", judge)
        markers = [batch.base_offset for batch in found if batch.commit is not None]
        assert len(markers) == part.marker_count == 2
        committed = shown(store, part.partition)
        assert committed_records(found) == behind_markers(committed, markers)
        every = shown(store, part.partition, "read_uncommitted")
        assert records_of_batches(found) == behind_markers(every, markers)
        assert len(every) == part.record_count > len(committed) > 0
        for _, time, _, key, value, headers in committed:
            assert key is not None
            number = int(key[1:])
            assert (time, headers[0]) == (1_600_000_000_000 + number, ("h", b"%d" % number))
            deleted += value is None
            assert (value is None) == (number % 4 == 3)
            if value is not None:
                assert json.loads(value)["price"] == f"{number}.00"
    assert deleted > 4


@pytest.mark.parametrize("judge", JUDGES)
def test_sequences_go_on_where_a_batch_is_cut_for_its_json(
    store: Store, tmp_path: Path, judge: str
) -> None:
    store.topics.create("t", schema=SCHEMA, key=["carrier"])
    fill(store)
    with patch.object(json_records, "_MOST_BYTES", 900):
        store.kafka.export_topic("t", str(tmp_path))
    following: dict[int, int] = {}
    cut = 0
    for batch in batches(tmp_path / "t-0", judge):
        if batch.commit is None and batch.transactional:
            assert batch.base_sequence == following.get(batch.producer_id, 0)
            following[batch.producer_id] = batch.base_sequence + len(batch.records)
            cut += 1
    assert sorted(following.values()) == [20, 40]
    assert cut > 8


def test_a_key_of_text_lies_where_kafka_s_clients_look_for_it(store: Store, tmp_path: Path) -> None:
    """One column of text is its bytes, so the partition of a record is that of its key there."""
    store.topics.create("t", partitions=5, schema=SCHEMA, key=["carrier"])
    with store.producer() as producer:
        producer.send_batch("t", rows(0, 40))
    store.kafka.export_topic("t", str(tmp_path))
    counts = []
    for number in range(5):
        found = records_of_batches(batches(tmp_path / f"t-{number}", "kafka-python"))
        assert {(murmur2(record[3]) & 0x7FFFFFFF) % 5 for record in found} <= {number}
        counts.append(len(found))
    assert sum(counts) == 40
    assert all(counts)


@in_either_format
def test_a_key_of_several_columns_is_a_list(store: Store, tmp_path: Path) -> None:
    columns = pa.schema([("n", pa.int64()), ("day", pa.date32())])
    store.topics.create("t", schema=columns, key=["day", "n"])
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"n": [1], "day": pa.array([19_000], pa.date32())}))
    store.kafka.export_topic("t", str(tmp_path))
    [record] = records_of_batches(batches(tmp_path / "t-0", "aiokafka"))
    assert record[3] == b'["2022-01-08",1]'
    assert record[4] == b'{"n":1,"day":"2022-01-08"}'


@in_either_format
def test_older_records_have_the_columns_of_today(store: Store, tmp_path: Path) -> None:
    """As consumers see them: under new names, with defaults, without what was dropped."""
    store.topics.create("t", schema=pa.schema([("a", pa.int32()), ("b", pa.string())]))
    with store.producer() as producer:
        producer.send_batch("t", pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}))
    changed = pa.schema([("A", pa.int64()), ("c", pa.string())])
    store.topics.alter("t", schema=changed, rename={"a": "A"}, defaults={"c": "?"})
    with store.producer() as producer:
        producer.send("t", {"A": 2, "c": None})
    store.kafka.export_topic("t", str(tmp_path))
    found = records_of_batches(batches(tmp_path / "t-0", "kafka-python"))
    assert [record[3:5] for record in found] == [
        (None, b'{"A":1,"c":"?"}'),
        (None, b'{"A":2,"c":null}'),
    ]
    assert found == shown(store, 0)


@in_either_format
@pytest.mark.parametrize("magic", [2, 1])
def test_offsets_are_kept_where_compaction_left_gaps(
    store: Store, tmp_path: Path, magic: int
) -> None:
    """And what an older format cannot say, headers, is left out."""
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0}
    store.topics.create("t", schema=SCHEMA, key=["carrier"], config=config)
    fill(store)
    with store.producer() as producer:
        producer.send_batch("t", rows(5, 15))
    store.maintenance.compact("t")
    store.kafka.export_topic("t", str(tmp_path), keep_offsets=True, magic=magic)
    wanted = shown(store, 0)
    assert [record[0] for record in wanted] != [*range(wanted[0][0], wanted[-1][0] + 1)]
    if magic == 1:
        wanted = [(*record[:5], []) for record in wanted]
    assert records_of_batches(batches(tmp_path / "t-0", "kafka-python")) == wanted


@in_either_format
def test_it_comes_back_as_a_topic_of_keys_and_values(store: Store, tmp_path: Path) -> None:
    """Also into Parquet files. A topic with columns takes no bytes."""
    store.topics.create("t", partitions=2, schema=SCHEMA, key=["carrier"])
    fill(store)
    store.kafka.export_topic("t", str(tmp_path), keep_offsets=True)
    for number in range(2):
        (tmp_path / f"t-{number}").rename(tmp_path / f"back-{number}")
    store.topics.create("back", partitions=2, config={"record.format": "parquet"})
    store.kafka.import_topic("back", [str(tmp_path)])
    for number in range(2):
        assert read(store, "back", number, "read_committed") == shown(store, number)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_the_kind_of_times_is_said(store: Store, tmp_path: Path, kind: str) -> None:
    """A time of the append is in the log alone; a batch in the folder has one for all."""
    config = {"message.timestamp.type": kind}
    store.topics.create("t", schema=SCHEMA, key=["carrier"], config=config)
    with store.producer() as producer:
        producer.send_batch("t", rows(0, 5))
    store.kafka.export_topic("t", str(tmp_path))
    found = records_of_batches(batches(tmp_path / "t-0", "aiokafka"))
    assert found == shown(store, 0)
    assert {record[2] for record in found} == {int(kind == "LogAppendTime")}
    assert len({record[1] for record in found}) == (1 if kind == "LogAppendTime" else 5)
