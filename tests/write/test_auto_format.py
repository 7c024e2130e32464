"""``record.format=auto``: which segments are Parquet files, and that nobody sees a difference."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.steps import another, begin, new_store
from txnlog import IsolationLevel, TopicPartition
from txnlog.config import CompressionType
from txnlog.errors import InvalidConfig, RecordTooLarge
from txnlog.inspect.segments import open_segment
from txnlog.log.uploads import UploadedSegment
from txnlog.names import OWN_FILE
from txnlog.segments.batch_header import Compression
from txnlog.segments.inspect.dump import dump_segment
from txnlog.segments.records import normalize
from txnlog.segments.writer import PARQUET_FROM_BYTES, SegmentSummary, SegmentWriter
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write.segment_uploads import SegmentUploader, UploadBudget

AUTO = {"record.format": "auto"}
PARTITIONS = 8
LEVELS: Sequence[IsolationLevel] = ("read_committed", "snapshot", "read_uncommitted")


@pytest.fixture
def store(clock: VirtualClock) -> Store:
    return auto_store(clock)


def auto_store(clock: VirtualClock, **config: object) -> Store:
    store = new_store(HeapStorage(), clock, {})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    store.topics.create("t", partitions=PARTITIONS, config={**AUTO, **settings})
    return store


def upload(
    store: Store, sizes: dict[int, int], memory_bytes: int = 64 << 20, pieces: int = 1
) -> list[UploadedSegment]:
    """To each of these partitions so many random bytes, in records of a kilobyte."""
    uploader = SegmentUploader(
        store.storage, store.logs.topic_spec("t"), store.logs.clock, UploadBudget(memory_bytes)
    )
    for piece in range(pieces):
        for partition, size in sizes.items():
            rng = np.random.default_rng((piece, partition))
            count = max(size // pieces >> 10, 1)
            values = [rng.bytes(min(size // pieces, 1 << 10)) for _ in range(count)]
            batch = pa.record_batch({"value": pa.array(values, pa.binary())})
            uploader.write(normalize(batch, now_ms=1), np.full(count, partition, np.int32))
    return uploader.finish()


def kinds(segments: Sequence[UploadedSegment]) -> dict[int, list[str]]:
    """By partition what its segments are."""
    found: dict[int, list[str]] = {}
    for segment in segments:
        kind = "shared" if segment.stored.position != OWN_FILE else "own"
        kind = "parquet" if segment.ref.paths.is_parquet else kind
        found.setdefault(segment.partition, []).append(kind)
    return found


# -- which segments are Parquet files ------------------------------------------------------------


def test_what_is_large_is_a_parquet_file_and_the_rest_shares_one(store: Store) -> None:
    """By the bytes of a partition's records in one write, before they are encoded."""
    most = PARQUET_FROM_BYTES
    segments = upload(store, {0: 100, 1: most - (64 << 10), 2: most, 3: 5 * most, 4: 10})
    assert kinds(segments) == {
        0: ["shared"],
        1: ["shared"],
        2: ["parquet"],
        3: ["parquet"],
        4: ["shared"],
    }
    assert [s.files for s in segments if s.ref.paths.is_parquet] == [
        [f"topics/t/data/{s.partition}/{s.stored.name}"] for s in segments if s.partition in (2, 3)
    ]
    store.logs.topic("t").place(segments)
    assert another(store).scan("t").to_arrow().num_rows == sum(
        s.stored.record_count for s in segments
    )


def test_it_is_settled_when_the_first_bytes_are_written(store: Store) -> None:
    """A writer whose memory is full before there is enough writes batches from then on."""
    sizes = dict.fromkeys(range(4), 2 * PARQUET_FROM_BYTES)
    pressed = upload(store, sizes, memory_bytes=PARQUET_FROM_BYTES, pieces=16)
    assert {kind for found in kinds(pressed).values() for kind in found} == {"own"}
    roomy = upload(store, sizes, pieces=16)
    assert kinds(roomy) == {partition: ["parquet"] for partition in range(4)}
    store.logs.topic("t").place(pressed)
    store.logs.topic("t").place(roomy)
    count = 2 * 4 * 2 * PARQUET_FROM_BYTES >> 10
    assert another(store).scan("t").to_arrow().num_rows == count


def write(*pieces: pa.RecordBatch, flushes: bool = False) -> tuple[SegmentSummary, bool]:
    """A segment of these records, and whether it is a Parquet file."""
    writer = SegmentWriter(io.BytesIO(), record_format="auto")
    for piece in pieces:
        writer.append(piece)
        if flushes:
            writer.flush()
            flushes = False
    return writer.finish(), writer.is_parquet


def test_batches_are_no_larger_than_in_columns() -> None:
    """Once it is settled that it is no Parquet file nothing waits for a row group."""
    values = pa.array([b"%01000d" % number for number in range(500)], pa.binary())
    piece = normalize(pa.record_batch({"value": values}), now_ms=1)
    summary, is_parquet = write(*[piece] * 20, flushes=True)
    assert not is_parquet
    assert summary.batch_count - 1 >= 19 * piece.nbytes // (2 << 20)
    summary, is_parquet = write(*[piece] * 20)
    assert is_parquet
    assert summary.batch_count == 1


def test_a_full_row_group_is_enough() -> None:
    """With booleans in lists they are smaller, and end before there is as much as for others."""
    row = [[True, False] * 2000]
    kinds = pa.schema([("many", pa.list_(pa.bool_())), ("_timestamp", pa.timestamp("ms", "UTC"))])
    size = pa.record_batch([pa.array(row, kinds[0].type)], names=["many"]).nbytes
    count = PARQUET_FROM_BYTES * 6 // 10 // size
    columns = [pa.array(row * count, kinds[0].type), pa.array([1] * count, kinds[1].type)]
    piece = pa.record_batch(columns, schema=kinds)
    assert piece.nbytes < PARQUET_FROM_BYTES < 2 * piece.nbytes
    assert write(piece, piece)[1]


def test_a_small_commit_costs_what_it_costs_in_columns(clock: VirtualClock) -> None:
    """The same requests, and the same bytes."""
    found = []
    for record_format in ("columns", "auto"):
        storage = CountingStorage(HeapStorage())
        store = new_store(storage, VirtualClock(clock.time_ms), {})
        config = {"record.format": record_format}
        store.topics.create("t", partitions=PARTITIONS, config=config)
        producer = begin(store)
        storage.take()
        for number in range(40):
            producer.send("t", b"%d" % number, b"key")
        producer.commit_transaction()
        begun = storage.take()
        data = [storage.get(path) for path, _ in storage.list_all("topics/t/data")]
        assert len(data) == 1
        found.append((begun, [len(one) for one in data]))
    assert found[0] == found[1]


@pytest.mark.parametrize("segment_bytes", [1024, 5000, PARQUET_FROM_BYTES, 2 * PARQUET_FROM_BYTES])
def test_no_segment_is_larger_than_it_may_be(clock: VirtualClock, segment_bytes: int) -> None:
    """Those that never get large enough are batches."""
    store = auto_store(clock, segment_bytes=segment_bytes, compression_type="none")
    size = max(4 * segment_bytes, 20_000)
    segments = upload(store, {0: size})
    assert len(segments) >= 4
    slack = 1536 if segment_bytes <= 5000 else 0
    assert max(segment.stored.size_bytes for segment in segments) <= segment_bytes + slack
    large = {"parquet"} if segment_bytes > PARQUET_FROM_BYTES else set()
    assert {*kinds(segments)[0]} - {"own", "shared"} == large
    store.logs.topic("t").place(segments)
    found = another(store).scan("t").to_arrow()
    assert found.num_rows == sum(segment.stored.record_count for segment in segments)


def test_a_record_that_is_too_large_is_refused(clock: VirtualClock) -> None:
    """As in every format; the largest one is a Parquet file by itself."""
    store = auto_store(clock, max_message_bytes=3 << 20)
    producer = store.producer()
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        producer.send_batch("t", pa.record_batch({"value": [b"x" * (3 << 20)]}))
    with store.producer() as producer:
        producer.send("t", b"x" * ((3 << 20) - 1000), partition=2)
    (segment,) = store.topics.segments("t")
    assert segment.paths.is_parquet


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {Compression.LZ4, Compression.ZSTD}),
        ({"compression_type": "none"}, {Compression.NONE}),
        ({"compression_type": "lz4", "compression_lz4_level": 3}, {Compression.LZ4}),
    ],
)
def test_each_kind_has_its_codec(
    clock: VirtualClock, config: dict[str, object], expected: set[Compression]
) -> None:
    """Batches lz4 and Parquet files zstd, unless one is chosen for both."""
    store = auto_store(clock, **config)
    store.logs.topic("t").place(upload(store, {0: 9000, 1: 2 * PARQUET_FROM_BYTES}))
    found = [
        batch.header.codec
        for segment in store.topics.segments("t")
        for batch in dump_segment(open_segment(store.storage, segment))
        if batch.header is not None
    ]
    assert {*found} == expected


@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_a_codec_that_batches_lack_is_refused(store: Store, codec: CompressionType) -> None:
    """When the topic is made, and when a producer chooses it."""
    with pytest.raises(InvalidConfig, match="format=auto has only none, lz4 and zstd"):
        store.topics.create("u", config={**AUTO, "compression.type": codec})
    producer = store.producer(compression_type=codec)
    with pytest.raises(InvalidConfig, match="format=auto has only"):
        producer.send("t", b"x")
    producer.close()


def test_the_format_is_of_what_is_written_from_then_on(store: Store) -> None:
    """It can be altered at any time: what a segment is, its name says."""
    expected = {"columns": "shared", "kafka": "shared", "parquet": "parquet", "auto": "shared"}
    for record_format, kind in expected.items():
        store.topics.alter("t", config={"record.format": record_format})
        assert kinds(upload(store, {0: 10, 1: 10})) == {0: [kind], 1: [kind]}


# -- merging and compaction ----------------------------------------------------------------------


def test_what_is_merged_is_a_parquet_file(store: Store) -> None:
    """However small it is."""
    for number in range(6):
        with store.producer() as producer:
            producer.send("t", b"%d" % number, partition=3)
    before = store.scan("t").to_arrow()
    (merge,) = another(store).maintenance.merge("t")
    assert merge.segment_count == 6
    (segment,) = another(store).topics.segments("t")
    assert segment.paths.is_parquet
    assert another(store).scan("t").to_arrow() == before


def test_what_is_compacted_is_a_parquet_file(clock: VirtualClock) -> None:
    """With gaps between offsets, tombstones, and nothing of what was aborted."""
    store = auto_store(clock, cleanup_policy="compact")
    for number in range(6):
        producer = begin(store, f"p{number}")
        producer.send("t", b"%d" % number, b"same", partition=0)
        producer.send("t", None if number == 5 else b"", b"gone", partition=0)
        producer.send("t", b"once", b"k%d" % number, partition=0)
        producer.flush()
        if number in (2, 4):
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert [*another(store).maintenance.compact("t")]
    (segment,) = another(store).topics.segments("t")
    assert segment.paths.is_parquet
    found = another(store).scan("t", columns=["offset", "key", "value"]).to_arrow().to_pylist()
    assert [(row["key"], row["value"]) for row in found] == [
        *((b"k%d" % number, b"once") for number in (0, 1, 3)),
        (b"same", b"5"),
        (b"gone", None),
        (b"k5", b"once"),
    ]
    assert [row["offset"] for row in found] == [2, 5, 11, 15, 16, 17]


# -- nobody sees a difference --------------------------------------------------------------------


def rows_of(rng: random.Random, now_ms: int) -> pa.RecordBatch:
    """Records with everything that they may have or lack."""
    count = rng.choice([1, 2, 30])
    keys = [rng.choice([None, b"", b"a", rng.randbytes(9)]) for _ in range(count)]
    values = [rng.choice([None, b"", rng.randbytes(40)]) for _ in range(count)]
    headers = [rng.choice([None, [], [("h", b"1"), ("n", None)]]) for _ in range(count)]
    times = pa.array([now_ms - rng.randrange(1 << 20) for _ in range(count)], pa.int64())
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": times.cast(pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC")),
        "partition": pa.array([rng.randrange(2) for _ in range(count)], pa.int32()),
    }
    if rng.random() < 0.5:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        made = [
            None if one is None else [{"key": k, "value": v} for k, v in one] for one in headers
        ]
        columns["headers"] = pa.array(made, kind)
    return pa.record_batch(columns)


def seen(store: Store, topic: str, rng: random.Random) -> list[object]:
    """What readers of every kind are shown."""
    found: list[object] = [
        store.scan(topic, isolation_level=level).to_arrow().drop_columns("topic").to_pylist()
        for level in LEVELS
    ]
    low = store.snapshot([topic]).beginning_offsets(topic)
    high = store.snapshot([topic]).end_offsets(topic)
    starts = {p: rng.randint(low[p], high[p]) for p in low}
    for level in ("read_committed", "read_uncommitted"):
        with store.consumer(isolation_level=level) as consumer:
            consumer.assign([TopicPartition(topic, p) for p in starts])
            for p, at in starts.items():
                consumer.seek(TopicPartition(topic, p), at)
            rows = []
            while some := consumer.poll(max_records=rng.choice([1, 7, 500])):
                rows += [
                    (r.partition, r.offset, r.key, r.value, r.timestamp, r.headers) for r in some
                ]
            found.append(sorted(rows, key=lambda row: row[:2]))
            times = {TopicPartition(topic, p): rng.randrange(1 << 41) for p in starts}
            found.append(
                [
                    None if at is None else (at.offset, at.timestamp)
                    for at in consumer.offsets_for_times(times).values()
                ]
            )
    return found


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.more) for n in range(1, 12))]
)
def test_readers_see_what_they_see_in_columns(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    """All topics get the same, in transactions and without, and are merged, trimmed, compacted.

    The third one's format is altered on the way.
    """
    monkeypatch.setattr("txnlog.segments.writer.PARQUET_FROM_BYTES", 300)
    rng = random.Random(seed)
    store = new_store(HeapStorage(), clock, {})
    common = {
        "message.timestamp.type": rng.choice(["CreateTime", "LogAppendTime"]),
        "segment.bytes": rng.choice([2000, 1 << 30]),
        "cleanup.policy": rng.choice(["delete", "delete", "compact"]),
    }
    topics = ("columns", "auto", "altered")
    for topic in topics:
        config = {**common, "record.format": "columns" if topic == "altered" else topic}
        store.topics.create(topic, partitions=2, config=config)
    by_key = common["cleanup.policy"] == "compact"
    turn = 0
    for turn in range(25):
        clock.time_ms += rng.choice([1, 1000])
        match rng.choice(["send", "send", "commit", "abort", "merge", "trim", "look", "alter"]):
            case "alter":
                to = rng.choice(["columns", "kafka", "parquet", "auto"])
                store.topics.alter("altered", config={"record.format": to})
            case "send":
                rows = [keyed(rows_of(rng, clock.time_ms), by_key=by_key) for _ in range(2)]
                for topic in topics:
                    with store.producer() as producer:
                        for batch in rows:
                            producer.send_batch(topic, batch)
            case "commit" | "abort" as end:
                rows = [keyed(rows_of(rng, clock.time_ms), by_key=by_key) for _ in range(3)]
                producer = begin(store, f"p{turn}")
                for batch in rows:
                    for topic in topics:
                        producer.send_batch(topic, batch)
                    if rng.random() < 0.5:
                        producer.flush()
                if end == "commit":
                    producer.commit_transaction()
                else:
                    producer.flush()
                    producer.abort_transaction()
            case "merge":
                for topic in topics:
                    for _ in (
                        store.maintenance.compact(topic)
                        if by_key
                        else store.maintenance.merge(topic)
                    ):
                        pass
            case "trim":
                ends = store.snapshot(["auto"]).end_offsets("auto")
                upto = rng.randint(0, ends[1])
                if upto >= store.snapshot(["auto"]).beginning_offsets("auto")[1]:
                    for topic in topics:
                        store.topics.delete_records({TopicPartition(topic, 1): upto})
            case "look":
                at = rng.random()
                looks = [seen(another(store), topic, random.Random(at)) for topic in topics]
                assert looks[0] == looks[1] == looks[2]
    looks = [seen(another(store), topic, random.Random(seed)) for topic in topics]
    assert looks[0] == looks[1] == looks[2]
    assert {s.paths.is_parquet for s in store.topics.segments("auto")} == {False, True}
    assert {s.paths.is_parquet for s in store.topics.segments("columns")} == {False}
    wrong = [one for one in another(store).examine(with_contents=True) if one.state == "damage"]
    assert wrong == []
    if by_key:
        return
    exported = []
    for topic in topics:
        store.kafka.export_topic(topic, str(tmp_path / topic), keep_offsets=True)
        again = new_store(HeapStorage(), clock, {})
        again.kafka.import_topic(topic, [str(tmp_path / topic)])
        rows = again.scan(topic).to_arrow().drop_columns("topic")
        exported.append(rows.drop_columns("timestampType").to_pylist())
    assert exported[0] == exported[1] == exported[2]


def keyed(batch: pa.RecordBatch, *, by_key: bool) -> pa.RecordBatch:
    """The same with keys, which compacted topics need."""
    if not by_key:
        return batch
    keys = batch.column("key").fill_null(b"none")
    return batch.set_column(batch.schema.get_field_index("key"), "key", keys)
