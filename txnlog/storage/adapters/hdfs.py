"""Storage on HDFS, whichever client speaks to it: files that are renamed to their names.

Put-if-absent is a rename that never overwrites: the NameNode decides it under its lock, and what
shows is a closed file. A create that fails where a file exists would show its loser, and every
reader, an empty file for as long as it is written.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from txnlog.errors import InvalidOption, ObjectNotFound, StorageError
from txnlog.names import TEMPORARY
from txnlog.storage.adapters.connected import ConnectedStorage
from txnlog.storage.base import Upload, check_name, lasts, may_be_listed
from txnlog.storage.buffered_uploads import Spool, SpooledUpload
from txnlog.storage.failure_messages import failure, port_of, split_url

T = TypeVar("T")

_SCRATCH = "/tmp"  # noqa: S108 - of HDFS, where nothing is put that anybody reads
_RENAME_ATTEMPTS = 100
"""How often a folder may be pruned under a rename before we give up."""

_HINTS = {
    PermissionError: "permission is denied: check user, token and who owns the folder",
    FileNotFoundError: "it was deleted meanwhile, or an earlier request took effect after all",
    NotADirectoryError: "a file stands where a folder is needed",
}


@dataclass(frozen=True, slots=True)
class HdfsStatus:
    """The NameNode's status of a file or folder."""

    name: str
    """The last part of its path."""
    is_folder: bool
    size_bytes: int
    modified_ms: int


class HdfsClient(ABC):
    """The requests that :class:`HdfsStorage` makes of a cluster. Paths are absolute.

    Each raises FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError, or any
    other exception: then whether it took effect is unknown. No text of one holds a secret. A
    request is repeated beneath only where a repetition cannot be told from the first.
    """

    @abstractmethod
    def create(self, path: str, data: bytes | Path) -> None:
        """A new file of these bytes, or of a local file's, and the folders above it.

        When it returns the file is closed, and its blocks are synced on every DataNode that took
        part.
        """

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file; never overwrite.

        Raises FileExistsError: ``target`` exists. NoParentFolder: there is none for ``target``.
        FileNotFoundError: there is no ``source``; maybe it was renamed already.
        """

    @abstractmethod
    def make_folders(self, path: str) -> None:
        """Make a folder and those above it, if they are not there."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file or an empty folder, if it is there. Raises OSError if it is not empty."""

    @abstractmethod
    def read(self, path: str, start: int, stop: int | None) -> bytes:
        """Bytes [start, stop) of a file, fewer only where it ends; ``None`` is its end."""

    @abstractmethod
    def status(self, path: str) -> HdfsStatus:
        """The status of a file or folder."""

    @abstractmethod
    def list_folder(self, path: str, start_after: str) -> Iterator[HdfsStatus]:
        """The content of a folder, by name, after ``start_after``. Raises FileNotFoundError."""

    @abstractmethod
    def log_edit(self, path: str, found: HdfsStatus) -> None:
        """Touch a file so that the NameNode logs an edit, and syncs its log; nothing changes."""


class NoParentFolder(FileNotFoundError):
    """A rename has no folder to go to."""


class HdfsStorage(ConnectedStorage[HdfsClient]):
    """Objects as files below a folder of HDFS.

    Folders come with their first object and go with their last, as on an object store. Files that
    are being written lie in ``.tmp/``; a process that is killed may leave one there.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(check_url(url), options)
        self._host = split_url(self.url).netloc
        # Not unquoted, as in Hadoop: '%' is a part of a name.
        self._root = "/" + self.url.partition("://")[2].partition("/")[2]

    @property
    def server(self) -> tuple[str, str]:
        return self.url.partition("://")[0], self._host

    def _path(self, name: str) -> str:
        path = check_name(name)
        if ":" in name:
            raise InvalidOption(f"{name!r} cannot be the name of an object: HDFS allows no colon")
        return f"{self._root.rstrip('/')}/{path}"

    def _folder_path(self, folder: str) -> str:
        return self._path(folder) if folder else self._root

    def _failure(self, operation: str, name: str, error: BaseException) -> StorageError:
        hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), None)
        hint = getattr(error, "hint", None) or hint
        lasting = isinstance(error, PermissionError | NotADirectoryError)
        return failure(
            operation,
            self.url,
            name,
            error,
            hint=hint,
            secrets=self._secrets,
            retriable=getattr(error, "retriable", not lasting),
        )

    # -- writing ---------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See Storage. The first one of a process makes sure that the promise is kept."""
        path, client = self._path(name), self.client
        self.check_before_write(name)
        try:
            # Saves the loser of a race that is over a file. The rename is what decides.
            with suppress(FileNotFoundError):
                client.status(path)
                return False
            return self._put(client, path, bytes(data))
        except Exception as error:
            raise self._failure("creating", name, error) from error

    def put(self, name: str, data: bytes) -> None:
        self._put_new(name, bytes(data))

    def upload(self, name: str) -> Upload:
        self._path(name)
        return SpooledUpload(self.url, name, partial(self._put_spooled, name))

    def _put_spooled(self, name: str, spool: Spool) -> None:
        self._put_new(name, Path(spool.name))

    def _put_new(self, name: str, data: bytes | Path) -> None:
        path, client = self._path(name), self.client
        try:
            created = self._put(client, path, data)
        except Exception as error:
            raise self._failure("creating", name, error) from error
        if not created:
            taken = FileExistsError("the name is taken, though it should be unique")
            raise self._failure("creating", name, taken) from taken

    def _put(self, client: HdfsClient, path: str, data: bytes | Path) -> bool:
        temporary = self._path(f"{TEMPORARY}/{secrets.token_hex(16)}")
        renamed = False
        try:
            client.create(temporary, data)
            renamed = self._publish(client, temporary, path)
            return renamed
        finally:
            # After an unknown outcome too: a rename that arrives late finds nothing to rename.
            if not renamed:
                with suppress(Exception):
                    client.delete(temporary)

    def _publish(self, client: HdfsClient, temporary: str, path: str) -> bool:
        for attempt in range(_RENAME_ATTEMPTS):
            try:
                client.rename(temporary, path)
            except FileExistsError:
                return False
            except NoParentFolder:
                # No folder yet; or somebody deleted the last object in it and pruned it.
                if attempt == _RENAME_ATTEMPTS - 1:
                    raise
                client.make_folders(path.rpartition("/")[0])
            else:
                return True
        raise AssertionError("the loop returns or raises")

    def confirm(self, name: str) -> None:
        """See Storage.

        A file shows as soon as the NameNode has renamed it, and is there after its crash only when
        its log of edits is synced, a moment later. The log is synced in order: so when another edit
        is, the rename is. The blocks were synced before it.
        """
        path, client = self._path(name), self.client
        try:
            found = client.status(path)
            try:
                client.log_edit(path, found)
            except PermissionError:
                _log_edit_elsewhere(client)
        except FileNotFoundError as error:
            raise self._not_found(name) from error
        except Exception as error:
            raise self._failure("confirming", name, error) from error

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        failed: StorageError | None = None
        try:
            self.gather(partial(self._delete, name) for name in doomed)
        except StorageError as error:
            if not lasts(error):
                raise
            failed = error
        parents = {name.rpartition("/")[0] for name in doomed}
        self.gather(partial(self._prune, parent) for parent in parents)
        if failed is not None:
            raise failed

    def _delete(self, name: str) -> None:
        path, client = self._path(name), self.client
        try:
            client.delete(path)
        except NotADirectoryError:
            return  # a file stands where its folder would: it is not there
        except Exception as error:
            raise self._failure("deleting", name, error) from error

    def _prune(self, folder: str) -> None:
        """Remove a folder that has become empty, and those above it; the root stays."""
        with suppress(Exception):  # not empty, or not ours to remove
            while folder:
                self.client.delete(self._path(folder))
                folder = folder.rpartition("/")[0]

    # -- reading ---------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        path = self._path(name)
        return self._reading(name, lambda client: client.read(path, 0, None))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        path = self._path(name)
        if stop <= start:
            return b""
        return self._reading(name, lambda client: client.read(path, start, stop))

    def size(self, name: str) -> int:
        return self._file_status(name).size_bytes

    def modified_ms(self, name: str) -> int | None:
        return self._file_status(name).modified_ms

    def _file_status(self, name: str) -> HdfsStatus:
        path = self._path(name)
        found = self._reading(name, lambda client: client.status(path))
        if found.is_folder:
            raise self._not_found(name)
        return found

    def _reading(self, name: str, read: Callable[[HdfsClient], T]) -> T:
        client = self.client
        try:
            return read(client)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._not_found(name) from error
        except Exception as error:
            raise self._failure("reading", name, error) from error

    def _not_found(self, name: str) -> ObjectNotFound:
        return ObjectNotFound(f"there is no {self.url}/{name}")

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        found = self._list(folder, start_after)
        return sorted(s.name for s in found if not s.is_folder and s.name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        found = [status.name for status in self._list(folder) if status.is_folder]
        return sorted(name for name in found if folder or name != TEMPORARY)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for status in self._list(folder):
            if not may_be_listed(self.url, prefix + status.name):
                continue
            if status.is_folder:
                yield from self.list_all(prefix + status.name)
            else:
                yield prefix + status.name, status.size_bytes

    def _list(self, folder: str, start_after: str = "") -> Iterator[HdfsStatus]:
        path, client = self._folder_path(folder), self.client
        try:
            for status in client.list_folder(path, start_after):
                if status.name:  # a file that is listed names nothing in it
                    yield status
        except (FileNotFoundError, NotADirectoryError):
            return  # a missing folder is empty, and so is one that has gone since its first page
        except Exception as error:
            raise self._failure("listing", folder, error) from error


def _log_edit_elsewhere(client: HdfsClient) -> None:
    """For read-only users of a store: an edit in the world-writable folder will do."""
    folder = f"{_SCRATCH}/txnlog-{secrets.token_hex(16)}"
    client.make_folders(folder)
    client.delete(folder)


def check_url(url: str) -> str:
    """``url`` without a slash at its end, if it names a folder of a cluster.

    Raises InvalidOption.
    """
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    if "@" in host or "?" in rest:
        raise InvalidOption(
            f"credentials and queries do not belong in an {scheme} URL: use storage_options"
        )
    for one in host.split(","):  # WebHDFS takes several NameNodes
        port_of(split_url(f"{scheme}://{one}"), f"an {scheme} URL")
    if not host or not path.strip("/"):
        raise InvalidOption(f"an {scheme} URL needs a host and a folder: {scheme}://host/folder")
    check_name(path.strip("/"))
    if ":" in path:
        raise InvalidOption(f"the folder {path!r} has a colon, which HDFS does not allow")
    return f"{scheme}://{host}/{path.strip('/')}"


def remote_failure(kind: str, text: str) -> Exception:
    """The exception for one of Java's: ``java.io.FileNotFoundException``, what it said.

    Its kind may lack the package; lines of a stack trace in the text are dropped.
    """
    name = kind.rpartition(".")[2]
    text = text.partition("\n")[0].strip() or name
    if name == "FileAlreadyExistsException":
        return FileExistsError(text)
    if name == "FileNotFoundException" and "rename destination parent" in text:
        return NoParentFolder(text)
    if name == "FileNotFoundException":
        return FileNotFoundError(text)
    if name == "ParentNotDirectoryException":
        return NotADirectoryError(text)
    if name in _REFUSED:
        return PermissionError(f"{name}: {text}")
    return RemoteError(f"{name}: {text}", _REMOTE_HINTS.get(name), name not in _LASTING)


class RemoteError(OSError):
    """The NameNode or a DataNode refused a request, for a reason of its own."""

    def __init__(self, text: str, hint: str | None, retriable: bool) -> None:
        super().__init__(text)
        self.hint = hint
        self.retriable = retriable


_REFUSED = frozenset(
    {"AccessControlException", "AuthorizationException", "AuthenticationException", "InvalidToken"}
)
_LASTING = frozenset(
    {
        "DSQuotaExceededException",
        "NSQuotaExceededException",
        "QuotaByStorageTypeExceededException",
        "InvalidPathException",
        "IllegalArgumentException",
        "UnsupportedOperationException",
        "PathComponentTooLongException",
        "MaxDirectoryItemsExceededException",
    }
)
"""With these the same request cannot succeed without a fix."""
_REMOTE_HINTS = {
    "SafeModeException": "the NameNode is in safe mode: wait until it has left it",
    "StandbyException": "this NameNode is on standby: name all of them, see docs/STORAGE.md",
    "DSQuotaExceededException": "the folder's quota is used up: raise it, or free some space",
    "NSQuotaExceededException": "the folder's quota of names is used up: raise it",
}
