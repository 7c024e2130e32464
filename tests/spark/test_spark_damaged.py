"""Spark at damaged records: an error, or with ``onCorrupt=skip`` passed, told and counted."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.spark_helpers import load, save, stored
from tests.spark.stream_helpers import reads_streams, run, sink, stream
from txnlog import Store
from txnlog.errors import CorruptRecord, InvalidOption
from txnlog.results import DamagedRecords
from txnlog.spark import TransactionResult, read, transaction
from txnlog.spark.batch import skipped_records
from txnlog.spark.batch.read_plan import plan_read
from txnlog.spark.batch.reader import TxnlogReader
from txnlog.spark.source import TxnlogDataSource
from txnlog.state.transaction import TransactionRef

SKIP = {"onCorrupt": "skip"}
SOUND = [*range(10), *range(20, 30), *range(40, 50)]
PLACES = [("t", 0, 10, 20), ("t", 0, 30, 40)]


def fill(store: Store, record_format: str = "columns", *, typed: bool = False) -> None:
    """Five segments of ten numbers, of which the second and the fourth are damaged."""
    config = {"record.format": record_format, "compression.type": "none"}
    schema = pa.schema([("value", pa.string())]) if typed else None
    store.topics.create("t", config=config, schema=schema)
    for start in range(0, 50, 10):
        rows = [f"{number:02}".ljust(100, "-") for number in range(start, start + 10)]
        with store.producer() as producer:
            times = [*range(1_000 + start, 1_010 + start)]
            timestamp = "_timestamp" if typed else "timestamp"
            producer.send_batch("t", pa.record_batch({"value": rows, timestamp: times}))
    for segment in store.topics.segments("t"):
        if segment.base_offset in (10, 30):
            path = Path(store.url) / segment.paths.log
            content = bytearray(path.read_bytes())
            content[content.index(b"-" * 50)] ^= 1
            path.write_bytes(content)


def numbers_of(table: pa.Table) -> list[int]:
    return [int(value[:2]) for value in table["value"].to_pylist()]


_FORMATS = pytest.mark.parametrize(
    ("record_format", "typed", "columns"),
    [
        ("columns", False, "value"),
        ("kafka", False, "offset,value"),
        ("parquet", False, "value"),
        ("parquet", True, "_offset,value"),
    ],
)


@_FORMATS
def test_a_time_is_looked_for_in_what_can_be_read(
    store: Store, record_format: str, typed: bool, columns: str
) -> None:
    """At each edge of what is damaged, and in it: what is read are the sound rows, each once."""
    fill(store, record_format, typed=typed)
    given = {"path": store.url, "subscribe": "t", "columns": columns, **SKIP}

    def rows(**more: str) -> list[int]:
        reader = TxnlogReader(plan_read({**given, **more}))
        parts = reader.partitions()
        found = [batch for part in parts for batch in reader.read(part)]
        return numbers_of(pa.Table.from_batches(found)) if found else []

    for at in (0, 9, 10, 15, 19, 20, 39, 40, 49):
        text = str(1_000 + at)
        assert rows(startingTimestamp=text) == [number for number in SOUND if number >= at]
        assert rows(endingTimestamp=text) == [number for number in SOUND if number < at]


@pytest.mark.parametrize("record_format", ["columns", "kafka"])
def test_a_time_is_looked_for_behind_a_damaged_batch(store: Store, record_format: str) -> None:
    """Of a segment of several: its sound records are not all as late as is asked."""
    config = {"record.format": record_format, "compression.type": "none"}
    store.topics.create("t", config=config)
    values = [f"<{number:02}>".ljust(100_000, "-") for number in range(60)]
    with store.producer() as producer:
        producer.send_batch("t", pa.record_batch({"value": values, "timestamp": [*range(60)]}))
    (segment,) = store.topics.segments("t")
    assert segment.batch_count > 2
    path = Path(store.url) / segment.paths.log
    data = bytearray(path.read_bytes())
    data[data.index(b"<30>") + 9] ^= 1
    path.write_bytes(data)

    def rows(**more: str) -> list[int]:
        given = {"path": store.url, "subscribe": "t", "columns": "value", **SKIP, **more}
        reader = TxnlogReader(plan_read(given))
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [int(v[1:3]) for batch in found for v in batch.column("value").to_pylist()]

    sound = rows(startingOffsets="earliest")
    assert 0 < len(sound) < 60
    for at in (1, 30, 58):
        assert rows(startingTimestamp=str(at)) == [number for number in sound if number >= at]
        assert rows(endingTimestamp=str(at)) == [number for number in sound if number < at]


@pytest.mark.parametrize("options", [{}, SKIP], ids=["error", "skip"])
def test_a_stream_begins_to_read_before_damage_is_looked_at(
    store: Store, options: dict[str, str]
) -> None:
    """A query that has passed it long ago has the time at which it began in its options."""
    fill(store)
    given = {"path": store.url, "subscribe": "t", "startingTimestamp": "1015", **options}
    assert TxnlogDataSource(given).schema().names[:2] == ["key", "value"]


@_FORMATS
def test_a_task_passes_damage_and_says_so(
    store: Store, record_format: str, typed: bool, columns: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever of a record is read; without the option the first of it is an error."""
    fill(store, record_format, typed=typed)
    given = {"path": store.url, "subscribe": "t", "columns": columns}

    def rows(**more: str) -> list[int]:
        reader = TxnlogReader(plan_read({**given, **more}))
        in_task = pickle.loads(pickle.dumps(reader))
        found = [batch for part in reader.partitions() for batch in in_task.read(part)]
        return numbers_of(pa.Table.from_batches(found))

    with pytest.raises(CorruptRecord):
        rows()
    assert rows(**SKIP) == SOUND
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("skipped")]
    assert len(said) == 2
    for message, (_, _, first, end) in zip(said, PLACES, strict=True):
        assert message.startswith(f"skipped, 10 at most: offsets {first} to {end - 1} of t:0")


def test_a_transaction_is_told_of_its_own_reads(store: Store) -> None:
    """Each place once, whoever came by; an older run's notes are only deleted."""
    old, mine = (TransactionRef("etl", 0, 1, epoch) for epoch in (1, 2))
    other = TransactionRef("other", 0, 2, 1)
    places = [DamagedRecords("t", 0, at, at + 10, "bad") for at in (30, 10, 10)]
    for ref, some in ((old, places), (mine, places), (other, places[:1])):
        report = skipped_records.reporter(store.storage, ref)
        for damaged in some:
            report(damaged)
    skipped_records.reporter(store.storage, old)(DamagedRecords("t", 1, 0, 1, "bad"))
    assert skipped_records.take_notes(store.storage, mine) == (places[1], places[0])
    assert skipped_records.take_notes(store.storage, mine) == ()
    assert skipped_records.take_notes(store.storage, old) == ()
    assert skipped_records.take_notes(store.storage, other) == (places[0],)


@pytest.mark.more
def test_spark_itself_is_not_asked_to_read_past_damage(spark: SparkSession, store: Store) -> None:
    """It would fail at it; what would ask for that is refused."""
    fill(store, typed=True)
    with pytest.raises(InvalidOption, match="Spark itself cannot pass damaged records"):
        read(spark, store, "t", native=True, options=SKIP)
    frame = read(spark, store, "t", options=SKIP)
    assert frame.inputFiles() == []


@pytest.mark.more
@pytest.mark.parametrize("typed", [False, True])
def test_a_transaction_passes_damage_and_counts_it(
    spark: SparkSession, store: Store, typed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Computed twice, it is counted once; the group moves behind it, and nothing is left over."""
    fill(store, typed=typed)
    store.topics.create("out")

    def run(options: dict[str, str]) -> TransactionResult:
        with transaction(spark, store, transactional_id="etl", group_id="etl") as txn:
            rows = txn.read("t", options=options).selectExpr(
                "string(substring(value, 1, 2)) AS value"
            )
            for half in (0, 1):
                txn.write(rows.where(f"value % 2 = {half}"), topic="out")
        return txn.result

    with pytest.raises(PySparkException, match="CorruptRecord"):
        run({})
    assert stored(store, "out") == []
    with caplog.at_level(logging.WARNING, "txnlog"):
        result = run(SKIP)
    assert stored(store, "out") == SOUND
    found = [(d.topic, d.partition, d.offset, d.next_offset) for d in result.skipped]
    assert found == PLACES
    said = [r.getMessage() for r in caplog.records if "skip damaged" in r.getMessage()]
    assert len(said) == 1
    assert "20 at most: offsets 10 to 19 of t:0" in said[0]
    assert store.groups.describe("etl").lag == 0
    assert store.storage.list_names("staging") == []
    assert run(SKIP).skipped == ()


@pytest.mark.more
def test_options_alone_pass_damage(spark: SparkSession, store: Store) -> None:
    """The write that commits the read says it, and deletes the notes of it."""
    fill(store)
    store.topics.create("out")
    ids = {"transactional.id": "etl"}
    rows = load(spark, store, "t", **ids, **{"group.id": "etl"}, **SKIP)
    save(rows.selectExpr("substring(value, 1, 2) AS value"), store, "out", **ids)
    assert stored(store, "out") == SOUND
    assert store.groups.describe("etl").lag == 0
    assert store.storage.list_names("staging") == []


@pytest.mark.more
@reads_streams
def test_a_stream_passes_damage(spark: SparkSession, store: Store) -> None:
    """Which would hold it up for ever."""
    fill(store)
    store.topics.create("out")
    rows = stream(spark, store, "t", **SKIP).selectExpr("substring(value, 1, 2) AS value")
    run(sink(rows, store, "out"))
    assert stored(store, "out") == SOUND
