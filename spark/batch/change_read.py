"""A feed of changes as a batch: its plan, and its tasks, which each read a share of the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from txnlog.columns.keys import WHOLE, KeyPart
from txnlog.errors import InvalidOption
from txnlog.read.changed_ranges import ChangedRanges, ranges_since
from txnlog.read.changed_rows import ChangeColumns, change_columns, read_changes
from txnlog.schema import TopicSchema
from txnlog.snapshot import both_ends
from txnlog.spark.batch.worker_objects import spare_modules
from txnlog.spark.options.columns import meant_names
from txnlog.spark.options.option_names import PRE_IMAGES
from txnlog.spark.options.read_options import ReadOptions, parse_read
from txnlog.spark.options.store_options import open_at
from txnlog.spark.options.task_sizes import TaskSizes
from txnlog.storage.base import Storage

_MOST_SHARES = 6
"""Of bits: each task reads the whole range."""


@dataclass(frozen=True, slots=True)
class ChangeFeedPlan:
    """A pinned feed on its way from ``schema()`` to ``reader()``."""

    storage: Storage
    columns: ChangeColumns
    ranges: ChangedRanges
    task_sizes: TaskSizes


def plan_changes(options: Mapping[str, str]) -> ChangeFeedPlan:
    """Pin a feed.

    Raises InvalidOption: the options are unknown, malformed or contradict each other; TxnlogError:
    the store or the topic is not there, or records were deleted.
    """
    parsed = parse_read(options)
    _check_batch(parsed)
    store = open_at(parsed.address)
    (topic,) = parsed.subscription.topics
    since = parsed.starting if parsed.since is None else parsed.since
    newer, older = both_ends(store.logs, topic, since, parsed.at)
    view = newer.view(topic)
    columns = feed_columns(parsed, topic, view.schema)
    return ChangeFeedPlan(store.storage, columns, ranges_since(view, older), parsed.task_sizes)


def _check_batch(parsed: ReadOptions) -> None:
    if parsed.since is None and parsed.starting is None:
        raise InvalidOption(
            f"option {PRE_IMAGES} in a batch needs where the feed begins: give sinceToken, "
            "sinceTimestamp, or startingOffsets=earliest"
        )
    if parsed.group_id or parsed.transactional_id or parsed.max_records:
        raise InvalidOption(
            f"option {PRE_IMAGES}: a feed is of all changes since a moment, and follows no group: "
            "leave group.id, transactional.id and maxRecords out"
        )
    begins = parsed.since is not None
    if parsed.starting not in ((None,) if begins else ("earliest",)) or parsed.ending != "latest":
        raise InvalidOption(
            f"option {PRE_IMAGES}: a feed in a batch goes from sinceToken, sinceTimestamp or "
            "earliest to atToken or atTimestamp; leave other starting and ending offsets out"
        )


def feed_columns(parsed: ReadOptions, topic: str, schema: TopicSchema | None) -> ChangeColumns:
    """The columns of a feed that the options ask for. Raises InvalidOption."""
    columns = change_columns(topic, None, schema)
    if parsed.columns.names is not None:
        names = meant_names(parsed.columns.names, columns.available)
        columns = change_columns(topic, names, schema)
    if parsed.columns.include_headers:
        columns = columns.with_more(["headers" if schema is None else "_headers"])
    return columns


def feed_schema(columns: ChangeColumns) -> StructType:
    """The Spark schema of a feed."""
    from txnlog.spark.batch.typed_rows import spark_type

    return StructType([StructField(field.name, spark_type(field.type)) for field in columns.schema])


def check_feed_schema(schema: StructType, columns: ChangeColumns) -> None:
    """Raise InvalidOption unless a schema that the user gave is the one that a feed has."""
    expected = feed_schema(columns)
    if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in expected]:
        raise InvalidOption(
            f"a feed of changes has the schema {expected.simpleString()}: load it again if the "
            "topic was changed since, or leave .schema(...) out"
        )


class ChangePartition(InputPartition):
    """The work of one task: the changes of a share of the keys."""

    def __init__(self, ranges: ChangedRanges, share: KeyPart) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.share = share


def feed_tasks(ranges: ChangedRanges, sizes: TaskSizes) -> Sequence[InputPartition]:
    """The tasks of a feed; none if nothing was added."""
    size = sum(part.size_bytes for part in ranges.added)
    if not ranges.added:
        return []
    tasks = -(-size // sizes.target_bytes(size, len(ranges.added)))
    shares = [WHOLE]
    while len(shares) < tasks and shares[0].bits < _MOST_SHARES:
        shares = [half for share in shares for half in share.halves()]
    return [ChangePartition(ranges, share) for share in shares]


class ChangeReader(DataSourceReader):
    """Reads a pinned feed."""

    def __init__(self, plan: ChangeFeedPlan) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[type[ChangeTaskReader], tuple[object, ...]]:
        return ChangeTaskReader, (self._plan.storage, self._plan.columns)

    def partitions(self) -> Sequence[InputPartition]:
        return feed_tasks(self._plan.ranges, self._plan.task_sizes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return ChangeTaskReader(self._plan.storage, self._plan.columns).read(partition)


class ChangeTaskReader(DataSourceReader):
    """The reader as it is in a task."""

    def __init__(self, storage: Storage, columns: ChangeColumns) -> None:
        self._storage = storage
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a task. Raises SnapshotExpired, CorruptRecord."""
        from txnlog.spark.batch.typed_rows import fit, task_schema

        # Spark makes one empty partition of its own where there is nothing to read.
        if isinstance(partition, ChangePartition):
            found = read_changes(self._storage, partition.ranges, self._columns, partition.share)
            try:
                yield from map(fit(task_schema(self._columns.schema)), found)
            finally:
                spare_modules()
