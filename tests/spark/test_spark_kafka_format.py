"""Topics in Kafka's own format, and such that came from a broker, are topics like any other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.spark_helpers import fill, load, numbers, save, stored, values
from txnlog import Store
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.segments.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, BatchHeader, Compression
from txnlog.segments.batches import decode_header, encode_batch, encode_marker
from txnlog.segments.records import normalize
from txnlog.spark import transaction

RECORDS = 100


@pytest.fixture
def imported(store: Store, tmp_path: Path) -> Store:
    """A topic ``in`` of two partitions from a broker: plain, aborted and committed records."""
    for partition in range(2):
        data, offset = [], 0
        for number, (codec, end) in enumerate(
            [("none", None), ("gzip", False), ("snappy", True), ("zstd", None)]
        ):
            start = 1000 * partition + RECORDS * number
            row = {"value": [b"%d" % n for n in range(start, start + RECORDS)]}
            data.append(
                encode_batch(
                    normalize(pa.record_batch(row), now_ms=7),
                    record_format="kafka",
                    compression=Compression.parse(codec),
                    base_offset=offset,
                    producer_id=number,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=end is not None,
                )
            )
            offset += RECORDS
            if end is not None:
                data.append(
                    encode_marker(
                        commit=end,
                        offset=offset,
                        timestamp_ms=7,
                        producer_id=number,
                        producer_epoch=0,
                        coordinator_epoch=0,
                    )
                )
                offset += 1
        folder = tmp_path / "broker" / f"in-{partition}"
        folder.mkdir(parents=True)
        (folder / f"{0:020}.log").write_bytes(b"".join(data))
    store.kafka.import_topic("in", [str(tmp_path / "broker")])
    return store


def first_headers(store: Store, topic: str) -> list[tuple[BatchHeader, SegmentDescription]]:
    """Each segment with the header that its bytes begin with."""
    return [
        (decode_header(Path(store.url, s.paths.log).read_bytes()[s.ref.start :]), s)
        for s in store.topics.segments(topic)
    ]


ALL = sorted(1000 * p + n for p in range(2) for n in range(4 * RECORDS))
COMMITTED = [n for n in ALL if not RECORDS <= n % 1000 < 2 * RECORDS]


def test_an_imported_topic_is_read(spark: SparkSession, imported: Store) -> None:
    """Both isolation levels, many tasks, offsets with gaps, ranges."""
    assert values(load(spark, imported, "in", minPartitions=7)) == COMMITTED
    assert values(load(spark, imported, "in", isolation_level="read_uncommitted")) == ALL
    read = load(spark, imported, "in", startingOffsets='{"in":{"0":250,"1":-1}}')
    offsets = sorted(row["offset"] for row in read.select("offset").collect())
    assert offsets == [*range(250, 301), *range(302, 402)]


@pytest.mark.more
def test_an_imported_topic_is_consumed_exactly_once(spark: SparkSession, imported: Store) -> None:
    """In batches of a transaction each, markers and aborted records moved over."""
    imported.topics.create("out", config={"record.format": "kafka", "compression.type": "producer"})
    runs = 0
    while True:
        with transaction(
            spark, imported.url, transactional_id="etl", group_id="g", max_records=150
        ) as txn:
            new = txn.read("in")
            txn.write(new.select("value"), topic="out", compression_type="snappy")
        runs += 1
        if not txn.consumed_records:
            break
    assert runs > 4
    assert stored(imported, "out") == COMMITTED
    assert imported.groups.describe("g").lag == 0
    codecs = {header.codec for header, _ in first_headers(imported, "out")}
    assert codecs == {Compression.SNAPPY}


def test_a_write_chooses_its_codec(spark: SparkSession, store: Store) -> None:
    """Per-write override and level; what a topic cannot hold is said before tasks run."""
    store.topics.create("rows", config={"record.format": "kafka", "compression.type": "producer"})
    store.topics.create("columns")
    save(numbers(spark, 0, 1000), store, "rows", compression_type="gzip", compression_level=9)
    assert stored(store, "rows") == list(range(1000))
    assert values(load(spark, store, "rows")) == list(range(1000))
    for header, _ in first_headers(store, "rows"):
        assert header.codec is Compression.GZIP
        # The driver places them under an id that it draws when the tasks are over.
        assert (header.producer_id, header.producer_epoch) == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    with pytest.raises(PySparkException, match=r"gzip needs record\.format=kafka"):
        save(numbers(spark, 0, 1000), store, "columns", compression_type="gzip")
    assert stored(store, "columns") == []


@pytest.mark.parametrize("in_block", [True, False])
def test_headers_tell_the_producer_that_a_task_writes_for(
    spark: SparkSession, store: Store, in_block: bool
) -> None:
    """In a block, and where options alone go on with the transaction of a read."""
    store.topics.create("in")
    fill(store, "in", 0, 4)
    store.topics.create("out", partitions=2, config={"record.format": "kafka"})
    if in_block:
        with transaction(spark, store, transactional_id="etl", group_id="g") as txn:
            txn.write(txn.read("in"), topic="out")
    else:
        read = load(spark, store, "in", transactional_id="etl", group_id="g")
        save(read.select("value"), store, "out", transactional_id="etl")
    found = first_headers(store, "out")
    told = [(header.producer_id, header.producer_epoch) for header, _ in found]
    assert told == [(segment.producer_id, segment.producer_epoch) for _, segment in found]
    assert len(set(told)) == 1
    assert told[0][0] >= 0
