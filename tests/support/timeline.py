"""Storages whose requests take a time that is given; those that are made together, the longest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from txnlog.storage.base import Storage, Upload
from txnlog.storage.buffered_uploads import BufferedUpload
from txnlog.storage.forwarding import ForwardingStorage

T = TypeVar("T")

_REQUESTS = ("put_if_absent", "put", "get", "get_range", "size", "list_names", "confirm", "delete")


@dataclass
class Timeline:
    """The time of all that happens in a test: one thread runs."""

    now_ms: float = 0.0


class OnTimeline(ForwardingStorage):
    """A place whose requests take so long."""

    def __init__(self, inner: Storage, line: Timeline, request_ms: float) -> None:
        super().__init__(inner)
        self._line = line
        self._request_ms = request_ms

    def __getattribute__(self, name: str) -> Any:
        if name == "put_decided":
            return self.put_if_absent
        method = super().__getattribute__(name)
        if name not in _REQUESTS:
            return method

        def timed(*arguments: Any) -> Any:
            self._line.now_ms += self._request_ms
            return method(*arguments)

        return timed

    def upload(self, name: str) -> Upload:
        return BufferedUpload(lambda data: self.put(name, data))

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        begun_ms = over_ms = self._line.now_ms
        found = []
        for call in calls:
            self._line.now_ms = begun_ms
            found.append(call())
            over_ms = max(over_ms, self._line.now_ms)
        self._line.now_ms = over_ms
        return found
