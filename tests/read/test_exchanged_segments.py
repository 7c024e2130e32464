"""A segment exchanged for another sound one of the same size is noticed by whatever reads it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.tiers import more
from txnlog import names
from txnlog.errors import CorruptRecord, TxnlogError
from txnlog.inspect.placed_indexes import check_placed_indexes, rebuild_placed_indexes
from txnlog.inspect.segments import check_placed_segment
from txnlog.names import TopicPartition
from txnlog.segments.batch_header import tag_of
from txnlog.segments.batches import decode_batch, decode_header
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

ROWS = 600
BATCH_ROWS = 100
TIME_MS = 1_700_000_000_000
FORMATS = pytest.mark.parametrize("record_format", ["columns", "kafka", "parquet"])


pytestmark = [pytest.mark.store(topics={}), pytest.mark.usefixtures("early_files")]


def fill(store: Store, topic: str, record_format: str, partitions: int = 2) -> None:
    """Two segments of several batches in each partition, all of the same size."""
    config = {"record.format": record_format, "compression.type": "none"}
    config |= {"index.interval.bytes": "1"}
    store.topics.create(topic, partitions=partitions, config=config)
    for _ in range(2):
        with store.producer() as producer:
            for start in range(0, ROWS, BATCH_ROWS):
                for partition in range(partitions):
                    for row in range(start, start + BATCH_ROWS):
                        value = b"%020d" % random.Random(row).randrange(10**18)
                        producer.send(topic, value, None, partition, TIME_MS + row)
                    buffer = producer._records.by_topic[topic]
                    buffer.flush_rows()
                    assert buffer._uploader is not None
                    buffer._uploader._open[partition].writer.flush()


def paths(store: Store, topic: str) -> list[str]:
    return [
        names.SegmentRef(topic, s.partition, s.name).paths.log for s in store.topics.segments(topic)
    ]


def exchange(store: Store, one: str, other: str) -> None:
    """Each has the other's file, its indexes with it or not."""
    data = {path: store.storage.get(path) for path in (one, other)}
    assert len(data[one]) == len(data[other])
    assert data[one] != data[other]
    store.storage.delete([one, other])
    store.storage.put(one, data[other])
    store.storage.put(other, data[one])


def reads(store: Store, topic: str, partition: int, start: int) -> Iterator[Callable[[], object]]:
    """Everything that reads a partition's segment which begins at ``start``."""
    where = TopicPartition(topic, partition)
    snapshot = store.snapshot([topic])
    everything = dict.fromkeys(range(len(snapshot.partitions(topic))), 2 * ROWS)
    for first, last in ((0, ROWS), (ROWS // 2, ROWS), (ROWS - 1, ROWS), (0, 1), (250, 251)):
        starts = everything | {partition: start + first}
        ends = everything | {partition: start + last}
        scan = snapshot.scan(topic, starts, ends)
        yield scan.to_arrow
        yield partial(scan.head, 1)
        yield partial(scan.tail, 1)
        yield snapshot.scan(topic, starts, ends, ["offset"]).to_arrow
    if start == 0:
        yield lambda: snapshot.offset_for_time(where, TIME_MS + 5)
        yield lambda: snapshot.offset_for_time(where, TIME_MS + 350)


def test_a_dataset_notices(any_storage: Storage) -> None:
    """Each file when it is opened, whatever is read of it; others are read as before."""
    store = attach(any_storage, create=True, clock=VirtualClock())
    fill(store, "a", "parquet")
    snapshot = store.snapshot(["a"])
    found = snapshot.dataset("a")
    assert found.count_rows() == 4 * ROWS
    assert found.to_table().equals(pickle.loads(pickle.dumps(found)).to_table())
    one, other, *_ = paths(store, "a")
    exchange(store, one, other)
    again = snapshot.dataset("a")
    for read in (found.to_table, again.count_rows, again.to_table):
        with pytest.raises(CorruptRecord, match="the file was exchanged for another one"):
            read()


def test_a_dataset_asks_for_no_more_than_it_reads(memory_storage: Storage) -> None:
    """The check costs no request, and sizes are known."""
    fill(attach(memory_storage, create=True, clock=VirtualClock()), "a", "parquet", 1)
    counting = CountingStorage(memory_storage)
    found = attach(counting, clock=VirtualClock()).snapshot(["a"]).dataset("a")
    counting.take()
    assert found.count_rows() == 2 * ROWS
    assert counting.take() == {"get_range": 2}
    found.to_table()
    assert counting.take() == {"get_range": 2}


@pytest.mark.few(3)
@FORMATS
@pytest.mark.parametrize("with_indexes", [True, False])
@pytest.mark.parametrize(
    "pair",
    [("a", 0, "a", 1), *more([("a", 0, "a", 2)]), ("a", 1, "b", 1), *more([("a", 3, "b", 0)])],
)
def test_every_read_notices(
    store: Store,
    tmp_path: Path,
    record_format: str,
    with_indexes: bool,
    pair: tuple[str, int, str, int],
) -> None:
    """Within a partition, between partitions and topics: the error names the file, and a remedy."""
    for topic in "ab":
        fill(store, topic, record_format)
    one, other = paths(store, pair[0])[pair[1]], paths(store, pair[2])[pair[3]]
    chosen = store.topics.segments(pair[0])[pair[1]]
    calls = [*reads(store, pair[0], chosen.partition, chosen.base_offset)]
    for call in calls:
        call()
    exchange(store, one, other)
    if not with_indexes:
        for path in (one, other):
            stem = path.removesuffix(".log").removesuffix(".parquet")
            store.storage.delete([f"{stem}.index", f"{stem}.timeindex"])
    for number, call in enumerate(calls):
        with pytest.raises(CorruptRecord, match="exchanged for another one; restore") as caught:
            call()
        assert one in str(caught.value), f"read {number}"
        assert str(caught.value).count("restore") == 1
    damages = check_placed_segment(store.storage, chosen).damages
    assert len(damages) == (1 if record_format == "parquet" else chosen.batch_count)
    if with_indexes and record_format != "parquet":  # else there is nothing to compare with
        assert "exchanged" in str(check_placed_indexes(store.storage, chosen)[1])
        assert "exchanged" in str(rebuild_placed_indexes(store.storage, chosen, 1)[1])
    findings = [f for f in store.examine(with_contents=True) if "exchanged" in f.detail]
    assert {finding.path for finding in findings} >= {one, other}
    with pytest.raises(CorruptRecord, match="exchanged"):
        store.kafka.export_topic(pair[0], str(tmp_path / "out"))


@pytest.mark.few(3)
@FORMATS
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 10))]
)
def test_of_files_that_were_shuffled_each_is_noticed_or_in_its_place(
    store: Store, record_format: str, seed: int
) -> None:
    """Random exchanges over topics and partitions: no record of another segment is ever read."""
    rng = random.Random(seed)
    fill(store, "a", record_format)
    fill(store, "b", record_format)
    where = [(topic, path) for topic in "ab" for path in paths(store, topic)]
    before = {path: store.storage.get(path) for _, path in where}
    after = [path for _, path in where]
    rng.shuffle(after)
    store.storage.delete([*before])
    for (_, path), source in zip(where, after, strict=True):
        store.storage.put(path, before[source])
    for topic in "ab":
        for segment in store.topics.segments(topic):
            path = names.SegmentRef(topic, segment.partition, segment.name).paths.log
            moved = after[[p for _, p in where].index(path)] != path
            for call in reads(store, topic, segment.partition, segment.base_offset):
                noticed = False
                try:
                    call()
                except CorruptRecord:
                    noticed = True
                assert noticed == moved


@pytest.mark.parametrize("record_format", ["columns", "kafka"])
def test_the_tag_of_a_segment_is_in_each_batch_and_in_its_entry(
    store: Store, record_format: str
) -> None:
    """It follows from the unique name; offsets and sequences are shown as before."""
    fill(store, "a", record_format, partitions=1)
    state = store.logs.topic("a")._state
    for placed in state.partitions[0].segments:
        assert placed.stored.tag == tag_of(placed.stored.name) >= 0
        data = store.storage.get(names.SegmentRef("a", 0, placed.stored.name).paths.log)
        position = 0
        while position < len(data):
            header = decode_header(data[position:])
            assert header.leader_epoch == placed.stored.tag
            assert header.base_sequence == header.base_offset
            position += header.size_bytes


def test_any_bit_of_a_tagged_header_of_rows_is_noticed(store: Store) -> None:
    """Also without the log, and where Kafka's checksum does not cover it."""
    fill(store, "a", "kafka", partitions=1)
    data = store.storage.get(paths(store, "a")[0])
    size_bytes = decode_header(data).size_bytes
    assert decode_header(data).is_guarded
    batch = data[:size_bytes]
    for bit in range(61 * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TxnlogError):
            decode_batch(bytes(damaged))


def test_imported_segments_keep_their_bytes_and_are_told_apart_from_their_start(
    store: Store, tmp_path: Path
) -> None:
    """Kafka's batches have no room for a tag: the first one's checksum and the offsets must do."""
    store.topics.create("a", partitions=2, config={"segment.bytes": "2000"})
    with store.producer() as producer:
        for partition in (0, 1):
            for row in range(200):
                value = b"%d%019d" % (partition, row)
                producer.send("a", value, None, partition, TIME_MS + row)
    store.kafka.export_topic("a", str(tmp_path / "out"), compression_type="none")
    (tmp_path / "out" / "a-0").rename(tmp_path / "out" / "b-0")
    (tmp_path / "out" / "a-1").rename(tmp_path / "out" / "b-1")
    store.kafka.import_topic("b", [str(tmp_path / "out")])
    assert store.scan("b").to_arrow().num_rows == 400
    segments = store.topics.segments("b")
    assert {segment.from_kafka for segment in segments} == {True}
    one, other = [p for p, s in zip(paths(store, "b"), segments, strict=True) if not s.base_offset]
    exchange(store, one, other)
    scan = store.scan("b")
    for call in (scan.to_arrow, scan.count, lambda: scan.head(1), lambda: scan.tail(400)):
        with pytest.raises(CorruptRecord, match="exchanged"):
            call()
    with pytest.raises(CorruptRecord, match="exchanged"):
        store.kafka.export_topic("b", str(tmp_path / "again"))
    assert any("exchanged" in f.detail for f in store.examine(with_contents=True))
