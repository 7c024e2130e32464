"""A topic's whole life by a seed, and what readers of its keys must see, by plain Python.

Commits, aborts and a transaction that stays open, keys in several partitions, added partitions,
other record formats, merging, compaction, whole or in part, and trimming happen in any order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.admin.compacted_topics import compact
from tests.support.steps import end_batches
from txnlog.admin.compaction.compact import compact_topic
from txnlog.admin.merge_topic import merge_topic
from txnlog.admin.times import Times
from txnlog.columns.keys import encode_keys, home_of
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.read.latest import Clean, find_newest
from txnlog.scan import Scan
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

Key = tuple[str, int]
START_MS = 1_700_000_000_000
TYPED = pa.schema([("name", pa.string()), ("n", pa.int32()), ("v", pa.int64())])
KEYS: tuple[Key, ...] = tuple((name, n) for name in ("", "a", "b") for n in range(4))


@dataclass(frozen=True)
class Sent:
    """A record. Its timestamp is in no other, and so tells which one was read."""

    key: Key | None
    deletes: bool
    partition: int
    time_ms: int


@dataclass(frozen=True, order=True)
class Placed:
    """A record that shows."""

    partition: int
    offset: int
    sent: Sent = field(compare=False)


def newest(records: list[Placed]) -> list[Placed]:
    """What is left: of a key the last of each partition, of these the one with most time."""
    last: dict[tuple[Key, int], Placed] = {}
    for record in sorted(records):
        if record.sent.key is not None:
            last[record.sent.key, record.partition] = record
    found: dict[Key, Placed] = {}
    for (key, _), record in sorted(last.items(), key=lambda item: item[1].sent.time_ms):
        found[key] = record
    return sorted(record for record in found.values() if not record.sent.deletes)


@dataclass
class World:
    """A topic, and what readers must see of it."""

    rng: random.Random
    is_typed: bool
    stray_rate: float
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START_MS))
    make: Callable[[VirtualClock], Store] | None = None
    store: Store = field(init=False)
    holder: Producer | None = None
    sent: dict[int, Sent] = field(default_factory=dict)
    aborted: set[Sent] = field(default_factory=set)
    held: list[Sent] = field(default_factory=list)
    visible: list[Placed] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    moments: list[tuple[str | int, list[Placed]]] = field(default_factory=list)
    partitions: int = 2
    trims_one_in: ClassVar[int] = 4
    formats: tuple[str, ...] = ("columns", "parquet", "auto")
    ends_batches: random.Random = field(default_factory=lambda: random.Random(1))
    by_compaction: Counter[bool] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.make is None:
            storage = HeapStorage()
            storage.time_ms = lambda: self.clock.time_ms
            self.store = attach(storage, create=True, clock=self.clock)
        else:
            self.store = self.make(self.clock)
        given: dict[str, Any] = {"schema": TYPED, "key": ["name", "n"]} if self.is_typed else {}
        if not self.is_typed:
            self.formats += ("kafka",)
        config = {"record.format": self.rng.choice(self.formats)}
        self.store.topics.create("t", partitions=2, config=config, **given)

    # -- what happens ----------------------------------------------------------------------------

    def step(self) -> str:
        """Do one thing that can be done now, a second after the one before."""
        self.clock.time_ms += 1000
        actions = ["commit"] * 4 + ["abort", "plain", "hold", "release", "partitions", "format"]
        actions += ["moment", "moment", "merge", "compact", "compact", "compact_partly", "trim"]
        action = self.rng.choice(actions)
        getattr(self, f"_{action}")()
        self.look()
        return action

    def _commit(self) -> None:
        producer = self._begin("writer")
        self.send(producer)
        producer.commit_transaction()

    def _abort(self) -> None:
        producer = self._begin("writer")
        self.aborted.update(self.send(producer))
        producer.flush()
        producer.abort_transaction()

    def _plain(self) -> None:
        with self.store.producer() as producer:
            self.send(producer)

    def _hold(self) -> None:
        if self.holder is None:
            self.holder = self._begin("holder")
        self.held += self.send(self.holder)
        self.holder.flush()

    def _release(self) -> None:
        if self.holder is None:
            return
        if self.rng.random() < 0.5:
            self.holder.commit_transaction()
        else:
            self.aborted.update(self.held)
            self.holder.abort_transaction()
        self.holder, self.held = None, []

    def _partitions(self) -> None:
        if self.partitions < 4 and self.rng.random() < 2 * self.stray_rate:
            self.partitions += 1
            self.store.topics.alter("t", partitions=self.partitions)

    def _format(self) -> None:
        self.store.topics.alter("t", config={"record.format": self.rng.choice(self.formats)})

    def _moment(self) -> None:
        """Note what shows, under a token, and under the time if nothing is open that it shows."""
        now = newest(self.visible)
        self.moments.append((self.store.snapshot("t").token(), now))
        if self.holder is None and len(self.ends) == self.partitions:
            self.moments.append((self.clock.time_ms - 500, now))

    def _merge(self) -> None:
        """Half of the time aborted records are old enough to go."""
        delay = "file.delete.delay.ms"
        config = self.store.logs.fresh_topic("t").state.config
        if self.ends_batches.random() < 0.5:
            self.store.topics.alter("t", config={delay: 0})
        [*merge_topic(self.store.logs, "t")]
        self.store.topics.alter("t", config={delay: config.get(delay)})

    def _compact(self) -> None:
        """A topic that is not compacted may have records without keys, so it is only now."""
        self.store.topics.alter("t", config={"cleanup.policy": "compact"})
        compact(self.store)
        self.store.topics.alter("t", config={"cleanup.policy": "delete"})

    def _compact_partly(self) -> None:
        """As a process does that stops after one of its entries."""
        self.store.topics.alter("t", config={"cleanup.policy": "compact"})
        steps = compact_topic(self.store.logs, "t", Times(self.clock, None), even_clean=True)
        next(iter(steps), None)
        self.store.topics.alter("t", config={"cleanup.policy": "delete"})

    def _home(self, key: Key) -> int:
        name, n = key
        columns = [pa.array([name]), pa.array([n], pa.int32())]
        if not self.is_typed:
            columns = [pa.array([f"{name}/{n}".encode()])]
        return int(home_of(encode_keys(columns, 1), self.partitions)[0])

    def _trim(self) -> None:
        """Delete the oldest records of a partition; the moments before have then lost some."""
        partition = self.rng.randrange(self.partitions)
        snapshot = self.store.snapshot("t")
        start = snapshot.beginning_offsets("t")[partition]
        end = snapshot.end_offsets("t")[partition]
        before = start + (end - start) // self.trims_one_in
        self.store.topics.delete_records({TopicPartition("t", partition): before})
        self.visible = [
            record
            for record in self.visible
            if record.partition != partition or record.offset >= before
        ]
        self.moments.clear()

    def _begin(self, transactional_id: str) -> Producer:
        producer = self.store.producer(transactional_id=transactional_id)
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    def send(self, producer: Producer) -> list[Sent]:
        """Some records, whose keys are mostly in one partition each, and whose times go back."""
        records = []
        for _ in range(self.rng.randrange(1, 9)):
            key = self.rng.choice(KEYS)
            has_key = self.is_typed or self.rng.random() < 0.9
            partition = self._home(key)
            if self.rng.random() < self.stray_rate:
                partition = self.rng.randrange(self.partitions)
            time_ms = START_MS - self.rng.randrange(1000) * 1000 + len(self.sent)
            deletes = self.rng.random() < 0.25
            record = Sent(key if has_key else None, deletes, partition, time_ms)
            self.sent[time_ms] = record
            records.append(record)
            name, n = key
            if self.is_typed:
                row = {
                    "name": [name],
                    "n": pa.array([n], pa.int32()),
                    "v": pa.array([None if deletes else time_ms], pa.int64()),
                    "_deleted": [deletes],
                    "_timestamp": pa.array([time_ms], pa.timestamp("ms", "UTC")),
                }
                producer.send_batch("t", pa.table(row), partition=partition)
            else:
                plain_key = f"{name}/{n}".encode() if has_key else None
                value = None if deletes else b"%d" % time_ms
                producer.send("t", value, plain_key, partition=partition, timestamp_ms=time_ms)
            if self.ends_batches.random() < 0.3:
                end_batches(producer)
        return records

    # -- what shows ------------------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        if self.is_typed:
            return ["_partition", "_offset", "_timestamp", "name", "n", "v", "_deleted"]
        return ["partition", "offset", "timestamp", "key", "value"]

    def look(self) -> None:
        """Take note of the records that show since the last time, before anything removes them."""
        snapshot = self.store.snapshot("t")
        ends = snapshot.end_offsets("t")
        starts = {p: self.ends.get(p, 0) for p in ends}
        for row in snapshot.scan("t", starts, ends, self.columns[:3]).to_arrow().to_pylist():
            partition, offset, time = row.values()
            sent = self.sent[round(time.timestamp() * 1000)]
            assert sent not in self.aborted
            assert sent not in self.held
            assert partition == sent.partition
            self.visible.append(Placed(partition, offset, sent))
        self.ends = ends

    def rows(self, records: list[Placed]) -> list[tuple[Any, ...]]:
        """Of all columns, the times in milliseconds."""
        rows: list[tuple[Any, ...]] = []
        for record in records:
            sent = record.sent
            assert sent.key is not None
            place = record.partition, record.offset, sent.time_ms
            name, n = sent.key
            if self.is_typed:
                rows.append((*place, name, n, sent.time_ms, False))
            else:
                rows.append((*place, f"{name}/{n}".encode(), b"%d" % sent.time_ms))
        return rows

    def check_moments(self, count: int) -> None:
        """The newest records as they were."""
        for at, expected in self.rng.sample(self.moments, min(count, len(self.moments))):
            snapshot = self.store.snapshot("t", at=at)
            scan = snapshot.scan("t", columns=self.columns, latest=True)
            assert read(scan) == self.rows(expected)

    def check(self) -> None:
        """The newest records of now, and these in one more way of reading."""
        expected = newest(self.visible)
        snapshot = self.store.snapshot("t")
        scan = snapshot.scan("t", columns=self.columns, latest=True)
        rows = self.rows(expected)
        assert read(scan) == rows
        judged = find_newest(self.store.storage, scan.ranges, scan._columns)
        self.by_compaction[bool(judged.clean_ends)] += 1
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("txnlog.read.latest.find_clean", lambda _: Clean())
            assert read(scan) == rows
        other = self.rng.randrange(4)
        if other == 0:
            assert [row for batch in scan.to_batches() for row in tuples(batch)] == rows
        elif other == 1:
            counts = Counter(record.partition for record in expected)
            assert scan.count() == {p: counts[p] for p in range(self.partitions)}
        elif other == 2:
            chosen = self.rng.sample(self.columns, self.rng.randrange(1, len(self.columns)))
            places = [self.columns.index(name) for name in chosen]
            found = read(snapshot.scan("t", columns=chosen, latest=True))
            assert found == [tuple(row[place] for place in places) for row in rows]
        else:
            name = self.columns[1]
            limit = self.rng.randrange(1 + max(self.ends.values()))
            scan = snapshot.scan(
                "t", None, None, [name], filter=pc.field(name) < limit, latest=True
            )
            assert read(scan) == [(row[1],) for row in rows if row[1] < limit]


def tuples(batch: pa.RecordBatch | pa.Table) -> list[tuple[Any, ...]]:
    columns = [
        pc.cast(column, pa.timestamp("ms", "UTC")).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in batch.columns
    ]
    return [*zip(*(column.to_pylist() for column in columns), strict=True)]


def read(scan: Scan) -> list[tuple[Any, ...]]:
    return tuples(scan.to_arrow())
