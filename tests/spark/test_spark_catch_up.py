"""catch_up(): a step in transactions until the group has read everything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.spark.spark_helpers import data_files, fill, placed_files, stored
from txnlog import Store, TopicPartition
from txnlog.clock import SystemClock
from txnlog.errors import CommitFailed, ConcurrentTransactions, InvalidOption
from txnlog.spark import CaughtUp, SparkTransaction, catch_up
from txnlog.state.group import OffsetCommit
from txnlog.storage import open_storage
from txnlog.store import attach
from txnlog.write.coordinator import Coordinator


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics in (2 partitions), out and counts; 100 numbers are in ``in``."""
    for topic, partitions in (("in", 2), ("out", 1), ("counts", 1)):
        store.topics.create(topic, partitions=partitions)
    fill(store, "in", 0, 100)
    return store


def copy_and_count(txn: SparkTransaction) -> None:
    """Copy what is new, and its number, which is a row also if nothing is new."""
    new = txn.read("in")
    txn.write(new.drop("partition"), topic="out")
    txn.write(new.agg(sf.count("*").cast("string").alias("value")), topic="counts")


@pytest.mark.more
def test_it_goes_on_until_nothing_is_new(spark: SparkSession, topics: Store) -> None:
    """All records once; the last step, which found nothing, leaves no record and no file."""
    names: dict[str, Any] = {"transactional_id": "etl", "group_id": "g"}
    done = catch_up(spark, topics, copy_and_count, max_records=40, **names)
    assert done == CaughtUp(3, 100, 103)
    assert stored(topics, "out") == list(range(100))
    assert stored(topics, "counts") == [20, 40, 40]
    assert data_files(topics) == placed_files(topics)
    assert topics.groups.describe("g").lag == 0
    assert catch_up(spark, topics, copy_and_count, **names) == CaughtUp(0, 0, 0)


@pytest.mark.parametrize(
    "start",
    [
        {"starting_offsets": "earliest"},
        pytest.param(
            {"options": {"startingTimestamp": 0, "includeHeaders": True}}, marks=pytest.mark.slow
        ),
    ],
    ids=["starting_offsets", "startingTimestamp"],
)
def test_a_step_that_starts_where_it_likes_is_refused(
    spark: SparkSession, topics: Store, start: dict[str, Any]
) -> None:
    """No endless loop that copies the same records again and again."""

    def again(txn: SparkTransaction) -> None:
        txn.write(txn.read("in", **start).drop("partition"), topic="out")

    names: dict[str, Any] = {"transactional_id": "etl", "group_id": "g"}
    with pytest.raises(InvalidOption, match=r"groups\.reset_offsets"):
        catch_up(spark, topics, again, max_transactions=3, **names)
    assert stored(topics, "out") == []


def test_aborted_records_at_the_end_do_not_keep_the_group_behind(
    spark: SparkSession, topics: Store
) -> None:
    """Offsets move over what was aborted, so that the lag reaches zero."""
    names: dict[str, Any] = {"transactional_id": "etl", "group_id": "g"}
    catch_up(spark, topics, copy_and_count, max_transactions=1, **names)
    producer = topics.producer(transactional_id="gives-up")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("in", value=b"never", partition=0)
    producer.flush()
    producer.abort_transaction()
    assert topics.groups.describe("g").lag == 1
    assert catch_up(spark, topics, copy_and_count, **names) == CaughtUp(0, 0, 0)
    assert topics.groups.describe("g").lag == 0


def test_a_job_that_was_slower_goes_on_behind_the_other(spark: SparkSession, topics: Store) -> None:
    """What another job of the group commits in between is not done twice, nor an error."""
    meddled: list[bool] = []

    def step(txn: SparkTransaction) -> None:
        new = txn.read("in")
        txn.write(new.drop("partition"), topic="out")
        if not meddled:
            meddled.append(True)
            ends = {TopicPartition("in", p): 10 for p in (0, 1)}
            topics.consumer(group_id="g").commit(ends)

    done = catch_up(spark, topics, step, transactional_id="etl", group_id="g")
    assert done == CaughtUp(1, 80, 80)
    assert len(stored(topics, "out")) == 80


def test_when_every_attempt_was_slower_it_is_an_error(spark: SparkSession, topics: Store) -> None:
    """Nothing was committed, and there is more to read."""
    ends = iter(range(1, 9))

    def step(txn: SparkTransaction) -> None:
        txn.read("in")
        topics.consumer(group_id="g").commit({TopicPartition("in", 0): next(ends)})

    names: dict[str, Any] = {"transactional_id": "etl", "group_id": "g"}
    with pytest.raises(CommitFailed):
        catch_up(spark, topics, step, max_transactions=2, **names)
    assert next(ends) == 3


class Pausing(SystemClock):
    """Pauses take no time; ``then`` happens in the last of so many."""

    def __init__(self, then: Callable[[], object], after: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._then, self._after = then, after

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self._after:
            self._then()


def test_a_group_that_another_job_holds_is_waited_for(spark: SparkSession, topics: Store) -> None:
    """With pauses that grow, since each attempt is a whole job; these count as attempts."""
    other = Coordinator(topics.logs, "other", 60_000)
    other.initialize()
    other.place({}, {"g": [OffsetCommit("in", 0, 1)]})
    clock = Pausing(other.abort, after=3)
    store = attach(topics.storage, clock=clock)
    names: dict[str, Any] = {"transactional_id": "etl", "group_id": "g"}
    steps: list[int] = []

    def step(txn: SparkTransaction) -> None:
        txn.read("in")
        steps.append(1)

    with pytest.raises(ConcurrentTransactions):  # nothing would tell that there is more to read
        catch_up(spark, store, step, max_transactions=2, **names)
    assert (len(steps), clock.pauses) == (2, [0.1, 0.1])
    assert catch_up(spark, store, step, max_transactions=2, **names) == CaughtUp(1, 100, 0)
    assert (len(steps), clock.pauses) == (4, [0.1, 0.1, 0.1])


def test_a_group_that_is_held_for_ever_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """After as long as the store lets a transaction take."""
    clock = Pausing(lambda: None, after=0)
    config = {"transaction.max.timeout.ms": 60_000}
    store = attach(open_storage(str(tmp_path / "s")), create=True, config=config, clock=clock)
    store.topics.create("in")
    fill(store, "in", 0, 5)
    other = Coordinator(store.logs, "other", 60_000)
    other.initialize()
    other.place({}, {"g": [OffsetCommit("in", 0, 1)]})
    steps: list[int] = []

    def step(txn: SparkTransaction) -> None:
        txn.read("in")
        steps.append(1)

    with pytest.raises(ConcurrentTransactions):
        catch_up(spark, store, step, transactional_id="etl", group_id="g")
    assert clock.pauses[:5] == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.8])
    assert 60 <= sum(clock.pauses) < 70
    assert len(steps) == len(clock.pauses) + 1


def test_a_step_that_reads_nothing_is_refused(spark: SparkSession, topics: Store) -> None:
    """It would never end; nothing of it is committed."""
    rows = spark.range(1).selectExpr("'x' as value")
    with pytest.raises(InvalidOption, match=r"did not call txn\.read"):
        catch_up(
            spark,
            topics,
            lambda txn: txn.write(rows, topic="out"),
            transactional_id="etl",
            group_id="g",
        )
    assert topics.topics.describe("out").partitions[0].end_offset == 0
    with pytest.raises(InvalidOption, match="max_transactions"):
        catch_up(
            spark,
            topics,
            copy_and_count,
            transactional_id="etl",
            group_id="g",
            max_transactions=0,
        )
