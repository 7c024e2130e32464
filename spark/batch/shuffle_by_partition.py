"""Shuffling rows by topic and partition before a write: a segment then comes from one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from txnlog.schema import PARTITION
from txnlog.spark.batch.write_plan import check_columns
from txnlog.spark.options.option_values import check_positive
from txnlog.store import Store, open_store
from txnlog.write.partitioner import DEFAULT_PARTITIONER, check_partitioner

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def shuffle_by_partition(
    frame: DataFrame,
    path: str | Store,
    topic: str | None = None,
    *,
    tasks: int | None = None,
    partitioner: str = DEFAULT_PARTITIONER,
    storage_options: Mapping[str, object] | None = None,
) -> DataFrame:
    """Bring the rows of a topic's partition into one task, for few and large segments.

    Every task of a write makes a segment for each partition that it has rows of: 200 tasks and 100
    partitions make 20,000. After this shuffle they make 100. It costs a pass through Python and
    Spark's shuffle, and is worth it where tasks are many and rows of a partition are few in each.
    Rows of a task's partition need not keep their order.

        shuffle_by_partition(df, root, "paid").write.format("txnlog")...

    Args:
        frame: the rows to be written.
        path: the store's folder or URL, or an open store.
        topic: the topic; None takes the column ``topic``.
        tasks: how many there are after the shuffle; None leaves it to Spark.
        partitioner: chooses partitions for rows without one in the column ``partition``, as in a
            write.
        storage_options: for the filesystem.

    Returns:
        The same rows with the column ``partition`` filled, of typed topics ``_partition``.

    Raises:
        InvalidOption, InvalidRecord, UnknownTopicOrPartition: the rows do not fit the topic, or
            there is none.
    """
    check_partitioner(partitioner)
    check_positive("tasks", tasks)
    store = path if isinstance(path, Store) else open_store(path, storage_options=storage_options)
    # Errors are raised here, not by a task.
    spec = None if topic is None else store.topic_spec(topic)
    check_columns(frame.schema, spec, None)
    from pyspark.sql.types import IntegerType, StructField, StructType

    partition = "partition" if spec is None or spec.schema is None else PARTITION
    kept = [field for field in frame.schema.fields if field.name != partition]
    schema = StructType([*kept, StructField(partition, IntegerType())])

    def with_partitions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from txnlog.spark.batch.rows_to_records import PartitionColumn

        column = PartitionColumn(store.topic_spec, topic, partitioner)
        for batch in batches:
            yield column(batch)

    keys = [partition] if topic is not None else ["topic", partition]
    chosen = frame.mapInArrow(with_partitions, schema)
    return chosen.repartition(*keys) if tasks is None else chosen.repartition(tasks, *keys)
