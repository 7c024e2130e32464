"""Storage in this process's memory, shared by everybody who opens the same ``memory://`` URL.

The objects lie in fsspec's memory filesystem, so that other tools see them; the lock is ours,
because its own exclusive create checks first and writes later. Not for several processes: each
has a memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from txnlog.errors import InvalidOption, ObjectNotFound
from txnlog.storage.base import Storage, Upload, check_name
from txnlog.storage.buffered_uploads import BufferedUpload
from txnlog.storage.fork_safe_lock import ForkSafeLock

_LOCK = ForkSafeLock()


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage at ``memory://path``. Raises InvalidOption if there are options."""
    if options:
        raise InvalidOption(
            f"memory:// takes no storage options, but got {', '.join(sorted(options))}"
        )
    return MemoryStorage(url.removeprefix("memory://"))


class MemoryStorage(Storage):
    """Objects below one path of fsspec's memory filesystem. Gone when the process ends."""

    def __init__(self, path: str) -> None:
        self._path = "/" + path.strip("/")
        self.url = f"memory:/{self._path}"

    def __reduce__(self) -> tuple[type[MemoryStorage], tuple[str]]:
        return MemoryStorage, (self._path,)

    @property
    def _files(self) -> dict[str, Any]:
        from fsspec.implementations.memory import MemoryFileSystem

        files: dict[str, Any] = MemoryFileSystem.store
        return files

    def _full_name(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{check_name(name)}"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

        full = self._full_name(name)
        file = MemoryFile(MemoryFileSystem(), full, bytes(data))
        with _LOCK.mutex:
            return self._files.setdefault(full, file) is file

    def replace(self, name: str, data: bytes) -> None:
        from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

        full = self._full_name(name)
        file = MemoryFile(MemoryFileSystem(), full, bytes(data))
        with _LOCK.mutex:
            if full not in self._files:
                raise ObjectNotFound(f"there is no {self.url}/{name}")
            self._files[full] = file

    def take_over(self, name: str, source: Storage) -> bool:
        return isinstance(source, MemoryStorage) and self.put_if_absent(name, source.get(name))

    def upload(self, name: str) -> Upload:
        return BufferedUpload(partial(self.put, check_name(name)))

    def _find_buffer(self, name: str) -> memoryview:
        full = self._full_name(name)
        with _LOCK.mutex:
            try:
                buffer: memoryview = self._files[full].getbuffer()
            except KeyError as error:
                raise ObjectNotFound(f"there is no {self.url}/{name}") from error
            return buffer

    def get(self, name: str) -> bytes:
        return bytes(self._find_buffer(name))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return bytes(self._find_buffer(name)[start : max(stop, start)])

    def size(self, name: str) -> int:
        return len(self._find_buffer(name))

    def _names_below(self, folder: str) -> list[str]:
        prefix = f"{self._full_name(folder)}/" if folder else f"{self._path.rstrip('/')}/"
        with _LOCK.mutex:
            return [name[len(prefix) :] for name in self._files if name.startswith(prefix)]

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return sorted(n for n in self._names_below(folder) if "/" not in n and n > start_after)

    def list_folders(self, folder: str) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._names_below(folder) if "/" in name})

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for name in sorted(self._names_below(folder)):
            try:
                yield prefix + name, self.size(prefix + name)
            except ObjectNotFound:
                continue  # deleted since the names were taken down

    def delete(self, names: Iterable[str]) -> None:
        doomed = [self._full_name(name) for name in names]
        with _LOCK.mutex:
            for full in doomed:
                self._files.pop(full, None)
