"""Shows a standby as a readable storage, with each log as in its newest round.

Data and manifests lie where every store has them, under names that are used once. Logs are replaced
by rounds, and lie in the folders of attempts. Once the standby was promoted, everything lies where
every store has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from txnlog import names
from txnlog.errors import CorruptEntry, ObjectNotFound, StorageError
from txnlog.replication import root_names
from txnlog.replication.standby.rounds import LogVersion, Rounds, StandbyState
from txnlog.storage import open_storage
from txnlog.storage.base import AsOf, Kind, Storage
from txnlog.storage.forwarding import ForwardingStorage, ReadOnlyStorage

T = TypeVar("T")


def find_standby(
    url: str | os.PathLike[str],
    options: Mapping[str, object] | None,
    *,
    unsafe_single_writer: bool = False,
) -> StandbyStorage | None:
    """The standby in a folder; None if there is none, or it has no round yet."""
    return find_at(open_storage(os.fspath(url), options, unsafe_single_writer=unsafe_single_writer))


def find_at(storage: Storage) -> StandbyStorage | None:
    """The standby in an open storage; None if there is none, or it has no round yet."""
    return StandbyStorage(storage) if Rounds(storage).newest() is not None else None


def find_shown(storage: Storage) -> StandbyStorage | None:
    """The standby that a storage is, or wraps; None if it is none."""
    while not isinstance(storage, StandbyStorage):
        if not isinstance(storage, ForwardingStorage):
            return None
        storage = storage.inner
    return storage


class StandbyStorage(ReadOnlyStorage):
    """The visible state of a standby. It refuses every write: only followers write there."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._rounds = Rounds(inner)
        self._standing: StandbyState | None = None
        self._is_plain = False

    def __reduce__(self) -> tuple[object, ...]:
        return StandbyStorage, (self.inner,)

    def standing(self, *, fresh: bool = True) -> StandbyState:
        """The newest round; unless ``fresh``, the one known here will do. Raises StorageError."""
        if fresh or self._standing is None:
            found = self._rounds.newest(self._standing)
            if found is None:
                raise StorageError(
                    f"{self.url} is a standby that has not finished its first round yet"
                )
            if found.is_promoted and not self._is_plain:
                try:
                    self.inner.size(names.STORE_FILE)
                    self._is_plain = True
                except ObjectNotFound:
                    pass  # a promotion is in progress
            self._standing = found
        return self._standing

    def _at(self, name: str, standing: StandbyState) -> str | None:
        """The name under which an object lies; None if it does not exist."""
        if self._is_plain:
            return name
        if name == names.STORE_FILE:
            return root_names.STANDBY_STORE_FILE
        log = root_names.versioned_log(name)
        if log is None:
            return name
        version = self._versions(standing, log).get(log)
        return root_names.standby_file(version.attempt, name) if version else None

    def _versions(self, standing: StandbyState, folder: str) -> Mapping[str, LogVersion]:
        """The versions of the logs in a folder, and perhaps of others."""
        while True:
            try:
                if f"{folder}/".startswith(f"{names.EXPIRED}/"):
                    return self._rounds.expired(standing.round)
                return standing.round.logs if folder else self._rounds.logs(standing.round)
            except ObjectNotFound as error:
                before, standing = standing, self.standing()
                if standing.number == before.number:
                    raise CorruptEntry(f"{self.url}: {error}; restore it from a backup") from error

    def _read(self, name: str, read: Callable[[str], T]) -> T:
        at = self._at(name, self.standing(fresh=False))
        while True:
            try:
                return read(at if at is not None else root_names.standby_file("none", name))
            except ObjectNotFound:
                # A newer round may have replaced it, and its files are gone.
                before, at = at, self._at(name, self.standing())
                if before == at:
                    raise

    def kind(self) -> Kind:
        return "standby"

    def as_of(self) -> AsOf | None:
        shown = self.standing().round
        return AsOf(shown.source, shown.number, shown.reached_ms, shown.lost)

    # -- reading ---------------------------------------------------------------------------------

    def lists_whole_folders(self) -> bool:
        return False

    def local_path(self, name: str) -> str | None:
        at = self._at(name, self.standing(fresh=False)) if name else name
        return None if at is None else self.inner.local_path(at)

    def open_file(self, name: str) -> int | None:
        return self._read(name, self.inner.open_file)

    def get(self, name: str) -> bytes:
        return self._read(name, self.inner.get)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._read(name, lambda at: self.inner.get_range(at, start, stop))

    def size(self, name: str) -> int:
        return self._read(name, self.inner.size)

    def modified_ms(self, name: str) -> int | None:
        return self._read(name, self.inner.modified_ms)

    def confirm(self, name: str) -> None:
        self._read(name, self.inner.confirm)

    def check_listing(self, name: str) -> None:
        at = self._at(name, self.standing(fresh=False))
        assert at is not None  # it was read just now
        self.inner.check_listing(at)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        while True:
            at = self._at(folder, self.standing())
            found = self.inner.list_names(at, start_after) if at is not None else []
            if self._at(folder, self.standing()) == at:
                return found

    def list_folders(self, folder: str) -> list[str]:
        standing = self.standing()
        if self._is_plain or folder.count("/") > 1:
            return self.inner.list_folders(folder)
        depth = len(folder.split("/")) if folder else 0
        begin = f"{folder}/" if folder else ""
        logs = (log for log in self._versions(standing, folder) if log.startswith(begin))
        return sorted({log.split("/")[depth] for log in logs})

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        begin = f"{folder}/" if folder else ""
        standing = self.standing()
        for name, size in self.inner.list_all(folder):
            if not name.startswith(f"{root_names.STANDBY}/"):
                yield name, size
        if self._is_plain:
            return
        if not folder:
            yield names.STORE_FILE, self.size(names.STORE_FILE)
        for log, version in self._versions(standing, folder).items():
            if not f"{log}/".startswith(begin) and not begin.startswith(f"{log}/"):
                continue
            root = root_names.standby_file(version.attempt, "")
            # A topic's manifest lists lie beside its log. An id, or a group, may be called "log".
            whole = log.removesuffix("/log") if log.startswith(f"{names.TOPICS}/") else log
            for name, size in self.inner.list_all(root + whole):
                if (own := name.removeprefix(root)).startswith(begin):
                    yield own, size

    # -- writing ---------------------------------------------------------------------------------

    def why_read_only(self) -> str:
        if self.standing().is_promoted:
            return "this standby was promoted since it was opened: open it again to write to it"
        return "a standby can be read only: write to its source, or promote it"
