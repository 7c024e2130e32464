"""Storage on any other fsspec filesystem, for those who promise that only one process writes.

Put-if-absent is a check and then a write: two processes can both believe that they have won. That
is why it has to be asked for. Knows no particular filesystem.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from txnlog.errors import ObjectNotFound, StorageError, UnsupportedFilesystem
from txnlog.names import TEMPORARY
from txnlog.storage.base import (
    Address,
    Storage,
    Upload,
    check_name,
    lasts,
    may_be_listed,
)
from txnlog.storage.buffered_uploads import Spool, SpooledUpload
from txnlog.storage.failure_messages import failure, redact, redact_url, secrets_of
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.server_storage import CaseFolding
from txnlog.storage.whole import TooLarge, check_whole

_LOCK = ForkSafeLock()
"""Keeps the threads of the one writing process apart."""


class SingleWriterStorage(Storage):
    """Objects below an fsspec URL. A single process may write, any number may read.

    Objects are written under a temporary name and moved, because writing shows half an object on
    many filesystems. Where moving is a rename, or a copy that the server makes of whole objects,
    readers never see one; nothing is known about other filesystems.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        # Not the slashes of the protocol: without them it would be a local path.
        self._given = url.rstrip("/") if url.partition("://")[2].strip("/") else url
        self._options = dict(options or {})
        # The user and password of a URL such as ftp://user:password@host/folder.
        user_info = self._given.partition("://")[2].partition("/")[0].rpartition("@")[0]
        self._secrets = secrets_of(self._options) | ({user_info} if user_info else set())
        self._connected: tuple[int, Any, str] | None = None
        self.url = redact_url(self._given)
        # Whose paths are quoted: names of groups and ids may have "%".
        self._is_web = url.startswith(("http://", "https://"))
        self._case = CaseFolding()

    def __reduce__(self) -> tuple[type[SingleWriterStorage], tuple[str, dict[str, Any]]]:
        return SingleWriterStorage, (self._given, self._options)

    def address(self) -> Address:
        return Address(self._given, self._options, unsafe_single_writer=True)

    def folds_case(self) -> bool:
        return self._case.of(self)

    def _connect(self) -> tuple[Any, str]:
        """The filesystem and the root's path in it: made when first used, again after a fork."""
        connected = self._connected
        if connected is None or connected[0] != os.getpid():
            try:
                import fsspec

                open_url = partial(fsspec.core.url_to_fs, self._given, **self._options)
                try:
                    filesystem, root = open_url(use_listings_cache=False)
                except TypeError:  # it takes no such option, as that of hdfs-native
                    filesystem, root = open_url()
            except (ImportError, ValueError, TypeError) as error:
                why = redact(str(error), self._secrets)
                raise UnsupportedFilesystem(f"{self.url} cannot be opened: {why}") from error
            except Exception as error:
                raise self._failure("connecting to", "", error) from error
            _check_kind(filesystem, self.url)
            if not getattr(filesystem, "async_impl", False):
                filesystem = _OneByOne(filesystem)
            connected = self._connected = os.getpid(), filesystem, root.rstrip("/")
        return connected[1], connected[2]

    def _locate(self, name: str) -> tuple[Any, str]:
        """The filesystem, and the path in it of an object or, if it is "", of the root."""
        if name:
            check_name(name)
        filesystem, root = self._connect()
        # Some filesystems keep listings whatever they are told.
        filesystem.invalidate_cache()
        if self._is_web:
            name = quote(name)
        return filesystem, f"{root}/{name}" if name else root

    def _failure(self, operation: str, name: str, error: BaseException) -> StorageError:
        return failure(operation, self.url, name, error, secrets=self._secrets)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        filesystem, path = self._locate(check_name(name))
        try:
            with _LOCK.mutex:
                if _is_there(filesystem, path):
                    return False
                self._write(filesystem, path, bytes(data))
        except Exception as error:
            raise self._failure("creating", name, error) from error
        return True

    def put(self, name: str, data: bytes) -> None:
        filesystem, path = self._locate(check_name(name))
        try:
            self._write(filesystem, path, bytes(data))
        except Exception as error:
            raise self._failure("creating", name, error) from error

    def _write(self, filesystem: Any, path: str, data: bytes) -> None:
        self._move_in(filesystem, path, lambda temporary: filesystem.pipe_file(temporary, data))

    def _move_in(self, filesystem: Any, path: str, write: Callable[[str], object]) -> None:
        temporary = f"{self._connect()[1]}/{TEMPORARY}/{secrets.token_hex(16)}"
        for target in (temporary, path):
            with suppress(FileExistsError):
                filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        try:
            write(temporary)
            filesystem.mv(temporary, path)
            _check_moved(filesystem, path)
        except BaseException:
            with suppress(Exception):
                filesystem.rm_file(temporary)
            raise

    def upload(self, name: str) -> Upload:
        put_spooled = partial(self._put_spooled, check_name(name))
        return SpooledUpload(self.url, name, put_spooled)

    def _put_spooled(self, name: str, spool: Spool) -> None:
        self.put_file(name, spool.name)

    def put_file(self, name: str, local_path: str) -> None:
        """Copy a local file to a name."""
        filesystem, path = self._locate(check_name(name))
        try:
            self._move_in(
                filesystem, path, lambda temporary: filesystem.put_file(local_path, temporary)
            )
        except Exception as error:
            raise self._failure("uploading", name, error) from error

    def get(self, name: str) -> bytes:
        try:
            check_whole(self.size(name))
        except TooLarge as error:
            raise self._failure("reading", name, error) from error
        return self._read(name, None, None)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        size_bytes = self.size(name)  # not every filesystem takes a range beyond the end
        stop = min(stop, size_bytes)
        return self._read(name, start, stop) if stop > start else b""

    def _read(self, name: str, start: int | None, stop: int | None) -> bytes:
        filesystem, path = self._locate(check_name(name))
        try:
            data: bytes = filesystem.cat_file(path, start, stop)
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except Exception as error:
            raise self._failure("reading", name, error) from error
        if start is not None and stop is not None and len(data) > stop - start:
            return data[start:stop]  # some web servers ignore ranges
        return data

    def size(self, name: str) -> int:
        filesystem, path = self._locate(check_name(name))
        try:
            return int(filesystem.size(path))
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except Exception as error:
            raise self._failure("reading", name, error) from error

    def modified_ms(self, name: str) -> int | None:
        filesystem, path = self._locate(check_name(name))
        try:
            at = filesystem.modified(path)
        except NotImplementedError:
            return None
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except Exception as error:
            raise self._failure("reading", name, error) from error
        if at.tzinfo is None:  # as most filesystems give it, in UTC
            at = at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1000)

    def _list_entries(self, folder: str) -> list[tuple[str, str]]:
        filesystem, path = self._locate(folder)
        try:
            found = filesystem.ls(path, detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._failure("listing", folder, error) from error
        last = [item["name"].rstrip("/").rpartition("/")[2] for item in found]
        shown = map(unquote, last) if self._is_web else last
        return [(name, item["type"]) for name, item in zip(shown, found, strict=True)]

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        names = [name for name, kind in self._list_entries(folder) if kind == "file"]
        return sorted(name for name in names if name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        return sorted(
            name
            for name, kind in self._list_entries(folder)
            if kind == "directory" and (folder or name != TEMPORARY)
        )

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for name, kind in sorted(self._list_entries(folder)):
            if not may_be_listed(self.url, prefix + name):
                continue
            if kind == "directory":
                yield from self.list_all(prefix + name)
            else:
                yield prefix + name, self.size(prefix + name)

    def check_listing(self, name: str) -> None:
        folder, _, last = name.rpartition("/")
        if last not in self.list_names(folder):
            raise UnsupportedFilesystem(
                f"{self.url} cannot carry a store: the object {name} can be read, and no listing "
                "shows it. A log would seem to be empty"
            )

    def delete(self, names: Iterable[str]) -> None:
        failed: StorageError | None = None
        for name in names:
            filesystem, path = self._locate(check_name(name))
            try:
                filesystem.rm_file(path)
            except FileNotFoundError:
                continue
            except Exception as error:
                refused = self._failure("deleting", name, error)
                if not lasts(refused):
                    raise refused from error
                if failed is None:  # to be raised once the others are deleted
                    failed = refused
                    failed.__cause__ = error
        if failed is not None:
            raise failed


class _OneByOne:
    """A filesystem whose calls wait for each other, in all threads.

    Many have one connection, as that of FTP, and answers would get to the wrong caller. Those that
    are asynchronous inside are made for threads.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._filesystem, name)

        def call(*args: object, **kwargs: object) -> object:
            with _LOCK.mutex:
                return method(*args, **kwargs)

        return call


def _check_kind(filesystem: Any, url: str) -> None:
    from fsspec.archive import AbstractArchiveFileSystem

    if isinstance(filesystem, AbstractArchiveFileSystem):
        raise UnsupportedFilesystem(
            f"{url} is an archive, which cannot carry a store: its listings show what was in it "
            "when it was opened. Unpack it into a folder"
        )


def _is_there(filesystem: Any, path: str) -> bool:
    """Not fsspec's ``exists``, which takes any error for absence: an entry would be replaced."""
    filesystem.invalidate_cache()
    try:
        filesystem.info(path)
    except FileNotFoundError:
        return False
    return True


def _check_moved(filesystem: Any, path: str) -> None:
    """Raise OSError unless a move was made: some clients ignore that it was refused."""
    if not _is_there(filesystem, path):
        raise OSError("the filesystem took the move, and did not make it")
