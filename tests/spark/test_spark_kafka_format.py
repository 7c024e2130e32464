"""Topics in Kafka's own format, and such that came from a broker, are topics like any other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_helpers import load, numbers, save, stored, values

from txnlog import Store
from txnlog.segments.batches import encode_batch, encode_marker
from txnlog.segments.compression import Compression
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
    store.import_kafka("in", [str(tmp_path / "broker")])
    return store


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
    imported.create_topic("out", config={"record.format": "kafka", "compression.type": "producer"})
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
    assert imported.describe_group("g").lag == 0
    codecs = {
        Compression(Path(imported.url, segment.paths.log).read_bytes()[segment.ref.start + 22] & 7)
        for segment in imported.segments("out")
    }
    assert codecs == {Compression.SNAPPY}


def test_a_write_chooses_its_codec(spark: SparkSession, store: Store) -> None:
    """Per-write override and level; what a topic cannot hold is said before tasks run."""
    store.create_topic("rows", config={"record.format": "kafka", "compression.type": "producer"})
    store.create_topic("columns")
    save(numbers(spark, 0, 1000), store, "rows", compression_type="gzip", compression_level=9)
    assert stored(store, "rows") == list(range(1000))
    assert values(load(spark, store, "rows")) == list(range(1000))
    for segment in store.segments("rows"):
        data = Path(store.url, segment.paths.log).read_bytes()
        assert Compression(data[segment.ref.start + 22] & 7) is Compression.GZIP
    with pytest.raises(PySparkException, match=r"gzip needs record\.format=kafka"):
        save(numbers(spark, 0, 1000), store, "columns", compression_type="gzip")
    assert stored(store, "columns") == []
