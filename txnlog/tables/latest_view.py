"""The newest record of each key as a view of a topic's Iceberg table.

Files have no offsets. But Iceberg numbers rows (format 3): each file says which number its first
row has, and the others follow in their order. Here that is the offset of the segment's beginning,
within a range of numbers for each partition. So of two rows of a partition the one with the greater
number has the greater offset.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from txnlog.schema import TIMESTAMP
from txnlog.tables.iceberg_columns import TOMBSTONE
from txnlog.tables.pinned_topic import PinnedTopic
from txnlog.tables.put_table import NumberedSchema

ROWS_EACH: Final = 1 << 46
"""The numbers of a partition: with those of MAX_PARTITIONS they are below 2**63."""


_ROW_ID = "_row_id"
_NUMBER, _NEWEST = "_txnlog_row", "_txnlog_newest"
_TAKEN = frozenset({_ROW_ID, _NUMBER, _NEWEST, TOMBSTONE})


def numbers_rows(topic: PinnedTopic) -> bool:
    """Whether rows are numbered by their offsets: where a view can need it."""
    schema = topic.schema
    return bool(schema and schema.key) and max(topic.end_offsets.values()) <= ROWS_EACH


def first_row_id(partition: int, offset: int) -> int:
    """The number of a row."""
    return partition * ROWS_EACH + offset


def has_view(topic: PinnedTopic) -> bool:
    """Whether a view in SQL can show the newest record of each key.

    A topic of several partitions needs a column of times for that. And no column's name may be one
    that the view uses itself, or that Spark would expand.
    """
    columns = topic.columns.names
    is_timed = TIMESTAMP in columns
    is_plain = not any(name.casefold() in _TAKEN or "${" in name for name in columns)
    return numbers_rows(topic) and is_plain and (is_timed or len(topic.end_offsets) == 1)


def view_metadata(
    topic: PinnedTopic, fields: dict[str, Any], location: str, namespace: str, now_ms: int
) -> dict[str, Any]:
    """Iceberg's metadata of the view, in which deleted keys have no row; ``topic`` must have one.

    ``fields`` are the columns of its table, as Iceberg's metadata has them. At ``location`` nothing
    needs to lie. ``namespace`` is the table's.
    """
    shown = [field for field in fields["fields"] if field["name"] != TOMBSTONE]
    schema = NumberedSchema.of({**fields, "fields": shown})
    version = schema.number or 1
    return {
        "view-uuid": f"{uuid.uuid5(uuid.NAMESPACE_OID, f'{topic.topic_id} latest')}",
        "format-version": 1,
        "location": location,
        "current-version-id": version,
        "versions": [
            {
                "version-id": version,
                "timestamp-ms": now_ms,
                "schema-id": schema.number,
                "summary": {},
                "default-namespace": [namespace],
                "representations": [
                    {"type": "sql", "sql": _sql(topic, [*shown]), "dialect": "spark"}
                ],
            }
        ],
        "version-log": [{"timestamp-ms": now_ms, "version-id": version}],
        "schemas": [schema.data],
        "properties": {},
    }


def _sql(topic: PinnedTopic, fields: list[dict[str, Any]]) -> str:
    """The query for each key's newest row: in a partition the one with the greatest offset.

    If a key is in several partitions, the one of those rows with the greatest time counts; of equal
    times the one in the last partition.
    """
    assert topic.schema is not None
    columns = ", ".join(_quoted(field["name"]) for field in fields)
    key = ", ".join(map(_quoted, topic.schema.key))
    time = f"{TIMESTAMP} DESC, " if TIMESTAMP in topic.columns.names else ""
    # Names are quoted, and there is nothing else of the topic in it.
    inner = (
        f"SELECT {columns}, {TOMBSTONE}, {_ROW_ID} AS {_NUMBER}, row_number() OVER "  # noqa: S608
        f"(PARTITION BY {key}, {_ROW_ID} DIV {ROWS_EACH} ORDER BY {_ROW_ID} DESC) AS {_NEWEST} "
        f"FROM {_quoted(topic.name)}"
    )
    middle = (
        f"SELECT {columns}, {TOMBSTONE}, row_number() OVER "  # noqa: S608
        f"(PARTITION BY {key} ORDER BY {time}{_NUMBER} DESC) AS {_NEWEST} "
        f"FROM ({inner}) WHERE {_NEWEST} = 1"
    )
    chosen = f"{_NEWEST} = 1 AND {TOMBSTONE} IS NOT TRUE"
    return f"SELECT {columns} FROM ({middle}) WHERE {chosen}"  # noqa: S608


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
