"""A pinned read as a DataFrame: by Spark's own read of Parquet files, the data source, or both.

The rows are the same; the speed is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from txnlog.errors import InvalidOption
from txnlog.read.plan import SegmentRange
from txnlog.spark.batch.hadoop_files import HadoopRoot, find_root, say_how
from txnlog.spark.batch.native_read import MOST_RUNS, NativeReader, Run, plan_runs
from txnlog.spark.batch.pinned_read import PinnedRead, spans_of
from txnlog.spark.batch.planned_files import JavaClasses, why_not
from txnlog.spark.batch.provenance import Origin, column_metadata, format_origin, leave_note_alone
from txnlog.spark.batch.row_schema import read_schema
from txnlog.spark.options.option_names import (
    AT_TIMESTAMP,
    AT_TOKEN,
    ORIGIN,
    PINNED_SNAPSHOT,
    PINNED_SPANS,
)
from txnlog.spark.options.positions import offsets_json
from txnlog.spark.options.read_options import ReadOptions
from txnlog.spark.options.task_sizes import TaskSizes
from txnlog.storage.base import Storage

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def read_frame(
    spark: SparkSession,
    storage: Storage,
    pinned: PinnedRead,
    parsed: ReadOptions,
    options: Mapping[str, str],
    *,
    native: bool | None,
    only: Sequence[SegmentRange] | None = None,
    ordered: bool = False,
    origin: Origin | None = None,
) -> DataFrame:
    """The DataFrame of a pinned read.

    ``options`` are ``parsed`` as text, with those that tell Spark's tasks how to open the store.
    ``native``: True: Spark must read the Parquet files, else InvalidOption is raised; False: the
    data source reads everything; None: Spark does if the JVM reaches the files and no option says
    how to make tasks. ``only`` leaves all other ranges out.

    ``ordered``: the rows of each partition are in the order of their offsets, task after task; the
    data source reads everything where Spark would need very many scans for it. ``origin`` is the
    ``transaction(...)`` that its rows may be written in.
    """
    if origin is not None:
        options = {**options, ORIGIN: format_origin(origin)}
    ranges = pinned.ranges if only is None else only
    runs = plan_runs(ranges, pinned.schema, ordered=ordered)
    root = None
    if native is not False and (native or any(run.files for run in runs)):
        root = _native_root(spark, storage, runs, parsed, must=native is True)
    if root is None:
        return _python_frame(spark, options, pinned, only)
    columns = parsed.columns.of(pinned.schema)
    reader = NativeReader(spark, root, columns)
    frames = [
        reader.frame(run.ranges, run.files)
        if run.files
        else _python_frame(spark, options, pinned, run.ranges)
        for run in runs
    ]
    schema = read_schema(columns, column_metadata(origin))
    if origin is not None:
        # First: a union has the metadata of its first frame's columns; and one task that stands for
        # several (`coalesce`) may end before the last of them, at a `limit`.
        frames.insert(0, _note(spark, storage, origin, schema))
    if not frames:
        frames.append(_no_rows(spark, schema))
    return reduce(lambda one, other: one.union(other), frames)


def _no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows and without tasks."""
    session: Any = spark._jsparkSession  # noqa: SLF001 - PySpark's own makes tasks
    none = JavaClasses(spark)("java.util.List").of()
    return DataFrame(session.createDataFrame(none, session.parseDataType(schema.json())), spark)


def _note(spark: SparkSession, storage: Storage, origin: Origin, schema: StructType) -> DataFrame:
    """No rows, of a task that leaves the note which tasks of our own would leave."""

    def leave(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return leave_note_alone(storage, origin, batches)

    return spark.range(0, 1, 1, 1).mapInArrow(leave, schema)


def _native_root(
    spark: SparkSession,
    storage: Storage,
    runs: Sequence[Run],
    parsed: ReadOptions,
    *,
    must: bool,
) -> str | None:
    sized = parsed.task_sizes != TaskSizes()
    if sized and must:
        raise InvalidOption(
            "native=True: Spark splits files by its own settings (spark.sql.files.*), so leave "
            "minPartitions, maxRecordsPerPartition, maxBytesPerPartition and openCostInBytes out"
        )
    if parsed.skip_damaged and must:
        raise InvalidOption(
            "native=True: Spark itself cannot pass damaged records; leave it out, or onCorrupt=skip"
        )
    if sized or parsed.skip_damaged:
        return None
    first = next((run.ranges[0] for run in runs if run.files), None)
    found = find_root(spark, storage, first, must=must)
    if found.root is not None and (why := why_not(spark)):
        found = HadoopRoot(None, why)
    elif found.root is not None and len(runs) > MOST_RUNS and not must:
        many = f"its files lie between records of other kinds, which takes {len(runs)} scans"
        found = HadoopRoot(None, many)
    if found.root is None and must:
        raise InvalidOption(
            f"native=True: Spark's JVM cannot read the files of {storage.url}: {found.why}. It "
            "needs Hadoop's connector for this storage with its settings (for S3 hadoop-aws and "
            "fs.s3a.*), and a session that is not Spark Connect's; or leave native out"
        )
    say_how(spark, storage.url, found.why)
    return found.root


def pin_options(
    options: Mapping[str, str], pinned: PinnedRead, only: Sequence[SegmentRange] | None = None
) -> dict[str, str]:
    """The options with which Spark's own process resolves to exactly what was pinned.

    The topics may change before that process reads them: partitions or columns may be added,
    records be compacted, and transactions be committed before the pinned ends.
    """
    assert pinned.snapshot is not None
    starts: dict[str, dict[int, int]] = {}
    stops: dict[str, dict[int, int]] = {}
    for where, span in pinned.offsets.items():
        starts.setdefault(where.topic, {})[where.partition] = span.start
        stops.setdefault(where.topic, {})[where.partition] = span.stop
    return {
        **{name: value for name, value in options.items() if not _chooses_offsets(name)},
        "subscribe": ",".join(starts),
        "startingOffsets": offsets_json(starts),
        "endingOffsets": offsets_json(stops),
        PINNED_SNAPSHOT: pinned.snapshot.encode(),
        PINNED_SPANS: json.dumps(spans_of(pinned.ranges if only is None else only)),
    }


def _chooses_offsets(option: str) -> bool:
    return option.lower().startswith(("starting", "ending", AT_TIMESTAMP.lower(), AT_TOKEN.lower()))


def _check_batch_size(spark: SparkSession) -> None:
    """PySpark has an assertion that says nothing of a setting, before it asks a data source."""
    most = str(spark.conf.get(BATCH_ROWS, "10000"))
    if int(most) <= 0:
        raise InvalidOption(
            f"{BATCH_ROWS} is {most}: PySpark takes no such number where a Python data source "
            f"reads. Set one above 0, such as spark.conf.set('{BATCH_ROWS}', 10000)"
        )


def _python_frame(
    spark: SparkSession,
    options: Mapping[str, str],
    pinned: PinnedRead,
    only: Sequence[SegmentRange] | None = None,
) -> DataFrame:
    """The data source's part: all pinned ranges, or some of them."""
    _check_batch_size(spark)
    given = pin_options(options, pinned, only)
    return spark.read.format("txnlog").options(**given).load()
