"""A pinned read as Spark's own read of Parquet files: whole files, and filtered ones at the ends.

Exactly the planned files are read: they are named, and the rows of those in which a read begins or
ends. Catalyst prunes columns, pushes filters down and counts by footers. Knows ranges and columns,
and nothing of logs, groups and transactions. The caller reads ranges outside of Parquet files in
another way: in runs, so that the order of each topic's partition is kept.

Expressions are SQL text: each ``Column`` of PySpark, and each path in a list, is a call to the JVM
or several, and hundreds of them took longer than all that Spark does for a frame.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import and_
from typing import TYPE_CHECKING, TypeVar

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
    TimestampType,
)

from txnlog.columns.layouts import FileLayout, file_layout
from txnlog.names import schema_version
from txnlog.segments.parquet.footer import OFFSET_COLUMN
from txnlog.segments.schema_columns import default_as_text, default_of
from txnlog.spark.batch.planned_files import FILE_NUMBER, planner, read_in_order
from txnlog.spark.batch.row_schema import read_schema
from txnlog.spark.batch.typed_rows import spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from txnlog.read.plan import ScanColumns, SegmentRange
    from txnlog.schema import TopicSchema

MOST_RUNS = 8
"""In a read that keeps order. Each is a scan of its own, and those of Spark and of the data source
take turns where small appends lie between large ones: then the data source is faster for all.
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

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")
_Kind = TypeVar("_Kind", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Run:
    """Ranges that are read together, by Spark or, where ``files`` is None, by the data source.

    ``files`` says under which names they have their columns.
    """

    ranges: tuple[SegmentRange, ...]
    files: NativeFiles | None


@dataclass(frozen=True, slots=True)
class NativeFiles:
    """Files that one Spark reader can read together: their columns have the same names.

    ``columns`` is None for files whose columns have the schema's current names. Columns that such
    files lack are null.
    """

    columns: FileLayout | None


def plan_runs(
    ranges: Sequence[SegmentRange], schema: TopicSchema | None = None, *, ordered: bool
) -> list[Run]:
    """Who reads what, in few runs.

    ``schema`` is that of typed topics: files of a newer one are read by the data source. If
    ``ordered``, what the runs have of each topic's partition follows one another by its offsets.
    """
    found = [*_layouts(ranges, schema)]
    cut = [*map(_is_cut, ranges)]
    whole = zip(ranges, found, cut, strict=True)
    is_apart = sum(p.record_count for p, read, c in whole if read and not c) > MOST_TO_FILTER
    kinds = [
        (read, is_apart and c and read is not None) for read, c in zip(found, cut, strict=True)
    ]
    return [Run(run, files) for (files, _), run in in_runs(ranges, kinds, ordered=ordered)]


def _layouts(
    ranges: Sequence[SegmentRange], schema: TopicSchema | None
) -> Iterator[NativeFiles | None]:
    """How Spark reads each range; None where it cannot. It needs files with names of their own."""
    known: dict[int, NativeFiles | None] = {}
    names: set[str] = set()
    for part in ranges:
        name = part.segment.stored.name
        if not part.has_own_file or name in names:
            yield None
            continue
        version = 0 if schema is None else schema_version(name)
        if version not in known:
            known[version] = _layout(schema, version, known.values())
        if known[version] is not None:
            names.add(name)
        yield known[version]


def in_runs(
    ranges: Sequence[SegmentRange], kinds: Sequence[_Kind], *, ordered: bool
) -> list[tuple[_Kind, tuple[SegmentRange, ...]]]:
    """Ranges of one kind together; if ``ordered``, as far as each partition's stay in order.

    The next run is of the kind that the most partitions go on with.
    """
    queues: dict[Hashable, deque[tuple[_Kind, list[SegmentRange]]]] = {}
    for part, kind in zip(ranges, kinds, strict=True):
        mine = queues.setdefault((part.topic, part.partition) if ordered else kind, deque())
        if mine and mine[-1][0] == kind:
            mine[-1][1].append(part)
        else:
            mine.append((kind, [part]))
    runs = []
    waiting = [*queues.values()]
    while waiting:
        ((kind, _),) = Counter(queue[0][0] for queue in waiting).most_common(1)
        ready = [queue.popleft()[1] for queue in waiting if queue[0][0] == kind]
        runs.append((kind, tuple(part for parts in ready for part in parts)))
        waiting = [queue for queue in waiting if queue]
    return runs


def _layout(
    schema: TopicSchema | None, version: int, others: Iterable[NativeFiles | None]
) -> NativeFiles | None:
    """How Spark reads files of a version of the schema; None if it cannot."""
    if schema is None:
        return NativeFiles(None)
    layout = file_layout(schema, version)
    if layout is None:
        return None
    has_default = [default_of(field) is not None for field in schema.columns]
    lacks = [field is None for field in layout.columns]
    if layout.is_plain and not any(map(and_, lacks, has_default)):
        return NativeFiles(None)
    there = _fields(layout)
    same = (
        other for other in others if other and other.columns and _fields(other.columns) == there
    )
    return next(same, NativeFiles(layout))


def _fields(layout: FileLayout) -> list[object]:
    return [field and (field.name, field.type) for field in layout.columns]


class NativeReader:
    """Makes frames of files, each with exactly ``read_schema(columns)``; ``root`` in Hadoop's form.

    Offsets and the like have a cost only if they are among the columns.
    """

    def __init__(self, spark: SparkSession, root: str, columns: ScanColumns) -> None:
        self._spark = spark
        self._root = root
        self._columns = columns
        self._schema = read_schema(columns)
        self._planner = planner(spark)
        stored = columns.stored
        self._stored = frozenset(stored if isinstance(stored, list) else stored.names)

    def frame(self, ranges: Sequence[SegmentRange], files: NativeFiles) -> DataFrame:
        """The records of these files within their ranges, in order within each partition."""
        layout = files.columns
        parts, planned = self._planner.plan(ranges)
        is_whole = not any(map(_is_cut, parts))
        as_stored = layout is None and is_whole and self._stored == {*self._columns.names}
        schema = self._schema if as_stored else self._file_schema(layout)
        settings = self._settings(parts)
        found = read_in_order(self._spark, self._root, planned, schema, _FILE_OPTIONS, settings)
        if as_stored:
            return found
        places = _Places(parts, schema.names)
        inside = places.inside()
        plain = _plain_names(schema.names)
        if [*plain.values()] != schema.names:
            found = found.toDF(*plain.values())
        chosen = self._select(places, layout, plain)
        return (found.where(inside) if inside else found).selectExpr(*chosen)

    def _settings(self, parts: Iterable[SegmentRange]) -> Mapping[str, str]:
        """The settings for reading these files, whatever the session has."""
        schema = self._columns.topic_schema
        newest = 0 if schema is None else schema.version
        if all(schema_version(part.segment.stored.name) == newest for part in parts):
            return {}
        # Spark's filter fails where a literal has more bytes than decimals have in a file, as in
        # one from before they were widened ("fromIndex(0) > toIndex(-3)").
        return {"spark.sql.parquet.filterPushdown.decimal": "false"}

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

    def _select(
        self, places: _Places, layout: FileLayout | None, plain: Mapping[str, str]
    ) -> list[str]:
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
                text = quote(plain[there.name])
                if there.dataType != field.dataType:
                    text = _cast(text, field.dataType)
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


def _plain_names(names: Sequence[str]) -> dict[str, str]:
    """For columns of any names such as no setting takes for patterns, in their order."""
    taken = {name.casefold() for name in names}
    return {
        name: name if _PLAIN_NAME.fullmatch(name) else _unused(f"_{number}", taken)
        for number, name in enumerate(names)
    }


def quote(name: str) -> str:
    """A column's name quoted for Spark's parser."""
    return f"`{name.replace('`', '``')}`"


def column_of(frame: DataFrame, name: str) -> Column:
    """A frame's column, whatever characters its name has.

    ``frame[...]`` takes a quoted name for a pattern if ``spark.sql.parser.quotedRegexColumnNames``
    is set, so it gets plain names only. It alone tells the frame's column from one of the same name
    in a frame that it is joined with.
    """
    return frame[name] if _PLAIN_NAME.fullmatch(name) else sf.col(quote(name))


def _text(value: str) -> str:
    """A text as SQL, whoever has chosen it: settings of the session say what a backslash means."""
    return _cast(f"X'{value.encode().hex()}'", StringType())


def _cast(text: str, kind: DataType) -> str:
    return f"CAST({text} AS {_sql(kind)})"


def _sql(kind: DataType) -> str:
    """A type's name in SQL, whatever a session means by TIMESTAMP.

    PySpark's own leaves the names of nested fields as they are.
    """
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quote(f.name)}: {_sql(f.dataType)}' for f in kind)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_sql(kind.keyType)}, {_sql(kind.valueType)}>"
    return "TIMESTAMP_LTZ" if isinstance(kind, TimestampType) else kind.simpleString()


# -- constants of a file -------------------------------------------------------------------------

MOST = (1 << 63) - 1
_PLACE = {
    "topic": "string",
    "partition": "int",
    "timestampType": "int",
    "base": "bigint",
    "first": "bigint",
    "stop": "bigint",
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
    """What belongs to the file of a row, as SQL: by the file's number.

    ``parts`` are in the order of their relation; ``names`` are the columns that are read from them.
    """

    def __init__(self, parts: Sequence[SegmentRange], names: Sequence[str]) -> None:
        # Spark renames its column in the same way.
        metadata = _unused("_metadata", {name.casefold() for name in names})
        self._file = FILE_NUMBER.format(metadata=metadata)
        self._row = f"coalesce({quote(OFFSET_COLUMN)}, {metadata}.row_index)"
        values = zip(*map(_place, parts), strict=True)
        self._values: dict[str, Sequence[_Value]] = dict(zip(_PLACE, values, strict=True))

    def of(self, meaning: str) -> str:
        """A column: the offset, topic, partition or timestampType."""
        if meaning == "offset":
            return f"{self._find('base')} + {self._row}"
        return self._find(meaning)

    def inside(self) -> str:
        """Whether a row is in its file's range; "" if all are."""
        found = []
        if any(self._values["first"]):
            found.append(f"{self._row} >= {self._find('first')}")
        if {*self._values["stop"]} != {MOST}:
            found.append(f"{self._row} < {self._find('stop')}")
        return " AND ".join(found)

    def _find(self, fact: str) -> str:
        """The fact about a row's file."""
        values = self._values[fact]
        if len({*values}) == 1:
            return _literal(fact, values[0])
        # One text, and not array(...), of which each element is an expression to the parser.
        texts = _text(",".join(map(str, values)))
        return f"CAST(split({texts}, ',') AS ARRAY<{_PLACE[fact]}>)[{self._file}]"


def _unused(name: str, taken: Collection[str]) -> str:
    while name.casefold() in taken:
        name = f"_{name}"
    return name


def _literal(fact: str, value: _Value) -> str:
    if isinstance(value, str):
        return _text(value)
    return f"{value}L" if _PLACE[fact] == "bigint" else f"{value}"
