"""Iceberg's manifests and manifest lists as bytes: a hundred thousand entries in a second.

pyiceberg writes them too, field by field, in a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import pyarrow as pa
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from txnlog.tables.avro import NULL, SOME, array, blob, container, container_of, number, text
from txnlog.tables.iceberg_columns import FileBounds

Format: TypeAlias = Literal[2, 3]
"""Iceberg's format version: rows have numbers in 3."""

DATA: Final = 0
DELETES: Final = 1
_EXISTING = number(0)
_PARQUET = text("PARQUET")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a table. ``entry`` is that of the topic's log which has placed its rows.

    ``content`` is DATA, or DELETES: of positions in another one. ``first_row_id`` is the number of
    its first row, where the manifest is of format 3.
    """

    url: str
    entry: int
    record_count: int
    size_bytes: int
    bounds: FileBounds = field(default_factory=FileBounds)
    split_offsets: Sequence[int] = ()
    content: int = DATA
    first_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class ListedManifest:
    """A manifest as a list names it: how many files it has, and of how many rows."""

    url: str
    size_bytes: int
    file_count: int
    row_count: int
    content: int = DATA


def manifest(schema_json: str, files: Iterable[ListedFile], content: int, version: Format) -> bytes:
    """A manifest of files, all of this content, in Iceberg's format 2 or 3.

    Nothing in it depends on the snapshot: the same files give the same bytes.
    """
    entries = (_entry(file, version) for file in files)
    return container(_entry_schema(version), _metadata(schema_json, content, version), entries)


def manifest_of(schema_json: str, entries: pa.Array, version: Format) -> bytes:
    """What :func:`manifest` makes of data files, of their entries as ``PlainEntries`` has them."""
    return container_of(_entry_schema(version), _metadata(schema_json, DATA, version), entries)


def _metadata(schema_json: str, content: int, version: Format) -> dict[str, str]:
    return {
        "schema": schema_json,
        "schema-id": "0",
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": f"{version}",
        "content": "deletes" if content == DELETES else "data",
    }


def _entry(file: ListedFile, version: Format) -> bytes:
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
            SOME + array(map(number, file.split_offsets)) if file.split_offsets else NULL,
            NULL,
            NULL,
            _of_format_3(file.first_row_id) + 3 * NULL if version == 3 else b"",
        )
    )


def _of_format_3(first_row_id: int | None) -> bytes:
    return NULL if first_row_id is None else SOME + number(first_row_id)


def _sequence_number(content: int) -> int:
    """The sequence number of a file: deletes are later than data.

    Iceberg's Java library ignores deletes with the number 0.
    """
    return 1 if content == DELETES else 0


def _counts(values: Mapping[int, int]) -> bytes:
    if not values:
        return NULL
    return SOME + array([number(key) + number(value) for key, value in values.items()])


def _blobs(values: Mapping[int, bytes]) -> bytes:
    if not values:
        return NULL
    return SOME + array([number(key) + blob(value) for key, value in values.items()])


def manifest_list(snapshot_id: int, manifests: Iterable[ListedManifest], version: Format) -> bytes:
    """The list of a snapshot's manifests, in Iceberg's format 2 or 3."""
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null",
        "sequence-number": "0",
        "format-version": f"{version}",
    }
    listed = (_listed(one, version) for one in manifests)
    return container(_list_schema(version), metadata, listed)


def _listed(one: ListedManifest, version: Format) -> bytes:
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
            # Files have their own; without this Iceberg's Java library passes over them.
            _of_format_3(0 if one.content == DATA else None) if version == 3 else b"",
        )
    )


@lru_cache(maxsize=2)
def _entry_schema(version: Format) -> object:
    data_file = data_file_with_partition(StructType(), version)
    schema = manifest_entry_schema_with_data_file(version, data_file)
    return AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_entry")


@lru_cache(maxsize=2)
def _list_schema(version: Format) -> object:
    schema = MANIFEST_LIST_FILE_SCHEMAS[version]
    return AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_file")
