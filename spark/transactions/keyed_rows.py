"""Frames that change a typed topic by its key, as rows to write to it."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.log.uploads import TopicSpec
from txnlog.schema import DELETED, PARTITION
from txnlog.spark.batch.native_read import column_of
from txnlog.spark.batch.write_plan import name_as_in_topic


def rows_to_merge(frame: DataFrame, spec: TopicSpec) -> DataFrame:
    """The frame, which fails while it is computed if two of its rows have the same key.

    A key that is null is for the writer to refuse, however many rows have it.

    Raises InvalidOption: the topic has no key, or the rows say where they go; InvalidRecord: a
    column of the key is missing.
    """
    frame, keys = _with_keys("merge", frame, spec)
    if PARTITION in frame.columns:
        raise InvalidOption(
            f"merge(): the frame has a column {PARTITION!r}, but where a row goes is for the key "
            "to say; drop it, or use write()"
        )
    columns = [column_of(frame, name) for name in keys]
    said = sf.concat(
        sf.lit(f"merge(): topic {spec.topic!r}: several rows have the key "),
        sf.to_json(sf.struct(*columns)),
        sf.lit("; of each key there may be one, since which of them is the newest is not known"),
    )
    number = "#" * (1 + max(map(len, frame.columns)))  # longer than the others, so none of them
    same = Window.partitionBy(*(_as_in_topic(frame, name) for name in keys))
    counted = frame.withColumn(number, sf.count("*").over(same))
    # In a filter: a column that nobody reads would be pruned, and the check with it.
    is_twice = reduce(and_, (column_of(counted, name).isNotNull() for name in keys))
    is_twice &= counted[number] > 1
    is_only = sf.when(is_twice, sf.raise_error(said)).otherwise(sf.lit(True))
    return counted.where(is_only).drop(number)


def _as_in_topic(frame: DataFrame, name: str) -> Column:
    """A column as the topic compares it: by its bytes, whatever collation it has in the frame."""
    kind = frame.schema[name].dataType
    column = column_of(frame, name)
    has_collation = isinstance(kind, StringType) and kind.collation != StringType().collation
    return column.cast("binary") if has_collation else column


def rows_to_delete(frame: DataFrame, spec: TopicSpec) -> DataFrame:
    """A row that deletes it for the key of each row.

    Raises InvalidOption: the topic has no key; InvalidRecord: a column of the key is missing.
    """
    frame, keys = _with_keys("delete_keys", frame, spec)
    return frame.select(*(column_of(frame, name) for name in keys), sf.lit(True).alias(DELETED))


def _with_keys(call: str, frame: DataFrame, spec: TopicSpec) -> tuple[DataFrame, tuple[str, ...]]:
    """The frame with the topic's names, and those of its key."""
    if spec.schema is None or not spec.schema.key:
        kind = "has no schema" if spec.schema is None else "has a schema without a key"
        raise InvalidOption(f"{call}(): topic {spec.topic!r} {kind}; use write()")
    names = name_as_in_topic(frame.schema, spec).names
    counts = Counter(names)
    for name in spec.schema.key:
        if counts[name] != 1:
            found = "no column" if not counts[name] else f"{counts[name]} columns"
            raise InvalidRecord(
                f"{call}(): the key of topic {spec.topic!r} is {', '.join(spec.schema.key)}; the "
                f"frame has {found} {name!r}"
            )
    return frame.toDF(*names), tuple(spec.schema.key)
