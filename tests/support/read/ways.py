"""A topic by every way of reading, which must show the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.support.read.keyed_worlds import read, tuples
from txnlog import ConsumerConfig
from txnlog.names import TopicPartition
from txnlog.store import Store, attach

Row = tuple[Any, ...]
"""Partition, offset and time in milliseconds first."""


class Ways:
    """A topic as it is now, and how it may be read."""

    def __init__(self, store: Store, topic: str, columns: list[str], rng: random.Random) -> None:
        self.store, self.topic, self.columns, self.rng = store, topic, columns, rng
        self.snapshot = store.snapshot(topic)
        self.rows = read(self.snapshot.scan(topic, columns=columns))
        self.parts = sorted(self.snapshot.end_offsets(topic))

    def check(self, *, is_settled: bool) -> None:
        """``is_settled``: nothing is undecided, so that all shows at this time, too."""
        ways: list[Callable[[], None]] = [
            self._others,
            self._ends,
            self._parts,
            self._filtered,
            self._polled,
            self._counted,
            self._times,
        ]
        for way in ways:
            way()
        if is_settled:
            now = self.store.logs.clock.now_ms()
            assert (
                read(self.store.snapshot(self.topic, at=now).scan(self.topic, columns=self.columns))
                == self.rows
            )

    def _others(self) -> None:
        """By batches, a token, another process."""
        scan = self.snapshot.scan(self.topic, columns=self.columns)
        assert [row for batch in scan.to_batches() for row in tuples(batch)] == self.rows
        pinned = self.store.snapshot(self.topic, at=self.snapshot.token())
        assert read(pinned.scan(self.topic, columns=self.columns)) == self.rows
        other = attach(self.store.storage, clock=self.store.logs.clock)
        assert read(other.scan(self.topic, columns=self.columns)) == self.rows

    def _ends(self) -> None:
        """The oldest and the newest ones, by the greatest time so far in their partition."""
        newest: dict[int, int] = {}
        timed: list[tuple[int, int, Row]] = []
        for row in self.rows:
            partition, _, time_ms, *_ = row
            newest[partition] = max(newest.get(partition, time_ms), time_ms)
            timed.append((newest[partition], len(timed), row))
        oldest = [row for _, _, row in sorted(timed, key=lambda one: one[:2])]
        scan = self.snapshot.scan(self.topic, columns=self.columns)
        for count in {1, 3, self.rng.randrange(1 + len(oldest)), len(oldest) + 1}:
            assert tuples(scan.head(count)) == oldest[:count]
        for partition in self.parts:
            only = {number: 0 if number == partition else 1 << 40 for number in self.parts}
            ends = self.snapshot.end_offsets(self.topic)
            starts = {number: min(start, ends[number]) for number, start in only.items()}
            starts[partition] = self.snapshot.beginning_offsets(self.topic)[partition]
            scan = self.snapshot.scan(self.topic, starts, columns=self.columns)
            mine = [row for row in self.rows if row[0] == partition]
            for count in {1, 2, self.rng.randrange(1 + len(mine)), len(mine) + 1}:
                assert tuples(scan.head(count)) == mine[:count]
                assert tuples(scan.tail(count)) == mine[max(len(mine) - count, 0) :]

    def _parts(self) -> None:
        starts, ends = {}, {}
        begins = self.snapshot.beginning_offsets(self.topic)
        for number, end in self.snapshot.end_offsets(self.topic).items():
            starts[number] = self.rng.randint(begins[number], end)
            ends[number] = self.rng.randint(starts[number], end)
        found = read(self.snapshot.scan(self.topic, starts, ends, columns=self.columns))
        assert found == [row for row in self.rows if starts[row[0]] <= row[1] < ends[row[0]]]

    def _filtered(self) -> None:
        partition, offset, time = self.columns[:3]
        some = self.rng.choice(self.rows) if self.rows else (0, 0, 0)
        moment = pa.scalar(some[2], pa.timestamp("ms", "UTC"))
        judged: list[tuple[pc.Expression, Callable[[Row], bool]]] = [
            (pc.field(offset) < some[1], lambda row: row[1] < some[1]),
            (pc.field(partition) == some[0], lambda row: row[0] == some[0]),
            (pc.field(time) >= moment, lambda row: row[2] >= some[2]),
        ]
        for kept, keeps in judged:
            found = read(self.snapshot.scan(self.topic, columns=self.columns, filter=kept))
            assert found == [*filter(keeps, self.rows)]

    def _polled(self) -> None:
        expected = sorted(row[:3] for row in self.rows)
        for as_batches in (False, True):
            found: list[Row] = []
            with self.store.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(self.topic, number) for number in self.parts])
                while True:
                    if as_batches:
                        polled = consumer.poll_batches()
                        for where, batches in polled.items():
                            table = pa.Table.from_batches(batches)
                            names = [
                                name
                                for name in table.column_names
                                if name.strip("_") in ("offset", "timestamp")
                            ]
                            found += [
                                (where.partition, *row)
                                for row in tuples(table.select(sorted(names)))
                            ]
                        if not polled:
                            break
                        continue
                    records = consumer.poll(max_records=self.rng.randint(1, 20))
                    if not records:
                        break
                    found += [(r.partition, r.offset, r.timestamp) for r in records]
            assert sorted(found) == expected

    def _counted(self) -> None:
        counts = Counter(row[0] for row in self.rows)
        assert self.snapshot.scan(self.topic).count() == {n: counts[n] for n in self.parts}

    def _times(self) -> None:
        """The first record in the order of offsets whose time is not before one."""
        for number in self.parts:
            mine = [row for row in self.rows if row[0] == number]
            for time_ms in [row[2] for row in self.rng.sample(mine, min(3, len(mine)))]:
                found = self.snapshot.offset_for_time(TopicPartition(self.topic, number), time_ms)
                expected = next(row for row in mine if row[2] >= time_ms)
                assert found is not None
                assert (found.offset, found.timestamp) == (expected[1], expected[2])


class Follower:
    """A consumer that reads on while topics live, a little at a time."""

    def __init__(self, store: Store, *topics: str, rng: random.Random, as_batches: bool) -> None:
        self.store, self.topics, self.rng, self.as_batches = store, topics, rng, as_batches
        self.consumer = store.consumer(
            *topics,
            auto_offset_reset="earliest",
            config=ConsumerConfig(fetch_max_bytes=1, metadata_max_age_ms=0),
        )
        self.seen: set[tuple[TopicPartition, int]] = set()
        self.next: dict[TopicPartition, int] = {}

    def poll(self) -> int:
        """How many records there were; none comes twice, or before an earlier one."""
        found: list[tuple[TopicPartition, int]] = []
        if self.as_batches:
            for where, batches in self.consumer.poll_batches().items():
                for batch in batches:
                    name = "offset" if "offset" in batch.schema.names else "_offset"
                    found += [(where, offset) for offset in batch[name].to_pylist()]
        else:
            records = self.consumer.poll(max_records=self.rng.randint(1, 5))
            found = [(TopicPartition(r.topic, r.partition), r.offset) for r in records]
        for where, offset in found:
            assert offset >= self.next.get(where, 0)
            self.next[where] = offset + 1
        self.seen.update(found)
        return len(found)

    def check(self) -> None:
        """Having read to the end it has had all that is there."""
        while self.poll():
            pass
        snapshot = self.store.snapshot(self.topics)
        for topic in self.topics:
            names = ["partition", "offset"]
            if self.store.topics.describe(topic).schema is not None:
                names = [f"_{name}" for name in names]
            left = tuples(snapshot.scan(topic, columns=names).to_arrow())
            assert self.seen >= {(TopicPartition(topic, number), at) for number, at in left}
