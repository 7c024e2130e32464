"""The places of the newest record of each key, found and looked up by Spark.

Within a partition the greatest offset is the newest, as when a topic is compacted. A key has
records in several partitions if partitions were added, or writers chose them: then the newest of
these is the one with the greatest timestamp, and of equal ones that in the last partition.

Knows columns, and nothing of ranges and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from txnlog.schema import DELETED
from txnlog.spark.batch.native_read import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from txnlog.spark.batch.pinned_read import PinnedRead

_MOST_INT: Final = (1 << 31) - 1
_BY_TIME: Final = "CAST(unix_micros(`timestamp`) AS DECIMAL(19)) * 4294967296 + `partition`"
"""A number, which Spark's hash aggregation takes: timestamps, of equal ones partitions."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The columns of what is read that tell a record's key, place and time.

    Frames of places have them as ``key``, ``partition``, ``offset`` and ``timestamp``, and as
    ``topic`` if several are read. ``place`` has the columns of the place and the time by these
    names; the column ``ending`` tells whether a record deletes its key. ``bucket`` is Spark's type
    for the 64th part of an offset: an INT and a partition are joined as one number, which is
    faster.
    """

    keys: tuple[str, ...]
    place: Mapping[str, str]
    ending: str
    many_partitions: bool
    bucket: str

    @classmethod
    def of(cls, pinned: PinnedRead) -> KeyedRows:
        """Make one for topics with a key."""
        schema = pinned.schema
        stop = max((span.stop for span in pinned.offsets.values()), default=0)
        names = ["partition", "offset", "timestamp"]
        if len(pinned.topic_ids) > 1:
            names.append("topic")
        return cls(
            keys=("key",) if schema is None else tuple(schema.key),
            place={name: name if schema is None else f"_{name}" for name in names},
            ending="value" if schema is None else DELETED,
            many_partitions=len({where.partition for where in pinned.offsets}) > 1,
            bucket="INT" if stop >> 6 <= _MOST_INT else "BIGINT",
        )

    @property
    def finding(self) -> tuple[str, ...]:
        """The columns that are needed to find the newest records."""
        return (*self.keys, *self.place.values())

    @property
    def topic(self) -> list[str]:
        """The topic column's name in frames of places, in a list; empty if there is none."""
        return [name for name in self.place if name == "topic"]

    def places(self, rows: DataFrame, *more: Column) -> DataFrame:
        """The places of the records that have a key, with more columns."""
        columns = self._of_rows(rows)
        named = (column.alias(name) for name, column in columns.items())
        return rows.where(self._has_key(rows)).select(*named, *more)

    def last(self, places: DataFrame) -> DataFrame:
        """The last place of each key in each partition, with the other columns that there are."""
        keys = [*self.topic, "key", "partition"]
        others = [name for name in places.columns if name not in (*keys, "offset")]
        last = (sf.max_by(name, "offset").alias(name) for name in others)
        found = places.groupBy(*keys).agg(sf.max("offset").alias("offset"), *last)
        return found.select(*places.columns)

    def newest(self, last: DataFrame) -> DataFrame:
        """Each key's newest place, from its last places in each partition."""
        if not self.many_partitions:
            return last
        keys = [*self.topic, "key"]
        others = (name for name in last.columns if name not in keys)
        latest = (sf.max_by(name, "time").alias(name) for name in others)
        found = last.withColumn("time", sf.expr(_BY_TIME)).groupBy(*keys).agg(*latest)
        return found.select(*last.columns)

    def is_replaced(self, rows: DataFrame, last: DataFrame) -> Column:
        """Whether ``last`` has a newer row of a row's key. ``rows`` has one for each key.

        ``last`` has each partition's last row of each key. The one in the row's own partition
        replaces it whatever its time is. The newest of all may be in another partition, and be
        older than the row.
        """
        old, new = self._of_rows(rows), _columns(last)
        if not self.many_partitions:
            return self._same_key(old, new)
        return self._same_key(old, new) & (
            (old["partition"] == new["partition"]) | _is_later(new, old)
        )

    def replaced(self, newest: DataFrame, last: DataFrame, places: DataFrame) -> DataFrame:
        """The rows of ``newest`` whose key has a later place among ``places``.

        Places that ``last`` replaces in their own partition do not count.
        """
        old, own = _columns(places), _columns(last)
        same = self._same_key(old, own) & (old["partition"] == own["partition"])
        left = places.join(last, same, "left_anti")
        old, new = _columns(newest), _columns(left)
        found = newest.join(left, self._same_key(old, new) & _is_later(new, old))
        return found.select(*(old[name] for name in newest.columns)).distinct()

    def marks(self, places: DataFrame) -> DataFrame:
        """A bit for each place, in rows of 64: 1 if the place comes once, 0 if it comes twice."""
        bucket = sf.shiftright("offset", 6).cast(self.bucket).alias("bucket")
        bits = sf.expr("bit_xor(1L << CAST(`offset` & 63 AS INT))").alias("bits")
        return places.groupBy(*self.topic, "partition", bucket).agg(bits)

    def is_marked(self, rows: DataFrame, marks: DataFrame) -> Column:
        """Whether a row is at one of the marked places."""
        columns = self._of_rows(rows)
        offset = columns["offset"]
        bit = sf.bit_get(marks["bits"], offset.bitwiseAND(63).cast("int"))
        same = [columns[name] == marks[name] for name in (*self.topic, "partition")]
        bucket = sf.shiftright(offset, 6).cast(self.bucket) == marks["bucket"]
        return reduce(and_, [*same, bucket, bit == 1])

    def shows(self, rows: DataFrame) -> Column:
        """Whether a record has a key, and does not delete it."""
        ending = rows[self.ending]
        return self._has_key(rows) & (~ending if self.ending == DELETED else ending.isNotNull())

    def _has_key(self, rows: DataFrame) -> Column:
        return reduce(or_, (column_of(rows, name).isNotNull() for name in self.keys))

    def _of_rows(self, rows: DataFrame) -> dict[str, Column]:
        """The columns of a frame of places, of the topic's rows."""
        keys = [column_of(rows, name) for name in self.keys]
        key = keys[0] if len(keys) == 1 else sf.struct(*keys)
        return {"key": key, **{name: rows[column] for name, column in self.place.items()}}

    def _same_key(self, one: Mapping[str, Column], other: Mapping[str, Column]) -> Column:
        return reduce(and_, (one[name] == other[name] for name in (*self.topic, "key")))


def _columns(places: DataFrame) -> dict[str, Column]:
    return {name: places[name] for name in places.columns}


def _is_later(one: Mapping[str, Column], other: Mapping[str, Column]) -> Column:
    """Whether ``one`` has a later timestamp; of equal ones the greater partition counts."""
    times = (sf.struct(place["timestamp"], place["partition"]) for place in (one, other))
    return next(times) > next(times)
