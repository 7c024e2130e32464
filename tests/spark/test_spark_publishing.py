"""Tables that ``transaction(...)`` and ``maintain`` of Spark publish, as their topics say."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from txnlog import Store
from txnlog.results import MaintenanceFailure, TablePublication
from txnlog.spark import maintain, transaction

SCHEMA = pa.schema([("id", pa.int64())])


def ids(folder: Path) -> list[int]:
    found = pa.table(DeltaTable(str(folder)).scan(columns=["id"]))
    return sorted(found["id"].to_pylist())


def test_a_transaction_publishes_what_it_has_written(
    spark: SparkSession, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind its commit: a table that cannot be renewed takes nothing back."""
    tables = tmp_path / "tables"
    for topic in ("a", "b", "c", "d"):
        store.topics.create(topic, schema=SCHEMA)
        if topic != "c":
            place = tables if topic != "b" else tmp_path / "else"
            store.topics.alter(topic, config={"table.publish": f"delta:{place / topic}"})
    with (
        transaction(spark, store, transactional_id="t", publish=f"delta:{tables}") as txn,
        caplog.at_level(logging.WARNING),
    ):
        for topic in ("a", "b", "c"):
            txn.write(spark.range(5), topic=topic)
    assert [(one.topic, one.added_files > 0) for one in txn.result.published] == [("a", True)]
    assert list(txn.result.unpublished) == ["b"]
    assert "none of the places" in str(txn.result.unpublished["b"])
    assert "committed, but topic 'b' was not published" in caplog.text
    assert txn.result.written_records == 15
    assert store.scan("b").to_arrow().num_rows == 5
    assert ids(tables / "a") == [*range(5)]
    assert not (tmp_path / "else").exists()
    with transaction(spark, store, transactional_id="t") as txn:
        txn.write(spark.range(5, 7), topic="a")
    assert (txn.result.published, txn.result.unpublished) == ([], {})
    assert ids(tables / "a") == [*range(5)]
    done = maintain(spark, store, publish=f"delta:{tables}")
    assert "a" in [step.topic for step in done if isinstance(step, TablePublication)]
    assert [step.topic for step in done if isinstance(step, MaintenanceFailure)] == ["b"]
    assert ids(tables / "a") == [*range(7)]
