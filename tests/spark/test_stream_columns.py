"""A stream's columns while the topic's change, without a JVM: each batch keeps its rows.

Only what was dropped may be null, in records that were merged since.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.support.tiers import more
from txnlog.read.changed_rows import change_columns, read_changes
from txnlog.read.plan import scan_columns
from txnlog.read.scan_reader import read_ranges
from txnlog.schema import TopicSchema
from txnlog.spark.options.stream_options import MicroBatchLimits, parse_stream
from txnlog.spark.stream.offsets import StreamOffset
from txnlog.spark.stream.planner import StreamPlanner
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

ALL = MicroBatchLimits()
STEPS = ("send", "send", "send", "add", "drop", "rename", "merge", "purge", "vacuum", "query")

Row = dict[int, int]
"""The values of columns by their numbers."""


class World:
    """A typed topic, what was written to it, and a query that began at some moment."""

    def __init__(self, seed: int, key: Sequence[str]) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock(seed=seed)
        self.heap = HeapStorage()
        self.heap.time_ms = lambda: self.clock.time_ms
        self.store = attach(self.heap, create=True, clock=self.clock)
        self.columns = {0: pa.field("id", pa.int64(), nullable=False)}
        self.columns |= {1: pa.field("a", pa.int64(), nullable=False)}
        self.columns |= {2: pa.field("b", pa.int64())}
        self.named = 2
        self.defaults: Row = {}
        self.rows: dict[int, Row] = {}
        config = {"record.format": self.rng.choice(["parquet", "columns"])}
        config["retention.ms"] = "-1"
        self.store.topics.create("t", schema=self.schema, key=list(key), config=config)
        self.begin()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.columns.values()])

    def begin(self) -> None:
        """Start a query with the columns of now."""
        began = self.store.logs.topic_spec("t").schema
        assert began is not None
        self.began: TopicSchema = began
        self.wanted = dict(self.columns)
        self.planner = self.new_planner()
        self.at = self.planner.initial()
        self.batches: list[tuple[StreamOffset, StreamOffset, range]] = []
        self.seen = 0

    def new_planner(self) -> StreamPlanner:
        """The query's, as a new driver has it."""
        store = attach(self.heap, clock=self.clock)
        options = {"path": "unused", "subscribe": "t", "startingOffsets": "earliest"}
        return StreamPlanner(store, parse_stream(options), self.began)

    def step(self) -> str:
        step = self.rng.choice(STEPS)
        getattr(self, step)()
        self.clock.time_ms += 1000
        return step

    def send(self) -> None:
        offset = self.next_offset
        row = {number: 100 * number + offset for number in self.columns}
        with self.store.producer() as producer:
            producer.send_batch("t", [{self.columns[n].name: value for n, value in row.items()}])
        self.rows[offset] = row

    @property
    def next_offset(self) -> int:
        return len(self.rows)

    def add(self) -> None:
        self.named += 1
        column = pa.field(f"c{self.named}", pa.int64(), nullable=self.rng.random() < 0.5)
        self.columns[self.named] = column
        defaults = {} if column.nullable else {column.name: -self.named}
        self.defaults |= {} if column.nullable else {self.named: -self.named}
        self.store.topics.alter("t", schema=self.schema, defaults=defaults)

    def drop(self) -> None:
        if len(self.columns) > 1:
            del self.columns[self.rng.choice([*self.columns][1:])]
            self.store.topics.alter("t", schema=self.schema)

    def rename(self) -> None:
        number = self.rng.choice([*self.columns])
        before = self.columns[number]
        self.columns[number] = before.with_name(f"{before.name}_")
        self.store.topics.alter("t", rename={before.name: f"{before.name}_"})

    def merge(self) -> None:
        self.store.maintenance.merge("t")

    def purge(self) -> None:
        kept = [offset for offset, row in self.rows.items() if row]
        if self.began.key and kept:
            offset = self.rng.choice(kept)
            self.store.maintenance.purge("t", [{self.columns[0].name: offset}])
            self.rows[offset] = {}

    def vacuum(self) -> None:
        if self.rng.random() < 0.3:
            self.clock.time_ms += 8 * 86_400_000
            self.store.maintain("t")

    def query(self) -> None:
        if self.rng.random() < 0.3:
            self.begin()

    def take_batch(self) -> None:
        end = self.planner.latest(self.at, ALL)
        if end != self.at:
            self.batches.append((self.at, end, range(self.seen, self.next_offset)))
            self.at, self.seen = end, self.next_offset

    def check(
        self, planner: StreamPlanner, start: StreamOffset, end: StreamOffset, of: range
    ) -> None:
        """Compare a batch with what was written, if it can still be known what that was."""
        expected = [
            {self.wanted[n].name: row.get(n, self.defaults.get(n)) for n in self.wanted}
            for offset in of
            if (row := self.rows[offset])
        ]
        columns = scan_columns(None, self.began)
        batches = read_ranges(self.heap, planner.ranges(start, end), columns)
        self.compare(pa.Table.from_batches(batches, schema=columns.schema), expected)
        if not self.began.key:
            return
        feed = change_columns("t", self.wanted_names, self.began)
        changes = planner.changes(start, end)
        assert changes is not None
        rows = pa.Table.from_batches(read_changes(self.heap, changes, feed), schema=feed.schema)
        self.compare(rows.select(self.wanted_names), expected)

    def compare(self, found: pa.Table, expected: Sequence[dict[str, int | None]]) -> None:
        """Each value is what was written, or if its column was dropped null, or its default."""
        dropped = {
            self.wanted[n].name: (None, self.defaults.get(n))
            for n in self.wanted.keys() - self.columns.keys()
        }
        rows = found.to_pylist()
        assert len(rows) == len(expected)
        for row, wanted in zip(rows, expected, strict=True):
            lost = {n: row[n] for n, instead in dropped.items() if row[n] in instead}
            assert row == wanted | lost

    @property
    def wanted_names(self) -> list[str]:
        return [column.name for column in self.wanted.values()]


@pytest.mark.few(1)
@pytest.mark.parametrize("key", [[], ["id"]], ids=["no-key", "key"])
@pytest.mark.parametrize("seed", [*range(3), *more(range(3, 12))])
def test_a_batch_keeps_its_rows_however_the_columns_change(seed: int, key: list[str]) -> None:
    """It is run again, by this driver and a new one, when more was written, merged and purged."""
    world = World(seed, key)
    for _ in range(40):
        world.step()
        world.take_batch()
        for batch in world.batches:
            for planner in (world.planner, world.new_planner()):
                world.check(planner, *batch)
