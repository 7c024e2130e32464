"""Measures txnlog on this machine and writes build/RESULTS.md.

benchmarks/RESULTS.md is made of it by hand: it is shorter, and has parts that this does not run.

python benchmarks/run.py [--quick] [--only SECTION]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scale:
    """How much is measured, and where files go meanwhile."""

    folder: Path
    quick: bool

    def of(self, whole: int, quick: int) -> int:
        """Sizes of a whole run or a quick one."""
        return quick if self.quick else whole

    @property
    def rows(self) -> int:
        return self.of(3_000_000, 300_000)

    @property
    def repetitions(self) -> int:
        return self.of(3, 2)


def main() -> None:
    """Run everything, or one section; print the report, and keep it if it is whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions")
    parser.add_argument("--only", choices=tuple(_SECTIONS), help="only this part")
    arguments = parser.parse_args()
    # Spark's workers import the no-op source from here.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")) if part
    )
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    from machine import describe_machine

    report = ["# Results", "", *describe_machine()]
    report += [f"- `python benchmarks/run.py{_flags(arguments)}`", ""]
    with tempfile.TemporaryDirectory() as folder:
        scale = Scale(Path(folder), arguments.quick)
        for name, (title, measure) in _SECTIONS.items():
            if arguments.only in (None, name):
                report += [f"## {title}", "", *measure(scale), ""]
    text = "\n".join(report).rstrip() + "\n"
    print(text)
    if arguments.only is None:
        built = HERE.parent / "build"
        built.mkdir(exist_ok=True)
        (built / "RESULTS.md").write_text(text)


def _spark(scale: Scale) -> list[str]:
    import spark_speed

    with _session() as spark:
        lines = spark_speed.measure(spark, scale.folder, scale.rows, scale.repetitions)
    head = (
        f"{scale.rows:,} rows of 16 + 100 bytes, local[{spark_speed.CORES}], topics of "
        f"{spark_speed.PARTITIONS} partitions, median of {scale.repetitions} alternating runs. "
        "Reads go to Spark's `noop`; rows to be written come from Parquet."
    )
    return [head, "", *lines]


def _parquet(scale: Scale) -> list[str]:
    import beside_parquet

    with _session() as spark:
        lines = beside_parquet.measure(spark, scale.folder, scale.rows, scale.repetitions)
    head = (
        f"{scale.rows:,} rows of 16 + 100 bytes, topics of {beside_parquet.PARTITIONS} partitions, "
        f"median of {scale.repetitions} alternating runs."
    )
    return [head, "", *lines]


def _frames(scale: Scale) -> list[str]:
    from spark_speed import measure_frames

    with _session() as spark:
        return measure_frames(spark, scale.folder, 20_000, scale.of(9, 3))


def _typed(scale: Scale) -> list[str]:
    import typed

    with _session() as spark:
        return typed.measure(spark, scale.folder, scale.of(9, 2), scale.repetitions)


def _memory(scale: Scale) -> list[str]:
    import spark_memory

    return spark_memory.measure(_session, scale.folder, scale.of(36_000_000, 1_000_000))


def _scan(scale: Scale) -> list[str]:
    from scan_speed import measure

    return measure(scale.folder, scale.rows, scale.repetitions)


def _records(scale: Scale) -> list[str]:
    from records import measure

    return measure(scale.folder, scale.of(500_000, 100_000), scale.repetitions)


def _sends(scale: Scale) -> list[str]:
    from records import measure_sends

    return measure_sends(scale.folder, scale.of(500_000, 100_000), scale.of(7, 2))


def _codecs(scale: Scale) -> list[str]:
    from codecs_compared import measure

    return measure(scale.folder, scale.rows // 6, scale.repetitions)


def _formats(scale: Scale) -> list[str]:
    from formats import measure

    with _session() as spark:
        return measure(spark, scale.folder, scale.of(64, 32) << 20, scale.repetitions)


def _many(scale: Scale) -> list[str]:
    from many_small import measure

    return measure(scale.folder, scale.of(5_000, 500))


def _pages(scale: Scale) -> list[str]:
    from pages import measure

    return [*measure(scale.of(1_000, 100), scale.of(100_000, 1_000))]


def _kafka_rows(scale: Scale) -> list[str]:
    from kafka_rows import measure

    return measure(3 * scale.repetitions)


def _kafka_folders(scale: Scale) -> list[str]:
    from kafka_folders import measure

    return measure(scale.folder, scale.rows)


def _requests(_: Scale) -> list[str]:
    from requests_counted import measure

    return measure()


def _growth(scale: Scale) -> list[str]:
    from growth import measure

    return [*measure(scale.folder, scale.of(8_000, 2_000))]


def _small(scale: Scale) -> list[str]:
    from small_commits import measure

    return measure(scale.folder, scale.of(200, 50))


def _bytes(scale: Scale) -> list[str]:
    from bytes_on_disk import measure

    return measure(scale.folder, scale.of(2_300, 300))


def _floats(scale: Scale) -> list[str]:
    from floats import measure

    return measure(scale.of(1_000_000, 100_000), 3 * scale.repetitions)


def _latest(scale: Scale) -> list[str]:
    import spark_latest
    from latest import measure

    lines = measure(scale.folder, scale.of(10_000_000, 200_000))
    with _session() as spark:
        count = scale.of(1_000_000, 100_000)
        return [*lines, "", *spark_latest.measure(spark, scale.folder, count, scale.repetitions)]


def _values(scale: Scale) -> list[str]:
    from values import measure

    return measure(scale.of(200_000, 50_000), scale.repetitions)


def _merging(scale: Scale) -> list[str]:
    from merging import measure

    return measure(scale.folder, scale.of(5_000, 1_000))


def _contention(scale: Scale) -> list[str]:
    from contention import measure

    return measure(scale.of(20, 5))


def _replicas(scale: Scale) -> list[str]:
    from replicas import measure
    from returning import measure as measure_returning

    data_mb = scale.of(60, 6), scale.of(600, 60)
    return [*measure(), "", *measure_returning(scale.folder, data_mb)]


def _compaction(scale: Scale) -> list[str]:
    from compaction import measure

    return measure(scale.folder, scale.of(10_000_000, 1_000_000))


def _million(scale: Scale) -> list[str]:
    from million import measure

    return measure(scale.of(1_000_000, 100_000))


def _week(scale: Scale) -> list[str]:
    from week import measure

    return measure(60, scale.of(168, 30), None if scale.quick else HERE / "week.svg")


_SECTIONS: Final[Mapping[str, tuple[str, Callable[[Scale], list[str]]]]] = {
    "spark": ("Spark", _spark),
    "parquet": ("Beside Spark's own Parquet", _parquet),
    "frames": ("Frames of Spark", _frames),
    "typed": ("Typed topics", _typed),
    "memory": ("Memory and planning", _memory),
    "scan": ("Without Spark", _scan),
    "records": ("Records one by one", _records),
    "send": ("Sending", _sends),
    "codecs": ("Codecs", _codecs),
    "formats": ("Batches or Parquet files", _formats),
    "many": ("Many small things", _many),
    "kafka-rows": ("Kafka's record format", _kafka_rows),
    "kafka-folders": ("Kafka's folders", _kafka_folders),
    "requests": ("Storage requests", _requests),
    "growth": ("Growth", _growth),
    "small": ("Small commits", _small),
    "bytes": ("Bytes on disk", _bytes),
    "floats": ("Floats in Parquet files", _floats),
    "latest": ("The newest record of each key", _latest),
    "values": ("Values of a registry", _values),
    "merging": ("Merging", _merging),
    "contention": ("Contention", _contention),
    "replicas": ("Replicas", _replicas),
    "compaction": ("Compaction", _compaction),
    "million": ("A million segments", _million),
    "pages": ("Pages", _pages),
    "week": ("A week", _week),
}
"""What ``--only`` takes: the title in the report, and what measures it."""


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


def _flags(arguments: argparse.Namespace) -> str:
    only = f" --only {arguments.only}" if arguments.only else ""
    return (" --quick" if arguments.quick else "") + only


if __name__ == "__main__":
    main()
