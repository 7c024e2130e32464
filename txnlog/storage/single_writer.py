"""Storage on any other fsspec filesystem, for those who promise that only one process writes.

Put-if-absent is a check and then a write: two writers can both believe that they have won. That
is why it has to be asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from txnlog.errors import ObjectNotFound, UnsupportedFilesystem
from txnlog.storage.base import Storage, Upload, check_name
from txnlog.storage.failures import failure, redact_url


class SingleWriterStorage(Storage):
    """Objects below an fsspec URL. Safe for any number of readers and a single writing process."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._given = url.rstrip("/")
        self._options = dict(options or {})
        self._filesystem: Any = None
        self._root = ""
        self._process = -1
        self.url = redact_url(self._given)

    def __reduce__(self) -> tuple[type[SingleWriterStorage], tuple[str, dict[str, Any]]]:
        return SingleWriterStorage, (self._given, self._options)

    def __repr__(self) -> str:
        return f"SingleWriterStorage({self.url!r})"

    @property
    def _fs(self) -> Any:
        if self._filesystem is None or self._process != os.getpid():
            import fsspec

            try:
                self._filesystem, root = fsspec.core.url_to_fs(
                    self._given, **{"use_listings_cache": False, **self._options}
                )
            except (ImportError, ValueError, TypeError) as error:
                raise UnsupportedFilesystem(f"{self.url} cannot be opened: {error}") from error
            self._root = root.rstrip("/")
            self._process = os.getpid()
        return self._filesystem

    def _path(self, name: str) -> str:
        fs = self._fs
        fs.invalidate_cache()
        return f"{self._root}/{check_name(name)}" if name else self._root

    def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            path = self._path(name)
            if self._fs.exists(path):
                return False
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, bytes(data))
            return True
        except OSError as error:
            raise failure("creating", self.url, name, error) from error

    def put(self, name: str, data: bytes) -> None:
        if not self.put_if_absent(name, data):
            taken = FileExistsError("the name is taken, though it should be unique")
            raise failure("creating", self.url, name, taken)

    def upload(self, name: str) -> Upload:
        return _SingleWriterUpload(self, name)

    def get(self, name: str) -> bytes:
        return self._read(name, None, None)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._read(name, start, stop) if stop > start else b""

    def _read(self, name: str, start: int | None, stop: int | None) -> bytes:
        try:
            data: bytes = self._fs.cat_file(self._path(name), start, stop)
            return data
        except FileNotFoundError:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from None
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def size(self, name: str) -> int:
        try:
            return int(self._fs.size(self._path(name)))
        except FileNotFoundError:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from None
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def _entries(self, folder: str) -> list[tuple[str, str]]:
        try:
            found = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failure("listing", self.url, folder, error) from error
        return [(item["name"].rstrip("/").rpartition("/")[2], item["type"]) for item in found]

    def list(self, folder: str, start_after: str = "") -> list[str]:
        names = [name for name, kind in self._entries(folder) if kind == "file"]
        return sorted(name for name in names if name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        return sorted(name for name, kind in self._entries(folder) if kind == "directory")

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for name, kind in sorted(self._entries(folder)):
            if kind == "directory":
                yield from self.list_all(prefix + name)
            else:
                yield prefix + name, self.size(prefix + name)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise failure("deleting", self.url, name, error) from error


class _SingleWriterUpload(Upload):
    """Collected in a temporary file and written at the end."""

    def __init__(self, storage: SingleWriterStorage, name: str) -> None:
        import tempfile

        check_name(name)
        self._storage = storage
        self._name = name
        self._spool = tempfile.TemporaryFile()

    def write(self, data: bytes) -> int:
        return self._spool.write(data)

    def close(self) -> None:
        if not self._spool.closed:
            with self._spool:
                self._spool.seek(0)
                self._storage.put(self._name, self._spool.read())

    def discard(self) -> None:
        self._spool.close()
