"""Batches for Python that stay small though Spark does not add up their bytes after each row.

The sum is what ``spark.sql.execution.arrow.maxBytesPerBatch`` asks for, and takes as long as half
of a write of many columns. Here the number of rows bounds a batch instead: a row that takes more
than its share of the bytes is followed by fillers, one for each further share, which the writer
drops: their first text is a mark drawn by chance, their other texts are null. The setting is turned
off in a property of the job, not in the session.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add, or_

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, DataType, NullType, StringType

from txnlog.spark.batch.catalyst import Java, analyzed_plan, kind, sequence
from txnlog.spark.batch.native_read import quote
from txnlog.spark.batch.read_frame import BATCH_ROWS
from txnlog.spark.batch.typed_rows import arrow_type

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNBOUNDED = str((1 << 31) - 1)
"""The value with which Spark adds nothing up."""

_MOST_BYTES = 64 << 20
"""In a batch: what Spark's own setting is by default."""

_SMALL_BYTES = 4 << 20
"""Of less, as its files hold it, the sum takes no longer than to plan the fillers: 50 ms."""

_MARK_BYTES = 32

_LEAST_COLUMNS = 3
"""The sum of two of one type takes no longer than fillers do. Of two types it does: then its calls
go to several classes, which Java does not compile into one another.
"""

_LEAST_SHARE_BYTES = 4 << 10
"""Below it too many rows would need fillers."""

_NAMES_ARE_PATTERNS = "spark.sql.parser.quotedRegexColumnNames"
_COMPILES = "spark.sql.codegen.wholeStage"
_COMPILED_COLUMNS = "spark.sql.codegen.maxFields"
"""Code that is not compiled copies a row for each of its fillers: one of 5 MB took eight times as
long as its sum."""


@contextmanager
def unmeasured(frame: DataFrame) -> Iterator[tuple[DataFrame, str | None]]:
    """While it is entered, jobs of this thread do not add up the bytes of batches for Python.

    Yields the frame, and None; or one with fillers, and their mark, of ASCII: it is what they have
    in the first column of texts or bytes. The frame's own rows have their order. The first, with
    nothing turned off, where that does not pay or cannot be done: the frame is made of little, or
    has one column, two of one type, or more than Spark compiles; the session has the setting; the
    frame runs functions in Python, which would get the larger batches without fillers; it was
    repartitioned, and must stay so; it has columns of no bounded width, is a stream's batch, or
    comes through Spark Connect.
    """
    plan = analyzed_plan(frame)
    share_bytes = None if plan is None else _share_bytes(frame)
    if plan is None or share_bytes is None or not _pays(frame, plan):
        yield frame, None
        return
    context = frame.sparkSession.sparkContext
    before = context.getLocalProperty(BATCH_BYTES)
    # Spark sets such properties itself, from the session's settings, for what tasks look up.
    context.setLocalProperty(BATCH_BYTES, UNBOUNDED)
    try:
        yield _with_fillers(frame, share_bytes)
    finally:
        context.setLocalProperty(BATCH_BYTES, before)  # type: ignore[arg-type] # None removes it


def _share_bytes(frame: DataFrame) -> int | None:
    """How long the texts of a row may be that needs no filler; None: measure the batches."""
    setting, schema = frame.sparkSession.conf.get, frame.schema
    if (
        setting(BATCH_BYTES, None) is not None
        or setting(_COMPILES, "true") != "true"
        or (len(schema) < _LEAST_COLUMNS and len({type(f.dataType) for f in schema}) <= 1)
        or len(schema) >= int(str(setting(_COMPILED_COLUMNS, "100")))
        or setting(_NAMES_ARE_PATTERNS, "false") == "true"
        or len({name.lower() for name in schema.names}) < len(schema)
    ):
        return None
    widths = [_width(field.dataType) for field in schema]
    rows = int(str(setting(BATCH_ROWS, "10000")))
    if rows <= 0 or None in widths:
        return None
    share_bytes = _MOST_BYTES // rows - _MARK_BYTES - sum(width for width in widths if width)
    return share_bytes if share_bytes >= _LEAST_SHARE_BYTES else None


def _width(of: DataType) -> int | None:
    """The most bytes that a value takes in an Arrow array; None if there is no limit.

    Of texts and bytes only the offsets count.
    """
    if isinstance(of, StringType | BinaryType | NullType):
        return 8
    arrow = arrow_type(of)
    return None if arrow is None or arrow.num_fields else -(-arrow.bit_width // 8)


def _with_fillers(frame: DataFrame, share_bytes: int) -> tuple[DataFrame, str | None]:
    texts = [f.name for f in frame.schema if isinstance(f.dataType, StringType | BinaryType)]
    if not texts:
        return frame, None
    mark = secrets.token_hex(_MARK_BYTES // 2)
    none = sf.lit(0).cast("long")
    lengths = [sf.octet_length(frame[quote(name)]) for name in texts]
    # Looked at one by one, which is cheaper than a sum that is needed for few rows.
    is_long = reduce(or_, (length > share_bytes // len(texts) for length in lengths))
    size = reduce(add, (sf.coalesce(length.cast("long"), none) for length in lengths))
    numbers = sf.when(is_long, sf.sequence(none, sf.floor(size / share_bytes)))
    number = "#" * (1 + max(map(len, frame.columns)))  # longer than the others, so none of them
    numbered = frame.withColumn(number, sf.explode_outer(numbers))
    columns = []
    for field in frame.schema:
        column = numbered[quote(field.name)]
        if field.name in texts:  # the others are as cheap to repeat as to leave out
            instead = sf.lit(mark if field.name == texts[0] else None).cast(field.dataType)
            column = sf.when(numbered[number] > none, instead).otherwise(column)
            column = column.alias(field.name, metadata=field.metadata)
        columns.append(column)
    return numbered.select(*columns), mark


def _pays(frame: DataFrame, plan: Java) -> bool:
    """Whether the frame is made of much, and by no functions in Python."""
    leaves = [*sequence(plan.collectLeaves())]
    # Of an RDD nothing is known. A batch of a stream is one.
    if any(kind(leaf) == "LogicalRDD" and not leaf.rdd().isCheckpointed() for leaf in leaves):
        return False
    if sum(int(str(leaf.stats().sizeInBytes())) for leaf in leaves) < _SMALL_BYTES:
        return False
    jvm: Java = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 - Python's classes lack it
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if plan.containsPattern(patterns.REPARTITION_OPERATION()) and _is_repartitioned(plan):
        return False
    if plan.containsPattern(patterns.PLAN_EXPRESSION()):  # what a subquery runs is not looked at
        may_run = (patterns.PYTHON_UDF(), patterns.GENERATE())
        return not any(map(plan.containsPattern, may_run))
    return not _runs_python(plan, patterns.PYTHON_UDF())


def _is_repartitioned(plan: Java) -> bool:
    """Whether a plan brings rows together by columns.

    Adaptive execution keeps such rows together if only projections, filters and sorts follow. After
    fillers are added, the rows of a key could come from several tasks.
    """
    return kind(plan) == "RepartitionByExpression" or any(
        _is_repartitioned(child) for child in sequence(plan.children())
    )


def _runs_python(plan: Java, pattern: Java) -> bool:
    """Whether functions get more than one row, which no limit would split."""
    below = [*sequence(plan.children())]
    if kind(plan) == "Generate" and "Python" in kind(plan.generator()):
        return True
    if plan.containsPattern(pattern) and any(
        expression.containsPattern(pattern) for expression in sequence(plan.expressions())
    ):
        most = [child.maxRows() for child in below]
        if not all(rows.isDefined() and rows.get() <= 1 for rows in most):
            return True
    return any(_runs_python(child, pattern) for child in below)
