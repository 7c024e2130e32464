"""A topic as an Iceberg table that is never published: its metadata is made when it is asked for.

Iceberg's readers open manifests by their own means, so these are put into the store, in the folder
``tables/``, under names that their content decides. Segments are named where they lie; of those
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

from pyiceberg.schema import Schema

from txnlog.log.open_logs import Logs
from txnlog.tables.columns import shows_as_it_is
from txnlog.tables.day_folder import DayFolder
from txnlog.tables.fresh_pieces import FreshManifests, KnownFiles
from txnlog.tables.iceberg_columns import default_as_json, iceberg_schema
from txnlog.tables.iceberg_manifests import DATA, DELETES, ListedManifest, manifest_list
from txnlog.tables.iceberg_properties import END_OFFSETS, KEEP_FILES, TOPIC_ID
from txnlog.tables.pinned_topic import PinnedTopic

_MOST_TABLES = 64
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

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            InvalidTopic: no topic can be called so.
            InvalidOption: it is not stored in Parquet files, or engines cannot reach the store.
            InvalidSchema: a column's name is not allowed in Iceberg.
            SnapshotExpired: a file was deleted meanwhile.
            CorruptEntry: the log or a segment is damaged, as CorruptRecord.
            StorageError: the storage fails.
        """
        with self._lock:
            table = self._tables.pop(topic, None) or _FreshTable(self._logs, topic)
            self._tables[topic] = table
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        return table.answer()


class _FreshTable:
    """What is known of one table from one answer to the next."""

    def __init__(self, logs: Logs, topic: str) -> None:
        self._logs = logs
        self._topic = topic
        self._lock = threading.Lock()
        self._folder: DayFolder | None = None
        self._known: KnownFiles | None = None
        self._answer: tuple[object, TableAnswer] | None = None

    def answer(self) -> TableAnswer:
        logs = self._logs
        with self._lock:
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
            if self._answer is not None and self._answer[0] == seen:
                return self._answer[1]
            if self._folder is None or self._folder.day != day:
                self._folder = DayFolder(logs, self._topic, day)
                self._known = None
            self._answer = None
            schema = iceberg_schema(topic.columns)
            fields = _fields(topic, schema)
            columns = json.dumps([topic.topic_id, fields])
            if self._known is None or self._known.columns != columns:
                self._known = KnownFiles(columns)
            pieces = FreshManifests(
                logs, topic, schema, json.dumps(fields), self._folder, self._known
            )
            manifests = [*pieces.manifests()]
            made = _put(topic, fields, schema, manifests, self._folder, seen, now_ms)
            if pieces.is_complete:
                self._answer = seen, made
            return made


def _put(
    topic: PinnedTopic,
    fields: dict[str, Any],
    schema: Schema,
    manifests: list[ListedManifest],
    folder: DayFolder,
    seen: object,
    now_ms: int,
) -> TableAnswer:
    """Put the list of manifests, and the metadata that names it."""
    known = repr((seen, [one.url for one in manifests])).encode()
    tag = hashlib.blake2b(known, digest_size=20).hexdigest()
    moment = hashlib.blake2b(repr(seen).encode(), digest_size=8).digest()
    snapshot_id = (int.from_bytes(moment, "big") >> 1) or 1
    list_name = f"{tag}.list.avro"
    snapshot = _snapshot(topic, manifests, folder.url(list_name), snapshot_id, now_ms)
    has_rows = bool(manifests)
    root = f"{folder.root}/{folder.path}"
    metadata = {
        "format-version": 3 if _needs_defaults(topic) else 2,
        "table-uuid": f"{uuid.uuid5(uuid.NAMESPACE_OID, topic.topic_id)}",
        "location": root,
        "last-sequence-number": topic.view.next_entry,
        "last-updated-ms": now_ms,
        "last-column-id": schema.highest_field_id,
        "schemas": [fields],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {**KEEP_FILES, TOPIC_ID: topic.topic_id},
        "current-snapshot-id": snapshot_id if has_rows else _NO_SNAPSHOT,
        "snapshots": [snapshot] if has_rows else [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}} if has_rows else {},
        "next-row-id": 0,
    }
    data = json.dumps(metadata).encode()
    name = f"{tag}.metadata.json"
    folder.put_all((list_name, manifest_list(snapshot_id, manifests)), (name, data))
    return TableAnswer(data, folder.url(name), tag)


def _snapshot(
    topic: PinnedTopic,
    manifests: list[ListedManifest],
    list_url: str,
    snapshot_id: int,
    now_ms: int,
) -> dict[str, Any]:
    files, rows = _sums(manifests, DATA)
    deletes, deleted = _sums(manifests, DELETES)
    return {
        "snapshot-id": snapshot_id,
        "sequence-number": topic.view.next_entry,
        "timestamp-ms": now_ms,
        "manifest-list": list_url,
        "schema-id": 0,
        "summary": {
            "operation": "append",
            "total-data-files": f"{files}",
            "total-records": f"{rows}",
            "total-delete-files": f"{deletes}",
            "total-position-deletes": f"{deleted}",
            "total-equality-deletes": "0",
            END_OFFSETS: json.dumps(topic.end_offsets),
        },
    }


def _sums(manifests: list[ListedManifest], content: int) -> tuple[int, int]:
    some = [one for one in manifests if one.content == content]
    return sum(one.file_count for one in some), sum(one.row_count for one in some)


def _needs_defaults(topic: PinnedTopic) -> bool:
    """Whether older files lack a column whose default they then have: Iceberg's format 3."""
    schema = topic.schema
    if schema is None:
        return False
    older = range(schema.version)
    return not all(shows_as_it_is(schema, version, by_name=False) for version in older)


def _fields(topic: PinnedTopic, schema: Schema) -> dict[str, Any]:
    """The columns as metadata has them, with the defaults that older files lack."""
    fields: dict[str, Any] = schema.model_dump(mode="json")
    if topic.schema is not None and _needs_defaults(topic):
        for field in topic.schema.columns:
            default = default_as_json(field)
            for shown in fields["fields"]:
                if default is not None and shown["name"] == field.name:
                    shown["initial-default"] = shown["write-default"] = default
    return fields
