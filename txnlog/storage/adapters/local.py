"""Storage on a local filesystem, or one mounted like it, with hard links.

An object is written to a temporary file, synced, and linked to its name: ``link`` fails if the name
is taken, and shows the whole object or nothing. Plain ``os`` calls, because fsspec's local
filesystem has no exclusive, atomic create, and would only stand in between.
"""

from __future__ import annotations

import copy
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Self

from txnlog import names
from txnlog.errors import ObjectNotFound, StorageError, UnsupportedFilesystem
from txnlog.storage.adapters import inside
from txnlog.storage.adapters.held_folders import HeldFolder, forget_let_go, hold_folder
from txnlog.storage.adapters.inside import Inside, absolute, open_folder_above
from txnlog.storage.base import Address, Storage, Upload, check_name, may_be_listed
from txnlog.storage.buffered_uploads import write_all
from txnlog.storage.failure_messages import failure
from txnlog.storage.whole import check_whole

_ONE_BY_ONE_S = 0.002
"""How long many files are read one by one before threads are started for the rest."""
_LINK_ATTEMPTS = 100
"""How often a folder may be pruned under a link before we give up."""
_NOT_OURS_TO_SYNC = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)
"""Errors of a folder above the store that we may not read, or that is read-only."""
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV)


class LocalStorage(Storage):
    """Objects as files below ``root``, a folder that is made when the first object is.

    Folders come with their first object and go with their last, as on an object store. Nothing
    below the root is reached through a symbolic link that somebody put there, unless it leads to
    one of ``links_to``: neither may a cleanup reach files outside the store, nor a copy carry them
    away. See docs/STORAGE.md.

    With ``fsync`` every object is durable before it shows. Without, a power cut may lose the last
    ones; a crash of the process may not.
    """

    def __init__(self, root: str, fsync: bool = True, links_to: Sequence[str] = ()) -> None:
        # Resolved once: a link put in place of the root later leads nobody elsewhere.
        self._root = Path(os.path.realpath(absolute(root)))
        self._fsync = fsync
        self._links_to = tuple(os.path.realpath(one) for one in links_to)
        self._inside = Inside(str(self._root), self._links_to)
        # Folders whose names are durable.
        self._synced: dict[str, HeldFolder] = {}
        self._folds_case: bool | None = None
        self._round = threading.local()
        """In a thread that works for a round of puts: the folders that are synced at its end."""
        self._synced_above: HeldFolder | None = None
        """The root, once its name and those of the folders above it are durable."""
        self.url = str(self._root)

    def address(self) -> Address:
        return Address(self.url, {"links_to": [*self._links_to]} if self._links_to else {})

    def local_path(self, name: str) -> str:
        return str(self._root / check_name(name)) if name else str(self._root)

    def open_file(self, name: str) -> int:
        try:
            return self._inside.open_file(check_name(name))[0]
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str, bool, tuple[str, ...]]]:
        return LocalStorage, (str(self._root), self._fsync, self._links_to)

    def folds_case(self) -> bool:
        if self._folds_case is None:
            self._folds_case = self._detect_case_folding()
        return self._folds_case or False

    def _detect_case_folding(self) -> bool | None:
        """Whether a name in the root is found in the other case too; None in an empty root."""
        with self._scan("") as entries:
            names = [entry.name for entry in entries]
        for name in names:
            swapped = name.swapcase()
            if swapped != name:
                try:
                    return self._inside.are_same(name, swapped)
                except FileNotFoundError:
                    if self._inside.exists(name):
                        return False  # it is there under its own name alone
                except OSError as error:
                    raise failure("reading", self.url, swapped, error) from error
        return None

    def lists_whole_folders(self) -> bool:
        return True

    def without_fsync(self) -> Self:
        other = copy.copy(self)
        other._fsync = False  # noqa: SLF001 - it is one of us
        return other

    # -- writing ---------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        check_name(name)
        try:
            # Saves the loser of a race that is over an fsync. The link below is what decides.
            if self._inside.exists(name):
                return False
            temporary = self.temporary_name()
            try:
                self._write_temporary(temporary, data)
                return self._publish(temporary, name)
            finally:
                self.drop_temporary(temporary)
        except OSError as error:
            raise failure("creating", self.url, name, error) from error

    def confirm(self, name: str) -> None:
        if not self._fsync:
            return
        try:
            descriptor, _ = self._inside.open_file(check_name(name))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._sync_folders(_folder_of(name))
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("syncing", self.url, name, error) from error

    def replace(self, name: str, data: bytes) -> None:
        check_name(name)
        try:
            temporary = self.temporary_name()
            try:
                self._write_temporary(temporary, data)
                if not self._inside.exists(name):
                    raise ObjectNotFound(f"there is no {self.url}/{name}")
                self._inside.rename(temporary, name)
            finally:
                self.drop_temporary(temporary)
            self._sync_folders(_folder_of(name))
        except OSError as error:
            raise failure("replacing", self.url, name, error) from error

    def take_over(self, name: str, source: Storage) -> bool:
        """A second name of the same file: no file is written any more once it has a name."""
        if not isinstance(source, LocalStorage):
            return False
        try:
            source._inside.stat(check_name(name))  # noqa: SLF001 - it is one of us
            if not self._link(name, name, source._inside):  # noqa: SLF001
                return False
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {source.url}/{name}") from error
        except OSError as error:
            if error.errno in (*_NO_HARD_LINKS, errno.EMLINK):
                return False  # another filesystem, or a file with too many names
            raise failure("linking", self.url, name, error) from error
        self.confirm(name)
        return True

    def upload(self, name: str) -> Upload:
        return _LocalUpload(self, name)

    def put_round(self, calls: Iterable[Callable[[], object]]) -> None:
        folders: set[str] = set()

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
                raise failure("syncing", self.url, folder, error) from error

    def _folders_of_round(self) -> set[str] | None:
        return getattr(self._round, "folders", None)

    def delete(self, names: Iterable[str]) -> None:
        parents: set[str] = set()
        failed: StorageError | None = None
        for name in names:
            try:
                with suppress(FileNotFoundError):
                    self._inside.unlink(check_name(name))
            except NotADirectoryError:
                continue  # a file stands where its folder would: it is not there
            except OSError as error:
                if failed is None:  # to be raised once the others are deleted
                    failed = failure("deleting", self.url, name, error)
                    failed.__cause__ = error
                continue
            parents.add(_folder_of(name))
        for parent in parents:
            self._prune(parent)
        if failed is not None:
            raise failed

    # -- reading ---------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        return self._read(name, 0, None)

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
        return self._read(name, start, stop)

    def _read(self, name: str, start: int, stop: int | None) -> bytes:
        """Bytes of an object, no more than it has; without ``stop`` all, if these are not many."""
        try:
            descriptor, about = self._inside.open_file(check_name(name))
            try:
                if stop is None:
                    check_whole(about.st_size)
                left = min(about.st_size if stop is None else stop, about.st_size) - start
                return _read_up_to(descriptor, start, left)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def size(self, name: str) -> int:
        return self._stat(name).st_size

    def modified_ms(self, name: str) -> int | None:
        return self._stat(name).st_mtime_ns // 1_000_000

    def _stat(self, name: str) -> os.stat_result:
        try:
            return self._inside.stat(check_name(name))
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except OSError as error:
            raise failure("reading", self.url, name, error) from error

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        with self._scan(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name > start_after and entry.is_file(follow_symlinks=False)
            )

    def list_folders(self, folder: str) -> list[str]:
        """List the folders in a folder.

        For topics, groups and ids symbolic links to folders are listed, too: opening them raises an
        error, which is better than missing them.
        """
        with self._scan(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=folder in names.OF_LOGS)
                and (folder or entry.name != names.TEMPORARY)
            )

    def list_all(
        self, folder: str, scanned: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[str, int]]:
        """List all objects; ``scanned`` is called when a folder was read, before it is told."""
        found: list[tuple[str, int | None]] = []
        with self._scan(folder) as entries:
            for entry in entries:
                if self._inside.is_folder(entry, folder):
                    found.append((entry.name, None))
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # deleted since the folder was read
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        scanned()
        prefix = f"{folder}/" if folder else ""
        for name, size_bytes in sorted(found):
            if not may_be_listed(self.url, prefix + name):
                continue
            if size_bytes is None:
                yield from self.list_all(prefix + name, scanned)
            else:
                yield prefix + name, size_bytes

    @contextmanager
    def _scan(self, folder: str) -> Iterator[Iterable[os.DirEntry[str]]]:
        """What is in a folder; nothing in one that is not there."""
        with ExitStack() as stack:
            try:
                scan = self._inside.scan(check_name(folder) if folder else "")
                entries: Iterable[os.DirEntry[str]] = stack.enter_context(scan)
            except FileNotFoundError:
                entries = ()
            except OSError as error:
                raise failure("listing", self.url, folder, error) from error
            try:
                yield entries
            except OSError as error:
                raise failure("listing", self.url, folder, error) from error

    # -- steps of writing ------------------------------------------------------------------------

    def temporary_name(self) -> str:
        """A unique name in the store's own folder for unfinished files, on the same filesystem.

        Chosen before the file exists: after an interrupt while it is opened it can be unlinked.
        """
        return f"{names.TEMPORARY}/{secrets.token_hex(16)}"

    def open_temporary(self, name: str) -> int:
        """A new empty file."""
        for _ in range(_LINK_ATTEMPTS):
            # A loop, because another process's deletion may prune the folder at any moment.
            with suppress(FileNotFoundError):
                return self._inside.create(name)
            self._make_folder(names.TEMPORARY)
        return self._inside.create(name)

    def drop_temporary(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._inside.unlink(name)

    def publish_upload(self, descriptor: int, temporary: str, name: str) -> None:
        """Sync a finished temporary file and link it to its name."""
        if self._fsync:
            os.fsync(descriptor)
        if not self._publish(temporary, name):
            raise FileExistsError("the name is taken, though it should be unique")

    def _write_temporary(self, name: str, data: bytes) -> None:
        with FileIO(self.open_temporary(name), "wb") as file:
            write_all(file.fileno(), data)
            if self._fsync:
                os.fsync(file.fileno())

    def _publish(self, temporary: str, name: str) -> bool:
        try:
            if not self._link(temporary, name):
                return False
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise UnsupportedFilesystem(
                    f"the filesystem of {self.url} refuses hard links ({error.strerror}), which "
                    f"put-if-absent needs there; {name} was not created. Use a filesystem "
                    "that has them (ext4, xfs, btrfs, zfs, apfs, nfs), or an object store"
                ) from error
            raise
        if self._fsync:
            folders = self._folders_of_round()
            if folders is None:
                self._sync_folders(_folder_of(name))
            else:
                folders.add(_folder_of(name))
        return True

    def _link(self, source: str, name: str, below: Inside | None = None) -> bool:
        for attempt in range(_LINK_ATTEMPTS):
            try:
                self._inside.link(source, name, below)
            except FileExistsError:
                return False
            except FileNotFoundError:
                # No folder yet; or somebody deleted the last object in it and pruned it.
                if attempt == _LINK_ATTEMPTS - 1:
                    raise
                self._make_folder(_folder_of(name))
            else:
                return True
        raise AssertionError("the loop returns or raises")

    def _make_folder(self, folder: str) -> None:
        """Try to make a folder and its parents; others may make or prune them at the same time.

        The caller tries again what needed the folder, and so finds out whether it is there.
        """
        with suppress(FileNotFoundError, FileExistsError):
            self._inside.make_folder(folder)

    def _sync_folders(self, folder: str) -> None:
        """Make the names in a folder durable, and once for each folder its own name.

        An existing folder's name is synced too: the process that made it may have died before its
        own sync. One that is still the same cannot have lost its name, nor those above it.
        """
        if not inside.OPENS_FOLDERS:
            return
        known = self._synced
        synced: dict[str, HeldFolder] = {}
        try:
            while (descriptor := self._sync_folder(folder)) is not None:
                held = hold_folder(descriptor)
                if held is known.get(folder):
                    break
                synced[folder] = held
                if not folder:
                    if held is not self._synced_above:
                        _sync_above(self._root)
                        self._synced_above = held
                    break
                folder = _folder_of(folder)
        except BaseException:
            # What a device called durable before it failed is not relied on any more.
            self._synced, self._synced_above = {}, None
            raise
        if descriptor is not None:
            known.update(synced)  # no longer in use if a sync has failed meanwhile
            forget_let_go(known)

    def _sync_folder(self, folder: str) -> int | None:
        """Sync a folder; a descriptor of it, to be closed, or None if it is not there."""
        try:
            descriptor = self._inside.open_folder(folder)
        except FileNotFoundError:
            return None  # what we made there was deleted in the meantime, and the folder with it
        return _synced(descriptor)

    def _prune(self, folder: str) -> None:
        """Remove a folder that has become empty, and those above it; the root stays."""
        with suppress(OSError):  # not empty, gone already, or not ours to remove
            while folder:
                self._inside.rmdir(folder)
                folder = _folder_of(folder)


class _LocalUpload(Upload):
    """A temporary file that is linked to its name when it is complete."""

    def __init__(self, storage: LocalStorage, name: str) -> None:
        check_name(name)
        self._storage = storage
        self._name = name
        self._temporary = storage.temporary_name()
        try:
            # Not a number: after an interrupt it is still somebody's, who closes it once.
            self._file = FileIO(storage.open_temporary(self._temporary), "wb")
        except OSError as error:
            raise failure("creating", storage.url, name, error) from error
        except BaseException:  # Ctrl-C: nobody else knows of the file yet
            storage.drop_temporary(self._temporary)
            raise

    def write(self, data: bytes) -> int:
        if self._file.closed:
            raise ValueError("the upload is closed")
        try:
            write_all(self._file.fileno(), data)
        except OSError as error:
            raise failure("writing", self._storage.url, self._name, error) from error
        return len(data)

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._storage.publish_upload(self._file.fileno(), self._temporary, self._name)
        except OSError as error:
            raise failure("creating", self._storage.url, self._name, error) from error
        finally:
            self.discard()

    def discard(self) -> None:
        if self._file.closed:
            return
        with suppress(OSError):
            # Whatever happens here, the object is complete or was never there.
            self._file.close()
        with suppress(OSError):
            self._storage.drop_temporary(self._temporary)

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # it may have failed to open
            with suppress(OSError):
                self._file.close()


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _read_up_to(descriptor: int, start: int, wanted: int) -> bytes:
    """So many bytes from there on, fewer only at the file's end."""
    if wanted <= 0:
        return b""
    if start:
        os.lseek(descriptor, start, os.SEEK_SET)
    data = os.read(descriptor, wanted)
    # One read returns at most 2 GiB, and less if a signal comes.
    while len(data) < wanted and (more := os.read(descriptor, wanted - len(data))):
        data += more
    return data


def _sync_above(root: Path) -> None:
    """Make the root's own name durable, and those of the folders above it up to a mount point.

    We may have made them too, or a process that died before the sync.
    """
    for folder in root.parents:
        if os.path.ismount(root):
            return
        try:
            os.close(_synced(open_folder_above(str(folder))))
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in _NOT_OURS_TO_SYNC:
                raise
        root = folder


def _synced(descriptor: int) -> int:
    """The descriptor of a folder, after a sync; it is closed if that fails."""
    try:
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
