"""What engines see of an Iceberg table whose files are in a dictionary: by Iceberg's own rules."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import parquet

from tests.support.simulation.pairs.world import STORE_URL
from txnlog.testing import HeapStorage

_DELETED, _POSITION_DELETES = 2, 1


def values_of_table(storage: HeapStorage, metadata: bytes, column: str) -> list[Any]:
    """A column of the current snapshot, without the rows that are deleted by position."""
    table = json.loads(metadata)
    current = [s for s in table["snapshots"] if s["snapshot-id"] == table["current-snapshot-id"]]
    files: list[str] = []
    deleted: defaultdict[str, set[int]] = defaultdict(set)
    for file in _files(storage, current[0]["manifest-list"]) if current else ():
        if file["content"] != _POSITION_DELETES:
            files.append(file["file_path"])
            continue
        for row in _parquet(storage, file["file_path"]).to_pylist():
            deleted[row["file_path"]].add(row["pos"])
    found: list[Any] = []
    for url in files:
        values = _parquet(storage, url).column(column).to_pylist()
        found += [value for at, value in enumerate(values) if at not in deleted[url]]
    return found


def _files(storage: HeapStorage, list_url: str) -> Iterator[dict[str, Any]]:
    for manifest in _avro(storage, list_url):
        for entry in _avro(storage, manifest["manifest_path"]):
            if entry["status"] != _DELETED:
                yield entry["data_file"]


def _avro(storage: HeapStorage, url: str) -> Iterator[dict[str, Any]]:
    for row in fastavro.reader(BytesIO(_read(storage, url))):
        assert isinstance(row, dict)
        yield row


def _parquet(storage: HeapStorage, url: str) -> pa.Table:
    return parquet.read_table(BytesIO(_read(storage, url)))


def _read(storage: HeapStorage, url: str) -> bytes:
    return storage.get(url.removeprefix(f"{STORE_URL}/"))
