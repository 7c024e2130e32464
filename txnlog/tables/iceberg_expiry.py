"""Snapshots of a published Iceberg table that are past their time, and what only they name.

Without that each publication would cost more than the one before: the table's metadata lists all
snapshots, and a copy that was replaced would stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

_AT_ONCE = 100
"""Of snapshots for one publication: a table that has very many has fewer after each."""


class Expired:
    """The snapshots which another one has replaced before a time, the oldest first.

    Branches and tags are others' work: what they need stays, and no file is deleted then.
    """

    def __init__(self, table: Table, before_ms: int) -> None:
        self._table = table
        newest_first = [*ancestors_of(table.current_snapshot(), table.metadata)]
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        self._is_line = len(newest_first) == len(table.metadata.snapshots) and len(kept) < 2
        replaced = [
            (old, new) for new, old in pairwise(newest_first) if new.timestamp_ms < before_ms
        ]
        replaced = [(old, new) for old, new in replaced if old.snapshot_id not in kept]
        self._replaced = replaced[::-1][:_AT_ONCE]

    @property
    def ids(self) -> list[int]:
        return [old.snapshot_id for old, _ in self._replaced]

    def delete_files(self) -> None:
        """Before the snapshots go, so that none is forgotten; they may lack files already.

        Of each in this order, so that a process that was killed is followed by one that goes on.
        """
        if not self._is_line:
            return
        for old, new in self._replaced:
            with suppress(FileNotFoundError):
                for url in self._only_in(old, new):
                    self._delete(url)

    def _only_in(self, old: Snapshot, new: Snapshot) -> Iterator[str]:
        io = self._table.io
        before, after = (set(one.manifests(io)) for one in (old, new))
        for manifest in after - before:
            yield from self._removed_by(new, manifest)
        yield from (manifest.manifest_path for manifest in before - after)
        yield old.manifest_list

    def _removed_by(self, snapshot: Snapshot, manifest: ManifestFile) -> Iterator[str]:
        for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=False):
            is_removed = entry.status == ManifestEntryStatus.DELETED
            if is_removed and entry.snapshot_id == snapshot.snapshot_id:
                yield entry.data_file.file_path

    def _delete(self, url: str) -> None:
        """Unless it is a file of the store, or of others."""
        folder = f"{self._table.location().rstrip('/')}/"
        if url.startswith(folder) and ".." not in url.split("/"):
            with suppress(FileNotFoundError):
                self._table.io.delete(url)
