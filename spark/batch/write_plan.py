"""A write, checked before any task runs: the data for its tasks and its commit."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnlog.log.uploads import TopicSpec
from txnlog.spark.options.store_options import open_kept
from txnlog.spark.options.write_options import WriteOptions
from txnlog.state.transaction import TransactionRef
from txnlog.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where rows are written to, and how.

    ``columns`` are all names of the data, by position, ``used`` those that count; ``spec`` is of
    the topic, if the options name it. ``seed`` is chance for the partitioner, the same for a task
    that runs again. Segments will be placed as ``producer``; None: as is decided when the tasks are
    over.
    """

    store: Store
    options: WriteOptions
    columns: tuple[str, ...]
    used: tuple[str, ...]
    spec: TopicSpec | None
    seed: int = 0
    producer: TransactionRef | None = None


def draw_seed() -> int:
    """Chance for one write, drawn before its tasks: one that runs again chooses the same.

    Without it small writes, as a stream's are, would all begin in the same partitions.
    """
    return secrets.randbits(31)


def plan_write(options: WriteOptions, schema: StructType) -> WritePlan:
    """Check a write, of a batch or of a stream.

    Raises InvalidOption, InvalidRecord: the options or columns are not those of a write;
    TxnlogError: the store or a topic is not there.
    """
    store = open_kept(options.address)
    spec = None if options.topic is None else store.logs.topic_spec(options.topic)
    schema = name_as_in_topic(schema, spec)
    used = check_columns(schema, spec, options.include_headers)
    if spec is not None:
        spec.with_codec(options.codec)  # errors are raised before any task runs
    return WritePlan(store, options, tuple(schema.names), tuple(used), spec, draw_seed())


def name_as_in_topic(schema: StructType, spec: TopicSpec | None) -> StructType:
    """The columns of a write, of which a typed topic's have its names; see there."""
    if spec is None or spec.schema is None:
        return schema
    from txnlog.spark.batch.typed_rows import named_as_in_topic

    return named_as_in_topic(schema, spec.schema.columns)


def check_columns(
    schema: StructType, spec: TopicSpec | None, include_headers: bool | None
) -> list[str]:
    """The names of the columns that count; ``spec`` is of the topic, if one is named.

    Raises InvalidRecord: a column is missing, unknown or of a wrong type. Raises InvalidOption.
    """
    if spec is None or spec.schema is None:
        from txnlog.spark.batch.row_schema import check_writable

        return check_writable(schema, spec.topic if spec else None, include_headers)
    from txnlog.spark.batch.typed_rows import check_typed

    return check_typed(schema, spec, include_headers)
