"""A member's storage that puts a time limit on each request, for calls that make many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from txnlog.errors import StorageError
from txnlog.storage.base import Storage, UnfinishedUpload, Upload
from txnlog.storage.forwarding import RequestStorage

T = TypeVar("T")

_AT_ONCE: Final = 1000


class Within(Protocol):
    """Makes a request within a time limit: longer the more bytes it puts, or names it deletes.

    A request without bytes or names is a read, and is waited for while the member shows its mark.

    Raises StorageError.
    """

    def __call__(self, call: Callable[[], Any], *, size_bytes: int = 0, count: int = 0) -> Any:  # noqa: ANN401 - what the call returns
        """Make the request."""
        ...


class BoundedRequests(RequestStorage):
    """A member's storage that abandons a request which takes too long, with a StorageError."""

    get_many = Storage.get_many  # each read has its time
    get_ranges = Storage.get_ranges

    def __init__(self, inner: Storage, within: Within) -> None:
        super().__init__(inner)
        self.within = within

    def _request(
        self, kind: str, names: Sequence[str], call: Callable[[], T], size_bytes: int = 0
    ) -> T:
        count = len(names) if kind in ("delete", "abort_uploads") else 0
        done: T = self.within(call, size_bytes=size_bytes, count=count)
        return done

    def upload(self, name: str) -> Upload:
        return _BoundedUpload(super().upload(name), self.within)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        listed: list[Iterator[tuple[str, int]]] = []

        def go_on() -> list[tuple[str, int]]:
            if not listed:
                listed.append(self.inner.list_all(folder))
            return list(islice(listed[0], _AT_ONCE))

        while some := self.within(go_on):
            yield from some

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        yield from self.within(lambda: [*self.inner.list_unfinished_uploads()])


class _BoundedUpload(Upload):
    """An upload; if one of its calls is abandoned, the upload is dropped when that call ends."""

    def __init__(self, inner: Upload, within: Within) -> None:
        self._inner = inner
        self._within = within
        self._size = 0
        self._is_left = False

    def _make(self, call: Callable[[], object], size_bytes: int) -> None:
        def run() -> None:
            try:
                call()
            finally:
                if self._is_left:
                    self._inner.discard()

        ended = False
        try:
            self._within(run, size_bytes=size_bytes)
            ended = True
        finally:
            self._is_left = not ended

    def write(self, data: bytes) -> int:
        self._size += len(data)
        self._make(lambda: self._inner.write(data), len(data))
        return len(data)

    def close(self) -> None:
        self._make(self._inner.close, self._size)

    def discard(self) -> None:
        if not self._is_left:
            with suppress(StorageError):
                self._within(self._inner.discard, count=1)
