"""Faults in the first attempt of a task, from inside the Python worker that writes its rows.

``faulty(fault)`` is the data source with its writer wrapped: rows on their way to it go through the
fault. ``faulty_worker(fault)`` is the same for what ``txnlog.spark.maintain`` writes. The rest is
as it is. Imported by tests and by Spark's workers.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from txnlog.admin.compaction.span_writer import SpanWriter
from txnlog.spark import TxnlogDataSource
from txnlog.spark.maintenance import _Worker
from txnlog.write.segment_uploads import SegmentUploader

Rows = Iterator[pa.RecordBatch]

TASKS = 4
FAULTY_TASK = 0


class Fault:
    """Something that happens to the first attempt of a task: of task 0 unless it says more."""

    task: int | None = FAULTY_TASK
    """None: of each task."""

    def upstream(self, given: Rows) -> Rows:
        """What happens to rows before they are written, or shuffled."""
        return given

    def rows(self, given: Rows) -> Rows:
        """The rows that the writer gets."""
        return given

    def written(self) -> None:
        """The writer has uploaded everything."""

    def repeated(self) -> Fault:
        """Another attempt of the task begins; what happens to that one."""
        return Fault()


def _of_this_attempt(fault: Fault) -> Fault:
    """What happens to the attempt that this process runs."""
    context = TaskContext.get()
    assert context is not None
    own = fault if fault.task in (None, context.partitionId()) else Fault()
    return own.repeated() if context.attemptNumber() > 0 else own


class FaultyWriter(DataSourceArrowWriter):
    """The real writer, with a fault in one attempt of one task."""

    def __init__(self, real: Any, fault: Fault) -> None:
        self._real = real
        self._fault = fault

    def write(self, iterator: Rows) -> WriterCommitMessage:
        fault = _of_this_attempt(self._fault)
        message: WriterCommitMessage = self._real.write(fault.rows(iterator))
        fault.written()
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._real.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._real.abort(messages)


class FaultyStreamWriter(DataSourceStreamArrowWriter):
    """The same for a micro-batch."""

    def __init__(self, real: Any, fault: Fault) -> None:
        self._real = real
        self._writer = FaultyWriter(real, fault)

    def write(self, iterator: Rows) -> WriterCommitMessage:
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._real.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._real.abort(messages, batchId)


def faulty(fault: Fault) -> type[TxnlogDataSource]:
    """The data source with a fault; register it, and it takes the place of the real one."""

    class Faulty(TxnlogDataSource):
        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return FaultyWriter(super().writer(schema, overwrite), fault)

        def streamWriter(  # noqa: N802
            self, schema: StructType, overwrite: bool
        ) -> DataSourceStreamWriter:
            return FaultyStreamWriter(super().streamWriter(schema, overwrite), fault)

    return Faulty


def faulty_worker(fault: Fault) -> type[_Worker]:
    """The worker of ``maintain`` with a fault; put it in the place of the real one.

    A task begins, and then takes a step of the fault with every second batch that it writes.
    """

    class Faulty(_Worker):
        def __call__(self, batches: Iterable[pa.RecordBatch]) -> Rows:
            own = _of_this_attempt(fault)
            steps = own.rows(own.upstream(iter([pa.record_batch({"step": [0]})] * 20)))
            next(steps, None)
            written = count(1)

            def stepping(write: Callable[..., None]) -> Callable[..., None]:
                def step_and_write(*given: Any) -> None:
                    if next(written) % 2 == 0:
                        next(steps, None)
                    write(*given)

                return step_and_write

            with (
                patch.object(SegmentUploader, "write", stepping(SegmentUploader.write)),
                patch.object(SpanWriter, "append", stepping(SpanWriter.append)),
            ):
                made = [*super().__call__(batches)]
            own.written()
            yield from made

    return Faulty


def wide_numbers(spark: SparkSession, count: int) -> DataFrame:
    """Numbers as values, with keys of 1 KiB, so that half of a task is some megabytes."""
    text = "cast(id as string)"
    return spark.range(0, count, 1, TASKS).selectExpr(
        f"repeat(sha2({text}, 512), 8) as key", f"{text} as value"
    )


class Kill(Fault):
    """SIGKILL after some batches: to the worker itself, or to the JVM of its executor.

    Args:
        executor: the JVM.
        batches: how many pass before.
        marker: a file that is made just before.
    """

    def __init__(self, marker: Path, *, executor: bool, batches: int) -> None:
        self._marker = marker
        self._executor = executor
        self._batches = batches

    def rows(self, given: Rows) -> Rows:
        for number, batch in enumerate(given):
            if number == self._batches:
                self._marker.touch()
                os.kill(executor_jvm() if self._executor else os.getpid(), signal.SIGKILL)
            yield batch


def executor_jvm() -> int:
    """The JVM: the parent of the daemon that forks the workers."""
    parent = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(os.getppid())], capture_output=True, text=True, check=True
    )
    return int(parent.stdout)


class Straggle(Fault):
    """Take all rows, and upload none before the test says so.

    Args:
        folder: of the named pipes.
        outrun: there will be a copy of the task; neither goes on before both are there.
    """

    def __init__(self, folder: Path, *, outrun: bool = False) -> None:
        self._meeting = folder / "meeting"
        self._go_on = folder / "go-on"
        self._done = folder / "done"
        self._outrun = outrun

    def make(self) -> None:
        for path in (self._meeting, self._go_on, self._done):
            os.mkfifo(path)

    def repeated(self) -> Fault:
        self._meeting.open("rb").close()  # each side waits until the other opens it
        return Fault()

    def rows(self, given: Rows) -> Rows:
        taken = list(given)
        if self._outrun:
            self._meeting.open("wb").close()
        with self._go_on.open("rb") as pipe:  # waits for somebody who opens it to write,
            pipe.read()  # and closes it
        yield from taken

    def written(self) -> None:
        with self._done.open("wb") as answer:
            answer.write(b"uploaded")

    def met(self) -> int | None:
        """In the test: a descriptor that holds the straggler while it is open; None: not there."""
        try:
            return os.open(self._go_on, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None

    def release(self, held: int, timeout_s: float) -> bytes:
        """In the test: let the straggler go on; what it says once it has uploaded."""
        answer = os.open(self._done, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.close(held)
            ready, _, _ = select.select([answer], [], [], timeout_s)
            return os.read(answer, 100) if ready else b""
        finally:
            os.close(answer)
