"""Storage on an SFTP server, through asyncssh.

An object is written to a temporary file, synced, and renamed to its name by the protocol's plain
RENAME: it fails if the name is taken. OpenSSH makes it with a hard link; the ``posix-rename`` that
other clients prefer would overwrite. A server that looks first and renames later is refused by the
probe. Knows paths and requests, and nothing of what is in the files.
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from txnlog.errors import InvalidOption, ObjectNotFound, StorageError
from txnlog.names import TEMPORARY
from txnlog.storage.adapters.connected import ConnectedStorage
from txnlog.storage.base import Storage, Upload, check_name, may_be_listed
from txnlog.storage.buffered_uploads import Spool, SpooledUpload
from txnlog.storage.failure_messages import failure, port_of, secrets_of, split_url
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.server_storage import CaseFolding

if TYPE_CHECKING:
    from txnlog.storage.adapters.sftp_client import SftpClient

T = TypeVar("T")

_RENAME_ATTEMPTS = 20
"""How often a folder may be pruned under a rename before we give up."""
_MOST_PORT = 65535
_OPTIONS = ("username", "password", "port", "client_keys", "passphrase", "known_hosts")


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage at ``sftp://user@host:port/absolute/path``; see ``registry``."""
    parts = split_url(url)
    if parts.password is not None or "?" in url or "#" in url:
        raise InvalidOption(
            "passwords and queries do not belong in an SFTP URL: use storage_options"
        )
    port = port_of(parts, "an SFTP URL")
    if not parts.hostname or not parts.path.strip("/"):
        raise InvalidOption("an SFTP URL needs host and path, as in sftp://user@host/data/store")
    check_name(parts.path.strip("/"))
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise InvalidOption(
            f"sftp:// takes the storage options {', '.join(_OPTIONS)}, not {', '.join(unknown)}"
        )
    given = dict(options)
    given_port = str(given.get("port", 22))
    if not re.fullmatch(r"\d{1,5}", given_port) or not 0 < int(given_port) <= _MOST_PORT:
        raise InvalidOption(f"storage option port must be a whole number up to {_MOST_PORT}")
    for name in ("client_keys", "known_hosts"):
        _check_file(name, given.get(name))
    for name, told in (("username", parts.username), ("port", port)):
        if told is not None and str(given.get(name, told)) != str(told):
            raise InvalidOption(f"URL and storage options name different values of {name}")
    return SftpStorage(url.rstrip("/"), given)


def _check_file(name: str, path: object) -> None:
    """Raise InvalidOption if an option names no file; who tries again would do so in vain."""
    if isinstance(path, str) and path.lower() != "none":
        try:
            found = Path(path).expanduser().is_file()
        except (OSError, RuntimeError, ValueError):
            found = False
        if not found:
            raise InvalidOption(f"storage option {name} is the path of a file: {path} is none here")


class SftpStorage(ConnectedStorage["SftpClient"]):
    """Objects as files below a folder of the server.

    Options: username, password, port, client_keys (a path), passphrase, known_hosts (a path). With
    ``fsync`` every object is durable before it is visible, and its name is durable before the put
    returns, if the server keeps its promise about ``fsync@openssh.com``; see :meth:`_publish`.

    Folders come with their first object and go with their last.
    """

    needs = "asyncssh", "sftp"

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, fsync: bool = True
    ) -> None:
        given = dict(options or {})
        named = {str(given[name]) for name in ("password", "passphrase") if name in given}
        super().__init__(url, given, secrets_of(given) | named)
        self._root = urlsplit(url).path.rstrip("/")
        self._fsync = fsync
        self._case = CaseFolding()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self.url, self._options, self._fsync)

    def without_fsync(self) -> SftpStorage:
        return SftpStorage(self.url, self._options, fsync=False) if self._fsync else self

    @property
    def server(self) -> tuple[str, str, int, str]:
        host, port, user = self._place
        return "sftp", host, port, user

    @property
    def _place(self) -> tuple[str, int, str]:
        """Host, port and user, whether the URL or the options name them."""
        parts, given = urlsplit(self.url), self._options
        user = parts.username or given.get("username") or ""
        return str(parts.hostname), int(given.get("port", parts.port or 22)), str(user)

    def folds_case(self) -> bool:
        return self._case.of(self)

    def lists_whole_folders(self) -> bool:
        return True

    def _is_lost(self, client: SftpClient) -> bool:
        return client.is_lost

    def _load_client(self) -> Callable[[], SftpClient]:
        """Storages of one user on one server share a client."""
        from txnlog.storage.adapters.sftp_client import SftpClient

        host, port, user = self._place
        given = {name: value for name, value in self._options.items() if name != "port"}
        if user:
            given["username"] = user
        key = (os.getpid(), host, port, repr(sorted(given.items())))
        shared = _CLIENTS.setdefault(key, _Shared())

        def share() -> SftpClient:
            with shared.connecting.mutex:
                if shared.client is None or shared.client.is_lost:
                    shared.client = SftpClient(host, port, given)
                return shared.client

        return share

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _folder(self, folder: str) -> str:
        return self._path(folder) if folder else self._root

    def _failure(self, operation: str, name: str, error: BaseException) -> StorageError:
        from txnlog.storage.adapters.sftp_client import hint_for, is_retriable

        return failure(
            operation,
            self.url,
            name,
            error,
            hint=hint_for(error),
            secrets=self._secrets,
            retriable=is_retriable(error),
        )

    # -- writing ---------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See Storage. The first one of a process makes sure that the server keeps the promise.

        Nothing is repeated here: after a lost connection the outcome is unknown.
        """
        self._path(name)
        self.check_before_write(name)
        return self._publish("creating", name, lambda: iter([bytes(data)]))

    def put(self, name: str, data: bytes) -> None:
        self._put_parts("creating", name, lambda: iter([bytes(data)]))

    def _put_parts(self, operation: str, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        if not self._publish(operation, name, parts):
            taken = FileExistsError("the name is taken, though it should be unique")
            raise self._failure(operation, name, taken) from taken

    def upload(self, name: str) -> Upload:
        return SpooledUpload(self.url, name, partial(self._put_spooled, check_name(name)))

    def _put_spooled(self, name: str, spool: Spool) -> None:
        self._put_parts("uploading", name, partial(_parts_of, spool.name))

    def _publish(self, operation: str, name: str, parts: Callable[[], Iterator[bytes]]) -> bool:
        """Write, sync, rename, and sync again; False if the name is taken.

        The second sync is for the name: the journals of ext4, XFS and the like write down with a
        file's inode what has happened to its names. SFTP cannot sync a folder.
        """
        path, client = self._path(name), self.client
        temporary = f"{self._root}/{TEMPORARY}/{secrets.token_hex(16)}"
        try:
            with client.writing(temporary) as file:
                for part in parts():
                    file.write(part)
                if self._fsync:
                    file.sync()
                file.is_renamed = self._rename(client, temporary, path)
                if file.is_renamed and self._fsync:
                    file.sync()
                return file.is_renamed
        except Exception as error:
            raise self._failure(operation, name, error) from error

    def _rename(self, client: SftpClient, temporary: str, path: str) -> bool:
        for _ in range(_RENAME_ATTEMPTS):
            if client.rename(temporary, path):
                return True
            # SFTP has one error for a name that is taken and for most other reasons.
            if client.stat(path) is not None:
                return False
            client.make_folders(posixpath.dirname(path))
        raise OSError("the rename was refused, and the name is free")

    def confirm(self, name: str) -> None:
        path, client = self._path(name), self.client
        try:
            found = client.sync(path)
        except Exception as error:
            raise self._failure("syncing", name, error) from error
        if not found:
            raise ObjectNotFound(f"there is no {self.url}/{name}")

    def delete(self, names: Iterable[str]) -> None:
        checked = [check_name(name) for name in names]
        self.gather(partial(self._delete_one, name) for name in checked)
        folders = {posixpath.dirname(name) for name in checked} - {""}
        for folder in sorted(folders, key=len, reverse=True):
            self._prune(folder)

    def _delete_one(self, name: str) -> None:
        path, client = self._path(name), self.client
        try:
            client.remove(path)
        except Exception as error:
            raise self._failure("deleting", name, error) from error

    def _prune(self, folder: str) -> None:
        """Remove empty folders, upwards; the next put makes them again."""
        client = self.client
        try:
            while folder and client.remove_folder(self._path(folder)):
                folder = posixpath.dirname(folder)
        except Exception as error:
            raise self._failure("deleting", folder, error) from error

    # -- reading ---------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        return self._read(name, 0, None)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        check_name(name)
        return self._read(name, start, stop) if stop > start else b""

    def _read(self, name: str, start: int, stop: int | None) -> bytes:
        path = self._path(name)
        data: bytes | None = self._twice("reading", name, lambda c: c.read(path, start, stop))
        if data is None:
            raise ObjectNotFound(f"there is no {self.url}/{name}")
        return data

    def size(self, name: str) -> int:
        return self._describe(name)[0]

    def modified_ms(self, name: str) -> int | None:
        return self._describe(name)[1]

    def _describe(self, name: str) -> tuple[int, int]:
        path = self._path(name)
        found: tuple[int, int] | None = self._twice("reading", name, lambda c: c.stat(path))
        if found is None:
            raise ObjectNotFound(f"there is no {self.url}/{name}")
        return found

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        names = [name for name, size in self._entries(folder) if size is not None]
        return sorted(name for name in names if name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        return sorted(
            name
            for name, size in self._entries(folder)
            if size is None and (folder or name != TEMPORARY)
        )

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for name, size in sorted(self._entries(folder)):
            if not may_be_listed(self.url, prefix + name):
                continue
            if size is None:
                yield from self.list_all(prefix + name)
            else:
                yield prefix + name, size

    def _entries(self, folder: str) -> list[tuple[str, int | None]]:
        """Names in a folder with their sizes in bytes; of folders None."""
        path = self._folder(folder)
        return self._twice("listing", folder, lambda c: c.list_folder(path))

    def _twice(self, operation: str, name: str, request: Callable[[SftpClient], T]) -> T:
        """The result of a read-only request; repeated if the connection was lost."""
        client = self.client
        try:
            return request(client)
        except Exception as error:
            if not client.is_lost:
                raise self._failure(operation, name, error) from error
        try:
            return request(self.client)
        except StorageError:
            raise
        except Exception as error:
            raise self._failure(operation, name, error) from error


def _parts_of(path: str) -> Iterator[bytes]:
    with Path(path).open("rb") as file:
        while part := file.read(4 << 20):
            yield part


@dataclass
class _Shared:
    """The client of one user on one server, once it was made."""

    connecting: ForkSafeLock = field(default_factory=ForkSafeLock)
    client: SftpClient | None = None


_CLIENTS: dict[tuple[int, str, int, str], _Shared] = {}
"""By process, server and options."""
