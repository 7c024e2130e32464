"""Uploading: memory and open files are bounded, over all topics of one writer together."""

from __future__ import annotations

import errno
import gc
import os
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from txnlog.clock import SystemClock
from txnlog.errors import StorageError
from txnlog.names import TopicPartition
from txnlog.segments.records import normalize
from txnlog.storage import open_storage
from txnlog.storage.adapters import local
from txnlog.storage.base import Storage, Upload
from txnlog.storage.buffered_uploads import write_all
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, VirtualClock
from txnlog.write import segment_uploads as uploads
from txnlog.write.segment_uploads import SegmentUploader, UploadBudget


def _store(name: str, topics: int, partitions: int) -> Store:
    store = attach(open_storage(f"memory://uploads-{name}"), create=True, clock=SystemClock())
    for topic in range(topics):
        store.topics.create(f"t{topic}", partitions=partitions)
    return store


def _records(numbers: list[int], value_bytes: int) -> pa.RecordBatch:
    values = pa.array([b"%0*d" % (value_bytes, n) for n in numbers], pa.binary())
    return normalize(pa.RecordBatch.from_arrays([values], names=["value"]), now_ms=1)


@pytest.mark.more
def test_topics_share_one_budget_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held never passes the budget by more than a batch; nothing is lost or moved."""
    monkeypatch.setattr(uploads, "MAX_OPEN_SEGMENTS", 128)
    topics, partitions, value_bytes = 10, 40, 1000
    store = _store("shared", topics, partitions)
    budget = UploadBudget(memory_bytes=200_000)
    clock = store.logs.clock
    uploaders = [
        SegmentUploader(store.storage, store.logs.topic_spec(f"t{topic}"), clock, budget)
        for topic in range(topics)
    ]
    rng = random.Random(3)
    sent: dict[TopicPartition, list[int]] = {}
    most = 0
    for start in range(0, 4000, 20):
        topic = rng.randrange(topics)
        numbers = list(range(start, start + 20))
        chosen = np.array([rng.randrange(partitions) for _ in numbers], dtype=np.int32)
        uploaders[topic].write(_records(numbers, value_bytes), chosen)
        most = max(most, budget.held_bytes)
        for number, partition in zip(numbers, chosen.tolist(), strict=True):
            sent.setdefault(TopicPartition(f"t{topic}", partition), []).append(number)
    assert 100_000 < most <= 200_000
    placed = 0
    for uploader in uploaders:
        segments = uploader.finish()
        placed += len(segments)
        store.logs.topic(segments[0].topic).place(segments)
    assert budget.held_bytes == 0
    assert placed > len(sent) == 400  # more than may be open: some were finished early
    found: dict[TopicPartition, list[int]] = {}
    for topic in range(topics):
        for row in store.scan(f"t{topic}", columns=["value", "partition"]).to_arrow().to_pylist():
            where = TopicPartition(f"t{topic}", row["partition"])
            found.setdefault(where, []).append(int(row["value"]))
    assert found == sent


def test_discarding_frees_the_budget_of_others() -> None:
    """An uploader that gives up takes its records out of the common budget."""
    store = _store("discard", 2, 3)
    budget = UploadBudget()
    first, second = (
        SegmentUploader(store.storage, store.logs.topic_spec(f"t{n}"), store.logs.clock, budget)
        for n in range(2)
    )
    numbers = np.array([0, 1, 2], dtype=np.int32)
    first.write(_records([1, 2, 3], 10), numbers)
    held = budget.held_bytes
    second.write(_records([4, 5, 6], 10), numbers)
    assert budget.held_bytes > held > 0
    second.discard()
    assert budget.held_bytes == held
    first.discard()
    first.discard()
    assert budget.held_bytes == 0


def test_two_hundred_partitions_are_two_hundred_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where enough files may be open, no segment is cut short for another one."""
    monkeypatch.setattr(uploads, "MAX_OPEN_SEGMENTS", 200)
    store = _store("many", 1, 200)
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t0"), store.logs.clock)
    chosen = np.arange(2_000, dtype=np.int32) % 200
    for _ in range(5):
        uploader.write(_records(list(range(2_000)), 100), chosen)
    assert [segment.stored.record_count for segment in uploader.finish()] == [50] * 200


@pytest.mark.usefixtures("early_files")
def test_what_cannot_be_finished_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An upload that fails at its end is discarded whole: segments, indexes, open ones."""
    store = attach(open_storage(str(tmp_path / "store")), create=True, clock=SystemClock())
    store.topics.create("t", partitions=3)
    before = dict(store.storage.list_all(""))
    uploader = SegmentUploader(
        store.storage, store.logs.topic_spec("t"), store.logs.clock, UploadBudget(memory_bytes=1)
    )
    numbers = np.arange(300, dtype=np.int32) % 3
    for _ in range(2):
        uploader.write(_records(list(range(300)), 100), numbers)
    put, calls = store.storage.put, []

    def put_once(name: str, data: bytes) -> None:
        calls.append(name)
        if len(calls) == 4:
            raise StorageError("no")
        put(name, data)

    monkeypatch.setattr(store.storage, "put", put_once)
    with pytest.raises(StorageError, match="no"):
        uploader.finish()
    uploader.discard()
    assert len(calls) == 6
    assert dict(store.storage.list_all("")) == before


@pytest.mark.parametrize("options", [{"transactional_id": "x"}, {}, {"acks": 0}])
def test_a_full_disk_at_the_end_leaves_no_file(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a producer cannot upload takes no room, in no topic.

    Of the first topic all is uploaded when the disk is full, of the second the first segment.
    """
    store = attach(open_storage(str(tmp_path / "store")), create=True, clock=SystemClock())
    for topic in ("t", "u"):
        store.topics.create(topic, partitions=3)
    producer = store.producer(**options)
    if "transactional_id" in options:
        producer.init_transactions()
        producer.begin_transaction()
    for topic in ("t", "u"):
        for partition in range(3):
            producer.send(topic, b"x", partition=partition)
    real, written = write_all, []

    def write(descriptor: int, data: bytes) -> None:
        written.append(len(data))
        if len(written) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr(local, "write_all", write)
        if options == {"acks": 0}:
            producer.close()
        else:
            with pytest.raises(StorageError, match="No space"):
                producer.flush()
    if "transactional_id" in options:
        producer.abort_transaction()
    kept = store.scan("t").to_arrow().num_rows
    files = [name for name, _ in store.storage.list_all("")]
    assert [name for name in files if name.startswith((".tmp/", "topics/u/data/"))] == []
    # acks=0 loses topic by topic.
    assert len([name for name in files if "/data/" in name]) == (1 if kept else 0)
    assert kept == (3 if options == {"acks": 0} else 0)
    assert len(written) >= 5


_MEMORY = """
import sys
import numpy as np
import pyarrow as pa
from txnlog.clock import SystemClock
from txnlog.segments.records import normalize
from txnlog.storage import open_storage
from txnlog.store import attach
from txnlog.write.segment_uploads import SegmentUploader
store = attach(open_storage(sys.argv[1]), create=True, clock=SystemClock())
partitions = int(sys.argv[3])
store.topics.create("t", partitions=partitions, config={"record.format": sys.argv[2]})
rows = 36_000
values = pa.array([bytes(100)] * rows, pa.binary())
records = normalize(pa.RecordBatch.from_arrays([values], names=["value"]), now_ms=1)
chosen = np.random.default_rng(5).integers(0, partitions, rows, dtype=np.int32)
def peak_kib():
    # Not ru_maxrss: that begins with what the parent had.
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])
before = peak_kib()
for task in range(2):
    uploader = SegmentUploader(store.storage, store.logs.topic_spec("t"), store.logs.clock)
    for _ in range(40):
        uploader.write(records, chosen)
    assert sum(s.stored.record_count for s in uploader.finish()) == 40 * rows
print(peak_kib() - before)
"""


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("record_format", "partitions"), [("columns", 200), ("auto", 4), ("auto", 40)]
)
def test_memory_is_bounded_with_many_partitions(
    tmp_path: Path, record_format: str, partitions: int
) -> None:
    """Two hundred partitions take the 64 MiB that wait, and not a multiple of them."""
    path = str(tmp_path / "store")
    command = [sys.executable, "-c", _MEMORY, path, record_format, str(partitions)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 50 < int(found.stdout) / 1024 < 170


class CountingUpload(Upload):
    """Counts the bytes that an upload is given, and keeps none."""

    def __init__(self, counts: list[int]) -> None:
        self._counts = counts

    def write(self, data: bytes) -> int:
        self._counts.append(len(data))
        return len(data)

    def close(self) -> None:
        pass

    def discard(self) -> None:
        pass


LARGE: dict[str, tuple[pa.Schema | None, Any, dict[str, Any]]] = {
    "value": (None, bytes(500_000), {}),
    "text": (None, "x" * 500_000, {}),
    "key": (None, b"", {"key": bytes(500_000)}),
    "headers": (None, b"", {"headers": [("h", bytes(500_000))]}),
    "column": (pa.schema([("v", pa.binary())]), {"v": bytes(500_000)}, {}),
    "columns": (
        pa.schema([(f"v{n}", pa.list_(pa.string())) for n in range(10)]),
        {f"v{n}": ["x" * 25_000] * 2 for n in range(10)},
        {},
    ),
    "headers of columns": (
        pa.schema([("v", pa.binary())]),
        {},
        {"headers": [("h", bytes(500_000))]},
    ),
}
"""What makes a record large: the topic's schema, the record, and arguments of ``send``."""


@pytest.mark.parametrize(
    ("record_format", "what"),
    [
        *(("columns", what) for what in LARGE),
        *(("kafka", what) for what, (schema, *_) in LARGE.items() if schema is None),
    ],
)
def test_large_records_sent_one_by_one_are_not_piled_up(
    memory_storage: Storage, clock: VirtualClock, record_format: str, what: str
) -> None:
    """Fewer records than make a batch by their number are made one by their size, 4 MiB."""
    schema, record, more = LARGE[what]
    config = {"record.format": record_format, "compression.type": "none"}
    topics = attach(memory_storage, create=True, clock=clock).topics
    topics.create("large", schema=schema, config=config)
    storage = FaultyStorage(memory_storage)
    written: list[int] = []

    def upload(name: str) -> Upload:
        return CountingUpload(written)

    storage.upload = upload  # type: ignore[method-assign]
    producer = attach(storage, clock=clock).producer(buffer_memory_bytes=1)
    for _ in range(100):
        producer.send("large", record, **more)
    assert 50_000_000 - sum(written) < 5 << 20
    assert max(written) < 5 << 20
    producer.close(flush=False)


class EndingUpload(CountingUpload):
    """Tells what it is given after its end: a writer that is collected could write its footer."""

    def __init__(self, counts: list[int], late: list[int]) -> None:
        super().__init__(counts)
        self._late = late

    def close(self) -> None:
        self._counts = self._late

    def discard(self) -> None:
        self._counts = self._late


@pytest.mark.few(3)
@pytest.mark.usefixtures("early_files")
@pytest.mark.parametrize("how", ["finish", "discard"])
@pytest.mark.parametrize("record_format", ["columns", "kafka", "parquet"])
def test_an_ended_segment_leaves_memory_and_writes_no_more(
    memory_storage: Storage, clock: VirtualClock, record_format: str, how: str
) -> None:
    """Arrow's writers know where they write to: what knows them must not be known from there."""
    store = attach(memory_storage, create=True, clock=clock)
    store.topics.create("t", partitions=3, config={"record.format": record_format})
    written: list[int] = []
    late: list[int] = []
    begun: list[weakref.ref[Upload]] = []

    def upload(name: str) -> Upload:
        one = EndingUpload(written, late)
        begun.append(weakref.ref(one))
        return one

    memory_storage.upload = upload  # type: ignore[method-assign]
    uploader = SegmentUploader(
        memory_storage, store.logs.topic_spec("t"), clock, UploadBudget(memory_bytes=1)
    )
    for start in (0, 300):
        numbers = np.arange(300, dtype=np.int32) % 3
        uploader.write(_records([*range(start, start + 300)], 100), numbers)
    if how == "finish":
        assert sum(segment.stored.record_count for segment in uploader.finish()) == 600
    else:
        uploader.discard()
    del uploader
    gc.collect()
    assert [one() for one in begun] == [None] * 3
    assert written
    assert not late
