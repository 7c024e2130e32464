"""Constraints of typed topics: checked by the tasks of each way to write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from txnlog import Store
from txnlog.errors import TxnlogError
from txnlog.spark import transaction


def test_each_way_to_write_checks_them(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    config = {"constraint.positive": "amount > 0"}
    store.topics.create("pay", schema=columns, key=["id"], config=config)
    store.topics.create("from", schema=columns, key=["id"])
    good = spark.createDataFrame([(1, 2.0), (2, None)], "id bigint, amount double")
    bad = spark.createDataFrame([(3, -1.0)], "id bigint, amount double")
    refused = pytest.raises((PySparkException, TxnlogError), match="violates constraint 'positive'")
    with refused:
        bad.write.format("txnlog").options(path=store.url, topic="pay").mode("append").save()
    with refused, transaction(spark, store, transactional_id="t") as txn:
        txn.write(bad, topic="pay")
    with refused, transaction(spark, store, transactional_id="t") as txn:
        txn.merge(bad, topic="pay")
    with transaction(spark, store, transactional_id="t") as txn:
        txn.merge(good, topic="pay")
        txn.write(bad, topic="from")
    stream = spark.readStream.format("txnlog").options(path=store.url, subscribe="from")
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("txnlog")
        .options(path=store.url, topic="pay", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with refused:
        query.awaitTermination()
    assert sorted(store.scan("pay").to_arrow()["id"].to_pylist()) == [1, 2]
