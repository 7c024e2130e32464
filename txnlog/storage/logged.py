"""Logs each request to a storage: the logger ``txnlog.requests``.

Only stores that are opened while it is enabled for DEBUG are logged: others pay nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from txnlog.errors import TxnlogError
from txnlog.storage.base import Storage, Upload
from txnlog.storage.forwarding import ForwardingStorage, innermost

T = TypeVar("T")

_logger = logging.getLogger("txnlog.requests")


def _size_bytes(read: object) -> int:
    """The size of a request's result, if it has read objects."""
    pieces = read if isinstance(read, list) else [read]
    return sum(len(piece) for piece in pieces if isinstance(piece, bytes))


def logged(storage: Storage) -> Storage:
    """The storage, wrapped if the logger is enabled."""
    return LoggedStorage(storage) if _logger.isEnabledFor(logging.DEBUG) else storage


class LoggedStorage(ForwardingStorage):
    """Forwards everything, and logs its kind, name, size and time. Knows no contents."""

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        return logged, (self.inner,)  # the receiving process decides what it logs

    def _timed(self, kind: str, name: str, call: Callable[[], T], size_bytes: int = 0) -> T:
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

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._timed(
            "put_if_absent", name, lambda: self.inner.put_if_absent(name, data), len(data)
        )

    def put_decided(self, name: str, data: bytes) -> bool:
        return self._timed(
            "put_if_absent", name, lambda: self.inner.put_decided(name, data), len(data)
        )

    def put(self, name: str, data: bytes) -> None:
        self._timed("put", name, lambda: self.inner.put(name, data), len(data))

    def replace(self, name: str, data: bytes) -> None:
        self._timed("replace", name, lambda: self.inner.replace(name, data), len(data))

    def take_over(self, name: str, source: Storage) -> bool:
        inner, source = self.inner, innermost(source)
        return self._timed("take_over", name, lambda: inner.take_over(name, source))

    def confirm(self, name: str) -> None:
        self._timed("confirm", name, lambda: self.inner.confirm(name))

    def upload(self, name: str) -> Upload:
        return self._timed("upload", name, lambda: self.inner.upload(name))

    def get(self, name: str) -> bytes:
        return self._timed("get", name, lambda: self.inner.get(name))

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        if not names:
            return []
        return self._timed("get", ", ".join(names), lambda: self.inner.get_many(names))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._timed("get_range", name, lambda: self.inner.get_range(name, start, stop))

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        if not ranges:
            return []
        names = ", ".join(name for name, _, _ in ranges)
        return self._timed("get_range", names, lambda: self.inner.get_ranges(ranges))

    def size(self, name: str) -> int:
        return self._timed("size", name, lambda: self.inner.size(name))

    def modified_ms(self, name: str) -> int | None:
        return self._timed("modified", name, lambda: self.inner.modified_ms(name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return self._timed("list", folder, lambda: self.inner.list_names(folder, start_after))

    def list_folders(self, folder: str) -> list[str]:
        return self._timed("list_folders", folder, lambda: self.inner.list_folders(folder))

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        return self._timed("list_all", folder, lambda: self.inner.list_all(folder))

    def delete(self, names: Iterable[str]) -> None:
        if doomed := list(names):
            self._timed("delete", ", ".join(doomed), lambda: self.inner.delete(doomed))
