"""Import: real folders of a real broker read as Kafka's own consumer read them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.broker_folders import BROKER, OLD_TOPICS, TOPICS, expected, files_of, read
from tests.kafka.folder_bytes import batch, folder
from tests.support.steps import begin
from tests.support.tiers import more
from txnlog import IsolationLevel, Store, TopicPartition
from txnlog.config import TopicConfig
from txnlog.errors import (
    CorruptRecord,
    InvalidOption,
    InvalidTopic,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from txnlog.inspect.placed_indexes import check_placed_indexes, rebuild_placed_indexes
from txnlog.log.topic_log import TopicLog
from txnlog.segments.indexes.transactions import TransactionIndex
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")
ALL = TOPICS | OLD_TOPICS


pytestmark = pytest.mark.store(topics={})


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A copy of the broker's folders that a test may damage."""
    return Path(shutil.copytree(BROKER, tmp_path / "broker"))


# -- what comes in -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", sorted(ALL.keys() - {"hanging"}))
def test_a_broker_s_folders_read_as_by_its_own_consumer(store: Store, topic: str) -> None:
    """Offsets, timestamps and their type, headers, aborted records: all as in Kafka."""
    done = store.kafka.import_topic(topic, [str(BROKER)])
    assert [p.partition for p in done.partitions] == list(range(ALL[topic]))
    assert len(store.topics.describe(topic).partitions) == ALL[topic]
    for part in done.partitions:
        known = expected()[f"{topic}-{part.partition}"]
        assert (part.start_offset, part.end_offset) == (known.beginning_offset, known.end_offset)
        described = store.topics.describe(topic).partitions[part.partition]
        assert described.log_start_offset == known.beginning_offset
        assert described.last_stable_offset == known.last_stable_offset
        assert described.end_offset == known.end_offset
        assert read(store, topic, part.partition, "read_committed") == known.committed
        assert read(store, topic, part.partition, "read_uncommitted") == known.uncommitted
    assert done.damages == ()


def test_every_storage_carries_an_import(any_storage: Storage) -> None:
    """The same on local disk, in memory and on S3, and for a store that is opened later."""
    attach(any_storage, create=True).kafka.import_topic("orders", [str(BROKER)])
    later = attach(any_storage)
    for number in range(2):
        known = expected()[f"orders-{number}"]
        assert read(later, "orders", number, "read_committed") == known.committed


def test_a_transaction_that_was_left_open_counts_as_aborted(store: Store) -> None:
    """Nobody can end it any more, so it must not block readers for ever; it is reported."""
    known = expected()["hanging-0"]
    done = store.kafka.import_topic("hanging", [str(BROKER)])
    (hanging,) = done.partitions[0].open_transactions
    assert hanging.first_offset == known.last_stable_offset == 25
    seen = read(store, "hanging", 0, "read_committed")
    assert seen[: len(known.committed)] == known.committed
    assert len(seen) > len(known.committed)  # what was committed behind it
    assert 25 not in [record[0] for record in seen]
    assert read(store, "hanging", 0, "read_uncommitted") == known.uncommitted
    described = store.topics.describe("hanging").partitions[0]
    assert described.last_stable_offset == described.end_offset == known.end_offset


def test_bytes_stay_as_they_are(store: Store) -> None:
    """No record is written again, whatever its codec."""
    store.kafka.import_topic("orders", [str(BROKER)])
    for number in range(2):
        originals = sorted((BROKER / f"orders-{number}").glob("*.log"))
        placed = store.topics.segments("orders", number)
        assert [int(path.stem) for path in originals] == [s.base_offset for s in placed]
        for path, segment in zip(originals, placed, strict=True):
            name = f"topics/orders/data/{number}/{segment.name}.log"
            assert store.storage.get(name) == path.read_bytes()


@pytest.mark.condition(39, 41, 42)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("indexed", "every"), [(True, 1), (False, 5), pytest.param(False, 1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("topic", [*more(["orders"]), "mixed"])
def test_every_offset_and_time_is_found(
    store: Store, level: IsolationLevel, indexed: bool, every: int, topic: str
) -> None:
    """From gaps and the middle of batches too, with indexes and without."""
    store.topics.create(topic, partitions=ALL[topic], config={"index.interval.bytes": "0"})
    store.kafka.import_topic(topic, [str(BROKER)])
    if not indexed:
        store.storage.delete([n for n in files_of(store) if n.endswith((".index", ".timeindex"))])
    known = expected()[f"{topic}-0"]
    records = known.committed if level == "read_committed" else known.uncommitted
    snapshot = store.snapshot([topic], isolation_level=level)
    nothing = snapshot.beginning_offsets(topic)
    # Without indexes each read is of the whole segment: whichever offset it begins at.
    for offset in range(0, known.end_offset + 1, every):
        stop = min(offset + 20, known.end_offset)
        ranges = ({**nothing, 0: offset}, {**nothing, 0: stop})
        found = snapshot.scan(topic, *ranges, ["offset"]).to_arrow().column("offset").to_pylist()
        assert found == [record[0] for record in records if offset <= record[0] < stop]
    where = TopicPartition(topic, 0)
    for time in sorted({record[1] + step for record in records for step in (0, 1)}):
        first = next((record for record in records if record[1] >= time), None)
        at = snapshot.offset_for_time(where, time)
        assert (at.offset if at else None) == (first[0] if first else None)
        assert at is None or (first is not None and at.timestamp == first[1])


def test_a_consumer_gets_to_the_end(store: Store) -> None:
    """Markers and aborted records at a partition's end are passed over, lag is zero."""
    store.kafka.import_topic("orders", [str(BROKER)])
    consumer = store.consumer("orders", group_id="g", auto_offset_reset="earliest")
    seen = []
    while records := consumer.poll(max_records=7):
        seen += [(record.partition, record.offset) for record in records]
    assert seen == [
        (number, record[0])
        for number in range(2)
        for record in expected()[f"orders-{number}"].committed
    ]
    consumer.commit()
    assert store.groups.describe("g").lag == 0


def test_life_goes_on_in_an_imported_topic(store: Store) -> None:
    """Records are appended behind it, and a transaction commits and aborts as ever."""
    store.kafka.import_topic("orders", [str(BROKER)])
    producer = store.producer(transactional_id="etl")
    producer.init_transactions()
    for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
        producer.begin_transaction()
        producer.send("orders", value, partition=0)
        producer.flush()
        end()
    known = expected()["orders-0"]
    seen = read(store, "orders", 0, "read_committed")
    assert seen[:-1] == known.committed
    assert (seen[-1][0], seen[-1][4]) == (known.end_offset + 1, b"yes")
    assert len(read(store, "orders", 0, "read_uncommitted")) == len(known.uncommitted) + 2


def test_a_later_folder_goes_on_where_the_first_ended(store: Store, folders: Path) -> None:
    """The broker's later records can follow; nothing is imported twice or left out."""
    first, second = folders / "first" / "orders-0", folders / "second" / "orders-0"
    for path in sorted((folders / "orders-0").glob("*.log")):
        target = first if int(path.stem) < 161 else second
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    store.kafka.import_topic("orders", [str(first)])
    assert store.topics.describe("orders").partitions[0].end_offset == 161
    for wrong in (first, folders / "orders-0"):
        with pytest.raises(OffsetOutOfRange, match="orders:0 holds records up to offset 161"):
            store.kafka.import_topic("orders", [str(wrong)])
    store.kafka.import_topic("orders", [str(second)])
    known = expected()["orders-0"]
    assert read(store, "orders", 0, "read_uncommitted") == known.uncommitted


def test_deleting_the_topic_deletes_all_files(store: Store) -> None:
    """Transaction indexes too."""
    store.kafka.import_topic("orders", [str(BROKER)])
    assert any(name.endswith(".txnindex") for name in files_of(store))
    store.topics.delete("orders")
    assert files_of(store) == []


def test_without_its_transaction_index_a_segment_is_damaged(store: Store) -> None:
    """It is not an accelerator: lost or changed, aborted records must not show."""
    store.kafka.import_topic("stamped", [str(BROKER)])
    (path, *_) = [name for name in files_of(store) if name.endswith(".txnindex")]
    data = store.storage.get(path)
    store.storage.delete([path])
    with pytest.raises(CorruptRecord, match="is gone"):
        store.scan("stamped").to_arrow()
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        store.storage.put(path, damaged if at else b"")
        with pytest.raises(CorruptRecord, match=r"txnindex"):
            store.scan("stamped").to_arrow()
        store.storage.delete([path])
    store.storage.put(path, data)
    assert read(store, "stamped", 0, "read_committed") == expected()["stamped-0"].committed


@pytest.mark.condition(31)
def test_a_snapshot_shows_an_import_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    """Behind an open transaction in one partition it is hidden in the other one too."""
    store.topics.create("t", partitions=2)
    producer = begin(store, "open")
    producer.send("t", b"open", partition=0)
    producer.flush()
    for partition, offset in ((0, 1), (1, 0)):
        path = tmp_path / f"t-{partition}"
        path.mkdir()
        (path / f"{offset:020}.log").write_bytes(batch(offset, b"imported"))
    store.kafka.import_topic("t", [str(tmp_path)])
    assert store.snapshot(["t"]).end_offsets("t") == {0: 0, 1: 0}
    producer.commit_transaction()
    assert store.snapshot(["t"]).end_offsets("t") == {0: 2, 1: 1}


def test_the_indexes_of_an_import_count_from_its_segment(store: Store, tmp_path: Path) -> None:
    """Its offsets are absolute: the indexes are found right, and rebuilt they are the same."""
    batches = [batch(offset, b"x" * 500_000) for offset in range(100, 110)]
    store.kafka.import_topic("t", [folder(tmp_path, {100: b"".join(batches)})])
    [segment] = store.topics.segments("t")
    checks, damage = check_placed_indexes(store.storage, segment)
    assert ([check.state for check in checks], damage) == (["ok", "ok"], None)
    assert all(check.entry_count for check in checks)
    sound = store.storage.get_many([check.path for check in checks])
    store.storage.delete([check.path for check in checks])
    interval_bytes = TopicConfig.of({}).index_interval_bytes
    rebuild_placed_indexes(store.storage, segment, interval_bytes)
    assert store.storage.get_many([check.path for check in checks]) == sound


def test_the_loser_of_two_imports_leaves_no_files(store: Store) -> None:
    """Another process imports the same records while the files are copied."""
    done: list[int] = []

    def race(*_: int) -> None:
        if not done:
            done.append(1)
            store.kafka.import_topic("stamped", [str(BROKER)])

    with pytest.raises(OffsetOutOfRange):
        store.kafka.import_topic("stamped", [str(BROKER)], progress=race)
    placed = {segment.name for segment in store.topics.segments("stamped")}
    assert {Path(name).stem for name in files_of(store)} == placed
    assert read(store, "stamped", 0, "read_committed") == expected()["stamped-0"].committed


def test_an_interrupt_while_placing_deletes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hazard 2: Ctrl-C comes when the entry may be there already: its files must stay."""
    place = TopicLog.place_imported

    def interrupted(*arguments: Any, **more: Any) -> int:
        place(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(TopicLog, "place_imported", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.kafka.import_topic("orders", [str(BROKER)])
    assert read(store, "orders", 0, "read_committed") == expected()["orders-0"].committed


def test_deleted_segments_are_not_copied(store: Store, tmp_path: Path) -> None:
    """Segments wholly below the log start are not part of the topic."""
    path = folder(tmp_path, {0: batch(0, *[b"a"] * 10), 10: batch(10, *[b"b"] * 10)})
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    done = store.kafka.import_topic("t", [path])
    assert (done.partitions[0].segment_count, done.partitions[0].start_offset) == (1, 12)
    assert [record[0] for record in read(store, "t", 0, "read_committed")] == list(range(12, 20))


# -- damage --------------------------------------------------------------------------------------


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


@pytest.mark.condition(43, 44)
def test_damage_refuses_the_whole_import(store: Store, folders: Path) -> None:
    """File and position are named, and nothing is left: no topic, no file."""
    _flip(folders / "orders-0" / f"{40:020}.log", 500)
    _flip(folders / "orders-1" / f"{52:020}.log", 200)
    with pytest.raises(CorruptRecord, match="nothing was imported") as caught:
        store.kafka.import_topic("orders", [str(folders)])
    for said in (f"orders-0/{40:020}.log at byte 324", f"orders-1/{52:020}.log at byte 78"):
        assert said in str(caught.value)
    assert store.topics.list() == []
    assert files_of(store) == []


def test_what_is_corrupt_can_be_left_out(store: Store, folders: Path) -> None:
    """Everything else comes in, and what was left out is reported."""
    _flip(folders / "orders-0" / f"{40:020}.log", 500)  # the batch of offsets 43 to 47
    with (folders / "orders-1" / f"{207:020}.log").open("ab") as file:
        file.write(b"half a batch")
    done = store.kafka.import_topic("orders", [str(folders)], skip_corrupt=True)
    assert [(Path(d.path).parent.name, d.position, d.size_bytes) for d in done.damages] == [
        ("orders-0", 324, 475),
        ("orders-1", (BROKER / "orders-1" / f"{207:020}.log").stat().st_size, 12),
    ]
    for number, lost in ((0, range(43, 48)), (1, range(0))):
        known = expected()[f"orders-{number}"]
        for level, records in zip(LEVELS, (known.committed, known.uncommitted), strict=True):
            wanted = [record for record in records if record[0] not in lost]
            assert read(store, "orders", number, level) == wanted


def test_a_lost_marker_is_made_up_for_by_the_transaction_index(store: Store, folders: Path) -> None:
    """What Kafka aborted stays aborted where only its index still says so."""
    known = expected()["stamped-0"]
    (path,) = sorted((folders / "stamped-0").glob("*.txnindex"))[:1]
    aborted = TransactionIndex.decode(path.read_bytes()).aborted[0]
    log = path.with_suffix(".log")
    _break_marker(log, aborted.last_offset)
    done = store.kafka.import_topic("stamped", [str(folders)], skip_corrupt=True)
    assert len(done.damages) == 1
    assert read(store, "stamped", 0, "read_committed") == known.committed
    assert done.partitions[0].open_transactions == ()


def _break_marker(log: Path, offset: int) -> None:
    """Flip a bit in the control batch at an offset."""
    data, position = log.read_bytes(), 0
    while int.from_bytes(data[position : position + 8], "big") != offset:
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    _flip(log, position + 70)


def test_a_batch_in_the_wrong_file_is_damage(store: Store, folders: Path) -> None:
    """Offsets that do not fit the file's name or reach into the next one are refused."""
    first = folders / "orders-0" / f"{0:020}.log"
    shutil.copy(folders / "orders-0" / f"{40:020}.log", first)
    with pytest.raises(CorruptRecord, match="offsets 40 to 42 do not belong in a segment of 0"):
        store.kafka.import_topic("orders", [str(folders / "orders-0")])
    first.rename(first.with_name(f"{50:020}.log"))
    with pytest.raises(CorruptRecord, match="do not belong in a segment of 50 to 55"):
        store.kafka.import_topic("orders", [str(folders / "orders-0")])


def test_our_own_segments_are_no_kafka_s(store: Store, tmp_path: Path) -> None:
    """A file of the other format is recognised and refused."""
    store.topics.create("own")
    with store.producer() as producer:
        producer.send("own", b"1")
    (segment,) = store.topics.segments("own")
    folder = tmp_path / "own-0"
    folder.mkdir()
    data = store.storage.get(f"topics/own/data/0/{segment.name}.log")
    (folder / f"{0:020}.log").write_bytes(data)
    with pytest.raises(CorruptRecord, match="a batch of txnlog's own"):
        store.kafka.import_topic("copy", [str(folder)])


# -- which folders -------------------------------------------------------------------------------


def test_folders_can_be_named_one_by_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another topic's name, relative, in any order; the log start is found beside."""
    monkeypatch.chdir(BROKER / "orders-1")
    done = store.kafka.import_topic("copy", [".", "../orders-0/"])
    assert [part.partition for part in done.partitions] == [0, 1]
    assert read(store, "copy", 1, "read_committed") == expected()["orders-1"].committed
    done = store.kafka.import_topic("trimmed", [str(BROKER / "trimmed-0")])
    assert done.partitions[0].start_offset == 80


def test_one_partition_of_a_topic(store: Store) -> None:
    """Partitions that are not there stay empty."""
    store.kafka.import_topic("orders", [str(BROKER / "orders-1")])
    first, second = store.topics.describe("orders").partitions
    assert (first.end_offset, second.end_offset) == (0, 216)


def test_an_empty_partition_keeps_its_offsets(store: Store, tmp_path: Path) -> None:
    """Retention has deleted all of it; the next record has the offset it would have had."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{1000:020}.log").touch()
    store.kafka.import_topic("t", [str(folder)])
    with store.producer() as producer:
        producer.send("t", b"next")
    assert [record[0] for record in read(store, "t", 0, "read_committed")] == [1000]


def test_an_empty_partition_hides_nothing(tmp_path: Path) -> None:
    """It has nothing of the import that could be behind a time, or behind what is undecided."""
    clock = VirtualClock()
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("a", partitions=2)
    with store.producer() as producer:
        producer.send("a", b"x", partition=0)
    store.kafka.export_topic("a", str(tmp_path))
    store.topics.create("t", partitions=3)
    with store.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"waits", partition=2)
        producer.flush()
        store.kafka.import_topic("t", [str(tmp_path / "a-0"), str(tmp_path / "a-1")])
        assert store.scan("t").to_arrow()["value"].to_pylist() == [b"x"]
        producer.abort_transaction()
    clock.time_ms += 1000
    at_ms = clock.time_ms
    clock.time_ms += 1000
    assert store.snapshot("t", at=at_ms).scan("t").to_arrow()["value"].to_pylist() == [b"x"]
    assert store.changes("t", since=at_ms).to_arrow().num_rows == 0


def test_wrong_folders_are_explained(store: Store, folders: Path) -> None:
    """Each mistake has its own message, and nothing is made of it."""
    orders = str(folders / "orders-0")
    unnamed = folders / "unnamed"
    shutil.copytree(orders, unnamed)
    other = shutil.copytree(orders, folders / "replica" / "orders-0")
    cleaned = shutil.copytree(folders / "orders-1", folders / "c" / "orders-1")
    (cleaned / f"{5:020}.log.swap").touch()
    damaged = shutil.copytree(folders / "trimmed-0", folders / "d" / "trimmed-0").parent
    (damaged / "log-start-offset-checkpoint").write_text("0\n1\ntrimmed x\n")
    ahead = shutil.copytree(folders / "trimmed-0", folders / "a" / "trimmed-0").parent
    (ahead / "log-start-offset-checkpoint").write_text(f"0\n1\ntrimmed 0 {1 << 62}\n")
    (folders / "empty").mkdir()
    for paths, said in [
        ([], "no log folder was named"),
        ([str(folders / "nowhere")], "is not a Kafka log folder"),
        ([str(folders / "empty")], "is not a Kafka log folder"),
        ([str(unnamed)], "its name is not <topic>-<partition>"),
        ([str(folders)], "none of 'new': name the folders of one of compacted, hanging, mixed"),
        ([orders, str(folders / "stamped-0")], "are partitions of two topics"),
        ([orders, str(other)], "name the folder of one replica"),
        ([str(cleaned)], "during a cleaning"),
        ([str(damaged)], "log-start-offset-checkpoint cannot be read"),
        ([str(ahead)], f"its log starts at {1 << 62}: no topic has such offsets"),
    ]:
        with pytest.raises(InvalidOption, match=said):
            store.kafka.import_topic("new", paths)
    with pytest.raises(InvalidTopic):
        store.kafka.import_topic("../up", [orders])
    assert store.topics.list() == []
    store.topics.create("new")
    with pytest.raises(UnknownTopicOrPartition, match="no partition 1"):
        store.kafka.import_topic("new", [str(folders / "orders-1")])
    assert files_of(store) == []


def test_progress_is_told(store: Store) -> None:
    """It grows, and ends with all bytes."""
    told: list[tuple[int, int]] = []
    store.kafka.import_topic("orders", [str(BROKER)], progress=lambda *done: told.append(done))
    total = sum(path.stat().st_size for path in BROKER.glob("orders-*/*.log"))
    assert told == sorted(told)
    assert told[-1] == (total, total)


def test_a_store_with_an_import_survives_its_checkpoint(memory_storage: Storage) -> None:
    """A checkpoint keeps all that is needed to read imported segments."""
    store = attach(memory_storage, create=True)
    store.kafka.import_topic("orders", [str(BROKER)])
    with store.producer() as producer:
        for _ in range(40):
            producer.send("orders", b"x", partition=1)
            producer.flush()
    log = store.storage.list_names("topics/orders/log")
    assert any(name.endswith(".checkpoint") for name in log)
    store.storage.delete([f"topics/orders/log/{1:020}.json"])  # the import itself
    later = attach(memory_storage)
    known = expected()["orders-0"]
    assert read(later, "orders", 0, "read_committed") == known.committed
