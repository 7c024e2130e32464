"""Iceberg's manifests and manifest lists as bytes: a hundred thousand entries in a second.

pyiceberg writes them too, field by field, in a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from txnlog.tables.avro import NULL, SOME, array, blob, container, number, text
from txnlog.tables.iceberg_columns import FileBounds

DATA: Final = 0
DELETES: Final = 1
_EXISTING = number(0)
_PARQUET = text("PARQUET")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a table. ``entry`` is that of the topic's log which has placed its rows.

    ``content`` is DATA, or DELETES: of positions in another one.
    """

    url: str
    entry: int
    record_count: int
    size_bytes: int
    bounds: FileBounds = field(default_factory=FileBounds)
    row_groups: Sequence[int] = ()
    content: int = DATA


@dataclass(frozen=True, slots=True)
class ListedManifest:
    """A manifest as a list names it: how many files it has, and of how many rows."""

    url: str
    size_bytes: int
    file_count: int
    row_count: int
    content: int = DATA


def manifest(schema_json: str, files: Iterable[ListedFile], content: int) -> bytes:
    """A manifest of files, all of this content.

    Nothing in it depends on the snapshot: the same files give the same bytes.
    """
    metadata = {
        "schema": schema_json,
        "schema-id": "0",
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "deletes" if content == DELETES else "data",
    }
    return container(_entry_schema(), metadata, map(_entry, files))


def _entry(file: ListedFile) -> bytes:
    bounds = file.bounds
    counted = dict.fromkeys(bounds.null_counts, file.record_count)
    sequence = SOME + number(_sequence_number(file.content))
    return b"".join(
        (
            _EXISTING,
            SOME,
            number(file.entry + 1),
            sequence,
            sequence,
            number(file.content),
            text(file.url),
            _PARQUET,
            number(file.record_count),
            number(file.size_bytes),
            NULL,
            _counts(counted),
            _counts(bounds.null_counts),
            _counts(bounds.nan_counts),
            _blobs(bounds.least),
            _blobs(bounds.largest),
            NULL,
            SOME + array(map(number, file.row_groups)) if file.row_groups else NULL,
            NULL,
            NULL,
        )
    )


def _sequence_number(content: int) -> int:
    """Deletes are later than data. Iceberg's Java library passes over those of number 0."""
    return 1 if content == DELETES else 0


def _counts(values: Mapping[int, int]) -> bytes:
    if not values:
        return NULL
    return SOME + array([number(key) + number(value) for key, value in values.items()])


def _blobs(values: Mapping[int, bytes]) -> bytes:
    if not values:
        return NULL
    return SOME + array([number(key) + blob(value) for key, value in values.items()])


def manifest_list(snapshot_id: int, manifests: Iterable[ListedManifest]) -> bytes:
    """The list of a snapshot's manifests."""
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null",
        "sequence-number": "0",
        "format-version": "2",
    }
    return container(_list_schema(), metadata, map(_listed, manifests))


def _listed(one: ListedManifest) -> bytes:
    none, sequence = number(0), number(_sequence_number(one.content))
    return b"".join(
        (
            text(one.url),
            number(one.size_bytes),
            none,
            number(one.content),
            sequence,
            sequence,
            number(1),  # no snapshot has added it: entries have their own
            none,
            number(one.file_count),
            none,
            none,
            number(one.row_count),
            none,
            NULL,
            NULL,
        )
    )


@lru_cache(maxsize=1)
def _entry_schema() -> object:
    data_file = data_file_with_partition(StructType(), 2)
    schema = manifest_entry_schema_with_data_file(2, data_file)
    return AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_entry")


@lru_cache(maxsize=1)
def _list_schema() -> object:
    schema = MANIFEST_LIST_FILE_SCHEMAS[2]
    return AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_file")
