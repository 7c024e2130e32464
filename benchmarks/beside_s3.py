"""Spark's reads and writes on S3 with a delay for each request: requests and seconds.

    python benchmarks/beside_s3.py JARS

JARS is a folder with hadoop-aws for the Hadoop of this Spark, what it needs, and Spark's
hadoop-cloud, whose committer lets Parquet be written without renaming. The server is versitygw,
which is built once (Go is needed), with a proxy before it that holds each request back.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from delaying_proxy import DelayingProxy, delaying
from machine import describe_machine
from pyspark.sql import SparkSession

import txnlog
from txnlog.spark import read, register, transaction

HERE = Path(__file__).parent
ROWS = 300_000
PARTITIONS = 4
DELAY_S = 0.02
_COMMITTER = "org.apache.spark.internal.io.cloud"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", default="", help="besides the writes: what has this in its name")
    given = parser.parse_args()
    sys.path.append(str(HERE.parent / "tests" / "stores"))
    from servers import free_port, versitygw

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        with versitygw.run(folder, port) as server, delaying(port, DELAY_S) as proxy:
            options = {**server.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
            spark = _session(given.jars, options)
            register(spark)
            print("\n".join([*describe_machine(), f"- Spark {spark.version}", ""]))
            for line in _measure(spark, options, proxy, folder, given.rows, given.only):
                print(line, flush=True)
            spark.stop()


def _session(jars: Path, options: dict[str, object]) -> SparkSession:
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
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _measure(
    spark: SparkSession,
    options: dict[str, object],
    proxy: DelayingProxy,
    folder: Path,
    rows: int,
    only: str,
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
        store.create_topic(topic, partitions=PARTITIONS, config=config)
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

    def theirs_copy() -> None:
        spark.read.parquet(f"{bucket}/in").write.mode("append").parquet(f"{bucket}/out")

    runs: dict[str, Callable[[], object]] = {
        "write, a topic": ours_write,
        "write, Parquet": lambda: frame.write.mode("append").parquet(f"{bucket}/in"),
        "read, a topic by the source": lambda: to_noop(False),
        "read, a topic, native": lambda: to_noop(True),
        "read, Parquet": lambda: (
            spark.read.parquet(f"{bucket}/in").write.format("noop").mode("overwrite").save()
        ),
        "consume, transform, produce, topics": ours_copy,
        "consume, transform, produce, Parquet": theirs_copy,
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
