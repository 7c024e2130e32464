"""Shuffling rows by topic and partition before a write: a segment then comes from one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StructField, StructType

from txnlog.errors import InvalidOption, TxnlogError, UnknownTopicOrPartition
from txnlog.inspect.describe import describe_or_error
from txnlog.log.uploads import TopicSpec
from txnlog.schema import PARTITION
from txnlog.spark.batch.determinism import chances
from txnlog.spark.batch.write_plan import check_columns, draw_seed, name_as_in_topic
from txnlog.spark.options.option_values import check_positive
from txnlog.store import Store, open_store
from txnlog.write.partitioner import DEFAULT_PARTITIONER, check_partitioner


def shuffle_by_partition(
    frame: DataFrame,
    path: str | Store,
    topic: str | None = None,
    *,
    tasks: int | None = None,
    partitioner: str = DEFAULT_PARTITIONER,
    storage_options: Mapping[str, object] | None = None,
    allow_nondeterministic: bool = False,
) -> DataFrame:
    """Bring the rows of a topic's partition into one task, for few and large segments.

    Every task of a write makes a segment for each partition that it has rows of: 200 tasks and 100
    partitions make 20,000. After this shuffle they make 100. It costs a pass through Python and
    Spark's shuffle, and is worth it where tasks are many and rows of a partition are few in each.
    Rows of a task's partition need not keep their order.

    If an executor is lost Spark computes a part of the rows once more and keeps what others have
    fetched already, so each row must go to the partition that it went to before. One without a key
    goes by a hash of its columns (numbers that are not floating-point, text, bytes, times) and the
    number of its task, and not in turn: equal rows of a task go together. Text that holds a sum of
    floating-point numbers may be another one then, which is not noticed. Partitions that are added
    after the call get no rows.

        shuffle_by_partition(df, root, "paid").write.format("txnlog")...

    Args:
        frame: the rows to be written.
        path: the store's folder or URL, or an open store.
        topic: the topic; None takes the column ``topic``. Then all topics of the store are looked
            up, for a few requests each: a task that runs again must find the same partitions.
        tasks: how many there are after the shuffle; None leaves it to Spark.
        partitioner: chooses partitions for rows without one in the column ``partition``, as in a
            write.
        storage_options: for the filesystem.
        allow_nondeterministic: take a frame whose rows may be others when they are computed once
            more. Rows are then lost and doubled where an executor is lost.

    Returns:
        The same rows with the column ``partition`` filled, of typed topics ``_partition``.

    Raises:
        InvalidOption: the rows may be others when they are computed once more; or, as the next.
        InvalidRecord, UnknownTopicOrPartition: the rows do not fit the topic, or there is none.
    """
    check_partitioner(partitioner)
    check_positive("tasks", tasks)
    store = path if isinstance(path, Store) else open_store(path, storage_options=storage_options)
    # Errors are raised here, not by a task.
    spec = None if topic is None else store.logs.topic_spec(topic)
    names = name_as_in_topic(frame.schema, spec).names
    if names != frame.columns:
        frame = frame.toDF(*names)
    check_columns(frame.schema, spec, None)
    if not allow_nondeterministic and (found := chances(frame)):
        raise InvalidOption(
            f"shuffle_by_partition: {', '.join(map(str, found))} may give other values when an "
            "executor is lost and some rows are computed once more: rows would be lost, and others "
            "doubled. Shuffle frame.localCheckpoint(), which is computed once, or give "
            "allow_nondeterministic=True"
        )

    partition = "partition" if spec is None or spec.schema is None else PARTITION
    kept = [field for field in frame.schema.fields if field.name != partition]
    schema = StructType([*kept, StructField(partition, IntegerType())])
    content = None
    if _needs_content(spec, partitioner):
        content = "content"
        while content in names:
            content += "_"
        names = [*names, content]
        frame = frame.select("*", _content(frame))
    # Spark's names may be the same but for their case, and it takes none with a dot to Python.
    numbered = frame.toDF(*map(str, range(len(names))))
    specs: Mapping[str, TopicSpec | TxnlogError]
    specs = _pin_topics(store) if spec is None else {spec.topic: spec}
    seed, now_ms = draw_seed(), store.logs.clock.now_ms()

    def with_partitions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from txnlog.spark.batch.rows_to_records import PartitionColumn

        def spec_of(name: str) -> TopicSpec:
            found = specs.get(name) or store.logs.topic_spec(name)
            if isinstance(found, TxnlogError):
                raise found
            return found

        column = PartitionColumn(
            spec_of, topic, partitioner, seed=seed, now_ms=now_ms, content=content
        )
        for batch in batches:
            yield column(batch.rename_columns(names))

    keys = [partition] if topic is not None else ["topic", partition]
    chosen = numbered.mapInArrow(with_partitions, schema)
    return chosen.repartition(*keys) if tasks is None else chosen.repartition(tasks, *keys)


def _pin_topics(store: Store) -> dict[str, TopicSpec | TxnlogError]:
    """All topics as they are now, so that a task that runs again finds no new partitions.

    A damaged topic has its error instead, which is raised for rows that go to it.
    """
    names = store.topics.list()
    looks = [partial(describe_or_error, store.logs.topic_spec, name) for name in names]
    found = zip(names, store.storage.gather(looks), strict=True)
    # One of the names may have been deleted meanwhile.
    return {name: spec for name, spec in found if not isinstance(spec, UnknownTopicOrPartition)}


def _needs_content(spec: TopicSpec | None, partitioner: str) -> bool:
    """Whether there may be rows that are not sent by their key, nor by a function of the user's."""
    all_have_keys = spec is not None and spec.schema is not None and bool(spec.schema.key)
    return ":" not in partitioner and not (all_have_keys and partitioner == DEFAULT_PARTITIONER)


def _content(frame: DataFrame) -> Column:
    """A hash of a row's values that are the same whenever they are computed.

    A sum of floating-point numbers depends on their order, and so does what is in an array: they
    are left out, as maps are, which have no hash.
    """
    from txnlog.spark.batch.native_read import quote

    exact = (
        types.BinaryType,
        types.BooleanType,
        types.DateType,
        types.DecimalType,
        types.IntegralType,
        types.StringType,
        types.TimestampNTZType,
        types.TimestampType,
    )
    names = [field.name for field in frame.schema if isinstance(field.dataType, exact)]
    columns = [sf.col(quote(name)) for name in names]
    return sf.xxhash64(*columns) if columns else sf.lit(0).cast("long")
