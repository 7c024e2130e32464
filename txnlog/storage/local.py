"""Storage on a local filesystem, or one mounted like it, with hard links.

An object is written to a temporary file, synced, and linked to its name: ``link`` fails if the name
is taken, and shows the whole object or nothing. Plain ``os`` calls, because fsspec's local
filesystem has no exclusive, atomic create, and would only stand in between.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from txnlog.errors import ObjectNotFound
from txnlog.storage.base import Storage, Upload, check_name
from txnlog.storage.failures import failure

_TEMPORARY = ".tmp"


class LocalStorage(Storage):
    """Objects as files below ``root``.

    Args:
        root: the folder; it is made when the first object is.
        fsync: make every object durable before it shows. Without, a power cut may lose the last
            ones; a crash of the process may not.
    """

    def __init__(self, root: str, fsync: bool = True) -> None:
        # Resolved once: a link put in place of the root later leads nobody elsewhere.
        self._root = Path(os.path.realpath(root))
        self._fsync = fsync
        self.url = str(self._root)

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str, bool]]:
        return LocalStorage, (str(self._root), self._fsync)

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        try:
            temporary = self._write_temporary(data)
            try:
                return self._publish(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise failure("creating", self.url, name, error) from error

    def put(self, name: str, data: bytes) -> None:
        if not self.put_if_absent(name, data):
            taken = FileExistsError("the name is taken, though it should be unique")
            raise failure("creating", self.url, name, taken)

    def upload(self, name: str) -> Upload:
        return _LocalUpload(self, name)

    def get(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from None
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        try:
            with self._path(name).open("rb", buffering=0) as file:
                file.seek(start)
                data = file.read(max(stop - start, 0))
                while len(data) < stop - start and (more := file.read(stop - start - len(data))):
                    data += more
                return data
        except FileNotFoundError:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from None
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def size(self, name: str) -> int:
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from None
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def list(self, folder: str, start_after: str = "") -> list[str]:
        return sorted(
            entry.name for entry in self._scan(folder) if entry.name > start_after and _is_file(entry)
        )

    def list_folders(self, folder: str) -> list[str]:
        return sorted(
            entry.name
            for entry in self._scan(folder)
            if not entry.name.startswith(".") and not _is_file(entry)
        )

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for entry in sorted(self._scan(folder), key=lambda entry: entry.name):
            if _is_file(entry):
                with suppress(FileNotFoundError):
                    yield prefix + entry.name, entry.stat().st_size
            else:
                yield from self.list_all(prefix + entry.name)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError as error:
                raise failure("deleting", self.url, name, error) from error

    # -- steps -----------------------------------------------------------------------------------

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        path = self._path(folder) if folder else self._root
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failure("listing", self.url, folder, error) from error

    def open_temporary(self) -> tuple[int, Path]:
        """A new empty file in the store's own folder for such, on the same filesystem."""
        folder = self._root / _TEMPORARY
        path = folder / secrets.token_hex(16)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return os.open(path, flags, 0o666), path
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(path, flags, 0o666), path

    def _write_temporary(self, data: bytes) -> Path:
        descriptor, path = self.open_temporary()
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if self._fsync:
                    os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _publish(self, temporary: Path, path: Path) -> bool:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            if self._fsync:
                for folder in path.relative_to(self._root).parents[1:]:
                    self._sync_folder(self._root / folder)
        if self._fsync:
            self._sync_folder(path.parent)
        return True

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish_upload(self, descriptor: int, temporary: Path, name: str) -> None:
        """Sync a finished temporary file and link it to its name."""
        path = self._path(name)
        if self._fsync:
            os.fsync(descriptor)
        if not self._publish(temporary, path):
            raise FileExistsError("the name is taken, though it should be unique")


class _LocalUpload(Upload):
    """A temporary file that is linked to its name when it is complete."""

    def __init__(self, storage: LocalStorage, name: str) -> None:
        check_name(name)
        self._storage = storage
        self._name = name
        self._descriptor: int | None = None
        try:
            self._descriptor, self._temporary = storage.open_temporary()
        except OSError as error:
            raise failure("creating", storage.url, name, error) from error

    def write(self, data: bytes) -> int:
        if self._descriptor is None:
            raise ValueError("the upload is closed")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise failure("writing", self._storage.url, self._name, error) from error
        return len(data)

    def close(self) -> None:
        if self._descriptor is None:
            return
        try:
            self._storage.publish_upload(self._descriptor, self._temporary, self._name)
        except OSError as error:
            raise failure("creating", self._storage.url, self._name, error) from error
        finally:
            self.discard()

    def discard(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
            self._temporary.unlink(missing_ok=True)


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)
