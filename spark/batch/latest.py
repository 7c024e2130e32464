"""A pinned read of the newest record of each key, as a frame that Spark computes itself.

Few records are read once and aggregated as they are. Of more, keys, offsets and times alone are
shuffled, to find where the newest are; then the rows are read, and chosen where they are read. So
rows are not shuffled, and columns that nobody asks for are not read.

Where compaction has been, each partition begins with records that have no key twice. If the rest is
small it alone is shuffled, and its keys are looked up for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import functions as sf

from txnlog.errors import InvalidOption
from txnlog.read.latest import find_clean
from txnlog.spark.batch.native_read import column_of
from txnlog.spark.batch.newest_places import KeyedRows
from txnlog.spark.batch.read_frame import read_frame
from txnlog.spark.options.columns import ColumnChoice, format_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txnlog.read.plan import SegmentRange
    from txnlog.spark.batch.pinned_read import PinnedRead
    from txnlog.spark.batch.provenance import Origin
    from txnlog.spark.options.read_options import ReadOptions
    from txnlog.storage.base import Storage

    Ranges: TypeAlias = Sequence[SegmentRange]
    Read: TypeAlias = Callable[[Sequence[str], Ranges], DataFrame]

_FEW_RECORDS: Final = 1 << 17
_FEW_BYTES: Final = 32 << 20
"""So much is aggregated by one task: more of them, and a second reading, take longer to begin."""
_MOST_LOOKED_UP: Final = 1 << 19
"""Records whose keys each executor gets: with keys of 100 bytes they take about 100 MB."""
_MOST_MARKED: Final = 1 << 26
"""Records whose marks each executor gets, 64 MB. The marks of more are joined as Spark sees fit."""


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
    if schema is not None and not schema.key:
        raise InvalidOption(f"latest=True: the schema of {', '.join(pinned.topic_ids)} has no key")
    own = {"columns", "includeheaders"}
    given = {name: text for name, text in options.items() if name.lower() not in own}

    def read(names: Sequence[str], ranges: Ranges) -> DataFrame:
        these = {**given, "columns": format_columns(names)}
        more = replace(parsed, columns=ColumnChoice(tuple(names)))
        return read_frame(
            spark, storage, pinned, more, these, native=native, only=ranges, origin=origin
        )

    keyed = KeyedRows.of(pinned)
    chosen = parsed.columns.of(schema).names
    needed = tuple(dict.fromkeys((*chosen, *keyed.finding, keyed.ending)))
    are_few = _are_few(pinned.ranges)
    if are_few or parsed.skip_damaged:
        # Read once, what is damaged in any column is no record of its key either.
        rows = _aggregated(keyed, read(needed, pinned.ranges), in_one_task=are_few)
    else:
        rows = _chosen(keyed, read, needed, *_split(pinned.ranges))
    return rows.where(keyed.shows(rows)).select(*(column_of(rows, name) for name in chosen))


def _aggregated(keyed: KeyedRows, rows: DataFrame, *, in_one_task: bool) -> DataFrame:
    """The newest rows, by one aggregation of all."""
    if in_one_task:
        rows = rows.coalesce(1)
    fields = rows.schema.fields
    whole = sf.struct(*(column_of(rows, field.name) for field in fields)).alias("row")
    newest = keyed.newest(keyed.last(keyed.places(rows, whole)))
    row = newest["row"]
    return newest.select(
        *(row.getField(f.name).alias(f.name, metadata=dict(f.metadata)) for f in fields)
    )


def _chosen(
    keyed: KeyedRows, read: Read, needed: Sequence[str], clean: Ranges, rest: Ranges
) -> DataFrame:
    """The newest rows: those of the compacted part that have none in the rest, and of the rest."""
    places = keyed.places(read(keyed.finding, rest))
    if _are_few(rest):
        places = places.coalesce(1)
    last = keyed.last(places)
    newest = marked = keyed.newest(last)
    if clean:
        last, newest = sf.broadcast(last), sf.broadcast(newest)
        if keyed.many_partitions:
            older = keyed.places(read(keyed.finding, clean))
            marked = marked.union(keyed.replaced(newest, last, older))
    marks = keyed.marks(marked)
    if _count(rest) <= _MOST_MARKED:
        marks = sf.broadcast(marks)
    rows = read(needed, rest)
    rows = rows.join(marks, keyed.is_marked(rows, marks), "left_semi")
    if not clean:
        return rows
    first = read(needed, clean)
    return first.join(last, keyed.is_replaced(first, last), "left_anti").union(rows)


def _split(ranges: Ranges) -> tuple[Ranges, Ranges]:
    """Ranges in which no key of a topic occurs twice, and the others; none and all if many do."""
    clean: list[SegmentRange] = []
    rest: list[SegmentRange] = []
    for _, group in groupby(ranges, lambda part: part.topic):
        parts = [*group]
        found = find_clean(parts)
        for part in parts:
            (clean if found.has(part) else rest).append(part)
    return ((), ranges) if _count(rest) > _MOST_LOOKED_UP else (clean, rest)


def _are_few(ranges: Ranges) -> bool:
    size_bytes = sum(part.segment.stored.size_bytes for part in ranges)
    return _count(ranges) <= _FEW_RECORDS and size_bytes <= _FEW_BYTES


def _count(ranges: Ranges) -> int:
    return sum(part.record_count for part in ranges)
