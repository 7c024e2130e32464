"""A storage that wraps another one: the base of those that count, fail, or change one thing.

Two of them are here: one logs each request, the other refuses whatever would change the store.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NoReturn, Self, TypeVar

from txnlog.errors import StorageError, TxnlogError
from txnlog.storage.base import Address, AsOf, Kind, Storage, UnfinishedUpload, Upload
from txnlog.storage.threads import MAX_AHEAD_BYTES, SizedCall

T = TypeVar("T")


class ForwardingStorage(Storage):
    """Forwards every call to ``inner``; a subclass overrides only what it changes.

    A subclass that overrides ``get`` sees every read of a whole object: ``get_many`` then calls it
    for each, unless it is overridden too. The same holds for ``get_ranges`` with ``get_range``,
    ``put_decided`` with ``put_if_absent`` and ``put_round`` with ``gather``.
    """

    # Beside the other attributes, which a view without fsync shares.
    __slots__ = ("inner",)
    inner: Storage

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "get" in vars(cls) and "get_many" not in vars(cls):
            cls.get_many = Storage.get_many  # type: ignore[method-assign]
        if "get_range" in vars(cls) and "get_ranges" not in vars(cls):
            cls.get_ranges = Storage.get_ranges  # type: ignore[method-assign]
        if "put_if_absent" in vars(cls) and "put_decided" not in vars(cls):
            cls.put_decided = Storage.put_decided  # type: ignore[method-assign]
        if "gather" in vars(cls) and "put_round" not in vars(cls):
            cls.put_round = Storage.put_round  # type: ignore[method-assign]

    def without_fsync(self) -> Self:
        """This wrapper, with all its state, around the inner storage's view without fsync."""
        inner = self.inner.without_fsync()
        if inner is self.inner:
            return self
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__
        view.inner = inner
        return view

    def folds_case(self) -> bool:
        return self.inner.folds_case()

    def lists_whole_folders(self) -> bool:
        return self.inner.lists_whole_folders()

    def local_path(self, name: str) -> str | None:  # noqa: ARG002 - who reads it passes us by
        return None

    def address(self) -> Address:
        return self.inner.address()

    def urls(self) -> Sequence[str]:
        return self.inner.urls()

    def trust(self, *, probed: bool = False) -> None:
        self.inner.trust(probed=probed)

    def was_probed(self) -> bool:
        return self.inner.was_probed()

    def will_write(self) -> None:
        self.inner.will_write()

    def check_writable(self) -> None:
        self.inner.check_writable()

    def history(self) -> int:
        return self.inner.history()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.inner.put_if_absent(name, data)

    def put_decided(self, name: str, data: bytes) -> bool:
        return self.inner.put_decided(name, data)

    def confirm(self, name: str) -> None:
        self.inner.confirm(name)

    def shows_early(self) -> bool:
        return self.inner.shows_early()

    def put(self, name: str, data: bytes) -> None:
        self.inner.put(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self.inner.replace(name, data)

    def take_over(self, name: str, source: Storage) -> bool:
        return self.inner.take_over(name, innermost(source))

    def upload(self, name: str) -> Upload:
        return self.inner.upload(name)

    def get(self, name: str) -> bytes:
        return self.inner.get(name)

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        return self.inner.get_many(names)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self.inner.get_range(name, start, stop)

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        return self.inner.get_ranges(ranges)

    def small_reads_at_once(self) -> int:
        return self.inner.small_reads_at_once()

    def copies_of(self, name: str) -> Sequence[Storage]:
        return self.inner.copies_of(name)

    def size(self, name: str) -> int:
        return self.inner.size(name)

    def modified_ms(self, name: str) -> int | None:
        return self.inner.modified_ms(name)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return self.inner.list_names(folder, start_after)

    def check_listing(self, name: str) -> None:
        self.inner.check_listing(name)

    def list_folders(self, folder: str) -> list[str]:
        return self.inner.list_folders(folder)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        return self.inner.list_all(folder)

    def delete(self, names: Iterable[str]) -> None:
        self.inner.delete(names)

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        return self.inner.list_unfinished_uploads()

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        self.inner.abort_uploads(uploads)

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        return self.inner.gather(calls)

    def put_round(self, calls: Iterable[Callable[[], object]]) -> None:
        self.inner.put_round(calls)

    def count_later(self) -> AbstractContextManager[Callable[[], None]]:
        return self.inner.count_later()

    def wait_up_to(self, for_s: float) -> AbstractContextManager[None]:
        return self.inner.wait_up_to(for_s)

    def kind(self) -> Kind:
        return self.inner.kind()

    def as_of(self) -> AsOf | None:
        return self.inner.as_of()

    def may_be_unlisted(self, name: str) -> bool:
        return self.inner.may_be_unlisted(name)

    def set_replication_factor(
        self, topic: str, factor: int | None, *, dry_run: bool = False
    ) -> None:
        self.inner.set_replication_factor(topic, factor, dry_run=dry_run)

    def run_ahead(
        self, calls: Iterable[SizedCall[T]], most_bytes: int = MAX_AHEAD_BYTES
    ) -> Generator[T]:
        return self.inner.run_ahead(calls, most_bytes)

    def race(self, call: Callable[[int, int], T], rounds: int) -> list[list[T]]:
        return self.inner.race(call, rounds)


class RequestStorage(ForwardingStorage):
    """Makes each request through ``_request``, by which a subclass counts it, say.

    A request of no names is not made.
    """

    @abstractmethod
    def _request(
        self, kind: str, names: Sequence[str], call: Callable[[], T], size_bytes: int = 0
    ) -> T:
        """Make a request for objects, or a folder, which puts so many bytes."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        put = partial(self.inner.put_if_absent, name, data)
        return self._request("put_if_absent", [name], put, len(data))

    def put_decided(self, name: str, data: bytes) -> bool:
        put = partial(self.inner.put_decided, name, data)
        return self._request("put_if_absent", [name], put, len(data))

    def put(self, name: str, data: bytes) -> None:
        self._request("put", [name], partial(self.inner.put, name, data), len(data))

    def replace(self, name: str, data: bytes) -> None:
        self._request("replace", [name], partial(self.inner.replace, name, data), len(data))

    def take_over(self, name: str, source: Storage) -> bool:
        take = partial(self.inner.take_over, name, innermost(source))
        return self._request("take_over", [name], take)

    def confirm(self, name: str) -> None:
        self._request("confirm", [name], partial(self.inner.confirm, name))

    def upload(self, name: str) -> Upload:
        return self._request("upload", [name], partial(self.inner.upload, name))

    def get(self, name: str) -> bytes:
        return self._request("get", [name], partial(self.inner.get, name))

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        return self._request("get", names, partial(self.inner.get_many, names)) if names else []

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._request("get_range", [name], partial(self.inner.get_range, name, start, stop))

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        names = [name for name, _, _ in ranges]
        get = partial(self.inner.get_ranges, ranges)
        return self._request("get_range", names, get) if names else []

    def size(self, name: str) -> int:
        return self._request("size", [name], partial(self.inner.size, name))

    def modified_ms(self, name: str) -> int | None:
        return self._request("modified", [name], partial(self.inner.modified_ms, name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return self._request("list", [folder], partial(self.inner.list_names, folder, start_after))

    def list_folders(self, folder: str) -> list[str]:
        return self._request("list_folders", [folder], partial(self.inner.list_folders, folder))

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        return self._request("list_all", [folder], partial(self.inner.list_all, folder))

    def delete(self, names: Iterable[str]) -> None:
        if doomed := list(names):
            self._request("delete", doomed, partial(self.inner.delete, doomed))

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        return self._request("list_uploads", [""], self.inner.list_unfinished_uploads)

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        if doomed := list(uploads):
            names = [one.name for one in doomed]
            self._request("abort_uploads", names, partial(self.inner.abort_uploads, doomed))


def innermost(storage: Storage) -> Storage:
    """What a storage wraps, if it does."""
    while isinstance(storage, ForwardingStorage):
        storage = storage.inner
    return storage


_logger = logging.getLogger("txnlog.requests")


def _size_bytes(read: object) -> int:
    """The size of a request's result, if it has read objects."""
    pieces = read if isinstance(read, list) else [read]
    return sum(len(piece) for piece in pieces if isinstance(piece, bytes))


def logged(storage: Storage) -> Storage:
    """The storage, wrapped if the logger ``txnlog.requests`` is enabled: others pay nothing."""
    return LoggedStorage(storage) if _logger.isEnabledFor(logging.DEBUG) else storage


class LoggedStorage(RequestStorage):
    """Forwards everything, and logs its kind, name, size and time. Knows no contents."""

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        return logged, (self.inner,)  # the receiving process decides what it logs

    def _request(
        self, kind: str, names: Sequence[str], call: Callable[[], T], size_bytes: int = 0
    ) -> T:
        name = ", ".join(names)
        began_s = time.perf_counter()
        failed = ""
        try:
            done = call()
            size_bytes += _size_bytes(done)
            return done
        except TxnlogError as error:
            failed = f", {type(error).__name__}"
            raise
        finally:
            took_ms = (time.perf_counter() - began_s) * 1000
            _logger.debug(
                "%s %s: %d bytes, %.1f ms%s",
                kind,
                name,
                size_bytes,
                took_ms,
                failed,
                extra={"request": kind, "object": name, "bytes": size_bytes, "took_ms": took_ms},
            )


class ReadOnlyStorage(ForwardingStorage):
    """Forwards what reads; to delete nothing is no change."""

    @abstractmethod
    def why_read_only(self) -> str:
        """Why, and what to do."""

    def _refuse(self) -> NoReturn:
        error = StorageError(f"{self.url}: {self.why_read_only()}")
        error.retriable = False
        raise error

    def check_writable(self) -> None:
        self._refuse()

    def put_if_absent(self, name: str, data: bytes) -> bool:  # noqa: ARG002
        self._refuse()

    def put(self, name: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def replace(self, name: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def take_over(self, name: str, source: Storage) -> bool:  # noqa: ARG002
        self._refuse()

    def upload(self, name: str) -> Upload:  # noqa: ARG002
        self._refuse()

    def set_replication_factor(
        self,
        topic: str,  # noqa: ARG002
        factor: int | None,  # noqa: ARG002
        *,
        dry_run: bool = False,  # noqa: ARG002
    ) -> None:
        self._refuse()

    def delete(self, names: Iterable[str]) -> None:
        for _ in names:
            self._refuse()

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        for _ in uploads:
            self._refuse()


class SalvagedStorage(ReadOnlyStorage):
    """A folder that is looked at alone, though it may be a part of a store."""

    def why_read_only(self) -> str:
        return "it was opened with salvage=True, and can be read only"

    def local_path(self, name: str) -> str | None:
        return self.inner.local_path(name)

    def open_file(self, name: str) -> int | None:
        return self.inner.open_file(name)
