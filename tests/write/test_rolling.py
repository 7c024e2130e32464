"""Rolling: a batch of any size goes into segments of any ``segment.bytes``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.support.tiers import more
from txnlog.clock import SystemClock
from txnlog.errors import InvalidRecord, RecordTooLarge, StorageError
from txnlog.log.uploads import UploadedSegment
from txnlog.segments.batch_header import Compression
from txnlog.segments.records import HEADERS_TYPE, normalize, record_sizes
from txnlog.segments.writer import SegmentWriter
from txnlog.storage import open_storage
from txnlog.storage.base import PARALLEL_REQUESTS, Storage, Upload
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage
from txnlog.write import topic_buffer
from txnlog.write.segment_uploads import SegmentUploader

_COUNTER = itertools.count()

CODECS = {
    "columns": ["none", "lz4", "zstd"],
    "kafka": ["none", "gzip", "snappy", "lz4", "zstd"],
}
EVERY_CODEC = [
    (record_format, codec) for record_format in CODECS for codec in CODECS[record_format]
]

# With little more than 1 KiB a batch may need that much besides its records.
_SLACK = {"columns": 1536, "kafka": 128}


def _store(
    segment_bytes: int, record_format: str = "columns", codec: str = "none", **config: str
) -> Store:
    """A store in memory with the topic ``t`` of two partitions."""
    storage = open_storage(f"memory://rolling-{next(_COUNTER)}")
    store = attach(storage, create=True, clock=SystemClock())
    config |= {
        "segment.bytes": str(segment_bytes),
        "record.format": record_format,
        "compression.type": codec,
    }
    store.topics.create("t", partitions=2, config=config)
    return store


def _random_records(
    seed: int, count: int, value_bytes: int, *, headers: bool = False
) -> pa.RecordBatch:
    """Records whose values no codec can make smaller, of up to twice ``value_bytes``."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 2 * value_bytes + 1, count)
    values = [None if size % 17 == 16 else rng.bytes(size) for size in sizes.tolist()]
    columns = {
        "key": pa.array([None if n % 3 == 2 else b"%d" % n for n in range(count)], pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array(rng.integers(0, 1 << 40, count)),
    }
    if headers:
        some = [
            [{"key": "h", "value": None if n % 2 else b"x" * (n % 50)}] * (n % 3)
            for n in range(count)
        ]
        columns["headers"] = pa.array(some, HEADERS_TYPE)
    return normalize(pa.record_batch(columns), now_ms=1)


def _send(store: Store, batch: pa.RecordBatch, partition: int | None = 0) -> None:
    with store.producer() as producer:
        producer.send_batch("t", batch, partition=partition)


def _segments(store: Store, partition: int = 0) -> list[tuple[int, int]]:
    """The records and checked bytes of each segment."""
    found = []
    for part in store.scan("t").ranges:
        if part.partition == partition:
            file_bytes = store.storage.size(part.paths.log)
            if part.segment.stored.position < 0:
                assert file_bytes == part.segment.stored.size_bytes
            else:
                assert file_bytes >= part.segment.stored.position + part.segment.stored.size_bytes
            found.append((part.record_count, part.segment.stored.size_bytes))
    return found


def _assert_small(segments: list[tuple[int, int]], segment_bytes: int) -> None:
    assert [pair for pair in segments if pair[0] > 1 and pair[1] > segment_bytes] == []


def _assert_holds(store: Store, records: pa.RecordBatch) -> None:
    scan = store.scan("t", columns=["key", "value", "timestamp", "headers", "offset"])
    found = scan.to_arrow().combine_chunks()
    assert found.column("offset").to_pylist() == list(range(records.num_rows))
    rows = found.drop_columns(["offset"]).to_batches()
    assert normalize(rows[0], now_ms=0).equals(records)


@pytest.mark.few(5)
@pytest.mark.parametrize(("record_format", "codec"), EVERY_CODEC)
@pytest.mark.parametrize(
    "segment_bytes",
    [1024, *more([1500, 4096]), 64 << 10],
)
@pytest.mark.parametrize("headers", [*more([False]), True])
def test_one_batch_becomes_many_segments(
    segment_bytes: int, record_format: str, codec: str, headers: bool
) -> None:
    """Each is as large as the topic allows at most, and none is much smaller but the last."""
    store = _store(segment_bytes, record_format, codec)
    records = _random_records(5, 400, 300, headers=headers)
    _send(store, records)
    segments = _segments(store)
    slack = _SLACK[record_format] if segment_bytes < 2048 else 0
    _assert_small(segments, segment_bytes + slack)
    assert len(segments) >= records.nbytes // segment_bytes
    if segment_bytes >= 64 << 10:
        assert min(size for _, size in segments[:-1]) > segment_bytes * 0.85
    _assert_holds(store, records)


@some(60)
@given(
    sends=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 2000)), min_size=1, max_size=6),
    segment_bytes=st.sampled_from([4096, 10_000, 100_000, 1 << 30]),
    of=st.sampled_from(EVERY_CODEC),
    memory_bytes=st.sampled_from([1, 64 << 20]),
    headers=st.booleans(),
)
def test_any_batches_into_any_segments(
    sends: list[tuple[int, int]],
    segment_bytes: int,
    of: tuple[str, str],
    memory_bytes: int,
    headers: bool,
) -> None:
    """Whatever is sent in whatever pieces: nothing lost, nothing moved, no segment too large."""
    store = _store(segment_bytes, *of)
    sent = [
        _random_records(seed, count, size, headers=headers)
        for seed, (count, size) in enumerate(sends)
    ]
    with store.producer(buffer_memory_bytes=memory_bytes) as producer:
        for records in sent:
            producer.send_batch("t", records, partition=0)
    _assert_small(_segments(store), segment_bytes)
    _assert_holds(store, pa.Table.from_batches(sent).combine_chunks().to_batches()[0])


@pytest.mark.parametrize(("record_format", "codec"), EVERY_CODEC)
def test_what_compresses_well_fills_a_segment(record_format: str, codec: str) -> None:
    """It is the compressed bytes that count, as far as they are known: those of whole batches."""
    store = _store(4 << 20, record_format, codec)
    _send(store, pa.record_batch({"value": pa.array([bytes(100_000)] * 320, pa.binary())}))
    segments = _segments(store)
    _assert_small(segments, 4 << 20)
    assert sum(count for count, _ in segments) == 320
    if codec == "none":
        assert [count for count, _ in segments] == [41] * 7 + [33]
    else:
        assert len(segments) == 1


@pytest.mark.parametrize("record_format", list(CODECS))
def test_a_record_larger_than_a_segment_gets_one_of_its_own(record_format: str) -> None:
    """It is the topic's max.message.bytes that limits a record, and nothing else."""
    store = _store(1024, record_format)
    values = [b"a", bytes(5000), b"b", bytes(900_000), bytes(5000), b"c", b"d"]
    _send(store, pa.record_batch({"value": pa.array(values, pa.binary())}))
    assert [count for count, _ in _segments(store)] == [1, 1, 1, 1, 1, 2]
    assert store.scan("t", columns=["value"]).to_arrow()["value"].to_pylist() == values
    with pytest.raises(RecordTooLarge, match=r"record 1 .*max\.message\.bytes"):
        _send(store, pa.record_batch({"value": pa.array([b"e", bytes(1_100_000)], pa.binary())}))
    assert store.scan("t").record_count == len(values)


def test_every_partition_rolls_by_itself() -> None:
    """A batch for several partitions keeps the order of each."""
    store = _store(4096)
    rng = np.random.default_rng(7)
    chosen = rng.integers(0, 2, 2000, dtype=np.int32)
    values = pa.array([b"%0100d" % n for n in range(2000)], pa.binary())
    with store.producer() as producer:
        producer.send_batch("t", pa.record_batch({"value": values, "partition": chosen}))
    table = store.scan("t", columns=["value", "partition"]).to_arrow().to_pandas()
    for partition in (0, 1):
        assert len(_segments(store, partition)) > 20
        _assert_small(_segments(store, partition), 4096)
        found = table.value[table.partition == partition].astype(int).tolist()
        assert found == np.flatnonzero(chosen == partition).tolist()


def test_a_transaction_of_many_segments_is_repeated_and_recognised() -> None:
    """The sequences go on over all segments of a batch, and the next transaction follows them."""
    store = _store(2048)
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for turn in range(3):
            producer.begin_transaction()
            producer.send_batch("t", _random_records(turn, 100, 200), partition=0)
            producer.commit_transaction()
    parts = store.scan("t").ranges
    assert len(parts) > 30
    ends = [part.segment.end_offset for part in parts]
    assert [part.segment.base_offset for part in parts] == [0, *ends[:-1]]
    assert store.scan("t").record_count == 300
    found = store.scan("t", columns=["value"]).to_arrow()["value"].to_pylist()
    assert found == [
        value
        for turn in range(3)
        for value in _random_records(turn, 100, 200).column("value").to_pylist()
    ]


class _CountedUploads(FaultyStorage):
    """Counts the uploads that are open at the same time."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.open: set[int] = set()
        self.most = 0
        self.rounds: list[int] = []
        """How many requests were made together, each time."""

    def put_round(self, calls: Iterable[Callable[[], object]]) -> None:
        made = 0

        def counted() -> Iterator[Callable[[], object]]:
            nonlocal made
            for call in calls:
                made += 1
                yield call

        super().put_round(counted())
        self.rounds.append(made)

    def upload(self, name: str) -> Upload:
        counted, number = self, next(_COUNTER)
        self.open.add(number)
        self.most = max(self.most, len(self.open))
        inner = super().upload(name)

        class Counted(Upload):
            def write(self, data: bytes) -> int:
                return inner.write(data)

            def close(self) -> None:
                inner.close()
                counted.open.discard(number)

            def discard(self) -> None:
                inner.discard()
                counted.open.discard(number)

        return Counted()


def test_a_batch_of_a_thousand_segments_opens_few_files() -> None:
    """A file begins with its first bytes; full segments are finished in rounds of several."""
    storage = _CountedUploads(_store(1024).storage)
    store = attach(storage, clock=SystemClock())
    _send(store, _random_records(1, 2000, 300))
    assert len(_segments(store)) > 1000
    assert 1 <= storage.most <= PARALLEL_REQUESTS + 1
    assert 2 < max(storage.rounds) <= PARALLEL_REQUESTS
    assert not storage.open


def test_a_failure_between_segments_leaves_no_file(tmp_path: Path) -> None:
    """Nothing stays of segments that rolled before, or wait to be finished."""
    store = attach(open_storage(str(tmp_path / "store")), create=True, clock=SystemClock())
    store.topics.create("t", config={"segment.bytes": "1024"})
    before = dict(store.storage.list_all(""))
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), store.logs.clock)
    real, begun = store.storage.upload, []

    def upload(name: str) -> Upload:
        begun.append(name)
        if len(begun) == 30:
            raise StorageError("no")
        return real(name)

    store.storage.upload = upload  # type: ignore[method-assign]
    records = _random_records(1, 200, 300)
    with pytest.raises(StorageError, match="no"):
        uploader.write(records, np.zeros(200, dtype=np.int32))
    uploader.discard()
    assert dict(store.storage.list_all("")) == before


def test_no_segment_holds_more_records_than_its_index_can_count() -> None:
    """Records of next to no bytes come to 2^31 in a segment before they come to its bytes."""

    class Nowhere:
        def write(self, data: bytes) -> None:
            pass

    writer = SegmentWriter(Nowhere(), compression=Compression.LZ4)
    records = normalize(pa.record_batch({"value": pa.nulls(1)}), now_ms=1)
    writer.append(records, np.array([(1 << 31) - 1 - 91]))
    assert writer.room()[1] == 90


def test_rows_end_a_segment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is limited by the number of its records rolls as by its bytes."""
    monkeypatch.setattr("txnlog.segments.writer.MAX_SEGMENT_BYTES", 70)
    store = _store(1 << 20)
    _send(store, pa.record_batch({"value": pa.array([b"%d" % n for n in range(300)], pa.binary())}))
    assert [count for count, _ in _segments(store)] == [70, 70, 70, 70, 20]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_what_is_too_large_for_an_arrow_column_is_sent_in_pieces(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are cut before they become binary columns, whose offsets have 32 bits."""
    largest: list[int] = []

    def spy(batch: pa.RecordBatch, *, now_ms: int) -> pa.RecordBatch:
        records = normalize(batch, now_ms=now_ms)
        largest.append(int(record_sizes(records).sum()))
        return records

    monkeypatch.setattr(topic_buffer, "MAX_WORK_BYTES", 5000)
    monkeypatch.setattr(topic_buffer, "normalize", spy)
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = pa.array(["x" * 1000, "y" * 1100] * 100).cast(plain)
    if pa.types.is_dictionary(kind):
        values = values.dictionary_encode().cast(kind)
    store = _store(1 << 30)
    _send(store, pa.record_batch({"value": values}), partition=None)
    assert max(largest) <= 5000
    # Without a key they go round robin, over all pieces.
    assert sum(count for count, _ in _segments(store, 0)) == 100
    table = store.scan("t", columns=["value"]).to_arrow()
    assert table["value"].to_pylist() == [b"x" * 1000] * 100 + [b"y" * 1100] * 100


def test_all_pieces_are_checked_before_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with a wrong row far behind is refused whole."""
    monkeypatch.setattr(topic_buffer, "MAX_WORK_BYTES", 1000)
    store = _store(1 << 30)
    values = pa.array([bytes(100)] * 100, pa.binary())
    partitions = pa.array([0] * 99 + [2], pa.int32())
    with store.producer() as producer, pytest.raises(InvalidRecord, match="has 2"):
        producer.send_batch("t", pa.record_batch({"value": values, "partition": partitions}))
    assert store.scan("t").record_count == 0


@pytest.mark.slow
@pytest.mark.parametrize("record_format", list(CODECS))
def test_more_than_two_gib_in_one_batch(record_format: str, tmp_path: Path) -> None:
    """The real thing: 0.9 GB and then 2.3 GB, with the settings that every topic has."""
    store = attach(open_storage(str(tmp_path / "store")), create=True, clock=SystemClock())
    store.topics.create("t", config={"record.format": record_format})
    # A dictionary takes little memory here; what it stands for would not fit into a column.
    words = pa.array(
        [np.random.default_rng(n).bytes(1_000_000) for n in range(7)], pa.large_binary()
    )
    sent: list[int] = []
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for count in (900, 2300):
            indices = np.arange(count, dtype=np.int32) % 7
            values = pa.DictionaryArray.from_arrays(indices, words)
            producer.send_batch("t", pa.record_batch({"value": values}))
            sent += indices.tolist()
        producer.commit_transaction()
    segments = _segments(store)
    _assert_small(segments, 1 << 30)
    assert [count for count, _ in segments][:-1] == [1073, 1073]
    starts = [word.as_py()[:16] for word in words]
    found: list[int] = []
    for batch in store.scan("t", columns=["value"]).to_batches():
        found += [starts.index(value.as_buffer()[:16].to_pybytes()) for value in batch.column(0)]
    assert found == sent


def _uploaded(segments: list[UploadedSegment]) -> list[int]:
    return [segment.stored.record_count for segment in segments]


def test_an_empty_batch_begins_no_segment() -> None:
    """Nothing in, nothing out."""
    store = _store(1024)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), store.logs.clock)
    uploader.write(_random_records(1, 0, 1), np.zeros(0, dtype=np.int32))
    assert _uploaded(uploader.finish()) == []
