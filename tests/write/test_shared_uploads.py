"""Small segments of several partitions go to one file: which do, and what the log says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import txnlog
from tests.support.steps import another, end_batches, new_store, values
from txnlog import TopicPartition
from txnlog.errors import CorruptRecord, StorageError
from txnlog.inspect.segments import check_placed_segment, check_segment_file
from txnlog.log import manifests, topic_log
from txnlog.log.manifest_table import ManifestTable
from txnlog.log.uploads import UploadedSegment
from txnlog.names import OWN_FILE, SegmentRef
from txnlog.read import plan
from txnlog.replication import Follower
from txnlog.segments.inspect.dump import is_shared
from txnlog.segments.records import normalize
from txnlog.segments.segment_file import SegmentFile
from txnlog.state.topic import CHECKPOINT_DECODER
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock
from txnlog.write import segment_uploads
from txnlog.write.segment_uploads import SegmentUploader

PARTITIONS = 8
FORMATS = pytest.mark.parametrize("record_format", ["columns", "kafka"])


pytestmark = pytest.mark.store(topics={"t": PARTITIONS}, on="heap")


def send_to_each(store: Store, *words: bytes, topic: str = "t") -> None:
    """Records to each partition, in one entry."""
    with store.producer() as producer:
        for partition in range(PARTITIONS):
            for word in words:
                producer.send(topic, b"%d %s" % (partition, word), partition=partition)


def upload(
    store: Store, sizes: dict[int, int], memory_bytes: int = 64 << 20
) -> list[UploadedSegment]:
    """A record of so many random bytes to each of these partitions."""
    budget = segment_uploads.UploadBudget(memory_bytes)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), store.logs.clock, budget)
    rng = np.random.default_rng(1)
    for partition, size in sizes.items():
        batch = pa.record_batch({"value": pa.array([rng.bytes(size)], pa.binary())})
        uploader.write(normalize(batch, now_ms=1), np.array([partition], dtype=np.int32))
    return uploader.finish()


def by_file(segments: list[UploadedSegment]) -> list[list[int]]:
    """Which partitions share a file."""
    files: dict[str, list[int]] = {}
    for segment in segments:
        files.setdefault(segment.files[0], []).append(segment.partition)
    return sorted(files.values())


# -- which segments share a file -----------------------------------------------------------------


def test_small_segments_lie_one_after_another(store: Store, heap: HeapStorage) -> None:
    """In one file, without a gap, in the order of their partitions, whatever came first."""
    segments = upload(store, dict.fromkeys((5, 1, 3), 100))
    assert by_file(segments) == [[1, 3, 5]]
    (path,) = {file for segment in segments for file in segment.files}
    assert path.startswith("topics/t/data/shared/")
    end = 0
    for segment in segments:
        assert segment.stored.position == end
        end += segment.stored.size_bytes
    assert heap.size(path) == end
    assert len({segment.stored.tag for segment in segments}) == 3


def test_one_segment_has_a_file_of_its_own(store: Store) -> None:
    """As ever, so that versions without shared files can read it."""
    (segment,) = upload(store, {4: 100})
    assert segment.stored.position == OWN_FILE
    assert segment.files[0].startswith("topics/t/data/4/")


def test_what_is_large_has_a_file_of_its_own(store: Store) -> None:
    """As many as fit together share a file, those that are finished early, too."""
    some = segment_uploads.SHARED_FILE_BYTES
    half, quarter = some // 2, some // 4
    sizes = {0: half, 1: quarter, 2: half, 3: some - 10, 4: 100, 5: quarter, 6: some - 5_000}
    segments = upload(store, sizes)
    assert by_file(segments) == [[0, 1], [2, 4, 5], [3], [6]]
    flushed = upload(store, dict.fromkeys(range(4), 100_000), memory_bytes=250_000)
    assert [len(partitions) for partitions in by_file(flushed)] == [2, 2]
    assert sum(segment.stored.record_count for segment in flushed) == 4


def write_in_rounds(
    store: Store, partitions: int, rounds: int, value_bytes: int, memory_bytes: int, seed: int
) -> tuple[list[UploadedSegment], int]:
    """A value to each partition in each round; the segments, and the most that was held."""
    budget = segment_uploads.UploadBudget(memory_bytes)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), store.logs.clock, budget)
    rng = np.random.default_rng(seed)
    most = 0
    for turn in range(rounds):
        noise = [rng.bytes(value_bytes // 2) for _ in range(partitions)]
        words = [b"%06d" % turn + one + bytes(value_bytes - 6 - len(one)) for one in noise]
        batch = normalize(pa.record_batch({"value": pa.array(words, pa.binary())}), now_ms=turn)
        uploader.write(batch, np.arange(partitions, dtype=np.int32))
        most = max(most, budget.held_bytes)
    segments = uploader.finish()
    assert budget.held_bytes == budget._waiting_bytes == 0
    return segments, most


# Half of each value compresses. By how many bytes may be in memory, and how many values of which
# size come for a partition: its segments, whether they share files, and their batches at most.
SHORT = {
    "enough": (4 << 20, 40, 1_000, 1, True, 1),
    "encoded": (1 << 20, 40, 1_000, 1, True, 2),
    "too little for that": (1 << 19, 200, 1_000, 10, True, 2),
    "files that grow": (6 << 20, 400, 5_000, 1, False, 12),
    "nearly none": (1, 10, 1_000, 10, True, 1),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("short", SHORT)
def test_what_waits_is_encoded_when_memory_is_short(clock: VirtualClock, short: str) -> None:
    """So segments are few, and so are files; each partition's records keep their order."""
    memory_bytes, rounds, value_bytes, most_segments, shares, most_batches = SHORT[short]
    counting = CountingStorage(HeapStorage())
    store = new_store(counting, clock, {"t": 32})
    counting.take()
    segments, most = write_in_rounds(store, 32, rounds, value_bytes, memory_bytes, seed=1)
    assert most <= memory_bytes
    batches = max(segment.stored.batch_count for segment in segments)
    assert batches in range(most_batches // 2 + 1, most_batches + 1)
    assert {segment.stored.position != OWN_FILE for segment in segments} == {shares}
    assert 32 * most_segments // 2 <= len(segments) <= 32 * most_segments
    files = {file for segment in segments for file in segment.files}
    assert len(files) <= (2 * most_segments if shares else 32)
    assert counting.take() == {"upload": len(files), "list": 1}
    store.logs.topic("t").place(segments)
    found = another(store).scan("t", columns=["partition", "value"]).to_arrow().to_pylist()
    turns: dict[int, list[int]] = {}
    for row in found:
        turns.setdefault(row["partition"], []).append(int(row["value"][:6]))
    assert turns == {partition: [*range(rounds)] for partition in range(32)}


def test_a_batch_that_waits_before_many_records(clock: VirtualClock) -> None:
    """Too many to share a file: it gets one of its own, though little waits."""
    store = new_store(HeapStorage(), clock, {"t": 2})
    budget = segment_uploads.UploadBudget(256 << 10)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), clock, budget)
    rng = np.random.default_rng(1)
    order = np.arange(2, dtype=np.int32)
    for size in (70_000, 1_000_000):
        values_ = pa.array([rng.bytes(size) for _ in range(2)], pa.binary())
        uploader.write(normalize(pa.record_batch({"value": values_}), now_ms=1), order)
        for segment in uploader._open.values():
            with budget._counting(segment):
                segment.writer.flush()
    segments = uploader.finish()
    assert [segment.stored.record_count for segment in segments] == [2, 2]
    assert {segment.stored.position for segment in segments} == {OWN_FILE}


@FORMATS
def test_segments_of_several_batches_in_one_file(clock: VirtualClock, record_format: str) -> None:
    """Whole, in part, by time, by themselves; merged; damaged in any batch."""
    storage = HeapStorage()
    store = new_store(storage, clock, {})
    config = {"record.format": record_format}
    store.topics.create("t", partitions=3, config=config)
    for turn in range(4):
        segments, _ = write_in_rounds(store, 3, 40, 1_000, 130_000, seed=turn)
        assert all(one.stored.position >= 0 for one in segments)
        assert max(one.stored.batch_count for one in segments) > 1
        store.logs.topic("t").place(segments)
    fresh = another(store)
    assert len(values(fresh)) == 4 * 3 * 40
    some = fresh.scan("t", {0: 35, 1: 160, 2: 7}, {0: 45, 2: 9}, columns=["value", "partition"])
    rows = [(row["partition"], int(row["value"][:6])) for row in some.to_arrow().to_pylist()]
    assert rows == [(0, turn % 40) for turn in range(35, 45)] + [(2, 7), (2, 8)]
    consumer = fresh.consumer("t")
    at = consumer.offsets_for_times({TopicPartition("t", 1): 39})[TopicPartition("t", 1)]
    assert at is not None
    assert at.offset == 39
    for segment in fresh.topics.segments("t"):
        assert not check_placed_segment(fresh.storage, segment).damages
    assert not [finding for finding in fresh.examine(with_contents=True) if finding.state != "ok"]
    segment = fresh.topics.segments("t")[0]
    data = storage.get(segment.paths.log)
    file = SegmentFile(lambda start, stop: data[start:stop], len(data), "copy.log")
    assert is_shared(file)
    checked = check_segment_file(file)
    assert (checked.record_count, checked.damages) == (3 * 40, ())
    storage.delete([segment.paths.log])
    damaged = bytearray(data)
    damaged[segment.ref.start + segment.size_bytes - 10] ^= 1  # in its last batch
    storage.put(segment.paths.log, bytes(damaged))
    with pytest.raises(CorruptRecord, match="/shared/"):
        values(fresh)
    storage.delete([segment.paths.log])
    storage.put(segment.paths.log, data)
    merged = another(store)
    assert merged.maintenance.merge("t")
    assert {one.position for one in merged.topics.segments("t")} == {OWN_FILE}
    assert sorted(values(another(store))) == sorted(values(fresh))


def consumed(store: Store, _: Path) -> list[bytes]:
    consumer = store.consumer("t", auto_offset_reset="earliest")
    found: list[bytes] = []
    while some := consumer.poll(max_records=7):
        found += [record.value for record in some if record.value is not None]
    return found


def followed(store: Store, folder: Path) -> list[bytes]:
    Follower(store, str(folder / "standby")).follow()
    return values(txnlog.open(str(folder / "standby")))


def exported(store: Store, folder: Path) -> list[bytes]:
    store.kafka.export_topic("t", str(folder / "out"))
    parts = sorted(str(path) for path in (folder / "out").iterdir() if path.is_dir())
    store.kafka.import_topic("back", parts)
    return values(store, topic="back")


def trimmed(store: Store, _: Path) -> list[bytes]:
    store.topics.delete_records({TopicPartition("t", 0): 13, TopicPartition("t", 1): 27})
    store.maintain()
    return values(another(store))


def compacted(store: Store, _: Path) -> list[bytes]:
    store.topics.alter("t", config={"cleanup.policy": "compact"})
    store.maintenance.compact("t")
    return values(another(store))


Use = Callable[[Store, Path], list[bytes]]
LEFT: dict[Use, Callable[[int], bool]] = {
    consumed: lambda _: True,
    followed: lambda _: True,
    exported: lambda _: True,
    trimmed: lambda n: n // 3 >= (13, 27, 0)[n % 3],
    compacted: lambda n: n >= 60,
}
"""Which of the records each finds."""


@FORMATS
@pytest.mark.parametrize("use", LEFT)
def test_whoever_takes_segments_of_several_batches(
    tmp_path: Path, clock: VirtualClock, record_format: str, use: Use
) -> None:
    store = new_store(HeapStorage(), clock, {})
    store.topics.create("t", partitions=3, config={"record.format": record_format})
    with store.producer() as producer:
        for number in range(120):
            producer.send("t", b"%03d" % number, b"%d" % (number % 60), number % 3)
            if number % 40 == 39:
                end_batches(producer)
    segments = store.topics.segments("t")
    assert {(one.batch_count, one.position >= 0) for one in segments} == {(3, True)}
    assert sorted(use(store, tmp_path)) == [b"%03d" % n for n in range(120) if LEFT[use](n)]


@FORMATS
def test_segments_that_are_full_share_no_file(clock: VirtualClock, record_format: str) -> None:
    """Segments of one partition would have the same name; only the last ones share a file."""
    store = new_store(HeapStorage(), clock, {})
    config = {"segment.bytes": 2048, "record.format": record_format}
    store.topics.create("t", partitions=2, config=config)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), clock)
    values_ = pa.array([np.random.default_rng(n).bytes(500) for n in range(40)], pa.binary())
    batch = normalize(pa.record_batch({"value": values_}), now_ms=1)
    uploader.write(batch, np.arange(40, dtype=np.int32) % 2)
    segments = uploader.finish()
    assert Counter(segment.stored.position != OWN_FILE for segment in segments)[True] == 2
    assert (
        len({(segment.partition, segment.stored.name) for segment in segments})
        == len(segments)
        > 10
    )
    store.logs.topic("t").place(segments)
    assert another(store).scan("t", columns=["value"]).to_arrow().num_rows == 40


def test_a_thousand_partitions_take_one_file(clock: VirtualClock) -> None:
    """However few files may be open: none is, until they are put together."""
    counting = CountingStorage(HeapStorage())
    store = new_store(counting, clock, {"t": 1000})
    with store.producer() as producer:
        for partition in range(1000):
            producer.send("t", b"x", partition=partition)
        producer.flush()
    spent = counting.take()
    assert spent["upload"] == 1
    assert len(values(store)) == 1000


def test_what_cannot_be_uploaded_leaves_no_file(tmp_path: Path, clock: VirtualClock) -> None:
    """Nor does what is discarded: the file goes, once."""
    store = new_store(open_storage(str(tmp_path / "store")), clock, {"t": PARTITIONS})
    before = dict(store.storage.list_all(""))
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), clock)
    batch = normalize(pa.record_batch({"value": [b"x"] * PARTITIONS}), now_ms=1)
    uploader.write(batch, np.arange(PARTITIONS, dtype=np.int32))
    put_round = store.storage.put_round

    def fail(calls: object) -> None:
        put_round(calls)  # type: ignore[arg-type]
        raise StorageError("no")

    store.storage.put_round = fail  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="no"):
        uploader.finish()
    assert dict(store.storage.list_all("")) != before
    uploader.discard()
    assert dict(store.storage.list_all("")) == before
    segments = upload(attach(open_storage(store.url), clock=clock), {0: 10, 1: 10})
    faulty = FaultyStorage(store.storage)
    segment_uploads.discard_segments(faulty, segments)
    assert faulty.requests == ["delete 1 objects"]
    assert dict(store.storage.list_all("")) == before


# -- reading -------------------------------------------------------------------------------------


@FORMATS
def test_each_partition_is_read_from_its_range(clock: VirtualClock, record_format: str) -> None:
    """Whole, in part, by time; and what is said of it is true of its bytes."""
    store = new_store(HeapStorage(), clock, {})
    store.topics.create("t", partitions=PARTITIONS, config={"record.format": record_format})
    for turn in range(3):
        with store.producer() as producer:
            for partition in range(PARTITIONS):
                for row in range(partition + 1):
                    word = b"%d-%d-%d" % (partition, turn, row)
                    producer.send("t", word, None, partition, 1000 * turn + row)
    fresh = another(store)
    expected = [
        b"%d-%d-%d" % (partition, turn, row)
        for partition in range(PARTITIONS)
        for turn in range(3)
        for row in range(partition + 1)
    ]
    assert values(fresh) == expected
    part = fresh.scan("t", {6: 8}, {6: 10}, columns=["value", "partition"]).to_arrow().to_pylist()
    assert [row["value"] for row in part if row["partition"] == 6] == [b"6-1-1", b"6-1-2"]
    consumer = fresh.consumer("t")
    found = consumer.offsets_for_times({TopicPartition("t", 5): 1002})[TopicPartition("t", 5)]
    assert found is not None
    assert (found.offset, found.timestamp) == (8, 1002)
    for segment in fresh.topics.segments("t"):
        assert segment.position >= 0
        assert check_placed_segment(fresh.storage, segment).damages == ()
    assert not [finding for finding in fresh.examine(with_contents=True) if finding.state != "ok"]


def test_what_lies_side_by_side_is_read_in_one_request(clock: VirtualClock) -> None:
    """A reader that follows a topic makes one request per commit, not per partition."""
    counting = CountingStorage(HeapStorage())
    store = new_store(counting, clock, {"t": PARTITIONS})
    consumer = store.consumer("t", auto_offset_reset="earliest")
    for turn in range(3):
        send_to_each(store, b"a", b"b")
        counting.take()
        assert len(consumer.poll()) == 2 * PARTITIONS, turn
        assert counting.take()["get_range"] == 1, turn
    counting.take()
    some = {partition: 0 if partition in (2, 3, 4, 7) else 6 for partition in range(PARTITIONS)}
    found = store.scan("t", some, dict.fromkeys(range(PARTITIONS), 2) | {0: 6})
    assert [row["value"] for row in found.to_arrow().to_pylist()] == [
        b"%d %s" % (partition, word) for partition in (2, 3, 4, 7) for word in (b"a", b"b")
    ]
    assert counting.take()["get_range"] == 1, "three side by side, and one near them"
    part = store.scan("t", dict.fromkeys(range(PARTITIONS), 1), dict.fromkeys(range(PARTITIONS), 2))
    assert part.to_arrow()["value"].to_pylist() == [b"%d b" % p for p in range(PARTITIONS)]
    assert counting.take()["get_range"] == 1


def test_not_more_than_a_megabyte_is_read_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that somebody has made larger is read in pieces."""
    send_to_each(store, b"x")
    size_bytes = store.topics.segments("t")[0].size_bytes
    monkeypatch.setattr(plan, "MOST_JOINED_BYTES", 2 * size_bytes)
    counting = CountingStorage(store.storage)
    assert len(values(another(store, counting))) == PARTITIONS
    assert counting.take()["get_range"] == PARTITIONS // 2


def test_a_file_is_read_once_for_all_partitions(
    store: Store, heap: HeapStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the plan has one partition after the other; again only for what may not wait."""
    commits = 40
    for turn in range(commits):
        send_to_each(store, b"%d" % turn)
    expected = [b"%d %d" % (p, turn) for p in range(PARTITIONS) for turn in range(commits)]
    counting = CountingStorage(heap)
    fresh = another(store, counting)
    scan = fresh.scan("t", columns=["value"])
    assert len(scan.ranges) == PARTITIONS * commits
    counting.take()
    assert scan.to_arrow()["value"].to_pylist() == expected
    assert counting.take() == {"get_range": commits}
    size_bytes = sum(part.segment.stored.size_bytes for part in scan.ranges)
    monkeypatch.setattr(plan, "MOST_WAITING_BYTES", size_bytes // 2 + 1)
    assert scan.to_arrow()["value"].to_pylist() == expected
    assert counting.take() == {"get_range": 2 * commits}


@FORMATS
def test_any_damage_is_noticed_by_the_partition_whose_it_is(
    clock: VirtualClock, record_format: str
) -> None:
    """And by no other one: each reads its own bytes alone."""
    storage = HeapStorage()
    store = new_store(storage, clock, {})
    store.topics.create("t", partitions=3, config={"record.format": record_format})
    with store.producer() as producer:
        for partition in range(3):
            producer.send("t", b"value of %d" % partition, partition=partition)
    (path,) = (path for path, _ in storage.list_all("topics/t/data"))
    data = storage.get(path)
    segments = store.topics.segments("t")
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        storage.delete([path])
        storage.put(path, bytes(damaged))
        for segment in segments:
            scan = store.scan("t", {p: 0 if p == segment.partition else 1 for p in range(3)})
            ref = segment.ref
            if ref.start <= position < ref.start + segment.size_bytes:
                with pytest.raises(CorruptRecord, match="/shared/"):
                    scan.to_arrow()
                assert check_placed_segment(storage, segment).damages
            else:
                assert scan.to_arrow()["value"].to_pylist() == [b"value of %d" % segment.partition]
                assert not check_placed_segment(storage, segment).damages


@FORMATS
def test_parts_that_changed_places_are_noticed(clock: VirtualClock, record_format: str) -> None:
    """Each has a tag of its own, though all have one name."""
    storage = HeapStorage()
    store = new_store(storage, clock, {})
    store.topics.create("t", partitions=2, config={"record.format": record_format})
    with store.producer() as producer:
        for partition in range(2):
            producer.send("t", b"value of %d" % partition, partition=partition, timestamp_ms=1)
    one, other = store.topics.segments("t")
    assert one.size_bytes == other.size_bytes
    path = one.paths.log
    data = storage.get(path)
    storage.delete([path])
    storage.put(path, data[other.position :] + data[: other.position])
    for partition in range(2):
        with pytest.raises(CorruptRecord, match="its tag is"):
            store.scan("t", {partition: 0, 1 - partition: 1}).to_arrow()


@pytest.mark.parametrize("end", ["cut", "gone"])
def test_a_file_that_is_cut_or_gone(store: Store, heap: HeapStorage, end: str) -> None:
    """The part before the truncation is read, the rest reported, by readers and the doctor."""
    send_to_each(store, b"x")
    segments = store.topics.segments("t")
    path = segments[0].paths.log
    data = heap.get(path)
    heap.delete([path])
    if end == "cut":
        heap.put(path, data[: segments[5].position + 10])
    readable = 5 if end == "cut" else 0
    for segment in segments:
        starts = {p: 0 if p == segment.partition else 1 for p in range(PARTITIONS)}
        if segment.partition < readable:
            assert store.scan("t", starts).to_arrow().num_rows == 1
        else:
            with pytest.raises(CorruptRecord, match="/shared/"):
                store.scan("t", starts).to_arrow()
    found = [finding for finding in store.examine() if finding.state == "damage"]
    assert [finding.path for finding in found] == [path]
    contents = [f for f in store.examine(with_contents=True) if f.state == "damage"]
    assert len(contents) > PARTITIONS - readable


@FORMATS
def test_a_shared_file_is_shown_as_a_file_of_batches(
    clock: VirtualClock, record_format: str
) -> None:
    """Without the log; and damage in one segment hides no other one."""
    storage = HeapStorage()
    store = new_store(storage, clock, {})
    store.topics.create("t", partitions=4, config={"record.format": record_format})
    with store.producer() as producer:
        for partition in range(4):
            for row in range(3):
                producer.send("t", b"%d" % row, partition=partition)
    segments = store.topics.segments("t")
    data = storage.get(segments[0].paths.log)

    def check(content: bytes) -> tuple[int, int, int]:
        file = SegmentFile(lambda start, stop: content[start:stop], len(content), "copy.log")
        found = check_segment_file(file)
        return found.batch_count, found.record_count, len(found.damages)

    assert check(data) == (4, 12, 0)
    for number in range(4):
        damaged = bytearray(data)
        damaged[segments[number].position + 16] ^= 0xFF  # the magic: the header says nothing more
        assert check(bytes(damaged)) == (3, 9, 1), number
    for content, shares in ((data, True), (data[: segments[1].position], False)):
        file = SegmentFile(lambda a, b, c=content: c[a:b], len(content), "copy.log")  # type: ignore[misc]
        assert is_shared(file) == shares
    # What txnlog writes into one segment still has to ascend.
    assert check(data[: segments[1].position] * 2)[2] == 1


@pytest.mark.parametrize("shares", [False, True])
def test_manifests_keep_where_a_segment_lies_in_its_file(
    store: Store, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    """And lists say which manifests have any that share one."""
    for module in (manifests, topic_log):
        monkeypatch.setattr(module, "KEPT_ENTRIES", 2)
        monkeypatch.setattr(module, "SETTLED_AT_ONCE", 3)
    for turn in range(6):
        if shares:
            send_to_each(store, b"%d" % turn)
        else:
            with store.producer() as producer:
                producer.send("t", b"%d" % turn, partition=0)
    log = store.logs.topic("t")
    log.checkpoint()
    newest = log.manifests.newest()
    assert newest is not None
    (ref,) = newest.manifests
    assert ref.has_shared == shares
    path = f"{log.manifests.folder}/{ref.name}"
    table = ManifestTable.decode(store.storage.get(path), ref, path)
    assert {segment.stored.position != OWN_FILE for segment in table.segments()} == {shares}
    fresh = another(store)
    assert len(values(fresh)) == 6 * (PARTITIONS if shares else 1)
    again = msgspec.json.encode(fresh.logs.topic("t")._state)
    assert CHECKPOINT_DECODER.decode(again) == fresh.logs.topic("t")._state


def test_a_shared_segment_is_found_whatever_names_it(store: Store) -> None:
    """An append in doubt is recognised by partition and name, of which there is one."""
    producer = store.producer()
    for partition in range(PARTITIONS):
        producer.send("t", b"x", partition=partition)
    segments = producer._records.finish()["t"]
    log = store.logs.topic("t")
    first = log.place(segments, since_entry=1)
    again = log.place(segments, since_entry=1)
    assert first.entry is not None
    assert again.entry is None
    assert again.offsets == first.offsets
    assert len(values(another(store))) == PARTITIONS


def test_names_of_shared_files(any_storage: Storage) -> None:
    """No partition is called so, and the path leads back to the file's key."""
    ref = SegmentRef("t", 3, "w-1", 70)
    assert ref.paths.log == "topics/t/data/shared/w-1.log"
    assert ref.file_key == SegmentRef("t", 4, "w-1", 0).file_key == (-1, "w-1")
    assert SegmentRef("t", 3, "w-1").file_key == (3, "w-1")
    any_storage.put(ref.paths.log, b"x")
    assert any_storage.get("topics/t/data/shared/w-1.log") == b"x"
