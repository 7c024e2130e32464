"""Where a catalog puts what a table's readers open: one folder for each day and topic.

The name of a manifest is ``<digest>.<kind>.<files>.<rows>.avro``, so a listing tells all that a
list of manifests says; that of a table's metadata is ``<topic id>.<number>.metadata.json``. What is
still needed on the next day is put again, in its folder: so the folder of a day that ended long ago
can be deleted.
"""

from __future__ import annotations

import re
from datetime import date
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from txnlog import names
from txnlog.errors import ObjectNotFound
from txnlog.log.open_logs import Logs
from txnlog.storage.base import Storage
from txnlog.tables.table_files import Sink, iceberg_url

BOUNDED: Final = "b"
"""A manifest of whole segments with the bounds of their columns."""
PLAIN: Final = "p"
"""A manifest of whole segments, without bounds."""
BESIDE: Final = "x"
"""A manifest of files some of which lie beside it."""
CUT: Final = "c"
"""A manifest of files some of which have deleted rows: it says too much without those."""
DELETING: Final = "d"
"""A manifest of files, beside it, with the positions of deleted rows."""


class PutManifest(NamedTuple):
    """A manifest that lies in a folder."""

    name: str
    size_bytes: int
    file_count: int
    row_count: int


class DayFolder:
    """The files of one topic's table in the folder of a day."""

    def __init__(self, logs: Logs, topic: str, day: date) -> None:
        self.day = day
        self.root = iceberg_url(logs.storage)
        """The store's URL, as the beginning of those of all files."""
        self.path = names.table_folder(topic, day)
        self._topic = topic
        self._logs = logs
        self._there = _Contents.of(logs.storage, self.path)
        self._earlier: _Contents | None = None
        self._waiting: list[tuple[str, bytes]] = []

    def find(self, digest: str, kind: str) -> PutManifest | None:
        """A manifest of this day, or one that was put on an earlier one, and now on this one."""
        known = self._there.manifests.get((digest, kind))
        if known is None and kind in (BOUNDED, PLAIN):
            known = self._take_over(digest, kind)
        return known

    def newest_of(self, topic_id: str) -> int:
        """The number of the newest metadata of a topic's table when the folder was listed, or 0."""
        return self._there.metadata.get(topic_id, 0)

    def newest_before(self, topic_id: str) -> str | None:
        """The name in the store of the newest metadata of an earlier day."""
        earlier = self._before()
        number = earlier.metadata.get(topic_id)
        return None if number is None else f"{earlier.path}/{metadata_name(topic_id, number)}"

    def add(self, digest: str, kind: str, data: bytes, files: int, rows: int) -> PutManifest:
        """Put a manifest, at the latest when ``put_all`` is called.

        Another process may have put the same one. Of one with files beside it the token makes it
        another one: it names other copies.
        """
        token = f"-{self._logs.clock.token()}" if kind in (BESIDE, CUT, DELETING) else ""
        name = f"{digest}.{kind}.{files}.{rows}{token}.avro"
        self._waiting.append((f"{self.path}/{name}", data))
        found = PutManifest(name, len(data), files, rows)
        self._there.manifests[digest, kind] = found
        return found

    def put_all(self, list_name: str, listed: bytes) -> None:
        """Put the manifests, then the list that names them. Raises StorageError."""
        storage = self._logs.storage
        waiting, self._waiting = self._waiting, []
        try:
            storage.put_round([partial(storage.put_decided, *one) for one in waiting])
            storage.put_decided(f"{self.path}/{list_name}", listed)
        except BaseException:
            # Some of what is known may not be there.
            self._there = _Contents.of(storage, self.path)
            raise

    def create(self, name: str) -> tuple[str, pa.NativeFile]:
        """A new file beside the manifests: its URL, and where to write it."""
        upload = self._logs.storage.upload(f"{self.path}/{name}")
        return self.url(name), pa.PythonFile(Sink(upload), mode="w")

    def url(self, name: str) -> str:
        """The URL at which engines find a file of the folder."""
        return f"{self.root}/{self.path}/{name}"

    def _take_over(self, digest: str, kind: str) -> PutManifest | None:
        earlier = self._before()
        known = earlier.manifests.get((digest, kind))
        if known is None:
            return None
        try:
            data = self._logs.storage.get(f"{earlier.path}/{known.name}")
        except ObjectNotFound:
            return None
        self._waiting.append((f"{self.path}/{known.name}", data))
        self._there.manifests[digest, kind] = known
        return known

    def _before(self) -> _Contents:
        """The content of the folder of the last earlier day that has any files."""
        if self._earlier is None:
            storage = self._logs.storage
            self._earlier = _Contents(self.path, {}, {})
            days = map(names.day_of_tables, storage.list_folders(names.TABLES))
            for day in sorted((d for d in days if d is not None and d < self.day), reverse=True):
                found = _Contents.of(storage, names.table_folder(self._topic, day))
                if found.manifests or found.metadata:
                    self._earlier = found
                    break
        return self._earlier


def metadata_name(topic_id: str, number: int) -> str:
    """The name of a table's metadata: the first of a day has number 1."""
    return f"{topic_id}.{number:08}.metadata.json"


class _Contents(NamedTuple):
    """What lies in a folder: manifests by digest and kind, the newest metadata by topic's id."""

    path: str
    manifests: dict[tuple[str, str], PutManifest]
    metadata: dict[str, int]

    @classmethod
    def of(cls, storage: Storage, folder: str) -> _Contents:
        found = cls(folder, {}, {})
        for path, size in storage.list_all(folder):
            name = path.rpartition("/")[2]
            parts = name.split(".")
            if len(parts) == 5 and parts[4] == "avro":
                files, rows = parts[2], parts[3].partition("-")[0]
                if files.isdecimal() and rows.isdecimal():
                    manifest = PutManifest(name, size, int(files), int(rows))
                    found.manifests[parts[0], parts[1]] = manifest
            elif parts[2:] == ["metadata", "json"] and re.fullmatch("[0-9]{8,12}", parts[1]):
                number = max(int(parts[1]), found.metadata.get(parts[0], 0))
                found.metadata[parts[0]] = number
        return found
