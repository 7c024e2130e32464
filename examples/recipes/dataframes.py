"""Without Spark: a topic in pandas, Polars and DuckDB.

    python examples/recipes/dataframes.py --store demo-store

A scan speaks Arrow's C stream interface, so whatever reads Arrow reads a topic, batch by batch.
"""

from __future__ import annotations

import argparse

import duckdb
import polars as pl

import txnlog


def by_hour_in_pandas(store: txnlog.Store) -> dict[int, int]:
    """How many flights were to leave in each hour (UTC)."""
    frame = store.scan("flights", columns=["timestamp"]).to_pandas()
    counts = frame["timestamp"].dt.hour.value_counts()
    return {int(hour): int(count) for hour, count in counts.items()}


def by_hour_in_polars(store: txnlog.Store) -> dict[int, int]:
    """The same in Polars."""
    frame = pl.DataFrame(store.scan("flights", columns=["timestamp"]))
    counts = frame.group_by(pl.col("timestamp").dt.hour().alias("hour")).len()
    return dict(counts.iter_rows())


def by_hour_in_duckdb(store: txnlog.Store) -> dict[int, int]:
    """The same in SQL."""
    flights = duckdb.from_arrow(store.scan("flights", columns=["timestamp"]).to_reader())
    query = "SELECT hour(timestamp AT TIME ZONE 'UTC'), count(*) FROM flights GROUP BY ALL"
    found = flights.query("flights", query)
    assert found is not None, "a SELECT has rows"
    return dict(found.fetchall())


def main() -> None:
    """Print the busiest hour as each of them finds it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", default="demo-store", help="path or URL of the store")
    store = txnlog.open(parser.parse_args().store)
    for name, find in (
        ("pandas", by_hour_in_pandas),
        ("Polars", by_hour_in_polars),
        ("DuckDB", by_hour_in_duckdb),
    ):
        hours = find(store)
        busiest = max(hours, key=lambda hour: hours[hour])
        print(f"{name:8} {busiest:02}:00 UTC, {hours[busiest]:,} flights")


if __name__ == "__main__":
    main()
