"""Where the time of a stream's micro-batches goes: ours, Spark's file streams, Kafka's connector.

    python benchmarks/stream_batches.py
    python benchmarks/stream_batches.py --kafka FOLDER    # with the jars of spark-sql-kafka-0-10
    python benchmarks/stream_batches.py --requests --history 10000    # requests instead of times

Each query takes one batch after the other from what is there already, and looks for more before
each, as it does with a trigger of no interval. The times are Spark's own (``durationMs``).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe_machine
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from timing import cpu_of_each

import txnlog
from txnlog.spark import register

ROWS = 20_000
PARTITIONS = 4
_WARM_UP = 3
"""Batches of each query that are not counted: its processes start."""
_REQUEST_LOG = Path(__file__).parent / "request_log"
_PATIENCE_S = 300.0

PHASES = (
    "latestOffset",
    "walCommit",
    "queryPlanning",
    "getBatch",
    "addBatch",
    "commitBatch",
    "commitOffsets",
)
"""Spark's names of what a trigger consists of, in their order."""
PROCESSES = {
    "the JVM": "java",
    "latestOffset, partitions": "python_streaming_source_runner",
    "the write is planned": "write_into_data_source",
    "tasks": "pyspark.worker",
    "the commit": "python_streaming_sink_runner",
}
"""Whose CPU time counts, by what is in their command lines."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of a batch, in ms: medians of its phases, of the whole, of CPU time by kind of process."""

    phases: Mapping[str, float]
    whole_ms: float
    cpu_ms: Mapping[str, float]

    @property
    def all_cpu_ms(self) -> float:
        """Of all processes."""
        return sum(self.cpu_ms.values())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=25, help="of each query, that are counted")
    parser.add_argument("--rounds", type=int, default=3, help="queries of each kind, in turn")
    parser.add_argument("--history", type=int, default=0, help="commits that are there before")
    parser.add_argument("--kafka", type=Path, help="a folder with the jars of Kafka's connector")
    parser.add_argument("--requests", action="store_true", help="count requests to our store")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        log = folder / "requests"
        if given.requests:
            os.environ["TXNLOG_REQUEST_LOG"] = str(log)
            paths = [str(_REQUEST_LOG), os.environ.get("PYTHONPATH", "")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        spark = stack.enter_context(_session(given.kafka))
        register(spark)
        total = given.batches + _WARM_UP
        store = _fill(folder, total, given.history)
        if given.requests:
            print("\n".join(_requests(spark, store, folder, total, given.history, log)))
            return
        kinds: dict[str, Callable[[str], StreamingQuery]] = {
            "ours": lambda turn: _ours(spark, store, folder, turn),
            "Spark's Parquet": lambda turn: _parquet(spark, folder, turn),
        }
        _write_files(folder, total)
        if given.kafka:
            topics = [f"sink-{turn}" for turn in range(given.rounds)]
            servers = stack.enter_context(_filled_broker(spark, folder, topics))
            kinds["Kafka's connector"] = lambda turn: _kafka(spark, servers, folder, turn)
        taken = _measure(kinds, total, given.rounds)
        head = [*describe_machine(), f"- Spark {spark.version}", ""]
        print("\n".join([*head, *_table(taken)]))


class _session(ExitStack):  # noqa: N801
    """A session that ends with the block."""

    def __init__(self, jars: Path | None) -> None:
        super().__init__()
        settings: dict[str, bool | float | int | str | None] = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.python.authenticate.socketTimeout": "120s",  # on a busy machine
        }
        if jars:
            settings["spark.jars"] = ",".join(map(str, sorted(jars.glob("*.jar"))))
        self._settings = settings

    def __enter__(self) -> SparkSession:  # type: ignore[override]
        builder = SparkSession.builder.master("local[2]").config(map=self._settings)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        self.callback(spark.stop)
        return spark


# -- what is read --------------------------------------------------------------------------------


def _fill(folder: Path, batches: int, history: int) -> txnlog.Store:
    store = txnlog.open(str(folder / "store"), create=True)
    store.topics.create("source", partitions=PARTITIONS)
    _commit_often(store, "source", history)
    with store.producer() as producer:
        for number in range(batches + 1):
            producer.send_batch("source", _rows(number * ROWS, ROWS))
            producer.flush()
    return store


def _commit_often(store: txnlog.Store, topic: str, commits: int) -> None:
    with store.producer() as producer:
        for number in range(commits):
            producer.send(topic, b"%d" % number)
            producer.flush()


def _rows(first: int, count: int) -> pa.Table:
    keys = [b"%016d" % key for key in range(first, first + count)]
    return pa.table({"key": keys, "value": [b"v" * 100] * count})


def _write_files(folder: Path, batches: int) -> None:
    """The same rows as files, as many for each batch as the topic has partitions."""
    place = folder / "files"
    place.mkdir()
    step = ROWS // PARTITIONS
    for number in range((batches + 1) * PARTITIONS):
        path = place / f"{number:06}.parquet"
        pq.write_table(_rows(number * step, step), path, compression="zstd")
        os.utime(path, (1e9 + number, 1e9 + number))  # Spark takes the oldest first


# -- queries -------------------------------------------------------------------------------------


def _start(frame: DataFrame, kind: str, folder: Path, turn: str, **to: str) -> StreamingQuery:
    place = str(folder / f"checkpoint-{kind}-{turn}")
    writer = frame.writeStream.format(kind).option("checkpointLocation", place)
    return writer.options(**to).trigger(processingTime="0 seconds").start()


def _ours(
    spark: SparkSession, store: txnlog.Store, folder: Path, turn: str, history: int = 0
) -> StreamingQuery:
    topic = f"sink-{turn}"
    store.topics.create(topic, partitions=PARTITIONS)
    _commit_often(store, topic, history)
    frame = (
        spark.readStream.format("txnlog")
        .options(path=store.url, subscribe="source", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(ROWS))
        .load()
    )
    return _start(frame.select("key", "value"), "txnlog", folder, turn, path=store.url, topic=topic)


def _parquet(spark: SparkSession, folder: Path, turn: str) -> StreamingQuery:
    frame = (
        spark.readStream.schema("key binary, value binary")
        .option("maxFilesPerTrigger", str(PARTITIONS))
        .parquet(str(folder / "files"))
    )
    return _start(frame, "parquet", folder, turn, path=str(folder / f"out-{turn}"))


def _kafka(spark: SparkSession, servers: str, folder: Path, turn: str) -> StreamingQuery:
    given = {"kafka.bootstrap.servers": servers}
    frame = (
        spark.readStream.format("kafka")
        .options(**given, subscribe="source", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(ROWS))
        .load()
    )
    rows = frame.select("key", "value")
    return _start(rows, "kafka", folder, turn, **given, topic=f"sink-{turn}")


@contextmanager
def _filled_broker(spark: SparkSession, folder: Path, topics: list[str]) -> Iterator[str]:
    """The address of a broker with the same rows in a topic of as many partitions."""
    from beside_kafka import broker
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    place = folder / "kafka"
    place.mkdir()
    with broker(place) as (servers, _):
        admin = AdminClient({"bootstrap.servers": servers})
        made = admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in ["source", *topics]])
        for done in made.values():
            done.result()
        rows = spark.read.parquet(str(folder / "files"))
        to = {"kafka.bootstrap.servers": servers, "topic": "source"}
        rows.write.format("kafka").options(**to).save()
        yield servers


# -- measuring -----------------------------------------------------------------------------------


def _measure(
    kinds: Mapping[str, Callable[[str], StreamingQuery]], batches: int, rounds: int
) -> dict[str, Measured]:
    phases: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    used: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for turn in range(rounds):
        for kind, start in kinds.items():
            query = start(f"{turn}")
            try:
                done = _wait_for(query, _WARM_UP)
                before = cpu_of_each()
                last = _wait_for(query, batches)
                for process, seconds in _cpu_since(before).items():
                    each_ms = 1000 * seconds / (last - done)
                    used[kind].setdefault(process, []).append(each_ms)
            finally:
                progress = [p for p in query.recentProgress if p.numInputRows]
                query.stop()
            for batch in progress[_WARM_UP:batches]:
                for phase, took_ms in batch.durationMs.items():
                    phases[kind].setdefault(phase, []).append(took_ms)
    return {
        kind: Measured(
            {phase: statistics.median(took) for phase, took in found.items()},
            statistics.median(found["triggerExecution"]),
            {process: statistics.median(ms) for process, ms in used[kind].items()},
        )
        for kind, found in phases.items()
    }


def _wait_for(query: StreamingQuery, batches: int) -> int:
    """Wait until a query has done so many, and tell how many it has done."""
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        if (error := query.exception()) is not None:
            raise error
        last = query.lastProgress
        if last is not None and last.batchId + 1 >= batches:
            return last.batchId + 1
        time.sleep(0.005)
    raise TimeoutError(f"{batches} batches took more than {_PATIENCE_S:.0f} s")


def _cpu_since(before: Mapping[int, float]) -> dict[str, float]:
    """CPU seconds by kind of process, without those that have ended."""
    used = dict.fromkeys(PROCESSES, 0.0)
    for pid, seconds in cpu_of_each().items():
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            for process, mark in PROCESSES.items():
                if mark in command:
                    used[process] += seconds - before.get(pid, 0.0)
                    break
    return used


def _table(taken: Mapping[str, Measured]) -> Iterator[str]:
    yield f"| a micro-batch of {ROWS:,} rows | " + " | ".join(taken) + " |"
    yield "|---|" + "---|" * len(taken)

    def line(what: str, figures: Iterable[float], digits: int = 0) -> str:
        return f"| {what} | " + " | ".join(f"{figure:.{digits}f}" for figure in figures) + " |"

    measured = taken.values()
    for phase in PHASES:
        yield line(f"`{phase}`, ms", [m.phases.get(phase, 0.0) for m in measured])
    yield line("whole, ms", [m.whole_ms for m in measured])
    for process in PROCESSES:
        yield line(f"CPU of {process}, ms", [m.cpu_ms[process] for m in measured])
    yield line("CPU, ms", [m.all_cpu_ms for m in measured])
    ours = taken["ours"]
    yield line("whole / ours", [m.whole_ms / ours.whole_ms for m in measured], 2)
    yield line("CPU / ours", [m.all_cpu_ms / ours.all_cpu_ms for m in measured], 2)


def _requests(
    spark: SparkSession,
    store: txnlog.Store,
    folder: Path,
    batches: int,
    history: int,
    log: Path,
) -> Iterator[str]:
    """Our requests for a batch, by their kind and what they are for."""
    query = _ours(spark, store, folder, "counted", history)
    try:
        done = _wait_for(query, _WARM_UP)
        skipped = len(log.read_text().splitlines())
        last = _wait_for(query, batches)
        lines = log.read_text().splitlines()[skipped:]
    finally:
        query.stop()
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        _, _, kind, _, name = line.split("\t", 4)
        counts[kind, name.partition("/")[0]] += 1
    yield f"{last - done} batches, {history:,} commits to each topic before."
    yield ""
    yield "| request | of | a batch |"
    yield "|---|---|---|"
    for (kind, of), count in sorted(counts.items()):
        yield f"| {kind} | {of} | {count / (last - done):.1f} |"
    yield f"| all | | {sum(counts.values()) / (last - done):.1f} |"


if __name__ == "__main__":
    main()
