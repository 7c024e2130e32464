"""How verbs show topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txnlog.cli.output.escape import Json
from txnlog.cli.output.fields import Field, flag, names, number, show_settings, size, text, time
from txnlog.cli.output.transaction_fields import REF

if TYPE_CHECKING:
    from txnlog.cli.output.output import Document, Output
    from txnlog.inspect.descriptions import PartitionDescription, TopicDescription
    from txnlog.schema import TopicSchema


class Column(NamedTuple):
    """A column of a typed topic; ``default`` is the text that the schema has of it."""

    name: str
    id: int | None
    type: str
    nullable: bool
    key: bool
    default: str | None


def _list_columns(schema: TopicSchema) -> list[Column]:
    from txnlog.schema import without_ids
    from txnlog.segments.schema_columns import DEFAULT, id_of

    found = []
    for field in schema.columns:
        default = (field.metadata or {}).get(DEFAULT)
        found.append(
            Column(
                field.name,
                id_of(field),
                str(without_ids(field).type),
                field.nullable,
                field.name in schema.key,
                None if default is None else default.decode(),
            )
        )
    return found


SUMMARY: list[Field[TopicDescription]] = [
    text("topic", "TOPIC", lambda topic: topic.topic),
    number("partition_count", "PARTITIONS", lambda topic: len(topic.partitions)),
    number("record_count", "RECORDS", lambda topic: topic.offset_count),
    number("segment_count", "SEGMENTS", lambda topic: topic.segment_count),
    size("size_bytes", "BYTES", lambda topic: topic.size_bytes),
    number("entries", "ENTRIES", lambda topic: topic.entries, wide=True),
    text("compression_type", "CODEC", lambda topic: topic.compression_type),
    number("open_transaction_count", "OPEN", lambda topic: len(topic.open_transactions)),
]


def _get_config(topic: TopicDescription) -> Json:
    return dict(topic.config)


def _list_open_ids(part: PartitionDescription) -> list[str]:
    return [ref.transactional_id for ref in part.open_transactions]


def _newest(part: PartitionDescription) -> int | None:
    return part.newest_timestamp_ms if part.newest_timestamp_ms >= 0 else None


DETAILS: list[Field[TopicDescription]] = [
    *SUMMARY,
    text("topic_id", "TOPIC ID", lambda topic: topic.topic_id),
    time("created_at_ms", "CREATED", lambda topic: topic.created_at_ms),
    Field("config", "CONFIG", _get_config, lambda topic: show_settings(topic.config)),
]
COLUMNS: list[Field[Column]] = [
    text("name", "COLUMN", lambda column: column.name),
    number("id", "ID", lambda column: column.id, wide=True),
    text("type", "TYPE", lambda column: column.type),
    flag("nullable", "NULL", lambda column: column.nullable, "yes", "no"),
    flag("key", "KEY", lambda column: column.key, "key", "-"),
    text("default", "DEFAULT", lambda column: column.default),
]
PARTITIONS: list[Field[PartitionDescription]] = [
    number("partition", "PART", lambda part: part.partition),
    number("log_start_offset", "START", lambda part: part.log_start_offset),
    number("last_stable_offset", "STABLE", lambda part: part.last_stable_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("segment_count", "SEGMENTS", lambda part: part.segment_count),
    size("size_bytes", "BYTES", lambda part: part.size_bytes),
    time("newest_timestamp_ms", "NEWEST", _newest, wide=True),
    names("open_transactions", "OPEN", _list_open_ids),
]


def print_topic(output: Output, topic: TopicDescription) -> None:
    """A topic with its partitions and its open transactions."""
    with output.document() as document:
        put_topic(document, topic)


def put_topic(document: Document, topic: TopicDescription) -> None:
    """Fill a document with a topic, its partitions and its open transactions."""
    document.fields(DETAILS, topic)
    if topic.schema is not None:
        document.rows("columns", "Columns", COLUMNS, _list_columns(topic.schema))
    document.rows("partitions", "Partitions", PARTITIONS, topic.partitions)
    document.rows("open_transactions", "Open transactions", REF, topic.open_transactions)
