"""Counts the requests to a storage: a measure of cost that is the same on every machine.

Knows nothing of their purpose, nor how many HTTP requests an adapter makes for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from txnlog.storage.base import Storage, UnfinishedUpload, Upload
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.forwarding import ForwardingStorage


class CountingStorage(ForwardingStorage):
    """Forwards everything and counts it by kind: ``counts["put_if_absent"]`` and so on.

    An upload counts as one request, a deletion of any number of objects as one, as does aborting
    uploads; reading many objects, or ranges, is a ``get`` or ``get_range`` for each, and
    ``put_decided`` a ``put_if_absent``. Requests to its view without fsync count here
    too.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()
        self._lock = ForkSafeLock()

    def __reduce__(self) -> tuple[type[CountingStorage], tuple[Storage]]:
        return CountingStorage, (self.inner,)

    def beside(self, inner: Storage) -> CountingStorage:
        """Another storage, whose requests are counted together with those of this one."""
        other = CountingStorage(inner)
        other.counts, other._lock = self.counts, self._lock
        return other

    def seen(self) -> dict[str, int]:
        """What was counted so far, in the order of the kinds' names."""
        with self._lock.mutex:
            return dict(sorted(self.counts.items()))

    def _count(self, kind: str, requests: int = 1) -> None:
        with self._lock.mutex:
            self.counts[kind] += requests

    def take(self) -> dict[str, int]:
        """The counts since the last call, in the order of the kinds' names."""
        with self._lock.mutex:
            taken = dict(sorted(self.counts.items()))
            self.counts.clear()
        return taken

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._count("put_if_absent")
        return super().put_if_absent(name, data)

    def put_decided(self, name: str, data: bytes) -> bool:
        self._count("put_if_absent")
        return super().put_decided(name, data)

    def confirm(self, name: str) -> None:
        self._count("confirm")
        super().confirm(name)

    def put(self, name: str, data: bytes) -> None:
        self._count("put")
        super().put(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self._count("replace")
        super().replace(name, data)

    def take_over(self, name: str, source: Storage) -> bool:
        self._count("take_over")
        return super().take_over(name, source)

    def upload(self, name: str) -> Upload:
        self._count("upload")
        return super().upload(name)

    def get(self, name: str) -> bytes:
        self._count("get")
        return super().get(name)

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        if names:
            self._count("get", len(names))
        return super().get_many(names)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        self._count("get_range")
        return super().get_range(name, start, stop)

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        if ranges:
            self._count("get_range", len(ranges))
        return super().get_ranges(ranges)

    def size(self, name: str) -> int:
        self._count("size")
        return super().size(name)

    def modified_ms(self, name: str) -> int | None:
        self._count("modified")
        return super().modified_ms(name)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        self._count("list")
        return super().list_names(folder, start_after)

    def list_folders(self, folder: str) -> list[str]:
        self._count("list_folders")
        return super().list_folders(folder)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        self._count("list_all")
        return super().list_all(folder)

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if doomed:
            self._count("delete")
            super().delete(doomed)

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        self._count("list_uploads")
        return super().list_unfinished_uploads()

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        doomed = list(uploads)
        if doomed:
            self._count("abort_uploads")
            super().abort_uploads(doomed)
