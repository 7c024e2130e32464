"""The recipes of examples/recipes do what they say, on a sample of the flights."""

from __future__ import annotations

import importlib
import inspect
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.stream_helpers import reads_streams
from txnlog import Store

pytestmark = pytest.mark.more

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLE = 3_000


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Some of the flights."""
    frame: pd.DataFrame = _module("flights_data").load_flights(SAMPLE)
    return frame


@pytest.fixture
def filled(store: Store, flights: pd.DataFrame) -> Store:
    """A store with the topic of the demo, filled in the order of the months as there."""
    store.topics.create("flights", partitions=4)
    with store.producer() as producer:
        for _, month in flights.groupby("month"):
            producer.send_batch("flights", _module("flights_data").to_records(month))
    return store


def _module(name: str) -> ModuleType:
    """A module of the examples, which are no package."""
    for folder in (EXAMPLES, EXAMPLES / "recipes"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return importlib.import_module(name)


def _values(store: Store, topic: str) -> list[dict[str, object]]:
    found: pa.Table = store.scan(topic, columns=["value"]).to_arrow()
    return [json.loads(value) for value in found.column("value").to_pylist()]


def test_backfill_copies_exactly_one_month(
    spark: SparkSession, filled: Store, flights: pd.DataFrame
) -> None:
    """All of February's flights by scheduled hour (UTC), and none of another month."""
    _module("backfill").run(spark, filled.url)
    hours = pd.to_datetime(flights["time_hour"], utc=True)
    expected = flights[(hours >= "2013-02-01") & (hours < "2013-03-01")]
    copied = _values(filled, "february")
    assert len(copied) == len(expected) > 100
    assert {row["time_hour"] for row in copied} == set(expected["time_hour"])


@reads_streams
def test_a_stream_copies_each_long_flight_once(
    spark: SparkSession, filled: Store, flights: pd.DataFrame
) -> None:
    """Run twice, with more flights between, it goes on where it was; its lag is 0."""
    recipe = _module("streaming")
    long = int((flights["distance"] > recipe.MILES).sum())
    for times in (1, 2):
        recipe.run(spark, filled.url)
        found = _values(filled, recipe.LONG_HAUL)
        assert len(found) == times * long > 100
        assert all(cast("int", row["distance"]) > recipe.MILES for row in found)
        assert filled.groups.describe(recipe.LONG_HAUL).lag == 0
        with filled.producer() as producer:
            producer.send_batch("flights", _module("flights_data").to_records(flights))


def test_fan_out_loses_no_flight(spark: SparkSession, filled: Store, flights: pd.DataFrame) -> None:
    """Each flight is in the topic of its airport or a dead letter, once."""
    recipe = _module("fan_out")
    for _ in range(2):
        recipe.run(spark, filled.url)
    departed = flights[flights["dep_time"].notna()]
    for airport in recipe.AIRPORTS:
        found = _values(filled, f"from-{airport}")
        assert {row["origin"] for row in found} == {airport}
        assert len(found) == (departed["origin"] == airport).sum()
    dead = filled.scan(recipe.DEAD_LETTERS, columns=["headers"]).to_arrow().to_pylist()
    assert len(dead) == len(flights) - len(departed) > 0
    assert all(row["headers"] == [{"key": "reason", "value": b"no departure"}] for row in dead)


def test_airlines_are_looked_up_in_every_run(
    spark: SparkSession, filled: Store, flights: pd.DataFrame
) -> None:
    """The second run finds the names that the first one has used, and a name that was added."""
    recipe = _module("enrich")
    recipe.run(spark, filled.url)
    with filled.producer() as producer:
        producer.send(recipe.AIRLINES, "Southwest", "WN")
        producer.send(recipe.AIRLINES, None, "UA")
        producer.send_batch("flights", _module("flights_data").to_records(flights))
    recipe.run(spark, filled.url)
    carriers = flights["carrier"]
    first, second = {*recipe.NAMES}, {*recipe.NAMES, "WN"} - {"UA"}
    named = carriers.isin(first).sum() + carriers.isin(second).sum()
    found = filled.scan(recipe.NAMED, columns=["headers"]).to_arrow().to_pylist()
    assert len(found) == named > len(flights)
    assert {row["headers"][0]["value"].decode() for row in found} == {
        *recipe.NAMES.values(),
        "Southwest",
    }
    assert filled.scan(recipe.DEAD_LETTERS).record_count == 2 * len(flights) - named > 0
    assert {at.topic for at in filled.groups.describe("naming").offsets} == {"flights"}


def test_upserts_are_applied_once_though_the_offsets_were_not_committed(
    spark: SparkSession,
    filled: Store,
    flights: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dying between the table's commit and the group's changes nothing in the table."""
    recipe = _module("upsert_table")
    database = str(tmp_path / "miles.sqlite")
    apply = recipe.apply

    def apply_and_die(*arguments: object) -> None:
        apply(*arguments)
        raise ConnectionError

    monkeypatch.setattr(recipe, "apply", apply_and_die)
    with pytest.raises(ConnectionError):
        recipe.run(spark, filled.url, database)
    monkeypatch.setattr(recipe, "apply", apply)
    assert "miles" not in filled.groups.list()
    recipe.run(spark, filled.url, database)
    assert filled.groups.describe("miles").lag == 0
    with sqlite3.connect(database) as table:
        found = dict(table.execute("SELECT * FROM miles"))
    assert found == flights.groupby("carrier")["distance"].sum().to_dict()


def test_an_upsert_that_another_run_overtakes_changes_nothing(
    spark: SparkSession,
    filled: Store,
    flights: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that goes on after the next one has done its work does not do it again."""
    recipe = _module("upsert_table")
    database = str(tmp_path / "miles.sqlite")
    parsed: Callable[[DataFrame], DataFrame] = recipe.parsed

    def overtaken(records: DataFrame) -> DataFrame:
        monkeypatch.setattr(recipe, "parsed", parsed)
        recipe.run(spark, filled.url, database)
        return parsed(records)

    monkeypatch.setattr(recipe, "parsed", overtaken)
    with pytest.raises(RuntimeError, match="another run"):
        recipe.run(spark, filled.url, database)
    with sqlite3.connect(database) as table:
        found = dict(table.execute("SELECT * FROM miles"))
    assert found == flights.groupby("carrier")["distance"].sum().to_dict()


def test_moving_over_from_kafka_changes_three_lines(
    spark: SparkSession, filled: Store, flights: pd.DataFrame
) -> None:
    """What the recipe says of itself, and the moved job gives the right counts."""
    recipe = _module("from_kafka")
    before, after = (
        [line.strip() for line in inspect.getsource(job).splitlines()[2:]]
        for job in (recipe.before, recipe.after)
    )
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 3
    recipe.run(spark, filled.url)
    rows = filled.scan("carriers", columns=["key", "value"]).to_arrow().to_pylist()
    found = {row["key"].decode(): int(row["value"]) for row in rows}
    assert found == flights["carrier"].value_counts().to_dict()


def test_dataframes_agree(filled: Store, flights: pd.DataFrame) -> None:
    """Pandas, Polars and DuckDB read the same topic."""
    recipe = _module("dataframes")
    hours = pd.to_datetime(flights["time_hour"], utc=True).dt.hour
    expected = hours.value_counts().to_dict()
    assert recipe.by_hour_in_pandas(filled) == expected
    assert recipe.by_hour_in_polars(filled) == expected
    assert recipe.by_hour_in_duckdb(filled) == expected
