"""Storages whose requests take a time that is given; those that are made together, the longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

from txnlog.storage.base import Storage, Upload
from txnlog.storage.buffered_uploads import BufferedUpload
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.threads import SizedCall

T = TypeVar("T")


@dataclass
class Timeline:
    """The virtual time of a run."""

    now_ms: float = 0.0


class OnTimeline(ForwardingStorage):
    """A place whose requests take a given time; it counts them by kind."""

    def __init__(self, inner: Storage, line: Timeline, request_ms: float) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()
        self._line = line
        self._request_ms = request_ms

    def _timed(self, kind: str, call: Callable[[], T]) -> T:
        self.counts[kind] += 1
        self._line.now_ms += self._request_ms
        return call()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._timed("put", lambda: self.inner.put_if_absent(name, data))

    def put(self, name: str, data: bytes) -> None:
        self._timed("put", lambda: self.inner.put(name, data))

    def upload(self, name: str) -> Upload:
        return BufferedUpload(lambda data: self.put(name, data))

    def confirm(self, name: str) -> None:
        self._timed("other", lambda: self.inner.confirm(name))

    def get(self, name: str) -> bytes:
        return self._timed("get", lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._timed("get", lambda: self.inner.get_range(name, start, stop))

    def size(self, name: str) -> int:
        return self._timed("other", lambda: self.inner.size(name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return self._timed("list", lambda: self.inner.list_names(folder, start_after))

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        self._timed("other", lambda: self.inner.delete(doomed))

    def without_fsync(self) -> OnTimeline:
        return self

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        """All begin now; this returns when the last one is done."""
        begun_ms = over_ms = self._line.now_ms
        found = []
        for call in calls:
            self._line.now_ms = begun_ms
            found.append(call())
            over_ms = max(over_ms, self._line.now_ms)
        self._line.now_ms = over_ms
        return found

    def put_round(self, calls: Iterable[Callable[[], object]]) -> None:
        self.gather(calls)

    def run_ahead(self, calls: Iterable[SizedCall[T]], _: int = 0) -> Generator[T]:
        yield from self.gather(call for _, call in calls)
