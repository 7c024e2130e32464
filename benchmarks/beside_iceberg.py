"""A topic in Spark SQL by our catalog, beside Spark's own Parquet; and what the catalog takes.

For a Spark that has an Iceberg (4.1; for 4.2 and 4.3 there is none yet), with Iceberg's jar, or its
coordinates:

    make .venv-4.1/.installed
    .venv-4.1/bin/python benchmarks/beside_iceberg.py \
        org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import catalog_answers
import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe_machine
from pyspark.sql import DataFrame, SparkSession
from timing import interleaved
from typed import CODEC, ONE_PERCENT, PARTITIONS, flights_table

import txnlog
from txnlog.store import Store

COPIES = 9
READS = 9
SEGMENTS = 100_000
_TOKEN = "a-token-of-this-run"
_PLACES = {"ours": "log.topics.flights", "Parquet": "files", "Iceberg": "own.a.flights"}


def main() -> None:
    """Print both tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("iceberg", help="Maven coordinates of Iceberg, or its jar")
    given = options.parse_args()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join([*describe_machine(), "", *_table_of_answers(Path(folder) / "many"), ""]))
        print("\n".join(_reads(Path(folder), given.iceberg)))


# -- the catalog itself --------------------------------------------------------------------------


def _table_of_answers(root: Path) -> list[str]:
    store = txnlog.open(str(root), create=True)
    store.topics.create("t", partitions=PARTITIONS, schema=pa.schema([("a", pa.int64())]))
    spec = store.logs.topic_spec("t")
    for number in range(SEGMENTS // 40):
        placed = [
            catalog_answers.placed(spec, partition, f"0123456789abcdef-{number}-{count}.parquet")
            for partition in range(PARTITIONS)
            for count in range(40 // PARTITIONS)
        ]
        store.logs.topic("t").place(placed)
        store.logs.topic("t").checkpoint_if_due()
    lines = [
        f"`loadTable` of a topic of {SEGMENTS:,} segments, whose files are not opened.",
        "",
        "| | CPU, s | memory of the process, MB |",
        "|---|---|---|",
    ]
    for process in ("the first answer ever", "the first of another process"):
        command = [sys.executable, catalog_answers.__file__, str(root)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        first, again, idle, begun = json.loads(done.stdout)
        lines.append(f"| {process} | {first[0]:.2f} | {first[1]:.0f} |")
    lines.append(f"| after a commit | {again[0]:.2f} | {again[1]:.0f} |")
    lines.append(f"| nothing is new | {idle[0]:.2f} | {idle[1]:.0f} |")
    lines.append(f"| (before the first) | | {begun[1]:.0f} |")
    return lines


# -- Spark ---------------------------------------------------------------------------------------


@contextmanager
def _served(store: Store) -> Iterator[str]:
    from txnlog.ui.addresses import LOOPBACK, listen
    from txnlog.ui.catalog.protocol import make_app
    from txnlog.ui.connections import limited_server

    with listen(LOOPBACK, 0) as listener:
        server = limited_server(make_app(store, _TOKEN))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _session(iceberg: str, url: str, warehouse: Path) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalog.log": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.log.type": "rest",
        "spark.sql.catalog.log.uri": url,
        "spark.sql.catalog.log.token": _TOKEN,
        "spark.sql.catalog.own": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.own.type": "hadoop",
        "spark.sql.catalog.own.warehouse": str(warehouse),
        # A task for each file, where Spark would make one of several.
        "spark.sql.files.openCostInBytes": str(1 << 27),
        "spark.jars" if iceberg.endswith(".jar") else "spark.jars.packages": iceberg,
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _reads(folder: Path, iceberg: str) -> list[str]:
    rows = pa.concat_tables([flights_table()] * COPIES)
    store = txnlog.open(str(folder / "store"), create=True)
    store.topics.create("flights", partitions=PARTITIONS, schema=rows.schema, config=CODEC)
    source = folder / "flights.parquet"
    source.mkdir()
    step = -(-len(rows) // PARTITIONS)
    with store.producer() as producer:
        for number in range(PARTITIONS):
            piece = rows.slice(number * step, step).combine_chunks()
            pq.write_table(piece, source / f"{number}.parquet", compression="zstd")
            producer.send_batch("flights", piece, partition=number)
    columns = ", ".join(rows.schema.names)
    lines = [
        f"{len(rows):,} rows of {len(rows.schema)} columns, {PARTITIONS} files, {READS} runs.",
        "",
        (
            "| | by the catalog, s | Spark's Parquet, s | Parquet / catalog | by CPU time "
            "| Iceberg's own table, s | own / catalog | by CPU time |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    with _served(store) as url:
        spark = _session(iceberg, url, folder / "warehouse")
        spark.read.parquet(str(source)).createOrReplaceTempView("files")
        spark.sql("CREATE TABLE own.a.flights USING iceberg AS SELECT * FROM files")
        [[files]] = spark.sql("SELECT count(*) FROM own.a.flights.files").collect()
        assert files == PARTITIONS, files
        queries = {
            "all columns": f"SELECT {columns} FROM {{}}",
            "one column": "SELECT distance FROM {}",
            "a filter (1 %)": f"SELECT {columns} FROM {{}} WHERE {ONE_PERCENT}",
            "count": "SELECT count(*) FROM {}",
        }
        for what, query in queries.items():
            runs: dict[str, Callable[[], object]] = {
                name: partial(_run, spark, query.format(place)) for name, place in _PLACES.items()
            }
            taken = interleaved(runs, READS)
            ours, *others = (taken[name] for name in _PLACES)
            figures = [
                f"{other.elapsed_s:.3f} | {other.elapsed_s / ours.elapsed_s:.2f} "
                f"| {other.cpu_s / ours.cpu_s:.2f}"
                for other in others
            ]
            lines.append(f"| {what} | {ours.elapsed_s:.3f} | {' | '.join(figures)} |")
        spark.stop()
    return lines


def _run(spark: SparkSession, query: str) -> None:
    frame: DataFrame = spark.sql(query)
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
