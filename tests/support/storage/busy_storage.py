"""A storage on which others go on while one process waits for its requests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TypeVar

from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.threads import MAX_AHEAD_BYTES, SizedCall
from txnlog.testing import VirtualClock

T = TypeVar("T")


class BusyStorage(ForwardingStorage):
    """One process's view. During each request, ``arrive`` is called with how many entries come.

    One half comes before the request takes effect, the other half after it. Up to 16 requests that
    are made together take as long as one.
    """

    def __init__(
        self,
        inner: Storage,
        arrive: Callable[[int], object] = lambda _: None,
        clock: VirtualClock | None = None,
    ) -> None:
        super().__init__(inner)
        self.clock = clock
        """It goes on with each request, by these times."""
        self.request_ms = self.listing_ms = 5
        self.listings = 0
        self.rounds = 0
        """How often it has waited."""
        self.entries = 0
        """How many come during each request."""
        self._arrive = arrive
        self._waits = False

    def _during(self, call: Callable[[], T]) -> T:
        if self._waits:
            return call()
        self._waits = True
        self.rounds += 1
        if self.clock is not None:
            self.clock.time_ms += self.request_ms
        half = self.entries // 2
        try:
            self._arrive(half)
            return call()
        finally:
            self._arrive(self.entries - half)
            self._waits = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._during(lambda: self.inner.put_if_absent(name, data))

    def get(self, name: str) -> bytes:
        return self._during(lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._during(lambda: self.inner.get_range(name, start, stop))

    def size(self, name: str) -> int:
        return self._during(lambda: self.inner.size(name))

    def modified_ms(self, name: str) -> int | None:
        return self._during(lambda: self.inner.modified_ms(name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        self.listings += 1
        if self.clock is not None:
            self.clock.time_ms += self.listing_ms - self.request_ms
        return self._during(lambda: self.inner.list_names(folder, start_after))

    def list_folders(self, folder: str) -> list[str]:
        return self._during(lambda: self.inner.list_folders(folder))

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        left, found = [*calls], list[T]()
        while left:
            found += self._during(partial(self.inner.gather, left[:PARALLEL_REQUESTS]))
            del left[:PARALLEL_REQUESTS]
        return found

    def run_ahead(
        self, calls: Iterable[SizedCall[T]], most_bytes: int = MAX_AHEAD_BYTES
    ) -> Generator[T]:
        return self.inner.run_ahead(calls, most_bytes)
