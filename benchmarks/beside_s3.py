"""Spark's reads and writes on S3 with a delay for each request: requests and seconds.

    python benchmarks/beside_s3.py JARS

JARS is a folder with hadoop-aws for the Hadoop of this Spark, what it needs, and Spark's
hadoop-cloud, whose committer lets Parquet be written without renaming; Delta's jars too, if it is
to be compared. The server is versitygw, which is built once (Go is needed), with a proxy before it
that holds each request back.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from delaying_proxy import DelayingProxy, delaying
from machine import describe_machine
from pyspark.sql import DataFrame, SparkSession

import txnlog
from txnlog.spark import read, register, transaction

HERE = Path(__file__).parent
ROWS = 300_000
PARTITIONS = 4
DELAY_S = 0.02
_COMMITTER = "org.apache.spark.internal.io.cloud"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", default="", help="besides the writes: what has this in its name")
    given = parser.parse_args()
    sys.path.append(str(HERE.parent))
    from tests.stores.servers import free_port, versitygw

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        with versitygw.run(folder, port) as server, delaying(port, DELAY_S) as proxy:
            options = {**server.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
            spark = session(given.jars, options)
            register(spark)
            print("\n".join([*describe_machine(), f"- Spark {spark.version}", ""]))
            lines = _measure(
                *(spark, options, proxy, folder, given.rows, given.only),
                has_delta=has_delta(given.jars),
            )
            for line in lines:
                print(line, flush=True)
            spark.stop()


def session(jars: Path, options: dict[str, object]) -> SparkSession:
    s3a = "spark.hadoop.fs.s3a"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.jars": ",".join(map(str, sorted(jars.glob("**/*.jar")))),
        f"{s3a}.endpoint": options["endpoint_url"],  # type: ignore[dict-item]
        f"{s3a}.endpoint.region": "us-east-1",
        f"{s3a}.access.key": options["key"],  # type: ignore[dict-item]
        f"{s3a}.secret.key": options["secret"],  # type: ignore[dict-item]
        f"{s3a}.path.style.access": "true",
        f"{s3a}.connection.ssl.enabled": "false",
    }
    if [*jars.glob("**/spark-hadoop-cloud*.jar")]:
        settings |= {
            f"{s3a}.committer.name": "magic",
            "spark.sql.sources.commitProtocolClass": f"{_COMMITTER}.PathOutputCommitProtocol",
            "spark.sql.parquet.output.committer.class": _COMMITTER
            + ".BindingParquetOutputCommitter",
        }
    if has_delta(jars):
        settings |= _DELTA
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def has_delta(jars: Path) -> bool:
    return bool([*jars.glob("**/delta-spark*.jar")])


def _measure(
    spark: SparkSession,
    options: dict[str, object],
    proxy: DelayingProxy,
    folder: Path,
    rows: int,
    only: str,
    *,
    has_delta: bool,
) -> Iterator[str]:
    numbers = pa.array([b"%016d" % n for n in range(rows)])
    local = folder / "rows"
    local.mkdir()
    step = -(-rows // PARTITIONS)
    for number in range(PARTITIONS):
        keys = numbers.slice(number * step, step)
        values = pa.array([b"v" * 84 + b"%016d" % (n * 7919 % rows) for n in range(len(keys))])
        pq.write_table(pa.table({"key": keys, "value": values}), local / f"{number}.parquet")
    frame = spark.read.parquet(str(local))
    store = txnlog.open("s3://test/store", create=True, storage_options=options)
    config = {"record.format": "parquet"}
    for topic in ("in", "out"):
        store.topics.create(topic, partitions=PARTITIONS, config=config)
    bucket = "s3a://test"

    def ours_write() -> None:
        with transaction(spark, store, transactional_id="w") as txn:
            txn.write(frame, topic="in")

    groups = (f"g-{number}" for number in itertools.count())

    def ours_copy() -> None:
        """Of all records: a new group has read none."""
        with transaction(spark, store, transactional_id="c", group_id=next(groups)) as txn:
            txn.write(txn.read("in").select("key", "value"), topic="out")

    def to_noop(native: bool | None) -> None:
        rows = read(spark, store, "in", columns="key,value", native=native)
        rows.write.format("noop").mode("overwrite").save()

    def theirs_write(kind: str, rows: DataFrame, name: str) -> None:
        rows.write.format(kind).mode("append").save(f"{bucket}/{kind}/{name}")

    def theirs(kind: str) -> DataFrame:
        return spark.read.format(kind).load(f"{bucket}/{kind}/in")

    def theirs_read(kind: str) -> None:
        theirs(kind).write.format("noop").mode("overwrite").save()

    def theirs_copy(kind: str) -> None:
        theirs_write(kind, theirs(kind), "out")

    runs: dict[str, Callable[[], object]] = {
        "write, a topic": ours_write,
        "read, a topic by the source": lambda: to_noop(False),
        "read, a topic, native": lambda: to_noop(True),
        "consume, transform, produce, topics": ours_copy,
    }
    for kind in ("parquet", "delta") if has_delta else ("parquet",):
        runs |= {
            f"write, {kind}": partial(theirs_write, kind, frame, "in"),
            f"read, {kind}": partial(theirs_read, kind),
            f"consume, transform, produce, {kind}": partial(theirs_copy, kind),
        }
    yield f"{rows:,} rows of 16 + 100 bytes, each request held back for {DELAY_S * 1000:.0f} ms."
    yield ""
    yield "| what | s | requests | by kind |"
    yield "|---|---|---|---|"
    chosen = [what for what in runs if what.startswith("write") or only in what]
    for what, run in ((what, runs[what]) for what in chosen):
        for turn in (0, 1):  # processes start in the first one
            proxy.take()
            begun_s = time.perf_counter()
            try:
                run()
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                yield f"| {what} | failed: {type(error).__name__} {str(error)[:200]!r} | | |"
                break
            took_s = time.perf_counter() - begun_s
            counts = proxy.take()
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            if turn:
                yield f"| {what} | {took_s:.2f} | {sum(counts.values())} | {kinds} |"


if __name__ == "__main__":
    main()
