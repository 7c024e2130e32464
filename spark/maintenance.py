"""Maintenance of topics that are too large for one machine: Spark's tasks compact and merge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa

from txnlog import errors
from txnlog.admin.rewrite import RewriteTask, TaskRunner
from txnlog.errors import InvalidOption, TxnlogError
from txnlog.spark.options.store_options import store_options
from txnlog.spark.registration import register
from txnlog.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from txnlog.admin.maintenance import MaintenanceStep

T = TypeVar("T")

TASKS_PER_JOB = 256
"""The work of one job, whose results are put into the log before the next: a crash loses no more.
"""
_RESULT = "task int, failed string, made binary"


def maintain(
    spark: SparkSession,
    path: str | Store,
    topics: str | Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    orphan_age_ms: int | None = None,
    publish: str | Sequence[str] = (),
    storage_options: Mapping[str, object] | None = None,
) -> list[MaintenanceStep]:
    """Do what :meth:`txnlog.Store.maintain` does; Spark's tasks read and write what is rewritten.

    A task merges a run of small segments, or compacts a partition. The driver writes the results
    into the topics' logs and does the rest. Several may run at the same time.

        maintain(spark, "s3://bucket/store", topics=["orders"])

    Args:
        spark: the session whose tasks do it.
        path: the store's folder or URL, or an open store: Spark's tasks open it as it was opened.
        topics: as for ``Store.maintain``; so are the next two.
        dry_run: only say what would be done.
        orphan_age_ms: uploaded files that nothing refers to are deleted at this age.
        publish: where the driver may publish topics that have ``table.publish``.
        storage_options: for the filesystem, as ``txnlog.open`` takes them.

    Returns:
        What was done, in order.

    Raises:
        InvalidOption, InvalidTopic, StoreNotFound, StorageError: it can be called again.
    """
    from txnlog.admin.maintenance import Maintenance

    options = dict(storage_options or {})
    store = path if isinstance(path, Store) else open_store(path, storage_options=options)
    if store.url.startswith("memory:"):
        raise InvalidOption(f"{store.url} is in this process only; Spark's tasks cannot reach it")
    store_options(store, options)  # refuses what would show in plans
    register(spark)  # its tasks may need this Python
    chosen = [topics] if isinstance(topics, str) else topics
    maintenance = Maintenance(
        store.logs,
        chosen,
        orphan_age_ms,
        dry_run=dry_run,
        publish=publish,
        run_tasks=_run_in_spark(spark, store),
    )
    return [*maintenance.steps()]


def _run_in_spark(spark: SparkSession, store: Store) -> TaskRunner:
    def run(tasks: Sequence[RewriteTask[T]]) -> Iterator[Iterator[T]]:
        for first in range(0, len(tasks), TASKS_PER_JOB):
            some = [*tasks[first : first + TASKS_PER_JOB]]
            rows = (
                spark.range(0, len(some), 1, len(some))
                .mapInArrow(_Worker(store, some), _RESULT)
                .collect()
            )
            found = {row["task"]: row for row in rows}
            for number, task in enumerate(some):
                yield _results(task, found[number])

    return run


def _results(task: RewriteTask[T], row: Row) -> Iterator[T]:
    if row["failed"]:
        kind = getattr(errors, row["failed"], errors.TxnlogError)
        error: TxnlogError = kind.__new__(kind)
        error.args = (bytes(row["made"]).decode(),)
        raise error
    yield from msgspec.msgpack.decode(bytes(row["made"]), type=list[task.made_type])  # type: ignore[name-defined]


class _Worker:
    """Runs the tasks with the given numbers."""

    def __init__(self, store: Store, tasks: Sequence[RewriteTask[object]]) -> None:
        self._store = store
        self._tasks = tasks

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                failed = ""
                try:
                    logs = self._store.logs
                    done = [*self._tasks[number].run(logs.storage, logs.clock)]
                    made = msgspec.msgpack.encode(done)
                except TxnlogError as error:
                    failed, made = type(error).__name__, str(error).encode()
                yield pa.record_batch(
                    {
                        "task": pa.array([number], pa.int32()),
                        "failed": pa.array([failed], pa.string()),
                        "made": pa.array([made], pa.binary()),
                    }
                )
