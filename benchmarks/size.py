"""A topic of 200 partitions on S3 as it grows, beside Parquet and Delta in the same run.

    python benchmarks/size.py JARS --gigabytes 1 10
    python benchmarks/size.py --commits 100000

Each gigabyte of keys and values comes in five writes of Spark, which make 2,000 segments. JARS is
the folder that beside_s3.py takes; commits need no Spark. The server is versitygw without any
delay, on this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from beside_s3 import HERE, has_delta, session
from machine import describe_machine
from pyspark.sql import DataFrame, SparkSession
from rows import ROW_BYTES, batches, write_parquet
from timing import descendants

import txnlog
from txnlog.clock import SystemClock
from txnlog.spark import read, register, transaction
from txnlog.spark.batch.pinned_read import pin_read
from txnlog.spark.options.read_options import parse_read
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach

PARTITIONS = 200
WRITES_OF_A_GIGABYTE = 5
_ROWS = 10**9 // ROW_BYTES // WRITES_OF_A_GIGABYTE


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jars", type=Path, nargs="?")
    parser.add_argument("--gigabytes", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--commits", type=int, default=0)
    given = parser.parse_args()
    sys.path.append(str(HERE.parent))
    from tests.stores.servers import versitygw

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name, versitygw.run(Path(name)) as server:
        options = dict(server.options)
        store = txnlog.open("s3://test/store", create=True, storage_options=options)
        print("\n".join([*describe_machine(), ""]), flush=True)
        if given.jars is not None:
            spark = session(given.jars, options)
            register(spark)
            print(f"- Spark {spark.version}\n", flush=True)
            rows = Path(name) / "rows"
            write_parquet(rows, _ROWS, files=2)
            sized = _Sized(spark, store, options, spark.read.parquet(str(rows)), given.jars)
            for line in sized.grow(sorted(given.gigabytes)):
                print(line, flush=True)
            spark.stop()
        if given.commits:
            for line in _commits(store, given.commits):
                print(line, flush=True)


class _Sized:
    """A topic, and the same rows as other tables, which grow together."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        options: dict[str, Any],
        rows: DataFrame,
        jars: Path,
    ) -> None:
        self._spark = spark
        self._store = store
        self._options = options
        self._rows = rows
        self._others = ["parquet", "delta"] if has_delta(jars) else ["parquet"]
        store.topics.create("t", partitions=PARTITIONS)

    def grow(self, gigabytes: list[int]) -> Iterator[str]:
        """Lines of Markdown: what each costs at these sizes."""
        yield "| GB | of | segments, files | write, MB/s | plan, ms | tasks | read, s | count, s |"
        yield "|---|---|---|---|---|---|---|---|"
        done = 0
        for size in gigabytes:
            seconds = dict.fromkeys(["a topic", *self._others], 0.0)
            writes = (size - done) * WRITES_OF_A_GIGABYTE
            for _ in range(writes):
                for what in seconds:
                    seconds[what] += _timed(partial(self._write, what))
            for what, took_s in seconds.items():
                speed = writes * _ROWS * ROW_BYTES / 1e6 / took_s
                yield f"| {size} | {what} | {self._files(what)} | {speed:.0f} | {self._reads(what)}"
            begun_s = time.perf_counter()
            for _ in self._store.maintain(["t"]):
                pass
            took_s = time.perf_counter() - begun_s
            merged = f"a topic, after `maintain` in {took_s:.0f} s"
            yield f"| {size} | {merged} | {self._files('a topic')} | | {self._reads('a topic')}"
            yield f"| {size} | {self._cold_plan()} | | | | | | |"
            done = size

    def _write(self, what: str) -> None:
        if what == "a topic":
            with transaction(self._spark, self._store, transactional_id="w") as txn:
                txn.write(self._rows, topic="t")
        else:
            self._rows.write.format(what).mode("append").save(f"s3a://test/{what}")

    def _frame(self, what: str) -> DataFrame:
        if what == "a topic":
            return read(self._spark, self._store, "t", columns="key,value")
        return self._spark.read.format(what).load(f"s3a://test/{what}")

    def _files(self, what: str) -> int:
        if what == "a topic":
            return sum(1 for _ in self._store.topics.segments("t"))
        names = open_storage(f"s3://test/{what}", self._options).list_all("")
        return sum(name.endswith(".parquet") for name, _ in names)

    def _reads(self, what: str) -> str:
        """Planning, its tasks, reading all, and counting: each the best of two."""
        tasks = self._plan(what)
        plan_s = min(_timed(partial(self._plan, what)) for _ in range(2))
        read_s = min(_timed(lambda: _to_noop(self._frame(what))) for _ in range(2))
        count_s = min(_timed(lambda: self._frame(what).count()) for _ in range(2))
        return f"{plan_s * 1000:.0f} | {tasks} | {read_s:.1f} | {count_s:.2f} |"

    def _plan(self, what: str) -> int:
        """Make a frame, and plan it; returns how many tasks it has."""
        return self._frame(what).rdd.getNumPartitions()

    def _cold_plan(self) -> str:
        """What a process plans that knows nothing yet; and the memory of this one's driver."""
        counting = CountingStorage(self._store.storage)
        opened = attach(counting, clock=SystemClock())
        begun_s = time.process_time()
        pinned = pin_read(opened, parse_read({"path": "unused", "subscribe": "t"}))
        cpu_ms = (time.process_time() - begun_s) * 1000
        requests = counting.counts.total()
        return (
            f"a plan of {len(pinned.ranges):,} ranges by a new process: {cpu_ms:.0f} ms of CPU, "
            f"{requests} requests; the driver's memory: {_memory()}"
        )


def _commits(store: Store, count: int) -> Iterator[str]:
    """Lines of Markdown: small commits to a topic as they become many."""
    store.topics.create("small", partitions=PARTITIONS)
    record = next(batches(1))
    yield "| commits | ms each | CPU ms each | cold plan, CPU ms | its requests | memory |"
    yield "|---|---|---|---|---|---|"
    with store.producer() as producer:
        done = 0
        while done < count:
            step = min(count - done, max(1_000, 9 * done))
            begun_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(step):
                producer.send_batch("small", record)
                producer.flush()
            each_ms = (time.perf_counter() - begun_s) * 1000 / step
            each_cpu_ms = (time.process_time() - cpu_s) * 1000 / step
            done += step
            counting = CountingStorage(store.storage)
            opened = attach(counting, clock=SystemClock())
            cpu_s = time.process_time()
            pinned = pin_read(opened, parse_read({"path": "unused", "subscribe": "small"}))
            assert sum(part.record_count for part in pinned.ranges) == done
            plan_ms = (time.process_time() - cpu_s) * 1000
            yield (
                f"| {done:,} | {each_ms:.1f} | {each_cpu_ms:.1f} | {plan_ms:.0f} "
                f"| {counting.counts.total()} | {_memory()} |"
            )


def _to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _timed(run: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    run()
    return time.perf_counter() - begun_s


def _memory() -> str:
    """Of this process, and of its JVM."""
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1e6
    sizes = {pid: int(fields[21]) * page_mb for pid, fields in descendants().items()}
    own = sizes.pop(os.getpid())
    java = (
        size
        for pid, size in sizes.items()
        if Path(f"/proc/{pid}/exe").resolve().name.startswith("java")
    )
    return f"Python {own:.0f} MB, Java {max(java, default=0):.0f} MB"


if __name__ == "__main__":
    main()
