"""Storage in this process's memory, shared by everybody who opens the same ``memory://`` URL.

The objects lie in fsspec's memory filesystem, so that other tools see them; the lock is ours,
because its own exclusive create checks first and writes later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from txnlog.errors import ObjectNotFound
from txnlog.storage.base import Storage, Upload, check_name

_LOCK = threading.Lock()


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

    def _full(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{check_name(name)}"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

        full = self._full(name)
        with _LOCK:
            if full in self._files:
                return False
            self._files[full] = MemoryFile(MemoryFileSystem(), full, bytes(data))
            return True

    def put(self, name: str, data: bytes) -> None:
        self.put_if_absent(name, data)

    def upload(self, name: str) -> Upload:
        return _MemoryUpload(self, name)

    def get(self, name: str) -> bytes:
        with _LOCK:
            try:
                found: bytes = self._files[self._full(name)].getvalue()
            except KeyError:
                raise ObjectNotFound(f"there is no {self.url}/{name}") from None
            return found

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self.get(name)[start : max(stop, start)]

    def size(self, name: str) -> int:
        return len(self.get(name))

    def _below(self, folder: str) -> list[str]:
        prefix = f"{self._full(folder)}/" if folder else f"{self._path.rstrip('/')}/"
        with _LOCK:
            return [name[len(prefix) :] for name in self._files if name.startswith(prefix)]

    def list(self, folder: str, start_after: str = "") -> list[str]:
        return sorted(n for n in self._below(folder) if "/" not in n and n > start_after)

    def list_folders(self, folder: str) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._below(folder) if "/" in name})

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for name in sorted(self._below(folder)):
            yield prefix + name, self.size(prefix + name)

    def delete(self, names: Iterable[str]) -> None:
        with _LOCK:
            for name in names:
                self._files.pop(self._full(name), None)


class _MemoryUpload(Upload):
    def __init__(self, storage: MemoryStorage, name: str) -> None:
        check_name(name)
        self._storage = storage
        self._name = name
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes) -> int:
        if self._data is None:
            raise ValueError("the upload is closed")
        self._data += data
        return len(data)

    def close(self) -> None:
        if self._data is not None:
            self._storage.put(self._name, bytes(self._data))
            self._data = None

    def discard(self) -> None:
        self._data = None
