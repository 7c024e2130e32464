"""SQL: temporary views that are read, and written to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.spark_helpers import data_files, fill, placed_files, stored
from txnlog import Store


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics in (2 partitions) with 10 numbers, and out."""
    store.topics.create("in", partitions=2)
    store.topics.create("out")
    fill(store, "in", 0, 10)
    return store


def _view(spark: SparkSession, store: Store, name: str, options: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {name} USING txnlog "
        f"OPTIONS (path '{store.url}', {options})"
    )


def test_views_are_read_and_inserted_into(spark: SparkSession, topics: Store) -> None:
    """A whole ETL in SQL: a view of a topic is read, and rows are inserted into another's."""
    _view(spark, topics, "input", "subscribe 'in', startingOffsets 'earliest'")
    _view(spark, topics, "output", "subscribe 'out'")
    spark.sql(
        "INSERT INTO output (key, value) "
        "SELECT key, value FROM input WHERE CAST(CAST(value AS STRING) AS INT) >= 5"
    )
    assert stored(topics, "out") == [5, 6, 7, 8, 9]
    record = topics.scan("out").to_arrow().slice(0, 1).to_pylist()[0]
    assert record["key"] == record["value"]
    assert record["timestamp"].year > 2020


def test_a_view_is_pinned_when_it_is_made(spark: SparkSession, topics: Store) -> None:
    """Later records show in a recreated view."""
    _view(spark, topics, "input", "subscribe 'in'")
    fill(topics, "in", 10, 12)
    assert spark.sql("SELECT * FROM input").count() == 10
    _view(spark, topics, "input", "subscribe 'in'")
    assert spark.sql("SELECT * FROM input").count() == 12


@pytest.mark.more
def test_a_view_of_several_topics_takes_the_topic_from_the_row(
    spark: SparkSession, topics: Store
) -> None:
    """INSERT fans out by the column topic, in one transaction; without one it is refused."""
    _view(spark, topics, "both", "subscribe 'in,out'")
    insert = "INSERT INTO both (topic, value) SELECT topic, CAST(value AS BINARY) FROM VALUES "
    spark.sql(insert + "('in', '100'), ('out', '200') AS rows(topic, value)")
    assert stored(topics, "in")[-1] == 100
    assert stored(topics, "out") == [200]
    with pytest.raises(PySparkException, match="column 'topic' is null"):
        spark.sql("INSERT INTO both (value) SELECT CAST('300' AS BINARY)")
    assert stored(topics, "out") == [200]


def test_tables_are_refused_with_the_way_out(spark: SparkSession, topics: Store) -> None:
    """CREATE TABLE would lose its options, so it says what to use instead."""
    with pytest.raises(PySparkException, match=r"option path is missing.*CREATE TEMPORARY VIEW"):
        spark.sql(
            f"CREATE TABLE kept USING txnlog OPTIONS (path '{topics.url}', topic 'out') "
            "AS SELECT 'x' AS value"
        )
    spark.sql("DROP TABLE IF EXISTS kept")
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING txnlog OPTIONS (path '{topics.url}', subscribe 'in')")


@pytest.mark.parametrize(
    "how",
    ["saveAsTable", *(pytest.param(how, marks=pytest.mark.more) for how in ("create", "sql"))],
)
def test_tables_of_the_catalog_are_refused_before_anything_is_written(
    spark: SparkSession, topics: Store, how: str
) -> None:
    """Spark would lose their options: no row is written, no file stays, and there is no table."""
    frame = spark.range(0, 5, 1, 1).selectExpr("string(id) AS value")
    options = {"path": topics.url, "topic": "out"}
    writer = frame.write.format("txnlog").options(**options).mode("append")
    make: dict[str, Callable[[], object]] = {
        "saveAsTable": partial(writer.saveAsTable, "t"),
        "create": frame.writeTo("t").using("txnlog").options(**options).create,
        "sql": partial(spark.sql, "CREATE TABLE t USING txnlog AS SELECT '1' AS value"),
    }
    with pytest.raises(PySparkException) as caught:
        make[how]()
    # What a task says comes behind where it was said: the last line is what to do.
    last = str(caught.value).rstrip().splitlines()[-1]
    assert ("saveAsTable(), writeTo(...).create()" in last) == (how != "sql")
    assert "CREATE TEMPORARY VIEW" in (last if how != "sql" else str(caught.value))
    assert stored(topics, "out") == []
    assert data_files(topics) == placed_files(topics)
    assert not spark.catalog.tableExists("t")


@pytest.mark.more
def test_what_is_no_table_is_written_however_it_is_run(spark: SparkSession, topics: Store) -> None:
    """Statements that run other statements make no table."""
    _view(spark, topics, "output", "subscribe 'out'")
    insert = "INSERT INTO output (value) VALUES (CAST('1' AS BINARY))"
    spark.sql(f'EXECUTE IMMEDIATE "{insert}"')
    spark.sql(f"BEGIN FOR SELECT id FROM range(2) DO {insert}; END FOR; END")
    assert stored(topics, "out") == [1, 1, 1]
