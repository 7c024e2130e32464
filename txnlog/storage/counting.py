"""Counts the requests that go to a storage: what operations cost is the same on every machine.

Knows nothing of what they are for, nor how many HTTP requests an adapter makes of one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from txnlog.storage.base import Address, Storage, Upload

T = TypeVar("T")


class CountingStorage(Storage):
    """Passes everything on and counts it by kind: ``counts["put_if_absent"]`` and so on.

    An upload counts as one request, a deletion of any number of objects as one.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = inner.url
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[CountingStorage], tuple[Storage]]:
        return CountingStorage, (self.inner,)

    def address(self) -> Address:
        return self.inner.address()

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1

    def take(self) -> dict[str, int]:
        """What was counted since the last call, in the order of the kinds' names."""
        with self._lock:
            taken = dict(sorted(self.counts.items()))
            self.counts.clear()
        return taken

    def folds_case(self) -> bool:
        return self.inner.folds_case()

    def trust(self) -> None:
        self.inner.trust()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._count("put_if_absent")
        return self.inner.put_if_absent(name, data)

    def confirm(self, name: str) -> None:
        self._count("confirm")
        self.inner.confirm(name)

    def put(self, name: str, data: bytes) -> None:
        self._count("put")
        self.inner.put(name, data)

    def upload(self, name: str) -> Upload:
        self._count("upload")
        return self.inner.upload(name)

    def get(self, name: str) -> bytes:
        self._count("get")
        return self.inner.get(name)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        self._count("get_range")
        return self.inner.get_range(name, start, stop)

    def size(self, name: str) -> int:
        self._count("size")
        return self.inner.size(name)

    def modified_ms(self, name: str) -> int | None:
        self._count("modified")
        return self.inner.modified_ms(name)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        self._count("list")
        return self.inner.list_names(folder, start_after)

    def list_folders(self, folder: str) -> list[str]:
        self._count("list_folders")
        return self.inner.list_folders(folder)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        self._count("list_all")
        return self.inner.list_all(folder)

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if doomed:
            self._count("delete")
            self.inner.delete(doomed)

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        return self.inner.gather(calls)

    def race(self, call: Callable[[int, int], T], rounds: int) -> list[list[T]]:
        return self.inner.race(call, rounds)
