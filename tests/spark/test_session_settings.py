"""What a session's settings change in Spark's SQL changes nothing in what is read and written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import txnlog
from tests.support.admin.compacted_topics import compact
from txnlog import Store
from txnlog.spark import read, shuffle_by_partition, transaction
from txnlog.spark.batch import latest, planned_files

SETTINGS = {
    "timestamps-ntz": ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
    "names-are-patterns": ("spark.sql.parser.quotedRegexColumnNames", "true"),
    "backslashes-stay": ("spark.sql.parser.escapedStringLiterals", "true"),
    "double-quotes-quote": ("spark.sql.ansi.doubleQuotedIdentifiers", "true"),
    "keywords-are-reserved": ("spark.sql.ansi.enforceReservedKeywords", "true"),
    "not-ansi": ("spark.sql.ansi.enabled", "false"),
    "case-counts": ("spark.sql.caseSensitive", "true"),
    "another-zone": ("spark.sql.session.timeZone", "Pacific/Apia"),
    "few-tasks": ("spark.sql.files.maxPartitionNum", "2"),
    "rows-not-columns": ("spark.sql.parquet.enableVectorizedReader", "false"),
}
_EVERYDAY = ("timestamps-ntz", "names-are-patterns", "few-tasks")
CASES = [
    pytest.param(setting, id=name, marks=[] if name in _EVERYDAY else pytest.mark.more)
    for name, setting in SETTINGS.items()
]
MOMENT = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)
WALL = dt.datetime(2026, 3, 29, 2, 30)  # noqa: DTZ001 - a wall clock
NESTED = pa.struct([("at", pa.timestamp("us", "UTC")), ("x y", pa.int64())])
KEY = ("a", "d.e")
OLD = pa.schema([("a", pa.string()), ("b c", pa.int64()), ("d.e", pa.string())])
NEW = pa.schema(
    [
        *OLD,
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("price, net", pa.decimal128(9, 2)),
        ("te`xt", pa.string()),
        ("ats", pa.list_(NESTED)),
        ("Content", pa.string()),
        ("select", pa.int32()),
    ]
)
DEFAULTS = {"at": MOMENT, "wall": WALL, "price, net": Decimal("1.50"), "te`xt": 'a\\n"b"'}


def rows(start: int, stop: int, schema: pa.Schema = OLD) -> pa.Table:
    """Rows in which each key occurs twice or more often."""
    texts = [str(number % 7) for number in range(start, stop)]
    columns = {"a": texts, "b c": [*range(start, stop)], "d.e": ["x"] * len(texts)}
    return pa.table({name: columns[name] for name in schema.names if name in columns})


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Topics with names of each kind: keyed ones whose older files lack columns, and a plain one.

    ``compacted`` has a part in which each key occurs once.
    """
    store = txnlog.open(str(tmp_path_factory.mktemp("settings") / "store"), create=True)
    for topic in ("typed", "compacted"):
        config = {"cleanup.policy": "compact"} if topic == "compacted" else {}
        store.topics.create(topic, partitions=2, schema=OLD, key=KEY, config=config)
        with store.producer() as producer:
            producer.send_batch(topic, rows(0, 20))
        if topic == "compacted":
            compact(store, topic)
        store.topics.alter(topic, schema=key_not_null(NEW), defaults=DEFAULTS)
        with store.producer() as producer:
            producer.send_batch(topic, rows(20, 40))
    store.topics.create("merged", schema=OLD, key=KEY)
    store.topics.create("plain", partitions=2)
    with store.producer() as producer:
        for number in range(20):
            producer.send("plain", str(number), key=str(number % 7))
    return store


def key_not_null(schema: pa.Schema) -> pa.Schema:
    """The schema as a topic has it: its key is never null."""
    fields = [f.with_nullable(False) if f.name in KEY else f for f in schema]
    return pa.schema(fields)


def everything(spark: SparkSession, store: Store, *, native: bool) -> DataFrame:
    names = [*NEW.names, "_offset", "_partition", "_timestamp"]
    return read(spark, store, "typed", native=native, columns=names)


def merged(spark: SparkSession, store: Store) -> DataFrame:
    """What merges and a deletion leave in a topic."""
    frame = spark.createDataFrame(
        [("k", 1, "l"), ("k", 2, "m"), ("k", 3, "n")], "a string, `b c` bigint, `d.e` string"
    )
    for rows in (frame, frame.limit(1)):
        with transaction(spark, store, transactional_id="e") as txn:
            txn.merge(rows, topic="merged")
    with transaction(spark, store, transactional_id="e") as txn:
        txn.delete_keys(frame.limit(1), topic="merged")
    return read(spark, store, "merged", latest=True)


WAYS: dict[str, Callable[[SparkSession, Store], DataFrame]] = {
    "native": lambda spark, store: everything(spark, store, native=True),
    "source": lambda spark, store: everything(spark, store, native=False),
    "latest": lambda spark, store: read(spark, store, "typed", latest=True),
    "latest-compacted": lambda spark, store: read(spark, store, "compacted", latest=True),
    "latest-plain": lambda spark, store: read(spark, store, "plain", latest=True),
    "merge": merged,
    "shuffle": lambda spark, store: shuffle_by_partition(
        read(spark, store, "typed").drop("_partition"), store, "typed"
    ),
}


@pytest.fixture
def setting(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """One of the settings; whether files can be read natively is asked anew under it."""
    name, value = request.param
    before = spark.conf.get(name, None)
    planned_files._answers.clear()
    spark.conf.set(name, value)
    yield
    planned_files._answers.clear()
    spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def found(frame: DataFrame) -> list[Any]:
    """The types and rows as Arrow has them: no zone of the session shifts them."""
    table = frame.toArrow()
    rows = [repr(_plain(row)) for row in table.to_pylist()]
    return [[(f.name, f.dataType.simpleString()) for f in frame.schema], sorted(rows)]


def _plain(value: Any) -> Any:
    """A moment in UTC, whichever zone the session's Arrow has given it."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [*map(_plain, value)]
    is_moment = isinstance(value, dt.datetime) and value.tzinfo is not None
    return value.astimezone(dt.UTC) if is_moment else value


@pytest.fixture(scope="module")
def expected(spark: SparkSession, topics: Store, interpreted: None) -> dict[str, list[Any]]:
    """What each way finds under the settings of all tests."""
    return {name: found(way(spark, topics)) for name, way in WAYS.items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("few_records", [latest._FEW_RECORDS, 0], ids=["few", "many"])
@pytest.mark.parametrize("setting", CASES, indirect=True)
@pytest.mark.usefixtures("setting")
def test_no_setting_changes_what_is_found(
    spark: SparkSession,
    topics: Store,
    expected: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    few_records: int,
) -> None:
    """``few_records`` are aggregated at once; of more the newest are looked up."""
    monkeypatch.setattr(latest, "_FEW_RECORDS", few_records)
    ways = {name: way for name, way in WAYS.items() if few_records or "latest" in name}
    for name, way in ways.items():
        assert found(way(spark, topics)) == expected[name], name
