"""What the driver has pinned is the same when another process of Spark's resolves it, later."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.read.keyed_worlds import World, tuples
from tests.support.tiers import more
from txnlog.errors import UnknownTopicOrPartition
from txnlog.names import TopicPartition
from txnlog.read.plan import SegmentRange
from txnlog.read.scan_reader import read_ranges
from txnlog.spark import transaction
from txnlog.spark.batch.pinned_read import PinnedRead, pin_read
from txnlog.spark.batch.read_frame import pin_options
from txnlog.spark.options.read_options import parse_read
from txnlog.store import Store, attach


@dataclass(frozen=True)
class Pinned:
    """A read as the driver has pinned it, the options of the other process, and the rows."""

    read: PinnedRead
    options: dict[str, str]
    rows: list[tuple[object, ...]]


def rows_of(
    store: Store, read: PinnedRead, options: dict[str, str], ranges: tuple[SegmentRange, ...]
) -> list[tuple[object, ...]]:
    columns = parse_read(options).columns.of(read.schema)
    return [row for batch in read_ranges(store.storage, ranges, columns) for row in tuples(batch)]


def pin(world: World, given: dict[str, str] | None = None) -> Pinned:
    """At any level, all of it or a part: some records, or some of the ranges."""
    rng = world.rng
    options = {
        "path": "unused",
        "subscribe": "t",
        "columns": ",".join(world.columns),
        "isolation.level": rng.choice(["read_committed", "snapshot", "snapshot"]),
        **(given or {}),
    }
    if rng.random() < 0.2:
        options["maxRecords"] = str(rng.randrange(1, 20))
    read = pin_read(world.store, parse_read(options))
    only = None
    if rng.random() < 0.3:
        only = tuple(part for part in read.ranges if rng.random() < 0.5)
    ranges = read.ranges if only is None else only
    rows = rows_of(world.store, read, options, ranges)
    return Pinned(read, pin_options(options, read, only), rows)


@pytest.mark.few(6)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [*range(6), *more(range(6, 100))])
def test_what_was_pinned_is_found_again(seed: int, is_typed: bool) -> None:
    """Whatever has happened since: no record more, and none less; with the columns of then."""
    rng = random.Random(seed)
    world = World(rng, is_typed, stray_rate=rng.choice([0, 0.2]))
    pinned: list[Pinned] = []
    for _ in range(rng.randrange(10, 30)):
        if world.step() == "trim":
            pinned.clear()  # some of their records are gone
        if world.holder is not None or rng.random() < 0.3:
            pinned.append(pin(world))
    if world.holder is not None:
        world.holder.commit_transaction()
    world.store.topics.alter("t", partitions=world.partitions + 1)
    if is_typed:
        more_columns = pa.schema([("name", pa.string()), ("n", pa.int32()), ("w", pa.int64())])
        world.store.topics.alter("t", rename={"v": "w"})
        more_columns = more_columns.append(pa.field("x", pa.int64()))
        world.store.topics.alter("t", schema=more_columns, defaults={"x": 1})
    other = attach(world.store.storage, clock=world.clock)
    for one in pinned:
        again = pin_read(other, parse_read(one.options))
        assert again.offsets == one.read.offsets
        assert again.schema == one.read.schema
        assert rows_of(other, again, one.options, again.ranges) == one.rows


def trim_anywhere(world: World) -> None:
    snapshot = world.store.snapshot("t")
    ends = snapshot.end_offsets("t")
    starts = snapshot.beginning_offsets("t")
    before = {TopicPartition("t", p): world.rng.randint(starts[p], ends[p]) for p in ends}
    world.store.topics.delete_records(before)


@pytest.mark.few(6)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [*range(6), *more(range(6, 100))])
def test_what_is_left_of_what_was_pinned_is_found(seed: int, is_typed: bool) -> None:
    """With ``failOnDataLoss=false``, wherever the topic begins now: also behind a pinned end."""
    rng = random.Random(seed)
    world = World(rng, is_typed, stray_rate=rng.choice([0, 0.2]))
    going_on = {"failOnDataLoss": "false"}
    past: list[tuple[dict[str, str], list[tuple[Any, ...]]]] = []
    for _ in range(rng.randrange(10, 30)):
        world.step()
        if rng.random() < 0.4:
            one = pin(world, going_on)
            past.append((one.options, one.rows))
        if rng.random() < 0.4:
            snapshot = world.store.snapshot("t")
            options = {"path": "unused", "subscribe": "t", "columns": ",".join(world.columns)}
            rows = tuples(snapshot.scan("t", columns=world.columns).to_arrow())
            past.append((options | going_on | {"atToken": snapshot.token()}, rows))
    if world.holder is not None:
        world.holder.commit_transaction()
    trim_anywhere(world)
    starts = world.store.snapshot("t").beginning_offsets("t")
    other = attach(world.store.storage, clock=world.clock)

    def rows_by(options: dict[str, str]) -> list[tuple[object, ...]]:
        read = pin_read(other, parse_read(options))
        return rows_of(other, read, options, read.ranges)

    for options, rows in past:
        left = [row for row in rows if row[1] >= starts[row[0]]]
        assert rows_by(options) == left
        if "atToken" in options and rows:
            time_ms = rng.choice(rows)[2]
            later = [[row for row in left if row[0] == p and row[2] >= time_ms] for p in starts]
            first = {p: rows[0][1] for p, rows in enumerate(later) if rows}
            from_then = {"startingTimestamp": str(time_ms)}
            from_then["startingOffsetsByTimestampStrategy"] = "latest"
            assert rows_by(options | from_then) == [
                row for row in left if row[0] in first and row[1] >= first[row[0]]
            ]
            assert rows_by(options | {"endingTimestamp": str(time_ms)}) == [
                row for row in left if row[0] not in first or row[1] < first[row[0]]
            ]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_topic_that_is_gone_is_said_to_be(again: bool) -> None:
    """By an error that does not speak of tokens, as nobody has given one."""
    world = World(random.Random(1), True, stray_rate=0)
    options = pin(world).options
    world.store.topics.delete("t")
    if again:
        world.store.topics.create("t", partitions=2)
    with pytest.raises(UnknownTopicOrPartition, match="since this DataFrame was pinned"):
        pin_read(attach(world.store.storage, clock=world.clock), parse_read(options))


@pytest.mark.few(1)
@pytest.mark.parametrize("native", [None, False], ids=["mixed", "source"])
def test_a_frame_shows_nothing_that_came_while_it_was_made(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch, *, native: bool | None
) -> None:
    """Spark's own part has the same columns as the data source's, and both the records of then."""
    monkeypatch.setattr("txnlog.segments.writer.PARQUET_FROM_BYTES", 2_000)
    store.topics.create("t", schema=pa.schema([("id", pa.int64()), ("x", pa.string())]))
    holder = store.producer(transactional_id="holder")
    holder.init_transactions()
    holder.begin_transaction()
    holder.send("t", {"id": -1, "x": "held"})
    holder.flush()
    with store.producer() as producer:
        numbers = pa.table({"id": [*range(1, 400)], "x": [str(n) * 9 for n in range(1, 400)]})
        producer.send_batch("t", numbers)
        producer.flush()
        producer.send("t", {"id": 0, "x": "0"})
    ids = pa.schema([("id", pa.int64())])
    changes: list[Callable[[], object]] = [
        holder.commit_transaction,
        lambda: store.topics.alter("t", rename={"x": "y"}),
        lambda: store.topics.alter("t", partitions=2),
        lambda: store.topics.alter("t", schema=ids.append(pa.field("z", pa.string()))),
    ]

    def pin_and_change(*given: Any) -> PinnedRead:
        pinned = pin_read(*given)
        changes.pop(0)()
        return pinned

    monkeypatch.setattr("txnlog.spark.transactions.transaction.pin_read", pin_and_change)
    with transaction(spark, store, transactional_id="etl") as txn:
        for column, count in (("x", 400), ("x", 401), ("y", 401), ("y", 401)):
            frame = txn.read_whole("t", native=native)
            assert frame.columns == ["id", column]
            assert frame.where(f"{column} = '0' or id = -1").count() == count - 399
            assert frame.where(f"{column} is not null").count() == count
