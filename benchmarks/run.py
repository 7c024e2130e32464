"""Measures txnlog on this machine and writes benchmarks/RESULTS.md.

python benchmarks/run.py [--quick]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def main() -> None:
    """Run everything; print the report and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions")
    parser.add_argument(
        "--only",
        choices=(
            *("spark", "memory", "scan", "many", "kafka", "requests", "growth", "merging"),
            *("small", "bytes", "contention", "compaction", "week", "million", "typed", "records"),
            "codecs",
        ),
        help="only this part",
    )
    arguments = parser.parse_args()
    count, repetitions = (300_000, 2) if arguments.quick else (3_000_000, 3)
    # Spark's workers import the no-op source from here.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")) if part
    )
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    report = ["# Results", ""]
    from machine import describe_machine

    report += [*describe_machine(), f"- `python benchmarks/run.py{_flags(arguments)}`", ""]
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only in (None, "spark"):
            report += ["## Spark", "", *_spark(Path(folder), count, repetitions), ""]
        if arguments.only in (None, "typed"):
            copies = 2 if arguments.quick else 9
            report += ["## Typed topics", "", *_typed(Path(folder), copies, repetitions), ""]
        if arguments.only in (None, "memory"):
            large = 1_000_000 if arguments.quick else 36_000_000
            report += ["## Memory and planning", "", *_memory(Path(folder), large), ""]
        if arguments.only in (None, "scan"):
            from scan_speed import measure as measure_scan

            report += ["## Without Spark", "", *measure_scan(Path(folder), count, repetitions), ""]
        if arguments.only in (None, "records"):
            from records import measure as measure_records

            report += ["## Records one by one", ""]
            records = 100_000 if arguments.quick else 500_000
            report += [*measure_records(Path(folder), records, repetitions), ""]
        if arguments.only in (None, "codecs"):
            from codecs_compared import measure as measure_codecs

            report += ["## Codecs", "", *measure_codecs(Path(folder), count // 6, repetitions), ""]
        if arguments.only in (None, "many"):
            from many_small import measure as measure_many

            many = 500 if arguments.quick else 5_000
            report += ["## Many small things", "", *measure_many(Path(folder), many), ""]
        if arguments.only in (None, "kafka"):
            from kafka_folders import measure as measure_folders
            from kafka_rows import measure as measure_rows

            report += ["## Kafka's record format", "", *measure_rows(3 * repetitions), ""]
            report += ["## Kafka's folders", "", *measure_folders(Path(folder), count), ""]
        if arguments.only in (None, "requests"):
            from requests_counted import measure as count_requests

            report += ["## Storage requests", "", *count_requests(), ""]
        if arguments.only in (None, "growth"):
            from growth import measure as measure_growth

            commits = 2_000 if arguments.quick else 8_000
            report += ["## Growth", "", *measure_growth(Path(folder), commits), ""]
        if arguments.only in (None, "small"):
            from small_commits import measure as measure_small

            small = 50 if arguments.quick else 200
            report += ["## Small commits", "", *measure_small(Path(folder), small), ""]
        if arguments.only in (None, "bytes"):
            from bytes_on_disk import measure as measure_bytes

            kept = 300 if arguments.quick else 2_300
            report += ["## Bytes on disk", "", *measure_bytes(Path(folder), kept), ""]
        if arguments.only in (None, "merging"):
            from merging import measure as measure_merging

            commits = 1_000 if arguments.quick else 5_000
            report += ["## Merging", "", *measure_merging(Path(folder), commits), ""]
        if arguments.only in (None, "contention"):
            from contention import measure as measure_contention

            report += ["## Contention", "", *measure_contention(5 if arguments.quick else 20), ""]
        if arguments.only in (None, "compaction"):
            from compaction import measure as measure_compaction

            records = 1_000_000 if arguments.quick else 10_000_000
            report += ["## Compaction", "", *measure_compaction(Path(folder), records), ""]
        if arguments.only in (None, "million"):
            from million import measure as measure_million

            segments = 100_000 if arguments.quick else 1_000_000
            report += ["## A million segments", "", *measure_million(segments), ""]
        if arguments.only in (None, "week"):
            from week import measure as measure_week

            hours = 30 if arguments.quick else 168
            plot = None if arguments.quick else HERE / "week.svg"
            report += ["## A week", "", *measure_week(60, hours, plot), ""]
    text = "\n".join(report).rstrip() + "\n"
    print(text)
    if arguments.only is None:
        (HERE / "RESULTS.md").write_text(text)


@contextmanager
def _session() -> Iterator[SparkSession]:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    import spark_speed
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{spark_speed.CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _typed(folder: Path, copies: int, repetitions: int) -> list[str]:
    import typed

    with _session() as spark:
        return typed.measure(spark, folder, copies, repetitions)


def _memory(folder: Path, count: int) -> list[str]:
    import spark_memory

    return spark_memory.measure(_session, folder, count)


def _spark(folder: Path, count: int, repetitions: int) -> list[str]:
    import spark_speed

    with _session() as spark:
        lines = spark_speed.measure(spark, folder, count, repetitions)
    head = (
        f"{count:,} rows of 16 + 100 bytes, local[{spark_speed.CORES}], topics of "
        f"{spark_speed.PARTITIONS} partitions, median of {repetitions} runs that take turns. Reads "
        "go to Spark's `noop`; rows to be written come from Parquet."
    )
    return [head, "", *lines]


def _flags(arguments: argparse.Namespace) -> str:
    only = f" --only {arguments.only}" if arguments.only else ""
    return (" --quick" if arguments.quick else "") + only


if __name__ == "__main__":
    main()
