"""A pinned read of the newest record of each key, as an aggregation that Spark runs itself.

Within a partition the greatest offset is the newest, as when a topic is compacted. A key has
records in several partitions if partitions were added, or writers chose them: then the newest of
these is the one with the greatest timestamp. Knows columns, and nothing of ranges and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from txnlog.errors import InvalidOption
from txnlog.schema import DELETED
from txnlog.spark.batch.native_read import quote
from txnlog.spark.batch.read_frame import read_frame
from txnlog.spark.options.columns import ColumnChoice, format_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from txnlog.schema import TopicSchema
    from txnlog.spark.batch.pinned_read import PinnedRead
    from txnlog.spark.batch.provenance import Origin
    from txnlog.spark.options.read_options import ReadOptions
    from txnlog.storage.base import Storage

_PLACE = ("topic", "partition", "offset", "timestamp")


def read_latest(
    spark: SparkSession,
    storage: Storage,
    pinned: PinnedRead,
    parsed: ReadOptions,
    options: Mapping[str, str],
    *,
    native: bool | None,
    origin: Origin | None = None,
) -> DataFrame:
    """Make a frame of the newest row of each key; arguments are those of ``read_frame``.

    Records without a key are left out, and keys whose newest record deletes them.

    Raises InvalidOption: the topic has no key; or as ``read_frame``.
    """
    schema = pinned.schema
    keys, ending = _deciding(schema)
    if not keys:
        raise InvalidOption(f"latest=True: the schema of {', '.join(pinned.topic_ids)} has no key")
    chosen = parsed.columns.of(schema).names
    place = _PLACE if schema is None else tuple(f"_{name}" for name in _PLACE)
    names = [*chosen, *(n for n in dict.fromkeys((*keys, ending, *place)) if n not in chosen)]
    more = replace(parsed, columns=ColumnChoice(tuple(names), parsed.columns.include_headers))
    given = {name: text for name, text in options.items() if name.lower() != "columns"}
    given["columns"] = format_columns(names)
    frame = read_frame(spark, storage, pinned, more, given, native=native, origin=origin)
    topic, partition, offset, timestamp = (frame[quote(name)] for name in place)
    has_key = reduce(or_, (frame[quote(name)].isNotNull() for name in keys))
    records = frame.where(has_key).select(
        sf.struct(topic, *(frame[quote(name)] for name in keys)).alias("key"),
        partition.alias("partition"),
        offset.alias("offset"),
        timestamp.alias("timestamp"),
        _is_deleting(frame, schema).alias("deleting"),
        sf.struct(*(frame[quote(name)] for name in chosen)).alias("row"),
    )
    newest = sf.max_by(sf.struct("timestamp", "deleting", "row"), "offset").alias("newest")
    by_partition = records.groupBy("key", "partition").agg(newest)
    newest = sf.max_by("newest", sf.struct("newest.timestamp", "partition")).alias("newest")
    rows = by_partition.groupBy("key").agg(newest).where("NOT newest.deleting")
    row = sf.col("newest").getField("row")
    return rows.select(
        *(
            row.getField(field.name).alias(field.name, metadata=dict(field.metadata))
            for field in frame.schema
            if field.name in chosen
        )
    )


def _deciding(schema: TopicSchema | None) -> tuple[tuple[str, ...], str]:
    """The columns of the key, and the one that tells whether a record deletes it."""
    return (("key",), "value") if schema is None else (tuple(schema.key), DELETED)


def _is_deleting(frame: DataFrame, schema: TopicSchema | None) -> Column:
    """Whether a record is a tombstone."""
    return frame["value"].isNull() if schema is None else frame[DELETED]
