"""``txn.merge`` and ``txn.delete_keys``: a typed topic is changed by its key."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from txnlog import Store
from txnlog.errors import InvalidOption, InvalidRecord, InvalidTxnState
from txnlog.spark import transaction

SCHEMA = pa.schema([("a.b", pa.string()), ("N", pa.int64()), ("v", pa.int32())])


def make(store: Store) -> None:
    """Rows of six keys, in three partitions."""
    store.topics.create("t", partitions=3, schema=SCHEMA, key=["a.b", "N"])
    with store.producer() as producer:
        rows = [{"a.b": name, "N": n, "v": 10 + n} for name in ("x", "y") for n in range(3)]
        producer.send_batch("t", rows)


def newest(store: Store) -> dict[tuple[str, int], Any]:
    rows = store.scan("t", latest=True).to_arrow().to_pylist()
    return {(row["a.b"], row["N"]): row["v"] for row in rows}


def test_rows_are_merged_and_keys_deleted_in_one_commit(spark: SparkSession, store: Store) -> None:
    """Names may differ in case; a key that is there, one that is not, a null, one that deletes."""
    make(store)
    before = newest(store)
    changed = spark.createDataFrame(
        [("x", 0, 20, False), ("new", 7, 21, False), ("x", 1, None, None), ("y", 0, 5, True)],
        "`A.b` string, n bigint, V int, _deleted boolean",
    )
    gone = spark.createDataFrame(
        [(2, "kept out", "y"), (2, "again", "y"), (9, "never was", "z")],
        "N bigint, other string, `a.b` string",
    )
    with transaction(spark, store, transactional_id="etl") as txn:
        txn.merge(changed, topic="t")
        txn.delete_keys(gone, topic="t")
        assert newest(store) == before
    assert newest(store) == {
        ("x", 0): 20,
        ("x", 1): None,
        ("x", 2): 12,
        ("y", 1): 11,
        ("new", 7): 21,
    }
    places: dict[tuple[str, int], set[int]] = {}
    for row in store.scan("t", columns=["a.b", "N", "_partition"]).to_arrow().to_pylist():
        places.setdefault((row["a.b"], row["N"]), set()).add(row["_partition"])
    assert {len(found) for found in places.values()} == {1}, "a key is in two partitions"


@pytest.mark.few(1)
@pytest.mark.parametrize("collation", ["UTF8_LCASE", "UTF8_BINARY_RTRIM", "UNICODE_CI"])
def test_keys_are_told_apart_by_their_bytes(
    spark: SparkSession, store: Store, collation: str
) -> None:
    """As the topic does, whatever collation a frame's column has."""
    make(store)
    texts = ["a", "A", "a ", "\u00e1"]
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    frame = rows.selectExpr(f"text COLLATE {collation} AS `A.b`", "1L AS n", "5 AS v")
    with transaction(spark, store, transactional_id="etl") as txn:
        txn.merge(frame, topic="t")
    found = {name for name, n in newest(store) if n == 1}
    assert found >= {*texts}
    with transaction(spark, store, transactional_id="etl") as txn:
        txn.delete_keys(frame.limit(1), topic="t")
    assert {name for name, n in newest(store) if n == 1} == found - {"a"}
    with (
        pytest.raises(PySparkException, match="several rows have the key"),
        transaction(spark, store, transactional_id="etl") as txn,
    ):
        txn.merge(frame.union(frame.limit(1)), topic="t")


def test_two_rows_of_one_key_are_refused(spark: SparkSession, store: Store) -> None:
    """In whichever parts of the frame they are; nothing is committed then."""
    make(store)
    before = newest(store)
    once = spark.createDataFrame([("x", 1, 5), ("y", 1, 6)], "`a.b` string, N bigint, v int")
    twice = once.union(once.where("v = 6").selectExpr("`a.b`", "N", "7 AS v"))
    said = r"""several rows have the key \{"a.b":"y","N":1\}"""

    def merge_both() -> None:
        with transaction(spark, store, transactional_id="etl") as txn:
            txn.merge(once, topic="t")
            txn.merge(twice, topic="t")

    with pytest.raises(PySparkException, match=said):
        merge_both()
    assert newest(store) == before
    assert store.scan("t").record_count == len(before)


def test_several_rows_without_a_key_are_no_rows_of_one_key(
    spark: SparkSession, store: Store
) -> None:
    """A part of it that is null is what is wrong with each of them."""
    make(store)
    frame = spark.createDataFrame([("x", None), ("x", None)], "`a.b` string, N bigint")
    with (
        pytest.raises(PySparkException, match=r"column 'N'.*null"),
        transaction(spark, store, transactional_id="etl") as txn,
    ):
        txn.merge(frame, topic="t")


def test_what_has_no_key_is_refused_before_the_job(spark: SparkSession, store: Store) -> None:
    make(store)
    store.topics.create("plain")
    store.topics.create("no-key", schema=SCHEMA)
    row = spark.range(1).selectExpr("'x' AS `a.b`", "1L AS N", "2 AS v")
    for topic, frame, error, said in (
        ("plain", row, InvalidOption, "topic 'plain' has no schema"),
        ("no-key", row, InvalidOption, "topic 'no-key' has a schema without a key"),
        ("t", row.drop("N"), InvalidRecord, "is a.b, N; the frame has no column 'N'"),
        ("t", row.selectExpr("*", "3L AS N"), InvalidRecord, "has 2 columns 'N'"),
        ("t", row.selectExpr("*", "0 AS _partition"), InvalidOption, "a column '_partition'"),
    ):
        for call in ("merge", "delete_keys"):
            if call == "delete_keys" and "_partition" in said:
                continue  # its other columns are not looked at
            with (
                pytest.raises(error, match=re.escape(said)) as caught,
                transaction(spark, store, transactional_id="etl") as txn,
            ):
                getattr(txn, call)(frame, topic)
            assert str(caught.value).startswith(f"{call}(): ")
    with pytest.raises(InvalidTxnState, match=r"merge\(\): the transaction is ended"):
        txn.merge(row, "t")


def test_what_was_sent_before_is_refused(spark: SparkSession, store: Store) -> None:
    """Its records would follow, and an older row be the newest of its key; sent later they may."""
    make(store)
    store.topics.create("other", schema=SCHEMA, key=["a.b", "N"])
    before = newest(store)
    row = spark.range(1).selectExpr("'x' AS `a.b`", "1L AS N", "20 AS v")
    sent = [{"a.b": "x", "N": 1, "v": 30}]

    def send_first(call: str) -> None:
        with transaction(spark, store, transactional_id="etl") as txn:
            txn.send_batch("t", sent)
            getattr(txn, call)(row, "t")

    for call in ("merge", "delete_keys"):
        said = rf"^{call}\(\): topic 't': 1 records of send\(\) .* wait for it"
        with pytest.raises(InvalidOption, match=said):
            send_first(call)
        assert newest(store) == before
    with transaction(spark, store, transactional_id="etl") as txn:
        txn.send_batch("t", sent)
        txn.discard_writes()
        txn.send_batch("other", sent)
        txn.merge(row, "t")
        txn.send_batch("t", sent)
    assert newest(store) == {**before, ("x", 1): 30}
