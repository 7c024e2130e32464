"""Random topics of own and imported records go out to folders and come back: the same topics."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest

from tests.kafka.folder_bytes import batch, flip, folder, marker, offsets_and_values, wrapper
from tests.kafka.folder_judges import batches, committed_records
from txnlog import Producer, TopicPartition
from txnlog.segments.batch_header import Compression
from txnlog.segments.indexes.transactions import TransactionIndex
from txnlog.storage import open_storage
from txnlog.store import attach
from txnlog.testing import HeapStorage

T0 = TopicPartition("t", 0)


class Topic:
    """A topic ``t`` that grows at random, and is rewritten: purged, compacted, merged, trimmed."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.store = attach(open_storage(f"memory://{uuid4().hex}"), create=True)
        self.store.topics.create(
            "t",
            config={
                "record.format": self.random.choice(["kafka", "columns", "parquet"]),
                "cleanup.policy": self.random.choice(["delete", "compact"]),
            },
        )
        self._path = path / str(seed)
        self._producers: dict[str, Producer] = {}
        self._open: set[str] = set()
        for step in range(self.random.randint(3, 16)):
            self._grow(step)
        for name in self._open:
            self._end(name)

    def _grow(self, step: int) -> None:
        chance = self.random.random()
        if chance < 0.2:
            with self.store.producer() as producer:
                for _ in range(self.random.randint(1, 5)):
                    producer.send("t", b"plain %d" % step, key=self._key())
        elif chance < 0.45:
            self._transact(self.random.choice(["a", "b"]), step)
        elif chance < 0.7:
            self._import(step)
        elif chance < 0.9:
            self._rewrite()
        else:
            known = self.store.topics.describe("t").partitions[0]
            most = known.last_stable_offset
            if most > known.log_start_offset:
                offset = self.random.randint(known.log_start_offset, most)
                self.store.topics.delete_records({T0: offset})

    def _key(self) -> bytes:
        return self.random.choice([b"k1", b"k2", b"k3"])

    def _rewrite(self) -> None:
        maintenance = self.store.maintenance
        if self.random.random() < 0.5:
            maintenance.purge("t", [{"key": self._key()}])
        elif self.store.topics.describe("t").config["cleanup.policy"] == "compact":
            maintenance.compact("t")
        else:
            maintenance.merge("t")

    def _transact(self, name: str, step: int) -> None:
        if name not in self._producers:
            self._producers[name] = self.store.producer(transactional_id=name)
            self._producers[name].init_transactions()
        producer = self._producers[name]
        if name not in self._open:
            producer.begin_transaction()
            self._open.add(name)
        for _ in range(self.random.randint(1, 4)):
            producer.send("t", b"transaction %d" % step, key=self._key())
        producer.flush()
        if self.random.random() < 0.6:
            self._end(name)
            self._open.discard(name)

    def _end(self, name: str) -> None:
        producer = self._producers[name]
        ends = [producer.commit_transaction, producer.abort_transaction]
        self.random.choice(ends)()

    def _import(self, step: int) -> None:
        start = offset = self.store.topics.describe("t").partitions[0].end_offset
        logs, current, undecided = {}, b"", set()
        for number in range(self.random.randint(1, 14)):
            chance = self.random.random()
            values = [b"%d %d" % (step, number)] * self.random.randint(1, 4)
            codec, key = self.random.choice(list(Compression)), self._key()
            if chance < 0.1 and current:
                logs[start], current, start = current, b"", offset
            if chance < 0.3:
                current += batch(offset, *values, codec=codec, key=key)
                offset += len(values)
            elif chance < 0.7:
                producer = self.random.choice([101, 102, 103])
                undecided.add(producer)
                current += batch(offset, *values, producer=producer, codec=codec, key=key)
                offset += len(values)
            elif chance < 0.85 and undecided:
                producer = self.random.choice(sorted(undecided))
                undecided.discard(producer)
                current += marker(offset, producer, commit=self.random.random() < 0.5)
                offset += 1
            elif chance < 0.93:
                offset += self.random.randint(1, 5)  # a gap
            else:
                current += wrapper(offset, *values, key=key)
                offset += len(values)
        logs[start] = current
        self.store.kafka.import_topic("t", [folder(self._path / str(step), logs)])


def _values(records: list[tuple[int, bytes]]) -> list[bytes]:
    return [value for _, value in records]


def _check_transaction_indexes(folder: Path) -> None:
    """Each aborted transaction is in the index of the segment that its marker is in."""
    found: dict[int, tuple[int, int]] = {}
    undecided: dict[int, int] = {}
    for judged in batches(folder, "kafka-python"):
        if judged.commit is None and judged.transactional:
            undecided.setdefault(judged.producer_id, judged.base_offset)
        elif judged.commit is not None:
            first = undecided.pop(judged.producer_id, None)
            if first is not None and not judged.commit:
                found[judged.base_offset] = (judged.producer_id, first)
    assert not undecided
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    indexed = {}
    for path in folder.glob("*.txnindex"):
        following = min((base for base in bases if base > int(path.stem)), default=1 << 62)
        for item in TransactionIndex.decode(path.read_bytes()).aborted:
            assert int(path.stem) <= item.last_offset < following
            indexed[item.last_offset] = (item.producer_id, item.first_offset)
    assert indexed == found


@pytest.mark.few(2)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("commits", [(True, False), (False, True)])
def test_markers_in_purged_segments(commits: tuple[bool, bool], keep: bool, tmp_path: Path) -> None:
    """What rewrites a segment leaves out markers: transactions that begin before it still end.

    Two transactions of a producer, each over two of four segments, of which any may be rewritten.
    """
    first, second = commits
    logs = {
        0: batch(0, b"a1", producer=7) + batch(1, b"0", key=b"0"),
        2: batch(2, b"a2", producer=7) + batch(3, b"1", key=b"1") + marker(4, 7, commit=first),
        5: batch(5, b"b1", producer=7) + batch(6, b"2", key=b"2"),
        7: batch(7, b"b2", producer=7) + batch(8, b"3", key=b"3") + marker(9, 7, commit=second),
    }
    for number, purged in enumerate(product([False, True], repeat=4)):
        store = attach(HeapStorage(), create=True)
        store.kafka.import_topic("t", [folder(tmp_path / f"{number}-in", logs)])
        keys = [{"key": b"%d" % index} for index, is_purged in enumerate(purged) if is_purged]
        store.maintenance.purge("t", keys)
        out = tmp_path / f"{number}-out"
        store.kafka.export_topic("t", str(out), keep_offsets=keep)
        shown = committed_records(batches(out / "t-0", "aiokafka"))
        kept = offsets_and_values(store)
        assert [record[4] for record in shown] == _values(kept), purged
        assert not keep or [record[0] for record in shown] == [offset for offset, _ in kept]
        back = store.kafka.import_topic("back", [str(out)]).partitions[0]
        assert not back.open_transactions
        assert _values(offsets_and_values(store, "back")) == _values(kept), purged


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("rolled", [False, True])
def test_transactions_after_a_lost_marker(rolled: bool, keep: bool, tmp_path: Path) -> None:
    """One whose marker is damaged ends before the producer's next one begins, and alone."""
    lost = batch(0, b"lost", producer=7) + flip(marker(1, 7, commit=True), 40)
    following = batch(2, b"2", producer=7) + batch(3, b"3") + marker(4, 7, commit=True)
    logs = {0: lost, 2: following} if rolled else {0: lost + following}
    store = attach(HeapStorage(), create=True)
    store.kafka.import_topic("t", [folder(tmp_path / "in", logs)], skip_corrupt=True)
    store.kafka.export_topic("t", str(tmp_path), keep_offsets=keep)
    shown = [record[4] for record in committed_records(batches(tmp_path / "t-0", "aiokafka"))]
    assert shown == _values(offsets_and_values(store)) == [b"2", b"3"]


@pytest.mark.parametrize(
    "seeds",
    [
        range(8),
        pytest.param(range(8, 20), marks=pytest.mark.more),
        *(pytest.param(range(n, n + 20), marks=pytest.mark.slow) for n in range(20, 80, 20)),
    ],
)
def test_what_goes_out_comes_back(seeds: range, tmp_path: Path) -> None:
    """import(export(topic)) is the topic: with markers by values, without by offsets too."""
    kinds = set()
    for seed in seeds:
        topic = Topic(seed, tmp_path)
        store = topic.store
        stable = offsets_and_values(store)
        end = store.snapshot(["t"]).end_offsets("t")[0]
        every = [
            item for item in offsets_and_values(store, level="read_uncommitted") if item[0] < end
        ]
        out = tmp_path / f"{seed}-out"
        done = store.kafka.export_topic("t", str(out / "marked")).partitions[0]
        back = store.kafka.import_topic("marked", [str(out / "marked")]).partitions[0]
        assert (back.start_offset, back.end_offset) == (done.start_offset, done.end_offset)
        assert done.end_offset == end + done.marker_count
        _check_transaction_indexes(out / "marked" / "t-0")
        assert _values(offsets_and_values(store, "marked")) == _values(stable), seed
        assert _values(offsets_and_values(store, "marked", "read_uncommitted")) == _values(every), (
            seed
        )
        store.kafka.export_topic("t", str(out / "kept"), keep_offsets=True)
        store.kafka.import_topic("kept", [str(out / "kept")])
        assert offsets_and_values(store, "kept") == stable, seed
        store.kafka.export_topic("t", str(out / "old"), magic=seed % 2)
        store.kafka.import_topic("old", [str(out / "old")])
        assert offsets_and_values(store, "old") == stable, seed
        kinds.add((done.marker_count > 0, len(every) > len(stable) > 0))
    assert len(kinds) > 1  # with markers or without, with aborted records or without
