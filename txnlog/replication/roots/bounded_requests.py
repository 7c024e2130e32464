"""A member whose requests are each made within a time limit, for calls that make many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol

from txnlog.errors import StorageError
from txnlog.storage.base import Storage, UnfinishedUpload, Upload
from txnlog.storage.forwarding import ForwardingStorage

_AT_ONCE: Final = 1000


class Within(Protocol):
    """Makes a request, within the time for so many bytes and names; without any it is a read.

    Who reads is waited for while the member shows its mark. Raises StorageError.
    """

    def __call__(self, call: Callable[[], Any], *, size_bytes: int = 0, count: int = 0) -> Any:  # noqa: ANN401 - what the call returns
        """Make it."""
        ...


class BoundedRequests(ForwardingStorage):
    """A member's storage that leaves a request behind when it takes too long: StorageError."""

    def __init__(self, inner: Storage, within: Within) -> None:
        super().__init__(inner)
        self.within = within

    def put_if_absent(self, name: str, data: bytes) -> bool:
        put: bool = self.within(lambda: self.inner.put_if_absent(name, data), size_bytes=len(data))
        return put

    def put(self, name: str, data: bytes) -> None:
        self.within(lambda: self.inner.put(name, data), size_bytes=len(data))

    def replace(self, name: str, data: bytes) -> None:
        self.within(lambda: self.inner.replace(name, data), size_bytes=len(data))

    def take_over(self, name: str, source: Storage) -> bool:
        done: bool = self.within(lambda: self.inner.take_over(name, source))
        return done

    def upload(self, name: str) -> Upload:
        upload: Upload = self.within(lambda: self.inner.upload(name))
        return _BoundedUpload(upload, self.within)

    def confirm(self, name: str) -> None:
        self.within(lambda: self.inner.confirm(name))

    def get(self, name: str) -> bytes:
        data: bytes = self.within(lambda: self.inner.get(name))
        return data

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        data: bytes = self.within(lambda: self.inner.get_range(name, start, stop))
        return data

    def size(self, name: str) -> int:
        size_bytes: int = self.within(lambda: self.inner.size(name))
        return size_bytes

    def modified_ms(self, name: str) -> int | None:
        at_ms: int | None = self.within(lambda: self.inner.modified_ms(name))
        return at_ms

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        found: list[str] = self.within(lambda: self.inner.list_names(folder, start_after))
        return found

    def list_folders(self, folder: str) -> list[str]:
        found: list[str] = self.within(lambda: self.inner.list_folders(folder))
        return found

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        listed: list[Iterator[tuple[str, int]]] = []

        def go_on() -> list[tuple[str, int]]:
            if not listed:
                listed.append(self.inner.list_all(folder))
            return list(islice(listed[0], _AT_ONCE))

        while some := self.within(go_on):
            yield from some

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        self.within(lambda: self.inner.delete(doomed), count=len(doomed))

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        yield from self.within(lambda: [*self.inner.list_unfinished_uploads()])

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        doomed = [*uploads]
        self.within(lambda: self.inner.abort_uploads(doomed), count=len(doomed))


class _BoundedUpload(Upload):
    """An upload; a call that is left behind drops it when it ends."""

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
