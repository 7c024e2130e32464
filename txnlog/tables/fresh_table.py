"""A topic as an Iceberg table that is never published: its metadata is made when it is asked for.

Iceberg's readers open manifests by their own means, so these are put into the store, in the folder
``tables/``, under names that their content decides; the metadata of each answer is put behind that
of the one before, whose snapshots it lists, too. Segments are named where they lie; of those
that are cut, by a trim for example, the rows that do not show are deleted by position; only what
is not in Parquet files of its own is copied.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyiceberg.schema import Schema

from txnlog import names
from txnlog.config import DAY_MS, TopicConfig
from txnlog.errors import ConcurrentTransactions
from txnlog.log.open_logs import Logs
from txnlog.tables.columns import defaults_lacked
from txnlog.tables.day_folder import DayFolder
from txnlog.tables.fresh_pieces import FreshManifests, KnownFiles
from txnlog.tables.iceberg_columns import default_as_json, iceberg_schema
from txnlog.tables.iceberg_manifests import (
    DATA,
    DELETES,
    Format,
    ListedManifest,
    manifest_list,
)
from txnlog.tables.iceberg_properties import END_OFFSETS, KEEP_FILES, SHOWN_AT, TOPIC_ID
from txnlog.tables.latest_view import first_row_id, has_view, numbers_rows, view_metadata
from txnlog.tables.pinned_topic import PinnedTopic
from txnlog.tables.put_table import NumberedSchema, PutSnapshot, PutTable
from txnlog.tables.table_files import iceberg_url
from txnlog.tables.table_history import TableHistory

_MOST_TABLES = 64
_ATTEMPTS = 10
_FOLDERS_KEPT_MS = 7 * DAY_MS
"""`maintain` deletes none of a day that ended less than its orphan age ago, which is this."""
_NO_SNAPSHOT = -1


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """A table as it was when it was asked for.

    ``metadata`` is Iceberg's, in JSON, which lies at the URL ``location`` too. ``tag`` tells it
    from every other one.
    """

    metadata: bytes
    location: str
    tag: str


class FreshTables:
    """The topics of a store as Iceberg tables. Safe to use from several threads."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, _FreshTable] = OrderedDict()

    def load(self, topic: str) -> TableAnswer:
        """A topic's table now: committed records only, each transaction whole.

        Raises UnknownTopicOrPartition, InvalidTopic, SnapshotExpired, CorruptEntry, CorruptRecord,
        StorageError; InvalidOption: it is not stored in Parquet files, or engines cannot reach the
        store; InvalidSchema: a column's name is not allowed in Iceberg.
        """
        with self._lock:
            table = self._tables.pop(topic, None) or _FreshTable(self._logs, topic)
            self._tables[topic] = table
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        return table.answer()

    def load_view(self, topic: str, namespace: str) -> TableAnswer | None:
        """The view of a topic's newest records; None if it has none. Raises as ``load`` does."""
        pinned = PinnedTopic.of(self._logs, topic)
        if not has_view(pinned):
            return None
        fields = _fields(pinned, iceberg_schema(pinned.columns))
        location = f"{iceberg_url(self._logs.storage)}/{names.TABLES}/{topic}"
        now_ms = self._logs.clock.now_ms()
        data = msgspec.json.encode(view_metadata(pinned, fields, location, namespace, now_ms))
        return TableAnswer(data, location, hashlib.blake2b(data, digest_size=20).hexdigest())


class _FreshTable:
    """What this server remembers of one table between answers."""

    def __init__(self, logs: Logs, topic: str) -> None:
        self._logs = logs
        self._topic = topic
        self._lock = threading.Lock()
        self._folder: DayFolder | None = None
        self._known: KnownFiles | None = None
        self._history: TableHistory | None = None
        self._answer: tuple[object, TableAnswer] | None = None

    def answer(self) -> TableAnswer:
        with self._lock:
            for _ in range(_ATTEMPTS):
                if (made := self._attempt()) is not None:
                    return made
        raise ConcurrentTransactions(
            f"other servers have shown topic {self._topic!r} during each of {_ATTEMPTS} attempts "
            "to do so: try again"
        )

    def _attempt(self) -> TableAnswer | None:
        """Try to answer; None if other servers have shown states that may be newer."""
        logs = self._logs
        # Pinned within the lock: a later answer is never of an earlier moment.
        topic = PinnedTopic.of(logs, self._topic)
        now_ms = logs.clock.now_ms()
        day = datetime.fromtimestamp(now_ms / 1000, UTC).date()
        view = topic.view
        seen = (
            day,
            view.topic_id,
            view.next_entry,
            tuple(view.beginning_offsets.values()),
            tuple(view.end_offsets.values()),
            view.hidden_entries,
            tuple((number, *starts) for number, starts in view.unfinished.items()),
        )
        folder, history = self._folder, self._history
        if folder is None or folder.day != day or history is None or history.of != view.topic_id:
            self._folder = DayFolder(logs, self._topic, day)
            self._history = TableHistory(logs, self._topic, view.topic_id, self._folder)
            self._known = None
            return None
        has_expired = history.has_expired(now_ms, _kept_ms(topic))
        if self._answer is not None and self._answer[0] == seen and not has_expired:
            history.shown_at_ms = now_ms
            return self._answer[1]
        self._answer = None
        schema = iceberg_schema(topic.columns)
        fields = _fields(topic, schema)
        columns = json.dumps([topic.topic_id, fields])
        if self._known is None or self._known.columns != columns:
            self._known = KnownFiles(columns)
        pieces = FreshManifests(logs, topic, schema, json.dumps(fields), folder, self._known)
        manifests = [*pieces.manifests()]
        made = _put(topic, fields, schema, manifests, folder, history, seen, now_ms)
        if made is not None and pieces.is_complete:
            self._answer = seen, made
        return made


def _put(
    topic: PinnedTopic,
    fields: dict[str, Any],
    schema: Schema,
    manifests: list[ListedManifest],
    folder: DayFolder,
    history: TableHistory,
    seen: object,
    now_ms: int,
) -> TableAnswer | None:
    """Put the list of manifests, and the metadata that names it, if they are not there.

    None: another server has put the next metadata.
    """
    known = repr((seen, [one.url for one in manifests])).encode()
    list_name = f"{hashlib.blake2b(known, digest_size=20).hexdigest()}.list.avro"
    moment = hashlib.blake2b(repr(seen).encode(), digest_size=8).digest()
    snapshot = PutSnapshot(
        (int.from_bytes(moment, "big") >> 1) or 1,
        topic.view.next_entry,
        topic.view.log_time_ms,
        folder.url(list_name),
        0,
        _summary(topic, manifests, now_ms),
    )
    columns = NumberedSchema.of(fields)

    def metadata(table: PutTable) -> bytes:
        return msgspec.json.encode(_metadata(topic, schema, columns, folder, table))

    # What lies in the store is anybody's: it is shown only if it is what would be put now.
    if history.has_expired(now_ms, _kept_ms(topic)) or not (
        history.shows(snapshot, columns, has_rows=bool(manifests))
        and history.newest_data == metadata(history.table)
    ):
        version: Format = 3 if numbers_rows(topic) else 2
        folder.put_all(list_name, manifest_list(snapshot.snapshot_id, manifests, version))
        table = history.extended(
            snapshot, columns, now_ms, _kept_ms(topic), has_rows=bool(manifests)
        )
        if not history.put(metadata(table), table):
            return None
    history.shown_at_ms = now_ms
    data = history.newest_data
    tag = hashlib.blake2b(data, digest_size=20).hexdigest()
    return TableAnswer(data, history.newest_url, tag)


def _kept_ms(topic: PinnedTopic) -> int:
    """How long (ms) a snapshot's files exist: segments, and files in the day's folder."""
    return min(_FOLDERS_KEPT_MS, TopicConfig.of(topic.view.config).file_delete_delay_ms)


def _metadata(
    topic: PinnedTopic,
    schema: Schema,
    columns: NumberedSchema,
    folder: DayFolder,
    table: PutTable,
) -> dict[str, Any]:
    snapshots = table.snapshots
    current = snapshots[-1].snapshot_id if snapshots else _NO_SNAPSHOT
    has_defaults = any(b'"initial-default"' in bytes(one) for one in table.schemas)
    return {
        "format-version": 3 if has_defaults or numbers_rows(topic) else 2,
        "table-uuid": f"{uuid.uuid5(uuid.NAMESPACE_OID, topic.topic_id)}",
        "location": f"{folder.root}/{folder.path}",
        "last-sequence-number": max(
            [topic.view.next_entry, *(one.sequence_number for one in snapshots[-1:])]
        ),
        "last-updated-ms": table.last_updated_ms,
        "last-column-id": schema.highest_field_id,
        "schemas": table.schemas,
        "current-schema-id": columns.number,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {**KEEP_FILES, TOPIC_ID: topic.topic_id},
        "current-snapshot-id": current,
        "snapshots": snapshots,
        "snapshot-log": [
            {"snapshot-id": one.snapshot_id, "timestamp-ms": one.timestamp_ms} for one in snapshots
        ],
        "metadata-log": [],
        "refs": {"main": {"snapshot-id": current, "type": "branch"}} if snapshots else {},
        "next-row-id": first_row_id(len(topic.end_offsets), 0) if numbers_rows(topic) else 0,
    }


def _summary(topic: PinnedTopic, manifests: list[ListedManifest], now_ms: int) -> dict[str, str]:
    files, rows = _sums(manifests, DATA)
    deletes, deleted = _sums(manifests, DELETES)
    return {
        "operation": "append",
        "total-data-files": f"{files}",
        "total-records": f"{rows}",
        "total-delete-files": f"{deletes}",
        "total-position-deletes": f"{deleted}",
        "total-equality-deletes": "0",
        END_OFFSETS: json.dumps(topic.end_offsets),
        SHOWN_AT: f"{now_ms}",
    }


def _sums(manifests: list[ListedManifest], content: int) -> tuple[int, int]:
    some = [one for one in manifests if one.content == content]
    return sum(one.file_count for one in some), sum(one.row_count for one in some)


def _defaults_lacked(topic: PinnedTopic) -> set[str]:
    """The columns whose default older files lack, and then have: in Iceberg's format 3.

    No others: for what no file lacks metadata need not say it, and of an infinite one it cannot.
    """
    schema = topic.schema
    if schema is None:
        return set()
    return set().union(*(defaults_lacked(schema, older) for older in range(schema.version)))


def _fields(topic: PinnedTopic, schema: Schema) -> dict[str, Any]:
    """The columns as metadata has them, with the defaults that older files lack."""
    fields: dict[str, Any] = schema.model_dump(mode="json")
    lacked = _defaults_lacked(topic)
    if topic.schema is not None:
        for field in topic.schema.columns:
            default = default_as_json(field) if field.name in lacked else None
            for shown in fields["fields"]:
                if default is not None and shown["name"] == field.name:
                    shown["initial-default"] = shown["write-default"] = default
    return fields
