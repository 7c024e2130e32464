"""A pinned read as Spark's own read of Parquet files: whole files, and filtered ones at the ends.

Exactly the planned files are read: they are named, and the rows of those in which a read begins or
ends. Catalyst prunes columns, pushes filters down and counts by footers. Knows ranges and columns,
and nothing of logs, groups and transactions. The caller reads ranges outside of Parquet files in
another way.

Expressions are SQL text: each ``Column`` of PySpark, and each path in a list, is a call to the JVM
or several, and hundreds of them took longer than all that Spark does for a frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import and_
from threading import Lock
from typing import TYPE_CHECKING, Any

from pyarrow import types
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from txnlog.columns.layouts import FileLayout, file_layout
from txnlog.names import OWN_FILE, schema_version
from txnlog.segments.parquet.footer import OFFSET_COLUMN
from txnlog.segments.schema_columns import default_as_text, default_of
from txnlog.spark.batch.hadoop_files import PATTERN
from txnlog.spark.batch.row_schema import read_schema
from txnlog.spark.batch.typed_rows import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from txnlog.read.schema import ScanColumns
    from txnlog.read.segment_ranges import SegmentRange
    from txnlog.schema import TopicSchema

MOST_IN_MAP = 64
"""The plan distinguishes up to this many files by a map in it; more by a broadcast join, which
costs a third of a read's CPU time.
"""
MOST_TO_FILTER = 250_000
"""With up to this many records in whole files, these share a relation with the files that a range
cuts. A second one takes longer to make and to run than it takes to look at each row's number.
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
        (cut if _is_cut(part) else whole).append(part)
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
    frames = []
    for layout, parts in _by_layout(ranges.native, columns.topic_schema):
        whole = [part for part in parts if not _is_cut(part)]
        cut = [part for part in parts if _is_cut(part)]
        is_one = not cut or sum(part.record_count for part in whole) <= MOST_TO_FILTER
        groups = [parts] if is_one else [whole, cut]
        frames += [reader.frame(group, layout) for group in groups]
    return frames


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

    def frame(self, parts: Sequence[SegmentRange], layout: FileLayout | None) -> DataFrame:
        """The records of these files within their ranges."""
        is_whole = not any(map(_is_cut, parts))
        if layout is None and is_whole and self._stored == {*self._columns.names}:
            return self._files(parts, self._schema)
        schema = self._file_schema(layout)
        places = _Places(parts, schema.names)
        chosen = self._select(places, layout)
        inside = places.inside()
        files = places.joined(self._spark, self._files(parts, schema))
        return (files.where(inside) if inside else files).selectExpr(*chosen)

    def _files(self, parts: Sequence[SegmentRange], schema: StructType) -> DataFrame:
        paths = [_escape(f"{self._root}/{part.paths.log}") for part in parts]
        reader = self._spark.read.schema(schema).options(**_FILE_OPTIONS)
        if not self._root.startswith("file:") or len(paths) <= int(_listing_limit(self._spark)):
            return _parquet(reader, self._spark, paths)
        with _listing_here(self._spark, len(paths)):
            return _parquet(reader, self._spark, paths)

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

    def _select(self, places: _Places, layout: FileLayout | None) -> list[str]:
        """The requested columns, from the files' own and their positions."""
        chosen = []
        stored = self._fields_in_files(layout)
        for field in self._schema:
            name = field.name
            if name not in stored:
                text = places.of(self._columns.meaning(name))
            elif (there := stored[name]) is None:
                text = self._default(field)
            else:
                is_same = there.dataType == field.dataType
                text = quote(there.name) if is_same else _cast(quote(there.name), field.dataType)
            chosen.append(f"{text} AS {quote(name)}")
        return chosen

    def _default(self, field: StructField) -> str:
        """The value in a column that the files lack."""
        schema = self._columns.topic_schema
        assert schema is not None
        column = schema.columns.field(field.name)
        value = default_of(column)
        if value is None:
            return _cast("NULL", field.dataType)
        if types.is_binary(column.type):
            return f"X'{value.as_py().hex()}'"
        return _cast(_text(default_as_text(value).decode()), field.dataType)


def _parquet(reader: DataFrameReader, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """``reader.parquet(*paths)``, without a call to the JVM for each path."""
    within: Any = reader
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no other way
    array = jvm.java.util.regex.Pattern.compile("\0").split("\0".join(paths))
    frame: DataFrame = within._df(within._jreader.parquet(array))  # noqa: SLF001 - the same
    return frame


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


def _text(value: str) -> str:
    """A text as SQL, whoever has chosen it: settings of the session say what a backslash means."""
    return _cast(f"X'{value.encode().hex()}'", StringType())


def _cast(text: str, kind: DataType) -> str:
    return f"CAST({text} AS {_sql(kind)})"


def _sql(kind: DataType) -> str:
    """A type's name in SQL. PySpark's own leaves the names of nested fields as they are."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quote(f.name)}: {_sql(f.dataType)}' for f in kind)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_sql(kind.keyType)}, {_sql(kind.valueType)}>"
    return kind.simpleString()


# -- constants of a file -------------------------------------------------------------------------

MOST = (1 << 63) - 1
_PLACE = {
    "topic": "string",
    "partition": "int",
    "timestampType": "int",
    "base": "long",
    "first": "long",
    "stop": "long",
}
"""The facts about a file: its topic and partition, the offset of its first row, and the numbers of
the rows to read, up to MOST if it is read to its end.
"""
_Value = str | int


def _first(part: SegmentRange) -> int:
    return part.start_offset - part.segment.base_offset


def _stop(part: SegmentRange) -> int:
    segment = part.segment
    is_end = part.stop_offset == segment.end_offset
    return MOST if is_end else part.stop_offset - segment.base_offset


def _is_cut(part: SegmentRange) -> bool:
    return (_first(part), _stop(part)) != (0, MOST)


def _place(part: SegmentRange) -> tuple[_Value, ...]:
    own = part.topic, part.partition, int(part.log_append_time)
    return *own, part.segment.base_offset, _first(part), _stop(part)


class _Places:
    """What belongs to the file of a row, as SQL: by the file's size, its name, or a join.

    Args:
        parts: the ranges of the files.
        names: the columns that are read from them.
    """

    def __init__(self, parts: Sequence[SegmentRange], names: Sequence[str]) -> None:
        taken = {name.casefold() for name in names}
        # Spark renames its column in the same way.
        metadata = _unused("_metadata", taken)
        self._size, self._name = f"{metadata}.file_size", f"{metadata}.file_name"
        self._row = f"coalesce({quote(OFFSET_COLUMN)}, {metadata}.row_index)"
        self._files = [(part.segment.size_bytes, part.segment.name) for part in parts]
        values = zip(*map(_place, parts), strict=True)
        self._values: dict[str, Sequence[_Value]] = dict(zip(_PLACE, values, strict=True))
        self._columns = {name: _unused(f"_{name}", taken) for name in ("file", *_PLACE)}
        self._joined: dict[str, None] = {}

    def of(self, meaning: str) -> str:
        """A column: the offset, topic, partition or timestampType."""
        if meaning == "offset":
            return f"{self._find('base')} + {self._row}"
        return self._find(meaning)

    def inside(self) -> str:
        """Whether a row is in its file's range; "" if all are."""
        found = []
        if any(self._values["first"]):
            found.append(f"{self._row} >= {self._find('first', 0)}")
        if {*self._values["stop"]} != {MOST}:
            found.append(f"{self._row} < {self._find('stop', MOST)}")
        return " AND ".join(found)

    def joined(self, spark: SparkSession, files: DataFrame) -> DataFrame:
        """The files, with the columns that the expressions up to now have named."""
        if not self._joined:
            return files
        names = ["file", *self._joined]
        columns = [[name for _, name in self._files], *(self._values[n] for n in self._joined)]
        kinds = [f"{self._columns[n]} {_PLACE.get(n, 'string')}" for n in names]
        places = spark.createDataFrame([*zip(*columns, strict=True)], ", ".join(kinds))
        by_name = sf.expr(f"{self._name} = {self._columns['file']}")
        return files.join(sf.broadcast(places), by_name)

    def _find(self, fact: str, usual: int | None = None) -> str:
        """The fact about a row's file. With ``usual`` files that have it are not listed."""
        values = self._values[fact]
        if len({*values}) == 1:
            return _literal(fact, values[0])
        if len(values) > MOST_IN_MAP:
            self._joined[fact] = None
            return self._columns[fact]
        by_size: dict[int, set[_Value]] = {}
        for (size, _), value in zip(self._files, values, strict=True):
            by_size.setdefault(size, set()).add(value)
        # Sizes are compared faster than names, and usually tell.
        sizes: dict[str, str] = {}
        names: dict[str, str] = {}
        for (size, name), value in zip(self._files, values, strict=True):
            if value != usual and len(by_size[size]) == 1:
                sizes[f"{size}L"] = _literal(fact, value)
            elif value != usual:
                names[_text(name)] = _literal(fact, value)
        found = [_map(sizes, self._size)] if sizes else []
        found += [_map(names, self._name)] if names else []
        found += [] if usual is None else [_literal(fact, usual)]
        return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def _unused(name: str, taken: Collection[str]) -> str:
    while name.casefold() in taken:
        name = f"_{name}"
    return name


def _literal(fact: str, value: _Value) -> str:
    if isinstance(value, str):
        return _text(value)
    return f"{value}L" if _PLACE[fact] == "long" else f"{value}"


def _map(values: Mapping[str, str], key: str) -> str:
    pairs = ", ".join(f"{known}, {value}" for known, value in values.items())
    return f"map({pairs})[{key}]"
