"""Storage on a local filesystem, or one mounted like it, with hard links.

An object is written to a temporary file, synced, and linked to its name: ``link`` fails if the name
is taken, and shows the whole object or nothing. Plain ``os`` calls, because fsspec's local
filesystem has no exclusive, atomic create, and would only stand in between. Knows nothing of what
is in the files.
"""

from __future__ import annotations

import copy
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from txnlog.errors import ObjectNotFound, StorageError, UnsupportedFilesystem
from txnlog.storage.adapters.held_folders import HeldFolder, hold_folder
from txnlog.storage.base import Storage, Upload, check_name
from txnlog.storage.failure_messages import failure
from txnlog.storage.spool import write_all

_TEMPORARY = ".tmp"
_ONE_BY_ONE_S = 0.002
"""How long many files are read one by one before threads are started for the rest."""
_LINK_ATTEMPTS = 100
"""How often a folder may be pruned under a link before we give up."""
_NOT_OURS_TO_SYNC = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)
"""Errors of a folder above the store that we may not read, or that is read-only."""
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV)


class LocalStorage(Storage):
    """Objects as files below ``root``.

    Args:
        root: the folder; it is made when the first object is.
        fsync: make every object durable before it shows. Without, a power cut may lose the last
            ones; a crash of the process may not.

    Folders come with their first object and go with their last, as on an object store. Symbolic
    links below the root are not followed by writes, deletions and listings: a link that somebody
    put there must not let a cleanup reach files outside the store.
    """

    def __init__(self, root: str, fsync: bool = True) -> None:
        # Resolved once: a link put in place of the root later leads nobody elsewhere.
        self._root = Path(os.path.realpath(root))
        self._fsync = fsync
        # Folders whose names are durable.
        self._synced: dict[Path, HeldFolder] = {}
        self._folds_case: bool | None = None
        self._round = threading.local()
        """In a thread that works for a round of puts: the folders that are synced at its end."""
        self._synced_above: HeldFolder | None = None
        """The root, once its name and those of the folders above it are durable."""
        self.url = str(self._root)

    def local_path(self, name: str) -> str:
        return str(self._root / check_name(name)) if name else str(self._root)

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str, bool]]:
        return LocalStorage, (str(self._root), self._fsync)

    def folds_case(self) -> bool:
        if self._folds_case is None:
            self._folds_case = self._detect_case_folding()
        return self._folds_case or False

    def _detect_case_folding(self) -> bool | None:
        """Whether a name in the root is found in the other case too; None in an empty root."""
        for entry in self._scan(""):
            swapped = entry.name.swapcase()
            if swapped != entry.name:
                try:
                    return (self._root / swapped).samefile(entry.path)
                except FileNotFoundError:
                    if os.path.lexists(entry.path):
                        return False  # it is there under its own name alone
                except OSError as error:
                    raise failure("reading", self.url, swapped, error) from error
        return None

    def lists_whole_folders(self) -> bool:
        return True

    def relaxed(self) -> Self:
        other = copy.copy(self)
        other._fsync = False  # noqa: SLF001 - it is one of us
        return other

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)

    def _path_inside(self, name: str) -> Path:
        """The path of an object that is to be changed: no symbolic link may be on the way."""
        path = self._path(name)
        parent = str(path.parent)
        if os.path.realpath(parent) != parent:
            raise StorageError(
                f"{path.parent} leads through a symbolic link; nothing is written or deleted "
                f"there, because it may be outside the store {self.url}: remove the link"
            )
        return path

    # -- writing ---------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path_inside(name)
        try:
            # Saves the loser of a race that is over an fsync. The link below is what decides.
            if os.path.lexists(path):
                return False
            temporary = self.temporary_path()
            try:
                self._write_temporary(temporary, data)
                return self._publish(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise failure("creating", self.url, name, error) from error

    def confirm(self, name: str) -> None:
        if not self._fsync:
            return
        path = self._path_inside(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._sync_folders(path.parent)
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("syncing", self.url, name, error) from error

    def put(self, name: str, data: bytes) -> None:
        if not self.put_if_absent(name, data):
            taken = FileExistsError("the name is taken, though it should be unique")
            raise failure("creating", self.url, name, taken) from taken

    def upload(self, name: str) -> Upload:
        return _LocalUpload(self, name)

    def put_round(self, calls: Iterable[Callable[[], object]]) -> None:
        folders: set[Path] = set()

        def run(call: Callable[[], object]) -> None:
            before = self._folders_of_round()
            self._round.folders = folders
            try:
                call()
            finally:
                self._round.folders = before

        self.gather(partial(run, call) for call in calls)
        for folder in sorted(folders):
            try:
                self._sync_folders(folder)
            except OSError as error:
                name = str(folder.relative_to(self._root))
                raise failure("syncing", self.url, name, error) from error

    def _folders_of_round(self) -> set[Path] | None:
        return getattr(self._round, "folders", None)

    def delete(self, names: Iterable[str]) -> None:
        parents: set[Path] = set()
        for name in names:
            path = self._path_inside(name)
            try:
                path.unlink(missing_ok=True)
            except NotADirectoryError:
                continue  # a file stands where its folder would: it is not there
            except OSError as error:
                raise failure("deleting", self.url, name, error) from error
            parents.add(path.parent)
        for parent in parents:
            self._prune(parent)

    # -- reading ---------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        """Most files are read sooner than a thread is started: a dozen take 0.4 ms, not 2.5.

        Where the filesystem is slow, as on a network, there are threads for the rest.
        """
        stop_s = time.monotonic() + _ONE_BY_ONE_S
        found: list[bytes] = []
        while len(found) < len(names):
            if time.monotonic() > stop_s:
                return found + super().get_many(names[len(found) :])
            found.append(self.get(names[len(found)]))
        return found

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        wanted = max(stop - start, 0)
        try:
            with self._path(name).open("rb", buffering=0) as file:
                file.seek(start)
                data = file.read(wanted)
                # One read returns at most 2 GiB, and less if a signal comes.
                while len(data) < wanted and (more := file.read(wanted - len(data))):
                    data += more
                return data
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def size(self, name: str) -> int:
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def modified_ms(self, name: str) -> int | None:
        try:
            return self._path(name).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return sorted(
            entry.name
            for entry in self._scan(folder)
            if entry.name > start_after and entry.is_file(follow_symlinks=False)
        )

    def list_folders(self, folder: str) -> list[str]:
        return sorted(
            entry.name
            for entry in self._scan(folder)
            if entry.is_dir(follow_symlinks=False) and (folder or entry.name != _TEMPORARY)
        )

    def list_all(
        self, folder: str, scanned: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[str, int]]:
        """As every storage does; calls ``scanned`` when a folder was read, before it is told."""
        prefix = f"{folder}/" if folder else ""
        found = sorted(self._scan(folder), key=lambda entry: entry.name)
        scanned()
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from self.list_all(prefix + entry.name, scanned)
            elif entry.is_file(follow_symlinks=False):
                try:
                    size_bytes = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                except OSError as error:
                    raise failure("listing", self.url, prefix + entry.name, error) from error
                yield prefix + entry.name, size_bytes

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        path = self._path(folder) if folder else self._root
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failure("listing", self.url, folder, error) from error

    # -- steps of writing ------------------------------------------------------------------------

    def temporary_path(self) -> Path:
        """A unique name in the store's own folder for unfinished files, on the same filesystem.

        Chosen before the file exists: after an interrupt while it is opened it can be unlinked.
        """
        return self._root / _TEMPORARY / secrets.token_hex(16)

    def open_temporary(self, path: Path) -> int:
        """A new empty file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(_LINK_ATTEMPTS):
            # A loop, because another process's deletion may prune the folder at any moment.
            with suppress(FileNotFoundError):
                return os.open(path, flags, 0o666)
            _make_folder(path.parent)
        return os.open(path, flags, 0o666)

    def publish_upload(self, descriptor: int, temporary: Path, name: str) -> None:
        """Sync a finished temporary file and link it to its name."""
        path = self._path_inside(name)
        if self._fsync:
            os.fsync(descriptor)
        if not self._publish(temporary, path):
            raise FileExistsError("the name is taken, though it should be unique")

    def _write_temporary(self, path: Path, data: bytes) -> None:
        descriptor = self.open_temporary(path)
        try:
            write_all(descriptor, data)
            if self._fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _publish(self, temporary: Path, path: Path) -> bool:
        try:
            if not self._link(temporary, path):
                return False
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise UnsupportedFilesystem(
                    f"the filesystem of {self.url} refuses hard links ({error.strerror}), which "
                    f"put-if-absent needs there; {path.name} was not created. Use a filesystem "
                    "that has them (ext4, xfs, btrfs, zfs, apfs, nfs), or an object store"
                ) from error
            raise
        if self._fsync:
            folders = self._folders_of_round()
            if folders is None:
                self._sync_folders(path.parent)
            else:
                folders.add(path.parent)
        return True

    def _link(self, temporary: Path, path: Path) -> bool:
        for attempt in range(_LINK_ATTEMPTS):
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except FileNotFoundError:
                # No folder yet; or somebody deleted the last object in it and pruned it.
                if attempt == _LINK_ATTEMPTS - 1:
                    raise
                _make_folder(path.parent)
            else:
                return True
        raise AssertionError("the loop returns or raises")

    def _sync_folders(self, folder: Path) -> None:
        """Make the names in a folder durable, and once for each folder its own name.

        An existing folder's name is synced too: the process that made it may have died before its
        own sync. One that is still the same cannot have lost its name, nor those above it.
        """
        known = self._synced
        synced: dict[Path, HeldFolder] = {}
        try:
            while (descriptor := _sync_folder(folder)) is not None:
                held = hold_folder(descriptor)
                if held is known.get(folder):
                    break
                synced[folder] = held
                if folder == self._root:
                    if held is not self._synced_above:
                        _sync_above(folder)
                        self._synced_above = held
                    break
                folder = folder.parent
        except BaseException:
            # What a device called durable before it failed is not relied on any more.
            self._synced, self._synced_above = {}, None
            raise
        if descriptor is not None:
            known.update(synced)  # no longer in use if a sync has failed meanwhile

    def _prune(self, folder: Path) -> None:
        """Remove a folder that has become empty, and those above it; the root stays."""
        with suppress(OSError):  # not empty, gone already, or not ours to remove
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent


class _LocalUpload(Upload):
    """A temporary file that is linked to its name when it is complete."""

    def __init__(self, storage: LocalStorage, name: str) -> None:
        check_name(name)
        self._storage = storage
        self._name = name
        self._descriptor: int | None = None
        self._temporary = storage.temporary_path()
        try:
            self._descriptor = storage.open_temporary(self._temporary)
        except OSError as error:
            raise failure("creating", storage.url, name, error) from error
        except BaseException:  # Ctrl-C: nobody else knows of the file yet
            self._temporary.unlink(missing_ok=True)
            raise

    def write(self, data: bytes) -> int:
        if self._descriptor is None:
            raise ValueError("the upload is closed")
        try:
            write_all(self._descriptor, data)
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
            with suppress(OSError):
                # Whatever happens here, the object is complete or was never there.
                os.close(descriptor)
            with suppress(OSError):
                self._temporary.unlink()


def _make_folder(folder: Path) -> None:
    """Try to make a folder and those above it. The caller repeats what needed it, and sees.

    Others may prune any of them meanwhile: one above is gone then, or mkdir has found the folder
    there and a moment later, when it looks what it is, not there.
    """
    with suppress(FileNotFoundError, FileExistsError):
        folder.mkdir(parents=True, exist_ok=True)


def _sync_above(root: Path) -> None:
    """Make the root's own name durable, and those of the folders above it up to a mount point.

    We may have made them too, or a process that died before the sync.
    """
    for folder in root.parents:
        if os.path.ismount(root):
            return
        try:
            descriptor = _sync_folder(folder)
        except OSError as error:
            if error.errno not in _NOT_OURS_TO_SYNC:
                raise
        else:
            if descriptor is not None:
                os.close(descriptor)
        root = folder


def _sync_folder(folder: Path) -> int | None:
    """Sync a folder; a descriptor of it, for the caller to close, or None if it is not there."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # what we made there was deleted in the meantime, and the folder with it
    try:
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
