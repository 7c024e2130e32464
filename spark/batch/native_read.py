"""A pinned read as Spark's own read of Parquet files: whole files, and filtered ones at the ends.

Exactly the planned files are read: they are named, and the rows of those in which a read begins or
ends. Catalyst prunes columns, pushes filters down and counts by footers. Knows ranges and columns,
and nothing of logs, groups and transactions. The caller reads ranges outside of Parquet files in
another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import and_
from threading import Lock
from typing import TYPE_CHECKING

from pyarrow import types
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from txnlog.columns.layouts import FileLayout, file_layout
from txnlog.names import OWN_FILE, schema_version
from txnlog.segments.parquet.footer import OFFSET_COLUMN
from txnlog.segments.schema_columns import default_as_text, default_of
from txnlog.spark.batch.hadoop_files import PATTERN
from txnlog.spark.batch.row_schema import read_schema
from txnlog.spark.batch.typed_rows import spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from txnlog.read.schema import ScanColumns
    from txnlog.read.segment_ranges import SegmentRange
    from txnlog.schema import TopicSchema

MOST_IN_TREE = 64
"""Up to this many files are distinguished by a binary search in the plan; more by a broadcast join,
which costs a third of a read's CPU time.
"""

_FILE_OPTIONS = {
    # Whatever the session says: a missing file is an error, not fewer rows.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "mergeSchema": "false",
    # A flipped bit is an error too: our pages have checksums, which Spark ignores by default.
    "parquet.page.verify-checksum.enabled": "true",
    # Otherwise a filter fails on dictionaries in LZ4 (parquet-java's issue 3478: "all input must be
    # consumed"). Row groups and pages are still skipped by their least and largest values.
    "parquet.filter.dictionary.enabled": "false",
}
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""For more files Spark runs a listing job, with a task for each: on a disk that takes ten times
longer than asking here, on object stores Spark is better at it.
"""
_LISTING_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class SplitRanges:
    """Ranges by reader: ``whole`` and ``cut`` Parquet files for Spark, the others for Python."""

    whole: tuple[SegmentRange, ...]
    cut: tuple[SegmentRange, ...]
    others: tuple[SegmentRange, ...]

    @property
    def native(self) -> tuple[SegmentRange, ...]:
        return (*self.whole, *self.cut)


def split_ranges(ranges: Sequence[SegmentRange], schema: TopicSchema | None = None) -> SplitRanges:
    """The ranges in Parquet files, each with a unique name.

    ``schema`` is that of typed topics: files of a newer one are not among them.
    """
    whole: list[SegmentRange] = []
    cut: list[SegmentRange] = []
    others: list[SegmentRange] = []
    names: set[str] = set()
    for part in ranges:
        segment = part.segment
        own = part.paths.is_parquet and segment.position == OWN_FILE and segment.kafka is None
        layout = None if schema is None else file_layout(schema, schema_version(segment.name))
        own = own and (schema is None or layout is not None)
        if not own or segment.name in names:
            others.append(part)
            continue
        names.add(segment.name)
        covered = (segment.base_offset, segment.end_offset) == (part.start_offset, part.stop_offset)
        (whole if covered else cut).append(part)
    return SplitRanges(tuple(whole), tuple(cut), tuple(others))


def native_frames(
    spark: SparkSession, root: str, ranges: SplitRanges, columns: ScanColumns
) -> list[DataFrame]:
    """Spark's own reads, to be united: each with exactly ``read_schema(columns)``.

    Args:
        spark: the session.
        root: the store's, in Hadoop's form.
        ranges: those of a plan.
        columns: which; offsets and the like have a cost only if they are among them.
    """
    reader = _Reader(spark, root, columns)
    groups = _by_layout(ranges.whole, columns.topic_schema)
    frames = [reader.whole(parts, layout) for layout, parts in groups]
    groups = _by_layout(ranges.cut, columns.topic_schema)
    return [*frames, *(reader.cut(parts, layout) for layout, parts in groups)]


def _by_layout(
    parts: Sequence[SegmentRange], schema: TopicSchema | None
) -> list[tuple[FileLayout | None, list[SegmentRange]]]:
    """Files that Spark can read at once: those that have the columns under the same names.

    None means files that have them under the schema's names, or lack them and are null there.
    """
    if schema is None:
        return [(None, [*parts])] if parts else []
    found: dict[int, list[SegmentRange]] = {}
    for part in parts:
        found.setdefault(schema_version(part.segment.name), []).append(part)
    groups: list[tuple[object, FileLayout | None, list[SegmentRange]]] = []
    has_default = [default_of(field) is not None for field in schema.columns]
    for version, some in sorted(found.items()):
        layout = file_layout(schema, version)
        assert layout is not None
        lacks = [field is None for field in layout.columns]
        needed = None
        if not layout.is_plain or any(map(and_, lacks, has_default)):
            needed = layout
        there = needed and [field and (field.name, field.type) for field in needed.columns]
        for known, _, others in groups:
            if known == there:
                others += some
                break
        else:
            groups.append((there, needed, some))
    return [(needed, some) for _, needed, some in groups]


class _Reader:
    """Makes frames of files, all with the same columns."""

    def __init__(self, spark: SparkSession, root: str, columns: ScanColumns) -> None:
        self._spark = spark
        self._root = root
        self._columns = columns
        self._schema = read_schema(columns)
        stored = columns.stored
        self._stored = frozenset(stored if isinstance(stored, list) else stored.names)

    def whole(self, parts: Sequence[SegmentRange], layout: FileLayout | None) -> DataFrame:
        """All records of these files."""
        if layout is None and self._stored == {*self._columns.names}:
            return self._files(parts, self._schema)
        files = self._files(parts, self._file_schema(layout))
        if "offset" not in self._meanings() and len({_constants(part) for part in parts}) == 1:
            return files.select(*self._select(files, _same_place(parts[0]), layout))
        frame, place = _placed(self._spark, files, parts)
        return frame.select(*self._select(files, place, layout))

    def cut(self, parts: Sequence[SegmentRange], layout: FileLayout | None) -> DataFrame:
        """The records of these files within the ranges."""
        files = self._files(parts, self._file_schema(layout))
        frame, place = _placed(self._spark, files, parts)
        row = _row(files)
        inside = (row >= place("first")) & (row < place("stop"))
        return frame.where(inside).select(*self._select(files, place, layout))

    def _files(self, parts: Sequence[SegmentRange], schema: StructType) -> DataFrame:
        paths = [_escape(f"{self._root}/{part.paths.log}") for part in parts]
        reader = self._spark.read.schema(schema).options(**_FILE_OPTIONS)
        if not self._root.startswith("file:") or len(paths) <= int(_listing_limit(self._spark)):
            return reader.parquet(*paths)
        with _listing_here(self._spark, len(paths)):
            return reader.parquet(*paths)

    def _file_schema(self, layout: FileLayout | None) -> StructType:
        """The columns to read from files, under their names there."""
        fields = self._fields_in_files(layout).values()
        # Only files with gaps have it; in others it is null and costs nothing.
        return StructType([*filter(None, fields), StructField(OFFSET_COLUMN, LongType())])

    def _fields_in_files(self, layout: FileLayout | None) -> dict[str, StructField | None]:
        """By stored column, its form in the files; None: they lack it."""
        found: dict[str, StructField | None] = {
            field.name: field for field in self._schema if field.name in self._stored
        }
        schema = self._columns.topic_schema
        if layout is not None and schema is not None:
            for name, there in zip(schema.columns.names, layout.columns, strict=True):
                if name in found:
                    found[name] = there and StructField(there.name, spark_type(there.type))
        return found

    def _meanings(self) -> set[str]:
        return {self._columns.meaning(n) for n in self._columns.names if n not in self._stored}

    def _select(self, files: DataFrame, place: _Place, layout: FileLayout | None) -> list[Column]:
        """The requested columns, from the files' own and their positions."""
        chosen = []
        stored = self._fields_in_files(layout)
        for field in self._schema:
            if field.name in stored:
                there = stored[field.name]
                column = files[quote(there.name)] if there else self._default(field.name)
            elif self._columns.meaning(field.name) == "offset":
                column = place("base") + _row(files)
            else:
                column = place(self._columns.meaning(field.name))
            chosen.append(column.cast(field.dataType).alias(field.name))
        return chosen

    def _default(self, name: str) -> Column:
        """The value in a column that the files lack; of its type once it is cast."""
        schema = self._columns.topic_schema
        assert schema is not None
        field = schema.columns.field(name)
        value = default_of(field)
        if value is None:
            return sf.lit(None)
        is_text = not types.is_binary(field.type)
        return sf.lit(default_as_text(value).decode() if is_text else value.as_py())


def _listing_limit(spark: SparkSession) -> str:
    return str(spark.conf.get(_LISTING))


@contextmanager
def _listing_here(spark: SparkSession, count: int) -> Iterator[None]:
    """Within the block Spark asks for the sizes of this many files directly, without a job.

    There is no option for it; other queries may see the changed session setting meanwhile.
    """
    with _LISTING_LOCK:
        before = _listing_limit(spark)
        spark.conf.set(_LISTING, str(count))
        try:
            yield
        finally:
            spark.conf.set(_LISTING, before)


def _escape(path: str) -> str:
    """A path escaped for Hadoop's patterns. Spark's option against patterns reads files twice."""
    return "".join(f"\\{c}" if c in PATTERN else c for c in path)


def quote(name: str) -> str:
    """A column's name quoted for Spark's parser."""
    return f"`{name.replace('`', '``')}`"


def _row(files: DataFrame) -> Column:
    """The offset of a row within its segment: its number, unless the file stores it."""
    number = files.metadataColumn("_metadata").getField("row_index")
    return sf.coalesce(files[quote(OFFSET_COLUMN)], number)


# -- constants of a file -------------------------------------------------------------------------

_PLACE = {
    "size": "long",
    "name": "string",
    "topic": "string",
    "partition": "int",
    "timestampType": "int",
    "base": "long",
    "first": "long",
    "stop": "long",
}
"""The facts about a file: its size and name, its topic and partition, the offset of its first row,
and the numbers of the rows to read.
"""
_Place = Callable[[str], "Column"]


def _constants(part: SegmentRange) -> tuple[str, int, int]:
    return part.topic, part.partition, int(part.log_append_time)


def _place_of(part: SegmentRange) -> tuple[int, str, str, int, int, int, int, int]:
    segment = part.segment
    within = part.start_offset - segment.base_offset, part.stop_offset - segment.base_offset
    file = segment.size_bytes, segment.name
    return *file, *_constants(part), segment.base_offset, *within


def _same_place(part: SegmentRange) -> _Place:
    values = dict(zip(_PLACE, _place_of(part), strict=True))
    return lambda name: sf.lit(values[name])


def _placed(
    spark: SparkSession, files: DataFrame, parts: Sequence[SegmentRange]
) -> tuple[DataFrame, _Place]:
    """The rows of files, and how to find each row's file."""
    metadata = files.metadataColumn("_metadata")
    file = metadata.getField("file_size"), metadata.getField("file_name")
    rows = sorted(map(_place_of, parts))
    if len(rows) <= MOST_IN_TREE:
        keys = [row[:2] for row in rows]
        columns = dict(zip(_PLACE, zip(*rows, strict=True), strict=True))
        return files, lambda name: _search(file, keys, columns[name]).cast(_PLACE[name])
    places = spark.createDataFrame(rows, ", ".join(f"{n} {kind}" for n, kind in _PLACE.items()))
    joined = files.join(sf.broadcast(places), file[1] == places["name"])
    return joined, lambda name: places[name]


def _search(
    file: tuple[Column, Column], keys: Sequence[tuple[int, str]], values: Sequence[object]
) -> Column:
    """The value of a file, by its size and name, which ascend: a binary search.

    Usually the size suffices: it is compared for each row, and names begin with the same 30 bytes
    or so.
    """
    if len(set(values)) == 1:
        return sf.lit(values[0])
    middle = len(keys) // 2
    size, name = file
    middle_size, middle_name = keys[middle]
    is_before = size < middle_size
    if keys[middle - 1][0] == middle_size:
        is_before |= (size == middle_size) & (name < middle_name)
    lower = _search(file, keys[:middle], values[:middle])
    upper = _search(file, keys[middle:], values[middle:])
    return sf.when(is_before, lower).otherwise(upper)
