"""Children of a fork: a ``transaction(...)`` stays with the process that entered its block."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.spark_helpers import numbers, stored
from tests.support.runtime.forked_child import in_child
from txnlog import Store
from txnlog.spark import transaction

# Spark's gateway has threads; no child here touches what they hold.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def files(store: Store) -> set[Path]:
    return {path for path in Path(store.url).rglob("*") if path.is_file()}


def test_a_child_takes_no_part_in_its_parents_transaction(
    spark: SparkSession, store: Store
) -> None:
    """Whatever it calls is refused, and its parent commits what was written."""
    store.topics.create("t")
    with transaction(spark, store.url, transactional_id="p", group_id="g") as txn:
        txn.write(numbers(spark, 0, 5), topic="t")
        txn.send("t", value="5")
        before = files(store)
        calls = [
            lambda: txn.read("t"),
            lambda: txn.write(numbers(spark, 5, 10), topic="t"),
            lambda: txn.send("t", value="6"),
            lambda: txn.send_batch("t", pa.record_batch({"value": [b"6"]})),
            txn.discard_writes,
        ]
        refused = f"ForkedProducer: this transaction belongs to process {os.getpid()}"
        for call in calls:
            told = in_child(call)
            assert told.startswith(refused)
            assert "make a new transaction in the child" in told
        assert files(store) == before
    assert stored(store, "t") == list(range(6))


def test_a_child_that_leaves_the_block_does_not_end_it(spark: SparkSession, store: Store) -> None:
    """By an error, which stays the block's own, or by its end: what was uploaded stays."""
    store.topics.create("t")
    with transaction(spark, store.url, transactional_id="p") as txn:
        txn.write(numbers(spark, 0, 5), topic="t")
        before = files(store)
        error = ZeroDivisionError()
        assert in_child(lambda: txn.__exit__(type(error), error, None)) == "None"
        assert in_child(lambda: txn.__exit__(None, None, None)).startswith("ForkedProducer")
        assert files(store) == before
    assert stored(store, "t") == list(range(5))


def test_a_block_is_entered_by_the_process_that_made_it(spark: SparkSession, store: Store) -> None:
    """A child takes no transactional id over for its parent."""
    store.topics.create("t")
    txn = transaction(spark, store.url, transactional_id="p")
    assert in_child(txn.__enter__).startswith("ForkedProducer")
    with txn:
        txn.send("t", value="1")
    assert stored(store, "t") == [1]
