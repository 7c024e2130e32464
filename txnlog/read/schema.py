"""The columns of a scan: the row of Spark's Kafka source, or a typed topic's own columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from txnlog.errors import InvalidOption
from txnlog.schema import DELETED, HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC, TopicSchema
from txnlog.segments.records import HEADERS_TYPE

if TYPE_CHECKING:
    from txnlog.read.row_filter import RowFilter

SCAN_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""The columns that a scan can return: the row of Spark's Kafka source. timestampType: 0 create, 1
append.
"""

TYPED_METADATA = pa.schema(
    [
        pa.field(TOPIC, pa.string()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")),
        pa.field(HEADERS, HEADERS_TYPE),
        pa.field(DELETED, pa.bool_()),
    ]
)
"""The further columns that a scan of a typed topic returns if asked for."""

_MEANING = {TOPIC: "topic", PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp"}


@dataclass(frozen=True, slots=True)
class ScanColumns:
    """Columns of a scan, in order; ``topic_schema`` is that of a typed topic.

    With ``as_json`` its records are shown like those of untyped topics: see ``json_records``. With
    ``as_rows`` too their values are not JSON but structs of the columns. Only rows for which
    ``row_filter`` is true are returned; it may need more columns than are returned.
    """

    names: tuple[str, ...]
    topic_schema: TopicSchema | None = None
    as_json: bool = False
    row_filter: RowFilter | None = field(default=None, compare=False)
    as_rows: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return pa.schema([self.field(name) for name in self.names])

    def field(self, name: str) -> pa.Field:
        """The Arrow field of an available column."""
        typed = self.topic_schema
        if typed is not None and self.as_rows and name == "value":
            return pa.field(name, pa.struct(row_fields(typed)))
        if typed is None or self.as_json:
            return SCAN_SCHEMA.field(name)
        if name in TYPED_METADATA.names:
            return TYPED_METADATA.field(name)
        return typed.scan_columns.field(name)

    @property
    def stored(self) -> list[str] | pa.Schema:
        """The columns stored in segments; for a typed topic with their ids and types."""
        if self.topic_schema is None:
            return [name for name in ("key", "value", "timestamp", "headers") if name in self.names]
        stored = self.topic_schema.record_columns
        if not self.as_json:
            return pa.schema([field for field in stored if field.name in self.names])
        needed = {"timestamp": TIMESTAMP, "headers": HEADERS}
        wanted = {needed[name] for name in self.names if name in needed}
        if "key" in self.names:
            wanted.update(self.topic_schema.key)
        if "value" in self.names:
            wanted.update((*self.topic_schema.columns.names, DELETED))
        return pa.schema([field for field in stored if field.name in wanted])

    @property
    def looked_at(self) -> ScanColumns:
        """The columns that the filter needs."""
        names = self.row_filter.names if self.row_filter else ()
        return replace(self, names=names, row_filter=None)

    @property
    def with_looked_at(self) -> ScanColumns:
        """All columns to read: those returned, and those that the filter needs."""
        more = [name for name in self.looked_at.names if name not in self.names]
        return replace(self, names=(*self.names, *more), row_filter=None)

    def meaning(self, name: str) -> str:
        """A built-in column's name in scans of topics without a schema."""
        return name if self._is_plain else _MEANING.get(name, "")

    @property
    def _is_plain(self) -> bool:
        return self.topic_schema is None or self.as_json

    @property
    def offset(self) -> str:
        """The name of the column with the records' offsets, whether requested or not."""
        return "offset" if self._is_plain else OFFSET

    @property
    def timestamp(self) -> str:
        """The name of the column with the records' times, whether requested or not."""
        return "timestamp" if self._is_plain else TIMESTAMP

    def with_timestamp(self) -> ScanColumns:
        """These columns and the records' times."""
        if self.timestamp in self.names:
            return self
        return replace(self, names=(*self.names, self.timestamp))

    def only(self, *meanings: str) -> ScanColumns:
        """Columns by their meaning, such as ``offset``."""
        if self._is_plain:
            return replace(self, names=meanings)
        by_meaning = {meaning: name for name, meaning in _MEANING.items()}
        return replace(self, names=tuple(by_meaning[meaning] for meaning in meanings))


def row_fields(schema: TopicSchema) -> list[pa.Field]:
    """What a record is as a row: its columns and, if there is a key, whether it deletes."""
    names = [*schema.columns.names, *([DELETED] if schema.key else [])]
    return [schema.scan_columns.field(name) for name in names]


def scan_columns(
    columns: Sequence[str] | None,
    topic_schema: TopicSchema | None = None,
    *,
    as_json: bool = False,
    as_rows: bool = False,
    row_filter: object = None,
) -> ScanColumns:
    """The columns to read. If None, all of Spark's row, or a typed topic's own.

    ``row_filter`` is a pyarrow expression, over any available column.

    Raises InvalidOption.
    """
    if as_json and topic_schema is not None:
        plain = scan_columns(columns, row_filter=row_filter)
        return replace(plain, topic_schema=topic_schema, as_json=True, as_rows=as_rows)
    every = SCAN_SCHEMA.names if topic_schema is None else topic_schema.columns.names
    default = tuple(every)
    if topic_schema is not None:
        more = [name for name in TYPED_METADATA.names if name != DELETED or topic_schema.key]
        every = [*every, *more]
    if isinstance(columns, str):
        raise InvalidOption(f"columns must be a list of names, not the string {columns!r}")
    chosen = default if columns is None else tuple(columns)
    for name in chosen:
        if name not in every:
            raise InvalidOption(f"unknown column {name!r}; a scan has {', '.join(every)}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidOption("columns must name at least one column, and none twice")
    made = ScanColumns(chosen, topic_schema)
    if row_filter is None:
        return made
    from txnlog.read.row_filter import parse_filter

    return replace(made, row_filter=parse_filter(row_filter, every, made.field))
