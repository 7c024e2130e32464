"""A write, checked before any task runs: what travels to its tasks, and to its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnlog.log.uploads import TopicSpec
from txnlog.spark.options.store_options import open_at
from txnlog.spark.options.write_options import WriteOptions
from txnlog.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where rows are written to, and how.

    Args:
        store: where.
        options: as parsed.
        columns: the names of all columns of the data, by position.
        used: the columns that count.
        spec: of the topic, if the options name it.
    """

    store: Store
    options: WriteOptions
    columns: tuple[str, ...]
    used: tuple[str, ...]
    spec: TopicSpec | None


def plan_write(options: WriteOptions, schema: StructType) -> WritePlan:
    """Check a write, of a batch or of a stream.

    Raises:
        InvalidOption, InvalidRecord: the options or columns are not those of a write.
        TxnlogError: the store or a topic is not there.
    """
    from txnlog.spark.batch.row_schema import check_writable

    used = check_writable(schema, options.topic, options.include_headers)
    store = open_at(options.address)
    spec = None if options.topic is None else store.topic_spec(options.topic)
    if spec is not None:
        spec.with_codec(options.codec)  # what cannot be is said before any task runs
    return WritePlan(store, options, tuple(schema.names), tuple(used), spec)
