"""The common part of S3, Google Cloud Storage and Azure: objects by key, conditional creates.

A client makes the requests, see :class:`ObjectClient`; here they become a Storage: names to keys,
patience, errors. Knows no library and no server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from txnlog.errors import InvalidOption, ObjectNotFound, StorageError
from txnlog.storage.adapters.connected import ConnectedStorage
from txnlog.storage.adapters.http_answers import Answer, RequestFailed, patiently
from txnlog.storage.base import Upload, check_name, may_be_listed
from txnlog.storage.buffered_uploads import Spool, SpooledUpload
from txnlog.storage.failure_messages import failure, port_of, split_url
from txnlog.storage.whole import TooLarge

READING = "reading"
PART_BYTES = 8 << 20
"""Larger objects are uploaded in parts of this size."""

T = TypeVar("T")
C = TypeVar("C", bound="ObjectClient")


@dataclass(frozen=True, slots=True)
class ListingPage:
    """A part of a listing: what one request returned, in the order of keys."""

    objects: list[tuple[str, int]]
    """Keys and sizes in bytes."""
    folders: list[str]
    """What objects deeper down begin with, up to and with the next "/"."""
    next_page: str | None
    """For the request that goes on; None if there is no more."""


class ObjectClient(ABC):
    """The requests that a store needs, of one bucket. Each method raises RequestFailed."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> None:
        """Put an object where there is none, as one step of the server's: else TAKEN."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Put an object, whatever is there."""

    @abstractmethod
    def write_file(self, key: str, path: str) -> None:
        """Put a local file of more than PART_BYTES; it shows when it is complete.

        Has patience of its own, for each part.
        """

    @abstractmethod
    def read(self, key: str) -> bytes:
        """The whole object; else MISSING. Raises TooLarge."""

    @abstractmethod
    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop), fewer where the object ends; else MISSING or PAST_END."""

    @abstractmethod
    def describe(self, key: str) -> tuple[int, int]:
        """Size in bytes, and when it was put, in ms; else MISSING."""

    @abstractmethod
    def list_page(
        self, prefix: str, *, start_after: str, deep: bool, next_page: str | None
    ) -> ListingPage:
        """Objects whose keys begin with ``prefix``.

        Keys not greater than ``start_after`` may be left out, if that saves requests. Unless
        ``deep`` those with another "/" are folders. ``next_page`` is of the page before; None for
        the first.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; else MISSING."""


class ObjectStore(ConnectedStorage[C]):
    """Objects below one prefix of a bucket."""

    connect_hint: str | None = None
    """What to do if no client can be made, unless its error says it."""

    def __init__(
        self, url: str, options: Mapping[str, Any] | None, secrets: frozenset[str] | None = None
    ) -> None:
        super().__init__(url, options, secrets)
        place, _, prefix = url.partition("://")[2].strip("/").partition("/")
        self._bucket = place.partition("@")[0]
        self._prefix = f"{prefix}/" if prefix else ""

    def _patiently(self, request: Callable[[], T]) -> T:
        """Make a request, and repeat it as long as that may help. Raises RequestFailed."""
        return patiently(request)

    def _key(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _folder_prefix(self, folder: str) -> str:
        return f"{self._key(folder)}/" if folder else self._prefix

    def _failure(self, operation: str, name: str, error: BaseException) -> StorageError:
        if not isinstance(error, RequestFailed):
            hint = self.connect_hint if operation == "connecting to" else None
            return failure(operation, self.url, name, error, hint=hint, secrets=self._secrets)
        if error.answer is Answer.MISSING and operation == READING:
            return ObjectNotFound(f"there is no {self.url}/{name}")
        return failure(
            operation,
            self.url,
            name,
            error,
            hint=error.hint or None,
            secrets=self._secrets,
            # What is missing in an upload is the upload: another one may succeed.
            retriable=error.answer in (Answer.BUSY, Answer.MISSING),
        )

    @contextmanager
    def _explained(self, operation: str, name: str) -> Iterator[None]:
        """Raise StorageError, or ObjectNotFound, for what a client raises in the block."""
        try:
            yield
        except (RequestFailed, TooLarge) as error:
            raise self._failure(operation, name, error) from error

    # -- writing ---------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See Storage. False may also be said of our own object.

        The first one of a process makes sure that the server keeps the promise, see ``probe``.

        A create whose answer was lost is repeated, and the server refuses the repetition; the
        caller reads the object back to find out.
        """
        key, client = self._key(name), self.client
        self.check_before_write(name)
        try:
            self._patiently(partial(client.create, key, bytes(data)))
        except RequestFailed as error:
            if error.answer is Answer.TAKEN:
                return False
            raise self._failure("creating", name, error) from error
        return True

    def put(self, name: str, data: bytes) -> None:
        key, client = self._key(name), self.client
        with self._explained("creating", name):
            self._patiently(partial(client.write, key, bytes(data)))

    def replace(self, name: str, data: bytes) -> None:
        self.put(name, data)

    def upload(self, name: str) -> Upload:
        return SpooledUpload(self.url, name, partial(self._put_spooled, check_name(name)))

    def _put_spooled(self, name: str, spool: Spool) -> None:
        if spool.size_bytes <= PART_BYTES:
            self.put(name, spool.read())
            return
        key, client = self._key(name), self.client
        with self._explained("uploading", name):
            try:
                client.write_file(key, spool.name)
            except RequestFailed as error:
                # A server may forget an upload that is complete: it does not know the repetition
                # of a request whose answer was lost.
                if error.answer is not Answer.MISSING or not self._has(key, spool.size_bytes):
                    raise

    def _has(self, key: str, size_bytes: int) -> bool:
        """Whether there is an object of this size."""
        try:
            return self._patiently(partial(self.client.describe, key))[0] == size_bytes
        except RequestFailed as error:
            if error.answer is not Answer.MISSING:
                raise
            return False

    def delete(self, names: Iterable[str]) -> None:
        checked = [check_name(name) for name in names]
        self.gather(partial(self._delete_one, name) for name in checked)

    def _delete_one(self, name: str) -> None:
        key, client = self._key(name), self.client
        try:
            self._patiently(partial(client.delete, key))
        except RequestFailed as error:
            if error.answer is not Answer.MISSING:
                raise self._failure("deleting", name, error) from error

    # -- reading ---------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        key, client = self._key(name), self.client
        with self._explained(READING, name):
            return self._patiently(partial(client.read, key))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        key, client = self._key(name), self.client
        if stop <= start:
            return b""
        try:
            return self._patiently(partial(client.read_range, key, start, stop))
        except (RequestFailed, TooLarge) as error:
            if isinstance(error, RequestFailed) and error.answer is Answer.PAST_END:
                return b""
            raise self._failure(READING, name, error) from error

    def size(self, name: str) -> int:
        return self._describe(name)[0]

    def modified_ms(self, name: str) -> int | None:
        return self._describe(name)[1]

    def _describe(self, name: str) -> tuple[int, int]:
        key, client = self._key(name), self.client
        with self._explained(READING, name):
            return self._patiently(partial(client.describe, key))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        prefix = self._folder_prefix(folder)
        names: list[str] = []
        for page in self._pages(folder, deep=False, start_after=start_after):
            names += [key[len(prefix) :] for key, _ in page.objects]
        # Some tools leave an object of the folder's own name behind.
        return sorted(name for name in names if name and name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        prefix = self._folder_prefix(folder)
        found: set[str] = set()
        for page in self._pages(folder, deep=False):
            found |= {key[len(prefix) : -1] for key in page.folders}
        return sorted(name for name in found if name)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        for page in self._pages(folder, deep=True):
            for key, size_bytes in page.objects:
                name = key.removeprefix(self._prefix)
                if not key.endswith("/") and may_be_listed(self.url, name):
                    yield name, size_bytes

    def _pages(self, folder: str, *, deep: bool, start_after: str = "") -> Iterator[ListingPage]:
        prefix, next_page = self._folder_prefix(folder), None
        client = self.client
        after = prefix + start_after if start_after else ""
        while True:
            ask = partial(
                client.list_page, prefix, start_after=after, deep=deep, next_page=next_page
            )
            with self._explained("listing", folder):
                page = self._patiently(ask)
            yield page
            if page.next_page is None:
                return
            next_page = page.next_page


def bucket_path(url: str, service: str) -> str:
    """The bucket and the folder of a URL, without the protocol.

    Raises InvalidOption: there is no bucket, or more than that and a folder.
    """
    protocol, _, path = url.partition("://")
    if "@" in path.partition("/")[0] or "?" in path:
        raise InvalidOption(
            f"credentials and queries do not belong in {service} URL: use storage_options"
        )
    if not path.strip("/") or path.startswith("/"):
        raise InvalidOption(f"{service} URL needs a bucket, as in {protocol}://bucket/folder")
    check_name(path.rstrip("/"))
    return path


def check_endpoint(endpoint_url: str, instead: str) -> None:
    """Raise InvalidOption for one that is no URL of HTTP, if it is not "", or has credentials.

    Errors of the HTTP client would show them.
    """
    what = "storage option endpoint_url"
    parts = split_url(endpoint_url, what)
    if parts.username is not None:
        raise InvalidOption(f"credentials do not belong in endpoint_url: use {instead}")
    port_of(parts, what)
    if endpoint_url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InvalidOption(f"{what} must be a whole URL, as in https://host:9000")
