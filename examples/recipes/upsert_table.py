"""Into a table of another system, exactly once: miles flown by carrier, in SQLite.

    python examples/recipes/upsert_table.py --store demo-store

No transaction spans two systems. But the table can keep, in the same transaction as its rows, how
far it has applied each partition. A record below that offset was applied already, however
often it is read. The group's offsets follow behind; if the job dies in between, they are behind,
and what is read again changes nothing. A run that was taken for dead, and goes on beside the next
one, finds that the table has moved.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from recipe import main, parsed

import txnlog
from txnlog.spark import SparkTransaction, catch_up

TABLES = """
CREATE TABLE IF NOT EXISTS miles (carrier TEXT PRIMARY KEY, miles INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS applied (
    topic_id TEXT, partition INTEGER, next_offset INTEGER, PRIMARY KEY (topic_id, partition)
);
"""


def run(spark: SparkSession, root: str, database: str = "miles.sqlite") -> None:
    """Bring the table up to date."""
    topic_id = txnlog.open(root).topics.describe("flights").topic_id
    with closing(sqlite3.connect(database)) as table:
        table.executescript(TABLES)

        def step(txn: SparkTransaction) -> None:
            apply(table, topic_id, txn)

        catch_up(spark, root, step, transactional_id="miles", group_id="miles", max_records=100_000)
        for carrier, miles in table.execute("SELECT * FROM miles ORDER BY miles DESC LIMIT 5"):
            print(f"{carrier} {miles:>12,}")


def apply(table: sqlite3.Connection, topic_id: str, txn: SparkTransaction) -> None:
    """Add what the table has not applied yet, and note how far it is, in one transaction of it."""
    known = applied(table, topic_id)
    flights = parsed(txn.read("flights"))
    for partition, next_offset in known.items():
        before = (sf.col("partition") == partition) & (sf.col("offset") < next_offset)
        flights = flights.where(~before)
    ends = flights.groupBy("partition").agg(sf.max("offset") + 1).collect()
    miles = flights.groupBy("flight.carrier").agg(sf.sum("flight.distance")).collect()
    with table:
        table.execute("BEGIN IMMEDIATE")
        if applied(table, topic_id) != known:
            raise RuntimeError("another run has brought the table forward meanwhile; run again")
        table.executemany(
            "INSERT INTO miles VALUES (?, ?) "
            "ON CONFLICT (carrier) DO UPDATE SET miles = miles + excluded.miles",
            [tuple(row) for row in miles],
        )
        table.executemany(
            "INSERT INTO applied VALUES (?, ?, ?) "
            "ON CONFLICT (topic_id, partition) DO UPDATE SET next_offset = excluded.next_offset",
            [(topic_id, *row) for row in ends],
        )


def applied(table: sqlite3.Connection, topic_id: str) -> dict[int, int]:
    """How far the table is in each partition."""
    query = "SELECT partition, next_offset FROM applied WHERE topic_id = ?"
    return dict(table.execute(query, [topic_id]))


if __name__ == "__main__":
    main(run, __doc__)
