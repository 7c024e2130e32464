"""Ways to write with Spark, and faults that hit each of them: a driver that runs one after another.

    python fault_matrix.py MASTER STORE FOLDER MODE

makes the input, says "ready", and then runs what it is told on stdin: lines of a path and a fault.
It answers "done", or "failed" with the error. A path reads or makes the numbers below RECORDS and
writes each once to the topic :func:`target`; what reads does so with the group of that name. A
fault is one of FAULTS, or "step-N", after which the driver ends: see ``killed_at_a_step``. Told
once more, a driver that comes after it finishes the work.

What Spark's tasks did is in its event logs below FOLDER, by the topic of the cell.

A new path is a function in PATHS, a new fault a class in FAULTS.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import shake_128
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import txnlog
import txnlog.spark.maintenance
from tests.spark.spark_driver import say, session
from tests.spark.spark_faults import Fault, Rows, executor_jvm, faulty, faulty_worker
from tests.stores.servers import versitygw
from txnlog import Store
from txnlog.results import Compaction, MaintenanceFailure, Merge
from txnlog.spark import (
    SparkTransaction,
    foreach_batch,
    maintain,
    register,
    shuffle_by_partition,
    transaction,
)

RECORDS = 12_000
READ_TASKS = 4
WRITE_TASKS = 4
PARTITIONS = 5
BATCH = 500
SMALL_SEGMENTS = {"segment.bytes": str(64 << 10)}
"""A task that has written most of its rows has finished some of them."""
COMMITS = 40
"""So many make the topics that are merged, or compacted: what each has in a partition is small."""
SCHEMA = pa.schema([("n", pa.int64()), ("pad", pa.string())])
IN = "in"
TYPED_IN = "typed-in"
CELL = "txnlog.test.cell"
"""A property of Spark's jobs: the topic of the cell that they work for."""
STEPS = "TXNLOG_TEST_STEPS"
"""Once there is a file of that name the driver's steps are counted."""

WIDE = f"concat({', '.join(f'sha2(concat(n, {part}), 512)' for part in range(8))})"
"""1 KiB for each row, which compresses to half of it: a task has 3 MiB."""


def target(path: str, fault: str) -> str:
    """The topic of a cell of the table, and its group."""
    return f"{path}.{fault}"


# -- faults --------------------------------------------------------------------------------------


class Once(Fault):
    """It happens once, in whichever task comes first.

    Args:
        marker: a file that is made when it happens.
    """

    task: int | None = None
    mode = "steady"
    """The driver's settings, see MODES."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _kill(self) -> None:
        """SIGKILL to the JVM of the executor, from inside a task."""
        if self._is_first():
            os.kill(executor_jvm(), signal.SIGKILL)

    def repair(self, error: Exception) -> bool:  # noqa: ARG002
        """In the driver, when the job has failed: whether it is to run once more."""
        return False

    def settle(self) -> None:
        """In the driver, once the rows are written: wait until what was to happen has."""


class LostInTheMapStage(Once):
    """An executor is lost when a task has read, or made, half of its rows."""

    def upstream(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            if number == 3:
                self._kill()
            yield batch


class LostInTheReduceStage(Once):
    """Some tasks have written theirs, and another one begins: what was shuffled is lost in part."""

    def rows(self, given: Rows) -> Rows:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 3:
            self._kill()
        yield from given


class LostWhileItUploads(Once):
    """A task has got 2.5 MiB of its 3, and has finished some segments."""

    def rows(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            if number == 5:
                self._kill()
            yield batch


class LostBeforeItReports(Once):
    """A task has uploaded everything, and its message has not left the worker.

    One without rows has nothing that could be lost, or placed twice.
    """

    _had_rows = False

    def rows(self, given: Rows) -> Rows:
        for batch in given:
            self._had_rows |= batch.num_rows > 0
            yield batch

    def written(self) -> None:
        if self._had_rows:
            self._kill()


class TaskFails(Once):
    """A task fails when it has written most of its rows; Spark runs it again."""

    def rows(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            if number == 5 and self._is_first():
                raise OSError(errno.EIO, "a fault of the test")
            yield batch


class FetchFails(Once):
    """What was shuffled is gone when the first tasks write, and all executors live.

    One of them fails then: others may have fetched what they need.
    """

    @property
    def _again(self) -> Path:
        """A file that is made when a task whose rows are shuffled runs once more."""
        return self._marker.with_suffix(".again")

    def upstream(self, given: Rows) -> Rows:
        if self._marker.exists():
            self._again.touch()
        yield from given

    def rows(self, given: Rows) -> Rows:
        for batch in given:  # a task without rows has nothing to fetch when it runs again
            if self._is_first():
                for shuffled in self._marker.parent.glob("cluster/**/shuffle_*.data"):
                    shuffled.unlink()
                raise OSError(errno.EIO, "a fault of the test")
            yield batch

    def settle(self) -> None:
        assert self._again.exists(), "all tasks have fetched what they need"


class ClocksDiffer(Once):
    """While a task writes, the clock of its process is two hours fast, or slow."""

    _HOURS_NS = 2 * 3_600_000_000_000

    def rows(self, given: Rows) -> Rows:
        context = TaskContext.get()
        assert context is not None
        self._is_first()
        off_ns = self._HOURS_NS * (1 if context.partitionId() % 2 else -1)
        self._right = time.time_ns, time.time
        right_ns, right = self._right
        time.time_ns = lambda: right_ns() + off_ns
        time.time = lambda: right() + off_ns / 1e9
        yield from given

    def written(self) -> None:
        time.time_ns, time.time = self._right


class Outrun(Once):
    """A task stops before it uploads; a copy of it has uploaded all when it goes on."""

    task = 0
    mode = "speculating"

    def __init__(self, marker: Path) -> None:
        super().__init__(marker)
        self._go_on = marker.with_suffix(".go-on")
        os.mkfifo(self._go_on)

    def rows(self, given: Rows) -> Rows:
        taken = list(given)
        self._is_first()
        with self._go_on.open("rb") as pipe:  # waits until the copy opens it,
            pipe.read()  # and closes it
        yield from taken

    def repeated(self) -> Fault:
        return _Copy(self._go_on)


class _Copy(Fault):
    def __init__(self, go_on: Path) -> None:
        self._go_on = go_on

    def rows(self, given: Rows) -> Rows:
        self._held = os.open(self._go_on, os.O_WRONLY)  # waits until the other has taken all
        yield from given

    def written(self) -> None:
        os.close(self._held)


class Decommissioned(Once):
    """An executor is told to leave in the middle of a task: it ends that, and is gone then."""

    mode = "leaving"

    def upstream(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            if number == 3 and self._is_first():
                executor = executor_jvm()
                self._marker.write_text(f"{executor}")
                os.kill(executor, signal.SIGPWR)
            yield batch

    def settle(self) -> None:
        with suppress(ProcessLookupError):
            leaving = os.pidfd_open(int(self._marker.read_text()))
            gone, _, _ = select.select([leaving], [], [], 60)
            os.close(leaving)
            assert gone, "the executor has stayed"


class Released(Once):
    """Spark gives an idle executor back, whose tasks have written, and asks for another one later.

    A task waits in the middle until that has happened. Executors whose rows are shuffled stay.
    """

    mode = "dynamic"
    _PATIENCE_S = 120

    def upstream(self, given: Rows) -> Rows:
        executor = executor_jvm()
        self._marker.with_suffix(f".{executor}").touch()
        for number, batch in enumerate(given):
            if number == 3 and self._is_first():
                self._wait_until_another_is_gone(executor)
            yield batch

    def _wait_until_another_is_gone(self, mine: int) -> None:
        ends_s = time.monotonic() + self._PATIENCE_S
        while time.monotonic() < ends_s:
            for found in self._marker.parent.glob(f"{self._marker.stem}.[0-9]*"):
                executor = int(found.suffix[1:])
                if executor != mine and not Path(f"/proc/{executor}").exists():
                    self._marker.write_text("gone")
                    return
            select.select([], [], [], 0.1)

    def settle(self) -> None:
        assert self._marker.read_text() == "gone", "no executor was given back"


class LostBesideS3(LostWhileItUploads):
    """An executor is lost while it uploads to an S3 server."""

    mode = "s3"


class S3Hangs(Once):
    """The server does nothing for 20 s, while a task uploads."""

    mode = "s3"
    _HANG_S = 20
    _HANG = f"kill -STOP {{0}}; sleep {_HANG_S}; kill -CONT {{0}}"

    def rows(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            if number == 5 and self._is_first():
                hang = self._HANG.format(os.environ[SERVER])
                subprocess.Popen(["sh", "-c", hang], start_new_session=True)
            yield batch

    def settle(self) -> None:
        for_s = time.time() - self._marker.stat().st_mtime
        assert for_s > self._HANG_S - 1, f"nobody had to wait for the server: {for_s:.0f} s"


class LostBesideHdfs(LostWhileItUploads):
    """An executor is lost while it uploads to HDFS."""

    mode = "hdfs"


class HdfsHangs(S3Hangs):
    """NameNode and DataNode do nothing for 20 s, while a task uploads."""

    mode = "hdfs"


class KeyReplaced(Once):
    """While a task uploads, the server gets another key in the place of the profile's."""

    mode = "keys"

    def rows(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            if number == 5 and self._is_first():
                self._replace()
            yield batch

    @property
    def _new_key(self) -> str:
        return self._marker.stem.replace(".", "-")

    def _replace(self) -> None:
        write_profile(Path(os.environ[PROFILES]), self._new_key)
        versitygw.write_accounts(Path(os.environ[ACCOUNTS]), {self._new_key: KEY_SECRET}, "admin")


class KeyExpired(KeyReplaced):
    """The profile gets the new key when the job has failed for the old one, and is run again."""

    def _replace(self) -> None:
        versitygw.write_accounts(Path(os.environ[ACCOUNTS]), {self._new_key: KEY_SECRET}, "admin")

    def repair(self, error: Exception) -> bool:
        failed = self._marker.with_suffix(".failed")
        if failed.exists() or "does not know this access key" not in _causes(error):
            return False
        failed.touch()
        write_profile(Path(os.environ[PROFILES]), self._new_key)
        return True

    def settle(self) -> None:
        assert self._marker.with_suffix(".failed").exists(), "the job had other credentials"


class Storm(Once):
    """Attempt after attempt of each task is killed, each further on than the one before.

    It is the Python worker that is killed, and at last the executor: where the task reads, before
    it writes, between segments, and when all is uploaded.
    """

    task = None
    mode = "storm"
    _KILLS = 9
    """Of a task where it reads, or makes, its rows; as many where it writes them."""
    _PLACES = 0, 2, 4, 5
    """Batches that have passed by then."""

    def repeated(self) -> Fault:
        return self

    def upstream(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            self._strike("reads", number)
            yield batch

    def rows(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            self._strike("writes", number)
            yield batch

    def written(self) -> None:
        self._strike("writes", self._PLACES[-1])

    def _strike(self, side: str, batches: int) -> None:
        """Kill what runs this, if its turn has come."""
        context = TaskContext.get()
        assert context is not None
        before = len([*self._struck(f"{side}.{context.partitionId()}.*")])
        if before < self._KILLS and batches == self._PLACES[before % len(self._PLACES)]:
            self._is_first()
            mark = self._marker.with_suffix(f".{side}.{context.partitionId()}.{before}")
            mark.touch(exist_ok=False)
            last = side == "writes" and before == self._KILLS - 1
            os.kill(executor_jvm() if last else os.getpid(), signal.SIGKILL)

    def _struck(self, which: str) -> Iterator[Path]:
        return self._marker.parent.glob(f"{self._marker.stem}.{which}")

    def settle(self) -> None:
        struck = len([*self._struck("reads.*"), *self._struck("writes.*")])
        assert struck > READ_TASKS * self._KILLS, f"only {struck} attempts were killed"


def _causes(error: BaseException | None) -> str:
    """The messages of an error and of its causes, Spark's own ones too."""
    if error is None:
        return ""
    return f"{error}\n{_causes(getattr(error, '_cause', None) or error.__cause__)}"


class DriverEnds(Once):
    """The driver ends at one of its steps: at which is said by the environment."""

    def __init__(self, marker: Path) -> None:
        super().__init__(marker)
        if self._is_first():
            Path(os.environ[STEPS]).touch()


FAULTS: dict[str, type[Once]] = {
    "map": LostInTheMapStage,
    "reduce": LostInTheReduceStage,
    "uploading": LostWhileItUploads,
    "uploaded": LostBeforeItReports,
    "fails": TaskFails,
    "fetch": FetchFails,
    "clocks": ClocksDiffer,
    "outrun": Outrun,
    "leaves": Decommissioned,
    "released": Released,
    "s3-uploading": LostBesideS3,
    "s3-hangs": S3Hangs,
    "hdfs-uploading": LostBesideHdfs,
    "hdfs-hangs": HdfsHangs,
    "key-replaced": KeyReplaced,
    "key-expired": KeyExpired,
    "storm": Storm,
}
MODES: dict[str, dict[str, object]] = {
    "steady": {},
    # As fast as it can be told that a task takes long.
    "speculating": {
        "spark_speculation": "true",
        "spark_speculation_interval": "100ms",
        "spark_speculation_quantile": "0.5",
        "spark_speculation_multiplier": "1.1",
        "spark_python_task_killTimeout": "1h",  # a worker that has lost may end what it does
    },
    "leaving": {
        "spark_decommission_enabled": "true",
        # By then it has gone, also if nobody is left who could take what it has shuffled.
        "spark_executor_decommission_forceKillTimeout": "15s",
        "spark_storage_decommission_enabled": "true",
        "spark_storage_decommission_shuffleBlocks_enabled": "true",
    },
    "dynamic": {
        "spark_dynamicAllocation_enabled": "true",
        "spark_dynamicAllocation_initialExecutors": "2",
        "spark_dynamicAllocation_executorIdleTimeout": "1s",
        "spark_dynamicAllocation_shuffleTracking_enabled": "true",
    },
    # A task, or a stage, may fail as often as it is killed.
    "storm": {
        "spark_task_maxFailures": "100",
        "spark_stage_maxConsecutiveAttempts": "100",
        "spark_stage_maxAttempts": "100",
    },
    # The store is at a server, whose process is named in the environment.
    "s3": {},
    "hdfs": {},
    # As "s3", with keys that the server can forget, and a profile.
    "keys": {},
}
SERVER = "TXNLOG_TEST_SERVER"
ACCOUNTS = "TXNLOG_TEST_ACCOUNTS"
"""The folder of the server's accounts, for faults."""
PROFILES = "AWS_SHARED_CREDENTIALS_FILE"
KEY_SECRET = "secret"


def write_profile(path: Path, key: str) -> None:
    """Make this the key of all who have the default profile."""
    new = path.with_suffix(".new")
    new.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={KEY_SECRET}\n")
    new.replace(path)


# -- paths ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One path under one fault."""

    spark: SparkSession
    store: Store
    folder: Path
    topic: str
    fault: Once

    def made(self) -> DataFrame:
        """The numbers, made by Spark: n and pad."""
        rows = self.spark.range(0, RECORDS, 1, READ_TASKS).selectExpr("id AS n")
        return self.disturbed(rows.selectExpr("n", f"{WIDE} AS pad"))

    def disturbed(self, frame: DataFrame) -> DataFrame:
        """The rows by way of the fault."""
        fault = self.fault  # tasks get nothing else
        return frame.mapInArrow(fault.upstream, frame.schema)

    def block(self) -> SparkTransaction:
        """A transaction that reads with the cell's own group."""
        return transaction(self.spark, self.store, transactional_id=self.topic, group_id=self.topic)

    def read(self, txn: SparkTransaction, topic: str = IN, native: bool | None = None) -> DataFrame:
        options = None if native else {"minPartitions": READ_TASKS}
        return self.disturbed(txn.read(topic, native=native, options=options))

    def save(self, frame: DataFrame, **options: str) -> None:
        given = {"path": self.store.url, "topic": self.topic, **options}
        frame.write.format("txnlog").options(**given).mode("append").save()

    def stream(self) -> DataFrame:
        """The numbers as a stream: of the topic, or where Spark has no such streams of files."""
        if sys.modules.get("pyspark.sql.streaming.datasource") is not None:
            source = self.spark.readStream.format("txnlog").option("subscribe", IN)
            given = {"path": self.store.url, "minPartitions": str(READ_TASKS)}
            source = source.options(**given).option("startingOffsets", "earliest")
            return self.disturbed(source.load().select("key", "value"))
        files = self.folder / "files"
        if not files.exists():
            rows = self.spark.range(0, RECORDS, 1, READ_TASKS).selectExpr("id AS n")
            rows.selectExpr(f"{WIDE} AS key", "string(n) AS value").write.parquet(str(files))
        found = self.spark.readStream.schema("key string, value string").parquet(str(files))
        return self.disturbed(found)

    @property
    def reads_natively(self) -> bool:
        """Spark's JVM reaches the files of typed topics where they are on a disk."""
        return "://" not in self.store.url

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{self.topic}")


def format_write(cell: Cell) -> None:
    cell.save(cell.made().selectExpr("pad AS key", "string(n) AS value"))


def options_alone(cell: Cell) -> None:
    names = {"group.id": cell.topic, "transactional.id": cell.topic}
    ids = {**names, "minPartitions": str(READ_TASKS)}
    source = cell.spark.read.format("txnlog").options(path=cell.store.url, subscribe=IN, **ids)
    rows = cell.disturbed(source.load().select("key", "value"))
    cell.save(rows, **{"transactional.id": cell.topic})


def with_keys(cell: Cell) -> None:
    with cell.block() as txn:
        txn.write(cell.read(txn).select("key", "value"), topic=cell.topic)


def without_keys(cell: Cell) -> None:
    with cell.block() as txn:
        rows = cell.read(txn).selectExpr("concat(value, ':', string(key)) AS value")
        txn.write(rows, topic=cell.topic)


def typed(cell: Cell) -> None:
    with cell.block() as txn:
        txn.write(cell.read(txn, TYPED_IN, native=cell.reads_natively), topic=cell.topic)


def typed_by_source(cell: Cell) -> None:
    with cell.block() as txn:
        txn.write(cell.read(txn, TYPED_IN, native=False), topic=cell.topic)


def grouped(cell: Cell) -> None:
    """An aggregation's own shuffle beneath the write."""
    with cell.block() as txn:
        rows = cell.read(txn).groupBy("value").agg(sf.max("key").alias("key"))
        txn.write(rows.repartition(WRITE_TASKS, "value"), topic=cell.topic)


def shuffled_with_keys(cell: Cell) -> None:
    with cell.block() as txn:
        rows = cell.read(txn).select("key", "value")
        shuffled = shuffle_by_partition(rows, cell.store, cell.topic, tasks=WRITE_TASKS)
        txn.write(shuffled, topic=cell.topic)


def shuffled_without_keys(cell: Cell) -> None:
    with cell.block() as txn:
        rows = cell.read(txn).selectExpr("concat(value, ':', string(key)) AS value")
        shuffled = shuffle_by_partition(rows, cell.store, cell.topic, tasks=WRITE_TASKS)
        txn.write(shuffled, topic=cell.topic)


def shuffled_twice(cell: Cell) -> None:
    """Keyless rows that come in another order each time."""
    with cell.block() as txn:
        rows = cell.read(txn).selectExpr("concat(value, ':', string(key)) AS value")
        rows = rows.repartition(READ_TASKS)
        shuffled = shuffle_by_partition(rows, cell.store, cell.topic, tasks=WRITE_TASKS)
        txn.write(shuffled, topic=cell.topic)


def shuffled_typed(cell: Cell) -> None:
    with cell.block() as txn:
        rows = cell.read(txn, TYPED_IN, native=cell.reads_natively).repartition(READ_TASKS)
        shuffled = shuffle_by_partition(rows, cell.store, cell.topic, tasks=WRITE_TASKS)
        txn.write(shuffled, topic=cell.topic)


def stream(cell: Cell) -> None:
    sink = {"path": cell.store.url, "topic": cell.topic, "checkpointLocation": cell.checkpoint()}
    writer = cell.stream().writeStream.format("txnlog").options(**sink)
    writer.trigger(availableNow=True).start().awaitTermination()


def for_each_batch(cell: Cell) -> None:
    topic = cell.topic

    def parts(txn: SparkTransaction, batch: DataFrame) -> None:
        number = sf.col("value").cast("string").cast("long")
        for part in (number % 20 == 0, number % 20 > 0):
            txn.write(batch.where(part), topic=topic)

    writer = cell.stream().writeStream.foreachBatch(foreach_batch(cell.store, parts))
    writer = writer.option("checkpointLocation", cell.checkpoint())
    writer.trigger(availableNow=True).start().awaitTermination()


def merged_meanwhile(cell: Cell) -> None:
    """What is read was many small segments when it was planned, and is few when tasks begin."""
    source = small_topic(cell.topic)
    with cell.block() as txn:
        read = txn.read(source, options={"minPartitions": READ_TASKS})
        rows = cell.disturbed(read.select("key", "value").coalesce(READ_TASKS))
        cell.store.maintain([source])
        assert len(cell.store.topics.segments(source)) < COMMITS, "nothing was merged"
        txn.write(rows, topic=cell.topic)


def merge(cell: Cell) -> None:
    maintained(cell, Merge)


def compact(cell: Cell) -> None:
    maintained(cell, Compaction)


def maintained(cell: Cell, kind: type[Merge | Compaction]) -> None:
    worker = faulty_worker(cell.fault)
    with patch.object(txnlog.spark.maintenance, "_Worker", worker):
        done = maintain(cell.spark, cell.store, cell.topic)
    for step in done:
        if isinstance(step, MaintenanceFailure):
            raise step.error
    assert any(isinstance(step, kind) for step in done), "there was nothing to do"


PATHS: dict[str, Callable[[Cell], None]] = {
    "format": format_write,
    "options": options_alone,
    "keys": with_keys,
    "no-keys": without_keys,
    "typed": typed,
    "typed-source": typed_by_source,
    "merged-meanwhile": merged_meanwhile,
    "grouped": grouped,
    "shuffled-keys": shuffled_with_keys,
    "shuffled-no-keys": shuffled_without_keys,
    "shuffled-twice": shuffled_twice,
    "shuffled-typed": shuffled_typed,
    "stream": stream,
    "foreach-batch": for_each_batch,
    "merge": merge,
    "compact": compact,
}
MAINTAINED = {"merge", "compact"}
"""Those whose rows are there before, and are written anew."""
SMALL = {*MAINTAINED, "merged-meanwhile"}
READS = PATHS.keys() - {"format", "stream", "foreach-batch"} - MAINTAINED
"""Those that move a group."""
TYPED = {"typed", "typed-source", "shuffled-typed"}
SHUFFLED = {path for path in PATHS if path == "grouped" or path.startswith("shuffled")}
CELLS = [
    (path, fault)
    for mode in MODES
    for path in PATHS
    for fault, kind in FAULTS.items()
    if kind.mode == mode
    and (fault != "fetch" or path in SHUFFLED)
    and (fault != "released" or path not in SHUFFLED)
]
"""Each path under each fault: where nothing is shuffled nothing is fetched, and elsewhere Spark
keeps its executors."""


LEAVES = {
    (path, fault)
    for path in PATHS
    for fault in ("uploading", "uploaded", "s3-uploading", "hdfs-uploading")
    if fault == "uploaded" or path not in MAINTAINED
}
"""Those after which segments of a lost executor are in no log. A task of maintenance has only one,
which it ends last.
"""
STEPPED = ("options", "keys", "typed", "stream", "foreach-batch", *sorted(MAINTAINED))
"""Each way in which a driver goes on; what other paths do besides is done by tasks. Of "format"
a driver that runs again writes everything again: it has no id, and no version.
"""


def written(store: Store, topic: str) -> list[int]:
    """The numbers in a cell's topic, read without Spark."""
    if topic.partition(".")[0] in TYPED:
        found: list[int] = store.scan(topic, columns=["n"]).to_arrow().column("n").to_pylist()
        return found
    values = store.scan(topic, columns=["value"]).to_arrow().column("value").to_pylist()
    return [int(value.partition(b":")[0]) for value in values]


def times_ms(store: Store, topic: str) -> tuple[int, int]:
    """The first and the last time of the records in a cell's topic, read without Spark."""
    name = "_timestamp" if topic.partition(".")[0] in TYPED else "timestamp"
    times = store.scan(topic, columns=[name]).to_arrow().column(name).cast(pa.int64())
    return min(times.to_pylist()), max(times.to_pylist())


def event_logs(folder: Path) -> Path:
    """Where Spark tells what its tasks did."""
    return folder / "events"


# -- the driver ----------------------------------------------------------------------------------


def fill(store: Store) -> None:
    """The input topics: a segment for each task that reads."""
    store.topics.create(IN, partitions=READ_TASKS)
    store.topics.create(TYPED_IN, partitions=READ_TASKS, schema=SCHEMA)
    texts = [f"{number}" for number in range(RECORDS)]
    wide = [shake_128(text.encode()).hexdigest(512) for text in texts]
    with store.producer() as producer:
        producer.send_batch(IN, pa.record_batch({"key": wide, "value": texts}))
        numbers = pa.array(range(RECORDS), pa.int64())
        producer.send_batch(TYPED_IN, pa.record_batch([numbers, pa.array(wide)], schema=SCHEMA))


def small_topic(topic: str) -> str:
    """The topic of many small segments that a cell has."""
    return topic if topic.partition(".")[0] in MAINTAINED else f"{topic}.in"


def create(store: Store, topic: str) -> None:
    """The topic of a cell, and what its path has to find."""
    path = topic.partition(".")[0]
    if path in SMALL:
        policy = "compact" if path == "compact" else "delete"
        config = {"segment.bytes": str(1 << 20), "cleanup.policy": policy}
        store.topics.create(small_topic(topic), partitions=READ_TASKS, config=config)
        fill_small(store, small_topic(topic), twice=path == "compact")
    if path not in MAINTAINED:
        schema = SCHEMA if path in TYPED else None
        store.topics.create(topic, partitions=PARTITIONS, config=SMALL_SEGMENTS, schema=schema)


def fill_small(store: Store, topic: str, *, twice: bool) -> None:
    """All numbers, in COMMITS; before these, with ``twice``, -1 under the same keys."""
    texts = [f"{number}" for number in range(RECORDS)]
    keys = [shake_128(text.encode()).hexdigest(512) for text in texts]
    with store.producer() as producer:
        for values in ([["-1"] * RECORDS] if twice else []) + [texts]:
            for part in range(COMMITS):
                rows = {"key": keys[part::COMMITS], "value": values[part::COMMITS]}
                producer.send_batch(topic, pa.record_batch(rows))
                producer.flush()


def run(master: str, url: str, folder: str, mode: str) -> None:
    event_logs(Path(folder)).mkdir(exist_ok=True)
    spark = session(
        master,
        **MODES[mode],
        spark_executor_memory="512m",
        spark_sql_execution_arrow_maxRecordsPerBatch=BATCH,
        # Executors on one machine would read each other's files, also those of a dead one.
        spark_shuffle_readHostLocalDisk="false",
        spark_sql_files_maxPartitionBytes="4m",
        spark_python_authenticate_socketTimeout="5m",  # of a worker that starts on a busy machine
        spark_sql_shuffle_partitions=WRITE_TASKS,
        spark_eventLog_enabled="true",
        spark_eventLog_dir=event_logs(Path(folder)).as_uri(),
        spark_eventLog_compress="false",
    )
    register(spark)
    store = txnlog.open(url, create=True)
    if not store.topics.list(IN):
        fill(store)
    say("ready")
    for line in sys.stdin:
        path, name = line.split()
        topic = target(path, name)
        marker = Path(folder, f"{topic}.lost")
        if not marker.exists():
            create(store, topic)
        spark.sparkContext.setLocalProperty(CELL, topic)
        fault = FAULTS.get(name, DriverEnds)(marker)
        spark.dataSource.register(faulty(fault))
        cell = Cell(spark, store, Path(folder), topic, fault)
        try:
            try:
                PATHS[path](cell)
            except Exception as error:
                if not fault.repair(error):
                    raise
                PATHS[path](cell)
            fault.settle()
        except Exception as error:  # noqa: BLE001 - the test judges
            text = " ".join(str(error).split())
            say("failed", type(error).__name__, text[:400], "...", text[-400:])
        else:
            say("done")
    spark.stop()


if __name__ == "__main__":
    run(*sys.argv[1:])
